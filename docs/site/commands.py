"""The page of commands, from the commands themselves: what ``--help`` says, with a heading for each to link to."""

from __future__ import annotations

import re
from typing import Any

import typer.main

from fedskew.cli.main import app


def page() -> str:
    """Return the reference of every command, in the order of ``fedskew --help``."""
    root: Any = typer.main.get_command(app)
    parts = [
        "# Commands",
        "Made from the commands themselves: what `fedskew COMMAND --help` says, on one page. For a way through them "
        "see [the first tutorial](tutorials/first_run.md), for exit codes and messages [errors](errors.md).",
    ]
    context = root.make_context("fedskew", [], resilient_parsing=True)
    for name, command in root.commands.items():
        parts += _command(f"fedskew {name}", name, command, context, 2)
    return "\n\n".join(parts) + "\n"


def _command(whole: str, name: str, command: Any, parent: Any, level: int) -> list[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    parts = [f"{'#' * level} {whole}", _prose(command.help or "")]
    pieces = [piece for parameter in command.params for piece in parameter.get_usage_pieces(context)]
    parts.append(f"```sh\n{' '.join([whole, '[OPTIONS]', *pieces])}\n```")
    records = [parameter.get_help_record(context) for parameter in command.params]
    rows = [f"| `{form}` | {_cell(said)} |" for form, said in filter(None, records)]
    if rows:
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    for inner, child in getattr(command, "commands", {}).items():
        parts += _command(f"{whole} {inner}", inner, child, context, level + 1)
    return parts


def _cell(said: str) -> str:
    """Return a help text for a table, with what stands in brackets, a default above all, as code."""
    said = re.sub(r"\s*\[(default|env var): ([^\]]+)\]", r" (\1: `\2`)", _prose(said))
    return said.replace("[required]", "(required)").replace("<", "&lt;").replace("|", "\\|")


def _prose(text: str) -> str:
    """Return the text of a help as Markdown, its paragraphs kept."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text.replace("\b", "")).strip()
