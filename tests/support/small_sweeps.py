"""Sweeps of seconds, for tests: as a user's own file, FILE.py:function."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from engine.data import Dataset
from engine.experiment import Experiment
from engine.record.stage_hashes import code_of
from engine.record.store import StageStore
from engine.record.sweep_files import PlannedTrial
from engine.results.claims import Claim, PaperTable
from engine.sweeps.definition import Asha, Optuna, Pbt, Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import load
from engine.sweeps.options import How
from engine.sweeps.planning import Planned, order, plan
from engine.sweeps.running import combined
from engine.sweeps.trial import Job, Trial, data_key
from engine.sweeps.tuned import Tuned
from tests.support.waiting import settle


class Alone(Trial):
    """A trial without Tune; ``fields`` of its job."""

    trial_name = "00000"
    logdir = None

    def __init__(self, folder: Path, experiment: Experiment, step: int | None = 2, **fields: Any) -> None:
        data = {data_key(experiment): None}
        self.setup({}, Job(folder, experiment, data, None, 0, step, **{"mutable": ()} | fields))
        self._datasets = {data_key(experiment): experiment.data.load()}


class InProcess(Trial):
    """A planned trial without Tune."""

    trial_name = ""
    logdir = None

    def __init__(self, folder: Path, sweep: Sweep, one: Planned, dataset: Dataset, store: StageStore | None) -> None:
        self.trial_name = one.trial
        data = {data_key(one.experiment): None}
        self.setup({}, Job(folder, sweep.base, data, store, 0, None, (), partitions=sweep.partitions))
        self._datasets = {data_key(one.experiment): dataset}


def in_process(function: str, out: Path, *overrides: str) -> Path:
    """Run every trial of a sweep of this file in this process, and leave its folder as a sweep on Ray does."""
    for _ in in_steps(function, out, *overrides):
        pass
    return out


def in_steps(function: str, out: Path, *overrides: str, store: StageStore | None = None) -> Iterator[dict[str, Any]]:
    """Do the same a step at a time; yield what each reports. Trials come in the order in which they share rounds."""
    named = load(f"{Path(__file__)}:{function}", "laptop", overrides, {})
    folder, planned = SweepFolder.for_sweep(named, out), plan(named.sweep)
    codes = [code_of(named.sweep.base), *(code_of(one.experiment) for one in planned)]
    folder.create(named, How().to_mapping(), combined(codes))
    folder.write_plan([PlannedTrial(one.trial, one.seed, one.setting) for one in planned])
    dataset = named.sweep.base.data.load()
    for one in order(planned)[0]:
        folder.write(TrialRecord(one.trial, one.setting, one.seed))
        trial, done = InProcess(out.resolve(), named.sweep, one, dataset, store), False
        while not done:
            report = trial.step()
            yield report
            done = report["done"]
        trial.cleanup()


def base(**changes: Any) -> Experiment:
    experiment = Experiment(
        name="small",
        rounds=6,
        data={"name": "fashion_mnist_sample", "train_samples": 400, "test_samples": 100},
        partition={"name": "dirichlet", "clients": 8, "alpha": 0.3},
        model={"name": "mlp", "hidden": [16]},
        algorithm={"name": "fedprox", "mu": 0.1},
        local={"epochs": 2, "batch_size": 16, "lr": 0.05},
        participation={"count": 4},
        checkpoint={"every": 2},
        execution={"actors": 2, "device": "cpu"},
    )
    return experiment.replace(changes)


STAGES = [
    {"name": "warmup", "algorithm": {"name": "fedavg"}, "rounds": 3},
    {"name": "serve", "needs": ["warmup"], "algorithm": {"name": "scaffold"}, "rounds": 2},
]


def grid(profile: str) -> Sweep:
    """Two axes, two seeds."""
    return Sweep(
        base=base(),
        space={"mu": tune.grid_search([0.0, 1.0]), "alpha": tune.grid_search([0.1, 1.0])},
        seeds=(0, 1),
    )


def claimed(profile: str) -> Sweep:
    """Two settings of one round, one of which learns, and the claim that it does."""
    rates = [1e-6, 0.1]
    return Sweep(
        base=base(rounds=1),
        space={"local.lr": tune.grid_search(rates)},
        seeds=(0, 1),
        metric="accuracy",
        claims=(Claim("it learns", "ours", {"local.lr": rates[1]}, {"local.lr": rates[0]}, metric="accuracy"),),
    )


def cells(profile: str) -> Sweep:
    """Two methods on two partitions, two seeds, rounds of one."""
    methods = [{"name": "fedavg"}, {"name": "fedprox", "mu": 1.0}]
    return Sweep(
        base=base(rounds=1),
        space={"algorithm": tune.grid_search(methods), "alpha": tune.grid_search([0.1, 1.0])},
        seeds=(0, 1),
        metric="accuracy",
        claims=(Claim("FedProx", "ours", {"algorithm": methods[1]}, {"algorithm": methods[0]}, metric="accuracy"),),
        tables=(PaperTable("Methods", ("algorithm",), ("alpha",), "accuracy"),),
    )


def pair(profile: str) -> Sweep:
    """Two of the trials of ``grid``."""
    return replace(
        grid(profile), base=base(**{"partition.alpha": 0.1}), space={"mu": tune.grid_search([0.0, 1.0])}, seeds=(0,)
    )


def two(profile: str) -> Sweep:
    """Two seeds."""
    return replace(grid(profile), space={})


def warmup(profile: str) -> Sweep:
    """Warm-up rounds, with client state in the second stage."""
    return Sweep(
        base=Experiment.from_mapping({**base().to_mapping(), "stages": STAGES}),
        space={"R_w": tune.grid_search([5, 3, 7]), "stages.serve.local.lr": tune.grid_search([0.05, 0.02])},
    )


def asha(profile: str) -> Sweep:
    """Learning rates, most of which are hopeless."""
    return Sweep(
        base=base(rounds=8),
        space={"local.lr": tune.grid_search([0.1, 1e-5, 1e-6, 1e-7, 0.05, 1e-4])},
        scheduler=Asha(grace=2, factor=2),
        step=2,
        metric="accuracy",
    )


def pbt(profile: str) -> Sweep:
    """Two of which the worse one copies the better one. A trial asks for more than half of the tests' cores, so that
    they take turns at each look: side by side, the first may be done before a busy machine has begun the second."""
    cores = {"execution.threads": 5, "execution.cpus_per_actor": 5}
    return Sweep(
        base=base(**{"rounds": 8, "algorithm.name": "scaffold", **cores}),
        space={},
        samples=2,
        scheduler=Pbt(every=2, mutations={"local.lr": tune.loguniform(1e-6, 0.2)}, quantile=0.5, resample=0.5),
        step=2,
        metric="accuracy",
    )


class Gate(tune.Callback):
    """Lets nothing pass once a trial has copied another one: Tune goes on when the file in GATE is there, if ever."""

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **_: Any) -> None:
        gate = os.environ.get("GATE")
        records = SweepFolder(Path(gate).parent).records() if gate else []
        if gate and any(len(record.schedule) > 1 for record in records):
            settle(Path(gate).exists, math.inf)


def gated_pbt(profile: str) -> Sweep:
    """The same, which stops at its first copy where there is a gate."""
    return replace(pbt(profile), callbacks=(Gate(),))


def goal(profile: str) -> Sweep:
    """Trials end where they have learned enough."""
    return Sweep(base=base(), space={"mu": tune.grid_search([0.0, 0.1])}, stop={"accuracy": 0.3})


def broken(profile: str) -> Sweep:
    """One trial that goes to infinity, one that the data refuse, one that works."""
    return Sweep(base=base(rounds=2), space={"local.lr": tune.grid_search([0.05, 1e30])})


def proposed(profile: str) -> Sweep:
    """A searcher, with two seeds for each setting."""
    return Sweep(
        base=base(rounds=2),
        space={"local.lr": tune.loguniform(1e-4, 0.5), "mu": tune.choice([0.0, 0.1, 1.0])},
        seeds=(0, 1),
        samples=4,
        search=Optuna(random=3),
        metric="accuracy",
    )


def conditional(profile: str) -> Sweep:
    """Methods with fields of their own, a rate that follows from the method, and a skew that is drawn."""
    methods = [{"name": "fedavg"}, {"name": "fedprox", "mu": 1.0}]
    rates = {"fedavg": 0.05, "fedprox": 0.02}
    return Sweep(
        base=base(rounds=2),
        space={
            "algorithm": tune.grid_search(methods),
            "local.lr": tune.sample_from(lambda spec: rates[spec.config["algorithm"]["name"]]),
            "alpha": tune.uniform(0.1, 1.0),
        },
        samples=2,
    )


def conditional_proposed(profile: str) -> Sweep:
    """The same, where a searcher chooses the method."""
    drawn = conditional(profile)
    space = {**drawn.space, "algorithm": tune.choice(drawn.space["algorithm"]["grid_search"])}
    return replace(drawn, space=space, samples=3, search=Optuna(random=2))


def tuned(profile: str) -> Sweep:
    """FedAvg and FedProx in rounds of one, each with a rate of its own out of two."""
    rates = {"local.lr": tune.grid_search([1e-6, 0.1])}
    return Sweep(
        base=base(rounds=1),
        space={"algorithm": tune.grid_search([{"name": "fedavg"}, {"name": "fedprox"}])},
        seeds=(0,),
        metric="accuracy",
        tuned=tuple(Tuned({"algorithm.name": name}, rates) for name in ("fedavg", "fedprox")),
        tuning_seeds=(7,),
    )
