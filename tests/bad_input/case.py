"""One line of the tables: what is typed and what lies in the folder; the sentence is in ``sentences.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """``words`` are typed in a folder that holds ``files``, and what ``make`` puts there."""

    name: str
    words: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    make: Callable[[Path], object] | None = None
    loads: bool = False  # only the data can tell, so they are read
    begun: str = ""  # "run" or "sweep": a copy of a finished one lies there by that name, before ``make``

    def prepare(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        if self.make is not None:
            self.make(folder)


def run(name: str, words: str | tuple[str, ...], loads: bool = False) -> Case:
    """``fedskew run`` with words; a text is cut at blanks."""
    return Case(name, ("run", *(words.split() if isinstance(words, str) else words)), loads=loads)


def yaml_file(name: str, text: str | bytes) -> Case:
    """``fedskew run bad.yaml`` with that content."""
    return Case(name, ("run", "bad.yaml"), {"bad.yaml": text})
