"""The messages between whoever runs a round and the workers that do it: jobs on the way out, results on the way back.

A job is what the blocks of a round have in common, beside what all clients receive; what is of single clients travels
as arguments of a call.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from engine.algorithm import Algorithm, ClientView, Context, Kind, Merge, Phase, Pooled, Tensors, TrainingTools
from engine.client.sums import Subtotal, WeightedSum
from engine.client.tree import Part
from engine.experiment import Local

BINS = 15  # of confidence, as in Guo et al. 2017
Handle = Any  # a client's state: its tensors, or a reference that the pool can open

# --- jobs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainJob:
    """Train blocks of clients."""

    algorithm: Algorithm
    local: Local
    context: Context
    stateful: bool  # return the clients' new states beside the sum
    probe: bool  # measure the objective before and after
    test_locally: bool  # measure each local model on the test set
    keep_models: bool = False  # return each local model, as it ended, beside the sum
    test_own: bool = False  # measure clients' own models on their own test rows, before and after
    together: bool = False  # train the clients of a block in one pass
    by_loop: bool = False  # train one by one, whatever the executor
    drop: bool = False  # leave out clients that fail; otherwise the first one's error is raised
    work: Mapping[int, float] = field(default_factory=dict)  # of clients that do not do what ``local`` says
    added: Sequence[int] = ()  # clients by their places in the sum, ascending; if ``together`` the first of each block

    def place_of(self, client: int) -> int:
        """Return the place in the sum of a client, or of the block that begins with it."""
        return bisect_left(self.added, client)


@dataclass(frozen=True)
class PersonalJob:
    """Measure clients' own models on their own test rows."""

    algorithm: Algorithm
    local: Local
    context: Context
    fine_tuning: Phase | None  # none: they are measured as they are, and not once more


@dataclass(frozen=True)
class MapJob:
    """Run a pure function on every client."""

    fn: Callable[[ClientView, Tensors], Tensors]
    context: Context
    merge: Merge | None = None  # two clients' results into one
    stateful: bool = False  # whether the clients' states came along
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of these states' entries


@dataclass(frozen=True)
class ComputeJob:
    """Run server-side work."""

    fn: Callable[[TrainingTools, Tensors], Tensors]
    round: int
    purposes: str = ""  # a prefix of those of its draws


# --- results ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientReport:
    """One client's row of ``clients.parquet``."""

    client: int
    num_examples: int
    steps: int
    loss_before: float | None
    loss_after: float | None
    local_accuracy: float | None
    floats_up: int
    seconds: float
    actor: int  # on which it was trained; 0 in process


@dataclass(frozen=True)
class ClientFailure:
    """One client's row of ``failures.parquet``."""

    client: int
    step: int | None  # see ClientError
    reason: str


@dataclass
class Scores:
    """Sums over test rows, added in row order."""

    classes: int = 0  # C
    loss: float = 0.0  # cross entropy, in nats
    brier: float = 0.0  # squared distance of the softmax scores [C] from the label as a one-hot vector
    confusion: dict[int, int] = field(default_factory=dict)  # true class * C + predicted class -> rows, if any
    # Of the rows of each bin of confidence, the softmax score of the predicted class: [0, 1/15), ..., [14/15, 1].
    bins: list[list[float]] = field(default_factory=lambda: [[0.0] * BINS] * 3)  # rows, confidences added up, hits
    own: dict[str, float] = field(default_factory=dict)  # metrics of a user's own, added up

    def add(self, other: Scores) -> None:
        """Take in the rows that come next."""
        self.classes = other.classes
        self.loss += other.loss
        self.brier += other.brier
        for pair, rows in other.confusion.items():
            self.confusion[pair] = self.confusion.get(pair, 0) + rows
        self.bins = (np.array(self.bins) + other.bins).tolist()
        self.own = {name: self.own.get(name, 0.0) + value for name, value in other.own.items()}

    def by_class(self) -> np.ndarray:
        """Count the rows of each class: those that are predicted right, all, and those predicted to be of it [3, C]."""
        pairs, rows = (np.array([*of], dtype=np.int64) for of in (self.confusion, self.confusion.values()))
        label, predicted = np.divmod(pairs, self.classes)
        counted = ((label, rows * (label == predicted)), (label, rows), (predicted, rows))
        return np.array([np.bincount(of, weights, self.classes) for of, weights in counted]).astype(np.int64)

    @property
    def accuracy(self) -> float:
        """The share of the rows that are predicted right."""
        correct, count, _ = self.by_class().sum(axis=1)
        return float(correct / count)


def scores_of(
    classes: int, loss: float, brier: float, own: dict[str, float], pairs: np.ndarray, confidence: np.ndarray
) -> Scores:
    """Add up rows, of whose losses, Brier scores and own metrics the sums are given; ``pairs``: as in ``confusion``."""
    found, rows = np.unique(pairs.astype(np.int64), return_counts=True)
    label, predicted = np.divmod(pairs, classes)
    edges = np.linspace(0, 1, BINS + 1)[1:-1]
    bins = np.searchsorted(edges, confidence, side="right")
    sums = [np.bincount(bins, weights, BINS).tolist() for weights in (None, confidence, label == predicted)]
    return Scores(classes, loss, brier, dict(zip(found.tolist(), rows.tolist(), strict=True)), sums, own)


@dataclass(frozen=True)
class OwnScores:
    """A client's own model on its own test rows."""

    client: int
    point: str  # received | post_local | post_server | fine_tuned, see the table ``personal``
    scores: Scores


@dataclass
class TrainResult:
    """What training has come to: of a block of clients, and of a cohort, which is its blocks merged.

    Of clients that failed nothing is in it but the failure.
    """

    sum: WeightedSum = field(default_factory=WeightedSum)  # of uploads
    reports: list[ClientReport] = field(default_factory=list)  # of each client in the sum, in their order
    failures: list[ClientFailure] = field(default_factory=list)
    stacked: list[Tensors] = field(default_factory=list)  # single uploads, if the algorithm asks for them
    models: list[Tensors] = field(default_factory=list)  # "weights" and "buffers" of each client, if asked for
    personal: list[OwnScores] = field(default_factory=list)  # of clients' own models, if asked for
    states: dict[int, Handle] = field(default_factory=dict)  # client -> its new state, if clients keep one
    dropped: tuple[int, ...] = ()  # stragglers of the cohort that were left out before they trained
    floats_down: int = 0  # numbers that each client has received; noted by whoever sent them

    def merge(self, block: TrainResult) -> None:
        """Take in the block that comes next, but for its models; the block's sum is gone afterwards."""
        self.sum.merge(block.sum)
        self.reports += block.reports
        self.failures += block.failures
        self.stacked += block.stacked
        self.personal += block.personal
        self.states |= block.states

    def pooled(self, total: Subtotal) -> Pooled:
        """The uploads as the algorithm sees them; ``total``: the whole sum."""
        return Pooled(
            mean=total.mean(),
            weight=total.weight,
            count=total.clients,
            stacked={name: torch.stack([upload[name] for upload in self.stacked]) for name in self.stacked[0]}
            if self.stacked
            else None,
            ids=tuple(report.client for report in self.reports),
        )


@dataclass(frozen=True)
class Mapped:
    """The answers of a block's clients."""

    results: list[Part[Tensors]]  # of each client, or merged as far as the tree over all clients allows
    floats_up: list[int]  # of each client
