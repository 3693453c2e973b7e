"""Deleting and moving what is the engine's own in a folder, and nothing else.

Who deletes says which names it gives itself: a :class:`Shape`. What has another name, and a link, a pipe or a folder
in the place of a file, is somebody else's. It stays where it is, byte for byte, and so do the folders above it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TOKEN = "[0-9a-f]{32}"  # a name that a process makes up, see engine/record/store/folder.py


@dataclass(frozen=True)
class Shape:
    """Names that the engine gives in a kind of folder, as regular expressions of whole names.

    files: in the order in which they are deleted; of each also the temporary name that it is written under.
    folders: with what is in them, deleted before the files.
    """

    files: tuple[str, ...] = ()
    folders: Mapping[str, Shape] = field(default_factory=dict)

    def rank(self, name: str) -> int | None:
        """Return the place of a file's name in the order of deletion; None for a name that is not the engine's."""
        named = [number for number, pattern in enumerate(self.files) if _matches(pattern, name)]
        return named[0] if named else None

    def content(self, name: str) -> Shape | None:
        """Return the shape of the folder of that name; None for a name that is not the engine's."""
        return next((shape for pattern, shape in self.folders.items() if re.fullmatch(pattern, name)), None)


def owned(folder: Path, shape: Shape) -> Iterator[Path]:
    """Yield the engine's own files in ``folder`` and below, in the order of deletion; none if it is not there."""
    found = list(_entries(folder))
    for pattern, content in shape.folders.items():
        for entry in found:
            if entry.is_dir(follow_symlinks=False) and re.fullmatch(pattern, entry.name):
                yield from owned(Path(entry.path), content)
    ranks = ((shape.rank(entry.name), entry) for entry in found if entry.is_file(follow_symlinks=False))
    ranked = sorted((rank, entry.name) for rank, entry in ranks if rank is not None)
    yield from (folder / name for _, name in ranked)


def clear(folder: Path, shape: Shape) -> None:
    """Delete the engine's own files in ``folder``, and the folders of the shape that are empty then."""
    for path in owned(folder, shape):
        path.unlink(missing_ok=True)
    _remove_empty(folder, shape)


def remove(folder: Path, shape: Shape) -> None:
    """Delete ``folder``, as far as what is in it is the engine's own."""
    clear(folder, shape)
    with suppress(OSError):  # it is not there, or holds something else
        folder.rmdir()


def move(source: Path, target: Path, shape: Shape, back: bool = False) -> None:
    """Move the engine's own files from one folder to another of the same file system, one by one.

    They go in the order of deletion, with ``back`` in the opposite one, so that either way a killed process leaves
    files behind that are about to be deleted, and not those that others rely on.
    """
    paths = list(owned(source, shape))
    for path in reversed(paths) if back else paths:
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    _remove_empty(source, shape)


def remove_left_behind(folder: Path, shape: Shape) -> None:
    """Delete the temporary files of a killed process; to be called by the one that may write in ``folder``."""
    for path in owned(folder, shape):
        if _is_temporary(path.name):
            path.unlink(missing_ok=True)


def remove_made(folder: str | Path, inode: int) -> bool:
    """Delete a folder whose every content is this user's work, recognised by more than its name.

    ``inode``: of the folder when it was made. False if there is something left to delete, as while a process that is
    just ending still writes there; True if it is gone, or another folder has its name by now.
    """
    try:
        found = os.lstat(folder)
    except OSError:
        return True
    if (found.st_ino, found.st_uid) != (inode, os.getuid()):
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return not os.path.lexists(folder)


def _matches(pattern: str, name: str) -> bool:
    target = name[1:].rpartition(".")[0].rpartition(".")[0] if _is_temporary(name) else name
    return re.fullmatch(pattern, target) is not None


def _is_temporary(name: str) -> bool:
    """Return whether a name is one that :mod:`engine.base.files` writes under: .NAME.PROCESS.tmp."""
    return re.fullmatch(r"\..+\.[0-9]+\.tmp", name) is not None


def _remove_empty(folder: Path, shape: Shape) -> None:
    for entry in _entries(folder):
        content = shape.content(entry.name) if entry.is_dir(follow_symlinks=False) else None
        if content is not None:
            _remove_empty(Path(entry.path), content)
            with suppress(OSError):  # it holds something else
                os.rmdir(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []
