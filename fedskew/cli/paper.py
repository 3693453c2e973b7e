"""Whom to cite: ``fedskew cite``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.json_output import Json, print_json, print_line
from fedskew.cli.naming import With


def cite_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    as_json: Json = False,
    own: With = None,
) -> None:
    """Print the BibTeX of fedskew and of every method, data set, partition and architecture that a folder has used."""
    from fedskew.lab.paper.citations import citations  # with pandas

    text = citations(folder)
    if as_json:
        print_json({"folder": folder, "bibtex": text})
    else:
        print_line(text.rstrip("\n"))
