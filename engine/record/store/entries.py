"""A store's entries: published whole, verified when they are read."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from engine.base.files import link_or_copy
from engine.base.opening import regular
from engine.record.store.folder import WANTED, StoreFolder, numbered, token
from engine.record.store.manifest import MANIFEST, content_of, described, files_of

log = logging.getLogger("fedskew")


class Entries:
    """Entries by key and round; see :class:`~engine.record.store.StageStore` for the methods of the same names."""

    def __init__(self, folder: StoreFolder) -> None:
        self._folder = folder

    def rounds(self, key: str) -> list[int]:
        folder = self._folder.key_folder(key)
        with self._folder.explained():
            return [round for round in numbered(folder) if (folder / f"{round:06d}" / MANIFEST).exists()]

    def open(self, key: str, round: int) -> Path | None:
        entry = self._folder.entry(key, round)
        with self._folder.explained():
            return entry if self._verify(entry, entry, key, round) else None

    def fetch(self, key: str, round: int, target: Path) -> bool:
        entry = self._folder.entry(key, round)
        copy = target.with_name(f".{target.name}.{token()}.tmp")
        with self._folder.explained():
            try:
                for file in files_of(entry):
                    link_or_copy(entry / file, copy / file)
                if not self._verify(entry, copy, key, round):
                    return False
                (copy / MANIFEST).unlink()
                os.rename(copy, target)
                return True
            except FileNotFoundError:  # evicted meanwhile
                return False
            finally:
                shutil.rmtree(copy, ignore_errors=True)

    def publish(self, key: str, round: int, write: Callable[[Path], None]) -> int | None:
        """Store what ``write`` puts into the folder it is given; its bytes, None if there is such an entry already."""
        entry = self._folder.entry(key, round)
        with self._folder.explained():
            if (entry / MANIFEST).exists():
                return None
            # What is there and is no entry nobody would use, and it would be in the way.
            if entry.exists() and self._folder.manifest(entry) is None:
                self._folder.put_away(entry)
            folder = self._folder.temporary()
            try:
                folder.mkdir()
                write(folder)
                manifest = described(folder, key, round)
                size = (folder / MANIFEST).write_text(json.dumps(manifest))
                size += sum(length for length, _ in manifest["files"].values())
                for path in [*folder.rglob("*"), folder]:
                    _sync(path)
                if not self._folder.put(folder, entry):
                    return None
                _sync(entry.parent)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return size

    def discard(self, key: str, round: int) -> None:
        entry = self._folder.entry(key, round)
        with self._folder.explained():
            self._folder.drop_entry(entry)

    def want(self, key: str, round: int) -> None:
        entry = self._folder.entry(key, round)
        with self._folder.explained():
            self._folder.create_in(entry.parent, entry.with_name(f"{WANTED}{entry.name}").touch)

    def wanted(self, key: str) -> frozenset[int]:
        folder = self._folder.key_folder(key)
        with self._folder.explained():
            return frozenset(numbered(folder, WANTED))

    def _verify(self, entry: Path, content: Path, key: str, round: int) -> bool:
        """Compare ``content``, the entry or a copy of it, with its manifest.

        True: the entry counts as used now. False: it is gone.
        """
        try:
            told = content_of(content)
            whole = told is not None and told == described(content, key, round)
        except FileNotFoundError:
            whole = False
        if whole:
            with contextlib.suppress(OSError):  # evicted meanwhile, or a store that may only be read
                os.utime(entry / MANIFEST)
        elif self._folder.put_away(entry):
            log.warning("stored round %d of %s was damaged; it is put away and computed again", round, entry.parent)
        return whole


def _sync(path: Path) -> None:
    descriptor = regular(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
