"""A round on paper: its bytes, its seconds by phase and what binds it, on a cluster that is not there.

    paper = on_paper({"nodes": 64, "gpus": 8, "clients": 10_000, "model": "resnet18"})

What is not given is taken from a measured run's tables, if one is named, or else is a default, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic

from engine.base.declared import Doc, Ge, Gt, declared
from engine.base.errors import ConfigError, require
from engine.base.section import Section
from engine.client.blocks import cut_blocks
from engine.experiment import CHOICES
from engine.experiment.error_sentences import one_sentence
from engine.models.cost import model_cost
from engine.record.run_folder import RunFolder
from fedskew.lab.scaling.model import Parts

SHAPE, CLASSES = (3, 32, 32), 10  # of the images that a model is counted on
ROWS, SPEED = 500, 1e12  # of a client; FLOP/s of an actor: `loop` on an H100, see docs/performance.md
ADDITIONS = 1.3e8  # numbers that a driver adds in a second: 100 MB of float32 in 0.19 s
PASSES = 3  # an aggregation's time in additions of one model


class Plan(Section):
    """A cluster and a round; figures that are left out are measured or defaults."""

    nodes: Annotated[int, Ge(1), Doc("machines")] = 1
    gpus: Annotated[int, Ge(1), Doc("GPUs of each, or cores: one actor has one")] = 8
    clients: Annotated[int, Ge(1), Doc("of a round")] = 100
    model: Annotated[str, Doc("on images of 3 x 32 x 32 in 10 classes")] = "resnet18"
    block: Annotated[Literal["auto"] | Annotated[int, Ge(1)], Doc("as execution.block")] = "auto"
    measured: Annotated[str | None, Doc("folder of a run")] = None
    seconds: Annotated[float | None, Gt(0), Doc("of a client's training")] = None
    bandwidth: Annotated[float, Gt(0), Doc("Gb/s of the driver's node")] = 10.0
    additions: Annotated[float, Gt(0), Doc("numbers that the driver adds in a second")] = ADDITIONS
    aggregation: Annotated[float | None, Ge(0), Doc("seconds of the server's own steps")] = None
    evaluation: Annotated[float, Ge(0), Doc("seconds of the evaluation")] = 0.0


FIGURES = ("seconds", "bandwidth", "additions", "aggregation", "evaluation")  # of a plan, that may be measured


@dataclass(frozen=True)
class Paper:
    """A round on paper."""

    plan: Plan
    parameters: int
    blocks: int
    bytes_down: float  # out of the driver's node: a copy for each node
    bytes_in: float  # into it: a sum for each block, or the upload of its only client
    figures: Mapping[str, tuple[float, str, str]]  # with where each is from, and what it is
    parts: Parts

    @property
    def actors(self) -> int:
        return self.plan.nodes * self.plan.gpus

    def to_mapping(self) -> dict[str, Any]:
        """Return all of it as plain data; seconds by phase, as if nothing else went on."""
        least, most = self.parts.bounds(self.actors)
        figures = {name: {"value": value, "from": source} for name, (value, source, _) in self.figures.items()}
        about = {name: getattr(self, name) for name in ("actors", "parameters", "blocks", "bytes_down", "bytes_in")}
        seconds = self.parts.terms(self.actors)
        bound = {"least": least, "most": most, "binding": self.parts.binding(self.actors)}
        plan = self.plan.model_dump(exclude={*FIGURES})
        return {"plan": plan, **about, "figures": figures, "seconds": seconds, **bound}


def on_paper(given: Mapping[str, Any]) -> Paper:
    """Return the round of a plan; raises :class:`ConfigError` for a key or a value that it cannot have."""
    try:
        plan = Plan(**given)
    except pydantic.ValidationError as error:
        wrong = one_sentence(error, {"a plan": Plan}, Plan, "a plan")
        field, repair = (text.replace("a plan.", "") for text in (wrong.field, wrong.repair))
        raise ConfigError(field, wrong.value, wrong.rule, repair) from None
    blocks = cut_blocks(range(plan.clients), plan.block)
    if plan.measured is not None:
        repair = "leave it away: the model is that of measured="
        require("model" not in given, "model", plan.model, "is not a measured run's to choose", repair)
        parameters, of_sum, known = _measured(Path(plan.measured))
        sources = dict.fromkeys(known, f"measured in {plan.measured}")
    else:
        cost = model_cost(CHOICES["model"].build({"name": plan.model}), SHAPE, CLASSES)
        parameters, of_sum = cost.parameters + cost.buffers, 0.0
        known = {"seconds": ROWS * cost.flops / SPEED, "aggregation": PASSES * parameters / plan.additions}
        by = f"{ROWS} rows at {SPEED / 1e12:g} TFLOP/s", f"{PASSES} additions of the model"
        sources = {name: f"default: {text}" for name, text in zip(known, by, strict=True)}
    chosen = plan.model_dump(include={*FIGURES} & {*given})
    values: dict[str, float] = plan.model_dump(include={*FIGURES}) | known | chosen
    said, sources = declared(Plan), sources | dict.fromkeys(given, "given")
    figures = {name: (value, sources.get(name, "default"), said[name].meaning) for name, value in values.items()}
    of_sum = of_sum or parameters * (4 if len(blocks[0]) == 1 else 8)
    bytes_down, bytes_in, rate = 4.0 * parameters * plan.nodes, len(blocks) * of_sum, values["bandwidth"] * 1e9 / 8
    alone = {"broadcast": bytes_down / rate, "aggregation": values["aggregation"], "evaluation": values["evaluation"]}
    trained = plan.clients * values["seconds"], len(blocks[0]) * values["seconds"]
    parts = Parts(*trained, bytes_in / rate, len(blocks) * parameters / values["additions"], alone)
    return Paper(plan, parameters, len(blocks), bytes_down, bytes_in, figures, parts)


def _measured(folder: Path) -> tuple[int, float, dict[str, float]]:
    """Return the parameters of a run, the bytes of a result that came in (0 where none came), and its figures."""
    run = RunFolder(folder)
    require(run.has_experiment(), "measured", folder, "is not a run's folder", "name one")
    rounds = run.arrow("rounds").to_pandas()
    rounds = rounds[(rounds["addition_seconds"] > 0) & ~rounds["reused"]]
    require(len(rounds) > 0, "measured", folder, "has no rounds with phases", "run it again with this version")
    execution, parameters = run.experiment().resolve().execution, run.summary()["parameters"]
    together = execution.executor in ("block", "block_graph")
    blocks = sum(len(cut_blocks(range(clients), execution.block, together)) for clients in rounds["clients"])
    figures = {
        "seconds": run.arrow("clients", ["seconds"]).to_pandas()["seconds"].mean(),
        "additions": blocks * parameters / rounds["addition_seconds"].sum(),
        "aggregation": rounds["aggregation_seconds"].mean(),
        "evaluation": rounds["evaluation_seconds"].mean(),
    }
    return parameters, float(rounds["bytes_in"].sum()) / blocks, {name: float(of) for name, of in figures.items()}
