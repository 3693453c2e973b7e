"""The values that an algorithm's methods are given and return: entries, contexts, clients, batches, phases, uploads.

They are plain data. ``net.py`` has the network, ``local_run.py`` the result of local training, ``services.py`` the
means for work beside it.

Shapes: P parameters of the model, body first, head last; Q floating buffers (BatchNorm statistics); B batch;
C classes; D features; K clients of a cohort.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from engine.base.errors import require

Tensors = dict[str, Tensor]
Scalar = float | Tensor  # a Python number for one client; a tensor where clients are stacked
Traffic = Literal["round", "once", "derivable"]


# --- entries of the four dictionaries ---------------------------------------------------------------------


class Kind(StrEnum):
    """The kind of an entry, by which the engine checks, slices, counts and stores it.

    Members:
        VECTOR: [P]       a weight vector
        BODY: [P_body]  its body alone
        HEAD: [P_head]  its head alone
        PERSONAL_HEAD: [P_head]  a client's head: kept by its rows for the client's classes, never sent
        BUFFERS: [Q]       floating buffers
        SCALAR: []        one number; the server's are written to rounds.parquet
        MATRIX: [C, C]    numbers of pairs of classes; the server's are written to matrices.parquet
        MOMENTS: any       sums that stay in float64
        LOGITS: [..., C]  class scores
        IMAGES: [N, ...]  rows in input space, or labels that go with them
        TENSOR: any       anything else in the run's precision: weights of a second network, prototypes
    """

    VECTOR = "vector"
    BODY = "body"
    HEAD = "head"
    PERSONAL_HEAD = "personal_head"
    BUFFERS = "buffers"
    SCALAR = "scalar"
    MATRIX = "matrix"
    MOMENTS = "moments"
    LOGITS = "logits"
    IMAGES = "images"
    TENSOR = "tensor"


@dataclass(frozen=True)
class Entry:
    """The declaration of an entry, where its kind alone does not say enough.

    Attributes:
        kind: see :class:`Kind`
        traffic: when the broadcast of it is counted. "round": in every round, for each client of the cohort. "once": at
            the start of the stage, for every client, since it does not change within the stage. "derivable":
            never, since clients can compute it from what they have
        bits: what a number of it takes to send, for uploads that are quantised or signs alone. None: those of the run's
            precision; whole numbers as much. Traffic of rounds counts such an entry as the floats that it would fill
    """

    kind: Kind
    traffic: Traffic = "round"
    bits: int | None = None

    def __post_init__(self) -> None:
        """Refuse bits that are no number of them, with a ValueError."""
        if self.bits is not None and (type(self.bits) is not int or self.bits < 1):
            raise ValueError(f"bits={self.bits!r}: must be a whole number of at least 1; None is the run's precision")


Entries = Mapping[str, Kind | Entry]  # a plain kind stands for Entry(kind), with traffic in every round


# --- models -----------------------------------------------------------------------------------------------


class ModelState(NamedTuple):
    """The numbers of one model.

    Attributes:
        weights: [P], body first, head last
        buffers: [Q], the floating buffers: BatchNorm statistics
    """

    weights: Tensor
    buffers: Tensor


@dataclass(frozen=True)
class ParamLayout:
    """The layout of a weight vector: ``body`` numbers, then ``head`` numbers.

    Attributes:
        body: P_body, the numbers of the body
        head: P_head, the numbers of the head
        buffers: Q, the numbers of the floating buffers
        classes: C
        features: D, the inputs of the head
        image: (channels, height, width) of an input
        has_batchnorm: True if the model has BatchNorm layers
        parameters: (name, start, stop) of each parameter in a weight vector, ascending; see :meth:`mask`
        norms: the names of those that are BatchNorm's own
        units: the numbers of a weight vector up to and with each block of ``Net.tap_names``, ascending
    """

    body: int
    head: int
    buffers: int
    classes: int
    features: int
    image: tuple[int, int, int] = (0, 0, 0)
    has_batchnorm: bool = False
    parameters: tuple[tuple[str, int, int], ...] = ()
    norms: tuple[str, ...] = ()
    units: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """P, the numbers of a weight vector."""
        return self.body + self.head

    def body_of(self, weights: Tensor) -> Tensor:
        """Return the body [P_body] of ``weights`` [P]."""
        return weights[..., : self.body]

    def head_of(self, weights: Tensor) -> Tensor:
        """Return the head [P_head] of ``weights`` [P]."""
        return weights[..., self.body :]

    def join(self, body: Tensor, head: Tensor) -> Tensor:
        """Return the weight vector [P] of a ``body`` [P_body] and a ``head`` [P_head]."""
        return torch.cat((body, head), dim=-1)

    def mask(self, weights: Tensor, *patterns: str) -> Tensor:
        """Return booleans [..., P], True for the parameters of ``weights`` [..., P] whose names match ``patterns``.

        A pattern is a name such as "body.conv1.weight", or "body.*" for several. Raises ValueError for one that matches
        none.
        """
        names = [name for name, _, _ in self.parameters]
        for pattern in patterns:
            if not fnmatch.filter(names, pattern):
                raise ValueError(f"no parameter is named {pattern!r}; there are {', '.join(names)}")
        return self._marked(weights, {name for pattern in patterns for name in fnmatch.filter(names, pattern)})

    def norm_mask(self, weights: Tensor) -> Tensor:
        """Return booleans [..., P], True for BatchNorm's own of ``weights`` [..., P]."""
        return self._marked(weights, self.norms)

    def _marked(self, weights: Tensor, names: Collection[str]) -> Tensor:
        mask = torch.zeros_like(weights, dtype=torch.bool)
        for name, start, stop in self.parameters:
            mask[..., start:stop] = name in names
        return mask

    def part(self, where: slice) -> ParamLayout:
        """Return the layout of the numbers ``where`` (a slice without a step) of a weight vector."""
        start, stop, _ = where.indices(self.size)
        if stop - start == self.size:
            return self
        body = max(0, min(stop, self.body) - start)
        parameters = tuple(  # those outside have their names, too, and no numbers
            (name, min(max(first, start), stop) - start, min(max(last, start), stop) - start)
            for name, first, last in self.parameters
        )
        return replace(self, body=body, head=max(0, stop - start) - body, parameters=parameters)


