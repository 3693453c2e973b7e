"""The folder of a Ray that this process starts: the user's alone, and gone when the process ends.

Left to itself, Ray keeps the logs, sockets and spilled objects of each session in a folder below /tmp/ray that
everybody may read and write, and never removes one. Ray opens up the folder that it is given, too, so that it is given
one inside of a folder that nobody else may enter.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import ResourceError
from engine.base.owned import remove_made

PREFIX = "fedskew-{}-"  # with the process's number, by which a parent finds what a dead process has left
INSIDE = "r"  # what Ray is given
# Bytes of a Unix socket's path, and what of them comes behind the folder that ours is made in.
LONGEST = 103 if sys.platform == "darwin" else 107
SOCKET = len(
    f"/{PREFIX.format(4194304)}abcdefgh/{INSIDE}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)
TOKEN = secrets.token_hex(32)  # of each Ray that this process starts: Ray reads one once
GIVEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")  # by which a user names a token
TRIES = 20  # a process of Ray's that is just ending may still write


@dataclass(frozen=True)
class _Folder:
    """A folder that this process has made, recognised by more than its name before it is removed."""

    path: Path
    inode: int
    process: int

    def remove(self) -> None:
        """Remove it, unless it is another one by now, or this is another process."""
        for _ in range(TRIES):
            if os.getpid() != self.process or remove_made(self.path, self.inode):
                return
            time.sleep(0.05)


_made: list[_Folder] = []


@contextmanager
def owned() -> Iterator[dict[str, str]]:
    """Yield the argument by which ``ray.init`` starts its session in a new folder of ours.

    To be called where no Ray runs. The folder goes when this process ends, or when it starts Ray again, and at once if
    Ray does not start. Raises :class:`ResourceError` where no folder's path is short enough for sockets.
    """
    _remove_all()
    folder = make()
    if not _made:
        atexit.register(_close)  # before Ray's own, which has been registered when it was imported
    _made.append(folder)
    try:
        with _own_token(folder.path):
            yield {"_temp_dir": str(folder.path / INSIDE)}  # in ray.init's documentation, with a _ for what may change
    except BaseException:
        _close()
        raise


@contextmanager
def _own_token(folder: Path) -> Iterator[None]:
    """Let the Ray that starts meanwhile have a token in ``folder``, unless the user has set one up.

    Left to itself, Ray writes one into the home folder, which may not be there or not be ours, and by which each Ray
    that ``ray start`` begins later asks for it, too.
    """
    home = os.environ.get("HOME")
    if (home and os.access(Path(home, ".ray", "auth_token"), os.R_OK)) or any(map(os.environ.get, GIVEN)):
        yield
        return
    (folder / "token").write_text(TOKEN, encoding="ascii")
    os.environ[GIVEN[1]] = str(folder / "token")
    try:
        yield
    finally:
        os.environ.pop(GIVEN[1], None)


def make() -> _Folder:
    """Make a folder that this user alone may enter, in which sockets have room."""
    for base in dict.fromkeys((os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "/tmp")):
        if len(os.fsencode(os.path.abspath(base))) + SOCKET > LONGEST:
            continue
        try:
            path = Path(tempfile.mkdtemp(prefix=PREFIX.format(os.getpid()), dir=os.path.abspath(base)))
        except OSError:
            continue
        return _Folder(path, os.lstat(path).st_ino, os.getpid())
    raise ResourceError(
        f"Ray needs a folder for its sockets that can be written, with a path of at most {LONGEST - SOCKET} bytes, and "
        f"{tempfile.gettempdir()} and /tmp are none; set RAY_TMPDIR to one"
    )


def _close() -> None:
    """End the Ray that was started here, if it has not been yet, and remove its folder."""
    if any(folder.process == os.getpid() for folder in _made):
        import ray  # not for who looks for a place alone

        ray.shutdown()
    _remove_all()


def _remove_all() -> None:
    while _made:
        _made.pop().remove()
