"""Derivatives of a network along a direction in its inputs, in one forward pass, that can be differentiated again.

torch's forward mode (``torch.autograd.forward_ad``) carries a tangent beside every tensor. Three of its rules are
replaced while it runs:

* BatchNorm in training mode. torch's rule gives the right tangent, but the gradient *of* that tangent lacks the term
  through the batch's statistics, without any error (pytorch issues 196699 and 198017; torch 2.11 to 2.15).
  :class:`BatchNormTangent` has the whole derivative, in a third of the time.
* Convolutions. torch's rule also convolves with a tangent of the kernel, which is zero here: a third of the work.
* LayerNorm and InstanceNorm have BatchNorm's defect. No network here uses them, so they are refused.

``torch.func.jvp`` cannot be used at all: BatchNorm counts its batches in place, which functional transforms forbid.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

# torch scripts rules of its own forward mode when they are first used, and from 2.15 on its users are told to stop it.
warnings.filterwarnings("ignore", r".torch\.jit\.script. is deprecated", FutureWarning)

_ONE_AT_A_TIME = threading.RLock()  # of the threads of a process: torch has one level of duals for all of them


def jvp(net: Callable[[Tensor], Tensor], x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """``net(x)`` [B, C] and its derivative along ``direction`` (broadcast to x's shape), [B, C].

    Both may be differentiated once more by reverse mode, as losses are. Under autocast too they are computed in x's
    precision: its casts come before the rules, so that a convolution's factors would differ in theirs.
    """
    exact = torch.autocast(x.device.type, enabled=False)
    with _ONE_AT_A_TIME, exact, forward_ad.dual_level(), _Rules():
        out, tangent = forward_ad.unpack_dual(net(forward_ad.make_dual(x, direction.expand_as(x))))
    return out, torch.zeros_like(out) if tangent is None else tangent


class _Rules(TorchFunctionMode):
    """Puts this module's rules in the place of torch's where an input has a tangent."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None and args and isinstance(args[0], Tensor):
            x, tangent = forward_ad.unpack_dual(args[0])
            if tangent is not None:
                return rule(args[0], x, tangent, *args[1:], **kwargs)
        return func(*args, **kwargs)


def _conv2d(
    dual: Tensor, x: Tensor, tangent: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any, **named: Any
) -> Tensor:
    return forward_ad.make_dual(
        torch.conv2d(x, weight, bias, *how, **named), torch.conv2d(tangent, weight, None, *how, **named)
    )


def _batch_norm(
    dual: Tensor,
    x: Tensor,
    tangent: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:  # an affine map: torch's rule is right
        return F.batch_norm(dual, running_mean, running_var, weight, bias, training, momentum, eps)
    weight = torch.ones_like(x[0, :, 0, 0]) if weight is None else weight
    bias = torch.zeros_like(weight) if bias is None else bias
    out = BatchNormTangent.apply(x, tangent, weight, bias, running_mean, running_var, momentum, eps)
    return forward_ad.make_dual(*out)


def _refused(dual: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    raise TypeError("derivatives along a direction are not right through this norm; use batch or group normalisation")


_RULES: dict[Any, Callable[..., Tensor]] = {
    torch.conv2d: _conv2d,
    F.batch_norm: _batch_norm,
    F.layer_norm: _refused,
    F.instance_norm: _refused,
}


class BatchNormTangent(torch.autograd.Function):
    """Training-mode BatchNorm of x [B, C, H, W] and of its tangent t, with the derivatives of both outputs.

    Per channel, over the n values of the batch: y = g v + b with v = (x - mean) s, s = (var + eps)^(-1/2), and
    t' = g u with u = S t, where S = s (1 - 1/n sums - v v^T / n) is dv/dx. S is symmetric, so the kernel of
    BatchNorm's backward pass applies it in either direction, and sum(t v) comes out of that kernel too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        tangent: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        y, mean, scale = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
        u, t_v, _ = _backward(tangent, x, torch.ones_like(weight), mean, scale, eps)
        ctx.save_for_backward(x, u, t_v, weight, mean, scale)
        ctx.eps = eps
        return y, u * _channels(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad_y, grad_t = grad_outputs
        x, u, t_v, weight, mean, scale = ctx.saved_tensors
        grad_x, grad_weight, grad_bias = _backward(grad_y, x, weight, mean, scale, ctx.eps)
        through_t, a_v, _ = _backward(grad_t, x, weight, mean, scale, ctx.eps)  # S a with a = g grad_t; sum(grad_t v)
        a_u = torch.einsum("bchw,bchw->c", grad_t, u)
        # d sum(a u) / dx = -s/n (sum(t v) S a + sum(a v) u + sum(a u) v), from ds/dx = -s^2 v / n and dv/dx = S.
        share = -scale * x.shape[1] / x.numel()
        grad_x = torch.addcmul(grad_x, through_t, _channels(share * t_v))
        grad_x.addcmul_(u, _channels(share * weight * a_v))
        by_v = share * weight * a_u * scale
        grad_x.addcmul_(x, _channels(by_v)).sub_(_channels(by_v * mean))
        return grad_x, through_t, grad_weight + a_u, grad_bias, None, None, None, None


def _backward(grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, scale: Tensor, eps: float) -> list[Tensor]:
    """BatchNorm's backward kernel: S (weight * grad), sum(grad v), sum(grad)."""
    return torch.ops.aten.native_batch_norm_backward(
        grad.contiguous(memory_format=_layout(x)), x, weight, None, None, mean, scale, True, eps, (True, True, True)
    )


def _layout(x: Tensor) -> torch.memory_format:
    """That of [B, C, H, W]: the kernel wants all in one."""
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def _channels(vector: Tensor) -> Tensor:
    return vector.view(1, -1, 1, 1)
