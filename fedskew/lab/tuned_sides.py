"""What each side of a sweep was given by its tuning: candidates, figures and choices, in ``tuning.json``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from engine.base.errors import RunFolderError
from engine.base.files import write_atomically
from engine.record import fields
from engine.results.settings import setting_label

FILE = "tuning.json"  # in the sweep's folder


@dataclass(frozen=True)
class Candidate:
    """Values of what was searched, and the mean of the sweep's metric over cells and tuning seeds; None: it failed."""

    values: dict[str, Any]
    mean: float | None


@dataclass(frozen=True)
class TunedSide:
    """A side of the sweep, with its candidates from the best to the worst."""

    where: dict[str, Any]
    candidates: Annotated[tuple[Candidate, ...], Len(2)]
    seeds: tuple[int, ...]
    metric: str
    rank: Literal[0, 1] = 0  # the candidate that the sweep's trials have: 1 is the second best, for sensitivity

    @property
    def chosen(self) -> Candidate:
        return self.candidates[self.rank]

    @property
    def sentence(self) -> str:
        """What was chosen from what, at what figures, without full stop."""
        figures = [f"{setting_label(one.values)} at {_figure(one.mean)}" for one in self.candidates]
        place = "the best" if self.rank == 0 else "the second best"
        seeds = ", ".join(map(str, self.seeds))
        chosen, side = setting_label(self.chosen.values), setting_label(self.where)
        return f"{side} has {chosen}, {place} of {len(figures)} by {self.metric} on seeds {seeds}: {'; '.join(figures)}"


def write(folder: Path, sides: Sequence[TunedSide]) -> None:
    """Write the choices into a sweep's folder."""
    write_atomically(folder / FILE, json.dumps({"sides": to_mappings(sides)}, indent=2) + "\n")


def read(folder: Path) -> tuple[TunedSide, ...]:
    """Read the choices of a sweep; () if nothing was tuned. Raises :class:`RunFolderError` for a damaged file."""
    path = folder / FILE
    if not path.exists():
        return ()
    try:
        return from_mappings(fields.load(path)["sides"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); delete it, and fedskew resume makes it anew") from None


def to_mappings(sides: Sequence[TunedSide]) -> list[dict[str, Any]]:
    """Return sides as plain data, for JSON and YAML."""
    return [asdict(side) for side in sides]


def from_mappings(values: Any) -> tuple[TunedSide, ...]:
    """Return what :func:`to_mappings` was given; raises ValueError for anything else."""
    try:
        return TypeAdapter(tuple[TunedSide, ...]).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def second_best(sides: Sequence[TunedSide]) -> tuple[TunedSide, ...]:
    """Return the same sides, each with its second best candidate."""
    return tuple(replace(side, rank=1) for side in sides)


def _figure(mean: float | None) -> str:
    return "no figure" if mean is None else f"{mean:.4g}"
