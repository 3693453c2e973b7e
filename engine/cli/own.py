"""Own parts: ``fedskew check``, which holds them to the rules of the engine, and ``fedskew new``, which begins one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.base.errors import ConfigError, one_line
from engine.cli.naming import With
from engine.cli.show import console, print_result


def check_command(
    what: Annotated[str, typer.Argument(help="a Python file with parts of your own, or the name of a part")],
    full: Annotated[bool, typer.Option("--full", help="on one, two and three Ray actors and on a card, too")] = False,
    own: With = None,
) -> None:
    """Check parts at their defaults on small data: a line for each check, exit code 1 if one fails."""
    from engine.studies.conformance import loaded  # with the whole engine

    is_file = what.endswith(".py") or os.path.exists(what)
    parts = loaded.of_file(Path(what), "FILE") if is_file else loaded.of_name(what, "NAME")
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for part in parts:
        print_result(f"{part.section} {part.name}")
        for status in _checked(part, full):
            counts[status] += 1
    print_result(f"{counts['ok']} ok, {counts['FAILED']} failed, {counts['skipped']} skipped")
    if counts["FAILED"]:
        raise typer.Exit(1)


def _checked(registered: Any, full: bool) -> Iterator[str]:
    """Make the checks of one part, a line for each; how each ended."""
    from engine.experiment import CHOICES
    from engine.studies.conformance.checks import checks_of, outcome

    try:
        part = CHOICES[registered.section].build({"name": registered.name})
    except ConfigError as error:
        repair = "give each field a default, or check it with values of your own by fedskew.testing"
        print_result(_line("FAILED", "has_defaults", f"{error}; {repair}"))
        yield "FAILED"
        return
    for check in checks_of(part, full):
        status, told = outcome(check, part)
        print_result(_line(status, check.name, told))
        yield status


def _line(status: str, name: str, told: str) -> str:
    return one_line(f"  {status:<7}  {name}{': ' if told else ''}{told}")


def new_command(
    kind: Annotated[str, typer.Argument(help="algorithm | model | data | partition")],
    name: Annotated[str, typer.Argument(help="of the part, and of its file")],
    out: Annotated[Path, typer.Option(help="the folder to write to")] = Path("."),
) -> None:
    """Write NAME.py and test_NAME.py, a part that passes its checks as it is, to go on from."""
    from engine.studies.conformance import beginnings

    path, test = beginnings.write(kind, name, out)
    console.print(f"wrote {path} and {test}; next:", highlight=False, soft_wrap=True, markup=False)
    for command in beginnings.next_commands(kind, name, path, test):
        print_result(f"  {command}")
