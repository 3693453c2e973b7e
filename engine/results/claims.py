"""Claims of papers and tables of papers, as a sweep declares them before anything is run.

A :class:`Claim` says of two settings that one is better; fedskew/lab/comparing/verdicts.py says by which rule it
holds. A :class:`PaperTable` says which settings go down and across, with the figures that a paper has published there.
Both are plain data: they go into sweep.yaml and come back from it.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from engine.base.errors import require
from engine.results.settings import better_way, key, make_plain


@dataclass(frozen=True)
class _Plain:
    """Plain data, for YAML, and back."""

    def to_mapping(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)


@dataclass(frozen=True)
class Claim(_Plain):
    """A statement of a source about two settings.

    text: the claim, in our words. source: where it stands. better, worse: parts of a setting; an algorithm by its
    name, with its fields where several have it. where: restricts the cells; a list means any of its values. margin:
    in the unit of the metric. every: in every cell, or on average over them. kind: "greater" (better exceeds worse
    by more than the margin), "equal" (they differ by no more than the margin) or "above" (better's own value
    exceeds the margin; worse stays empty). larger_is_better: False for a metric such as rounds_to_target, so that
    "exceeds" is "lies below"; of "above" it is always True. than: values that axes of ``where`` have elsewhere; the
    claim is then that the lead of better over worse at ``where`` exceeds the lead there.
    """

    text: str
    source: str
    better: dict[str, Any]
    worse: dict[str, Any] = field(default_factory=dict)
    where: dict[str, Any] = field(default_factory=dict)
    metric: str = "last10_accuracy"
    margin: float = 0.0
    every: bool = True
    larger_is_better: bool = True
    kind: Literal["greater", "equal", "above"] = "greater"
    than: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        make_plain(self, "better", "worse", "where", "than")
        known = "set kind=greater, kind=equal or kind=above"
        require(self.kind in ("greater", "equal", "above"), "kind", self.kind, "is not a kind of claim", known)
        require(math.isfinite(self.margin), "margin", self.margin, "must be a number", "for example margin=0.01")
        alone = self.kind != "above" or not self.worse
        require(alone, "worse", self.worse, "must be empty with kind=above", "leave it out")
        lead = not self.than or self.kind != "above"
        require(lead, "than", self.than, "compares two leads, and kind=above has none", "leave it out")
        both = [(self.where.get(name), value) for name, value in self.than.items()]
        moved = not any(key(one) == key(two) or isinstance(one, list) or isinstance(two, list) for one, two in both)
        moved = moved and {*self.than} <= {*self.where} - {*self.better, *self.worse}
        rule = "must be of axes that where alone names, with one other value each"
        require(moved, "than", self.than, rule, "say both values of the axis")
        negative = self.kind == "equal" and self.margin < 0
        require(not negative, "margin", self.margin, "must not be negative with kind=equal", "for example margin=0.01")
        same = self.kind != "above" and key(self.sides[0]) == key(self.sides[1])
        rule = "comes to the same setting as better, since what one side names is given to both"
        require(not same, "worse", self.worse, rule, "give both sides values of an axis, which differ")
        larger, way = self.larger_is_better, better_way(self.metric)
        two = larger or self.kind != "above"
        require(two, "larger_is_better", larger, "is for two settings, and kind=above has one", "leave it out")
        right = self.kind != "greater" or way in (None, "max" if larger else "min")
        rule = f"is not the way to a better {self.metric}"
        require(right, "larger_is_better", larger, rule, f"set larger_is_better={not larger}")

    @property
    def sides(self) -> tuple[dict[str, Any], ...]:
        """The values that pick the trials of ``better`` and of ``worse``, by axis; with kind=above of ``better`` alone.

        What one side alone names picks trials for both, and goes before what ``where`` says of that axis.
        """
        # In a list, so that a value that is a list is one value.
        better, worse = ({name: [value] for name, value in side.items()} for side in (self.better, self.worse))
        both = {**self.where, **better, **worse}
        return ({**both, **better}, both)[: 1 if self.kind == "above" else 2]

    @property
    def leads(self) -> tuple[Claim, ...]:
        """The claim at ``where`` and at ``than``, without the comparison of the two; () if there is no ``than``."""
        places = ({}, self.than) if self.than else ()
        return tuple(dataclasses.replace(self, where={**self.where, **place}, than={}) for place in places)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for YAML; ``than`` where there is one, since sweeps of before it have none."""
        return {name: value for name, value in super().to_mapping().items() if name != "than" or value}


@dataclass(frozen=True)
class Published(_Plain):
    """A figure of the paper, for the cell of a table at ``setting``.

    ``value`` has the unit of the metric: accuracies are fractions. With ``same_setting=False`` the figure is shown
    and not compared, and ``note`` says what differs.
    """

    setting: dict[str, Any]
    value: float
    same_setting: bool = True
    note: str = ""

    def __post_init__(self) -> None:
        make_plain(self, "setting")


@dataclass(frozen=True)
class PaperTable(_Plain):
    """A table: axes that go down, axes that go across, and what stands in the cells.

    An axis in neither is averaged over, seed by seed, unless ``where`` keeps one of its values. A list in ``where``
    means any of its values.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    metric: str = "last10_accuracy"
    source: str = ""
    published: tuple[Published, ...] = ()
    where: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        make_plain(self, "where")
        twice = ", ".join(name for name in {*self.axes} if self.axes.count(name) > 1)
        require(not twice, "table", twice, "is named twice", "let each axis go down or across")

    @property
    def axes(self) -> tuple[str, ...]:
        return self.rows + self.columns

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        published = tuple(map(Published.from_mapping, values.get("published", ())))
        axes = {name: tuple(values[name]) for name in ("rows", "columns")}
        return cls(**{**values, **axes, "published": published})
