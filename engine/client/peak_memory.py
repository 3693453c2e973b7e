"""The most memory that a worker's process comes to while it trains, measured where it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.base import devices
from engine.base.errors import MemoryShort, ResourceError

USABLE = 0.95  # of the memory
CONTEXT = 512 * 2**20  # bytes of a card that CUDA takes in each process


@dataclass(frozen=True)
class PeakMemory:
    """The most memory that a worker came to."""

    needed: int  # bytes that are its own
    total: int  # bytes of the card, or of the machine

    @property
    def fitting(self) -> int:
        """The number of such workers that fit side by side."""
        return int(USABLE * self.total // self.needed)


def measure_peak(trial: Callable[[], None], device: str) -> PeakMemory:
    """Run ``trial`` and return the peak of this process meanwhile, with what it held before.

    Memory shared with other processes is not counted. Raises :class:`ResourceError` where the card is too small.
    """
    total = devices.memory(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        try:
            trial()
        except (torch.OutOfMemoryError, MemoryShort) as error:
            reason = str(error.__cause__ or error).split(". ")[0]
            raise ResourceError(
                f"a client's step does not fit on the card with what else is there ({reason}); "
                "lower local.batch_size, execution.lanes or the number of actors on the card"
            ) from None
        return PeakMemory(torch.cuda.max_memory_reserved() + CONTEXT, total)
    before, own = devices.resident()
    trial()
    return PeakMemory(own + max(0, devices.most_resident() - before), total)
