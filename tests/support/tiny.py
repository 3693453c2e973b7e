"""Small data sets, and the engine driven over them in process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import nn

from algorithms import ALGORITHMS
from algorithms.answers import Answers
from algorithms.distillation import Distillation
from engine.algorithm import Context, PostTraining
from engine.data import Assignment, Dataset, Iid
from engine.experiment import Experiment
from engine.models import Model, ModelSpec
from engine.models.layers import MeanPool
from engine.record.store import StageStore
from engine.run.driver import Driver
from engine.run.reuse import Reuse
from engine.server.client_map import EveryClient
from fedskew.testing import small_data, small_runs
from fedskew.testing.small_data import CLASSES, assignment, dataset
from fedskew.testing.small_runs import Driven


def with_public(parts: Assignment, data: Dataset, per_class: int = 3) -> Assignment:
    """With samples of each class that everybody may see, unless there are some: what nobody holds, else what the
    largest clients do."""
    if len(parts.public):
        return parts
    nobodys = np.setdiff1d(np.arange(len(data.train)), np.concatenate(parts.clients))
    rows = np.concatenate([nobodys, *sorted(parts.clients, key=len, reverse=True)])
    labels = data.train.labels[rows]
    public = np.sort(np.concatenate([rows[labels == number][:per_class] for number in range(CLASSES)]))
    return replace(parts, clients=tuple(np.setdiff1d(part, public) for part in parts.clients), public=public)


def with_tests(parts: Assignment, data: Dataset) -> Assignment:
    """With test rows for each client, unless it has some."""
    return parts if parts.tests else Iid(clients=len(parts.clients)).share_tests(parts, data)


@dataclass(frozen=True)
class TinyNorm(ModelSpec):
    """A convolution with BatchNorm: a tenth of ResNet8's time; ``tiny_norm`` where the fixture of that name is used."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        conv = nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)
        layers = OrderedDict(conv=conv, norm=nn.BatchNorm2d(16), relu=nn.ReLU(), pool=MeanPool())
        return self.assemble(nn.Sequential(layers), 16, num_classes, ("body.relu",))


@dataclass(frozen=True)
class TwoNorms(ModelSpec):
    """Norms of ``first`` and of 16 channels: where the first is odd, the second's vectors begin at odd places."""

    first: int = 5

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        one, two = nn.Conv2d(shape[0], self.first, 3, padding=1), nn.Conv2d(self.first, 16, 3, padding=1)
        norms = nn.BatchNorm2d(self.first), nn.BatchNorm2d(16)
        layers = OrderedDict(a=one, an=norms[0], b=two, bn=norms[1], pool=MeanPool())
        return self.assemble(nn.Sequential(layers), 16, num_classes, ("body.bn",))


BASE: dict[str, Any] = {
    "rounds": 3,
    "model": {"name": "mlp", "hidden": [12]},
    "local": {"epochs": 2, "batch_size": 8, "lr": 0.1},
    # One worker: threads that take turns with the interpreter take longer, and test_workers.py has several.
    "execution": {"actors": 0, "device": "cpu", "executor": "loop", "workers": 1},
}
STUDENTS = [name for name, kind in ALGORITHMS.items() if issubclass(kind, Distillation)]
BATCHNORM = {"model": {"name": "resnet8"}}
TINY_NORM = {"model": {"name": "tiny_norm"}}
# Fields with which an algorithm takes the model of BASE, and is as quick as others; filled in unless a test says them.
SUITED: dict[str, dict[str, Any]] = {
    "fedser": {"transform": "resize_back"},
    "answers": {"per_class": 3},
    **{name: {"epochs": 4, "batch_size": 8} for name in STUDENTS},
    "cbfl": {"gamma": 0.0, "beta": 1.0, "fake_batch": 6, "gen_steps": 3, "gen_batch": 8, "gen_width": 4, "noise": 5},
}
SIZES = list(small_data.SIZES)


