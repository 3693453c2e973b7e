"""Files of a sweep: what was asked, and a record and a run folder for each trial.

    sweep.yaml         the sweep as data, and where its function is
    trials/00000/      a run's folder, and trial.json: setting, seed, status, schedule
    tune/              Ray Tune's own results; never read
    report/            see engine/analysis

Everything that ``fedskew resume`` and ``fedskew report`` need is here, in YAML, JSON, parquet and safetensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from engine.base import safe_yaml
from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import refuse_links, write_atomically
from engine.base.writable import check_writable
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.sweeps.named import NamedSweep

Status = Literal["running", "finished", "stopped", "failed"]


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
            check_writable(folder.path, "--out")
        return folder

    # --- the sweep --------------------------------------------------------------------------------------

    def is_sweep(self) -> bool:
        return os.path.exists(self.path / "sweep.yaml")

    def create(self, named: NamedSweep, how: Mapping[str, Any]) -> None:
        """Write ``sweep.yaml``; ``how``: store, mode and what else a resume must know."""
        self.path.mkdir(parents=True, exist_ok=True)
        values = {
            "name": named.name,
            "profile": named.profile,
            "title": named.title,
            "digest": named.digest,
            "reference": named.reference,
            "overrides": list(named.overrides),
            "how": dict(how),
            **named.sweep.to_mapping(),
        }
        write_atomically(self.path / "sweep.yaml", yaml.safe_dump(values, sort_keys=False, allow_unicode=True))

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

    # --- trials -----------------------------------------------------------------------------------------

    def run_folder(self, trial: str) -> RunFolder:
        return RunFolder(self.path / "trials" / trial)

    def write(self, record: TrialRecord) -> None:
        path = self.path / "trials" / record.trial
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / "trial.json", json.dumps(asdict(record), indent=2) + "\n")

    def record(self, trial: str) -> TrialRecord | None:
        path = self.path / "trials" / trial / "trial.json"
        if not path.exists():
            return None
        try:
            record = TrialRecord(**json.loads(path.read_text(encoding="utf-8")))
            numbers = (record.seed, record.rounds, record.rounds_asked, record.rounds_computed, record.replaced)
            if not all(type(number) is int for number in numbers):
                raise ValueError("its numbers are not whole")
            if record.status not in get_args(Status) or not isinstance(record.setting, dict):
                raise ValueError(f"its status is {record.status}")
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise RunFolderError(f"{path} cannot be read ({error}); delete it to run this trial again") from None
        if record.trial != trial:  # it says where the record is written next
            raise RunFolderError(f"{path} is of trial {record.trial}; delete it to run trial {trial} again")
        return record

    def begun(self, trial: str) -> TrialRecord:
        """Return the record of a trial that has been handed to Tune; raises :class:`RunFolderError` without one."""
        record = self.record(trial)
        if record is None:
            raise RunFolderError(f"{self.path} has no record of trial {trial}")
        return record

    def records(self) -> list[TrialRecord]:
        """Read the records of all trials that have begun, in order."""
        found = [self.record(path.parent.name) for path in sorted((self.path / "trials").glob("*/trial.json"))]
        return [record for record in found if record is not None]

    def experiment(self, trial: str) -> tuple[Experiment, int | None]:
        """A trial as a run of its own: its experiment with its schedule, and the round after which it ended early."""
        record = self.record(trial) if trial == Path(trial).name else None  # a trial is no path
        if record is None:
            raise ConfigError("trial", trial, f"is not in {self.path}", "see its folder trials/")
        experiment = self.run_folder(trial).experiment()
        early = record.status in ("stopped", "finished") and record.rounds < experiment.spans[-1].stop - 1
        return experiment, record.rounds if early else None

    def end(self, trial: str, status: Status, reason: str | None) -> None:
        """Record the end of a trial that could not say so itself: stopped by a scheduler, or dead."""
        record = self.record(trial)
        if record is not None and not record.ended:
            self.write(replace(record, status=status, reason=reason))
