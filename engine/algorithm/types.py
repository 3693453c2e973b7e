"""The values that an algorithm's methods are given and return: entries, contexts, clients, batches, phases, uploads.

They are plain data. ``net.py`` has the network, ``local_run.py`` the result of local training, ``services.py`` the
means for work beside it.

Shapes: P parameters of the model, body first, head last; Q floating buffers (BatchNorm statistics); B batch;
C classes; D features; K clients of a cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Scalar = float | Tensor  # a Python number for one client; a tensor where clients are stacked
Traffic = Literal["round", "once", "derivable"]


# --- entries of the four dictionaries ---------------------------------------------------------------------


class Kind(StrEnum):
    """The kind of an entry, by which the engine checks, slices, counts and stores it."""

    VECTOR = "vector"  # [P]      a weight vector
    BODY = "body"  # [P_body]     its body alone
    HEAD = "head"  # [P_head]     its head alone
    PERSONAL_HEAD = "personal_head"  # [P_head] a client's own: kept by its rows for the client's classes, never sent
    BUFFERS = "buffers"  # [Q]    floating buffers
    SCALAR = "scalar"  # []       one number; the server's are written to rounds.parquet
    MATRIX = "matrix"  # [C, C]   numbers of pairs of classes; the server's are written to matrices.parquet
    MOMENTS = "moments"  # any    sums that stay in float64
    LOGITS = "logits"  # [..., C] class scores
    IMAGES = "images"  # [N, ...] rows in input space, or labels that go with them
    TENSOR = "tensor"  # any      anything else in the run's precision: weights of a second network, prototypes


@dataclass(frozen=True)
class Entry:
    """The declaration of an entry: its kind, and when the broadcast of it is counted as traffic.

    ``round``: in every round, for each client of the cohort. ``once``: at the start of the stage, for every client,
    since it does not change within the stage. ``derivable``: never, since clients can compute it from what they have.
    """

    kind: Kind
    traffic: Traffic = "round"


Entries = Mapping[str, Kind | Entry]  # a plain kind stands for Entry(kind), with traffic in every round


# --- models -----------------------------------------------------------------------------------------------


class ModelState(NamedTuple):
    """The numbers of one model."""

    weights: Tensor  # [P]
    buffers: Tensor  # [Q]


@dataclass(frozen=True)
class ParamLayout:
    """The layout of a weight vector: ``body`` numbers, then ``head`` numbers."""

    body: int  # P_body
    head: int  # P_head
    buffers: int  # Q
    classes: int  # C
    features: int  # D
    image: tuple[int, int, int] = (0, 0, 0)  # (channels, height, width) of an input
    has_batchnorm: bool = False
    units: tuple[int, ...] = ()  # numbers of a weight vector up to and with each of Net.tap_names, ascending

    @property
    def size(self) -> int:
        return self.body + self.head

    def body_of(self, weights: Tensor) -> Tensor:  # [P] -> [P_body]
        return weights[..., : self.body]

    def head_of(self, weights: Tensor) -> Tensor:  # [P] -> [P_head]
        return weights[..., self.body :]

    def join(self, body: Tensor, head: Tensor) -> Tensor:  # [P_body], [P_head] -> [P]
        return torch.cat((body, head), dim=-1)

    def part(self, where: slice) -> ParamLayout:
        """Return the layout of the numbers ``where`` (a slice without a step) of a weight vector."""
        start, stop, _ = where.indices(self.size)
        body = max(0, min(stop, self.body) - start)
        return replace(self, body=body, head=max(0, stop - start) - body)


# --- a run and its clients ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """The point that a run has reached. Counts are over clients that hold data and are not held out: no others are
    sampled."""

    round: int  # global along a lineage of stages, from 1; 0 is before the first
    lr: float  # client learning rate of this round, decay included
    num_clients: int  # in total
    num_examples: int  # in total, over these clients
    cohort_size: int  # clients in this round's cohort
    expected_cohort: float  # its expectation: the count, or clients * fraction; less where not all are there
    participation: float  # probability that a given client takes part in a round
    layout: ParamLayout
    stage_round: int = 0  # the round counted from the start of this stage, from 1; 0 is before its first


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, in ascending id, which is also the order of everything stacked."""

    ids: tuple[int, ...]
    num_examples: tuple[int, ...]


@dataclass(frozen=True)
class Client:
    """The client that a client-side method runs for."""

    num_examples: Scalar
    class_counts: Tensor  # [C] of its own rows; never leaves the client unless an upload says so
    context: Context
    rng: Callable[[str], torch.Generator]  # keyed (seed, purpose, round, client), consumed in step order
    phase: str = ""  # name of the phase that is under way; if it has one, that is part of rng's key


@dataclass(frozen=True)
class Batch:
    """The rows of one client's step."""

    x: Tensor  # [B, channels, height, width] normalised and augmented
    y: Tensor  # [B] int64
    client: Client
    drawn: Mapping[str, Any] = field(default_factory=dict)  # what Algorithm.step_randomness drew for this step


@dataclass(frozen=True)
class Phase:
    """One stretch of local training. ``Phase()`` is what the experiment's ``local`` section says."""

    name: str = ""  # with one: client.phase during it, draws of its own, and its result is kept in run.ends
    # passes over the rows, see engine/algorithm/local.py for shares of one; None and steps None: local.epochs / .steps
    epochs: float | None = None
    steps: int | None = None  # or optimizer steps
    repeat: int = 1  # steps on each batch, augmented anew each time, before the next one is drawn
    trainable: Literal["all", "body", "head"] = "all"  # the rest gets no update, no decay, no momentum
    rows: Literal["all", "support", "query"] = "all"  # disjoint parts, drawn per (round, client)
    support: float = 0.5  # the share of a client's rows that is support, equal in all phases; one row is always query
    batch: int | Literal["local", "full"] = "local"  # "full": exact gradient over all rows, accumulated
    lr: float | None = None  # None: context.lr
    features: Literal["live", "cached"] = "live"  # cached: body once, in eval mode, without augmentation
    emit: Literal["step", "gradient"] = "step"  # "gradient": run.gradient of the plain loss, and no step
    buffers: Literal["update", "keep"] = "update"  # "keep": buffers as they were before the phase


@dataclass(frozen=True)
class Pooled:
    """A cohort's uploads as the server sees them. Means are float64, summed in client order."""

    mean: Tensors  # weighted by Algorithm.weight
    weight: float  # sum of the weights
    count: int  # uploads in the mean
    stacked: Tensors | None = None  # [count, ...] in client order, if the algorithm sets stack_uploads
    ids: tuple[int, ...] = ()  # the clients, in the order of ``stacked``


# --- declarations -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requires:
    """The conditions under which an algorithm works; each default is none."""

    linear_optimizer: bool = False  # it reads run.accumulation, so local.optimizer must be sgd
    model: Mapping[str, Any] = field(default_factory=dict)  # fields of every model (head, projection) and their values
    # The reason, in a clause, why clients of a block are not trained in one pass while a step hook acts, see
    # hooks.py; empty: they are.
    no_vmap: str = ""
    # The reason, in a clause, why rows must be pixels or features, which can be averaged; empty: token ids will do.
    no_tokens: str = ""
