"""The store's folder: where things lie in it, and the few operations on files that all of it is made of."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from engine.base.errors import RunFolderError

KEY = re.compile(r"[A-Za-z0-9_-]{1,200}")
LEASE, WANTED = "lease-", "wanted-"
MANIFEST = "manifest.json"
TEMPORARY, TALLY = "temporary", "tally"  # folders beside those of keys


class StoreFolder:
    """The folder of one store."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self) -> None:
        """Refuse a folder that something else lies in: what is old there, or too much, would be deleted."""
        with contextlib.suppress(OSError), os.scandir(self.path) as found:  # those are told where they matter
            for one in found:
                ours = one.name in (TEMPORARY, TALLY) or len(one.name) <= 2
                if one.is_symlink() or (one.is_dir() and not ours and not one.name.startswith(".")):
                    raise RunFolderError(
                        f"store {self.path} holds something else ({one.name}); name a folder of its own with --store"
                    )

    def key_folder(self, key: str) -> Path:
        """Return the folder of a key; ValueError for one that is no name."""
        if not KEY.fullmatch(key):
            raise ValueError(f"key={key!r}: letters, digits, - and _ only, 200 at most")
        return self.path / key[:2] / key

    def key_folders(self) -> Iterator[Path]:
        """Yield the folders of all keys."""
        for pattern in ("?/*", "??/*"):
            yield from (folder for folder in self.path.glob(pattern) if not folder.is_symlink())

    def entry(self, key: str, round: int) -> Path:
        """Return the folder of an entry; ValueError for a key or a round that is none."""
        if round < 0:
            raise ValueError(f"round={round}: must not be negative")
        return self.key_folder(key) / f"{round:06d}"

    def temporary(self) -> Path:
        """Make up a name for a folder that nobody looks into."""
        (self.path / TEMPORARY).mkdir(parents=True, exist_ok=True)
        return self.path / TEMPORARY / token()

    def drop(self, folder: Path) -> bool:
        """Delete a folder, renamed first, so that nobody sees a part of it; False if it was not there."""
        if not folder.exists():
            return False
        away = self.temporary()
        try:
            os.rename(folder, away)
        except FileNotFoundError:
            return False
        shutil.rmtree(away, ignore_errors=True)
        return True

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an OSError into a :class:`RunFolderError` that says what to do about it."""
        try:
            yield
        except OSError as error:
            what = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
            raise RunFolderError(
                f"store {self.path} cannot be used ({what}); free space there or make it writable, choose another "
                "folder with --store, or do without it with --no-reuse"
            ) from error


def token() -> str:
    """Make up a name that no other process has."""
    return uuid.uuid4().hex


def numbered(folder: Path, prefix: str = "") -> list[int]:
    """List the numbers of the names in a folder that are ``prefix`` and a number, ascending; [] if it is not there."""
    try:
        rests = [name.removeprefix(prefix) for name in os.listdir(folder) if name.startswith(prefix)]
    except FileNotFoundError:
        return []
    return sorted(int(rest) for rest in rests if rest.isdecimal())


def files_of(folder: Path) -> list[Path]:
    """List all files in a folder and below, relative to it, in order."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def modified(path: Path) -> float:
    """Return the time of modification by the clock of the file system; long ago if it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def put(folder: Path, place: Path) -> bool:
    """Rename a folder; False if there is one already."""
    try:
        in_folder(place.parent, lambda: os.rename(folder, place))
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def in_folder(folder: Path, create: Callable[[], None]) -> None:
    """Create something in a folder, which may be there or not, or be swept away at this moment."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        create()
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        create()
