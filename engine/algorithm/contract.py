"""The contract: what a federated algorithm is to the engine.

An algorithm is a frozen dataclass of hyper-parameters with pure methods over four dictionaries of tensors:

    server      what the server keeps from round to round       (always holds "weights" and "buffers")
    state       what one client keeps between participations    (one dictionary per client)
    received    what one client gets at the start of a round    (broadcast + address + "buffers")
    upload      what one client sends back                      (the server sees the weighted mean)

Nothing lives in ``self``, so ``{server, states, round}`` is the whole checkpoint. Client methods see one client;
whether the engine runs them one by one or in blocks is its own affair, and an algorithm cannot tell. It may do
arithmetic on tensors, but no ``.item()``, no branch on a tensor's value and no in-place write to what it is given.

Shapes: P parameters of the model, body first, head last; Q floating buffers (BatchNorm statistics); B batch;
C classes; D features; K clients of a cohort. A delta is always *after minus before*.

This module knows no algorithm and no Ray. ``algorithms/fedavg.py`` is the shortest example of its use,
``algorithms/scaffold.py`` one with client state; ``docs/contract.md`` shows harder ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.algorithm.local import Local
from engine.algorithm.setting import Setting

Tensors = dict[str, Tensor]
Statistics = Literal["batch", "running"]  # what a sub-network's BatchNorm layers normalise by, in training mode
Scalar = float | Tensor  # a Python number for one client; a tensor where clients are stacked


class Kind(StrEnum):
    """What an entry of a dictionary is; the engine checks, slices, counts and stores entries by it."""

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
class Layout:
    """How a weight vector is laid out: ``body`` numbers, then ``head`` numbers."""

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

    def part(self, where: slice) -> Layout:
        """How the numbers ``where`` (without a step) of a weight vector are laid out."""
        start, stop, _ = where.indices(self.size)
        body = max(0, min(stop, self.body) - start)
        return replace(self, body=body, head=max(0, stop - start) - body)


@dataclass(frozen=True)
class Context:
    """Where a run stands. Counts are over clients that hold data: the others are never sampled."""

    round: int  # global along a lineage of stages, from 1; 0 is before the first
    lr: float  # client learning rate of this round, decay included
    num_clients: int  # in total
    num_examples: int  # in total, over these clients
    cohort_size: int  # clients in this round's cohort
    expected_cohort: float  # its expectation: the count, or clients * fraction
    participation: float  # probability that a given client takes part in a round
    layout: Layout
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
    """Rows of one client's step."""

    x: Tensor  # [B, channels, height, width] normalised and augmented
    y: Tensor  # [B] int64
    client: Client
    drawn: Mapping[str, Any] = field(default_factory=dict)  # what Algorithm.draw drew for this step


class Net(Protocol):
    """A model at certain weights: a body and a linear head."""

    @property
    def tap_names(self) -> tuple[str, ...]:
        """The blocks whose outputs make sense to compare: residual units, convolution blocks, hidden layers."""
        ...

    @property
    def norm_names(self) -> tuple[str, ...]:
        """The BatchNorm layers. The buffers are theirs in this order, of each the running mean, then variance."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...  # [B, ...] -> [B, C], equal to head(features(x))

    def features(self, x: Tensor) -> Tensor: ...  # [B, ...] -> [B, D]

    def head(self, z: Tensor) -> Tensor: ...  # [B, D] -> [B, C]

    def taps(self, x: Tensor, names: tuple[str, ...], inputs: bool = False) -> tuple[Tensor, Tensors]:
        """Logits, and the outputs (or the inputs) of the named inner modules."""
        ...

    def jvp(self, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, C], and their derivative [B, C] along ``direction`` (in input space, broadcast to x).

        One forward pass; a loss may be made of both. See :mod:`engine.client.jvp`.
        """
        ...

    def at(self, weights: Tensor, buffers: Tensor, train: bool = False) -> Net:
        """The same network at other weights, frozen: no graph is built through it and nothing in it changes."""
        ...

    def stepped(self, loss: Tensor, lr: float, first_order: bool = False) -> Net:
        """The same network one step of size ``lr`` down the gradient of ``loss`` [], which was made with this net.

        A loss of it has a gradient at this net's weights: through the step too, by second derivatives, or with
        ``first_order`` as if the step did not depend on them.
        """
        ...

    def narrow(self, width: float, divisor: int = 1, statistics: Statistics = "batch") -> Net:
        """The sub-network of the first ``width`` share of each layer's channels, on the same weights.

        With a ``divisor`` their numbers are multiples of it, see :func:`engine.models.narrow.kept`. In training mode
        its BatchNorm layers normalise by its own batch, or with ``statistics="running"`` by the running statistics as
        they are, which no sub-network changes. Raises ConfigError for a model that has no sub-networks.
        """
        ...


