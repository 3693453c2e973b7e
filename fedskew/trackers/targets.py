"""Where results go, as users name it: ``mlflow:http://127.0.0.1:5000``, ``tensorboard:FOLDER``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine.base.errors import ConfigError, nearest, require
from fedskew.trackers.records import Tracker

TRACKERS = ("mlflow", "tensorboard", "wandb")


@dataclass(frozen=True)
class Target:
    """A tracker, and its place: a folder, or for MLflow any URI that it knows."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{without_password(self.place)}"

    def open(self) -> Tracker:
        """Import the tracker's library and reach its store; the errors are the library's own."""
        if self.kind == "mlflow":
            from fedskew.trackers.mlflow_store import Mlflow

            return Mlflow(self.place)
        if self.kind == "tensorboard":
            from fedskew.trackers.tensorboard_events import TensorBoard

            return TensorBoard(self.place)
        from fedskew.trackers.wandb_runs import WandB

        return WandB(self.place)


def parsed(texts: Iterable[str], option: str = "--track") -> tuple[Target, ...]:
    """Return the trackers that ``KIND:PLACE`` names; raises :class:`ConfigError` for what none can be made of."""
    found = []
    for text in texts:
        kind, colon, place = text.partition(":")
        require(kind in TRACKERS, option, without_password(text), "names no tracker", nearest(kind, TRACKERS))
        require(bool(colon and place), option, text, "names no place", f"for example {kind}:FOLDER")
        found.append(checked(Target(kind, place), option))
    return tuple(found)


def checked(target: Target, option: str) -> Target:
    """Return ``target`` where its library is installed; raises :class:`ConfigError` where it is not."""
    check_installed(target.kind, option)
    return target


def check_installed(kind: str, option: str) -> None:
    """Raise :class:`ConfigError` where the library of the extra ``kind`` is not installed."""
    if find_spec(kind) is None:
        raise ConfigError(option, kind, "is not installed", f"pip install 'fedskew[{kind}]'")


def default_place(kind: str, folder: Path) -> str:
    """Return the place of a tracker that none was named for: beside the folder, which so holds what is its own."""
    if kind == "mlflow" and os.environ.get("MLFLOW_TRACKING_URI"):
        return os.environ["MLFLOW_TRACKING_URI"]
    return str(folder.resolve().parent / kind)


def check_outside(target: Target, folder: Path, option: str) -> None:
    """Refuse a place in the folder itself, which would hold a tracker's files, and links, with its own."""
    if "://" in target.place or target.place == "databricks":
        return
    inside = folder.resolve() in (Path(target.place).resolve(), *Path(target.place).resolve().parents)
    require(not inside, option, target.place, f"lies in {folder}", "name a folder beside it")


def without_password(text: str) -> str:
    """Return a URI without the user and the password that it may hold."""
    return re.sub(r"//[^/@\s]*@", "//", text)
