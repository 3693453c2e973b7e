"""Tensors on the pretended card: wrappers without numbers, whose storages stand for storages of the CPU.

A wrapper's storage has no memory. It carries a :class:`Block`, by which all tensors that share the storage find the
same numbers: views, parameters whose ``data`` was set, results of in-place operations. So aliasing is a card's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.support.pretended_card.backend import DEVICE, NAME, is_card
from tests.support.pretended_card.order import Use


@dataclass(eq=False)
class Block:
    """The memory behind a storage of the card; it lives as long as that storage does."""

    numbers: torch.UntypedStorage  # of the CPU
    use: Use
    key: int = field(init=False)  # of the CPU's storage

    def __post_init__(self) -> None:
        self.key = self.numbers._cdata

    def __del__(self) -> None:
        self.use.end()


class OnCard(Tensor):
    """A tensor on the card. Python code sees the device "cuda:0"; torch's own code sees the spare backend."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return DEVICE

    is_cuda = property(lambda self: True)  # type: ignore[assignment]

    def to(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """As torch's: a tensor that is on the card already is no copy, by whichever name it is asked for."""
        kwargs = {name: _own_name(value) for name, value in kwargs.items()}
        return super().to(*map(_own_name, args), **kwargs)

    def cuda(self, device: Any = None, non_blocking: bool = False, **_: Any) -> Tensor:  # type: ignore[override]
        return self.to(DEVICE)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def record_stream(self, stream: Any) -> None:
        """Let the memory be kept until the work that is now on ``stream`` is done, though the tensor goes before."""
        block_of(self).use.kept_for(stream)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"OnCard({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} of a tensor on the pretended card, which is gone")


def _own_name(value: Any) -> Any:
    """A device by the name that torch's own code compares with."""
    is_device = isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] == "cuda")
    return torch.device(NAME, 0) if is_device and is_card(value) else value


def block_of(tensor: OnCard) -> Block:
    return tensor.untyped_storage().block  # type: ignore[attr-defined]


def plain(tensor: OnCard, block: Block) -> Tensor:
    """The numbers of a tensor on the card, on the CPU: a view, not a copy."""
    with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
        return torch.empty(0, dtype=tensor.dtype).set_(
            block.numbers, tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def wrapped(numbers: Tensor, base: OnCard | None, use: Use | None = None) -> OnCard:
    """A tensor on the card with these numbers: of a new storage, or on the storage of ``base``."""
    made = Tensor._make_wrapper_subclass(
        OnCard,
        numbers.size(),
        numbers.stride(),
        numbers.storage_offset(),
        dtype=numbers.dtype,
        device=torch.device(NAME, 0),
    )
    if base is not None:
        torch._functionalize_unsafe_set(made, base)  # type: ignore[attr-defined]
    else:
        made.untyped_storage().block = Block(numbers.untyped_storage(), use or Use())  # type: ignore[attr-defined]
    return made
