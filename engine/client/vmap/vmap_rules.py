"""Rules for what torch's own ``vmap`` does badly in a pass over several clients.

BatchNorm of several clients is one kernel over K C channels, with their scales and shifts inside. torch's own rule
normalises all clients in one kernel too, but applies scale and shift around it: three more passes over every layer's
activations, and as many backward. Here tensors are taken out of ``vmap``, joined and put back, by the functions that it
is made of itself.

Shapes: K clients of a pass, B rows of a batch, C channels of a layer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import _add_batch_dim, get_unwrapped, maybe_get_bdim, maybe_get_level
from torch.overrides import TorchFunctionMode

from engine.client.steps.flat_net import is_readable


class StackedRules(TorchFunctionMode):
    """Cross entropy and the Kullback-Leibler divergence without the call per client that ``vmap`` makes of them, and
    BatchNorm in one kernel.

    A call per client can take longer than the network, and warns of itself.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.cross_entropy and len(args) == 2 and _is_plain(kwargs) and args[1].ndim == 1:
            return cross_entropy(*args)
        if func is F.kl_div and len(args) == 2:
            given = kwargs or {}
            if given.get("reduction") == "batchmean" and given.get("size_average") is given.get("reduce") is None:
                return kl_div(*args, log_target=given.get("log_target", False))
        if func is F.batch_norm:
            return batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over rows of logits [..., B, C] and labels [..., B] int64: [...]."""
    return torch.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).mean((-2, -1)).neg()


def kl_div(log_p: Tensor, target: Tensor, log_target: bool = False) -> Tensor:
    """The mean over rows of KL(target || p) for log_p [B, C], and target [B, C] or its logarithm: []."""
    pieces = target.exp() * (target - log_p) if log_target else torch.xlogy(target, target) - target * log_p
    return pieces.sum() / len(log_p)


PLAIN = {
    "weight": None,
    "size_average": None,
    "ignore_index": -100,
    "reduce": None,
    "reduction": "mean",
    "label_smoothing": 0.0,
}


def _is_plain(kwargs: dict[str, Any] | None) -> bool:
    """Return whether cross entropy is asked for without options; torch passes all of them on."""
    return all(name in PLAIN and PLAIN[name] == value for name, value in (kwargs or {}).items())


class Own(NamedTuple):
    """A tensor within ``vmap``: of all clients, or of one where all have the same."""

    tensor: Tensor | None
    dim: int  # of the clients; negative: there is none

    @property
    def is_stacked(self) -> bool:
        return self.dim >= 0

    @property
    def clients(self) -> int:
        assert self.tensor is not None
        return self.tensor.shape[self.dim]

    def rows(self, clients: int) -> Tensor:
        """[K, ...] of the clients."""
        assert self.tensor is not None
        return self.tensor.movedim(self.dim, 0) if self.is_stacked else self.tensor.expand(clients, *self.tensor.shape)


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``F.batch_norm``, within ``vmap`` or not; running statistics move in place.

    In training mode statistics of nobody's own cannot move: torch refuses them.
    """
    given = x, running_mean, running_var, weight, bias
    level = max(maybe_get_level(tensor) for tensor in given if tensor is not None)
    images, *vectors = (_out_of(tensor, level) for tensor in given)
    stacked = [one for one in (images, *vectors) if one.is_stacked]
    nobodys = training and running_mean is not None and not all(one.is_stacked for one in vectors[:2])
    if not stacked or nobodys:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if not training and images.is_stacked and len(stacked) == 1:  # one network for all: rows of one batch
        rows = images.rows(0)
        out = F.batch_norm(rows.flatten(0, 1), running_mean, running_var, weight, bias, False, momentum, eps)
        return _add_batch_dim(out.unflatten(0, rows.shape[:2]), 0, level)
    clients = stacked[0].clients
    own = [None if one.tensor is None else one.rows(clients) for one in vectors]  # [K, C]
    mean, var, scale, shift = (None if rows is None else _joined(rows) for rows in own)
    channels = images.rows(clients).movedim(0, 1).flatten(1, 2)  # [B, K C, ...], as a convolution of all has made them
    out = F.batch_norm(channels, mean, var, scale, shift, training, momentum, eps)
    if training:
        for rows, moved in ((own[0], mean), (own[1], var)):
            if rows is not None and moved is not None and not _is_joined(rows):  # joined by a copy, which has moved
                rows.copy_(moved.view(rows.shape))
    return _add_batch_dim(out.unflatten(1, (clients, -1)), 1, level)


def _out_of(tensor: Tensor | None, level: int) -> Own:
    """What ``vmap`` of this level shows as a tensor of one client."""
    if tensor is None or level < 0 or maybe_get_level(tensor) != level:
        return Own(tensor, -1)
    return Own(get_unwrapped(tensor), maybe_get_bdim(tensor))


def _joined(rows: Tensor) -> Tensor:
    """Return [K C] of rows [K, C], in the same memory if :func:`_is_joined`."""
    joined = rows.reshape(-1)  # a copy of rows that lie apart
    return joined.clone() if rows.is_contiguous() and not _is_joined(rows) else joined


def _is_joined(rows: Tensor) -> bool:
    """Return whether rows [K, C] lie one after the other, where a kernel can read them: those of one client need not,
    whose weights follow others' in one matrix."""
    return rows.is_contiguous() and is_readable(rows)
