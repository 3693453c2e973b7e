"""A round's time beside the machine's limit: the work of ``fedskew floor``."""

from __future__ import annotations

import json
import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.base.errors import require
from engine.base.files import write_atomically
from engine.base.writable import check_writable
from engine.experiment import CHOICES, Experiment
from engine.models.cost import ModelCost
from fedskew.cli.json_output import print_json
from fedskew.lab.floor.measured import MeasuredFloor, measure_floor

BOUND_BY = {
    "arithmetic": "arithmetic",
    "weights": "moving weights",
    "activations": "moving activations",
    "imbalance": "clients that cannot be split between lanes",
    "broadcast": "the broadcast",
    "aggregation": "the aggregation",
}
PREFIXES = {-3: "n", -2: "µ", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}  # of thousands


def floor(console: Console, experiment: Experiment, rounds: int, layers: bool, save: Path | None) -> None:
    """Time some rounds of the last stage that has any, and say how far above the floor they are."""
    require(save is None or not save.is_dir(), "--save", save, "is a folder", "name a file in it")
    if save is not None:
        check_writable(save.parent, "--save")
    with console.status(f"{rounds} rounds, then the machine"):
        found = measure_floor(experiment, rounds)
    if layers:
        console.print(_layers(found.cost))
    console.print("\n".join(_facts(found)), highlight=False, soft_wrap=True, markup=False)
    console.print(_terms(found))
    console.print(conclusion(found), highlight=False, soft_wrap=True, markup=False)
    if save is not None:
        save.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(save, json.dumps(found.to_mapping(), indent=2) + "\n")
        console.print(f"figures    {save}", highlight=False, soft_wrap=True, markup=False)
    print_json({**found.to_mapping(), "conclusion": conclusion(found)})


def conclusion(found: MeasuredFloor) -> str:
    """Return the conclusion from the share, in one sentence; a second one where it needs one."""
    typical, counted = found.typical, found.typical.floor.counted
    text = (
        f"A round took {si(typical.seconds, 's')} and takes at least {si(typical.floor.seconds, 's')}, bound by "
        f"{BOUND_BY[max(counted, key=lambda name: counted[name])]}: the floor is {_percent(typical.share)} of it."
    )
    if typical.share > 1:
        text += " The machine was slower when it was measured than in the rounds: measure again when it is quiet."
    if not found.is_plain:
        name = CHOICES["algorithm"].name_of(found.stage.algorithm)
        text += f" The floor is that of plain local training, and what {name} does beside it is in the time alone."
    return text


def _facts(found: MeasuredFloor) -> list[str]:
    experiment, cost, speed, typical = found.experiment, found.cost, found.speed, found.typical
    numbers = [timed.number for timed in found.rounds]
    stages = [stage.name for stage in experiment.chain if stage.name != found.stage.name]
    after = f", after one round of {', '.join(stages)}" if stages else ""
    lanes = "one lane" if speed.lanes == 1 else f"{speed.lanes} lanes"
    rates = {"matmul": speed.matmul, "convolution": speed.convolution}
    fast = ", ".join(f"{name} {si(rate, 'FLOP/s')}" for name, rate in rates.items())
    work = typical.work
    return [
        f"{experiment.name}, stage {found.stage.name}{after}: round {typical.number}, "
        f"the median of rounds {numbers[0]} to {numbers[-1]}",
        f"model      {CHOICES['model'].name_of(experiment.model)}, {cost.parameters:,} parameters, "
        f"{cost.buffers:,} buffers",
        f"sample     {cost.macs:,} multiply-adds forward, {cost.first_macs:,} of them in the first layer; "
        f"{cost.activations:,} activations kept",
        f"round      {len(work.clients)} clients, {typical.samples:,} samples, {work.steps:,} steps over "
        f"{work.rows:,} rows",
        f"machine    {experiment.execution.device}, {lanes}, {experiment.execution.precision}: {fast}, "
        f"memory {si(speed.memory, 'B/s')}",
    ]


def _terms(found: MeasuredFloor) -> Table:
    typical, speed = found.typical, found.speed
    work, floor = typical.work, typical.floor
    table = Table("term", "amount", "at", "time")
    for name, amount, rate in (
        ("arithmetic", si(sum(work.flops), "FLOP"), si(speed.flops, "FLOP/s")),
        ("weights", si(sum(work.weight_bytes), "B"), si(speed.weights, "B/s")),
        ("activations", si(sum(work.activation_bytes), "B"), si(speed.activations, "B/s")),
        ("imbalance", "", ""),
        ("broadcast", si(work.broadcast_bytes, "B"), si(speed.weights, "B/s")),
        ("aggregation", si(work.aggregation_bytes, "B"), si(speed.weights, "B/s")),
    ):
        time = si(getattr(floor, name), "s")
        table.add_row(name, amount, rate, time if name in floor.counted else f"{time}, meanwhile")
    shares = [timed.share for timed in found.rounds]
    table.add_section()
    for name, text in (
        ("floor", si(floor.seconds, "s")),
        ("measured", si(typical.seconds, "s")),
        ("share", f"{_percent(typical.share)}, rounds {_percent(min(shares))} to {_percent(max(shares))}"),
    ):
        table.add_row(name, "", "", text)
    return table


def _layers(cost: ModelCost) -> Table:
    table = Table("layer", "kind", "parameters", "multiply-adds", "activations", "input gradient")
    for layer in cost.layers:
        numbers = [f"{number:,}" for number in (layer.parameters, layer.macs, layer.kept)]
        table.add_row(layer.name, layer.kind, *numbers, "no" if layer.is_first else "yes")
    return table


def si(value: float, unit: str) -> str:
    """Return ``value`` with three digits and a prefix of thousands: 0.0123, s is 12.3 ms."""
    if value <= 0:
        return f"0 {unit}"
    rounded = float(f"{value:.3g}")
    power = min(max(math.floor(math.log10(rounded) / 3 + 1e-9), min(PREFIXES)), max(PREFIXES))
    return f"{rounded / 1000**power:.3g} {PREFIXES[power]}{unit}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
