"""Arithmetic before a sweep starts: which trials, in which order, where they run, whether one fits.

Order: a trial starts when the rounds it shares with an earlier one have been computed, so nobody holds CPUs to wait.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.base.errors import ConfigError, ResourceError
from engine.base.sizes import size_text
from engine.experiment import Execution, Experiment
from engine.record.stage_hashes import stage_hash
from engine.sweeps.definition import Sweep
from engine.worker.ray.resources import PROCESS, groups_in_memory

log = logging.getLogger("fedskew")
ANYWHERE: dict[str, str] = {}  # numerics of no machine in particular: for comparing trials with each other


@dataclass(frozen=True)
class Planned:
    """A trial before it runs."""

    trial: str
    setting: dict[str, Any]
    seed: int
    experiment: Experiment


@dataclass(frozen=True)
class Needs:
    """Rounds that another trial computes first."""

    trial: str
    round: int  # global


def plan(sweep: Sweep, complete: Callable[[Mapping[str, Any]], dict[str, Any]] = dict) -> list[Planned]:
    """All trials of a sweep without a searcher: every setting with every seed, seed by seed.

    Experiments are built here, so that an invalid one is refused before anything starts. ``complete`` adds to a setting
    what was chosen for its side by tuning.
    """
    settings = [complete(setting) for setting in sweep.settings()]
    trials = []
    for seed in sweep.seeds:
        for setting in settings:
            experiment = sweep.experiment(setting, seed)
            trials.append(Planned(f"{len(trials):05d}", setting, seed, experiment))
    return trials


# --- shared rounds --------------------------------------------------------------------------------------


def order(trials: Sequence[Planned]) -> tuple[list[Planned], dict[str, Needs]]:
    """The trials so that shorter prefixes come first, and for each that shares rounds whom it waits for."""
    paths = {trial.trial: _path(trial.experiment) for trial in trials}
    groups: dict[str, list[Planned]] = defaultdict(list)  # trials that share their first rounds
    for trial in trials:
        groups[paths[trial.trial][0][0]].append(trial)
    needs: dict[str, Needs] = {}
    for group in groups.values():
        group.sort(key=lambda trial: [rounds for _, rounds in paths[trial.trial]])
        # What a stage computes, which tells all before it -> for how many rounds -> the first trial that does.
        firsts: dict[str, dict[int, str]] = defaultdict(dict)
        for trial in group:
            best, before = Needs("", 0), 0
            for stage, rounds in paths[trial.trial]:
                for its_rounds, first in firsts[stage].items():
                    if before + min(rounds, its_rounds) > best.round:
                        best = Needs(first, before + min(rounds, its_rounds))
                firsts[stage].setdefault(rounds, trial.trial)
                before += rounds
            if best.round:
                needs[trial.trial] = best
    # Those that wait for nobody come first, then by how long a chain they wait for.
    depth: dict[str, int] = {}
    for group in groups.values():
        for trial in group:
            depth[trial.trial] = depth[needs[trial.trial].trial] + 1 if trial.trial in needs else 0
    return sorted(trials, key=lambda trial: depth[trial.trial]), needs


def _path(experiment: Experiment) -> list[tuple[str, int]]:
    """The run's lineage as (what each stage computes, for how many rounds); branches beside it are not shared."""
    lineage = experiment.lineage
    recorded = experiment.evaluation.model_dump_json()
    return [
        (stage_hash(experiment, stage, ANYWHERE, recorded), stage.rounds)
        for stage in experiment.chain
        if stage.name in lineage
    ]


# --- where trials run -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mode:
    """The way in which one trial runs."""

    kind: Literal["inside", "nested"]  # in the trial's own process | driver and client actors in its placement group
    actors: int  # client actors; 0 inside
    bundles: tuple[dict[str, float], ...]  # what one trial asks for; the first is its own process
    slots: int  # trials at a time
    reason: str


