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
    """Return the temporary name for a file that is about to be put at ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def refuse_links(folder: Path) -> None:
    """Raise :class:`RunFolderError` for a symbolic link in a folder, which may have come from a stranger.

    Through such a link files would be written, or deleted, at another place.
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
    """Put ``source`` at ``target`` too, as a hard link or, between file systems, a copy; an existing target stays."""
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
    """Turn the errors of a full or failing disk into a :class:`ResourceError` that says how to resume ``folder``."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ResourceError(
            f"{error.filename or folder} cannot be written ({reason}); the last checkpoint is kept: make room, then "
            f"continue with: fedskew resume {shlex.quote(str(folder))}"
        ) from error


def remove_left_behind(folder: Path) -> None:
    """Remove the temporary files of a killed process; to be called by the one that may write in ``folder``."""
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock ``path``, a file in the folder that it guards, after waiting for it up to ``patience`` seconds.

    Raises :class:`RunFolderError` if another process still holds it. The kernel releases a dead process's locks.
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
