"""The source files of the house."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for package in ("engine", "algorithms", "tune_configs") for path in (ROOT / package).rglob("*.py")
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
