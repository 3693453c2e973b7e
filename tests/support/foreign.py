"""Files that are nobody's business but their owner's, planted where the engine deletes, under names like its own."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

LONG_AGO = 3 * 24 * 3600.0
TOKEN = "0123456789abcdef" * 2

# Relative to any folder that is there: names that a careless pattern takes for the engine's.
ANYWHERE = (
    "notes.txt",
    "a.jpg",
    ".my.tmp",
    ".notes.txt.12.tmp",
    ".rounds.parquet.tmp",
    ".rounds.parquet.old.tmp",
    "rounds.parquet.bak",
    "x.parquet",
    "rounds.mine.parquet",
    "rounds.12.parquet",
    "00-mine.safetensors",
    "00-train-3.safetensors",
    "mine-train-000003.safetensors",
    "ab.safetensors",
    f"{'A' * 64}.safetensors",
    f"{'a' * 64}.txt",
    "v1/images/a.jpg",
    "images/a.jpg",
    "images/round-000001/a.jpg",
    "diagnosis/mine.png",
    "checkpoints/mine.bin",
    "checkpoints/states/notes.txt",
    "rows/x.parquet",
    "fetched/photos/a.jpg",
    "fetched/checkpoint/a.jpg",
    "report/photo.png",
    "report/heat-mine.png",
    "report/mine.csv",
    "tune/00000/thesis.pdf",
    "tune/00000/checkpoint_000000/thesis.pdf",
    "stages/00/a.jpg",
    ".before-mine/a.jpg",
)
# Relative to a store of keys that begin with "ab".
IN_A_STORE = (
    "a/a.jpg",
    "ab/photo.jpg",
    "ab/abroad/photo.jpg",
    "ab/abroad/000003/photo.jpg",
    "ab/abroad/000003/manifest.json",
    "ab/abroad/3/photo.jpg",
    "ab/abroad/lease-3",
    "ab/abroad/wanted-mine",
    "ab/abbey/lease-000001.jpg",
    "ab/abbey/lease-000001",
    "ab/other/000001/photo.jpg",
    "ab/other/lease-000001",
    "temporary/notes.txt",
    "temporary/mine/photo.jpg",
    f"temporary/{TOKEN}/photo.jpg",
    f"temporary/in-{TOKEN[1:]}/photo.jpg",
    f"temporary/out-{TOKEN}/photo.jpg",
    f"temporary/in-{TOKEN}",
    "tally/notes.txt",
    "tally/added-mine",
    "tally/added-5-mine",
    "tally/held-mine",
)


class Foreign:
    """Files planted in a folder, and whether they are all there yet."""

    def __init__(self, root: Path, draw: random.Random) -> None:
        self.root = root
        self._draw = draw
        self._planted: dict[Path, bytes] = {}

    def plant(self, names: Iterable[str], share: float = 1.0, below: Path | None = None) -> None:
        """Plant a drawn share of the names, if nothing is there, old enough to look abandoned."""
        folder = below or self.root
        for name in names:
            path = folder / name
            blocked = any(place.is_file() for place in path.parents)
            if self._draw.random() < share and not path.exists() and not blocked:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._planted[path] = self._draw.randbytes(20)
                path.write_bytes(self._planted[path])

    def plant_everywhere(self, names: Iterable[str], share: float) -> None:
        """Plant a drawn share of the names in every folder that is there."""
        names = tuple(names)
        for folder in [self.root, *(path for path in sorted(self.root.rglob("*")) if path.is_dir())]:
            self.plant(names, share, folder)

    def age(self) -> None:
        """Make everything look as if nobody had touched it for days."""
        for path in [self.root, *self.root.rglob("*")]:
            before = path.lstat().st_mtime - LONG_AGO
            os.utime(path, (before, before))

    def __len__(self) -> int:
        return len(self._planted)

    @property
    def lost(self) -> list[str]:
        """Those that are not there any more, or have other bytes, or stand elsewhere.

        A store sets what stands in the place of an entry aside as a whole: that is no loss.
        """
        lost = (path for path, content in self._planted.items() if not _is_kept(path, content))
        return [str(path.relative_to(self.root)) for path in lost]


def _is_kept(path: Path, content: bytes) -> bool:
    entries = [place for place in path.parents if place.name.isdecimal() and len(place.name) == 6]
    aside = [one / path.relative_to(entry) for entry in entries for one in entry.parent.glob(f"{entry.name}.damaged-*")]
    return any(place.is_file() and place.read_bytes() == content for place in (path, *aside))
