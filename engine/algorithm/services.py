"""The services that the engine offers algorithms for work beside local training.

``Clients`` reaches all clients outside rounds, ``Compute`` runs heavy work on the server's behalf, ``TrainingTools`` is
what either and a client's setup train other networks with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.algorithm.net import Net
from engine.algorithm.types import Batch, Client, Tensors

Merge = Callable[[Tensors, Tensors], Tensors]  # pure and associative; a module-level function or a partial of one


class ClientView(Protocol):
    """One client, to a function given to :meth:`Clients.map`."""

    @property
    def client(self) -> Client:
        """The client: its number of rows, its class counts, its random numbers."""
        ...

    @property
    def net(self) -> Net:
        """The network at the shared weights and buffers, in eval mode; a TypeError where none are shared."""
        ...

    @property
    def state(self) -> Tensors:
        """The client's state; empty before its first participation. A TypeError unless ``states`` was asked for."""
        ...

    def at(self, weights: Tensor, buffers: Tensor) -> Net:
        """Return the client's network, which may be of its own architecture, frozen and in eval mode.

        It is at these ``weights`` [P] and ``buffers`` [Q].
        """
        ...

    def rows(self) -> Iterator[Batch]:
        """Yield the client's rows once, in order, not augmented."""
        ...

    def public(self, per_class: int, /) -> tuple[Tensor, Tensor]:
        """Return public rows, ``per_class`` of each class, see :meth:`TrainingTools.public`."""
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
        ``states`` says that ``fn`` reads ``view.state``, which then goes to where the client's function runs. That is
        no traffic, but may be much to read for every client and every pass.
        ``reduce``: ``sum`` adds the results in float64, ``stack`` concatenates them along their first axis; a function
        merges two results into one, and must be associative: they are merged where they ran, along a binary tree over
        the clients, so the result does not depend on where that was.
        """
        ...


class TrainingTools(Protocol):
    """Tools for training outside the rounds' own: see :class:`Compute` and :meth:`Algorithm.client_setup`."""

    @property
    def net(self) -> Net:
        """The network, in eval mode."""
        ...

    @property
    def device(self) -> torch.device:
        """The device that the work runs on, where new tensors belong."""
        ...

    def rng(self, purpose: str, /) -> torch.Generator:
        """Return the generator (on the CPU) for this ``purpose``, keyed as those of a client."""
        ...

    def public(self, per_class: int, /) -> tuple[Tensor, Tensor]:
        """Return rows that no client holds and everybody may see, so that they are no traffic.

        Images [n, channels, height, width], normalised, and int64 labels [n]: of each class that has any the first
        ``per_class``, one class after the other, so that a smaller set is part of a larger one. Raises ConfigError if a
        class has some but fewer, or if none has any.
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
        """Train the net on ``loss(net, positions [B])`` over shuffled rows; return its "weights" and "buffers".

        The ``num_rows`` rows are the caller's (images, features, logits that it indexes by position), in batches of
        ``batch_size``. As on a client, a body that is not trained (``trainable="head"``) is in eval mode. ``momentum``
        is SGD's; ``weight_decay`` is for either ``optimizer``. ``schedule="cosine"``: the rate of epoch e, from 0, is
        lr / 2 (1 + cos(pi e / epochs)). ``beside``: leaves that the loss depends on too, trained along in place.
        """
        ...

    def minimise(
        self,
        loss: Callable[..., Tensor],
        leaves: Sequence[Tensor],
        inputs: Iterable[Sequence[Tensor]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        """Train ``leaves`` in place by Adam, a step on ``loss(*tensors)`` [] for each ``tensors`` of ``inputs``.

        ``lr`` and ``betas`` are Adam's. What differs from step to step is in ``inputs``: tensors on the CPU, of at
        least one dimension, which go to the device some steps ahead. On a GPU a step may be captured once and replayed;
        so ``loss`` must not wait for the device, like losses on clients.
        """
        ...


class ClientTools(TrainingTools, Protocol):
    """:class:`TrainingTools` on a client, which has its rows; see :meth:`Algorithm.client_setup`."""

    def rows(self) -> Iterator[Batch]:
        """Yield the client's rows once, in order, not augmented."""
        ...


class Compute(Protocol):
    """Heavy server-side work, run where a GPU share is."""

    def __call__(self, fn: Callable[[TrainingTools, Tensors], Tensors], shared: Tensors) -> Tensors:
        """Return what the pure ``fn(tools, shared)`` returns; ``fn`` as for :meth:`Clients.map`.

        ``shared`` must hold "weights" and "buffers" for the net.
        """
        ...
