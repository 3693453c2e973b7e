"""Files that are there whole or not at all, and folders that one process at a time writes to."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.base.errors import ResourceError, RunFolderError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write to a temporary name beside ``path``, flush to disk, rename."""
    temporary = _beside(path)
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _beside(path: Path) -> Path:
    """The temporary name of what is about to be put at ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def refuse_links(folder: Path) -> None:
    """Raise :class:`RunFolderError` for a symbolic link in a folder, which may have come from a stranger.

    Through one, what is written there would be written, and what is cleared away deleted, at another place.
    """
    for link in _links(folder):
        raise RunFolderError(f"{link} is a symbolic link; a folder that is written to holds none: put there what it is")


def _links(folder: Path | str) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:  # gone meanwhile, or not ours to read
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif entry.is_dir():
                yield from _links(entry.path)


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link costs nothing; between file systems a copy does as well. What is there already stays."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        temporary = _beside(target)
        try:
            shutil.copyfile(source, temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A disk that is full, or fails, as a :class:`ResourceError` that says how a run in ``folder`` goes on."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ResourceError(
            f"{error.filename or folder} cannot be written ({reason}); the last checkpoint is kept: make room, then "
            f"continue with: fedskew resume {shlex.quote(str(folder))}"
        ) from error


def remove_left_behind(folder: Path) -> None:
    """What a killed process was about to rename; to be called by the one that may write here."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock ``path``, a file in the folder that it guards; wait for it for ``patience`` seconds.

    Raises :class:`RunFolderError` if another process holds it still. The kernel lets go of a dead process's locks.
    """
    deadline = time.monotonic() + patience
    try:
        file = open(path, "a")  # noqa: SIM115  # what a link leads to is not emptied
    except OSError as error:
        raise RunFolderError(f"{path} cannot be opened ({error.strerror})") from None
    with file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() >= deadline:
                    raise RunFolderError(
                        f"{path.parent} is being written by another process; wait for it or end it"
                    ) from None
                time.sleep(0.2)
        yield
