"""A scaling study: the same round on more actors; its rounds per second and phases.

    study = Study(experiment, cohort_of(experiment), (0, 1, 2), machine, turns=3, seconds=2.0)
    study.measure(measure_turn)          # goes on where it was stopped
    study.fitted()                       # the model, which predicts for other numbers

Each turn is a run of its own, opened as ``fedskew run`` opens it. Every number of actors has a turn before any of them
has the next one, so that whatever else changes on the machine meets all alike.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import numpy as np
import pandas as pd
import torch

from engine import __version__
from engine.base import parquet
from engine.base.devices import cores
from engine.base.errors import RunFolderError, require
from engine.base.files import locked, write_atomically
from engine.base.opening import read_text
from engine.client.blocks import cut
from engine.data.dividing import divided
from engine.experiment import Execution, Experiment, Work
from engine.experiment.executor_policy import STACKING
from engine.record.columns import PHASES
from engine.record.numerics import hardware_of
from engine.run.run import Run
from engine.server.cohort import expected_cohort
from engine.worker.addresses import used
from engine.worker.pool import ADDED_APART
from fedskew.lab.floor.measured import NEVER, unwatched
from fedskew.lab.frames import write_frame
from fedskew.lab.scaling.model import ALONE, Fit, Parts, fit

RATE = "rounds_per_second"
WARM_UP = 1.0  # seconds of rounds before a turn is measured
MEANS = tuple(f"{phase}_seconds" for phase in PHASES if phase != "evaluation")  # over rounds, of rounds.parquet
TURN = ("seconds", "rounds", *MEANS, "bytes_in", "sums", "work_seconds", "longest_seconds")  # the last: of clients
COLUMNS = ("actors", "clients", "turn", "blocks", *TURN, RATE)
Row = dict[str, Any]  # of COLUMNS: one turn of one number of actors


# --- the machine ----------------------------------------------------------------------------------------------


def look_around(execution: Execution, address: str | None) -> dict[str, Any]:
    """Nodes, CPUs and GPUs of the cluster at ``address``, or of this machine; what computes there."""
    if on_cluster(address):
        from engine.worker.ray import cluster

        cluster.connect(execution, address)
        room: dict[str, Any] = cluster.resources()
    else:
        room = {"nodes": 1, "cpus": float(cores()), "gpus": float(torch.cuda.device_count())}
    device = "cuda" if execution.gpus_per_actor > 0 and torch.cuda.is_available() else "cpu"
    return {**room, "hardware": hardware_of(device), "torch": torch.__version__, "fedskew": __version__}


def on_cluster(address: str | None) -> bool:
    return bool(used(address)[0])


def room_for(machine: Mapping[str, Any], execution: Execution) -> int:
    """Return how many actors have room beside each other, at least 1."""
    room = math.floor(machine["cpus"] / execution.cpus_per_actor + 1e-6)
    if execution.gpus_per_actor > 0:
        room = min(room, math.floor(machine["gpus"]) * math.floor(1 / execution.gpus_per_actor + 1e-6))
    return max(room, 1)


def actors_for(room: int, execution: Execution) -> tuple[int, ...]:
    """0 if this process can do the work, 1, and on to ``room``: one by one up to 4, then doubled."""
    counts = {room, *(count for count in (3, *(1 << power for power in range(room.bit_length()))) if count <= room)}
    in_process = execution.gpus_per_actor == 0 or torch.cuda.is_available()
    return tuple(sorted(counts | ({0} if in_process else set())))


# --- measuring ------------------------------------------------------------------------------------------------


def endless(experiment: Experiment) -> Experiment:
    """Return the experiment that is measured: endless rounds without evaluations and checkpoints."""
    stages = [stage.name for stage in experiment.stages]
    rule = "cannot be measured: a study has one kind of round"
    require(not stages, "stages", stages, rule, "name an experiment without stages, or leave them away: stages=[]")
    always = {"participation.availability": 1.0, "participation.held_out": 0}
    equal = {f"work.{name}": value for name, value in Work().model_dump().items()}
    return unwatched(experiment).replace({"rounds": NEVER, **always, **equal})


def cohort_of(experiment: Experiment) -> int:
    """Clients per round as the experiment says."""
    holders = int(np.count_nonzero(divided(experiment.data, experiment.partition, experiment.data.load()).sizes()))
    return max(round(expected_cohort(holders, experiment.participation)), 1)


def measure_turn(experiment: Experiment, seconds: float, address: str | None = None) -> Row:
    """Run rounds for about so many seconds, at least one, after a warm-up; what they took, in the columns TURN.

    seconds: of the clock, so that they hold what goes on between rounds, too. sums: uploads that come in.
    """
    with tempfile.TemporaryDirectory(prefix="fedskew-scale-") as folder:
        run = Run.open(experiment, Path(folder) / "run", address if experiment.execution.actors else None)
        with closing(run.driver):
            run.advance(min(WARM_UP, seconds))
            began = time.perf_counter()
            rows = run.advance(seconds).rows
            took = time.perf_counter() - began
        clients = run.folder.clients.arrow(["round", "seconds"]).to_pandas().groupby("round")["seconds"]
        large = 4 * run.folder.summary()["parameters"] > ADDED_APART
    execution = experiment.execution
    blocks = [
        [sum(block) for block in _cut(execution, clients.get_group(row["round"]).tolist(), execution.actors)]
        for row in rows
    ]
    return {
        "seconds": took,
        "rounds": len(rows),
        **{name: fmean(row[name] for row in rows) for name in (*MEANS, "bytes_in")},
        "sums": 1 if execution.actors and large else max(map(len, blocks)),
        "work_seconds": fmean(map(sum, blocks)),
        "longest_seconds": fmean(map(max, blocks)),
    }


class Study:
    """Numbers of actors and their measurements, kept in ``runs/scale-<name>-<digest>``, or ``out``.

    It goes on with what is in the folder, if that is the same study. cohort: clients per round. machine: see
    :func:`look_around`. turns: of each number, of about so many seconds.
    """

    def __init__(
        self,
        experiment: Experiment,
        cohort: int,
        actors: Iterable[int],
        machine: Mapping[str, Any],
        turns: int,
        seconds: float,
        out: Path | None = None,
    ) -> None:
        counts = sorted(set(actors))
        rule = "must be numbers from 0 on"
        require(bool(counts) and counts[0] >= 0, "--actors", counts, rule, "for example --actors 1,2")
        self.most = most = counts[-1]
        rule = f"must be at most the {cohort} clients of a round, or actors idle"
        require(most <= cohort, "--actors", most, rule, f"set participation.count={4 * most}")
        experiment = endless(experiment)
        # One device for all settings: that of the most actors.
        device = experiment.replace({"execution.actors": most}).resolve().execution.device
        self.experiment = experiment.replace({"execution.device": device})
        self.machine, self.turns, self.seconds = dict(machine), turns, seconds
        self.cohort, self.counts = cohort, counts
        for count in counts:
            self.experiment_of(count)  # refuses what does not go together before a folder is made
        about = {"experiment": experiment.to_mapping(), "cohort": cohort, "actors": counts, "seconds": seconds}
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
        self.folder = out or Path("runs") / f"scale-{experiment.name}-{digest}"
        self.rows = self._kept({**about, "machine": self.machine})  # in the order in which they were measured

    def _kept(self, about: Mapping[str, Any]) -> list[Row]:
        """The rows that are in the folder, which is made if it is not there."""
        folder, told = self.folder, json.dumps(about, indent=2) + "\n"
        described, table = folder / "study.json", folder / "scaling.parquet"
        if not described.exists():
            free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
            require(free, "--out", folder, "is not empty and holds no study", "name another folder")
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(described, told)
            return []
        try:
            found = read_text(described)
            rows = parquet.read(table, COLUMNS).to_pylist() if table.exists() else []
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{folder} cannot be read ({error}); name another folder") from None
        rule = "holds a study of another experiment, of other actors or on another machine"
        require(found == told, "--out", folder, rule, "name another folder, or ask for the same")
        return rows

    def experiment_of(self, actors: int) -> Experiment:
        """Return the experiment that is run on so many actors."""
        changes = {"participation.count": self.cohort, "execution.actors": actors}
        return self.experiment.replace({**changes, "participation.scheme": "fixed"})

    @property
    def left(self) -> list[tuple[int, int]]:
        """Actors and turns that are still to be measured, in their order."""
        done = set(map(_at, self.rows))
        return [(count, turn) for turn in range(self.turns) for count in self.counts if (count, turn) not in done]

    def measure(
        self,
        run_turn: Callable[[Experiment, float], Row],
        tell: Callable[[int], None] = lambda actors: None,
    ) -> None:
        """Measure every turn that is not yet there; each is on disk before the next one begins.

        ``run_turn``: :func:`measure_turn`, given the experiment of a number of actors; ``tell`` gets the number.
        """
        with locked(self.folder / ".lock"):
            for actors, turn in self.left:
                experiment = self.experiment_of(actors).resolve()
                found = run_turn(experiment, self.seconds)
                blocks = len(_cut(experiment.execution, range(self.cohort), actors))
                about = {"actors": actors, "clients": self.cohort, "turn": turn, "blocks": blocks}
                self.rows.append({**about, **found, RATE: found["rounds"] / found["seconds"]})
                write_frame(pd.DataFrame(self.rows), self.folder / "scaling")
                tell(actors)

    # --- what it says -----------------------------------------------------------------------------------------

    def measured(self) -> list[Row]:
        """The turns that count, by actors and then by turns, each ascending."""
        return sorted((row for row in self.rows if row["turn"] < self.turns), key=_at)

    def fitted(self) -> Fit | None:
        """The model of a round, None where nothing was measured with actors; what runs in process has no part in it."""
        turns = [row for row in self.measured() if row["actors"]]
        execution = self.experiment_of(self.most).resolve().execution
        return fit_of(turns, lambda actors: len(_cut(execution, range(self.cohort), actors))) if turns else None


def over_turns(rows: Iterable[Row]) -> list[Row]:
    """One row for each number of actors, in their order: its first row with the geometric ``mean`` of its rates over
    turns, its slowest turn as ``low`` and its fastest as ``high``."""
    found = []
    for _, part in groupby(rows, itemgetter("actors")):
        turns = list(part)
        rates = [row[RATE] for row in turns]
        found.append({**turns[0], "mean": geometric_mean(rates), "low": min(rates), "high": max(rates)})
    return found


def fit_of(turns: Sequence[Row], blocks: Callable[[int], int] | None = None) -> Fit:
    """Fit turns, all with actors; ``blocks`` as for :func:`fit`."""
    measured = [(row["actors"], _parts(row), row["seconds"] / row["rounds"]) for row in turns]
    return fit(measured, blocks, one_sum=any(row["sums"] < row["blocks"] for row in turns))


def _parts(row: Row) -> Parts:
    alone = {phase: row[f"{phase}_seconds"] for phase in ALONE}
    return Parts(row["work_seconds"], row["longest_seconds"], row["transfer_seconds"], row["addition_seconds"], alone)


def _at(row: Row) -> tuple[int, int]:
    return row["actors"], row["turn"]


def _cut(execution: Execution, clients: Sequence[Any], actors: int) -> list[tuple[Any, ...]]:
    """What there is of each client, by blocks."""
    return cut(clients, execution.block, max(actors, 1), execution.executor in STACKING)
