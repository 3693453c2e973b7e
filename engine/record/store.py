"""A store of finished work, shared by many processes on one or many nodes through nothing but a file system.

An *entry* is a folder of files under a key and a round; what is in them is the caller's business.

    <store>/ab/abcd.../000030/         an entry: its files, and manifest.json with their sizes and SHA-256
    <store>/ab/abcd.../lease-000002    the second lease on this key, rewritten by its holder at every beat
    <store>/ab/abcd.../wanted-000050   somebody will go on from round 50
    <store>/temporary/                 entries on their way in and out
    <store>/tally/                     the total size, kept without looking at the entries

What it relies on: rename is atomic, a rename onto a folder that is not empty fails, and only one process can create a
file that must not exist. No file locks, and no two machines' clocks: ages are differences of modification times on the
one file system, patience is counted by the clock of the one who waits.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.base.errors import RunFolderError
from engine.base.files import link_or_copy

log = logging.getLogger("fedskew")
KEY = re.compile(r"[A-Za-z0-9_-]{1,200}")
LEASE, WANTED, ADDED, HELD = "lease-", "wanted-", "added-", "held-"
MANIFEST, TOTAL = "manifest.json", "total"
OWN = ("temporary", "tally")  # folders beside those of keys
ROOM = 0.1  # share of the limit that an eviction leaves free, so that the next one is not due at once
ABANDONED = 24 * 3600.0  # seconds after which a folder that nobody touches was left by a process that is gone


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as last written."""

    note: str
    round: int


@dataclass(frozen=True, eq=False)
class _Entry:
    path: Path
    in_use: bool  # somebody computes its key, or wants it
    used: float  # last, by the clock of the file system
    files: dict[tuple[int, int], int]  # (device, inode) -> bytes


