"""Generated rows: the part of the contract for methods that make images for their clients to train on.

It serves figures and pictures alone; how such images are used in training is up to the algorithm.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.algorithm.contract import Algorithm
from engine.algorithm.types import ParamLayout, Tensors


@dataclass(frozen=True)
class Generative(Algorithm):
    """An algorithm whose clients train on images that are generated, or lent to them, beside their own."""

    @abstractmethod
    def generate(self, server: Tensors, labels: Tensor, layout: ParamLayout, rng: torch.Generator) -> Tensors:
        """Return images like those that clients train on, made from what the server has after a round.

        ``labels``: int64 [n], the classes to generate. ``layout``: the model's. ``rng``: what all draws come from.
        Returned are "images" [n, channels, height, width], normalised, and "labels" [n] if each was made for its class.
        May raise :class:`~engine.base.errors.ConfigError` where the server has nothing
        to make them from.
        """

    def judge(self, server: Tensors) -> Tensors:
        """Return "weights" [P] and "buffers" [Q] of the model for which the images of :meth:`generate` are made.

        The server's own, unless an algorithm keeps another one.
        """
        return {name: server[name] for name in ("weights", "buffers")}

    def step_classes(self, counts: Tensor, rows: int) -> Tensor:
        """Return the rows of each class that one local step of each client is expected to see, float64 [K, C].

        counts: int64 [K, C], the clients' samples of each class, at least one each. rows: of a batch. What is mixed
        into a step beside the client's own rows counts too.
        """
        return own_classes(counts, rows)


def own_classes(counts: Tensor, rows: int) -> Tensor:
    """Return :meth:`Generative.step_classes` of an algorithm whose steps see a client's own rows alone."""
    return rows * counts / counts.sum(dim=1, keepdim=True, dtype=torch.float64)
