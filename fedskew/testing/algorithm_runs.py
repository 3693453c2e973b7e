"""Checks of an algorithm's whole runs: they come to the same whatever must not matter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import torch

from engine.algorithm import Algorithm, PostTraining
from engine.base.declared import reductions_of
from engine.data import Assignment, Dataset
from engine.experiment import CHOICES, Experiment
from engine.record.columns import HOW_IT_WENT
from engine.run.run import run
from fedskew.testing.failure import NotApplicable, demand, telling
from fedskew.testing.small_data import dataset, uneven_clients
from fedskew.testing.small_runs import (
    ALL,
    BATCHNORM,
    Driven,
    driven,
    experiment_of,
    fedavg,
    finish,
    folder_for_a_check,
    largest_gap,
    open_driver,
)

ROUNDING = 1e-9  # |a - b| / max(1, |b|) in float64, over a few dozen steps
ON_GPU = 1e-6  # the same, with the other order of sums that a GPU has


def same_in_one_pass(algorithm: Algorithm) -> None:
    """Demand the same numbers, but for rounding, of clients trained one by one and several in one pass."""
    reason = algorithm.requires.no_vmap
    if reason:
        raise NotApplicable(f"it says why it is not for several clients in one pass: {reason}")
    if isinstance(algorithm, PostTraining):
        raise NotApplicable("it trains no client in rounds")
    config = experiment_of(algorithm, rounds=2, execution={"precision": "float64"})
    repair = "loss and gradient may not look at a tensor's value or at client.num_examples as a Python number"
    both_executors_agree(
        config, type(algorithm).__name__, f"{repair}; or say why not in requires=Requires(no_vmap=...)"
    )


def both_executors_agree(config: Experiment, name: str, repair: str, data: Dataset | None = None) -> None:
    """Demand of ``config``, in float64, the same numbers of both executors; ``name`` is whose fault it would be."""
    with telling(f"{name} fails when it is trained", "see docs/own_parts.md for the rules"):
        one_by_one = driven(config, data)
    with telling(f"{name} fails where several clients are trained in one pass (execution.executor=block)", repair):
        together = driven(config.replace({"execution.executor": "block"}), data)
    gap, where = largest_gap(together.numbers(), one_by_one.numbers())
    rule = f"{name} comes to other numbers where several clients are trained in one pass ({where}: {gap:.1e} apart)"
    demand(gap <= ROUNDING, f"{rule}; {repair}")


def clients_of_every_size(algorithm: Algorithm) -> None:
    """Demand finite numbers of clients that hold nothing, a single row, or one class."""
    small, labels = "clients of no row, one row or one class", dataset().train.labels
    _finite(algorithm, small, parts=uneven_clients(labels), cohorts=(ALL,))


def with_batchnorm(algorithm: Algorithm) -> None:
    """Demand finite numbers with a model that has buffers, one of its clients too small for a batch's statistics."""
    _finite(algorithm, "a model with BatchNorm", model=BATCHNORM, rounds=2)


def _finite(algorithm: Algorithm, what: str, parts: Assignment | None = None, **changes: Any) -> None:
    name = type(algorithm).__name__
    config = experiment_of(algorithm, **changes)
    repair = "divide by no count that may be 0, and return tensors of the kinds' shapes"
    with telling(f"{name} fails with {what}", repair):
        run = driven(config, parts=parts)
    spoilt = [entry for entry, tensor in run.numbers().items() if not torch.isfinite(tensor).all()]
    demand(not spoilt, f"{name} comes to {', '.join(spoilt)} that is not finite with {what}; divide by no count of 0")


def same_twice(algorithm: Algorithm) -> None:
    """Demand equal bits of two runs, whatever the state of the process's global generators."""
    repair = "draw from client.rng(...) or tools.rng(...) alone, and depend on no clock, file or order of a set"
    made_again_is_the_same(experiment_of(algorithm), type(algorithm).__name__, repair)


def made_again_is_the_same(config: Experiment, name: str, repair: str, data: Dataset | None = None) -> None:
    """Demand equal bits of two runs of ``config``; ``name`` is whose fault it would be."""
    runs = list[Driven]()
    for state in (1, 2):
        with global_generators_at(state), telling(f"{name} fails when it is trained", repair):
            runs.append(driven(config, data))
    gap, where = largest_gap(runs[1].numbers(), runs[0].numbers())
    rule = f"{name} comes to other bits when the same run is made again ({where}: up to {gap:.1e} apart)"
    demand(runs[0].shas == runs[1].shas, f"{rule}; {repair}")


@contextmanager
def global_generators_at(seed: int) -> Iterator[None]:
    """Put torch's and numpy's global generators into the state of ``seed``, and back at the end."""
    kept = np.random.get_state()  # noqa: NPY002 (that they are no matter is the point)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.set_state(torch.Generator().manual_seed(seed).get_state())
        np.random.set_state(np.random.RandomState(seed).get_state())  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(kept)  # noqa: NPY002


def stop_and_resume(algorithm: Algorithm) -> None:
    """Demand the bits of the straight run of one that is stopped after a round, closed, and gone on with."""
    resumed_is_straight(type(algorithm).__name__, experiment_of(algorithm))


