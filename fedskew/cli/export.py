"""``fedskew export``, and ``--track`` of run, resume and sweep."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from engine.base.errors import require
from fedskew.cli.json_output import Json, print_json
from fedskew.cli.naming import With
from fedskew.cli.show import console
from fedskew.trackers.tracking import Target, parsed

Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="KIND:PLACE", help="tell a tracker as it goes: mlflow:, tensorboard:, wandb:"),
]


def export_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    to: Annotated[str, typer.Option("--to", help="mlflow | tensorboard | wandb | csv | parquet")],
    uri: Annotated[str | None, typer.Option(help="of MLflow's server or store")] = None,
    out: Annotated[Path | None, typer.Option(help="a folder to write to; none: one beside the run's")] = None,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Bring results to a tracker or into files; what is there already is not added again."""
    require(uri is None or out is None, "--uri", uri, "and --out both name a place", "give one of them")
    from fedskew.trackers.exporting import exported

    done = exported(folder, to, uri or (str(out) if out else None))
    say(logging.INFO, f"exported   {done.place}: {done.summary}")
    print_json({"folder": folder, "to": to, "place": done.place, "new": done.new})


def targets(texts: Sequence[str] | None) -> tuple[Target, ...]:
    """Return the trackers that were named, refused before anything starts where none can be made of one."""
    return parsed(texts or ())


def say(level: int, text: str) -> None:
    """Print a tracker's line, of whatever level."""
    console.print(text, highlight=False, soft_wrap=True, markup=False)