@dataclass(frozen=True)
class Phase:
    """One stretch of local training. ``Phase()`` is what the experiment's ``local`` section says."""

    name: str = ""  # with one: client.phase during it, draws of its own, and what it ends with is kept in run.ends
    epochs: int | None = None  # passes over the rows; None and steps None: local.epochs / local.steps
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
class Ended:
    """What a phase came to."""

    start: Tensor  # [P]
    end: Tensor  # [P]
    buffers: Tensor  # [Q] at the end
    num_examples: Scalar  # rows that it was about


@dataclass(frozen=True)
class LocalRun:
    """What local training gives an algorithm to make its upload from."""

    start: Tensor  # [P]
    end: Tensor  # [P]
    buffers: Tensor  # [Q] at the end
    gradient: Tensor | None  # [P] of the last phase with emit="gradient"
    steps: Scalar  # optimizer steps that were really taken
    accumulation: Scalar  # sum of weights with which the steps' gradients entered the delta, see below
    num_examples: Scalar
    lr: float  # of the last phase
    local: Local  # the section that the client trained by; its lr is the first round's
    client: Client
    net: Net  # at the end weights, in eval mode
    rows: Callable[[], Iterator[Batch]]  # one pass over the client's rows, in order, not augmented
    ends: Mapping[str, Ended] = field(default_factory=dict)  # of the phases that have a name; of several, the last


def accumulation(momentum: float, steps: Scalar, nesterov: bool = False) -> Scalar:
    """How much of a constant gradient ``steps`` steps of SGD put into a delta, in units of lr.

    ``steps`` without momentum; with it the coefficient ||a||_1 of FedNova (Wang et al. 2020, arXiv:2007.07481):
    (steps - rho (1 - rho^steps) / (1 - rho)) / (1 - rho). Nesterov's look-ahead is one step further on.
    """
    if momentum == 0:
        return steps
    if nesterov:
        return accumulation(momentum, steps + 1) - 1
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True)
class Pooled:
    """A cohort's uploads as the server sees them. Means are float64, summed in client order."""

    mean: Tensors  # weighted by Algorithm.weight
    weight: float  # sum of the weights
    count: int  # uploads in the mean
    stacked: Tensors | None = None  # [count, ...] in client order, if the algorithm sets stack_uploads
    ids: tuple[int, ...] = ()  # the clients, in the order of ``stacked``


Merge = Callable[[Tensors, Tensors], Tensors]  # pure and associative; a module-level function or a partial of one


class ClientView(Protocol):
    """One client, to a function given to :meth:`Clients.map`."""

    @property
    def client(self) -> Client: ...

    @property
    def net(self) -> Net:
        """At the shared weights and buffers, in eval mode; a TypeError where none are shared."""
        ...

    @property
    def state(self) -> Tensors:
        """What the client keeps; empty before its first participation. A TypeError unless ``states`` was asked for."""
        ...

    def at(self, weights: Tensor, buffers: Tensor) -> Net:
        """The client's network, which may have an architecture of its own, at these weights: frozen, in eval mode."""
        ...

    def rows(self) -> Iterator[Batch]: ...

    def public(self, per_class: int, /) -> tuple[Tensor, Tensor]:
        """See :meth:`Workbench.public`."""
        ...


class Clients(Protocol):
    """All clients that hold data, for work outside rounds."""

    def map(
        self,
        fn: Callable[[ClientView, Tensors], Tensors],
        shared: Tensors,
        reduce: Literal["sum", "stack"] | Merge = "sum",
        states: bool = False,
    ) -> Tensors:
        """Run the pure ``fn`` on every client: an exchange, counted as traffic in ``exchanges.parquet``.

        What is given is what travels: every client receives ``shared`` and sends what ``fn`` returns, number by number,
        so ``fn`` packs a symmetric matrix and leaves out an entry it has nothing for. ``view.net`` is there if
        ``shared`` holds "weights" and "buffers".
        ``fn`` is a module-level function, or a ``functools.partial`` of one that carries hyper-parameters.
        ``states``: whether ``fn`` reads ``view.state``, which then goes to where the client's function runs. That is
        no traffic, but may be much to read for every client and every pass.
        ``sum`` adds the results in float64, ``stack`` concatenates them along their first axis; a function merges
        two results into one, and must be associative: blocks are merged where they ran, so that no more than one
        result per block exists at a time. All in client order, so the result does not depend on where clients ran.
        """
        ...


