"""Pages that are files beside docs/: the README's beginning, the changelog, and files of code that pages link to."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from docs.site.place import ROOT

INCLUDE = re.compile(r"^<!-- include (?P<file>\S+) from (?P<first>.+) to (?P<last>.+) -->$", re.MULTILINE)


def with_parts(text: str, relinked: Callable[[str, Path], str]) -> str:
    """Return a page with each line ``<!-- include FILE from TEXT to TEXT -->`` replaced by that part of the file.

    The part begins at the first text and ends before the second one, which are written in backticks. ``relinked``: the
    part and its folder -> the part with the page's links.
    """

    def part(asked: re.Match[str]) -> str:
        first, last = (asked[name].strip("`") for name in ("first", "last"))
        file = ROOT / asked["file"]
        whole = file.read_text(encoding="utf-8")
        if first not in whole or last not in whole.partition(first)[2]:
            raise ValueError(f"{asked['file']} has no part from {first!r} to {last!r}")
        start = whole.index(first)
        return relinked(whole[start : whole.index(last, start + len(first))], file.parent)

    return INCLUDE.sub(part, text)


def code_page(file: Path) -> str:
    """Return the page of a file of code, with its lines numbered."""
    name, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
    fence = "`" * max([3, *(len(ticks) + 1 for ticks in re.findall(r"`{3,}", text))])
    language = {".py": "python", ".json": "json", ".yaml": "yaml", ".md": "markdown"}.get(file.suffix, "text")
    return f"# {name}\n\n{fence}{language} {{ .{language} linenums=1 }}\n{text.rstrip()}\n{fence}\n"
