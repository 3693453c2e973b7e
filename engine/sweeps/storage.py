"""A sweep's folder as nodes reach it that do not see it: a folder of any Arrow file system.

It is the folder itself, as Ray reaches it (engine/worker/ray/node_files.py), or a place of the user's, such as
``s3://bucket/sweeps``, of which the folder is a copy then. See away.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from engine.base.errors import ConfigError
from engine.worker.ray.node_files import Identity, identity


@dataclass(frozen=True)
class Storage:
    """A sweep's folder as each node reaches it."""

    files: fs.FileSystem
    path: str
    folder: Path  # the sweep's on the node of the command, which a resume names
    # Files by which a node knows that it sees the folders that they are in, and uses these.
    marks: Mapping[Path, Identity | None] = field(default_factory=dict)

    @classmethod
    def at(cls, uri: str, folder: Path) -> Storage:
        """Open the folder in ``uri`` with the name of ``folder``; raises :class:`ConfigError` if it cannot be made."""
        try:
            files, above = fs.FileSystem.from_uri(uri)
            path = f"{above}/{folder.resolve().name}"
            files.create_dir(path)
        except (OSError, pa.ArrowException, ImportError, ValueError) as error:
            rule = f"cannot be used ({error})"
            raise ConfigError(
                "--storage", uri, rule, "name a folder that can be written, as s3://bucket/folder"
            ) from None
        return cls(files, path, folder)

    def is_seen(self, mark: Path) -> bool:
        """Return whether this node sees the folder that has the file ``mark``."""
        return mark in self.marks and identity(mark) == self.marks[mark]

    def trials(self) -> list[str]:
        """List the trials that it has anything of."""
        found = self.files.get_file_info(fs.FileSelector(f"{self.path}/trials", allow_not_found=True))
        return sorted(one.base_name for one in found)

    def read(self, name: str) -> bytes | None:
        """Read a file; None if it is not there."""
        with suppress(FileNotFoundError), self.files.open_input_stream(f"{self.path}/{name}") as stream:
            return stream.read()
        return None

    def fetch(self, name: str, target: Path) -> None:
        """Copy a file or a folder to this node; nothing if it is not there."""
        with suppress(FileNotFoundError):
            fs.copy_files(f"{self.path}/{name}", str(target), source_filesystem=self.files)

    def write(self, name: str, content: bytes) -> None:
        """Write a file, whose folder need not be there."""
        place = f"{self.path}/{name}"
        self.files.create_dir(place.rpartition("/")[0])
        with self.files.open_output_stream(place) as stream:
            stream.write(content)

    def forget(self, name: str) -> None:
        """Delete a folder, if it is there."""
        with suppress(FileNotFoundError):
            self.files.delete_dir(f"{self.path}/{name}")

    def delete(self, names: Iterable[str]) -> None:
        """Delete the files that are there."""
        for name in names:
            with suppress(FileNotFoundError):
                self.files.delete_file(f"{self.path}/{name}")
