"""Files that are there whole or not at all, and folders that one process at a time writes to."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from engine.base.errors import Busy, DataError, RunFolderError, WriteError
from engine.base.opening import NotAFile, regular

ASIDE = ".damaged"  # ends the name of what was put out of the way, since it cannot be read


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write to a temporary name beside ``path``, flush to disk, rename."""
    temporary = beside(path)
    try:
        with open(temporary, "wb", opener=regular) as file:
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def beside(path: Path) -> Path:
    """Return the temporary name for a file that is about to be put at ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def expanded(path: str, field: str) -> Path:
    """Return ``path`` with the user's home folder for ``~``; ``field`` is named where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise DataError(f"{field}={path}: names no folder ({str(error).rstrip('.')}); give the whole path") from None


def holds_results(folder: Path) -> bool:
    """Return whether ``folder`` is that of a run or a sweep, whatever has become of it."""
    return any(os.path.lexists(folder / name) for name in ("sweep.yaml", "experiment.yaml"))


def refuse_links(folder: Path, deep: bool = True) -> None:
    """Raise :class:`RunFolderError` for a symbolic link in a folder, which may have come from a stranger.

    Through such a link files would be read, and shown or sent on, written or deleted that lie at another place.
    ``deep``: also in the folders below it.
    """
    for link in _links(folder, deep):
        raise RunFolderError(f"{link} is a symbolic link; the folder of results holds none: put there what it is")


def _links(folder: Path | str, deep: bool) -> Iterator[Path]:
    with suppress(OSError), os.scandir(folder) as entries:  # gone meanwhile, or not ours to read
        for entry in entries:
            if entry.is_symlink():
                yield Path(entry.path)
            elif deep and entry.is_dir():
                yield from _links(entry.path, deep)


def link_or_copy(source: Path, target: Path) -> None:
    """Put ``source`` at ``target`` too, as a hard link or, between file systems, a copy; an existing target stays."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        temporary = beside(target)
        try:
            shutil.copyfile(source, temporary)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn the errors of a full or failing disk into a :class:`WriteError` that says how to resume ``folder``."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NotAFile):
            raise RunFolderError(f"{error.filename} cannot be written: {error}; move it away and resume") from None
        raise not_written(error, folder) from error


def not_written(error: OSError, folder: Path) -> WriteError:
    """Return ``error`` as a sentence that says how to resume the run or sweep in ``folder``."""
    return WriteError(error.filename or folder, os.strerror(error.errno) if error.errno else str(error), folder)


def set_aside(path: Path) -> Path:
    """Rename what stands at ``path`` to ``NAME.damaged``, or ``NAME.damaged-2`` and so on; the new path.

    So nothing that somebody may still want is deleted, and what belongs there can be written.
    """
    number, target = 1, path.with_name(f"{path.name}{ASIDE}")
    while os.path.lexists(target):
        number, target = number + 1, path.with_name(f"{path.name}{ASIDE}-{number + 1}")
    path.rename(target)
    return target


@contextmanager
def locked(path: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock ``path``, a file in the folder that it guards, after waiting for it up to ``patience`` seconds.

    Raises :class:`Busy` if another process still holds it, and :class:`RunFolderError` where the file system has no
    locks. The kernel releases a dead process's locks.
    """
    deadline = time.monotonic() + patience
    while (file := _held(path)) is None:
        if time.monotonic() >= deadline:
            raise Busy(f"{path.parent} is being written by another process; wait for it or end it")
        time.sleep(0.2)
    with file:
        yield


def _held(path: Path) -> TextIO | None:
    """Return the lock ``path``, open and held; None if another process holds it, or has just put it away."""
    try:
        file = open(path, "a", opener=regular)  # noqa: SIM115  # what a link leads to is not emptied
    except OSError as error:
        raise RunFolderError(f"{path} cannot be opened ({error.strerror})") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A run that is cleared or put aside takes its lock along: who waited for that one would hold another's file.
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):  # another process holds it; it was put away
        pass
    except OSError as error:  # ENOLCK, ENOSYS, EOPNOTSUPP: of some network and container file systems
        file.close()
        raise RunFolderError(
            f"{path.parent} cannot be locked ({error.strerror}); put it on a disk with locks"
        ) from None
    file.close()
    return None
