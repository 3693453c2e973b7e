"""Client state between participations: read at the start of a round, replaced when the round commits.

A state is a dictionary of tensors per client. Two stores with one interface:

* ``MemoryStore`` holds handles: tensors in this process, or Ray object references that the driver owns and only the
  actors ever open. States are written to disk only by checkpoints.
* ``DiskStore`` writes every committed state to a file and keeps a bounded cache of recently used ones.

Files are named by the SHA-256 of their content (one safetensors file per state), so a checkpoint is a list of names
and costs only what changed since the one before.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import safetensors

from engine.algorithm import Tensors
from engine.base.errors import RunFolderError
from engine.base.files import write_atomically
from engine.base.opening import read_bytes
from engine.base.owned import owned
from engine.client.messages import Handle
from engine.record.shapes import STATES
from engine.record.tensor_files import decoded, encoded


class States(ABC):
    """The states of all clients that have taken part so far."""

    def __init__(self, folder: Path, fetch: Callable[[Handle], Tensors]) -> None:
        self.folder = folder
        self.fetch = fetch
        self.files: dict[int, str] = {}  # client -> SHA-256 of its state as last written

    @abstractmethod
    def read(self, ids: Iterable[int]) -> list[Handle | None]:
        """Return handles to the states at the start of a round; None for a client's first participation."""

    @abstractmethod
    def commit(self, states: Mapping[int, Handle]) -> None:
        """Replace the states of a round's cohort, all at once, after the round has succeeded."""

    @abstractmethod
    def save(self) -> dict[int, str]:
        """Write what changed; return client -> SHA-256 of all states."""

    @abstractmethod
    def restore(self, files: Mapping[int, str]) -> None:
        """Go back to what :meth:`save` returned."""

    def prune(self, live: Iterable[str]) -> None:
        """Delete the states that no kept checkpoint names."""
        live = {*live, *self.files.values()}
        for path in owned(self.folder, STATES):
            if path.stem not in live:
                path.unlink(missing_ok=True)

    def _write(self, state: Tensors) -> str:
        content = encoded({name: tensor.clone() for name, tensor in state.items()})  # none share memory
        digest = hashlib.sha256(content).hexdigest()
        path = self.folder / f"{digest}.safetensors"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        return digest

    def load(self, digest: str) -> Tensors:
        """Read and verify the state in the file of that name; :class:`RunFolderError` if it is damaged."""
        path = self.folder / f"{digest}.safetensors"
        try:
            content = read_bytes(path)
        except OSError as error:
            raise RunFolderError(f"client state {path.name} cannot be read: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise RunFolderError(f"client state {path.name} is damaged: its content does not match its name")
        try:
            return decoded(content)[0]
        except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:  # it was written so
            raise RunFolderError(f"client state {path.name} is damaged ({error})") from None


class MemoryStore(States):
    def __init__(self, folder: Path, fetch: Callable[[Handle], Tensors]) -> None:
        super().__init__(folder, fetch)
        self._handles: dict[int, Handle] = {}
        self._changed: set[int] = set()

    def read(self, ids: Iterable[int]) -> list[Handle | None]:
        return [self._handles.get(client) for client in ids]

    def commit(self, states: Mapping[int, Handle]) -> None:
        self._handles.update(states)
        self._changed.update(states)

    def save(self) -> dict[int, str]:
        for client in sorted(self._changed):
            self.files[client] = self._write(self.fetch(self._handles[client]))
        self._changed.clear()
        return dict(self.files)

    def restore(self, files: Mapping[int, str]) -> None:
        self.files = dict(files)
        self._handles = {client: self.load(digest) for client, digest in files.items()}
        self._changed.clear()


class DiskStore(States):
    def __init__(self, folder: Path, fetch: Callable[[Handle], Tensors], cache_mb: int) -> None:
        super().__init__(folder, fetch)
        self._cache: OrderedDict[str, Tensors] = OrderedDict()
        self._cached_bytes = 0
        self._limit = cache_mb * 2**20

    def read(self, ids: Iterable[int]) -> list[Handle | None]:
        return [self._open(self.files[client]) if client in self.files else None for client in ids]

    def commit(self, states: Mapping[int, Handle]) -> None:
        for client, handle in states.items():
            state = self.fetch(handle)
            self.files[client] = self._write(state)
            self._keep(self.files[client], state)

    def save(self) -> dict[int, str]:
        return dict(self.files)

    def restore(self, files: Mapping[int, str]) -> None:
        self.files = dict(files)

    def _open(self, digest: str) -> Tensors:
        if digest not in self._cache:
            self._keep(digest, self.load(digest))
        self._cache.move_to_end(digest)
        return self._cache[digest]

    def _keep(self, digest: str, state: Tensors) -> None:
        if digest not in self._cache:
            self._cache[digest] = state
            self._cached_bytes += _bytes(state)
        while self._cached_bytes > self._limit and len(self._cache) > 1:
            _, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= _bytes(dropped)


def _bytes(state: Tensors) -> int:
    return sum(tensor.nbytes for tensor in state.values())
