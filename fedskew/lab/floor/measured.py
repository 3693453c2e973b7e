"""A few rounds of an experiment, timed, beside the least time that they could have taken on this machine."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine import __version__
from engine.algorithm import Algorithm
from engine.base.errors import FedskewError, RunError, require
from engine.client.jobs import set_up_torch
from engine.client.nets import DTYPES
from engine.data import Assignment
from engine.experiment import CHOICES, Evaluation, Experiment, Stage, Stop, lineage_of
from engine.models.cost import ModelCost, model_cost
from engine.record.numerics import hardware_of, numerics
from engine.record.run_folder import Row
from engine.run.run import Run
from engine.server.cohort import draw_cohort, held_out_of
from engine.worker.thread_count import workers_of
from fedskew.lab.floor.counts import Floor, RoundWork, Speed, least, round_work
from fedskew.lab.floor.device_speed import measure

NEVER = 10**9  # rounds
# Where a method does more in a round than plain local training.
COSTLY = (
    "phases",
    "loss",
    "perturbation",
    "gradient",
    "step_randomness",
    "step_constants",
    "client_setup",
    "phase_start",
    "before_round",
    "aggregate_with",
)


@dataclass(frozen=True)
class TimedRound:
    """One round: what it was and took, and the floor under it."""

    number: int  # global
    seconds: float  # without evaluation
    samples: int  # of the cohort
    work: RoundWork
    floor: Floor

    @property
    def share(self) -> float:
        """The share of the round's time that its floor would have taken."""
        return self.floor.seconds / self.seconds

    def to_mapping(self) -> dict[str, Any]:
        work = self.work
        of_round = {
            "round": self.number,
            "seconds": self.seconds,
            "clients": len(work.clients),
            "samples": self.samples,
        }
        counts = {name: getattr(work, name) for name in ("rows", "steps", "broadcast_bytes", "aggregation_bytes")}
        sums = {name: sum(getattr(work, name)) for name in ("flops", "weight_bytes", "activation_bytes")}
        floor = {**asdict(self.floor), "seconds": self.floor.seconds}
        return {**of_round, **counts, **sums, "floor": floor, "share": self.share}


