"""Networks of linear layers under the contract's own loss, for several clients at once, written out.

Small networks of this kind are bound by memory and by the time between operations, so two things are left out:
autograd, and gradients of weights. A gradient [K, O, I] is dY X^T, a product of two small factors; written out it costs
twice the memory traffic of the weights themselves, once to write and once to read. The factors are kept instead, and
whoever takes the step multiplies them straight into the weights.

Between layers rows come last, [K, O, B]: where a layer has few outputs, as heads do, the product is twice as fast with
the weights on its left, and a softmax runs along the rows of many examples at once.

Shapes: K clients in the pass, B rows, I inputs and O outputs of a layer, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models import Model
from engine.models.heads import is_hooked, is_plain_linear


@dataclass(frozen=True)
class Product:
    """A gradient [K, O, I] as its factors."""

    dy: Tensor  # [K, O, B]
    x: Tensor  # [K, I, B]

    def written_out(self) -> Tensor:
        return torch.bmm(self.dy, self.x.mT)


Gradient = Tensor | Product | None  # of a parameter [K, ...]; none where it is not trained


def as_tensor(gradient: Tensor | Product) -> Tensor:
    """Return a gradient written out."""
    return gradient.written_out() if isinstance(gradient, Product) else gradient


@dataclass(frozen=True)
class Dense:
    """The layers of such a network: after which of its linear layers a ReLU comes. A head alone is one, too."""

    relus: tuple[bool, ...]

    @staticmethod
    def head_of(model: Model) -> Dense | None:
        """Return the head of any network; None if it is anything but a linear layer with a bias."""
        return Dense((False,)) if is_plain_linear(model.head) else None

    @staticmethod
    def of(model: Model) -> Dense | None:
        """None for any other network."""
        if type(model) is not Model or type(model.body) is not nn.Sequential or is_hooked(model):
            return None
        modules = [*model.body, model.head]  # each place, also of a module that is in two
        if type(modules[0]) is not nn.Flatten:
            return None
        relus: list[bool] = []
        for module in modules[1:]:
            if is_plain_linear(module):
                relus.append(False)
            elif type(module) is nn.ReLU and relus and not relus[-1]:
                relus[-1] = True
            else:
                return None
        return Dense(tuple(relus)) if len(list(model.parameters())) == 2 * len(relus) else None  # nothing in common

    def losses(self, parameters: Sequence[Tensor], x: Tensor, y: Tensor, absent: Tensor | None = None) -> Tensor:
        """[K] of images [K, B, ...] and labels [K, B]; parameters: weight and bias of each layer, [K, ...].

        absent: [K, C] true for classes that are left out; None: for none.
        """
        return _cross_entropy(self._forward(parameters, x, absent)[-1], y)

    def gradients(
        self,
        parameters: Sequence[Tensor],
        trained: Sequence[bool],
        x: Tensor,
        y: Tensor,
        with_losses: bool,
        absent: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> tuple[list[Gradient], Tensor | None]:
        """Return the gradient of the sum of :meth:`losses` for each trained parameter, and those losses.

        weights: [K, B] of each row in place of 1 / B, in the gradient alone.
        """
        values = self._forward(parameters, x, absent)
        logits = values[-1]
        losses = _cross_entropy(logits, y) if with_losses else None
        grads: list[Gradient] = [None] * len(parameters)
        lowest = min((number // 2 for number, is_trained in enumerate(trained) if is_trained), default=len(self.relus))
        dy = torch.softmax(logits, 1)
        at = y.unsqueeze(1)
        dy.scatter_add_(1, at, dy.new_full((), -1.0).expand(at.shape))
        dy = dy.div_(y.shape[1]) if weights is None else dy.mul_(weights.unsqueeze(1))
        for layer in range(len(self.relus) - 1, lowest - 1, -1):
            x_in = values[layer]
            if trained[2 * layer]:
                grads[2 * layer] = Product(dy, x_in)
            if trained[2 * layer + 1]:
                grads[2 * layer + 1] = dy.sum(2)
            if layer > lowest:
                dy = torch.bmm(parameters[2 * layer].mT, dy)
                if self.relus[layer - 1]:
                    dy = torch.ops.aten.threshold_backward(dy, x_in, 0)
        return grads, losses

    def _forward(self, parameters: Sequence[Tensor], x: Tensor, absent: Tensor | None) -> list[Tensor]:
        """Return what goes into each layer [K, I, B], and the logits [K, C, B]."""
        values = [x.flatten(2).mT]
        for layer, relu in enumerate(self.relus):
            weight, bias = parameters[2 * layer], parameters[2 * layer + 1]
            y = torch.baddbmm(bias.unsqueeze(2), weight, values[-1])
            values.append(y.relu_() if relu else y)
        if absent is not None:
            values[-1].masked_fill_(absent.unsqueeze(2), -torch.inf)
        return values


def _cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean over rows of logits [K, C, B] and labels [K, B]: [K]."""
    return F.cross_entropy(logits, y, reduction="none").mean(1)
