"""The splits of a user's own data: what they are called there, and test rows where no split has any."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from engine.base.declared import Doc, Ge, Gt, Lt, Neutral
from engine.base.errors import DataError, require
from engine.base.opening import read_text
from engine.data.samples.dataset import Source

OURS = ("train", "test")
MODES = {"grey": "L", "rgb": "RGB", None: None}  # what Pillow calls a colour
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")  # no name leads out of a folder


@dataclass(frozen=True, kw_only=True)
class OwnSource(Source):
    """Data of the user's own below ``root``.

    splits: our splits by the names that they have there, such as {test: valid}; None: train and test. test_fraction:
    the share of the training rows that become the test split, where the data have none; it has the class shares of the
    whole and is the same for every seed. None: there is a test split. size: resize images to ``size`` x ``size``
    pixels; None: they have one size. colour: what images become; None: they are all grey, or all coloured.
    """

    neutral: ClassVar[Mapping[str, Any]] = {"splits": None, "test_fraction": None, "colour": None}

    root: Annotated[str, Doc("folder with the files")]
    splits: Annotated[
        dict[str, str] | None,
        Doc("what the data call our splits, as in `{test: valid}`"),
        Neutral(None, "is train and test"),
    ] = None
    test_fraction: Annotated[
        float | None,
        Gt(0),
        Lt(1),
        Doc("share of the training rows that becomes the test split, where there is none, the same for every seed"),
        Neutral(None, "holds none out"),
    ] = None
    size: Annotated[
        int | None, Ge(1), Doc("resize to this many pixels a side"), Neutral(None, "leaves images as they are")
    ] = None
    colour: Annotated[
        Literal["grey", "rgb"] | None,
        Doc("make all images grey, or all coloured; null: they must be one or the other"),
        Neutral(None, "leaves images as they are"),
    ] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        rule, repair = "must name splits of the data for train or test", "for example data.splits='{test: valid}'"
        named = self.splits is None or (bool(self.splits) and set(self.splits) <= set(OURS))
        require(named and all(map(_NAME.fullmatch, self.names.values())), "splits", self.splits, rule, repair)
        one = self.names["train"] == self.names["test"]
        repair = "set data.test_fraction, for example to 0.1"
        require(not one, "splits", self.splits, "takes one split for both", repair)
        share = self.test_fraction
        rule = "cannot be set beside a test split, which data.splits names"
        require(share is None or "test" not in (self.splits or {}), "test_fraction", share, rule, "set one of the two")

    @property
    def names(self) -> dict[str, str]:
        """What the data call our splits, train and test."""
        return {ours: (self.splits or {}).get(ours, ours) for ours in OURS}

    def check_test(self, there: bool) -> None:
        """Raise :class:`ConfigError` where test rows would be taken from the training split, and there are some."""
        rule = f"takes test rows from the training split, and the data have a split {self.names['test']!r}"
        require(self.test_fraction is None or not there, "data.test_fraction", self.test_fraction, rule, "leave it out")


def snapshot(root: Path) -> Path:
    """Return the folder of the data below a data set's folder in the hub's cache, ``root`` itself where it is none.

    The snapshot is the one that refs/main names, or the only one; raises :class:`DataError` where that tells none.
    """
    caches = sorted(path.name for path in root.glob("datasets--*") if path.is_dir())
    if caches:
        raise DataError(f"data.root={root}: has data sets of the hub; give one as data.root: {', '.join(caches)}")
    below = root / "snapshots"
    if not below.is_dir():
        return root
    found = sorted(path.name for path in below.iterdir() if path.is_dir())
    try:
        main = read_text(root / "refs" / "main").strip()
    except (OSError, ValueError):
        main = ""
    if main not in found and len(found) != 1:
        there = ", ".join(found) or "none"
        repair = "download it again" if not found else f"give one, for example data.root={below / found[0]}"
        raise DataError(f"data.root={root}: which snapshot is meant is not said (there are: {there}); {repair}")
    return below / (main if main in found else found[0])