@dataclass(frozen=True)
class MeasuredFloor:
    """The rounds of one stage, after the first, in which everything is still cold."""

    experiment: Experiment  # as it was run: cut short, evaluation off
    stage: Stage
    cost: ModelCost
    speed: Speed
    rounds: tuple[TimedRound, ...]

    @property
    def typical(self) -> TimedRound:
        """The round that took the median time, the shorter of two."""
        return sorted(self.rounds, key=lambda round: round.seconds)[(len(self.rounds) - 1) // 2]

    @property
    def is_plain(self) -> bool:
        """True if clients do no more than the floor counts, by the method's own account."""
        kind = type(self.stage.algorithm)
        return all(getattr(kind, hook) is getattr(Algorithm, hook) for hook in COSTLY)

    def to_mapping(self) -> dict[str, Any]:
        """All figures, as plain data."""
        numbers = ("parameters", "buffers", "macs", "first_macs", "activations")
        model = {name: getattr(self.cost, name) for name in numbers}
        known = numerics(self.experiment, hardware_of(self.experiment.execution.device))
        return {
            "experiment": self.experiment.to_mapping(),
            "stage": self.stage.name,
            "model": {**model, "layers": [asdict(layer) for layer in self.cost.layers]},
            "speed": {**asdict(self.speed), "flops": self.speed.flops},
            "rounds": [timed.to_mapping() for timed in self.rounds],
            "typical": self.typical.number,
            "share": self.typical.share,
            "versions": {"fedskew": __version__, **known},
        }


def last_with_rounds(experiment: Experiment) -> tuple[Stage, range]:
    """The stage whose floor is asked for, and its global rounds."""
    stages = zip(experiment.chain, experiment.spans, strict=True)
    return [(stage, span) for stage, span in stages if stage.rounds][-1]


def unwatched(experiment: Experiment) -> Experiment:
    """The experiment without stop rules and checkpoints; nothing is evaluated but the ends of stages."""
    values = experiment.to_mapping()
    values["evaluation"] = Evaluation(every=0, personal_every=0, client_loss=False).model_dump()
    values["stop"] = Stop().model_dump()
    values["checkpoint"] |= {"every": NEVER, "seconds": None}
    return Experiment.from_mapping(values)


def cut_short(experiment: Experiment, rounds: int) -> Experiment:
    """Its last stage with rounds, of one more than are to be timed: what a stage does at its end is not a round's.

    Of each stage that it comes from one round is left; hyper-parameters are those of its first round; nothing is
    evaluated but the ends of stages.
    """
    stage, span = last_with_rounds(experiment)
    values = unwatched(experiment.at(span.start)).to_mapping()
    if not experiment.stages:
        values["rounds"] = rounds + 1
        return Experiment.from_mapping(values)
    lineage = lineage_of({written.name: written.needs for written in experiment.stages}, stage.name)
    values["stages"] = [written for written in values["stages"] if written["name"] in lineage]
    for written in values["stages"]:
        written["rounds"] = rounds + 1 if written["name"] == stage.name else min(written["rounds"], 1)
    return Experiment.from_mapping(values)


def measure_floor(experiment: Experiment, rounds: int) -> MeasuredFloor:
    """Run ``rounds`` rounds, at least two, in a temporary folder, then measure the machine."""
    models = [CHOICES["model"].name_of(model) for model in experiment.client_models]
    rule = "have different costs, and the floor is counted for one model"
    require(not models, "client_models", models, rule, "set client_models=[]")
    rule = "makes clients' work unequal, and the floor is counted for equal work"
    require(not experiment.work.identity(), "work", "...", rule, "leave the section out")
    autocast = experiment.execution.autocast
    rule = "is arithmetic of another speed than the one that is measured"
    require(autocast == "none", "execution.autocast", autocast, rule, "set execution.autocast=none")
    experiment = cut_short(experiment, rounds).resolve()
    stage, span = last_with_rounds(experiment)
    with tempfile.TemporaryDirectory(prefix="fedskew-floor-") as folder:
        run = Run.open(experiment, Path(folder) / "run")
        try:
            rows = _timed(run, stage, span[rounds - 1])
        except BaseException:
            with suppress(FedskewError):  # what went wrong first is said
                run.driver.close()
            raise
        run.driver.close()  # without the run's pictures
    cost = model_cost(experiment.model, run.shape, len(run.classes))
    works = {row["round"]: _work(experiment, stage, cost, run.assignment, row["round"]) for row in rows}
    set_up_torch(experiment)
    dtype = DTYPES[experiment.execution.precision]
    batch = max(-(-work.rows // work.steps) if work.steps else 1 for work in works.values())
    execution, size = experiment.execution, dtype.itemsize
    workers = execution.actors or workers_of(experiment, run.shape, len(run.classes), run.assignment)
    speed = measure(execution, workers, dtype, cost.parameters * size, batch * cost.activations * size)
    timed = []
    for row in rows:
        work = works[row["round"]]
        timed.append(TimedRound(row["round"], row["seconds"], row["samples"], work, least(work, speed)))
    return MeasuredFloor(experiment, stage, cost, speed, tuple(timed))


def _timed(run: Run, stage: Stage, last: int) -> list[Row]:
    """The stage's rows up to a round, but for its first round and those that nobody took part in."""
    rows: list[Row] = []
    while run.round < last:
        rows += run.advance(until=last).rows
    timed = [row for row in rows if row["stage"] == stage.name][1:]
    if not any(row["clients"] for row in timed):
        raise RunError(f"stage {stage.name}: no client took part in the rounds that were timed; try more --rounds")
    return [row for row in timed if row["clients"]]


def _work(experiment: Experiment, stage: Stage, cost: ModelCost, assignment: Assignment, round: int) -> RoundWork:
    sizes = assignment.sizes()
    holders, participation = np.flatnonzero(sizes), experiment.participation
    clients = np.setdiff1d(holders, held_out_of(experiment.seed, holders, participation))
    cohort = draw_cohort(experiment.seed, round, clients, participation)
    itemsize, workers = DTYPES[experiment.execution.precision].itemsize, experiment.execution.actors
    return round_work(cost, stage.local, [int(sizes[client]) for client in cohort], itemsize, workers)
