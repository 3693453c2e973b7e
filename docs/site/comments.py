"""The comment of a field: what stands behind it, or in the lines above it, is its documentation."""

from __future__ import annotations

import io
import tokenize
from collections.abc import Sequence


def comment_of(lines: Sequence[str], first: int, last: int) -> str:
    """Return what a file says of the field in its lines ``first`` to ``last``, counted from 1; "" if nothing."""
    above = []
    for line in reversed(lines[: first - 1]):
        text = line.strip()
        if not text.startswith("#") or text.startswith("# ---"):
            break
        above.insert(0, text)
    source = "\n".join(line.strip() for line in lines[first - 1 : last]) + "\n"
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    behind = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return " ".join(text.lstrip("#").strip() for text in [*above, *behind])
