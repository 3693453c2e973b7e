"""Accuracy in less than float32, beside float32: TF32's factors imitated on a processor, and bfloat16 by autocast.

    ln -s FOLDER cifar10        # CIFAR-10's parquet files
    fedskew sweep benchmarks/precision.py:precision --profile laptop         # two hours of two cores

On a card with ``execution.tf32`` a product's factors have ten bits after the point, forwards and backwards, and are
summed in float32. So they have here, where they are rounded before a product that is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from ray import tune
from torch import Tensor, nn

import fedskew
from engine.base.declared import Doc
from engine.models.model import Model
from engine.models.resnet import ResNet8
from engine.results.claims import Claim
from engine.sweeps.definition import Sweep
from tune_configs.quickstart import cifar10

DROPPED = 13  # of float32's 23 bits after the point
POINTS = 0.01
NAMED = "name"


def rounded(x: Tensor) -> Tensor:
    """Return float32 values rounded to TF32's ten bits after the point, halves away from 0."""
    bits = x.detach().contiguous().view(torch.int32) + (1 << DROPPED - 1)
    return (bits >> DROPPED << DROPPED).view(torch.float32)


class _Factor(torch.autograd.Function):
    """A factor of a product: rounded forwards, and its gradient as it comes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return rounded(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class _Product(torch.autograd.Function):
    """A product, whose gradient is a factor of two other products: rounded backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return rounded(gradients[0])


class RoundedConv(nn.Conv2d):
    """A convolution without bias, of rounded factors."""

    def forward(self, input: Tensor) -> Tensor:
        x, weight = _Factor.apply(input), _Factor.apply(self.weight)
        return _Product.apply(F.conv2d(x, weight, None, self.stride, self.padding))


class RoundedLinear(nn.Linear):
    """A linear layer of rounded factors; the bias is added to the sum."""

    def forward(self, input: Tensor) -> Tensor:
        return _Product.apply(F.linear(_Factor.apply(input), _Factor.apply(self.weight))) + self.bias


@fedskew.model("rounded_resnet8")
@dataclass(frozen=True)
class RoundedResNet8(ResNet8):
    """ResNet-8, by choice with its factors rounded."""

    factors: Annotated[Literal["float32", "tf32"], Doc("of convolutions and linear layers")] = "float32"

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        """Build it, each layer in the place of the one that it rounds."""
        model = super().build(shape, num_classes)
        for module in model.modules() if self.factors == "tf32" else ():
            if type(module) is nn.Conv2d:
                module.__class__ = RoundedConv
            elif type(module) is nn.Linear:
                module.__class__ = RoundedLinear
        return model


def _factors(spec: Any) -> str:
    return "tf32" if spec.config[NAMED] == "tf32" else "float32"


def _autocast(spec: Any) -> str:
    return "bfloat16" if spec.config[NAMED] == "bfloat16" else "none"


def precision(profile: str) -> Sweep:
    """FedAvg on 10,000 images of CIFAR-10, 20 clients, Dirichlet(0.1): 7,500 steps in all."""
    base = cifar10().replace(
        {
            "name": "precision",
            "rounds": 30,
            "data": {"name": "parquet", "root": "cifar10", "size": 16, "train_samples": 10_000},
            "partition.clients": 20,
            "participation.count": 5,
            "model": {"name": "rounded_resnet8"},
            "local.lr": 0.05,
            "local.lr_decay": 1.0,
            "local.augment": "flip",
            "evaluation.every": 1,
        }
    )
    return Sweep(
        base=base,
        space={
            NAMED: tune.grid_search(["float32", "tf32", "bfloat16"]),
            "model.factors": tune.sample_from(_factors),
            "execution.autocast": tune.sample_from(_autocast),
        },
        seeds=tuple(range(100, 110)),
        claims=tuple(
            Claim(
                f"{word} is within a point of float32 {told}.",
                "ours",
                {NAMED: name},
                {NAMED: "float32"},
                {},
                metric,
                margin=POINTS,
                kind="equal",
            )
            for word, name in (("TF32", "tf32"), ("bfloat16", "bfloat16"))
            for metric, told in (("last10_accuracy", "in the last ten rounds"), ("best_accuracy", "in its best round"))
        ),
    )
