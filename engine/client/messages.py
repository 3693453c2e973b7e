"""The messages between whoever runs a round and the workers that do it: jobs on the way out, results on the way back.

A job is what the blocks of a round have in common, beside what all clients receive; what is of single clients travels
as arguments of a call. Results hold numpy arrays, which travel without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.algorithm import Algorithm, ClientView, Context, Kind, Merge, Phase, Tensors, TrainingTools
from engine.client.entries import Arrays
from engine.client.sums import SentSums
from engine.experiment import Local

# --- jobs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainJob:
    """Train blocks of clients."""

    algorithm: Algorithm
    local: Local
    context: Context
    stateful: bool  # return the clients' new states beside the sums
    probe: bool  # measure the objective before and after
    test_locally: bool  # measure each local model on the test set
    keep_models: bool = False  # return each local model, as it ended, beside the sums
    test_own: bool = False  # measure clients' own models on their own test rows, before and after
    together: bool = False  # train the clients of a block in one pass
    drop: bool = False  # leave out clients that fail; otherwise the first one's error is raised


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
    merge: Merge | None = None  # the results of a block into one
    stateful: bool = False  # whether the clients' states came along
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of these states' entries


@dataclass(frozen=True)
class ComputeJob:
    """Run server-side work."""

    fn: Callable[[TrainingTools, Tensors], Tensors]
    round: int


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


@dataclass(frozen=True)
class ClientFailure:
    """One client's row of ``failures.parquet``."""

    client: int
    step: int | None  # see ClientError
    reason: str


@dataclass
class Scores:
    """Sums over test rows, added in row order."""

    loss: float = 0.0
    correct: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [C]
    count: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [C]


@dataclass(frozen=True)
class OwnScores:
    """A client's own model on its own test rows."""

    client: int
    point: str  # received | post_local | post_server | fine_tuned, see the table ``personal``
    scores: Scores


@dataclass
class BlockResult:
    """A trained block; of clients that failed nothing is in it but the failure."""

    sums: SentSums | None = None
    reports: list[ClientReport] = field(default_factory=list)  # of each client in the sums, in their order
    failures: list[ClientFailure] = field(default_factory=list)
    stacked: list[Arrays] = field(default_factory=list)  # single uploads, if the algorithm asks for them
    models: list[Arrays] = field(default_factory=list)  # "weights" and "buffers" of each client, if asked for
    personal: list[OwnScores] = field(default_factory=list)  # of clients' own models, if asked for


@dataclass(frozen=True)
class Mapped:
    """The answers of a block's clients."""

    results: list[Arrays]  # of each client, or one that they were merged into
    floats_up: list[int]  # of each client