class Workbench(Protocol):
    """What is to hand for training beside the rounds' own: see :class:`Compute` and :meth:`Algorithm.equip`."""

    @property
    def net(self) -> Net:
        """In eval mode."""
        ...

    @property
    def device(self) -> torch.device: ...

    def rng(self, purpose: str, /) -> torch.Generator: ...

    def public(self, per_class: int, /) -> tuple[Tensor, Tensor]:
        """Rows that no client holds and everybody may see, so that they are no traffic.

        [n, channels, height, width] normalised and [n] int64 labels: of each class that has any the first
        ``per_class``, one class after the other, so that a smaller set is part of a larger one. A ConfigError if a
        class has some but fewer, or none has any.
        """
        ...

    def fit(
        self,
        loss: Callable[[Net, Tensor], Tensor],
        num_rows: int,
        epochs: int,
        batch_size: int,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        trainable: Literal["all", "body", "head"] = "all",
        optimizer: Literal["sgd", "adam"] = "sgd",
        schedule: Literal["constant", "cosine"] = "constant",
        beside: Sequence[Tensor] = (),
    ) -> Tensors:
        """Train the bench's net on ``loss(net, positions [B])`` over shuffled rows: "weights" and "buffers".

        The rows are the caller's (images, features, logits that it indexes by position). As on a client, a body
        that is not trained is in eval mode. ``momentum`` is SGD's. ``cosine``: the rate of epoch e, from 0, is
        lr / 2 (1 + cos(pi e / epochs)). ``beside``: leaves that the loss depends on too, trained along in place.
        """
        ...


class Compute(Protocol):
    """Heavy server-side work, run where a GPU share is."""

    def __call__(self, fn: Callable[[Workbench, Tensors], Tensors], shared: Tensors) -> Tensors:
        """Run ``fn`` (as for ``clients.map``); ``shared`` must hold "weights" and "buffers" for the bench's net."""
        ...