def choose_mode(
    trials: int, execution: Execution, share: float, nodes: Sequence[Mapping[str, float]], asked: str
) -> Mode:
    """Many small trials run each in one process, few big ones on several actors each.

    ``share``: of a GPU, for whatever trains; ``nodes``: the resources of each node; ``asked``: auto, inside or nested.
    """
    own = _bundle(float(execution.threads), share)
    worker = _bundle(max(execution.cpus_per_actor, execution.threads), share)
    inside_slots = _fitting(nodes, [own])
    kind = asked
    reason = "as asked"
    if asked == "auto":
        if trials >= inside_slots:
            kind, reason = "inside", f"{trials} trials keep {inside_slots} processes busy"
        else:
            kind, reason = (
                "nested",
                f"{trials} trials would leave {inside_slots - trials} of {inside_slots} places idle",
            )
    if kind == "inside":
        return Mode("inside", 0, (own,), inside_slots, reason)
    workers = _fitting(nodes, [worker])
    actors = execution.actors if asked == "nested" and execution.actors else max(workers // max(trials, 1), 1)
    bundles = ({}, *[worker] * actors)  # the driver adds and waits beside its actors: no CPU of its own
    return Mode("nested", actors, bundles, _fitting(nodes, bundles), reason)


def check_fit(mode: Mode, nodes: Sequence[Mapping[str, float]]) -> None:
    """Refuse a trial that this cluster could never place; says what is short and what would fit."""
    if mode.slots > 0:
        return
    asked: dict[str, float] = defaultdict(float)
    for bundle in mode.bundles:
        for name, amount in bundle.items():
            asked[name] += amount
    total = {name: sum(node.get(name, 0) for node in nodes) for name in asked}
    short = [name for name in asked if asked[name] > total[name]]
    largest = max(mode.bundles, key=lambda bundle: sum(bundle.values()))
    if not short:  # in total there is enough, but no node has room for the largest part
        short = [name for name in largest if all(node.get(name, 0) < largest[name] for node in nodes)] or list(asked)
    told = ", ".join(f"{name}: {asked[name]:g} asked for, {total[name]:g} in the cluster" for name in short)
    biggest = {name: max((node.get(name, 0) for node in nodes), default=0) for name in short}
    best = ", ".join(f"{amount:g} {name}" for name, amount in biggest.items())
    repair = {
        "CPU": "lower execution.threads, execution.cpus_per_actor or execution.actors",
        "GPU": "lower execution.gpus_per_actor or set it to 0",
    }
    raise ResourceError(
        f"one trial does not fit this cluster ({told}; the largest node has {best}); "
        + "; ".join(repair.get(name, f"offer more {name}") for name in short)
    )


def at_once(mode: Mode, nodes: Sequence[Mapping[str, float]], asked: int | None) -> int:
    """Return how many trials run at a time, for which there must be cores and memory.

    asked: ``--concurrent``; raises :class:`ConfigError` where memory does not carry so many.
    """
    processes = mode.actors + 1
    room = groups_in_memory(processes, sum(node.get("memory", math.inf) for node in nodes))
    placed = min(mode.slots, asked or mode.slots)
    if asked is not None and placed > room:
        rule = f"is {placed} x {processes} processes of {size_text(PROCESS)} at the least, more than memory carries"
        raise ConfigError("--concurrent", asked, rule, f"set --concurrent {room}")
    if asked is not None and placed < asked:
        log.warning("--concurrent=%d: %d trials have places now, the others wait for some", asked, placed)
    return min(placed, room)


def _bundle(cpus: float, share: float) -> dict[str, float]:
    return {"CPU": cpus, "GPU": share} if share else {"CPU": cpus}


def _fitting(nodes: Sequence[Mapping[str, float]], bundles: Sequence[Mapping[str, float]]) -> int:
    """Return how many copies of a group of bundles fit, each bundle on one node, filled one after the other."""
    free = [dict(node) for node in nodes]
    wanted = [bundle for bundle in bundles if bundle]
    count = 0
    while count < 100_000:
        for bundle in sorted(wanted, key=lambda bundle: -sum(bundle.values())):
            node = next((node for node in free if _holds(node, bundle)), None)
            if node is None:
                return count
            for name, amount in bundle.items():
                node[name] -= amount
        count += 1
    return count


def _holds(node: Mapping[str, float], bundle: Mapping[str, float]) -> bool:
    """A share of a GPU must come from one card: what is left of each is a fraction on top of whole ones."""
    for name, amount in bundle.items():
        left = node.get(name, 0.0)
        if name == "GPU" and amount < 1:
            per_card = math.floor(1 / amount + 1e-6)
            left = math.floor(left) + math.floor((left % 1) * per_card + 1e-6) / per_card
        if left + 1e-9 < amount:
            return False
    return True
