"""A round on paper: its bytes, its seconds by phase and what binds it, on a cluster that is not there.

    on_paper({"nodes": 64, "gpus": 8, "clients": 10_000, "model": "resnet18"})["least"]    # seconds

What is not given is taken from a measured run's tables, if one is named, or else is a default, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from engine.base.declared import Doc, Ge, Gt, declared
from engine.base.errors import ConfigError, require
from engine.base.section import Section
from engine.client.blocks import cut
from engine.experiment import CHOICES
from engine.experiment.error_sentences import one_sentence
from engine.experiment.executor_policy import STACKING
from engine.models.cost import model_cost
from engine.record.run_folder import RunFolder
from engine.worker.pool import ADDED_APART
from fedskew.lab.scaling.model import BINDING, Parts

SHAPE, CLASSES = (3, 32, 32), 10  # of the images that a model is counted on
ROWS, SPEED = 500, 1e12  # of a client; FLOP/s of an actor: `loop` on an H100, see docs/performance.md
ADDITIONS = 1.3e8  # numbers that a driver, or an actor, adds in a second: 100 MB of float32 in 0.19 s
PASSES = 3  # an aggregation's time in additions of one model


class Plan(Section):
    """A cluster and a round; figures that are left out are measured or defaults."""

    nodes: Annotated[int, Ge(1), Doc("machines")] = 1
    gpus: Annotated[int, Ge(1), Doc("GPUs of each, or cores: one actor has one")] = 8
    clients: Annotated[int, Ge(1), Doc("of a round")] = 100
    model: Annotated[str | None, Doc("on images of 3 x 32 x 32 in 10 classes; none: the run's, or resnet18")] = None
    block: Annotated[Literal["auto"] | Annotated[int, Ge(1)], Doc("as execution.block")] = "auto"
    measured: Annotated[str | None, Doc("folder of a run")] = None
    seconds: Annotated[float | None, Gt(0), Doc("of a client's training")] = None
    bandwidth: Annotated[float, Gt(0), Doc("Gb/s of a node")] = 10.0
    additions: Annotated[float, Gt(0), Doc("numbers that the driver, or an actor, adds in a second")] = ADDITIONS
    aggregation: Annotated[float | None, Ge(0), Doc("seconds of the server's own steps")] = None
    evaluation: Annotated[float, Ge(0), Doc("seconds of the evaluation")] = 0.0


FIGURES = ("seconds", "bandwidth", "additions", "aggregation", "evaluation")  # of a plan, that may be measured


def on_paper(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a plan's round as ``--json`` has it; raises :class:`ConfigError` for what a plan cannot have.

    seconds: of each part, as if nothing else went on. least, most: of the round.
    """
    try:
        plan = Plan(**given)
    except pydantic.ValidationError as error:
        wrong = one_sentence(error, {"a plan": Plan}, Plan, "a plan")
        field, repair = (text.replace("a plan.", "") for text in (wrong.field, wrong.repair))
        raise ConfigError(field, wrong.value, wrong.rule, repair) from None
    actors = plan.nodes * plan.gpus
    together = False  # clients are trained in one pass
    if plan.measured is not None:
        repair = "leave it away: the model is that of measured="
        require("model" not in given, "model", plan.model, "is not a measured run's to choose", repair)
        parameters, of_sum, known, together = _measured(Path(plan.measured))
        sources = dict.fromkeys(known, f"measured in {plan.measured}")
    else:
        cost = model_cost(CHOICES["model"].build({"name": plan.model or "resnet18"}), SHAPE, CLASSES)
        parameters, of_sum = cost.parameters + cost.buffers, 0.0
        known = {"seconds": ROWS * cost.flops / SPEED, "aggregation": PASSES * parameters / plan.additions}
        by = f"{ROWS} rows at {SPEED / 1e12:g} TFLOP/s", f"{PASSES} additions of the model"
        sources = {name: f"default: {text}" for name, text in zip(known, by, strict=True)}
    sources |= dict.fromkeys(given, "given")
    values: dict[str, float] = plan.model_dump(include={*FIGURES})
    values |= known | plan.model_dump(include={*FIGURES} & {*given})
    blocks = cut(range(plan.clients), plan.block, actors, together)
    said, rate = declared(Plan), values["bandwidth"] * 1e9 / 8
    bytes_down = 4.0 * parameters * plan.nodes
    if 4 * parameters > ADDED_APART and len(blocks) > 1:  # added by the actors, along a tree
        bytes_in, added = 8.0 * parameters, _after_another(len(blocks), actors) * parameters
        on_the_way = bytes_in * (1 + (_after_another(len(blocks), plan.nodes) if plan.nodes > 1 else 0))
    else:
        bytes_in = on_the_way = len(blocks) * (of_sum or parameters * (4 if len(blocks[0]) == 1 else 8))
        added = len(blocks) * parameters
    alone = {"broadcast": bytes_down / rate, "aggregation": values["aggregation"], "evaluation": values["evaluation"]}
    trained = plan.clients * values["seconds"], len(blocks[0]) * values["seconds"]
    parts = Parts(*trained, on_the_way / rate, added / values["additions"], alone)
    return {
        "plan": plan.model_dump(exclude={*FIGURES}),
        "actors": actors,
        "parameters": parameters,
        "blocks": len(blocks),
        "bytes_down": bytes_down,
        "bytes_in": bytes_in,
        "figures": [
            {"name": name, "value": value, "from": sources.get(name, "default"), "meaning": said[name].meaning}
            for name, value in values.items()
        ],
        "seconds": {BINDING[name]: seconds for name, seconds in parts.terms(actors).items()},
        **dict(zip(("least", "most"), parts.bounds(actors), strict=True)),
        "binding": parts.binding(actors),
    }


def _after_another(blocks: int, side_by_side: int) -> int:
    """Return how many additions of a tree over so many blocks have to wait for each other."""
    found = 0
    while blocks > 1:
        found, blocks = found + math.ceil(blocks // 2 / side_by_side), math.ceil(blocks / 2)
    return found


def _measured(folder: Path) -> tuple[int, float, dict[str, float], bool]:
    """Return of a run its parameters, the bytes of a block's result that came in (0 where none came), its figures, and
    whether it trained clients in one pass."""
    run = RunFolder(folder)
    require(run.has_experiment(), "measured", folder, "is not a run's folder", "name one")
    rounds = run.arrow("rounds").to_pandas()
    rounds = rounds[(rounds["addition_seconds"] > 0) & ~rounds["reused"]]
    require(len(rounds) > 0, "measured", folder, "has no rounds with phases", "run it again with this version")
    execution, parameters = run.experiment().resolve().execution, run.summary()["parameters"]
    together, workers = execution.executor in STACKING, max(execution.actors, 1)
    blocks = sum(len(cut(range(count), execution.block, workers, together)) for count in rounds["clients"])
    clients = run.arrow("clients", ["seconds", "reused"]).to_pandas()
    figures = {
        "seconds": clients["seconds"][~clients["reused"]].mean(),
        "additions": blocks * parameters / rounds["addition_seconds"].sum(),
        "aggregation": rounds["aggregation_seconds"].mean(),
        "evaluation": rounds["evaluation_seconds"].mean(),
    }
    of_sum = float(rounds["bytes_in"].sum()) / blocks
    if execution.actors and 4 * parameters > ADDED_APART:
        del figures["additions"]  # the actors'
        of_sum = 0.0  # theirs, too
    return parameters, of_sum, {name: float(of) for name, of in figures.items()}, together
