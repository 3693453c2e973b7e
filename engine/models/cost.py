"""The cost of one sample in a model: multiply-adds and kept activations, counted by hooks while two rows pass through.

Weights and rows are zeros: see :func:`~engine.models.model.hollow`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.model import ModelSpec, has_batchnorm, hollow

ROWS = 2  # of the batch that passes: BatchNorm takes no single one


@dataclass(frozen=True)
class LayerCost:
    """The cost of one call of a module with weights of its own, for one sample."""

    name: str  # as in ``named_modules``
    kind: str
    parameters: int
    macs: int  # multiply-adds of a forward pass
    is_first: bool  # its input is no layer's output, so that nobody asks for the gradient with respect to it
    kept: int  # elements of its input that backward needs again; 0 where another layer has kept them, or is_first


@dataclass(frozen=True)
class ModelCost:
    """The cost of one sample's way through a model, layer by layer in their order."""

    layers: tuple[LayerCost, ...]
    parameters: int  # P
    buffers: int  # Q, floating ones
    outputs: int  # C class scores
    has_batchnorm: bool

    @property
    def macs(self) -> int:
        """Multiply-adds of a forward pass: M."""
        return sum(layer.macs for layer in self.layers)

    @property
    def first_macs(self) -> int:
        """Multiply-adds of layers that need no gradient with respect to their input: M1."""
        return sum(layer.macs for layer in self.layers if layer.is_first)

    @property
    def activations(self) -> int:
        """Elements that are kept for backward and have a gradient, inputs of layers and the scores: A."""
        return sum(layer.kept for layer in self.layers) + self.outputs

    @property
    def flops(self) -> int:
        """Operations of training, 6 M - 2 M1: two a multiply-add, forward, for weights' and for inputs' gradients."""
        return 6 * self.macs - 2 * self.first_macs


def model_cost(spec: ModelSpec, shape: tuple[int, int, int], num_classes: int) -> ModelCost:
    """Count the cost of a specification's network in training, for images of ``shape`` (C, H, W).

    Raises :class:`ConfigError` as ``spec.build`` does.
    """
    return count(hollow(spec, shape, num_classes), shape)


def count(model: nn.Module, shape: tuple[int, int, int]) -> ModelCost:
    """Count the cost of a model, which maps images [B, C, H, W] to scores [B, classes]."""
    layers: list[LayerCost] = []
    seen: dict[int, Tensor] = {}  # held, so that no other tensor takes over an id

    def record(module: nn.Module, inputs: tuple[Tensor, ...], output: Any, name: str) -> None:
        first = output[0] if isinstance(output, tuple) else output  # an attention gives its weights as well
        if not inputs or not isinstance(inputs[0], Tensor) or not isinstance(first, Tensor):
            return  # a parametrization, which is given nothing, or a module of tensors by other names
        x, per_row = inputs[0], first.numel() // ROWS
        is_new = id(x) not in seen
        seen[id(x)] = x
        layers.append(
            LayerCost(
                name=name,
                kind=type(module).__name__,
                parameters=sum(p.numel() for p in module.parameters(recurse=False)),
                # A convolution's filter, in its group, or a linear layer's row makes one element of the output; of
                # anything else, norms above all, one multiply-add for each element is the least.
                macs=per_row * (module.weight[0].numel() if isinstance(module, nn.Conv2d | nn.Linear) else 1),
                is_first=not x.requires_grad,
                kept=x.numel() // ROWS if x.requires_grad and is_new else 0,
            )
        )

    handles = [
        module.register_forward_hook(partial(record, name=name))
        for name, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    try:
        with torch.random.fork_rng(devices=[]):  # a network may draw
            scores = model(torch.zeros(ROWS, *shape))
    finally:
        for handle in handles:
            handle.remove()
    return ModelCost(
        layers=tuple(layers),
        parameters=sum(p.numel() for p in model.parameters()),
        buffers=sum(b.numel() for b in model.buffers() if b.is_floating_point()),
        outputs=scores.numel() // ROWS,
        has_batchnorm=has_batchnorm(model),
    )