class StageStore:
    """Entries by key and round; leases on keys. Every process has its own object on the same folder."""

    def __init__(
        self, path: Path, limit_bytes: int = 20 * 2**30, heartbeat: float = 5.0, patience: float = 30.0
    ) -> None:
        """``heartbeat``: seconds between a holder's beats; ``patience``: after how many without one it is given up."""
        self.path = path
        self.limit_bytes = limit_bytes
        self.heartbeat = heartbeat
        self.patience = patience
        self._swept = False
        self._check_place()

    def _check_place(self) -> None:
        """Refuse a folder that something else lies in: what is old there, or too much, would be deleted."""
        with contextlib.suppress(OSError), os.scandir(self.path) as found:  # those are told where they matter
            for one in found:
                ours = one.name in OWN or len(one.name) <= 2
                if one.is_symlink() or (one.is_dir() and not ours and not one.name.startswith(".")):
                    raise RunFolderError(
                        f"store {self.path} holds something else ({one.name}); name a folder of its own with --store"
                    )

    # --- entries --------------------------------------------------------------------------------------

    def rounds(self, key: str) -> list[int]:
        """Rounds with an entry that looks whole, ascending."""
        folder = self._folder(key)
        with self._explained():
            return [round for round in _numbered(folder) if (folder / f"{round:06d}" / MANIFEST).exists()]

    def longest(self, key: str, above: int, at_most: int) -> int | None:
        """The largest stored round in (above, at_most]."""
        return max((round for round in self.rounds(key) if above < round <= at_most), default=None)

    def open(self, key: str, round: int) -> Path | None:
        """An entry's folder, verified; None if it is not there or was damaged. It may be evicted at any time."""
        entry = self._entry(key, round)
        with self._explained():
            return entry if self._verify(entry, entry, key, round) else None

    def fetch(self, key: str, round: int, target: Path) -> bool:
        """Link or copy an entry's files into the new folder ``target``; False, and no folder, if it cannot be had."""
        entry = self._entry(key, round)
        copy = target.with_name(f".{target.name}.{_token()}.tmp")
        with self._explained():
            try:
                for file in _files(entry):
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

    def publish(self, key: str, round: int, write: Callable[[Path], None]) -> bool:
        """Store what ``write`` puts into the folder it is given; False if there is such an entry already."""
        entry = self._entry(key, round)
        with self._explained():
            if (entry / MANIFEST).exists():
                return False
            if entry.exists():  # nobody would use it, and it would be in the way
                self._drop(entry)
            folder = self._new_place()
            try:
                folder.mkdir()
                write(folder)
                manifest = _manifest(folder, key, round)
                size = (folder / MANIFEST).write_text(json.dumps(manifest))
                size += sum(length for length, _ in manifest["files"].values())
                for path in [*folder.rglob("*"), folder]:
                    _sync(path)
                if not _put(folder, entry):
                    return False
                _sync(entry.parent)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            self._count(size)
            return True

    def discard(self, key: str, round: int) -> None:
        entry = self._entry(key, round)
        with self._explained():
            self._drop(entry)

    def want(self, key: str, round: int) -> None:
        """Ask whoever computes this key to publish ``round``, and let it not be evicted for a day."""
        entry = self._entry(key, round)
        with self._explained():
            _in_folder(entry.parent, entry.with_name(f"{WANTED}{entry.name}").touch)

    def wanted(self, key: str) -> frozenset[int]:
        folder = self._folder(key)
        with self._explained():
            return frozenset(_numbered(folder, WANTED))

    def _folder(self, key: str) -> Path:
        if not KEY.fullmatch(key):
            raise ValueError(f"key={key!r}: letters, digits, - and _ only, 200 at most")
        return self.path / key[:2] / key

    def _entry(self, key: str, round: int) -> Path:
        if round < 0:
            raise ValueError(f"round={round}: must not be negative")
        return self._folder(key) / f"{round:06d}"

    def _verify(self, entry: Path, content: Path, key: str, round: int) -> bool:
        """Whether ``content``, the entry or a copy of it, is what its manifest says; used now if so, gone if not."""
        try:
            whole = json.loads((content / MANIFEST).read_bytes()) == _manifest(content, key, round)
        except (FileNotFoundError, ValueError, RecursionError):
            whole = False
        if whole:
            with contextlib.suppress(OSError):  # evicted meanwhile, or a store that may only be read
                os.utime(entry / MANIFEST)
        elif self._drop(entry):
            log.warning("stored round %d of %s was damaged; it is put away and computed again", round, entry.parent)
        return whole

    def _new_place(self) -> Path:
        """A name for a folder that nobody looks into."""
        (self.path / "temporary").mkdir(parents=True, exist_ok=True)
        return self.path / "temporary" / _token()

    def _drop(self, folder: Path) -> bool:
        """Delete a folder, renamed first, so that nobody sees a part of it; False if it was not there."""
        if not folder.exists():
            return False
        away = self._new_place()
        try:
            os.rename(folder, away)
        except FileNotFoundError:
            return False
        shutil.rmtree(away, ignore_errors=True)
        return True

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
            raise RunFolderError(
                f"store {self.path} cannot be used ({what}); free space there or make it writable, choose another "
                "folder with --store, or do without it with --no-reuse"
            ) from error

    # --- leases ---------------------------------------------------------------------------------------
    #
    # The lease of a key is the one with the highest number. A number is created once, by whoever finds the one before
    # released or expired, and after that written only by its holder: nobody ever renames, overwrites or removes a
    # lease that may be another's. So the last one stays where it is when it is released.

    def lease(self, key: str, note: str = "") -> Lease | None:
        """The right to compute this key; None while somebody holds it, be it alive or not (see :meth:`watch`)."""
        number, content = self._lease(self._folder(key))
        return None if number and _holder(content) else self._next_lease(key, number, note)

    def holder(self, key: str) -> Holder | None:
        """Who holds the lease of this key; None if nobody does."""
        number, content = self._lease(self._folder(key))
        return _holder(content) if number else None

    def watch(self, key: str) -> Watch:
        return Watch(self, key)

    def _lease(self, folder: Path) -> tuple[int, bytes]:
        """Number and content of the last lease; (0, b"") if there has been none."""
        with self._explained():
            while numbers := _numbered(folder, LEASE):
                try:
                    return numbers[-1], (folder / f"{LEASE}{numbers[-1]:06d}").read_bytes()
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ESTALE):
                        raise
                    time.sleep(0.01)  # its successor has removed it: look again
            return 0, b""

    def _next_lease(self, key: str, number: int, note: str) -> Lease | None:
        """The lease after ``number``; None if somebody else was faster."""
        folder = self._folder(key)
        path = folder / f"{LEASE}{number + 1:06d}"
        with self._explained():
            try:
                _in_folder(folder, lambda: path.touch(exist_ok=False))
            except FileExistsError:
                return None
            numbers = _numbered(folder, LEASE)
            if numbers[-1:] != [number + 1]:  # others have come and gone since ``number`` was looked at
                path.unlink(missing_ok=True)
                return None
            for past in numbers[:-1]:
                (folder / f"{LEASE}{past:06d}").unlink(missing_ok=True)
            try:
                return Lease(path, note, self.heartbeat)
            except FileNotFoundError:  # swept away with its key's folder
                return None

    # --- size -----------------------------------------------------------------------------------------
    #
    # ``tally/`` holds a file ``total`` and one empty file per entry published since, named by its size. Whoever
    # renames ``total`` may change it: it adds the sizes up and, above the limit, looks at all entries, corrects the
    # total and makes room. Nobody waits for that: one who finds ``total`` taken goes on, and the one who has it looks
    # again after putting it back. Discarded entries and files linked into several ones make the total too large,
    # never too small, so that the limit holds.

    def size(self) -> int:
        """Bytes of all entries; files that are linked into several ones count once."""
        with self._explained():
            return sum({file: size for entry in self._entries(now=0.0) for file, size in entry.files.items()}.values())

    def _count(self, added: int) -> None:
        """Take a new entry into account; evict others if that is too much."""
        tally = self.path / "tally"
        if not tally.exists():
            folder = self._new_place()
            folder.mkdir()
            (folder / TOTAL).touch()  # empty: to be measured
            if not _put(folder, tally):
                self._drop(folder)
        with open(tally / f"{ADDED}{added}-{_token()}", "x") as mark:
            now = os.fstat(mark.fileno()).st_mtime  # by the clock of the file system
        if not self._swept:
            self._swept = True
            self._sweep((self.path / "temporary").iterdir(), now)
        while (total := self._take_total(tally, now)) is not None:
            with contextlib.suppress(FileNotFoundError):  # another process thought that this one was gone
                self._settle(tally, total, now)
            if not _marks(tally):
                break

    def _settle(self, tally: Path, total: Path, now: float) -> None:
        marks = _marks(tally)
        try:
            size = int(total.read_text()) + sum(int(mark.split("-")[1]) for mark in marks)
        except ValueError:
            size = None
        if size is None or size > self.limit_bytes:
            size = self._make_room(now)
        with open(total, "r+") as file:
            file.write(f"{size:<24d}")
            file.flush()
            os.fsync(file.fileno())
        for mark in marks:
            (tally / mark).unlink(missing_ok=True)
        os.rename(total, tally / TOTAL)

    def _take_total(self, tally: Path, now: float) -> Path | None:
        """The file ``total``, renamed so that it is this process's; None while it is another's."""
        mine = tally / f"{HELD}{_token()}"
        with contextlib.suppress(FileNotFoundError):
            os.utime(tally / TOTAL)  # before it is taken, so that it never looks abandoned
            os.rename(tally / TOTAL, mine)
            return mine
        for held in tally.glob(f"{HELD}*"):
            with contextlib.suppress(FileNotFoundError):
                if now - held.stat().st_mtime > 10 * self.patience:  # killed in the middle of a change
                    os.truncate(held, 0)
                    os.utime(held)
                    os.rename(held, mine)
                    return mine
        return None

    def _make_room(self, now: float) -> int:
        """Evict the least recently used entries; the size of the others.

        Those in use and the latest go last, and only down to the limit itself.
        """
        entries = list(self._entries(now))
        links = Counter(file for entry in entries for file in entry.files)
        size = sum({file: size for entry in entries for file, size in entry.files.items()}.values())
        latest = max(entries, key=lambda entry: entry.used, default=None)
        for entry in sorted(entries, key=lambda entry: (entry.in_use, entry.used, entry.path)):
            if size <= self.limit_bytes * (1.0 if entry.in_use or entry is latest else 1.0 - ROOM):
                break
            self._drop(entry.path)
            links.subtract(entry.files.keys())
            size -= sum(size for file, size in entry.files.items() if links[file] == 0)
        self._sweep((self.path / "temporary").iterdir(), now)
        self._sweep((folder for folder in self._key_folders() if not _numbered(folder)), now)
        return size

    def _key_folders(self) -> Iterator[Path]:
        for pattern in ("?/*", "??/*"):
            yield from (folder for folder in self.path.glob(pattern) if not folder.is_symlink())

    def _entries(self, now: float) -> Iterator[_Entry]:
        for folder in self._key_folders():
            number, content = self._lease(folder)
            beat = _modified(folder / f"{LEASE}{number:06d}")
            leased = number > 0 and _holder(content) is not None and now - beat < 2 * self.patience
            for round in _numbered(folder):
                path = folder / f"{round:06d}"
                in_use = leased or now - _modified(folder / f"{WANTED}{path.name}") < ABANDONED
                with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                    stats = [(path / file).stat() for file in _files(path)]
                    files = {(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}
                    yield _Entry(path, in_use, _modified(path / MANIFEST), files)

    def _sweep(self, folders: Iterable[Path], now: float) -> None:
        """Remove the folders that nobody has touched for a day: half-written entries, keys without entries."""
        for folder in folders:
            with contextlib.suppress(FileNotFoundError):
                if now - max(path.stat().st_mtime for path in [folder, *folder.rglob("*")]) > ABANDONED:
                    self._drop(folder)


class Lease:
    """The right to compute a key, kept by a thread that rewrites the lease's file at every beat."""

    def __init__(self, path: Path, note: str, heartbeat: float) -> None:
        self.lost = False  # someone else has taken over; no reason to stop, since results are equal
        self._path = path
        self._note = note
        self._heartbeat = heartbeat
        self._round = 0
        self._token = _token()
        self._beats = 0
        self._stop = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._keep, name=f"lease {path.parent.name}", daemon=True)
        self._thread.start()

    def reached(self, round: int) -> None:
        """Written with the next beat."""
        self._round = round

    def release(self) -> None:
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
                if _numbered(self._path.parent, LEASE)[-1:] != [int(self._path.name.removeprefix(LEASE))]:
                    self.lost = True
                    return
                self._write()

    def _write(self, released: bool = False) -> None:
        """Into the existing file only: it is not there any more when a successor has removed it."""
        self._beats += 1
        state = {"token": self._token, "beat": self._beats, "note": self._note, "round": self._round}
        with open(self._path, "r+b") as file:  # closed every time, which is what other nodes can rely on to see it
            file.write(json.dumps({**state, "released": released}).encode() + b"\n")


