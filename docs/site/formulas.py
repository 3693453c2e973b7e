"""Formulas: LaTeX becomes MathML while the site is built, which browsers draw by themselves."""

from __future__ import annotations

import re

from latex2mathml.converter import convert  # pyright: ignore[reportMissingImports]

UNKNOWN = re.compile(r">(\\[a-zA-Z]+)<")


def formula(tex: str, in_line: bool = False) -> str:
    """Return LaTeX as MathML, on a line of its own or in a sentence; raises ValueError for an unknown command."""
    made = convert(tex, display="inline" if in_line else "block")
    unknown = UNKNOWN.search(made)
    if unknown is not None:
        raise ValueError(f"{unknown[1]} in {tex!r} is no LaTeX that MathML can be made of")
    if not in_line:
        made = made.replace('display="inline"', 'display="block"', 1)
    return made
