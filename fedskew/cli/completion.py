"""What the Tab key is answered where names, dotted keys or their words are typed; commands, options, files and the
scripts for the shells are typer's (``fedskew --install-completion``).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from textwrap import shorten

import typer

from engine.base.declared import declared
from engine.experiment import CHOICES, SECTIONS, keys
from tune_configs import EXPERIMENTS, SWEEPS

HELP = 60  # characters of a text beside a word: typer breaks long ones, and fish takes each line for a word


def sweeps() -> list[str]:
    """Return the names of all sweeps."""
    return [f"{module}.{function}" for module, functions in SWEEPS.items() for function in functions]


def experiments_and_keys(ctx: typer.Context, incomplete: str) -> Iterator[str | tuple[str, str]]:
    """Yield what ``fedskew run`` takes: a name with a line on it where the first word is typed, then ``key=value``."""
    if not ctx.params.get("what"):
        for name, function in EXPERIMENTS.items():
            yield name, shorten(inspect.getdoc(function) or "", HELP)
        yield from sweeps()
    yield from assignments(ctx, incomplete)


def assignments(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the keys that may be set, or the words that the key which has been typed may be set to.

    Bash gives ``key=value`` as three words, of which the second is lost on the way here; other shells give one.
    """
    before = ctx.params.get("what") or ctx.params.get("overrides") or [""]
    known, last = keys(), before[-1].removesuffix("=")
    key, equals, _ = incomplete.partition("=")
    if equals:
        return [f"{key}={word}" for word in words_of(key)]
    return words_of(last) if last in known else [f"{key}=" for key in known] if incomplete or before[-1] else []


def words_of(key: str) -> list[str]:
    """Return the words that a dotted key may be set to, of whatever choice; [] where it takes numbers or any text."""
    section, _, field = key.partition(".")
    if section in CHOICES and field == "name":
        return CHOICES[section].names()
    kinds = CHOICES[section].values() if section in CHOICES else [SECTIONS[section]] if section in SECTIONS else []
    said = [declared(kind)[field].words for kind in kinds if field in declared(kind)]
    return list(dict.fromkeys(word for words in said for word in words))