class Watch:
    """One waiter's view of a key's lease, judged by the waiter's own clock."""

    def __init__(self, store: StageStore, key: str) -> None:
        self._store = store
        self._key = key
        self._seen = store._lease(store._folder(key))
        self._since = time.monotonic()

    def expired(self) -> bool:
        """Whether nobody holds the lease, or its holder has not been heard of for longer than the store's patience."""
        seen = self._store._lease(self._store._folder(self._key))
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        number, content = seen
        return not number or _holder(content) is None or time.monotonic() - self._since > self._store.patience

    def take_over(self, note: str = "") -> Lease | None:
        """The lease after the one that expired; None if it has not, or if another waiter was faster."""
        return self._store._next_lease(self._key, self._seen[0], note) if self.expired() else None


def _token() -> str:
    return uuid.uuid4().hex


def _holder(content: bytes) -> Holder | None:
    """From a lease's content; None if it was released."""
    try:
        state = json.loads(content.partition(b"\n")[0])
        return None if state["released"] else Holder(state["note"], state["round"])
    except (ValueError, KeyError, TypeError, RecursionError):  # just being created
        return Holder("", 0)


def _numbered(folder: Path, prefix: str = "") -> list[int]:
    """The numbers of the names in a folder that are ``prefix`` and a number, ascending; none if it is not there."""
    try:
        rests = [name.removeprefix(prefix) for name in os.listdir(folder) if name.startswith(prefix)]
    except FileNotFoundError:
        return []
    return sorted(int(rest) for rest in rests if rest.isdecimal())


def _files(folder: Path) -> list[Path]:
    """All files in a folder and below, relative to it, in order."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _manifest(folder: Path, key: str, round: int) -> dict[str, Any]:
    """What an entry is and what is in it."""
    files = {}
    for path in _files(folder):
        if str(path) != MANIFEST:
            with open(folder / path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                files[path.as_posix()] = [os.fstat(file.fileno()).st_size, digest]
    return {"key": key, "round": round, "files": files}


def _modified(path: Path) -> float:
    """By the clock of the file system; long ago if it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _marks(tally: Path) -> list[str]:
    return [name for name in os.listdir(tally) if name.startswith(ADDED)]


def _put(folder: Path, place: Path) -> bool:
    """Rename a folder; False if there is one already."""
    try:
        _in_folder(place.parent, lambda: os.rename(folder, place))
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False


def _in_folder(folder: Path, create: Callable[[], None]) -> None:
    """Create something in a folder, which may be there or not, or be swept away at this moment."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        create()
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        create()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
