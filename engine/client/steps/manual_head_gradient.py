"""The plain loss of a linear head on cached features: its gradient, by the operations that autograd would call.

A step of a head takes tens of microseconds of arithmetic, and autograd takes several times that to note it and to walk
back. The operations are autograd's own, in its order and on the same layouts, so that the bits are, too
(``test_manual_head_gradient.py``).

Shapes: B rows of a batch, D features, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.algorithm import Algorithm, Client, Phase, acts
from engine.models import Model
from engine.models.heads import is_plain_linear

aten = torch.ops.aten


@dataclass(frozen=True)
class ManualHeadGradient:
    """A head's parameters, and the classes that its loss leaves out."""

    weight: Tensor  # [C, D]
    bias: Tensor  # [C]
    absent: Tensor | None  # [C] true for classes whose logits are -inf; None: for none

    @staticmethod
    def of(
        model: Model,
        algorithm: Algorithm,
        phase: Phase,
        client: Client,
        forward: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> ManualHeadGradient | None:
        """None where a step of the phase is anything else, or ``forward`` puts it into another precision."""
        head = model.head
        alone = phase.features == "cached" and phase.trainable == "head"
        plain = not any(acts(algorithm, hook, client.context, phase.name) for hook in ("loss", "step_randomness"))
        if not alone or not plain or not is_plain_linear(head):
            return None
        with forward():
            if torch.is_autocast_enabled(head.weight.device.type):
                return None
        absent = client.class_counts == 0
        left_out = algorithm.own_classes and bool(absent.any())
        return ManualHeadGradient(head.weight, head.bias, absent if left_out else None)

    @torch.no_grad()
    def gradients(self, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients [C, D] and [C] of the mean cross entropy over features z [B, D] with labels y [B]."""
        logits = F.linear(z, self.weight, self.bias)
        if self.absent is not None:
            logits.masked_fill_(self.absent, -torch.inf)
        log_p = aten._log_softmax(logits, 1, False)
        one, rows = log_p.new_ones(()), log_p.new_full((), len(y))
        grad = aten.nll_loss_backward(one, log_p, y, None, 1, -100, rows)  # of the mean
        grad = aten._log_softmax_backward_data(grad, log_p, 1, log_p.dtype)
        if self.absent is not None:
            grad.masked_fill_(self.absent, 0)
        return grad.t().mm(z), grad.sum(0)
