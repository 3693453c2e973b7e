"""Sub-networks of the first channels of every layer, as in GradAug (Yang, Zhu and Chen 2020) and FedSER.

A sub-network is the same module called with sliced tensors, so there is nothing to build and nothing to copy
back: gradients reach the full parameters through the slices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, nn

from engine.errors import ConfigError, require
from engine.models.layers import DepthwiseConv, GroupNorm, PlaneLinear
from engine.models.model import Model

Cut = tuple[slice, ...]  # of a tensor's first dimensions; () keeps all


def kept(channels: int, width: float) -> int:
    """How many of ``channels`` a sub-network of relative ``width`` keeps: rounded half up, at least 1."""
    return max(1, math.floor(width * channels + 0.5))


def cuts(model: Model, width: float) -> dict[str, Cut]:
    """For each parameter and buffer the part that belongs to the sub-network of relative ``width`` in (0, 1].

    Whole stay the image channels (the inputs of the body's first layer) and the classes (the head's outputs).
    A layer that reads flattened planes keeps whole planes. Raises ConfigError for a width out of range and
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
        result |= {f"{name}.{key}": cut for key, cut in _layer_cuts(name, module, width).items()}
        if module is first:
            result[f"{name}.weight"] = result[f"{name}.weight"][:1]
        if module is model.head:
            result |= {f"{name}.weight": (slice(None), result[f"{name}.weight"][1]), f"{name}.bias": ()}
    return {name: result[name] for name in _tensors(model)}


def narrowed(model: Model, width: float, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """The tensors with which ``torch.func.functional_call`` runs the sub-network of relative ``width``.

    ``tensors``: all parameters and buffers by name, the model's own if None. Parameters come back as views,
    so gradients flow into the full ones and are zero elsewhere; buffers as copies, so a pass in training mode
    normalises by its own batch and leaves the running statistics alone. Raises ConfigError as :func:`cuts`
    does.
    """
    full = _tensors(model) if tensors is None else tensors
    buffers = {name for name, _ in model.named_buffers()}
    parts = {name: full[name][cut] for name, cut in cuts(model, width).items()}
    return {name: part.clone() if name in buffers else part for name, part in parts.items()}


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _layer_cuts(name: str, module: nn.Module, width: float) -> dict[str, Cut]:
    """The cuts of one layer's own tensors, were it in the middle of the network."""
    if isinstance(module, DepthwiseConv):
        return {"weight": (slice(kept(module.out_channels, width)),)}  # [C, 1, 3, 3]
    if isinstance(module, nn.Conv2d) and module.groups == 1:
        out = slice(kept(module.out_channels, width))
        return {"weight": (out, slice(kept(module.in_channels, width))), "bias": (out,)}
    if isinstance(module, nn.Linear):
        plane = module.plane if isinstance(module, PlaneLinear) else 1
        out = slice(kept(module.out_features, width))
        return {"weight": (out, slice(kept(module.in_features // plane, width) * plane)), "bias": (out,)}
    if isinstance(module, nn.BatchNorm2d | GroupNorm):
        own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        return {key: (slice(kept(len(tensor), width)),) if tensor.ndim else () for key, tensor in own.items()}
    kind = type(module).__name__
    raise ConfigError(
        "width",
        width,
        f"layer {name} ({kind}) cannot run with fewer channels, so the model has no sub-networks",
        "use another model, for example model.name=resnet20",
    )
