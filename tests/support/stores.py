"""Entries and leases of stage stores, for tests of what becomes of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from engine.record.store import StageStore

KEY = "ab12cd-34_ef"
DAY = 24 * 3600.0


def writer(size: int = 1000, text: str = "x") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "states").mkdir()
        (folder / "weights").write_text(text * size)
        (folder / "states" / "one").write_text("state of client one")

    return write


def publish(store: StageStore, key: str, round: int, size: int = 1000) -> None:
    def write(folder: Path) -> None:
        (folder / "weights").write_bytes(bytes(size))

    assert store.publish(key, round, write)


def lease_file(store: StageStore, key: str = KEY) -> Path:
    (path,) = (store.path / key[:2] / key).glob("lease-*")
    return path


def age(path: Path, seconds: float) -> None:
    """Make a file or a folder look older than it is."""
    for each in [path, *path.rglob("*")]:
        modified = each.stat().st_mtime - seconds
        os.utime(each, (modified, modified))
