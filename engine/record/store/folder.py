"""The store's folder: what marks it, where things lie in it, and what is deleted of it and how.

A file ``fedskew-store.json`` makes a folder a store, and is there before anything else. Nothing is deleted but

* an entry: a folder of six digits in a key's own folder, with a manifest of that key and round; the files that the
  manifest names, and then the manifest,
* leases and wants of a key that has no entries,
* what is on its way in (``temporary/in-*``), which only its writer knows,

and folders that are empty then. It is renamed first, so that nobody sees a part of it; what turns out to be somebody
else's is renamed back. What is in the place of an entry and is none is set aside whole, beside that place.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from engine.base.errors import RunFolderError, StoreError
from engine.base.opening import read_bytes, regular
from engine.base.owned import TOKEN
from engine.record.shapes import KEY
from engine.record.store import manifest
from engine.record.store.manifest import is_file

LEASE, WANTED = "lease-", "wanted-"
TEMPORARY, TALLY = "temporary", "tally"  # folders beside those of keys
IN, OUT = "in-", "out-"  # in the first of them
MARKER, FORMAT = "fedskew-store.json", 1


class StoreFolder:
    """The folder of one store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made = False  # this process has seen that it is a store

    # --- what makes it a store --------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a folder that is neither empty nor a store; :class:`RunFolderError`."""
        names = self._names()
        if names and MARKER not in names and not os.path.lexists(self.path / MARKER):  # it may be just being made
            self._refuse(f"holds something else ({min(names)}) and no {MARKER}")
        if names and not is_file(self.path / MARKER):
            self._refuse(f"holds something else: its {MARKER} is no file")
        self._check_format()

    def make(self) -> None:
        """Make the folder a store, unless it is one; many processes may do so at once."""
        if not self._made:
            self.check()
        elif not os.path.lexists(self.path / MARKER):  # deleted as a whole, or being deleted
            alien = [name for name in self._names() if name not in (TEMPORARY, TALLY, MARKER) and len(name) > 2]
            if alien:
                self._refuse(f"holds something else now ({min(alien)})")
        self.path.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError), open(self.path / MARKER, "x", opener=regular) as file:
            file.write(json.dumps({"format": FORMAT, "what": "a store of stages of fedskew"}) + "\n")
        self._made = True

    def _names(self) -> list[str]:
        try:
            with os.scandir(self.path) as found:
                entries = list(found)
        except OSError:  # it is not there, or cannot be read: told where that matters
            return []
        link = next((entry.name for entry in entries if entry.is_symlink()), None)
        if link is not None:
            self._refuse(f"holds something else ({link}, a link)")
        return [entry.name for entry in entries]

    def _check_format(self) -> None:
        try:
            found = json.loads(read_bytes(self.path / MARKER))["format"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError):  # none, or just being written
            return
        if found != FORMAT:
            self._refuse(f"is of another version (its format is {found!r}, this version's {FORMAT})")

    def _refuse(self, rule: str) -> NoReturn:
        raise RunFolderError(
            f"store {self.path} {rule}; name a new folder with --store (what a store of an earlier version holds "
            "could not be used)"
        )

    # --- where things lie -------------------------------------------------------------------------------

    def key_folder(self, key: str) -> Path:
        """Return the folder of a key; ValueError for one that is no name."""
        if not re.fullmatch(KEY, key):
            raise ValueError(f"key={key!r}: letters, digits, - and _ only, 200 at most")
        return self.path / key[:2] / key

    def key_folders(self) -> Iterator[Path]:
        """Yield the folders of all keys."""
        for letters in _folders(self.path):
            if len(letters.name) <= 2:
                for folder in _folders(letters):
                    if re.fullmatch(KEY, folder.name) and folder.name[:2] == letters.name:
                        yield folder

    def entry(self, key: str, round: int) -> Path:
        """Return the folder of an entry; ValueError for a key or a round that is none."""
        if round < 0:
            raise ValueError(f"round={round}: must not be negative")
        return self.key_folder(key) / f"{round:06d}"

    def manifest(self, entry: Path) -> manifest.Manifest | None:
        """Read the manifest of an entry; None for what is in the place of one."""
        found = manifest.read(entry)
        own = found is not None and (found.key, f"{found.round:06d}") == (entry.parent.name, entry.name)
        return found if own else None

    def temporary(self, kind: str = IN) -> Path:
        """Make up a name for a folder that nobody looks into."""
        self.make()
        (self.path / TEMPORARY).mkdir(parents=True, exist_ok=True)
        return self.path / TEMPORARY / f"{kind}{token()}"

    def create_in(self, folder: Path, create: Callable[[], None]) -> None:
        """Create something in a folder, which may be there or not, or be swept away at this moment."""
        self.make()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            create()
        except FileNotFoundError:
            self.make()
            folder.mkdir(parents=True, exist_ok=True)
            create()
        self.make()  # it may have been deleted as a whole meanwhile, but for what was created

    def put(self, folder: Path, place: Path) -> bool:
        """Rename a folder; False if there is one already."""
        try:
            self.create_in(place.parent, lambda: os.rename(folder, place))
            return True
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            return False

    # --- what is deleted --------------------------------------------------------------------------------

    def drop_entry(self, entry: Path) -> bool:
        """Delete an entry; False if there is none in that place."""
        return self.manifest(entry) is not None and self._take_out(entry)

    def put_away(self, entry: Path) -> bool:
        """Free an entry's place: of an entry by deleting it, of anything else by setting it aside, as ``*.damaged-*``.

        False if nothing was there.
        """
        gone = self.drop_entry(entry)
        if os.path.lexists(entry) and self.manifest(entry) is None:
            with contextlib.suppress(FileNotFoundError):
                os.rename(entry, entry.with_name(f"{entry.name}.damaged-{token()}"))
                return True
        return gone

    def drop_key(self, folder: Path) -> None:
        """Delete the folder of a key that has no entries, if there is nothing but leases and wants in it."""
        if all(is_file(folder / name) and _is_note(name) for name in os.listdir(folder)):
            self._take_out(folder)

    def drop_temporary(self, folder: Path) -> None:
        """Delete what a process left in ``temporary/`` that was killed; what has another name there is not ours."""
        if folder.is_symlink() or not folder.is_dir():
            return
        if re.fullmatch(IN + TOKEN, folder.name):
            away = folder.with_name(f"{IN}{token()}")
            os.rename(folder, away)  # a writer that was only stopped finds it gone, and puts no half entry in place
            shutil.rmtree(away, ignore_errors=True)
        elif re.fullmatch(OUT + TOKEN, folder.name):
            _delete_own(folder)

    def _take_out(self, folder: Path) -> bool:
        away = self.temporary(OUT)
        try:
            os.rename(folder, away)
        except FileNotFoundError:
            return False
        _delete_own(away)
        if away.exists():  # somebody else's files are in it
            self.put(away, folder)
        return True

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Turn an OSError into a :class:`StoreError` that says what to do about it."""
        try:
            yield
        except OSError as error:
            what = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
            raise StoreError(
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
    return sorted(int(rest) for rest in rests if _is_number(rest))


def modified(path: Path) -> float:
    """Return the time of modification by the clock of the file system; long ago if it is not there."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _is_number(text: str) -> bool:
    """Return whether a text is a number as the store writes it."""
    return re.fullmatch("[0-9]{6,}", text) is not None and f"{int(text):06d}" == text


def _is_note(name: str) -> bool:
    return any(name.startswith(prefix) and _is_number(name.removeprefix(prefix)) for prefix in (LEASE, WANTED))


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as found:
            return [Path(entry.path) for entry in found if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _delete_own(folder: Path) -> None:
    """Delete what is the store's in a folder that was an entry or a key's, and the folders that are empty then."""
    found = manifest.read(folder)
    if found is not None:
        manifest.delete(folder, found)
    else:
        for path in list(folder.iterdir()):
            if _is_note(path.name) and is_file(path):
                path.unlink(missing_ok=True)
    for place, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):  # it holds something else
            os.rmdir(place)
