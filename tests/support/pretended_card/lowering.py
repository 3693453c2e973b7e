"""From tensors on the card to the CPU's numbers, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.support.pretended_card.operation import Operation, mapped, tensors
from tests.support.pretended_card.tensor import OnCard, block_of, plain, wrapped

CPU = torch.device("cpu")


def below(bases: dict[int, OnCard], value: Any) -> Any:
    """One argument as the CPU's operation takes it; ``bases`` gets the tensors, by the storages of their numbers."""
    if type(value) is OnCard:
        block = block_of(value)
        bases.setdefault(block.key, value)
        return plain(value, block)
    return CPU if isinstance(value, torch.device) else value


def above(
    op: Operation, args: Any, kwargs: Any, found: Any, bases: dict[int, OnCard], made: Callable[[Tensor], OnCard]
) -> Any:
    """What an operation returns, on the card: what it has written as it was given, views on their base's storage.

    made: puts numbers of a storage of their own on the card.
    """
    if op.only_writes:
        for one, numbers in zip(op.given_to_write(args, kwargs), results(found), strict=False):
            if one.shape != numbers.shape:
                raise RuntimeError(f"the pretended card cannot do {op.name} into a tensor of another shape")
        return op.returned_of(args, kwargs)

    def raised(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        base = bases.get(value.untyped_storage()._cdata)
        return made(value) if base is None else wrapped(value, base)

    return mapped(raised, found)


def results(found: Any) -> list[Tensor]:
    """The tensors that an operation returned."""
    return [found] if isinstance(found, Tensor) else tensors(found or ())
