"""What a command prints, by one rule: results go to standard output, all that is for people to standard error.

With ``--json`` standard output is one JSON object in one line, and nothing else: tables, progress, warnings and what a
user's code prints go to standard error. A command that is refused or fails prints ``{"error": {...}}`` beside the
sentence on standard error. docs/scripting.md has the keys of each command.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.table import Table

from engine.base.errors import ConfigError, FedskewError, RunError
from engine.base.json_text import json_text
from engine.base.opening import regular
from fedskew.cli import child
from fedskew.lab.shown import plain_console, printable

Json = Annotated[
    bool,
    typer.Option("--json", help="print one JSON object to standard output, and all else to standard error"),
]

WRONG = ("field", "value", "rule", "repair")  # of a ConfigError


console = plain_console(stderr=True)


def table(head: Sequence[str], rows: Iterable[Iterable[object]], title: str | None = None, **options: Any) -> Table:
    """Return a table for a console, its title on the left."""
    made = Table(*head, title=title, title_justify="left", **options)
    for row in rows:
        made.add_row(*map(str, row))
    return made


def say(text: object) -> None:
    """Print a text for people to standard error, as it is: no line is broken, nothing is coloured."""
    console.print(text, highlight=False, soft_wrap=True)


def print_result(text: str) -> None:
    """Print what programs read to standard output."""
    stream = _Object.stream or sys.stdout
    print(printable(text) if stream.isatty() else text, file=stream, flush=True)


def print_line(text: str) -> None:
    """Print a line for people to standard output, or to standard error where that is kept for the object."""
    if _Object.wanted:
        say(text)
    else:
        print_result(text)


def leave_streams_to_ray() -> None:
    """Let what Ray's threads print go to the file of the libraries' texts, before this process uses Ray."""
    if child.is_child():
        console.file, _Object.stream = sys.stderr, _Object.stream or sys.stdout
        sys.stdout = sys.stderr = open(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)  # noqa: SIM115


class _Object:
    """What has become of this command's JSON object so far."""

    wanted = False
    printed = False
    stream: TextIO | None = None  # standard output, where it is kept for the object


def json_wanted() -> bool:
    """Return whether this command was given ``--json``."""
    return _Object.wanted


@contextlib.contextmanager
def alone_on_stdout(words: Sequence[str]) -> Iterator[None]:
    """Keep standard output for the object, if ``words``, the command's, ask for one."""
    _Object.wanted, _Object.printed = "--json" in words, False
    if not _Object.wanted:
        yield
        return
    kept = _Object.stream = sys.stdout
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        if not child.is_child():  # which ends now, and Ray's threads may print until then
            sys.stdout, _Object.stream = kept, None


def print_json(document: Mapping[str, Any]) -> None:
    """Print the command's object in one line, if one is wanted; numbers that are not finite are null."""
    if _Object.wanted and not _Object.printed:
        print_result(json_text(document))
        _Object.printed = True


def print_error(error: FedskewError) -> None:
    """Print an error as the command's object: kind, sentence, exit code and, of a field, what is wrong with it."""
    wrong = WRONG if isinstance(error, ConfigError) else ()
    values = {name: getattr(error, name) for name in wrong}
    print_ended(type(error).__name__, str(error), error.exit_code, **values)


def print_ended(kind: str, message: str, code: int, **wrong: Any) -> None:
    """Print the object of a command that ended without its own: an error, wrong words, Ctrl-C."""
    error = {"kind": kind, "message": message, **dict.fromkeys(WRONG), **wrong}
    print_json({"error": {**error, "exit_code": code}})


def unforeseen(error: Exception, log: Path | None = None, again: str = "") -> RunError:
    """Return an error that was not written for users, such as of a hook, as one sentence with its traceback's place.

    The traceback is added to the end of ``log``, or written to a file of its own; ``again``: how to go on.
    """
    text = "".join(traceback.format_exception(error))
    kept = None
    if log is not None:
        with contextlib.suppress(OSError), open(log, "a", encoding="utf-8", opener=regular) as file:
            file.write(text)
            kept = log
    if kept is None:
        handle, kept = tempfile.mkstemp(prefix="fedskew-", suffix=".txt")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
    sentence = f"{type(error).__name__}: {error} (the traceback is at the end of {kept})"
    return RunError(f"{sentence}; {again}" if again else sentence)
