"""Leases: the right to compute a key, which outlives nobody.

The lease of a key is the one with the highest number. A number is created once, by whoever finds the one before
released or expired, and after that written only by its holder: nobody ever renames, overwrites or removes a lease
that may be another's. So the last one stays where it is when it is released.
"""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from engine.base.opening import read_bytes, regular
from engine.base.processes import is_over, this_process
from engine.record.store.folder import LEASE, StoreFolder, modified, numbered, token


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as last written."""

    note: str
    round: int
    process: str = field(default="", compare=False)  # see engine/base/processes.py


class Leases:
    """The leases of a store's keys. ``heartbeat``, ``patience``: see :class:`~engine.record.store.StageStore`."""

    def __init__(self, folder: StoreFolder, heartbeat: float, patience: float) -> None:
        self.heartbeat = heartbeat
        self.patience = patience
        self._folder = folder

    def take(self, key: str, note: str) -> Lease | None:
        """Take the lease of a key; None while somebody holds it, alive or not."""
        number, content = self.last(key)
        return None if number and holder_in(content) else self.take_next(key, number, note)

    def holder(self, key: str) -> Holder | None:
        """Return who holds the lease of a key; None if nobody does."""
        number, content = self.last(key)
        return holder_in(content) if number else None

    def is_computed(self, folder: Path, now: float) -> bool:
        """Return whether the key of this folder is leased by somebody who was alive a moment before ``now``."""
        number, content = self._last_in(folder)
        beat = modified(folder / f"{LEASE}{number:06d}")
        return number > 0 and holder_in(content) is not None and now - beat < 2 * self.patience

    def last(self, key: str) -> tuple[int, bytes]:
        """Return number and content of a key's last lease; (0, b"") if there has been none."""
        return self._last_in(self._folder.key_folder(key))

    def _last_in(self, folder: Path) -> tuple[int, bytes]:
        with self._folder.explained():
            while numbers := numbered(folder, LEASE):
                try:
                    return numbers[-1], read_bytes(folder / f"{LEASE}{numbers[-1]:06d}")
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ESTALE):
                        raise
                    time.sleep(0.01)  # its successor has removed it: look again
            return 0, b""

    def take_next(self, key: str, number: int, note: str) -> Lease | None:
        """Take the lease after ``number``; None if somebody else was faster."""
        folder = self._folder.key_folder(key)
        path = folder / f"{LEASE}{number + 1:06d}"
        with self._folder.explained():
            try:
                self._folder.create_in(folder, lambda: path.touch(exist_ok=False))
            except FileExistsError:
                return None
            numbers = numbered(folder, LEASE)
            if numbers[-1:] != [number + 1]:  # others have come and gone since ``number`` was looked at
                path.unlink(missing_ok=True)
                return None
            for past in numbers[:-1]:
                (folder / f"{LEASE}{past:06d}").unlink(missing_ok=True)
            try:
                return Lease(path, note, self.heartbeat)
            except FileNotFoundError:  # swept away with its key's folder
                return None


class Lease:
    """The right to compute a key, kept by a thread that rewrites the lease's file at every beat."""

    def __init__(self, path: Path, note: str, heartbeat: float) -> None:
        self.lost = False  # someone else has taken over; no reason to stop, since results are equal
        self._path = path
        self._note = note
        self._heartbeat = heartbeat
        self._round = 0
        self._token = token()
        self._process = this_process()
        self._beats = 0
        self._stop = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._keep, name=f"lease {path.parent.name}", daemon=True)
        self._thread.start()

    def reached(self, round: int) -> None:
        """Note the round that the computation has reached; it is written with the next beat."""
        self._round = round

    def release(self) -> None:
        """Let go of the key."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            with contextlib.suppress(OSError):  # then it expires
                self._write(released=True)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _keep(self) -> None:
        while not self._stop.wait(self._heartbeat):
            with contextlib.suppress(OSError):  # a beat missed; the next one tries again
                if numbered(self._path.parent, LEASE)[-1:] != [int(self._path.name.removeprefix(LEASE))]:
                    self.lost = True
                    return
                self._write()

    def _write(self, released: bool = False) -> None:
        """Write into the existing file only: it is not there any more when a successor has removed it."""
        self._beats += 1
        state = {"token": self._token, "beat": self._beats, "note": self._note, "round": self._round}
        state["process"] = self._process
        # Closed every time, which is what other nodes can rely on to see it.
        with open(self._path, "r+b", opener=regular) as file:
            file.write(json.dumps({**state, "released": released}).encode() + b"\n")


class Watch:
    """One waiter's view of a key's lease, judged by the waiter's own clock."""

    def __init__(self, leases: Leases, key: str) -> None:
        self._leases = leases
        self._key = key
        self._seen = leases.last(key)
        self._since = time.monotonic()

    def expired(self) -> bool:
        """Return whether nobody holds the lease, its holder's process is seen to be over, or it has been silent for
        longer than the patience."""
        seen = self._leases.last(self._key)
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        number, content = seen
        holder = holder_in(content) if number else None
        silent = time.monotonic() - self._since > self._leases.patience
        return holder is None or silent or is_over(holder.process)

    def take_over(self, note: str = "") -> Lease | None:
        """Take the lease after the one that expired; None if it has not, or if another waiter was faster."""
        return self._leases.take_next(self._key, self._seen[0], note) if self.expired() else None


def holder_in(content: bytes) -> Holder | None:
    """Read the holder from a lease's content; None if it was released."""
    try:
        state = json.loads(content.partition(b"\n")[0])
        return None if state["released"] else Holder(state["note"], state["round"], str(state.get("process", "")))
    except (ValueError, KeyError, TypeError, RecursionError):  # just being created
        return Holder("", 0)
