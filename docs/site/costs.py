"""What an algorithm costs, counted in a short run: numbers that travel, and floating-point operations.

The second round is counted, since in the first one MOON has nothing to contrast with. Operations are those of matrix
products and convolutions, forward and backward, of clients and server, as PyTorch's counter counts them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from torch.utils.flop_counter import FlopCounterMode

from algorithms import ALGORITHMS
from docs.site.examples import small
from engine.experiment import Experiment
from engine.models.model import hollow
from engine.record.run_folder import RunFolder
from engine.run.run import Run

CLIENTS, ROWS, BATCH = 2, 25, 5
SHAPE, CLASSES = (1, 28, 28), 10
WAYS = ("floats_up", "floats_down")
OWN: dict[str, dict[str, Any]] = {  # generated images are to a batch what they are by default; a generator trains once
    "cbfl": {"gen_steps": 1, "gen_width": 8, "fake_batch": 7, "refresh": 10},
    "pfedme": {"local_rounds": 2},
    "answers": {"per_class": 10},
    **{name: {"epochs": 0} for name in ("skd1", "skd2", "uhc", "cfl_amalgam", "cbhma", "cbhma_e")},
}
TIMES = {"pfedme": 10}  # its 20 local rounds are alike
SETTING = (
    f"Counted, not estimated: {CLIENTS} clients with {ROWS} images each, one local epoch in batches of {BATCH}, a "
    "ResNet8, else the defaults above; operations are those of the second round, of all clients and the server, two "
    "for each multiply-add."
)


@dataclass(frozen=True)
class Cost:
    """What one client sends and gets.

    up, down: in a round, as a sum of the model's parts, "" without rounds. outside: numbers in exchanges outside
    rounds, up and down, the mean over clients. flops: of a round, all clients and the server. by_fedavg: the same by
    FedAvg's on the same model.
    """

    up: str = ""
    down: str = ""
    outside: tuple[float, float] = (0, 0)
    flops: int | None = None
    by_fedavg: float | None = None

    @property
    def billions(self) -> str:
        """The operations in 10⁹, to three figures: ``2.95``, ``10.1``, ``124``; "" without rounds."""
        return "" if self.flops is None else f"{self.flops / 1e9:#.3g}".rstrip(".")


def costs() -> dict[str, Cost]:
    """Return the cost of every registered algorithm."""
    found = {name: counted(name) for name in ALGORITHMS}
    alone = found["fedavg"].flops
    assert alone is not None
    return {
        name: cost if cost.flops is None else replace(cost, by_fedavg=cost.flops / alone)
        for name, cost in found.items()
    }


def counted(name: str) -> Cost:
    """Return the cost of one algorithm, without FedAvg's to divide it by."""
    experiment = small(name, OWN.get(name, {}), CLIENTS, ROWS, BATCH)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.open(experiment, Path(folder) / "run")
        run.advance(until=1)
        with FlopCounterMode(display=False) as counter:
            run.advance(until=2)
        while experiment.chain[-1].rounds == 0 and not run.finished:
            run.advance()
        run.driver.close()  # without the pictures of a run's end
        tables = RunFolder(Path(folder) / "run")
        rounds, exchanges = tables.frame("rounds"), tables.frame("exchanges")
    own = experiment.chain[-1]
    outside = _outside(exchanges, own.name)
    if own.rounds == 0:
        return Cost(outside=outside)
    last: Any = rounds.iloc[-1]
    up, down = (_as_parts(int(last[way]) // int(last["clients"]), experiment) for way in WAYS)
    return Cost(up, down, outside, TIMES.get(name, 1) * counter.get_total_flops())


def _outside(exchanges: Any, stage: str) -> tuple[float, float]:
    """Return the numbers of a stage's exchanges, up and down, the mean over the clients that had any."""
    own = exchanges[exchanges["stage"] == stage]
    up, down = (float(own[way].sum()) / max(own["client"].nunique(), 1) for way in WAYS)
    return up, down


def _as_parts(numbers: int, experiment: Experiment) -> str:
    """Return a count of numbers as a sum of the model's parts: ``2P + Q``; raises ValueError where it is none."""
    model: Any = hollow(experiment.model, SHAPE, CLASSES)
    whole = sum(tensor.numel() for tensor in model.parameters())
    head = sum(tensor.numel() for tensor in model.head.parameters())
    buffers = sum(tensor.numel() for tensor in model.buffers() if tensor.is_floating_point())
    for heads, wholes, bodies, statistics, more in product(range(2), range(3), range(2), (0, 1, -1), range(3)):
        if heads * head + wholes * whole + bodies * (whole - head) + statistics * buffers + more == numbers:
            return _written({"P": wholes, "B": bodies, "H": heads, "Q": statistics}, more)
    raise ValueError(f"{numbers} is no sum of a model's parts: {whole} in all, {head} of the head, {buffers} buffers")


def _written(counts: Mapping[str, int], more: int) -> str:
    words = [f"{count if count > 1 else ''}{part}" for part, count in counts.items() if count > 0]
    taken = "".join(f" - {part}" for part, count in counts.items() if count < 0)
    return (" + ".join([*words, *([str(more)] if more else [])]) or "0") + taken
