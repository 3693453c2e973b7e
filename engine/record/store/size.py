"""The limit to a store's size: the least recently used entries are evicted.

``tally/`` holds a file ``total`` and one empty file per entry published since, named by its size. Whoever renames
``total`` may change it: it adds the sizes up and, above the limit, looks at all entries, corrects the total and makes
room. Nobody waits for that: one who finds ``total`` taken goes on, and the one who has it looks again after putting it
back. Discarded entries and files linked into several ones make the total too large, never too small, so that the limit
holds.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.base.opening import read_text, regular
from engine.base.owned import TOKEN
from engine.record.store.folder import TALLY, TEMPORARY, WANTED, StoreFolder, modified, numbered, token
from engine.record.store.leases import Leases
from engine.record.store.manifest import MANIFEST

ADDED, HELD, TOTAL = "added-", "held-", "total"
ROOM = 0.1  # share of the limit that an eviction leaves free, so that the next one is not due at once
ABANDONED = 24 * 3600.0  # seconds after which a folder that nobody touches was left by a process that is gone


@dataclass(frozen=True, eq=False)
class StoredEntry:
    """An entry as eviction sees it."""

    path: Path
    in_use: bool  # somebody computes its key, or wants it
    used: float  # last, by the clock of the file system
    files: dict[tuple[int, int], int]  # (device, inode) -> bytes


class SizeLimit:
    """Keeps the entries of a store within ``limit_bytes``."""

    def __init__(self, folder: StoreFolder, leases: Leases, limit_bytes: int) -> None:
        self._folder = folder
        self._leases = leases
        self._limit_bytes = limit_bytes
        self._tally = folder.path / TALLY
        self._swept = False

    def measure(self) -> int:
        """Add up the bytes of all entries; files that are linked into several ones count once."""
        with self._folder.explained():
            return _bytes_of(self.entries(now=0.0))

    def count(self, added: int) -> None:
        """Take a new entry of so many bytes into account; evict others if that is too much."""
        with self._folder.explained():
            if not self._tally.exists():
                folder = self._folder.temporary()
                folder.mkdir()
                (folder / TOTAL).touch()  # empty: to be measured
                if not self._folder.put(folder, self._tally):
                    shutil.rmtree(folder)
            with open(self._tally / f"{ADDED}{added}-{token()}", "x", opener=regular) as mark:
                now = os.fstat(mark.fileno()).st_mtime  # by the clock of the file system
            if not self._swept:
                self._swept = True
                self._sweep_temporary(now)
            while (total := self._take_total(now)) is not None:
                with contextlib.suppress(FileNotFoundError):  # another process thought that this one was gone
                    self._settle(total, now)
                if not marks_in(self._tally):
                    break

    def _settle(self, total: Path, now: float) -> None:
        marks = marks_in(self._tally)
        try:
            size = int(read_text(total)) + sum(int(mark.split("-")[1]) for mark in marks)
        except ValueError:
            size = None
        if size is None or size > self._limit_bytes:
            size = self.make_room(now)
        with open(total, "r+", opener=regular) as file:
            file.write(f"{size:<24d}")
            file.flush()
            os.fsync(file.fileno())
        for mark in marks:
            (self._tally / mark).unlink(missing_ok=True)
        os.rename(total, self._tally / TOTAL)

    def _take_total(self, now: float) -> Path | None:
        """Rename the file ``total`` so that it is this process's; None while it is another's."""
        mine = self._tally / f"{HELD}{token()}"
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._tally / TOTAL)  # before it is taken, so that it never looks abandoned
            os.rename(self._tally / TOTAL, mine)
            return mine
        for held in self._tally.glob(f"{HELD}*"):
            if not re.fullmatch(HELD + TOKEN, held.name):
                continue
            with contextlib.suppress(FileNotFoundError):
                if now - held.stat().st_mtime > 10 * self._leases.patience:  # killed in the middle of a change
                    os.truncate(held, 0)
                    os.utime(held)
                    os.rename(held, mine)
                    return mine
        return None

    def make_room(self, now: float) -> int:
        """Evict the least recently used entries; return the size of the others.

        Those in use and the latest go last, and only down to the limit itself.
        """
        entries = list(self.entries(now))
        links = Counter(file for entry in entries for file in entry.files)
        size = _bytes_of(entries)
        latest = max(entries, key=lambda entry: entry.used, default=None)
        for entry in sorted(entries, key=lambda entry: (entry.in_use, entry.used, entry.path)):
            if size <= self._limit_bytes * (1.0 if entry.in_use or entry is latest else 1.0 - ROOM):
                break
            self._folder.drop_entry(entry.path)
            links.subtract(entry.files.keys())
            size -= sum(size for file, size in entry.files.items() if links[file] == 0)
        self._sweep_temporary(now)
        unused = (folder for folder in self._folder.key_folders() if not numbered(folder))
        self._sweep(unused, self._folder.drop_key, now)
        return size

    def entries(self, now: float) -> Iterator[StoredEntry]:
        """Look at all entries."""
        for folder in self._folder.key_folders():
            leased = self._leases.is_computed(folder, now)
            for round in numbered(folder):
                path = folder / f"{round:06d}"
                in_use = leased or now - modified(folder / f"{WANTED}{path.name}") < ABANDONED
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    manifest = self._folder.manifest(path)
                    if manifest is None:
                        continue
                    stats = [(path / file).lstat() for file in (*manifest.files, MANIFEST)]
                    files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}
                    yield StoredEntry(path, in_use, modified(path / MANIFEST), files)

    def _sweep_temporary(self, now: float) -> None:
        self._sweep((self._folder.path / TEMPORARY).iterdir(), self._folder.drop_temporary, now)

    def _sweep(self, folders: Iterable[Path], drop: Callable[[Path], object], now: float) -> None:
        """Drop the folders that nobody has touched for a day: half-written entries, keys without entries."""
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                if now - max(path.stat().st_mtime for path in [folder, *folder.rglob("*")]) > ABANDONED:
                    drop(folder)


def marks_in(tally: Path) -> list[str]:
    """List the files that stand for entries published since the total was written."""
    return [name for name in os.listdir(tally) if re.fullmatch(f"{ADDED}[0-9]+-{TOKEN}", name)]


def _bytes_of(entries: Iterable[StoredEntry]) -> int:
    return sum({file: size for entry in entries for file, size in entry.files.items()}.values())
