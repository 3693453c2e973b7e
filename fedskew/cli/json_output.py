"""``--json``, one rule for every command: standard output is one JSON object in one line, and nothing else.

All that is for people, progress and warnings among it, goes to standard error, and so does what code of the user's own
prints. A command that is refused or fails has one object, too, ``{"error": {...}}``, beside the sentence on standard
error. The keys of each command's object are in ``documents.py``.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.base import last_word
from engine.base.errors import ConfigError, FedskewError
from fedskew.cli.show import console, print_result, results_to

Json = Annotated[
    bool,
    typer.Option("--json", help="print one JSON object to standard output, and all else to standard error"),
]


class _Said:
    """What has become of this command's object so far."""

    asked = False
    printed = False


def asked() -> bool:
    """Return whether this command was given ``--json``."""
    return _Said.asked


@contextlib.contextmanager
def alone_on_stdout(words: Sequence[str]) -> Iterator[None]:
    """Keep standard output for the object, if ``words``, the command's, ask for one."""
    _Said.asked, _Said.printed = "--json" in words, False
    if not _Said.asked:
        yield
        return
    with results_to(sys.stdout), contextlib.redirect_stdout(sys.stderr):
        yield


def print_json(document: Mapping[str, Any]) -> None:
    """Print the command's object in one line, if one was asked for; numbers that are not finite are null."""
    if _Said.asked and not _Said.printed:
        _Said.printed = True
        print_result(json.dumps(plain(document), allow_nan=False))
        last_word.answered()


def print_line(text: str) -> None:
    """Print a line for people to standard output, or to standard error where that is kept for the object."""
    if _Said.asked:
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    else:
        print_result(text)


def error_parts(error: FedskewError) -> dict[str, Any]:
    """Return what the object of an error says: its kind, sentence, exit code and, of a wrong field, what is wrong."""
    wrong = error if isinstance(error, ConfigError) else None
    told = {name: getattr(wrong, name, None) for name in ("field", "value", "rule", "repair")}
    return plain({**told, "kind": type(error).__name__, "message": str(error), "exit_code": error.exit_code})


def print_error(parts: Mapping[str, Any]) -> None:
    """Print an error of these parts as the command's object, if one was asked for and none has been printed."""
    print_json({"error": dict.fromkeys(("field", "value", "rule", "repair")) | dict(parts)})


def print_ended(kind: str, message: str, code: int) -> None:
    """Print, as :func:`print_error`, what is no error of the engine's: wrong words, Ctrl-C."""
    print_error({"kind": kind, "message": message, "exit_code": code})


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: paths and whatever else JSON lacks as text, NaN and infinity as None."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path) or not callable(getattr(value, "item", None)):
        return str(value)
    return plain(value.item())  # a number of numpy's or torch's
