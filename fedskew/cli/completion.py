"""What the Tab key is answered: commands, options, names and keys, from a file and without torch, so that it is quick.

The scripts for the shells are typer's (``fedskew --install-completion``, ``--show-completion``): they call ``fedskew``
with the words so far in the environment and read words, one a line. Imports next to nothing, as ``entry.py`` does.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("completion_words.json")
Words = Mapping[str, str]  # a word -> its help, which may be empty


def answer(environment: Mapping[str, str]) -> int | None:
    """Print what a shell asks for, and return the exit code; None where nothing is asked that is known here."""
    how = environment.get("_FEDSKEW_COMPLETE", "")
    if how not in ("complete_bash", "complete_zsh", "complete_fish"):
        return None
    if how == "complete_bash":
        typed, place = _split(environment.get("COMP_WORDS", "")), int(environment.get("COMP_CWORD", "0"))
        before, begun = typed[1:place], typed[place] if place < len(typed) else ""
    else:
        text = environment.get("_TYPER_COMPLETE_ARGS", "")
        typed = _split(text)[1:]
        before, begun = (typed, "") if not typed or text[-1:].isspace() else (typed[:-1], typed[-1])
    found = candidates(before, begun, json.loads(FILE.read_text(encoding="utf-8")))
    if how == "complete_fish" and environment.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1  # 1: the shell offers files
    if how == "complete_zsh":
        lines = [_for_zsh(word, told) for word, told in found.items()]
        sys.stdout.write("_arguments '*: :(({}))'\n".format("\n".join(lines)) if found else "_files\n")
        return 0
    tab = how == "complete_fish"
    sys.stdout.write("".join(f"{word}\t{told}\n" if tab and told else f"{word}\n" for word, told in found.items()))
    return 0


def candidates(before: list[str], begun: str, known: Mapping[str, Any]) -> dict[str, str]:
    """Return the words that may stand where ``begun`` does, after ``before``, with a line on each; none: a file.

    known: the content of the file, see :mod:`fedskew.cli.completion_words`. Bash gives ``key=value`` as three words.
    """
    if not before:
        return _beginning(begun, known["commands"])
    command, last = before[0], before[-1]
    if begun.startswith("-"):
        return _beginning(begun, known["options"].get(command, {}))
    if last in known["values"]:
        return _beginning(begun, dict.fromkeys(known["values"][last], ""))
    if begun == "=" or last == "=" or last.endswith("="):
        key = last if begun == "=" else before[-2] if last == "=" and len(before) > 1 else last[:-1]
        return _beginning("" if begun == "=" else begun, dict.fromkeys(known["keys"].get(key, ()), ""))
    key, equals, value = begun.partition("=")
    if equals:
        return {f"{key}={word}": "" for word in known["keys"].get(key, ()) if word.startswith(value)}
    names = _beginning(begun, known["names"].get(command, {})) if len(before) == 1 else {}
    keys = known["keys"] if command in known["takes_keys"] and (begun or len(before) > 1) else {}
    return names | _beginning(begun, {f"{key}=": "" for key in keys})


def _beginning(begun: str, words: Words) -> dict[str, str]:
    return {word: told for word, told in words.items() if word.startswith(begun)}


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # within quotes
        return text.split()


def _for_zsh(word: str, told: str) -> str:
    shown = [one.replace('"', '""').replace("'", "''").replace("$", "\\$").replace("`", "\\`") for one in (word, told)]
    return ":".join(f'"{one}"' for one in (text.replace(":", r"\\:") for text in shown) if one)


def main() -> None:
    """Answer a shell and end, if one asks."""
    code = answer(os.environ)
    if code is not None:
        sys.stdout.flush()
        os._exit(code)  # nothing is open, and Python's own end takes longer than the answer
