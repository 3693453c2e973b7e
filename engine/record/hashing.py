"""What a stage's result depends on, as one hash.

The hash covers the experiment's identity, the stage with its ancestors, and the numerics: the sources on the numeric
path (comments and docstrings apart), torch and numpy versions, device type, CPU capability or GPU name.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.algorithm import Algorithm
from engine.experiment import Experiment, Stage

# Modules that a result's bits go through, beside the stage's algorithm and the packages of data and models.
NUMERIC_PATH = (
    "engine.client.messages",
    "engine.client.sums",
    "engine.record.stage_states",
    "engine.run.lineage",
    "engine.run.recording",
    "engine.run.sharing",
    "engine.server.broadcast",
    "engine.server.cohort",
    "engine.server.federation",
    "engine.server.round",
    "engine.server.stage",
    "engine.algorithm",
    "engine.algorithm.contract",
    "engine.algorithm.generative",
    "engine.algorithm.local_run",
    "engine.algorithm.net",
    "engine.algorithm.personalised",
    "engine.algorithm.services",
    "engine.algorithm.types",
    "engine.client.failures",
    "engine.client.blocks",
    "engine.server.evaluation_schedule",
    "engine.data.annotations",
    "engine.data.assignment",
    "engine.data.batches",
    "engine.data.class_sets",
    "engine.data.dataset",
    "engine.data.finding",
    "engine.data.folders",
    "engine.data.formats",
    "engine.data.user_data",
    "engine.data.partition",
    "engine.data.pickled",
    "engine.data.public",
    "engine.data.replacement",
    "engine.data.sources",
    "engine.data.synthetic",
    "engine.run.driver",
    "engine.client.entries",
    "engine.server.client_map",
    "engine.client.vmap.block",
    "engine.client.vmap.dense",
    "engine.client.vmap.cuda_graph",
    "engine.client.vmap.step_memory",
    "engine.client.vmap.block_inputs",
    "engine.experiment.executor_policy",
    "engine.client.vmap.vmap_rules",
    "engine.client.vmap.stack",
    "engine.client.vmap.steps",
    "engine.client.vmap.lockstep",
    "engine.experiment",
    "engine.models.heads",
    "engine.client.jvp",
    "engine.algorithm.labels",
    "engine.models.layers",
    "engine.models.mobilenet",
    "engine.models.model",
    "engine.models.narrow",
    "engine.models.networks",
    "engine.models.personal",
    "engine.models.resnet",
    "engine.models.resnet_imagenet",
    "engine.server.evaluation",
    "engine.algorithm.moments",
    "engine.client.nets",
    "engine.algorithm.seeds",
    "engine.client.sequential",
    "engine.client.precision",
    "engine.client.trainer",
    "engine.client.flat_net",
    "engine.client.training_tools",
    "engine.client.jobs",
)


def numerics(experiment: Experiment, hardware: str) -> dict[str, str]:
    """The machine's and the libraries' share in a result's bits; ``hardware`` is that of the workers."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": experiment.execution.device,
        "hardware": hardware,
    }


def mixed(*values: str) -> str:
    """What took part, where not all of it was the same."""
    return " | ".join(sorted({part for value in values for part in value.split(" | ")}))


def is_mixed(computed_by: Mapping[str, str]) -> bool:
    """Whether bits may depend on who computed what, so that nothing of it may be shared."""
    return any(" | " in value for value in computed_by.values())


def hardware_of(device: str) -> str:
    """What this process computes on: the GPU's name, or the CPU's vector instructions."""
    return torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability()


def stage_hash(
    experiment: Experiment, stage: Stage, computed_by: Mapping[str, str], data: str, round: int | None = None
) -> str:
    """16 hex digits that are equal for two stages only if their results are equal to the bit.

    ``computed_by``: :func:`numerics`; ``data``: the data set's fingerprint; ``round`` (global): what counts is the
    schedule up to it, None for all of it.

    The number of rounds is left out: a longer run of the same stage passes through the shorter one.
    """
    identity = experiment.identity()
    for key in ("stages", "evaluation"):
        identity.pop(key)
    identity["data"].pop("root", None)  # what was read counts, not where it was
    if not experiment.has_server_model(stage):
        identity.pop("model")
    if round is not None:
        changes = tuple(change for change in stage.changes if change.round <= round)
        stage = stage.model_copy(update={"changes": changes})
    own = stage.to_mapping()
    for key in ("name", "needs", "rounds"):
        del own[key]
    by_name = {other.name: other for other in experiment.chain}
    parents = [[stage_hash(experiment, by_name[need], computed_by, data), by_name[need].rounds] for need in stage.needs]
    modules = {*NUMERIC_PATH, *_behind(type(stage.algorithm))}
    text = json.dumps(
        {
            "experiment": identity,
            "stage": own,
            "parents": parents,
            "numerics": dict(computed_by),
            "data": data,
            "sources": {module: source_digest(module) for module in sorted(modules)},
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _behind(algorithm: type[Algorithm]) -> frozenset[str]:
    """The modules of an algorithm's classes, and those beside them that they take something from."""
    found, package = set[str](), algorithm.__module__.rpartition(".")[0]
    new = {cls.__module__ for cls in algorithm.__mro__ if not cls.__module__.startswith(("builtins", "abc"))}
    while new:
        found |= new
        values = [value for name in new for value in vars(sys.modules[name]).values()]
        taken = {value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", "") for value in values}
        new = {name for name in taken if package and isinstance(name, str) and name.startswith(f"{package}.")} - found
    return frozenset(found)


@cache
def source_digest(module: str) -> str:
    """SHA-256 of a module's syntax tree, in which comments, docstrings and layout do not appear."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body: Any = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and _is_text(body[0].value):
            node.body = body[1:]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