def experiment(**changes: Any) -> Experiment:
    """``BASE`` with sections replaced field by field, on a model that the algorithm accepts."""
    values = {section: dict(value) if isinstance(value, dict) else value for section, value in BASE.items()}
    for section, value in changes.items():
        merged = isinstance(value, dict) and isinstance(values.get(section), dict) and "name" not in value
        values[section] = {**values[section], **value} if merged else value
    name = values.get("algorithm", {}).get("name", "")
    kind = ALGORITHMS.get(name)
    needs = kind.requires.model if kind else {}
    if name in SUITED:
        values["algorithm"] = {**SUITED[name], **values["algorithm"]}
    return Experiment(**{**values, "model": {**needs, **values["model"]}})


def before_the_end(name: str, rounds: int) -> list[dict[str, Any]]:
    """The stages that an algorithm without rounds goes on from: FedAvg, or what it asks for."""
    kind = ALGORITHMS[name]
    own = issubclass(kind, Answers | Distillation)
    stages = [{"name": "train", "rounds": rounds, "algorithm": {"name": "local" if own else "fedavg"}}]
    if issubclass(kind, Distillation):
        answers = {"name": "answers", **SUITED["answers"]}
        stages.append({"name": "answers", "rounds": 0, "needs": ["train"], "algorithm": answers})
    return stages


def experiment_of(name: str, fields: Mapping[str, Any] | None = None, **changes: Any) -> Experiment:
    """An experiment with an algorithm; one without rounds is a stage "end", after what it goes on from."""
    if not issubclass(ALGORITHMS[name], PostTraining):
        return experiment(algorithm={"name": name, **(fields or {})}, **changes)
    before = before_the_end(name, changes.get("rounds", BASE["rounds"]))
    algorithm = {"name": name, **SUITED.get(name, {}), **(fields or {})}
    end = {"name": "end", "rounds": 0, "needs": [before[-1]["name"]], "algorithm": algorithm}
    return experiment(stages=[*before, end], **changes)


def prepared(config: Experiment, data: Dataset, parts: Assignment) -> Assignment:
    """With what a partition would have added: test rows, and public rows where they are asked for."""
    if any(isinstance(stage.algorithm, Answers) for stage in config.chain):
        parts = with_public(parts, data)
    return with_tests(parts, data)


def open_driver(
    folder: Path,
    config: Experiment,
    data: Dataset | None = None,
    parts: Assignment | None = None,
    reuse: Reuse | None = None,
) -> Driver:
    if config.execution.executor == "auto":  # a test may ask for one that has no place on this machine
        config = config.resolve()
    data = data or dataset()
    return small_runs.open_driver(folder, config, data, prepared(config, data, parts or assignment(SIZES)), reuse)


def drive(folder: Path, config: Experiment, data: Dataset | None = None, parts: Assignment | None = None) -> Driven:
    """A whole run, in process."""
    return small_runs.finish(open_driver(folder, config, data, parts))


def drive_with_store(
    folder: Path,
    config: Experiment,
    store: StageStore | None,
    until: int | None = None,
    keep_all: bool = False,
    data: Dataset | None = None,
    parts: Assignment | None = None,
) -> dict[str, Any]:
    """A run, to its end or to a round; its summary. ``keep_all``: leave every snapshot in the store."""
    reuse = Reuse(store, folder / "fetched", keep_all=keep_all) if store else None
    driver = open_driver(folder, config, data, parts, reuse)
    while driver.is_before(until):
        driver.advance(until=until)
    return driver.close()


def context_of(driver: Driver, round: int) -> Context:
    """Where the driver's stage stands in a round, before a cohort is drawn."""
    return driver.federation.context(driver.lineage.position.stage, round)


def every_client(driver: Driver, context: Context, when: Literal["prepare", "finish"]) -> EveryClient:
    """``clients`` of the contract, as the driver's stage has them."""
    return driver.stage_ends.every_client(driver.lineage.position.stage, context.round, when, driver.lineage.states)