TABLES = ("rounds", "clients", "evaluations", "personal")


def resumed_is_straight(name: str, config: Experiment, parts: Assignment | None = None) -> None:
    """Demand of ``config``, stopped and resumed, the weights, states and tables that it has when it runs through.

    Once with clients' states in memory, once with them on the disk; ``name`` is whose fault it would be.
    """
    with folder_for_a_check() as folder:
        with global_generators_at(1):
            straight = finish(open_driver(folder / "straight", config, None, parts))
        for store, stop in (("memory", 2), ("disk", 1)):
            settings = config.replace({"execution.state_store": store, "execution.state_cache_mb": 0})
            resuming = telling(f"{name} fails when it is resumed", "keep what a later round needs in entries")
            with global_generators_at(2), resuming:
                begun = open_driver(folder / store, settings, None, parts)
                for _ in range(stop):
                    begun.advance()
                begun.close()
                resumed = finish(open_driver(folder / store, settings, None, parts))
            gap, where = largest_gap(resumed.numbers(), straight.numbers())
            rule = f"{name} comes to other bits when it is stopped after round {stop} and resumed"
            repair = (
                "keep what a later round needs in a client's state or the server's entries, not in self or a module"
            )
            demand(resumed.shas == straight.shas, f"{rule} ({where}: {gap:.1e} apart); {repair}")
            for table in TABLES:
                got, wanted = (
                    run.folder.frame(table).drop(columns=HOW_IT_WENT, errors="ignore") for run in (resumed, straight)
                )
                same = got.astype(str).equals(wanted.astype(str))
                demand(same, f"{rule}, in its table {table}; {repair}")


# --- the neutral value ----------------------------------------------------------------------------------------


def neutral_is_fedavg(algorithm: Algorithm) -> None:
    """Demand FedAvg's bits at each declared neutral value, under both executors."""
    settings, name = reductions_of(type(algorithm)), type(algorithm).__name__
    if not settings:
        raise NotApplicable("it declares no neutral value")
    for fields, executor in product(settings, ("loop", "block")):
        with telling(f"{name}.neutral = {fields} are not fields of it", "name its own fields"):
            at_neutral = dataclasses.replace(algorithm, **fields)
        config = experiment_of(at_neutral, execution={"executor": executor})
        model, cohort = CHOICES["model"].dump(config.model), config.participation.model_dump()
        rounds = config.chain[0].rounds  # of FedAvg before an algorithm that has none
        plain = experiment_of(fedavg(), (cohort,), model=model, rounds=rounds, execution={"executor": executor})
        ours, theirs = driven(config), driven(plain)
        gap = _gap_of_weights(ours, theirs)
        written = ", ".join(f"{field}={value}" for field, value in fields.items())
        rule = f"{name} with {written} is not FedAvg to the bit under execution.executor={executor}"
        repair = "skip the term at that value and mark its hook with @idle_when(...), so that the engine skips it"
        demand(ours.sha == theirs.sha, f"{rule} (weights are {gap:.1e} apart); {repair}")


def _gap_of_weights(one: Driven, other: Driven) -> float:
    return largest_gap({"weights": one.server["weights"]}, {"weights": other.server["weights"]})[0]


# --- actors and devices ---------------------------------------------------------------------------------------


ACTORS = (3, 2, 1)  # the most first: a Ray that is started then has room for them


def on_any_number_of_actors(algorithm: Algorithm) -> None:
    """Demand equal bits in this process and on one, two and three Ray actors."""
    name = type(algorithm).__name__
    values = experiment_of(algorithm).to_mapping()
    values |= {  # data that other processes find: the images that fedskew carries
        "data": {"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50},
        "partition": {"name": "dirichlet", "clients": 8, "alpha": 0.5, "min_samples": 2, "on_small": "repair"},
    }
    config = Experiment.from_mapping(values)
    shas: dict[int, str] = {}
    with folder_for_a_check() as folder:
        for actors in (0, *ACTORS):
            repair = "let its module be importable, and what it holds picklable"
            with telling(f"{name} fails on {actors} actors", repair):
                shas[actors] = run(config.replace({"execution.actors": actors}), folder / str(actors))["weights_sha256"]
    other = [str(actors) for actors, sha in shas.items() if sha != shas[0]]
    rule = f"{name} comes to other bits on {', '.join(other)} actors than in this process"
    demand(not other, f"{rule}; keep nothing in self, a class or a module, since each actor has its own")


def same_on_a_gpu(algorithm: Algorithm) -> None:
    """Demand the CPU's numbers of a GPU, but for rounding."""
    if not torch.cuda.is_available():
        raise NotApplicable("there is no GPU here")
    name = type(algorithm).__name__
    config = experiment_of(algorithm, rounds=2, execution={"precision": "float64"})
    here = driven(config)
    repair = "make tensors on the device of those that are given, as by torch.zeros_like"
    with telling(f"{name} fails on a GPU", repair):
        there = driven(config.replace({"execution.device": "cuda"}))
    gap = _gap_of_weights(there, here)
    demand(gap <= ON_GPU, f"{name} comes to other weights on a GPU ({gap:.1e} apart); draw on the CPU, by client.rng")
