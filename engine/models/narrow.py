"""Sub-networks of the first channels of every layer, as in GradAug (Yang, Zhu and Chen 2020) and FedSER.

A sub-network is the same module called with sliced tensors, so there is nothing to build and nothing to copy
back: gradients reach the full parameters through the slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from engine.base.errors import ConfigError, require
from engine.models.layers import DepthwiseConv, GroupNorm, PlaneLinear
from engine.models.model import Model

Cut = tuple[slice, ...]  # of a tensor's first dimensions; () keeps all


def kept(channels: int, width: float, divisor: int = 1) -> int:
    """Return how many of ``channels`` a sub-network of relative ``width`` keeps: rounded half up, at least 1.

    With a ``divisor`` above 1 rounded to multiples of it, but never by more than a tenth down: then up. That is what
    FedAlign's released layers do (divisor 8: of 16, 32 and 64 channels at 0.8 remain 16, 24 and 48); here no more are
    kept than there are, and all of them at width 1.
    """
    if width == 1:
        return channels
    wanted = width * channels
    rounded = math.floor(wanted / divisor + 0.5) * divisor
    if divisor == 1:
        return max(1, rounded)
    return min(channels, rounded + divisor if rounded < 0.9 * wanted else rounded)


def cuts(model: Model, width: float, divisor: int = 1) -> dict[str, Cut]:
    """Return of each parameter and buffer the part that belongs to the sub-network of relative ``width`` in (0, 1].

    ``divisor``: see :func:`kept`.

    The image channels (the inputs of the body's first layer) and the classes (the head's outputs) stay whole.
    A layer that reads flattened planes keeps whole planes. Raises :class:`ConfigError` for a width out of range and
    for a model that has no sub-networks: no hidden layer, or a layer which has its channel number built in.
    """
    require(0 < width <= 1, "width", width, "must be above 0 and at most 1", "for example width=0.8")
    layers = {
        name: module
        for name, module in model.named_modules()
        if [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    }
    first = next(iter(layers.values()))
    if first is model.head:
        raise ConfigError(
            "width",
            width,
            "a model without hidden layers has no sub-networks",
            "use a model with some, for example model.name=mlp",
        )
    result: dict[str, Cut] = {}
    for name, module in layers.items():
        result |= {f"{name}.{key}": cut for key, cut in _layer_cuts(name, module, width, divisor).items()}
        if module is first:
            result[f"{name}.weight"] = result[f"{name}.weight"][:1]
        if module is model.head:
            result |= {f"{name}.weight": (slice(None), result[f"{name}.weight"][1]), f"{name}.bias": ()}
    return {name: result[name] for name in _tensors(model)}


def narrowed(
    model: Model, width: float, tensors: Mapping[str, Tensor] | None = None, divisor: int = 1
) -> dict[str, Tensor]:
    """Return the tensors with which ``torch.func.functional_call`` runs the sub-network of relative ``width``.

    ``tensors``: parameters and buffers by name in place of the model's own. Parameters come back as views,
    so gradients flow into the full ones and are zero elsewhere; buffers as copies, so a pass in training mode
    normalises by its own batch and leaves the running statistics alone. ``divisor`` and errors are those of
    :func:`cuts`.
    """
    full = _tensors(model) | dict(tensors or {})
    buffers = {name for name, _ in model.named_buffers()}
    parts = {name: full[name][cut] for name, cut in cuts(model, width, divisor).items()}
    return {name: part.clone() if name in buffers else part for name, part in parts.items()}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _layer_cuts(name: str, module: nn.Module, width: float, divisor: int) -> dict[str, Cut]:
    """The cuts of one layer's own tensors, were it in the middle of the network."""

    def first(channels: int, plane: int = 1) -> slice:
        return slice(kept(channels // plane, width, divisor) * plane)

    if isinstance(module, DepthwiseConv):
        return {"weight": (first(module.out_channels),)}  # [C, 1, 3, 3]
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        out = first(module.out_channels)
        return {"weight": (out, first(module.in_channels)), "bias": (out,)}
    if isinstance(module, nn.Linear):
        plane = module.plane if isinstance(module, PlaneLinear) else 1
        out = first(module.out_features)
        return {"weight": (out, first(module.in_features, plane)), "bias": (out,)}
    if isinstance(module, nn.BatchNorm2d | GroupNorm):
        own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        return {key: (first(len(tensor)),) if tensor.ndim else () for key, tensor in own.items()}
    kind = type(module).__name__
    raise ConfigError(
        "width",
        width,
        f"layer {name} ({kind}) cannot run with fewer channels, so the model has no sub-networks",
        "use another model, for example model.name=resnet20",
    )
