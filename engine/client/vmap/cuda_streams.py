"""Lanes: streams of their own, on which the captured steps of several clients are replayed at the same time.

One client's step leaves much of a GPU idle. Steps of different clients have no order, so those of each client go to a
lane, and what the GPU has room for it does at once. A lane has memory, graphs and a pool of its own, since two graphs
that run at the same time may share none of them.

Steps alone are in a lane. All else, like drawing and fetching rows or the start and the end of a phase, stays on the
present stream: a step comes after what was asked for there before it, and whoever reads what steps have written joins
the lane first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Lane:
    """A stream beside the present one."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)

    @contextmanager
    def after(self, read: Iterable[Tensor] = ()) -> Iterator[None]:
        """Put work within into the lane, after all that the present stream has to do.

        read: tensors of the present stream that the work reads, and that may be dropped before it has done so.
        """
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        for tensor in read:
            tensor.record_stream(self.stream)
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the present stream wait for all that is in the lane."""
        torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


def in_turn(clients: Sequence[Iterator[Iterator[None]]]) -> None:
    """Take the first step of each, then the second of each, as long as there are any; phase by phase.

    So every lane has work from the beginning, however far the host is ahead of the GPU. All clients are in one phase at
    a time, for the modules of the network are in one mode.

    clients: of each, or of each block in one pass, its phases, and of a phase its steps, which are taken by going on.
    """
    for phase in zip(*clients, strict=True):
        left = list(phase)
        while left:
            left = [steps for steps in left if next(steps, _ENDED) is not _ENDED]


_ENDED = object()
