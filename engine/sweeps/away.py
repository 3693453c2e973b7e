"""Folders of a sweep that stand for one elsewhere: a trial's on a node that does not see it, and a copy of one that is
kept in a storage of the user's.

A trial on such a node writes to that node's own disk, and sends its folder whenever its record is written, and when the
run has a new checkpoint. In which order: so that who finds a part of it, since the node was lost meanwhile, goes on
from the checkpoint before or computes anew. Where the user keeps the sweep, the command brings each trial that ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from engine.base import safe_yaml
from engine.base.files import writing
from engine.base.opening import read_bytes
from engine.base.owned import clear, owned
from engine.record.shapes import RUN
from engine.record.sweep_files import PLAN, RECORD, PlannedTrial
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import NamedSweep
from engine.sweeps.storage import Storage

CHECKPOINTS = "checkpoints"
HERE = (".lock", "fetched")  # what of a trial's folder is of use on its node alone


class Away(SweepFolder):
    """A folder with one trial, on this node's disk."""

    def __init__(self, path: Path, storage: Storage, trial: str) -> None:
        super().__init__(path)
        self._storage = storage
        self._trial = f"trials/{trial}"
        self._sent: dict[str, tuple[int, int]] = {}

    def fetch(self) -> None:
        """Put what the storage has of the trial in the place of what is here."""
        folder = self.path / self._trial
        with writing(self._storage.folder):
            folder.mkdir(parents=True, exist_ok=True)
            clear(folder, RUN)
            self._storage.fetch(self._trial, folder)
        self._sent = self._stamps()

    def write(self, record: TrialRecord) -> None:
        super().write(record)
        self.send()

    def has_new_checkpoint(self) -> bool:
        """Return whether the run has come to a checkpoint since it was last sent."""
        return any(_is_checkpoint(name) for name in self._stamps().keys() - self._sent.keys())

    def send(self) -> None:
        """Bring the storage up to date; raises :class:`WriteError` where it cannot be written."""
        found = self._stamps()
        gone = [name for name in self._sent if name not in found]
        saved = [name for name in gone if CHECKPOINTS in name]
        with writing(self._storage.folder):
            self._storage.delete(name for name in gone if name not in saved)  # rows that are in other files by now
            for name in found:
                if self._sent.get(name) != found[name]:
                    self._storage.write(name, read_bytes(self.path / name))
            self._storage.delete(saved)
        self._sent = found

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """List the trial's files with size and time of change, in the order in which they are sent: what vouches for
        others comes after them.
        """
        folder = self.path / self._trial
        paths = [path for path in owned(folder, RUN) if path.relative_to(folder).parts[0] not in HERE]
        names = sorted((path.relative_to(self.path).as_posix() for path in reversed(paths)), key=_is_checkpoint)
        if (folder / RECORD).exists():
            names.append(f"{self._trial}/{RECORD}")
        stats = ((name, (self.path / name).stat()) for name in names)
        return {name: (found.st_size, found.st_mtime_ns) for name, found in stats}


def _is_checkpoint(name: str) -> bool:
    return PurePosixPath(name).parent.name == CHECKPOINTS


class Kept(SweepFolder):
    """A sweep's folder whose every file is also in a storage of the user's."""

    def __init__(self, path: Path, storage: Storage) -> None:
        super().__init__(path)
        self.storage = storage

    def create(self, named: NamedSweep, how: Mapping[str, Any], *more: Any, **others: Any) -> None:
        super().create(named, how, *more, **others)
        self._send("sweep.yaml")

    def write_plan(self, planned: Sequence[PlannedTrial]) -> None:
        super().write_plan(planned)
        self._send(PLAN)

    def write(self, record: TrialRecord) -> None:
        super().write(record)
        self._send(f"trials/{record.trial}/{RECORD}")

    def _send(self, name: str) -> None:
        with writing(self.path):
            self.storage.write(name, read_bytes(self.path / name))

    def digest_there(self) -> str | None:
        """Return the digest of the sweep in the storage, "unreadable" for a damaged one; None if there is none."""
        content = self.storage.read("sweep.yaml")
        try:
            return None if content is None else str(safe_yaml.parse(content.decode())["digest"])
        except (KeyError, TypeError, ValueError):
            return "unreadable"

    def bring(self, trial: str) -> None:
        Away(self.path, self.storage, trial).fetch()

    def bring_all(self) -> None:
        """Make folder and storage alike: what an earlier process has left in one of them, perhaps on another node."""
        for name in ("sweep.yaml", PLAN):
            self.storage.fetch(name, self.path / name)
        for trial in sorted({*self.storage.trials(), *(path.name for path in (self.path / "trials").glob("*/"))}):
            there, record = self._status_there(trial), self.record(trial)
            # A failed one may have gone on elsewhere since.
            done_here = record is not None and record.status in ("finished", "stopped")
            if there is None or (done_here and there == "running"):
                Away(self.path, self.storage, trial).send()
            elif not done_here:
                self.bring(trial)

    def _status_there(self, trial: str) -> str | None:
        """Return a trial's status in the storage; None where it has not come there whole: its record is sent last."""
        content = self.storage.read(f"trials/{trial}/{RECORD}")
        try:
            return None if content is None else json.loads(content)["status"]
        except (KeyError, TypeError, ValueError):  # it is cut off
            return "running"
