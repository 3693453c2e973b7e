"""Small sweep folders and run folders as a real sweep leaves them, made without training anything."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import yaml

from engine.algorithm import Kind
from engine.algorithm.seeds import numpy_generator
from engine.data import Assignment, Dataset
from engine.data.dividing import divided
from engine.experiment import CHOICES, Experiment
from engine.record import matrices as of_pairs
from engine.record.columns import SCHEMAS
from engine.record.personal_metrics import EVERY_CLIENT
from engine.record.run_folder import Row, RunFolder
from engine.record.sweep_files import PlannedTrial, write_plan
from engine.record.tables import Table

Accuracy = Callable[[Mapping[str, Any], int], float]
Matrices = Callable[[Mapping[str, Any], int], Mapping[str, np.ndarray]]

BASE: dict[str, Any] = {
    "name": "made",
    "rounds": 12,
    "algorithm": {"name": "fedprox", "mu": 0.0},
    "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "participation": {"count": 4},
    "execution": {"actors": 0, "device": "cpu"},
}
WARM_UP = [
    {"name": "warm-up", "rounds": 5, "algorithm": {"name": "fedavg"}},
    {"name": "main", "rounds": 7, "needs": ["warm-up"]},
]
MU = {"name": "mu", "key": "algorithm.mu", "kind": "grid", "values": [0.0, 0.01, 0.1, 1.0], "log": True}
ALPHA = {"name": "alpha", "key": "partition.alpha", "kind": "grid", "values": [0.05, 0.5], "log": True}
EPOCHS = {"name": "epochs", "key": "local.epochs", "kind": "grid", "values": [1, 5], "log": False}

POINTS = ("received", "post_local", "post_server", "fine_tuned", "held_out", "held_out_tuned")  # of personal.parquet
PARAMETERS = 6_000
_datasets: dict[str, Dataset] = {}


def typical_accuracy(setting: Mapping[str, Any], seed: int) -> float:
    """Final accuracy: best near mu = 0.1, worse under more skew, and a share of luck that a seed has in common."""
    luck = numpy_generator(seed, "luck")
    mine = numpy_generator(seed, "luck of " + json.dumps(dict(setting), sort_keys=True, default=str))
    mu, alpha = setting.get("mu", 0.0), setting.get("alpha", 0.3)
    gain = 0.06 * math.exp(-(math.log10(mu / 0.1) ** 2)) if isinstance(mu, int | float) and mu > 0 else 0.0
    skew = 0.1 * math.log10(alpha) if isinstance(alpha, int | float) else 0.0
    return 0.8 + skew + gain + 0.02 * luck.normal() + 0.005 * mine.normal()


def make_sweep(
    folder: Path,
    *,
    axes: Sequence[Mapping[str, Any]] = (MU, ALPHA),
    seeds: Sequence[int] = (0, 1, 2),
    rounds: int = 12,
    accuracy: Accuracy = typical_accuracy,
    failed: Collection[int] = (),
    stopped: Collection[int] = (),
    killed: Collection[int] = (),
    stages: bool = False,
    base: Mapping[str, Any] | None = None,
    client_rows: bool = True,
    personal: Collection[str] = (),
    scope: Callable[[Mapping[str, Any]], str] = lambda setting: "global",
    matrices: Matrices = lambda setting, seed: {},
    **fields: Any,
) -> Path:
    """A sweep over ``axes`` (a grid, seeds innermost; an axis without values is drawn, one value for each trial).

    The trials numbered in ``failed`` died before they wrote a table; those in ``stopped`` were ended by a scheduler
    after a third of their rounds; those in ``killed`` have tables and no summary. ``personal`` and, by setting,
    ``scope``: see :func:`make_run`. ``matrices``: what each trial's server ends with, by name. ``fields`` replace those
    of sweep.yaml, for example ``claims`` and ``tables`` (mappings) or ``target_accuracy``.
    """
    values = {**BASE, **(base or {}), "rounds": rounds}
    if stages:
        early = rounds * 5 // 12
        values["stages"] = [WARM_UP[0] | {"rounds": early}, WARM_UP[1] | {"rounds": rounds - early}]
    experiment = Experiment(**values)
    folder.mkdir(parents=True, exist_ok=True)
    written = {
        "name": "made.mu_alpha",
        "profile": "laptop",
        "title": "A sweep that was made up",
        "digest": "0123456789ab",
        "base": experiment.to_mapping(),
        "axes": [dict(axis) for axis in axes],
        "seeds": list(seeds),
        "metric": "last10_accuracy",
        "mode": "max",
        "target_accuracy": 0.7,
        "search": {"name": "grid"},
        "scheduler": {"name": "none"},
        "tables": [],
        "claims": [],
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(written | fields, sort_keys=False))
    planned: list[PlannedTrial] = []
    sides: list[Sequence[Any]] = [*(axis["values"] or [None] for axis in axes), seeds]
    for number, (*point, seed) in enumerate(itertools.product(*sides)):
        drawn = numpy_generator(number, "sampled")
        setting = {
            axis["name"]: value if axis["values"] else float(10 ** drawn.uniform(-3, 0))
            for axis, value in zip(axes, point, strict=True)
        }
        trial = folder / "trials" / f"{number:05d}"
        planned.append(PlannedTrial(trial.name, seed, setting))
        status = "failed" if number in failed else "stopped" if number in stopped else "finished"
        record: dict[str, Any] = {
            "trial": trial.name,
            "setting": setting,
            "seed": seed,
            "status": "running" if number in killed else status,
            "reason": {"failed": "RunError: weights are not finite in round 3", "stopped": "ended by asha"}.get(status),
            "schedule": [
                {"first_round": 1, "set": {a["key"]: setting[a["name"]] for a in axes}, "parent": None},
            ],
            "rounds": {"failed": 0, "stopped": rounds // 3}.get(status, rounds),
            "rounds_computed": {"failed": 0, "stopped": rounds // 3}.get(status, rounds),
            "rounds_asked": rounds,
        }
        trial.mkdir(parents=True)
        (trial / "trial.json").write_text(json.dumps(record))
        if status != "failed":
            changes = {"seed": seed} | {axis["key"]: setting[axis["name"]] for axis in axes}
            sections = {key: changes.pop(key) for key in list(changes) if key in CHOICES}
            one = Experiment.from_mapping(experiment.to_mapping() | sections).replace(changes)
            final, done = accuracy(setting, seed), int(record["rounds"])
            make_run(trial, one, final, done, number not in killed, client_rows, personal, scope(setting))
            save_matrices(trial, matrices(setting, seed))
    write_plan(folder, planned)
    return folder


def make_run(
    folder: Path,
    experiment: Experiment | None = None,
    final: float = 0.8,
    rounds: int | None = None,
    summary: bool = True,
    client_rows: bool = True,
    personal: Collection[str] = (),
    scope: str = "global",
) -> Path:
    """A run's folder whose accuracy climbs to ``final``; with fewer ``rounds`` than asked for it was stopped.

    personal: the points of personal.parquet, at which clients are further apart than in the accuracy of all, those of
    post_local and fine_tuned above it. scope: of the last stage.
    """
    experiment = experiment or Experiment(**BASE)
    run = RunFolder(folder)
    run.create(experiment)
    data = _dataset(experiment)
    _partition(experiment, data).save(folder / "partition.parquet")
    asked = sum(stage.rounds for stage in experiment.chain)
    done = asked if rounds is None else rounds
    rng = numpy_generator(experiment.seed, f"curve of {final}")
    every = [
        (stage.name, number) for stage, span in zip(experiment.chain, experiment.spans, strict=True) for number in span
    ]
    classes, cohort = len(data.classes), experiment.participation.count or experiment.partition.clients
    tested = np.bincount(data.test.labels, minlength=classes)
    for stage, number in every[:done]:
        grown = 0.1 + (final - 0.1) * (1 - math.exp(-8 * number / asked)) / (1 - math.exp(-8))
        by_class = np.clip(grown + np.linspace(-0.15, 0.15, classes) + 0.002 * rng.normal(size=classes), 0, 1)
        position = {"stage": stage, "round": number}
        measured = {"loss_before": 2.3 - 2 * grown, "loss_after": 2.2 - 2 * grown, "samples": 50 * cohort}
        floats = {"floats_up": cohort * PARAMETERS, "floats_down": cohort * PARAMETERS}
        every_so_often = experiment.evaluation.local_every
        measured["local_accuracy"] = grown / 2 if every_so_often and number % every_so_often == 0 else None
        _add(run.rounds, "rounds", position | measured | floats | {"clients": cohort, "lr": 0.05, "seconds": 0.25})
        drawn = rng.choice(experiment.partition.clients, cohort, replace=False) if client_rows else ()
        for client in drawn:
            mine = {"client": int(client), "samples": 50, "steps": 2, "seconds": 0.05}
            sent = dict.fromkeys(("floats_up", "floats_down"), PARAMETERS)
            _add(run.clients, "clients", position | measured | sent | mine)
        evaluation = {
            "scope": scope if stage == experiment.chain[-1].name else "global",
            "accuracy": float(by_class @ tested / tested.sum()),
            "loss": float(2.3 - 2.1 * grown),
            "samples": int(tested.sum()),
            "class_accuracy": by_class.tolist(),
            "class_samples": tested.tolist(),
        }
        _add(run.evaluations, "evaluations", position | evaluation)
        for row in _personal(experiment, number, grown, personal):
            _add(run.personal, "personal", position | row)
    run.flush()
    if summary:
        facts = {
            "status": "finished" if done == asked else "stopped",
            "weights_sha256": hashlib.sha256(repr((experiment.digest, final)).encode()).hexdigest(),
            "parameters": PARAMETERS,
            "clients": experiment.partition.clients,
        }
        run.summarise(experiment, facts)
    return folder


def save_matrices(run: Path, by_name: Mapping[str, np.ndarray]) -> None:
    """As the driver does at the end of a run."""
    server = {name: torch.from_numpy(matrix) for name, matrix in by_name.items()}
    of_pairs.save(run, "distil", dict.fromkeys(by_name, Kind.MATRIX), server)


def _personal(experiment: Experiment, number: int, grown: float, points: Collection[str]) -> Iterator[Row]:
    clients, cohort = experiment.partition.clients, experiment.participation.count or experiment.partition.clients
    rng = numpy_generator(experiment.seed, "personal", number)
    taking_part = set(rng.choice(clients, cohort, replace=False).tolist())
    luck = np.linspace(-0.3, 0.15, clients)  # the first clients are the worst served
    for point in points:
        gain = {"received": -0.1, "post_local": 0.1, "fine_tuned": 0.05}.get(point, 0.0)
        for client in range(clients) if point in EVERY_CLIENT else sorted(taking_part):
            samples = 10 + 3 * client
            expected = min(max(grown + luck[client] + gain + 0.02 * rng.normal(), 0.0), 1.0)
            yield {
                "client": client,
                "point": point,
                "participant": client in taking_part,
                "samples": samples,
                "accuracy": round(expected * samples) / samples,
                "loss": 2.3 - 2.1 * expected,
            }


def _dataset(experiment: Experiment) -> Dataset:
    key = repr(experiment.data)
    if key not in _datasets:
        _datasets[key] = experiment.data.load()
    return _datasets[key]


def _partition(experiment: Experiment, data: Dataset) -> Assignment:
    return replace(divided(experiment.data, experiment.partition, data), data=data.fingerprint)


def _add(table: Table, kind: str, row: Row) -> None:
    """A row with a plain value in each column that ``row`` leaves out, whatever columns the schema has."""
    plain = {pa.bool_(): False, pa.int64(): 0, pa.float64(): 0.0, pa.string(): ""}
    table.add({field.name: plain.get(field.type) for field in SCHEMAS[kind]} | row)
