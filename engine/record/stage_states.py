"""Clients' states in the stage that is under way, and what clients new to it kept of the stage before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.algorithm import Tensors
from engine.client.messages import Handle
from engine.experiment import Execution
from engine.record.states import DiskStore, MemoryStore, States


def open_states(folder: Path, fetch: Callable[[Handle], Tensors], execution: Execution) -> States:
    """An empty store of the kind that ``execution.state_store`` asks for, with its files in ``folder``."""
    if execution.state_store == "disk":
        return DiskStore(folder, fetch, execution.state_cache_mb)
    return MemoryStore(folder, fetch)


class StageStates:
    """The states of a stage, by client. ``inherited``: client -> SHA-256 of what it kept of the stage before."""

    def __init__(self, store: States, inherited: Mapping[int, str]) -> None:
        self.store = store
        self.joined: set[int] = set()  # clients that have a state of this stage
        self._inherited = dict(inherited)

    def read(self, ids: Sequence[int]) -> list[Handle | None]:
        """Handles as of the round's start; of a client new to the stage, what it kept of the stage before."""
        own = zip(ids, self.read_own(ids), strict=True)
        return [handle if client in self.joined else self._load_inherited(client) for client, handle in own]

    def read_own(self, ids: Sequence[int]) -> list[Handle | None]:
        """Handles of this stage alone; None of a client that has not taken part in it."""
        handles = zip(ids, self.store.read(ids), strict=True)
        return [handle if client in self.joined else None for client, handle in handles]

    def are_new(self, ids: Sequence[int]) -> tuple[bool, ...]:
        """For each client whether it has not taken part in this stage yet."""
        return tuple(client not in self.joined for client in ids)

    def commit(self, states: Mapping[int, Handle]) -> None:
        """Replace the states of a round's cohort, all at once, after the round has succeeded."""
        self.store.commit(states)
        self.joined.update(states)

    def restore(self, files: Mapping[int, str]) -> None:
        """Go back to the files that a checkpoint names."""
        self.store.restore(files)
        self.joined = set(files)

    def files(self, has_rounds: bool) -> dict[int, str]:
        """Client -> SHA-256 of its state, as of the last that were written.

        A stage without rounds changes nobody's, and hands them on: the stage after it may ask for them.
        """
        return self.store.files if has_rounds else self._inherited | self.store.files

    def _load_inherited(self, client: int) -> Handle | None:
        return self.store.load(self._inherited[client]) if client in self._inherited else None
