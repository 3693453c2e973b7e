"""What a paper needs beside figures: ``fedskew cite``, and the checklist of ``fedskew report --checklist``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engine.base.files import write_atomically, writing
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


def write_checklist(folder: Path) -> Path:
    """Write ``report/checklist.md`` and print it; return where it is."""
    from fedskew.lab.paper import checklist  # with pandas

    text = checklist(folder)
    path = folder / "report" / "checklist.md"
    with writing(folder):
        write_atomically(path, text)
    print_line(text.rstrip("\n"))
    return path
