"""BibTeX that a part of one's own brings: entries in the docstring of its class or, where that has none, of its module.

Docstrings are in no hash of code, so that an entry which is added or mended later leaves results what they are.
"""

from __future__ import annotations

import inspect
import re
import sys

from engine.base.errors import ConfigError
from engine.experiment import CHOICES


def brought(section: str, name: str) -> dict[str, str] | None:
    """Return the entries of a part by their keys, {} if it has none; None of a part that is not known here.

    Raises :class:`ConfigError` for an entry without an end.
    """
    registry = CHOICES[section]
    if name not in registry.names():
        return None
    part = registry.find(name)
    for text in (part.__doc__, getattr(sys.modules.get(part.__module__), "__doc__", None)):
        if found := _entries(text or "", f"{section}.name", name):
            return found
    return {}


def _entries(text: str, field: str, name: str) -> dict[str, str]:
    found, text = dict[str, str](), inspect.cleandoc(text)
    for head in re.finditer(r"^\s*(@\w+\{([^\s,{}]+),)", text, re.MULTILINE):
        depth, end = 1, head.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise ConfigError(field, name, f"brings the entry {head[2]}, whose braces do not close", "close them")
        found[head[2]] = inspect.cleandoc(text[head.start(1) : end])
    return found
