"""One round of a run again, up to the local models: as they are after training and before aggregation.

A copy of the run goes on from the nearest checkpoint before that round, in a folder of its own, through the same
driver. Each round that it computes must end with the weights whose hash the run recorded, or nothing is returned. The
run's own files are only read.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch

from engine.algorithm import Tensors
from engine.base.errors import ConfigError, RunError, RunFolderError
from engine.base.files import link_or_copy, refuse_links
from engine.base.opening import read_bytes
from engine.data import Assignment, Dataset
from engine.experiment import Experiment, Stop, lineage_of
from engine.record.checkpoints import Checkpoint, Checkpoints
from engine.record.run_folder import Row, RunFolder
from engine.run.driver import Driver
from engine.run.preparing import Prepared, check_place, prepare
from engine.worker.in_process import InProcessPool
from engine.worker.pool import Pool

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class Round:
    """A round that a run has done: what is known of it before it is computed again."""

    folder: Path
    experiment: Experiment
    stage: str
    number: int  # global
    clients: tuple[int, ...]  # of its cohort, ascending
    recorded: dict[tuple[str, int], str]  # (stage, round) -> weights_sha256, for every round of the run


@dataclass(frozen=True)
class LocalModels:
    """The local models of a round, read one by one from files that live as long as the context does."""

    round: Round
    experiment: Experiment  # resolved for this machine
    dataset: Dataset
    assignment: Assignment
    began: int  # the round of the checkpoint that it was computed from; 0: from the beginning
    compared: tuple[int, ...]  # rounds whose weights were computed again and had the recorded hash
    weights_sha256: str  # of the global model after the round
    clients: tuple[int, ...]
    folder: Path

    def __getitem__(self, client: int) -> Tensors:
        """ "weights" [P] and "buffers" [Q] with which the client ended."""
        return safetensors.torch.load(read_bytes(_file(self.folder, client)))


def _file(folder: Path, client: int) -> Path:
    return folder / f"{client:06d}.safetensors"


def find(folder: Path, number: int | None = None, stage: str | None = None, overrides: Sequence[str] = ()) -> Round:
    """A round of the run in ``folder``, by default the last one of its last stage; refuses one it has not done.

    ``stage``: where stages branch, a round may lie in several; none: in the last stage or those it comes from. A stage
    without rounds trains nobody and is passed over.
    ``overrides``: execution keys that change no bit, such as ``execution.actors=0``.
    """
    refuse_links(folder)
    run = RunFolder(folder)
    stored = run.experiment()
    experiment = stored.override(overrides)
    if experiment.digest != stored.digest:
        raise ConfigError("overrides", " ".join(overrides), "would change the run", "set only execution keys")
    names = [one.name for one in experiment.chain]
    if stage is not None and stage not in names:
        raise ConfigError("--stage", stage, "is no stage of this run", "known: " + ", ".join(names))
    if stage in experiment.without_rounds:
        needs = {one.name: one.needs for one in experiment.chain}
        trained = [name for name in names if name in lineage_of(needs, stage) - experiment.without_rounds]
        raise ConfigError("--stage", stage, "trains nobody", f"diagnose the stage it comes from: --stage {trained[-1]}")
    rounds: list[Row] = run.frame("rounds").to_dict("records")
    if not all(isinstance(row.get("weights_sha256"), str) for row in rounds):
        raise RunFolderError(f"{folder} has no hash of each round's weights: an older version wrote it; run it again")
    open_to = ({stage} if stage else experiment.lineage) - experiment.without_rounds
    done = {row["round"]: row["stage"] for row in rounds if row["stage"] in open_to}
    if not done:
        raise RunFolderError(f"{folder} has no round yet{f' of stage {stage}' if stage else ''}")
    chosen = max(done) if number is None else number
    if chosen not in done:
        raise ConfigError(
            "--round", chosen, f"is not among the rounds {min(done)} to {max(done)} that the run has done"
        )
    name = done[chosen]
    rows: list[Row] = run.frame("clients").to_dict("records")
    return Round(
        folder=folder,
        experiment=experiment,
        stage=name,
        number=chosen,
        clients=tuple(sorted(row["client"] for row in rows if (row["stage"], row["round"]) == (name, chosen))),
        recorded={(row["stage"], row["round"]): row["weights_sha256"] for row in rounds},
    )


@contextmanager
def local_models(
    round: Round, clients: Sequence[int] | None = None, address: str | None = None
) -> Iterator[LocalModels]:
    """Compute ``round`` again, where the run's ``execution`` section says, and keep its local models for the block.

    ``clients``: those to keep, of the round's cohort; none: all. The copy lies in a hidden folder of the run's, so that
    clients' states are links, and is gone afterwards. Raises :class:`RunError` if the weights of a round are not those
    that the run recorded.
    """
    experiment = round.experiment.resolve()
    check_place(experiment.execution, address)
    prepared = prepare(experiment, round.folder, overwrite=False)
    copy = until(experiment, round.stage, round.number)
    kept = tuple(round.clients if clients is None else sorted(clients))
    with tempfile.TemporaryDirectory(prefix=".again-", dir=round.folder) as name:
        place = RunFolder(Path(name) / "run")
        models = Path(name) / "models"
        models.mkdir()
        place.create(copy)

        def keep(client: int, model: Tensors) -> None:
            if client in kept:
                safetensors.torch.save_file(model, _file(models, client))

        pool = _pool(copy, prepared, address)
        try:
            _copy_checkpoints(round, copy, place.path, dict(pool.numerics))
            driver = Driver(copy, place, prepared.dataset, prepared.assignment, pool)
            began = driver.round
            rows: list[Row] = []
            while driver.round < round.number - 1:
                rows += driver.advance(until=round.number - 1)
            driver.watch(keep)
            while driver.round < round.number:  # after a stage without rounds that the checkpoint did not cover
                rows += driver.advance(until=round.number)
            computed_with = dict(pool.numerics)
        finally:
            pool.close()
        sha = _compare(round, rows, computed_with)
        yield LocalModels(
            round=round,
            experiment=experiment,
            dataset=prepared.dataset,
            assignment=prepared.assignment,
            began=began,
            compared=tuple(row["round"] for row in rows),
            weights_sha256=sha,
            clients=kept,
            folder=models,
        )


def until(experiment: Experiment, stage: str, number: int) -> Experiment:
    """The experiment as far as a round of ``stage`` takes it: its stage, those it comes from, nothing measured.

    It has one round more than is asked for, so that the stage's end, which may be costly, is not reached. The number
    of rounds and what is evaluated change no bit of the rounds before: see
    :func:`engine.record.stage_hashes.stage_hash`.
    """
    spans = dict(zip([one.name for one in experiment.chain], experiment.spans, strict=True))
    values = experiment.to_mapping()
    values["evaluation"] |= {"every": 0, "local_every": 0, "personal_every": 0, "client_loss": False}
    values["evaluation"] |= {"fine_tune_epochs": 0, "fine_tune_steps": None}
    values["stop"] = Stop().model_dump()
    values["checkpoint"] = {"every": number + 1, "keep": 2}
    values["schedule"] = [change for change in values["schedule"] if change["round"] <= number + 1]
    if not experiment.stages:
        return Experiment.from_mapping(values | {"rounds": number + 1})
    needed = lineage_of({one.name: one.needs for one in experiment.chain}, stage)
    values["stages"] = [one for one in values["stages"] if one["name"] in needed]
    for one in values["stages"]:
        if one["name"] == stage:
            one["rounds"] = number + 2 - spans[stage].start
    return Experiment.from_mapping(values)


def _pool(experiment: Experiment, prepared: Prepared, address: str | None) -> Pool:
    if not experiment.execution.actors:
        return InProcessPool(experiment, prepared.dataset, prepared.assignment)
    from engine.worker.ray import cluster  # Ray is imported where it is used
    from engine.worker.ray.pool import RayPool

    cluster.connect(experiment.execution, address)
    cluster.check_resources(experiment.execution)
    return RayPool(experiment, cluster.share(prepared.dataset), prepared.assignment)


def _copy_checkpoints(round: Round, copy: Experiment, target: Path, computed_with: dict[str, str]) -> None:
    """The run's checkpoints before ``round``, as those of the copy, with the states they name.

    As if it had been computed here: whether other code, or another machine, comes to the same is seen by the weights.
    """
    names = [one.name for one in copy.chain]
    chain = tuple(one.name for one in round.experiment.chain)
    ours = Checkpoints(round.folder / "checkpoints", round.experiment.digest, 1, chain)
    theirs = Checkpoints(target / "checkpoints", copy.digest, 1, tuple(names))
    for path in ours.paths():
        try:
            found = ours.load(path)
        except RunFolderError as error:  # it can be done without, from an earlier one
            log.warning("%s; going back further", error)
            continue
        name, position = chain[found.position.stage], found.position
        if name not in names or (name == round.stage and position.round >= round.number):
            continue
        theirs.states_folder.mkdir(parents=True, exist_ok=True)
        for digest in set(found.states.values()):
            with suppress(FileNotFoundError):  # the driver goes back further where one is missing
                state = f"{digest}.safetensors"
                link_or_copy(ours.states_folder / state, theirs.states_folder / state)
        moved = type(position)(names.index(name), position.round)
        theirs.save(Checkpoint(moved, found.server, found.states, computed_with))


def _compare(round: Round, rows: Sequence[Row], computed_with: dict[str, Any]) -> str:
    """The hash after the last of ``rows``; :class:`RunError` at the first that differs from the recorded one."""
    for row in rows:
        recorded = round.recorded.get((row["stage"], row["round"]))
        if recorded != row["weights_sha256"]:
            told = ", ".join(f"{name} {value}" for name, value in computed_with.items())
            raise RunError(
                f"round {row['round']} computed again has other weights ({row['weights_sha256'][:12]}) than the run "
                f"recorded ({(recorded or 'none')[:12]}); here: {told}; the run's versions are in its summary.json"
            )
    return str(rows[-1]["weights_sha256"])
