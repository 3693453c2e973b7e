"""Files of a sweep: what was asked, and a record and a run folder for each trial.

    sweep.yaml         the sweep as data, and where its function is
    plan.json          which trials there are to be, see engine/record/sweep_files.py
    trials/00000/      a run's folder, and trial.json: setting, seed, status, schedule
    tune/              Ray Tune's own results; never read
    .read.parquet      what a report has read of ended trials, see engine/results/read_before.py
    report/            see fedskew/lab/report
    log.txt            what trackers met that were asked for, see fedskew/trackers

Everything that ``fedskew resume`` and ``fedskew report`` need is here, in YAML, JSON, parquet and safetensors.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from engine.base import safe_yaml
from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import refuse_links, write_atomically, writing
from engine.base.owned import Shape
from engine.base.writable import check_writable
from engine.experiment import Experiment
from engine.record.numerics import UNKNOWN
from engine.record.run_folder import RunFolder
from engine.record.shapes import TRIAL_CHECKPOINT
from engine.record.stage_hashes import CODE
from engine.record.sweep_files import BEGUN, RECORD, PlannedTrial, Status, read_plan, read_record, write_plan
from engine.sweeps.named import NamedSweep

log = logging.getLogger("fedskew")

_STATE = r"(experiment_state|search_gen_state|searcher-state|basic-variant-state|callback-states)-[0-9_-]+\.(json|pkl)"
_SHORT = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# What Ray Tune writes into ``tune/``: all that is deleted there when a sweep goes on.
TUNE = Shape(
    (rf"((\.{_SHORT}-)?tmp-)?{_STATE}", r"tuner\.pkl", r"trainable\.pkl", r"\.validate_storage_marker"),
    {
        "[0-9]{5,}(_[0-9a-f]{4})?": Shape(  # the second where there is a folder of that name already
            (
                r"params\.(json|pkl)",
                r"result\.json",
                r"progress\.csv",
                r"error\.(txt|pkl)",
                r"events\.out\.tfevents\..+",
            ),
            {"checkpoint_[0-9]{6,}": TRIAL_CHECKPOINT},
        )
    },
)


@dataclass(frozen=True)
class TrialRecord:
    """A record of one trial and of how far it has come; ``trial.json``."""

    trial: str
    setting: dict[str, Any]
    seed: int
    status: Status = "running"
    reason: str | None = None  # of a failed or stopped one
    rounds: int = 0  # as last recorded; global
    rounds_asked: int = 0
    rounds_computed: int = 0  # by this trial's own processes, those included that ``replaced`` counts
    replaced: int = 0  # computed rounds of weights that a copy of another trial took the place of
    # [{"first_round", "set": hyper-parameters, "parent": weights_sha256 of the state it went on from, "from": trial}]
    schedule: list[dict[str, Any]] = field(default_factory=list)
    died: bool = False  # failed, by its machine and not by its setting

    @property
    def ended(self) -> bool:
        return self.status != "running"


class SweepFolder:
    """The files of one sweep."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def tune(self) -> Path:
        return self.path / "tune"

    @classmethod
    def for_sweep(cls, named: NamedSweep, out: Path | None) -> SweepFolder:
        """``runs/<name>-<profile>-<hash>``, or ``out``; refuses a folder that holds something else."""
        folder = cls(out or Path("runs") / f"{named.name}-{named.profile}-{named.digest}")
        if os.path.exists(folder.path) and not folder.path.is_dir():
            raise ConfigError("--out", folder.path, "is not a folder", "name another one")
        refuse_links(folder.path)
        if folder.is_sweep():
            found = folder.sweep()["digest"]
            if found != named.digest:
                raise ConfigError(
                    "--out",
                    folder.path,
                    f"holds another sweep ({found}, this one is {named.digest})",
                    "name another folder, or leave --out away",
                )
        elif os.path.exists(folder.path) and any(path.name != ".lock" for path in folder.path.iterdir()):
            # The lock alone is what a sweep leaves that ended before it wrote sweep.yaml.
            raise ConfigError("--out", folder.path, "is not empty and holds no sweep", "name another folder")
        else:
            check_writable(folder.path, "--out", locks=True)
        return folder

    # --- the sweep --------------------------------------------------------------------------------------

    def is_sweep(self) -> bool:
        return os.path.exists(self.path / "sweep.yaml")

    def has_trials(self) -> bool:
        """Return whether a trial has begun."""
        return self.is_sweep() and any((self.path / "trials").glob(f"*/{RECORD}"))

    def create(
        self,
        named: NamedSweep,
        how: Mapping[str, Any],
        code: str = UNKNOWN,
        begun: Mapping[str, Any] | None = None,
    ) -> None:
        """Write ``sweep.yaml``; ``how``: store, mode and what else a resume must know; ``code``: of its trials.

        ``begun``: :meth:`asked_first`, of trials that come from elsewhere. Where it differs from what is asked now it
        is kept, so that the ledger knows which claims were made with the outcome at hand.

        Raises :class:`WriteError` where the disk fails, as all that writes here does.
        """
        begun = self.asked_first() if begun is None else begun
        values = {
            "name": named.name,
            "profile": named.profile,
            "title": named.title,
            "digest": named.digest,
            "reference": named.reference,
            "overrides": list(named.overrides),
            "how": dict(how),
            CODE: code,
            **named.sweep.to_mapping(),
        }
        if named.most is not None:
            values |= {"looks": "repeatedly", "until_decided": {"most": named.most, "added": list(named.added)}}
        if named.rank:
            values["tuned_rank"] = named.rank
        if changed := {name: value for name, value in begun.items() if value != values.get(name)}:
            values[BEGUN] = changed
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path / "sweep.yaml", safe_yaml.text_of(values))

    def write_plan(self, planned: Sequence[PlannedTrial]) -> None:
        """Write down which trials there are to be, for whom a lost one is to be missing."""
        with writing(self.path):
            write_plan(self.path, planned)

    def plan(self) -> dict[str, PlannedTrial]:
        """Read the plan that an earlier process of the sweep has left; {} if there is none that can be read."""
        try:
            return {one.trial: one for one in read_plan(self.path, {}) or ()}
        except RunFolderError as error:
            log.warning("%s", error)
            return {}

    def sweep(self) -> dict[str, Any]:
        """Raises :class:`RunFolderError` if this is no sweep's folder."""
        path = self.path / "sweep.yaml"
        try:
            return dict(safe_yaml.read(path))
        except (OSError, TypeError, ValueError) as error:
            raise RunFolderError(f"{path} cannot be read as a sweep ({error})") from None

    def asked(self) -> dict[str, Any]:
        """:meth:`sweep` with what a resume needs; raises :class:`RunFolderError` where that is not there."""
        values = self.sweep()
        kinds = {"reference": str, "profile": str, "digest": str, "overrides": list, "how": dict}
        wrong = [name for name, kind in kinds.items() if not isinstance(values.get(name), kind)]
        if wrong or not all(isinstance(text, str) for text in values["overrides"]):
            lacking = (wrong or ["overrides"])[0]
            raise RunFolderError(f"{self.path / 'sweep.yaml'} cannot be read as a sweep (it has no {lacking})")
        return values

    def asked_first(self) -> dict[str, Any]:
        """Return the claims, the target and the devices of when the first trial began; {} if none has."""
        if not self.has_trials():
            return {}
        values = self.sweep()
        begun = values.get(BEGUN, {})
        known = {**values, **begun} if isinstance(begun, dict) else {}
        if not isinstance(known.get("claims"), list):
            raise RunFolderError(
                f"{self.path / 'sweep.yaml'} cannot be read as a sweep (it has no claims to begin with)"
            )
        return {name: known.get(name) for name in ("claims", "target_accuracy", "devices")}

    def with_added(self, named: NamedSweep) -> NamedSweep:
        """Return ``named`` with the seeds that earlier processes have added, and with the folder's choice of rates."""
        written = self.sweep() if self.is_sweep() else {}
        rank, values = written.get("tuned_rank", named.rank), written.get("until_decided")
        if rank not in (0, 1):
            raise RunFolderError(f"{self.path / 'sweep.yaml'} cannot be read as a sweep (tuned_rank: {rank})")
        named = replace(named, rank=rank)
        if values is None:
            return named
        known = values if isinstance(values, dict) else {}
        added, most = known.get("added"), known.get("most")
        whole = isinstance(added, list) and all(type(seed) is int and seed >= 0 for seed in added)
        if type(most) is not int or not isinstance(added, list) or not whole:
            raise RunFolderError(f"{self.path / 'sweep.yaml'} cannot be read as a sweep (until_decided: {values})")
        if len(named.added) < len(added):
            named = named.grown(tuple(added))
        return replace(named, most=most if named.most is None else named.most)

    # --- trials -----------------------------------------------------------------------------------------

    def run_folder(self, trial: str) -> RunFolder:
        return RunFolder(self.path / "trials" / trial)

    def write(self, record: TrialRecord) -> None:
        path = self.path / "trials" / record.trial
        with writing(self.path):
            path.mkdir(parents=True, exist_ok=True)
            write_atomically(path / RECORD, json.dumps(asdict(record), indent=2) + "\n")

    def record(self, trial: str) -> TrialRecord | None:
        path = self.path / "trials" / trial / RECORD
        if not os.path.lexists(path):
            return None
        known = {field.name for field in fields(TrialRecord)}
        return TrialRecord(**{name: value for name, value in read_record(path).items() if name in known})

    def begun(self, trial: str) -> TrialRecord:
        """Return the record of a trial that has been handed to Tune; raises :class:`RunFolderError` without one."""
        record = self.record(trial)
        if record is None:
            raise RunFolderError(f"{self.path} has no record of trial {trial}")
        return record

    def records(self) -> list[TrialRecord]:
        """Read the records of all trials that have begun, in order."""
        found = [self.record(path.parent.name) for path in sorted((self.path / "trials").glob(f"*/{RECORD}"))]
        return [record for record in found if record is not None]

    def bring(self, trial: str) -> None:
        """Bring a trial that has ended here from where it is kept: it is here."""

    def experiment(self, trial: str) -> tuple[Experiment, int | None]:
        """A trial as a run of its own: its experiment with its schedule, and the round after which it ended early."""
        record = self.record(trial) if trial == Path(trial).name else None  # a trial is no path
        if record is None:
            raise ConfigError("trial", trial, f"is not in {self.path}", "see its folder trials/")
        experiment = self.run_folder(trial).experiment()
        early = record.status in ("stopped", "finished") and record.rounds < experiment.spans[-1].stop - 1
        return experiment, record.rounds if early else None

    def end(self, trial: str, status: Status, reason: str | None, died: bool = False) -> None:
        """Record the end of a trial that could not say so itself: stopped by a scheduler, or dead."""
        record = self.record(trial)
        if record is not None and not record.ended:
            self.write(replace(record, status=status, reason=reason, died=died))
