"""Files opened without waiting, for whatever lies in a folder that somebody may have sent.

In the place of a file there may be a FIFO, a socket or a device: to open one waits for ever, or does something, and to
read one may have no end. So every file of a run, a sweep, a store, a study or a data set is opened here, or looked at
here before a library opens it by its name.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFile(OSError):
    """Something else than a file in a file's place: ``it is a FIFO, not a file``."""

    def __init__(self, path: Path | str, kind: str) -> None:
        super().__init__(errno.EINVAL, f"it is {kind}, not a file", str(path))
        self._kind = kind

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self):  # keeps both parts when the error crosses processes
        return type(self), (self.filename, self._kind)


def regular(path: Path | str, flags: int) -> int:
    """Open a file for ``open(path, mode, opener=regular)``; raises :class:`NotAFile` for what is none.

    A folder, and a file that is not there, are told as ever.
    """
    if not flags & os.O_CREAT or os.path.exists(path):
        check_file(path)  # before it is opened: a device may do something then
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    try:
        _check(path, os.fstat(descriptor))  # it may have been put there meanwhile
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_file(path: Path | str) -> None:
    """Raise :class:`NotAFile` for what is none, and FileNotFoundError where there is nothing; folders pass."""
    _check(path, os.stat(path))


def read_bytes(path: Path | str) -> bytes:
    """Return a file's content; raises OSError."""
    with open(path, "rb", opener=regular) as file:
        return file.read()


def read_text(path: Path | str) -> str:
    """Return a file's content as UTF-8; raises OSError, or ValueError for what is none."""
    with open(path, encoding="utf-8", opener=regular) as file:
        return file.read()


def _check(path: Path | str, found: os.stat_result) -> None:
    if kind := KINDS.get(stat.S_IFMT(found.st_mode)):
        raise NotAFile(path, kind)
