"""The contract: what a federated algorithm is to the engine.

An algorithm is a frozen dataclass of hyper-parameters with pure methods over four dictionaries of tensors:

    server      what the server keeps from round to round       (always holds "weights" and "buffers")
    state       what one client keeps between participations    (one dictionary per client)
    received    what one client gets at the start of a round    (broadcast + broadcast_to + "buffers")
    upload      what one client sends back                      (the server sees the weighted mean)

Nothing lives in ``self``, so ``{server, states, round}`` is the whole checkpoint. Client methods see one client;
whether the engine runs them one by one or in blocks is up to the engine, and an algorithm cannot tell. It may do
arithmetic on tensors, but must not call ``.item()``, branch on a tensor's value, or write in place to what it is given.

Shapes: P parameters of the model, body first, head last; Q floating buffers (BatchNorm statistics); B batch;
C classes; D features; K clients of a cohort. A delta is always *after minus before*.

This module knows no algorithm and no Ray. ``types.py`` has the values that methods speak of, ``personalised.py`` and
``generative.py`` what only some algorithms have. ``algorithms/fedavg.py`` is the shortest example,
``algorithms/scaffold.py`` one with client state; ``docs/contract.md`` shows harder ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.algorithm.labels import own_logits
from engine.algorithm.local_run import LocalRun, PhaseResult
from engine.algorithm.net import Net
from engine.algorithm.services import Clients, ClientTools, Compute
from engine.algorithm.setting import Setting
from engine.algorithm.types import (
    Batch,
    Client,
    Cohort,
    Context,
    Entries,
    Entry,
    Kind,
    ModelState,
    Phase,
    Pooled,
    Requires,
    Scalar,
    Tensors,
    Traffic,
)
from engine.base.registry import Checked

Loss = Callable[[Net, Batch, Tensors, Tensors], Tensor]  # Algorithm.loss, bound


class AdvancedHooks:
    """What most algorithms leave alone: work beside the rounds, several phases, random draws in a step, own checks.

    Every hook here does nothing, or what FedAvg does, until an algorithm overrides it. Arguments are as in
    :class:`Algorithm`, whose hooks are the core ones.
    """

    # --- when the config is read ----------------------------------------------------------------------

    def check(self, setting: Setting) -> None:
        """Refuse, with a :class:`~engine.base.errors.ConfigError`, a setting this algorithm cannot run in.

        ``setting``: the stage it is to run in, with the stages around it and the experiment's model.
        """

    def check_change(self, later: Algorithm) -> None:
        """Refuse, as :meth:`check`, that a schedule makes ``later`` of this one within a stage.

        Both are of one class; this one is that of the stage's first round, on which :meth:`prepare` is called.
        """

    @property
    def public_per_class(self) -> int:
        """The number of public samples of each class that it asks for; see :meth:`TrainingTools.public`."""
        return 0

    # --- on the server --------------------------------------------------------------------------------

    def prepare(self, server: Tensors, clients: Clients, context: Context) -> Tensors:
        """Return the server's entries for the first round of the stage; called once, before it.

        ``clients.map`` reaches every client.
        """
        return server

    def before_round(self, server: Tensors, compute: Compute, context: Context) -> Tensors:
        """Return the server's entries after server-side training, before a round's broadcast.

        ``compute`` runs heavy work where a GPU share is.
        """
        return server

    def aggregate_with(self, server: Tensors, pooled: Pooled, compute: Compute, context: Context) -> Tensors:
        """Return the server's new entries, in place of :meth:`Algorithm.aggregate`, where that takes heavy work.

        ``compute`` runs it where a GPU share is, with public rows at hand: weights of single uploads (see
        ``stack_uploads``) by validation, or distillation, within the round.
        """
        return cast("Algorithm", self).aggregate(server, pooled, context)

    def broadcast_to(self, server: Tensors, cohort: Cohort, context: Context) -> Tensors:
        """Return rows [K, ...] for the K clients of ``cohort``, in its order; each client receives its row alone."""
        return {}

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        """Return the server's entries that the stage ends with; called once, after its last round."""
        return server

    def predict(self, net: Net, x: Tensor) -> Tensor:
        """Return the class scores [B, C] of images ``x`` [B, ...] by which the global model is evaluated."""
        return net(x)

    # --- on one client --------------------------------------------------------------------------------

    def client_setup(self, tools: ClientTools, received: Tensors, state: Tensors, client: Client) -> Tensors:
        """Return what a client makes for itself before local training, merged into ``received`` for the round.

        :meth:`start` finds it there. ``tools.net`` is at the received weights and buffers, if there are weights;
        ``tools.rows`` and ``tools.rng`` are the client's. Heavy work goes here, such as a choice between received
        models by their losses or the training of a second network; nothing of it travels or is kept.
        """
        return {}

    def phase_start(
        self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client
    ) -> ModelState | Tensor | None:
        """Return where the phase ``client.phase`` starts: None is where the ``previous`` one ended.

        Weights [P] alone are of the same model, which keeps its buffers. A :class:`ModelState` is another model: it is
        trained from there on, and the losses that are reported of local training are that model's. Not called for the
        first phase.
        """
        return None

    def perturbation(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        """Return the distance from ``weights`` [P] to where a step's gradient is taken; a step is then two passes.

        Arguments are as in :meth:`Algorithm.gradient`, but for whole vectors of what the phase trains, so that norms
        are right; ``grad`` is the gradient of the loss at ``weights``. That at ``weights`` plus what is returned goes
        to :meth:`Algorithm.gradient` and the optimizer, which move ``weights`` themselves. BatchNorm's running
        statistics see both passes.
        """
        return torch.zeros_like(grad)

    def step_randomness(self, client: Client, rows: int, received: Tensors) -> Mapping[str, Any]:
        """Return the random numbers of one step over ``rows`` rows, for ``batch.drawn``: the only ones a loss has.

        Tensors drawn from ``client.rng`` (on the CPU; the engine moves them), or Python numbers where a shape
        depends on them, which takes a ``requires`` with ``no_vmap``.
        """
        return {}

    def step_constants(
        self, net: Net, drawn: Mapping[str, Any], received: Tensors, context: Context
    ) -> Mapping[str, Tensor]:
        """Return tensors that depend on the draws and on no trained weight, for ``batch.drawn`` beside the draws.

        A frozen network's answers, for example: computed ahead, for several steps and clients at once, without a graph.
        ``drawn`` is the tensors of :meth:`step_randomness`, whose first axis is rows here, those of all these steps
        one after another; what is returned is [rows, ...] too, each row from its own draws alone. ``received`` is what
        all these clients have received alike, and may lack an entry that differs between them: return {} then, and let
        ``loss`` compute what it does not find.
        """
        return {}


@dataclass(frozen=True)
class Algorithm(AdvancedHooks, Checked, ABC):
    """A federated algorithm: its hyper-parameters are the fields, its hooks are pure methods; each default is FedAvg's.

    The hooks defined here are the **core** ones, from which most methods are made. In the order in which they are
    called: ``init_server``; in each round ``broadcast``, on each client ``init_state`` (the first time), ``start``,
    ``phases``, in each step ``loss`` and ``gradient``, then ``upload`` and ``weight``; and ``aggregate``. Those of
    :class:`AdvancedHooks` are for the rest. A hook marked with :func:`idle_when` is skipped while it does nothing.

    What hooks are given (shapes: P parameters, Q buffers, B rows of a batch, C classes, K clients of a cohort):

        server      what the server keeps from round to round: "weights" [P], "buffers" [Q], what ``init_server`` adds
        parent      the entries of the stage before, or fresh "weights" and "buffers"; in ``init_state``: what this
                    client kept in the stage before, or {}
        received    what the client got for this round: ``broadcast``, its row of ``broadcast_to``, "buffers" and what
                    ``client_setup`` made; in ``gradient`` also "phase_start" [P]
        state       what this client keeps between its participations
        context     :class:`Context`: round, learning rate, numbers of clients and examples
        client      :class:`Client`: the one that the hook runs for
        net         :class:`Net`: the network at the weights that are in training
        batch       :class:`Batch`: the rows of one step
        run         :class:`LocalRun`: the result of local training
        pooled      :class:`Pooled`: the weighted mean of the uploads
        cohort      :class:`Cohort`: the clients of the round
        previous    :class:`PhaseResult`: the phase that has ended
        clients     :class:`Clients`: all clients, for work outside rounds
        compute     :class:`Compute`: heavy work on the server's behalf
        tools       :class:`ClientTools`: the client's rows, training of other networks

    Class attributes, which a subclass may set:

        entries         the kind of every entry of the four dictionaries, see :class:`Kind` and :class:`Entry`
        requires        the conditions under which it works, see :class:`Requires`
        neutral         fields that together make it FedAvg to the bit under every executor; of one field its annotation
                        says so: ``mu: Annotated[float, Ge(0), Doc("..."), Neutral(0, "is FedAvg")]``. Not inherited
        symbols         the paper's symbols that differ from the fields' names
        stack_uploads   True: ``pooled.stacked`` holds the single uploads
        breaks_privacy  True: an oracle, in which no client would take part; labelled everywhere
        mixed_models    True: nothing shaped like a model travels, so clients' models may differ
        shares_buffers  False: clients' buffers are not sent, and the server keeps those it has
        own_classes     True: the default loss is over the classes that a client has rows of
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": False}
    entries: ClassVar[Entries] = {"weights": Kind.VECTOR, "buffers": Kind.BUFFERS}
    requires: ClassVar[Requires] = Requires()
    neutral: ClassVar[Mapping[str, Any] | None] = None
    symbols: ClassVar[Mapping[str, str]] = {}
    stack_uploads: ClassVar[bool] = False
    breaks_privacy: ClassVar[bool] = False
    mixed_models: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = True
    own_classes: ClassVar[bool] = False

    # --- core: on the server ----------------------------------------------------------------------------

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        """Return the server's first entries, from those of the stage before or from fresh "weights" and "buffers"."""
        return {"weights": parent["weights"]}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        """Return the entries that the whole cohort receives alike."""
        return {"weights": server["weights"]}

    @abstractmethod
    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        """Return the server's new entries.

        Not called for an empty cohort; the engine itself takes the mean of the buffers.
        """

    # --- core: on one client ----------------------------------------------------------------------------

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        """Return a client's first state in the stage; ``parent`` is what it kept in the stage before, if anything.

        ``client.rng`` is keyed as for round 0, whichever round that is.
        """
        return {}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        """Return the model that local training starts from."""
        return ModelState(received["weights"], received["buffers"])

    def phases(self, context: Context) -> tuple[Phase, ...]:
        """Return the stretches of a client's local training, in order."""
        return (Phase(),)

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        """Return the mean loss [] over the rows of the batch."""
        logits = net(batch.x)
        return F.cross_entropy(own_logits(logits, batch.client.class_counts) if self.own_classes else logits, batch.y)

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        """Return the gradient that the optimizer gets, from that of the loss; elementwise over parameters.

        ``grad`` [P] is at ``weights`` [P], those before the step. The engine calls it on whole vectors or on slices:
        entries of kind vector are sliced alike, and ``client.context.layout`` is the slice's, so that
        ``layout.head_of(grad)`` is what of it belongs to the head. ``received["phase_start"]`` is the weights that the
        phase began with.
        """
        return grad

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        """Return what the client sends, and the state that it keeps."""
        return {"weights": run.end}, state

    def weight(self, run: LocalRun) -> Scalar:
        """Return the upload's weight in the mean."""
        return run.num_examples

    # --- asked by the engine ----------------------------------------------------------------------------

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Refuse the method ``idle_hooks`` of old, which would be passed over in silence."""
        super().__init_subclass__(**keywords)
        if "idle_hooks" in vars(cls):
            raise TypeError(f"{cls.__name__}.idle_hooks is asked no more; write @idle_when(...) on each hook it names")

    @property
    def stateful(self) -> bool:
        """True if clients keep a state. If not, :meth:`init_state` gives what they have for a round, each time."""
        return type(self).init_state is not Algorithm.init_state  # hooks.overrides is above this module

    @property
    def kinds(self) -> Mapping[str, Kind]:
        """The kind of each entry."""
        return _kinds(type(self))

    def with_traffic(self, traffic: Traffic) -> frozenset[str]:
        """Return the names of the entries that are declared with this traffic, "once" or "derivable"."""
        entries = self.entries.items()
        return frozenset(name for name, entry in entries if isinstance(entry, Entry) and entry.traffic == traffic)


@cache
def _kinds(algorithm: type[Algorithm]) -> Mapping[str, Kind]:
    return {name: entry.kind if isinstance(entry, Entry) else entry for name, entry in algorithm.entries.items()}


@dataclass(frozen=True)
class PostTraining(Algorithm):
    """An algorithm for a stage without rounds, after one that has trained: its one hook is :meth:`finish`."""

    @property
    def keeps_head(self) -> bool:
        """True if it goes on from the head of the stage before, which must then be a global model's."""
        return True

    @abstractmethod
    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        """Return the server's entries after the work on what the stage before has trained."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        """Raise TypeError: there are no rounds."""
        raise TypeError(f"{type(self).__name__} has no rounds, so nothing is uploaded in one")

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        """Raise TypeError: there are no rounds."""
        raise TypeError(f"{type(self).__name__} has no rounds, so there is nothing to aggregate")
