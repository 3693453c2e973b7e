"""Trials on nodes that do not see the sweep's folder: they write to their own disk, and it is brought to the folder.

A trial's folder is brought whenever its record is written, and when the run has a new checkpoint. In which order: so
that who finds a part of it, since the node was lost meanwhile, goes on from the checkpoint before or computes anew.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pyarrow import fs

from engine.base.files import writing
from engine.base.owned import owned
from engine.record.shapes import RUN
from engine.record.sweep_files import RECORD
from engine.worker.ray.node_files import Identity, identity

CHECKPOINTS = "checkpoints"
HERE = (".lock", "fetched")  # what of a trial's folder is of use on its node alone


@dataclass(frozen=True)
class Storage:
    """The sweep's folder as it is reached from nodes that do not see it."""

    files: fs.FileSystem
    path: str
    marks: Mapping[Path, Identity | None]  # files by which a node knows whether it sees the folders that they are in

    def is_seen(self, mark: Path) -> bool:
        """Return whether this node sees the folder that has the file ``mark``."""
        return identity(mark) == self.marks[mark]


class Away:
    """A trial's folder on this node's disk: ``trials/NAME`` in ``root``, and what of it is in the storage."""

    def __init__(self, storage: Storage, trial: str, disk: Path) -> None:
        """Fetch what the storage has of the trial, to a new folder in ``disk``."""
        self.root = Path(tempfile.mkdtemp(prefix="away-", dir=disk))
        self._files = storage.files
        self._folder, self._there = self.root / "trials" / trial, f"{storage.path}/trials/{trial}"
        self._sweep = Path(storage.path)
        self._folder.mkdir(parents=True)
        with suppress(FileNotFoundError):
            fs.copy_files(self._there, str(self._folder), source_filesystem=self._files)
        self._sent = self._stamps()

    def has_new_checkpoint(self) -> bool:
        """Return whether the run has come to a checkpoint since it was last sent."""
        return any(_is_checkpoint(name) for name in self._stamps().keys() - self._sent.keys())

    def send(self) -> None:
        """Bring the storage up to date; raises :class:`WriteError` where it cannot be written."""
        found = self._stamps()
        gone = [name for name in self._sent if name not in found]
        with writing(self._sweep):
            self._delete(name for name in gone if not name.startswith(CHECKPOINTS))  # rows that are elsewhere by now
            for name in found:
                if self._sent.get(name) != found[name]:
                    place = f"{self._there}/{name}"
                    self._files.create_dir(place.rpartition("/")[0])
                    content = (self._folder / name).read_bytes()
                    with self._files.open_output_stream(place) as stream:
                        stream.write(content)
            self._delete(name for name in gone if name.startswith(CHECKPOINTS))
        self._sent = found

    def remove(self) -> None:
        """Delete the folder on this node."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _delete(self, names: Iterator[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._files.delete_file(f"{self._there}/{name}")

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """List the trial's files with size and time of change, in the order in which they are sent: what vouches for
        others comes after them.
        """
        paths = [path.relative_to(self._folder) for path in owned(self._folder, RUN)]
        names = [path.as_posix() for path in reversed(paths) if path.parts[0] not in HERE]
        names = [*sorted(names, key=_is_checkpoint), *([RECORD] if (self._folder / RECORD).exists() else [])]
        stats = ((name, (self._folder / name).stat()) for name in names)
        return {name: (found.st_size, found.st_mtime_ns) for name, found in stats}


def _is_checkpoint(name: str) -> bool:
    return PurePosixPath(name).parent.name == CHECKPOINTS
