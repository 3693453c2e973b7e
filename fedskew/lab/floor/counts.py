"""The physical floor of a round: the least time that its local training can take on a device of a known speed.

The field calls such a bound a roofline (Williams et al. 2009). All of it is arithmetic; ``docs/measuring.md`` has the
terms. Counted is plain local training: one forward and one backward pass of the model over each row, and one optimizer
step for each batch.

Symbols: P parameters, Q floating buffers, A activations that are kept for one sample (see engine/models/cost.py).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal

from engine.algorithm import batches_in
from engine.data.samples.batches import batch_sizes
from engine.experiment import Local
from engine.models.cost import ModelCost

ACTIVATION_MOVES = 4  # written, read back by backward; their gradient written, and read

Binding = Literal["arithmetic", "memory"]


@dataclass(frozen=True)
class LocalWork:
    """One client's round."""

    steps: int  # optimizer steps
    rows: int  # samples over all steps, each anew in every pass


def local_work(num_rows: int, local: Local, has_batchnorm: bool) -> LocalWork:
    """Count what a client of ``num_rows`` rows does by the section ``local``, as ``steps/training_loop.py`` does it.

    Where the model has BatchNorm a batch of one row is passed over, and still counts to ``local.steps``.
    """
    batches = batch_sizes(num_rows, local.batch_size, local.last_batch)
    if not batches:
        return LocalWork(0, 0)
    steps = batches_in(local.epochs, len(batches)) if local.steps is None else local.steps
    taken = [rows for rows in islice(cycle(batches), steps) if rows > 1 or not has_batchnorm]
    return LocalWork(len(taken), sum(taken))


def weight_moves(local: Local) -> int:
    """Return how often a step moves P numbers at least, with the update fused into the backward pass.

    Forward reads the weights, backward reads them, the update reads and writes them; each of the optimizer's own
    vectors, one of momentum or two of Adam, is read and written. Where the gradient is stored before it is used, as
    torch's optimizers want it, a step moves two more.
    """
    vectors = {"adam": 2, "adamw": 2, "rmsprop": 1}.get(local.optimizer, 0) + int(local.momentum > 0)
    return 4 + 2 * vectors


@dataclass(frozen=True)
class RoundWork:
    """A round's local training, and what travels for it."""

    cost: ModelCost
    clients: tuple[LocalWork, ...]
    moves: int  # of weight_moves
    itemsize: int  # bytes of a number
    workers: int  # processes that the model is sent to; 0: it is trained in the process that has it

    @property
    def steps(self) -> int:
        return sum(client.steps for client in self.clients)

    @property
    def rows(self) -> int:
        return sum(client.rows for client in self.clients)

    @property
    def flops(self) -> list[int]:
        """Floating-point operations of each client: rows (6 M - 2 M1)."""
        return [client.rows * self.cost.flops for client in self.clients]

    @property
    def weight_bytes(self) -> list[int]:
        """Bytes that each client's steps move of weights, gradients and the optimizer's vectors."""
        return [client.steps * self.moves * self.cost.parameters * self.itemsize for client in self.clients]

    @property
    def activation_bytes(self) -> list[int]:
        """Bytes that each client's rows move of activations and their gradients."""
        return [client.rows * ACTIVATION_MOVES * self.cost.activations * self.itemsize for client in self.clients]

    @property
    def model_bytes(self) -> int:
        """P + Q numbers: what is sent to a client, and comes back."""
        return (self.cost.parameters + self.cost.buffers) * self.itemsize

    @property
    def broadcast_bytes(self) -> int:
        """Each worker reads the model once and writes it into its own memory."""
        return 2 * self.model_bytes * self.workers

    @property
    def aggregation_bytes(self) -> int:
        """Each client's model is read into its worker's sum, which is written; each worker's sum is, too."""
        return 2 * self.model_bytes * (len(self.clients) + self.workers)


def round_work(cost: ModelCost, local: Local, sizes: Iterable[int], itemsize: int, workers: int) -> RoundWork:
    """``sizes``: rows of each client of the cohort."""
    clients = tuple(local_work(size, local, cost.has_batchnorm) for size in sizes)
    return RoundWork(cost, clients, weight_moves(local), itemsize, workers)


@dataclass(frozen=True)
class Speed:
    """The speed of a machine, all lanes together; see device_speed.py."""

    lanes: int  # that train side by side: processes on cores of their own, or cards
    matmul: float  # FLOP/s
    convolution: float  # FLOP/s
    memory: float  # bytes/s read and written, through buffers that no cache holds
    weights: float  # bytes/s, through as many bytes as the weights have
    activations: float  # bytes/s, through as many bytes as a batch's activations have

    @property
    def flops(self) -> float:
        return max(self.matmul, self.convolution)


@dataclass(frozen=True)
class Floor:
    """The terms, in seconds. Arithmetic and memory traffic go on at once, so the longer of the two counts."""

    arithmetic: float
    weights: float
    activations: float
    imbalance: float  # what the busiest lane has above the mean, since no client is split between lanes
    broadcast: float
    aggregation: float
    binding: Binding

    @property
    def seconds(self) -> float:
        return sum(self.counted.values())

    @property
    def counted(self) -> dict[str, float]:
        """The terms that add up to the floor."""
        local = ("arithmetic",) if self.binding == "arithmetic" else ("weights", "activations")
        return {name: getattr(self, name) for name in (*local, "imbalance", "broadcast", "aggregation")}


def least(work: RoundWork, speed: Speed) -> Floor:
    """The floor of a round at a speed."""
    weights = [moved / speed.weights for moved in work.weight_bytes]
    activations = [moved / speed.activations for moved in work.activation_bytes]
    loads: dict[Binding, list[float]] = {
        "arithmetic": [flops / speed.flops for flops in work.flops],
        "memory": [sum(pair) for pair in zip(weights, activations, strict=True)],
    }
    longest: dict[Binding, float] = {name: busiest(of, speed.lanes) * speed.lanes for name, of in loads.items()}
    binding = max(longest, key=lambda name: longest[name])
    return Floor(
        arithmetic=sum(loads["arithmetic"]),
        weights=sum(weights),
        activations=sum(activations),
        imbalance=max(longest[binding] - sum(loads[binding]), 0.0),
        broadcast=work.broadcast_bytes / speed.weights,
        aggregation=work.aggregation_bytes / speed.weights,
        binding=binding,
    )


def busiest(loads: Sequence[float], lanes: int) -> float:
    """The load of the busiest lane, where the longest go first, each to the lane that has least (LPT).

    At most 4/3 - 1/(3 lanes) of the best that any division gives (Graham 1969, SIAM J. Appl. Math. 17).
    """
    heap = [0.0] * lanes
    for load in sorted(loads, reverse=True):
        heapq.heapreplace(heap, heap[0] + load)
    return max(heap)