@dataclass(frozen=True)
class Algorithm(ABC):
    """Hyper-parameters and pure methods; see the module's docstring. Each default is FedAvg's choice."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": False}
    entries: ClassVar[Mapping[str, Kind]] = {"weights": Kind.VECTOR, "buffers": Kind.BUFFERS}
    symbols: ClassVar[Mapping[str, str]] = {}  # the paper's symbols that differ from the fields' names
    sent_once: ClassVar[frozenset[str]] = frozenset()  # of the broadcast: fixed in a stage, sent to all at its start
    uncounted: ClassVar[frozenset[str]] = frozenset()  # of the broadcast: a client can derive them itself
    stack_uploads: ClassVar[bool] = False  # True: pooled.stacked holds the single uploads
    one_by_one: ClassVar[str] = ""  # why clients of a block are never trained in one pass; empty: they can be
    breaks_privacy: ClassVar[bool] = False  # True: an oracle, that no client would take part in; labelled everywhere
    linear_optimizer: ClassVar[bool] = False  # True: reads run.accumulation, so local.optimizer must be sgd
    model_needs: ClassVar[Mapping[str, Any]] = {}  # fields of every model (head, projection) and what they must be
    global_model: ClassVar[bool] = True  # False: the server's weights alone are no model; evaluated by clients' own
    local_labels: ClassVar[bool] = False  # True: a head's k-th row is a client's k-th class, whichever that is
    mixed_models: ClassVar[bool] = False  # True: nothing shaped like a model travels, so clients' models may differ
    shares_buffers: ClassVar[bool] = True  # False: clients' buffers are not sent, the server keeps those it has

    def check(self, setting: Setting) -> None:  # noqa: B027 (most refuse nothing)
        """Refuse, with a :class:`~engine.base.errors.ConfigError`, a setting this algorithm cannot run in."""

    def check_change(self, later: Algorithm) -> None:  # noqa: B027
        """Refuse, as :meth:`check`, that a schedule makes ``later`` of this one within a stage.

        Both are of one class; this one is that of the stage's first round, the one that :meth:`prepare` is called of.
        """

    @property
    def public_per_class(self) -> int:
        """How many public samples of each class it asks for; see :meth:`Workbench.public`."""
        return 0

    # --- on the server -------------------------------------------------------------------------------

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        """From the entries of the stage before, or from fresh "weights" and "buffers"."""
        return {"weights": parent["weights"]}

    def prepare(self, server: Tensors, clients: Clients, context: Context) -> Tensors:
        """Once, before the first round of the stage."""
        return server

    def before_round(self, server: Tensors, compute: Compute, context: Context) -> Tensors:
        """Server-side training before a round's broadcast."""
        return server

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        """One copy for the whole cohort."""
        return {"weights": server["weights"]}

    def address(self, server: Tensors, cohort: Cohort, context: Context) -> Tensors:
        """Rows [K, ...] meant for single clients, merged into what each receives."""
        return {}

    @abstractmethod
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        """The new server entries. Not called for an empty cohort; the buffers' mean is the engine's work."""

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        """Once, after the last round of the stage."""
        return server

    # --- on one client -------------------------------------------------------------------------------

    @property
    def stateful(self) -> bool:
        """Whether clients keep a state. If not, :meth:`init_state` gives what they have for a round, each time."""
        return type(self).init_state is not Algorithm.init_state

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        """At a client's first participation in the stage; ``parent`` is what it kept of the stage before, if any.

        ``client.rng`` is keyed as for round 0, whichever round that is.
        """
        return {}

    def equip(self, bench: Workbench, received: Tensors, state: Tensors, client: Client) -> Tensors:
        """Before local training: what a client makes for itself, merged into ``received`` for the round.

        ``bench.net`` is at the received weights and buffers, ``bench.rng`` is the client's. Heavy work goes here, such
        as training a second network; nothing of it travels or is kept.
        """
        return {}

    def start(self, received: Tensors, state: Tensors, client: Client) -> Tensor:
        """[P] where local training starts."""
        return received["weights"]

    def start_buffers(self, received: Tensors, state: Tensors, client: Client) -> Tensor:
        """[Q] the buffers that go with :meth:`start`."""
        return received["buffers"]

    def enter(self, previous: Ended, received: Tensors, state: Tensors, client: Client) -> Tensors:
        """Where the phase ``client.phase`` starts: "weights" [P] and "buffers" [Q], if not at the end of the previous.

        Not called for the first phase. With "buffers" it is another model that is trained from there on, and the
        losses that are reported of local training are that model's.
        """
        return {}

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return (Phase(),)

    def draw(self, client: Client, rows: int, received: Tensors) -> Mapping[str, Any]:
        """The random numbers of one step over ``rows`` rows, for ``batch.drawn``: the only draws that a loss has.

        Tensors drawn from ``client.rng`` (on the CPU; the engine moves them), or Python numbers where a shape
        depends on them, which takes a ``one_by_one``.
        """
        return {}

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        """[] mean over the batch."""
        return F.cross_entropy(net(batch.x), batch.y)

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        """The gradient that the optimizer gets; elementwise over parameters.

        The engine calls it on whole vectors or on slices: entries of kind vector are sliced alike, and
        ``client.context.layout`` is the slice's, so that ``layout.head_of(grad)`` is what of it belongs to the head.
        ``received["phase_start"]`` is the weights that the phase began with.
        """
        return grad

    @abstractmethod
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        """What is sent, and the state that is kept."""

    def weight(self, run: LocalRun) -> Scalar:
        """The upload's weight in the mean."""
        return run.num_examples

    # --- a client's own model ------------------------------------------------------------------------

    def personal(self, received: Tensors, state: Tensors, client: Client) -> Tensors:
        """The "weights" and "buffers" of what a client would use, with what it has just received and what it keeps."""
        return {
            "weights": self.start(received, state, client),
            "buffers": self.start_buffers(received, state, client),
        }

    def adapt(self, context: Context) -> tuple[Phase, ...]:
        """What the client does to :meth:`personal` before it uses it; nothing of it is kept."""
        return ()

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> Tensors:
        """The "weights" and "buffers" of what a client would use after local training; ``state`` is the new one."""
        return {"weights": run.end, "buffers": run.buffers}

    # --- anywhere ------------------------------------------------------------------------------------

    def step_classes(self, counts: Tensor, rows: int) -> Tensor:
        """[K, C] rows of each class that one local step of each client is expected to see, float64.

        counts: int64 [K, C], the clients' samples of each class, at least one each. rows: of a batch. What is mixed
        into a step beside the client's own rows counts too. Only figures and pictures are made of it.
        """
        return rows * counts / counts.sum(dim=1, keepdim=True, dtype=torch.float64)

    def generate(self, server: Tensors, labels: Tensor, layout: Layout, rng: torch.Generator) -> Tensors:
        """Images like those that clients generate or are lent, made from what the server has after a round.

        labels: int64 [n], the classes to generate. "images" [n, channels, height, width], normalised, and "labels" [n]
        if each was made for its class; nothing from an algorithm that generates none. May raise
        :class:`~engine.base.errors.ConfigError` where the server has nothing to make them from. Only figures and
        pictures are made of it.
        """
        return {}

    def predict(self, net: Net, x: Tensor) -> Tensor:
        """[B, C] the class scores that the global model is evaluated by."""
        return net(x)

    def predict_own(self, net: Net, x: Tensor, client: Client) -> Tensor:
        """[B, C] the class scores that a client's own model is evaluated by; -inf for a class it does not know."""
        return self.predict(net, x)


@dataclass(frozen=True)
class Finisher(Algorithm):
    """An algorithm for a stage without rounds, after one that has trained: all it does is :meth:`finish`."""

    @property
    def keeps_head(self) -> bool:
        """Whether it goes on from the head of the stage before, which must then be a global model's."""
        return True

    @abstractmethod
    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        """What is to be done with what the stage before has come to."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        raise TypeError(f"{type(self).__name__} has no rounds, so nothing is uploaded in one")

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        raise TypeError(f"{type(self).__name__} has no rounds, so there is nothing to aggregate")
