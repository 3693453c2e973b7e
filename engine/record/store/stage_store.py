"""The stage store as runs and sweeps use it.

An *entry* is a folder of files under a key and a round; what is in them is the caller's business.

    <store>/fedskew-store.json         makes the folder a store; see folder.py for what is deleted, and how
    <store>/ab/abcd.../000030/         an entry: its files, and manifest.json with their sizes and SHA-256
    <store>/ab/abcd.../lease-000002    the second lease on this key, rewritten by its holder at every beat
    <store>/ab/abcd.../wanted-000050   somebody will go on from round 50
    <store>/temporary/                 entries on their way in and out
    <store>/tally/                     the total size, kept without looking at the entries

What it relies on: rename is atomic, a rename onto a folder that is not empty fails, and only one process can create a
file that must not exist. No file locks, and no two machines' clocks: ages are differences of modification times on the
one file system, patience is counted by the clock of the one who waits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine.base.writable import check_writable
from engine.record.store.entries import Entries
from engine.record.store.folder import MARKER, StoreFolder
from engine.record.store.leases import Holder, Lease, Leases, Watch
from engine.record.store.size import SizeLimit


class StageStore:
    """Entries by key and round; leases on keys. Every process has its own object on the same folder.

    Every method raises :class:`RunFolderError` where the folder cannot be used.
    """

    def __init__(
        self, path: Path, limit_bytes: int = 20 * 2**30, heartbeat: float = 5.0, patience: float = 30.0
    ) -> None:
        """Open the store in ``path``, which need not exist: the first to write there makes it.

        Raises :class:`RunFolderError` for a folder that holds something else.

        limit_bytes: size above which entries are evicted. heartbeat: seconds between a holder's beats. patience:
        seconds without a beat after which a holder is given up.
        """
        self.path = path
        self.limit_bytes = limit_bytes
        self.heartbeat = heartbeat
        self.patience = patience
        self._folder = folder = StoreFolder(path)
        folder.check()
        self._entries = Entries(folder)
        self._leases = Leases(folder, heartbeat, patience)
        self._size = SizeLimit(folder, self._leases, limit_bytes)

    @property
    def mark(self) -> Path:
        """The file that makes the folder a store."""
        return self.path / MARKER

    def make(self) -> None:
        """Make the folder a store before anything is put there."""
        with self._folder.explained():
            self._folder.make()

    def rounds(self, key: str) -> list[int]:
        """List the rounds with an entry that looks whole, ascending."""
        return self._entries.rounds(key)

    def longest(self, key: str, above: int, at_most: int) -> int | None:
        """Return the largest stored round in (above, at_most]."""
        return max((round for round in self.rounds(key) if above < round <= at_most), default=None)

    def open(self, key: str, round: int) -> Path | None:
        """Return an entry's folder, verified; None if it is not there or was damaged. It may be evicted at any time."""
        return self._entries.open(key, round)

    def fetch(self, key: str, round: int, target: Path) -> bool:
        """Link or copy an entry's files into the new folder ``target``; False, and no folder, if it cannot be had."""
        return self._entries.fetch(key, round, target)

    def publish(self, key: str, round: int, write: Callable[[Path], None]) -> bool:
        """Store what ``write`` puts into the folder it is given; False if there is such an entry already."""
        size = self._entries.publish(key, round, write)
        if size is None:
            return False
        self._size.count(size)
        return True

    def discard(self, key: str, round: int) -> None:
        """Delete an entry, if it is there."""
        self._entries.discard(key, round)

    def want(self, key: str, round: int) -> None:
        """Ask whoever computes this key to publish ``round``, and let it not be evicted for a day."""
        self._entries.want(key, round)

    def wanted(self, key: str) -> frozenset[int]:
        """Return the rounds of this key that somebody has asked for."""
        return self._entries.wanted(key)

    def lease(self, key: str, note: str = "") -> Lease | None:
        """Take the right to compute this key; None while somebody holds it, alive or not (see :meth:`watch`)."""
        return self._leases.take(key, note)

    def holder(self, key: str) -> Holder | None:
        """Return who holds the lease of this key; None if nobody does."""
        return self._leases.holder(key)

    def watch(self, key: str) -> Watch:
        """Begin to wait for the lease of this key."""
        return Watch(self._leases, key)

    def size(self) -> int:
        """Return the bytes of all entries; files that are linked into several ones count once."""
        return self._size.measure()


def check_store(path: Path) -> None:
    """Refuse what ``--store`` names if it cannot be written or holds something else; nothing is made."""
    check_writable(path, "--store")
    StageStore(path.resolve())
