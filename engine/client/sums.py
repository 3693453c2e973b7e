"""The weighted sum of a cohort's uploads, the same to the bit whoever adds: the only module that adds them.

It is formed along the cohort's tree, see ``tree.py``, in float64. Over n clients its error is log2(n) roundings of
2^-53 of the sum of magnitudes, at most (Higham 1993, "The accuracy of floating point summation": pairwise sums); added
one after another it would be n - 1.

Shapes: P parameters, Q floating buffers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from engine.algorithm import Tensors
from engine.base.errors import RunError
from engine.client import tree
from engine.client.steps.entries import at_rest, to_host

EXACT = 2**29  # times a float32 number, a whole number below it is exact in float64


def _none() -> Tensor:
    return torch.zeros(0)


@dataclass(slots=True)
class Subtotal:
    """Uploads of some clients, weighted and added.

    That of one client holds what the client uploads as it is, in the run's precision and half the size;
    :attr:`factor` and :attr:`buffers_factor` say by how much what is held has still to be multiplied.
    """

    uploads: Tensors = field(default_factory=dict)  # sum of weight * upload
    buffers: Tensor = field(default_factory=_none)  # [Q] sum of num_examples * buffers; [0] where none are shared
    weight: float = 0.0
    num_examples: int = 0
    clients: int = 0

    @property
    def factor(self) -> float:
        return self.weight if self.clients == 1 else 1

    @property
    def buffers_factor(self) -> float:
        return self.num_examples if self.clients == 1 else 1

    def plus(self, right: Subtotal) -> Subtotal:
        """Return the sum of both. What is held of several clients is written into, and gone.

        Raises :class:`RunError` where they have other entries: in a mean, who sends none would count as sending zeros.
        """
        apart = sorted(self.uploads.keys() ^ right.uploads.keys())
        if apart:
            rule = "and others of the same round do not: send zeros where there is nothing, and how much there is"
            raise RunError(f"some clients upload {apart[0]!r}, {rule}")
        return Subtotal(
            {name: self._plus(right, name) for name in self.uploads},
            _added(self._shared, right._shared) if self.buffers.numel() else self.buffers,
            self.weight + right.weight,
            self.num_examples + right.num_examples,
            self.clients + right.clients,
        )

    def total(self) -> Tensors:
        """The sum of weight * upload, float64."""
        return {name: tensor.double() * self.factor for name, tensor in self.uploads.items()}

    def mean(self) -> Tensors:
        """The weighted mean of the uploads, float64; there must be a weight."""
        return {name: total / self.weight for name, total in self.total().items()}

    def mean_buffers(self) -> Tensor:
        """The mean of the buffers [Q] by samples, float64; there must be a sample."""
        return self.buffers.double() * self.buffers_factor / self.num_examples

    @property
    def _ours(self) -> bool:
        """Whether what is held was added here, and may be written into."""
        return self.clients > 1

    @property
    def _shared(self) -> tuple[Tensor, float, bool]:
        return self.buffers, self.buffers_factor, self._ours

    def _plus(self, right: Subtotal, name: str) -> Tensor:
        return _added(*((part.uploads[name], part.factor, part._ours) for part in (self, right)))


def _added(*terms: tuple[Tensor, float, bool]) -> Tensor:
    """Add one term or two: a tensor, by how much it is multiplied, whether it is to be written into."""
    if len(terms) == 2 and terms[1][2]:
        terms = terms[1], terms[0]  # the order of two changes no bit
    total, factor, ours = terms[0]
    if not ours:
        total = total.to(torch.float64, copy=True).mul_(factor)
    for tensor, factor, _ in terms[1:]:
        if factor == 1 or (tensor.dtype is torch.float32 and factor == int(factor) < EXACT):
            total.add_(tensor, alpha=factor)  # in float64, as the sum is
        else:  # a card would round this product and sum once, a processor twice
            total.add_(tensor.double() * factor)
    return total


@dataclass
class WeightedSum:
    """Uploads of some clients of a cohort, added as far as the cohort's tree allows."""

    parts: list[tree.Part[Subtotal]] = field(default_factory=list)

    def add(
        self, place: int, upload: Tensors, buffers: Tensor | None = None, weight: float = 1.0, num_examples: int = 1
    ) -> None:
        """Add the upload of the client at a place, and its buffers [Q], or none where they are not shared.

        Clients of a block that is trained in one pass, which is part of a run's identity, share one place: they are
        added as they come.
        """
        one = Subtotal(upload, _none() if buffers is None else buffers, weight, num_examples, clients=1)
        self._take_one(tree.Part(place, 1, one))

    def leave_out(self, place: int) -> None:
        """Take note that nothing comes of the client at a place."""
        self._take_one(tree.Part(place, 1, None))

    def merge(self, other: WeightedSum) -> None:
        """Add the sum of other clients, which is gone afterwards."""
        parts, other.parts = [*self.parts, *other.parts], []
        self.parts = tree.joined(parts, Subtotal.plus)

    def whole(self) -> Subtotal:
        """Return the sum over a cohort whose clients are all in it, or left out; it is then the only part."""
        total = tree.whole(self.parts, Subtotal.plus)
        self.parts = [tree.Part(0, 1, total)]
        return total or Subtotal()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        held = [part.value for part in self.parts if part.value]
        return sum(tensor.nbytes for one in held for tensor in (*one.uploads.values(), one.buffers))

    def at_rest(self) -> WeightedSum:
        """The same in the host's memory, as it leaves a worker."""
        return WeightedSum([replace(part, value=part.value and _at_rest(part.value)) for part in self.parts])

    def _take_one(self, part: tree.Part[Subtotal]) -> None:
        last = self.parts[-1].first if self.parts else -1
        if part.first == last:
            self.parts[-1] = replace(self.parts[-1].with_right(part, Subtotal.plus), places=1)
        elif part.first > last:
            tree.append(self.parts, part, Subtotal.plus)
        else:
            self.parts = tree.joined([*self.parts, part], Subtotal.plus)


def _at_rest(one: Subtotal) -> Subtotal:
    return replace(one, uploads=at_rest(one.uploads), buffers=to_host(one.buffers))