# --- a run and its clients ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """The point that a run has reached. Counted are clients that hold data and are not held out: only they are sampled.

    Attributes:
        round: the global round, from 1, counted on through the stages before; 0 is before the first
        lr: the clients' learning rate in this round, decay included
        num_clients: clients in total
        num_examples: rows of all these clients
        cohort_size: clients in this round's cohort
        expected_cohort: its expectation: the count, or clients * fraction; less where not all are available
        participation: the probability with which a given client takes part in a round
        layout: the :class:`ParamLayout` of the model
        stage_round: the round counted from the start of this stage, from 1; 0 is before its first
    """

    round: int
    lr: float
    num_clients: int
    num_examples: int
    cohort_size: int
    expected_cohort: float
    participation: float
    layout: ParamLayout
    stage_round: int = 0


@dataclass(frozen=True)
class Cohort:
    """The clients of a round, in ascending id, which is also the order of everything stacked.

    Attributes:
        ids: the clients' numbers
        num_examples: the rows of each, in the same order
    """

    ids: tuple[int, ...]
    num_examples: tuple[int, ...]


@dataclass(frozen=True)
class Client:
    """The client that a client-side method runs for.

    Attributes:
        num_examples: its rows; a number, or a tensor [] where clients are stacked
        class_counts: [C] its rows of each class; never leaves the client unless an upload says so
        context: the :class:`Context` of the round
        rng: rng(purpose) is a torch generator on the CPU, keyed by (seed, purpose, round, client) and the
            phase's name, and consumed in the order of steps
        phase: the name of the phase that is under way, "" if it has none
    """

    num_examples: Scalar
    class_counts: Tensor
    context: Context
    rng: Callable[[str], torch.Generator]
    phase: str = ""


@dataclass(frozen=True)
class Batch:
    """The rows of one client's step.

    Attributes:
        x: [B, channels, height, width] images, normalised and augmented; [B, length, 1, 1] token ids
        y: [B] int64 labels
        client: the :class:`Client` whose rows they are
        drawn: what ``step_randomness`` and ``step_constants`` returned for this step
    """

    x: Tensor
    y: Tensor
    client: Client
    drawn: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Phase:
    """One stretch of local training. ``Phase()`` is what the experiment's ``local`` section says.

    Attributes:
        name: with one, it is ``client.phase`` meanwhile, has random draws of its own, and its result is kept in
            ``run.ends``
        epochs: passes over the rows (for shares of one see :func:`batches_in`); None and ``steps`` None: as
            ``local.epochs`` and ``local.steps`` say
        steps: optimizer steps, in place of ``epochs``
        repeat: steps on each batch, augmented anew each time, before the next one is drawn
        trainable: the numbers that are trained; the rest gets no update, no decay, no momentum
        rows: which of the client's rows: "support" and "query" are disjoint, drawn per (round, client)
        support: the share of a client's rows that is support, equal in all phases; one row is always query
        batch: rows of a step; "local": ``local.batch_size``; "full": the exact gradient over all rows
        lr: the learning rate; None: ``context.lr``
        features: "cached": the body runs once, in eval mode, without augmentation, and steps train the head
        emit: "gradient": ends with the gradient of the loss in ``run.gradient``, and takes no step
        buffers: "keep": buffers stay as they were before the phase
    """

    name: str = ""
    epochs: float | None = None
    steps: int | None = None
    repeat: int = 1
    trainable: Literal["all", "body", "head"] = "all"
    rows: Literal["all", "support", "query"] = "all"
    support: float = 0.5
    batch: int | Literal["local", "full"] = "local"
    lr: float | None = None
    features: Literal["live", "cached"] = "live"
    emit: Literal["step", "gradient"] = "step"
    buffers: Literal["update", "keep"] = "update"

    def __post_init__(self) -> None:
        moves = self.features == "cached" and self.trainable != "head"
        rule = "would move the body by which features were cached"
        require(not moves, "Phase.trainable", self.trainable, rule, "set trainable=head, or features=live")


@dataclass(frozen=True)
class Pooled:
    """A cohort's uploads as the server sees them. Means are float64, summed along a binary tree over clients.

    Attributes:
        mean: the mean of each entry of the uploads, weighted by ``Algorithm.weight``
        weight: the sum of the weights
        count: uploads in the mean
        stacked: the single uploads, [count, ...] in client order, if the algorithm sets ``stack_uploads``; or None
        ids: the clients' numbers, in the order of ``stacked``
    """

    mean: Tensors
    weight: float
    count: int
    stacked: Tensors | None = None
    ids: tuple[int, ...] = ()


# --- declarations -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Requires:
    """The conditions under which an algorithm works; each default is none.

    Attributes:
        linear_optimizer: True: it reads ``run.accumulation``, so ``local.optimizer`` must be sgd, without ``clip_norm``
        model: fields of every model (head, projection) and the values they must have
        no_vmap: the reason, in a clause, why clients of a block are not trained in one pass while a step hook
            acts; empty: they are
        no_tokens: the reason, in a clause, why rows must be pixels or features, which can be averaged; empty:
            token ids will do
    """

    linear_optimizer: bool = False
    model: Mapping[str, Any] = field(default_factory=dict)
    no_vmap: str = ""
    no_tokens: str = ""
