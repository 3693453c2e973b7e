"""Tutorials: notebooks without outputs, which are run while the site is built, so that what a page shows is what comes.

A page is the notebook's text, its code and its outputs. Beside it lies the notebook with its outputs, to be downloaded.
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat  # pyright: ignore[reportMissingImports]
from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

from docs.site.place import DOCS

TUTORIALS = DOCS / "tutorials"
COLOURS = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
WAITING = re.compile("[\u2800-\u28ff] ")  # a line that tells that something goes on
SECONDS = 600.0  # that a cell may take; on two cores a whole notebook takes half a minute


@dataclass
class Executed:
    """A tutorial that has run: its page, and the files beside it by their names."""

    name: str
    page: str = ""
    files: dict[str, bytes] = field(default_factory=dict)


def executed(path: Path) -> Executed:
    """Run a notebook in an empty folder; raises nbclient's CellExecutionError where a cell fails."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            coalesce_streams=True,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=environment)
    found = Executed(path.stem, files={path.name: nbformat.writes(notebook).encode()})
    parts = [part for cell in notebook.cells for part in _cell(cell, found)]
    title, rest = parts[0], parts[1:]
    download = f"[This page as a notebook]({path.name}){{: download }}: it was run when the site was built."
    found.page = "\n\n".join([title, download, *rest]) + "\n"
    return found


def _cell(cell: Any, found: Executed) -> Iterator[str]:
    """Yield the Markdown of a cell; pictures go to the files."""
    if cell.cell_type == "markdown":
        yield cell.source
        return
    yield f"```python\n{cell.source}\n```"
    for output in cell.outputs:
        if output.output_type == "stream":
            yield from _text(output.text if output.name == "stdout" else "")
        elif output.output_type in ("display_data", "execute_result"):
            yield from _shown(output.data, found)


def _shown(data: Any, found: Executed) -> Iterator[str]:
    """Yield the richest form of what a cell shows."""
    if "image/png" in data:
        name = f"{found.name}-{len(found.files)}.png"
        found.files[name] = base64.b64decode(data["image/png"])
        yield f"![output of the cell above]({name})"
    elif "text/html" in data and "<table" in data["text/html"] and "dataframe" in data["text/html"]:
        table = re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.DOTALL)
        yield f'<div class="scroll" markdown="0">{"".join(line.strip() for line in table.splitlines())}</div>'
    elif "text/html" not in data or data["text/html"].startswith("<pre"):  # Rich's tables
        yield from _text(data.get("text/plain", ""))


def _text(text: str) -> Iterator[str]:
    """Yield what was printed, without colours and without lines that were written over."""
    lines = [line.rpartition("\r")[2] for line in COLOURS.sub("", text).replace("\r\n", "\n").split("\n")]
    if "".join(lines).strip():
        kept = "\n".join(line.rstrip() for line in lines if not WAITING.match(line)).strip("\n")
        yield f"```{{ .text .output .no-copy }}\n{kept}\n```"
