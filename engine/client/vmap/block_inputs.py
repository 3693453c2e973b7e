"""The entries that a block's clients have received and keep: what is the same for all once, the rest stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.algorithm import Client, Tensors
from engine.client.vmap.step_memory import Memory


class OwnEntries:
    """Entries of K clients, in tensors that steps may read."""

    def __init__(
        self,
        algorithm: str,
        clients: Sequence[Client],
        received: Sequence[Tensors],
        states: Sequence[Tensors],
        dtype: torch.dtype,
        memory: Memory,
    ) -> None:
        same = shared(received)
        self.shared = {name: memory.whole(f"received {name}", received[0][name]) for name in same}
        own = [{name: tensor for name, tensor in one.items() if name not in same} for one in received]
        own = stacked(f"{algorithm}: what clients receive", own)
        self._received = {name: memory.rows(f"received {name}", tensor) for name, tensor in own.items()}
        kept = stacked(f"{algorithm}: what clients keep", states)
        self._state = {name: memory.rows(f"kept {name}", tensor) for name, tensor in kept.items()}
        class_counts = torch.stack([client.class_counts for client in clients])
        self._class_counts = memory.rows("class counts", class_counts)
        self._examples = memory.rows("examples", class_counts.sum(1).to(dtype))  # without an upload, that is waited for

    def of(self, first: int, last: int) -> tuple[Tensors, Tensors, Tensor, Tensor]:
        """Own entries received, entries kept, numbers of examples [k], class counts [k, C] of clients [first, last)."""
        received, state = (
            {name: tensor[first:last] for name, tensor in own.items()} for own in (self._received, self._state)
        )
        return received, state, self._examples[first:last], self._class_counts[first:last]


def shared(received: Sequence[Tensors]) -> tuple[str, ...]:
    """The names of what all have received as one tensor."""
    return tuple(name for name, tensor in received[0].items() if all(own.get(name) is tensor for own in received))


def stacked(what: str, entries: Sequence[Mapping[str, Any]]) -> Tensors:
    """Stack K clients' entries, each [K, ...]."""
    stacks: Tensors = {}
    for name in {name: None for own in entries for name in own}:
        try:
            stacks[name] = torch.stack([own[name] for own in entries])
        except (KeyError, TypeError, RuntimeError) as error:
            raise TypeError(
                f"{what}: {name!r} is no tensor of one shape for all clients of a block; "
                "say so in requires.no_vmap, and they are trained one by one"
            ) from error
    return stacks
