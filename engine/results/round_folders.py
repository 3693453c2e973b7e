"""Folders, inside a run's, for what a later command found of one of its rounds.

RUN/diagnosis/round-000020/            of ``fedskew diagnose``, of a run with stages round-000020-STAGE/
RUN/images/round-000020/               of ``fedskew images``
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.experiment import Experiment

Kind = Literal["diagnosis", "images"]
KINDS: tuple[Kind, ...] = ("diagnosis", "images")


def folder_of(run: Path, kind: Kind, experiment: Experiment, stage: str, number: int) -> Path:
    """Return the folder of a round; of stages that branch several may have its number."""
    suffix = f"-{stage}" if experiment.stages else ""
    return run / kind / f"round-{number:06d}{suffix}"


def latest(run: Path, kind: Kind) -> Path | None:
    """Return the folder of the last round that the command has looked into, if there is one."""
    found = sorted((run / kind).glob("round-*/summary.json"))
    return found[-1].parent if found else None
