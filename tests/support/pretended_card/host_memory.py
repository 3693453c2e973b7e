"""Memory of the host that copies may read or write while the host goes on: pinned memory.

A copy to the card that nobody waits for reads the host's memory some time later. If it was written in the meantime,
the card has a mixture: what the memory holds is compared when the host next knows that the copy is done. A copy from
the card that nobody waits for is NaN until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.support.pretended_card.order import Order, Race


@dataclass
class Underway:
    """A copy that the host has not waited for."""

    stream: Any
    time: int  # on the stream
    host: Tensor  # the host's side
    numbers: Tensor  # what it held, or is to hold
    is_upload: bool
    line: str

    def end(self) -> None:
        if not self.is_upload:
            self.host.copy_(self.numbers)
        elif not torch.equal(_bytes(self.host), _bytes(self.numbers)):
            raise Race(f"pinned memory was written before its copy to the card at {self.line} was waited for")


class HostMemory:
    """Which memory is pinned, and copies that are underway."""

    def __init__(self) -> None:
        self._underway: list[Underway] = []

    def pinned(self, tensor: Tensor) -> Tensor:
        made = tensor.clone(memory_format=torch.contiguous_format)
        made.untyped_storage().is_pinned_for_card = True  # type: ignore[attr-defined]
        return made

    def is_pinned(self, tensor: Tensor) -> bool:
        return getattr(tensor.untyped_storage(), "is_pinned_for_card", False)

    def upload(self, order: Order, stream: Any, host: Tensor, line: str) -> None:
        time = order.act(stream, "a copy", ())
        self._underway.append(Underway(stream, time, host, host.clone(), True, line))

    def download(self, order: Order, stream: Any, host: Tensor, line: str) -> None:
        """``host`` holds the numbers already, and loses them until somebody waits."""
        time = order.act(stream, "a copy", ())
        self._underway.append(Underway(stream, time, host, host.clone(), False, line))
        poison(host)

    def settle(self, order: Order) -> None:
        """End the copies that the host knows to be done."""
        done = [one for one in self._underway if order.is_done(one.stream, one.time)]
        self._underway = [one for one in self._underway if not order.is_done(one.stream, one.time)]
        for one in done:
            one.end()


def poison(tensor: Tensor) -> None:
    """Fill with what nobody takes for a result: NaN, -1, True."""
    if tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.nan if tensor.is_floating_point() else -1)


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
