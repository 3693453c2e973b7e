"""The weights of several clients side by side, and a network that sees one of them while all are computed.

Shapes: K clients, k of them in a pass, P parameters, Q floating buffers, B rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call

from engine.algorithm import Tensors
from engine.client.steps.flat_net import FlatNet, NetAt
from engine.client.vmap.dense import Gradient, as_tensor
from engine.client.vmap.step_memory import Memory


class Stack:
    """K clients' parameters and buffers, each parameter [K, ...].

    ``by_layer``: each parameter of all clients is contiguous, so that a step walks through memory once. Otherwise
    the parameters are views of :attr:`weights` [K, P], for hooks and optimizers that want whole vectors.
    """

    def __init__(
        self,
        net: FlatNet,
        weights: Sequence[Tensor],
        buffers: Sequence[Tensor],
        by_layer: bool,
        memory: Memory,
    ) -> None:
        self.net = net
        self.size = len(weights)
        self._memory = memory
        self._layouts: dict[bool, list[Tensor]] = {}  # by_layer -> parameters [K, ...]
        self._set(torch.stack(list(weights)), by_layer)
        # Contiguous each: a running statistic is updated in place, through a view of the clients' axis.
        self._buffers: Tensors = {}
        if net.buffer_names:
            views = zip(*(net.buffer_pieces(one) for one in buffers), strict=True)
            named = zip(net.buffer_names, views, strict=True)
            self._buffers = {name: memory.rows(name, torch.stack(own)) for name, own in named}

    def _set(self, weights: Tensor, by_layer: bool) -> None:
        """Hold ``weights`` [K, P] in one of the two layouts."""
        self.by_layer = by_layer
        self._leaves: dict[tuple[int, int, str, bool], list[Tensor]] = {}
        if by_layer:
            pieces = zip(self.net.names, self._pieces(weights), strict=True)
            self._layouts[True] = [self._memory.rows(name, piece.contiguous()) for name, piece in pieces]
            self.weights = weights[:, :0]
        else:
            self.weights = self._memory.rows("weights", weights)
            self._layouts[False], self._vectors = self._pieces(self.weights), self.weights

    def lay_out(self, by_layer: bool) -> None:
        """Hold the weights by layer or as whole vectors from here on; a copy where they are not yet."""
        if by_layer != self.by_layer:
            self._set(self.all_weights(), by_layer)

    @property
    def _parameters(self) -> list[Tensor]:
        return self._layouts[self.by_layer]

    def leaves(self, first: int, last: int, part: str, by_layer: bool | None = None) -> list[Tensor]:
        """The parameters [k, ...] of clients [first, last), those of ``part`` as leaves of a graph.

        by_layer: the layout that whoever captured a step had; None: the present one.
        """
        by_layer = self.by_layer if by_layer is None else by_layer
        if self._memory.compiles:  # views made within each step, which then holds one tensor of weights
            if not by_layer:
                return self.leaves_at(self._vectors[first:last], part)
            return self._as_leaves([piece[first:last] for piece in self._layouts[True]], part)
        key = first, last, part, by_layer
        if key not in self._leaves:
            self._leaves[key] = self._as_leaves([piece[first:last] for piece in self._layouts[by_layer]], part)
        return self._leaves[key]

    def leaves_at(self, weights: Tensor, part: str) -> list[Tensor]:
        """Return the parameters [k, ...] of ``weights`` [k, P] as :meth:`leaves` does those of clients."""
        return self._as_leaves(self._pieces(weights), part)

    def written_out(self, first: int, last: int, part: str, grads: Sequence[Gradient]) -> Tensor:
        """Return the gradients [k, n] of clients [first, last) as vectors, from those of each parameter."""
        inside, like = {id(parameter) for parameter in self.net.slices[part][1]}, self.net.weights
        none = partial(torch.zeros, dtype=like.dtype, device=like.device)
        pieces = [
            none(last - first, own.numel()) if grad is None else as_tensor(grad).reshape(last - first, -1)
            for own, grad in zip(self.net.parameters, grads, strict=True)
            if id(own) in inside
        ]
        return torch.cat(pieces, dim=1) if pieces else none(last - first, 0)

    def _as_leaves(self, pieces: Sequence[Tensor], part: str) -> list[Tensor]:
        inside = {id(parameter) for parameter in self.net.slices[part][1]}
        return [
            piece.detach().requires_grad_(id(parameter) in inside)
            for parameter, piece in zip(self.net.parameters, pieces, strict=True)
        ]

    def buffers(self, first: int, last: int) -> Tensors:
        return {name: piece[first:last] for name, piece in self._buffers.items()}

    def weights_of(self, client: int) -> Tensor:
        """[P], a copy."""
        if not self.by_layer:
            return self.weights[client].clone()
        return torch.cat([piece[client].reshape(-1) for piece in self._parameters])

    def buffers_of(self, client: int) -> Tensor:
        """[Q], a copy."""
        if not self._buffers:
            return self.net.buffers.clone()
        return torch.cat([piece[client].reshape(-1) for piece in self._buffers.values()])

    def all_weights(self) -> Tensor:
        """[K, P], a copy."""
        return self._joined(self._parameters) if self.by_layer else self.weights.clone()

    def all_buffers(self) -> Tensor:
        """[K, Q], a copy."""
        if not self._buffers:
            return self.net.buffers.expand(self.size, -1).clone()
        return self._joined(self._buffers.values())

    def _joined(self, pieces: Iterable[Tensor]) -> Tensor:
        return torch.cat([piece.reshape(self.size, -1) for piece in pieces], dim=1)

    def load(self, client: int, weights: Tensor, buffers: Tensor) -> None:
        """Put [P] and [Q] in for one client."""
        for piece, part in zip(self._parameters, self.net.parameter_pieces(weights), strict=True):
            piece[client].copy_(part)
        if self._buffers:
            for piece, part in zip(self._buffers.values(), self.net.buffer_pieces(buffers), strict=True):
                piece[client].copy_(part)

    def _pieces(self, vectors: Tensor) -> list[Tensor]:
        pieces = vectors.split([p.numel() for p in self.net.parameters], dim=1)
        return [piece.view(len(piece), *p.shape) for p, piece in zip(self.net.parameters, pieces, strict=True)]


class StackedNet(NetAt):
    """The :class:`~engine.algorithm.Net` of one client, in a function that runs for several at once."""

    def __init__(self, net: FlatNet, parameters: Sequence[Tensor], buffers: Tensors) -> None:
        tensors = dict(zip(net.names, parameters, strict=True)) | buffers
        super().__init__(net, tensors, train=False, frozen=False, mapped=True)

    def _call(self, module: nn.Module, x: Tensor, prefix: str = "") -> Tensor:
        # In the mode that the phase has put the modules into, which is not one mode for all of them.
        tensors = {prefix + name: tensor for name, tensor in self._tensors.items()}
        return functional_call(module, tensors, (x,), tie_weights=False)
