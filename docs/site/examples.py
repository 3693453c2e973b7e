"""An experiment for each algorithm: the one that its page shows, and a small one in which its cost is counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithms import ALGORITHMS
from algorithms.answers import Answers
from algorithms.cbfl import Cbfl
from algorithms.distillation import Distillation
from engine.algorithm import PostTraining
from engine.base.errors import ConfigError
from engine.experiment import Experiment

MODELS = ("mlp", "resnet8")  # the first one that an algorithm takes
SHOWN: dict[str, Any] = {
    "data": {"name": "fashion_mnist_sample"},
    "partition": {"name": "dirichlet", "clients": 20, "alpha": 0.3},
    "local": {"epochs": 2, "batch_size": 50, "lr": 0.05},
    "participation": {"count": 10},
}
DEVICES: dict[str, Any] = {  # of methods that learn from answers: each has classes of its own
    "data": {"name": "fashion_mnist_sample"},
    "partition": {"name": "class_sets", "sets": "IS-1", "per_class": 160, "public_per_class": 100},
    "local": {"epochs": 10, "batch_size": 32, "lr": 0.01, "momentum": 0.9},
}


def shown(name: str) -> dict[str, Any]:
    """Return the sections of an experiment with the algorithm ``name``, checked, as a YAML file has them."""
    work, rounds = _work(name, 40, {"name": name})
    sections = DEVICES if _answers(name) else SHOWN
    first: ConfigError | None = None
    for model in MODELS:
        fields = {"name": model, **ALGORITHMS[name].requires.model}
        found = {"name": f"try_{name}", **rounds, **sections, "model": fields, **work}
        try:
            Experiment.from_mapping(found)
        except ConfigError as error:
            first = first or error
        else:
            return found
    raise first or AssertionError


def small(name: str, fields: Mapping[str, Any], clients: int, rows: int, batch: int) -> Experiment:
    """Return three rounds of a ResNet8 with ``rows`` images for each client, in this process, and what comes after."""
    work, rounds = _work(name, 3, {"name": name, **fields})
    sections: dict[str, Any] = {
        "data": {"name": "fashion_mnist_sample", "train_samples": clients * rows, "test_samples": 20},
        "partition": {"name": "iid", "clients": clients},
    }
    if _answers(name):
        sections = {
            "data": {"name": "fashion_mnist_sample", "test_samples": 20},
            "partition": {"name": "class_sets", "sets": "BS", "per_class": 5, "public_per_class": 10},
        }
    return Experiment.from_mapping(
        {
            **rounds,
            **sections,
            "model": {"name": "resnet8", **ALGORITHMS[name].requires.model},
            "local": {"epochs": 1, "batch_size": batch, "lr": 0.01},
            "evaluation": {"every": 0, "client_loss": False},
            "checkpoint": {"every": 1000},
            "execution": {"actors": 0, "device": "cpu", "workers": 1, "executor": "loop"},
            **work,
        }
    )


def _answers(name: str) -> bool:
    return issubclass(ALGORITHMS[name], Answers | Distillation)


def _work(name: str, rounds: int, fields: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the section, or the stages, by which an algorithm is run, and the rounds where there are no stages."""
    kind = ALGORITHMS[name]
    if not issubclass(kind, PostTraining) and (kind is not Cbfl or rounds < 10):
        return {"algorithm": fields}, {"rounds": rounds}
    stages = [{"name": "train", "rounds": rounds, "algorithm": {"name": "fedavg"}}]
    if kind is Cbfl:
        warm_up = {"name": "warmup", "rounds": rounds * 7 // 10, "algorithm": {"name": "fedavg"}}
        own = {"name": "train", "rounds": rounds - warm_up["rounds"], "needs": ["warmup"], "algorithm": fields}
        return {"stages": [warm_up, own]}, {}
    if _answers(name):
        stages = [{"name": "train", "rounds": 1, "algorithm": {"name": "local"}}]
    if issubclass(kind, Distillation):
        stages.append(
            {
                "name": "ask",
                "rounds": 0,
                "needs": ["train"],
                "algorithm": {"name": "answers", "per_class": 10 if rounds < 10 else 100},
            }
        )
    after = stages[-1]["name"]
    return {"stages": [*stages, {"name": "end", "rounds": 0, "needs": [after], "algorithm": fields}]}, {}
