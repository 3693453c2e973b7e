"""Generators of the card: of their own numbers, and no other's may draw there.

What they draw are not CUDA's numbers. A card's global generator has a state of its own, which nothing that is drawn on
the CPU moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.support.pretended_card.backend import DEVICE, is_card

OfTorch = torch.Generator


class CardGenerator(OfTorch):
    """A generator that was asked for on the card."""

    device = DEVICE  # type: ignore[assignment]


class _Kind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, OfTorch)


class Generator(metaclass=_Kind):
    """``torch.Generator`` while there is a card."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if not is_card(device):
            return OfTorch(device)
        made = CardGenerator()
        Generators.present.own[made._cdata] = made  # type: ignore[attr-defined]
        return made


class Generators:
    """The card's generators."""

    present: Generators

    def __init__(self) -> None:
        self.own: dict[int, CardGenerator] = {}  # torch hands operations a new object for the same generator
        self._global = OfTorch().manual_seed(torch.default_generator.initial_seed() % 2**63)

    def given(self, func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
        """Return whether an operation on the card has a generator. Raises RuntimeError if it is the CPU's."""
        found = [one for one in (*args, *kwargs.values()) if isinstance(one, OfTorch)]
        if any(one._cdata not in self.own for one in found):  # type: ignore[attr-defined]
            raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu', in {func}")
        return bool(found)

    def state(self, *_: Any) -> Tensor:
        return self._global.get_state()

    def set_state(self, state: Tensor, *_: Any) -> None:
        self._global.set_state(state)

    def seed(self, seed: int) -> None:
        self._global.manual_seed(seed)

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Let the CPU's kernels draw from the card's global generator within."""
        cpu = torch.default_generator
        before = cpu.get_state()
        cpu.set_state(self._global.get_state())
        try:
            yield
        finally:
            self._global.set_state(cpu.get_state())
            cpu.set_state(before)
