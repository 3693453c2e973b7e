"""Rules for what torch's own ``vmap`` does badly in a pass over several clients."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.client.vmap.stacked_batch_norm import batch_norm


class StackedRules(TorchFunctionMode):
    """Cross entropy and the Kullback-Leibler divergence without the call per client that ``vmap`` makes of them, and
    BatchNorm in one kernel (``stacked_batch_norm.py``).

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
