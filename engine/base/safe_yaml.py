"""YAML of plain data, read within limits: what is in a file may have been written by anybody.

Tags can name no class, and a text is refused before anything is made of it if it is long, deep, or a few lines whose
aliases stand for gigabytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

LONGEST = 16 * 2**20  # characters of a text, and bytes of a file
DEEPEST = 64  # lists and mappings inside of each other
MOST = 1_000_000  # values, each alias counted as all that it stands for

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast where PyYAML has been built with it


class NotYaml(ValueError):
    """A text that is no YAML, or one too large to be a config; told in one line."""


def parse(text: str) -> Any:
    """Return the value that ``text`` stands for (dictionaries, lists, texts, numbers, dates, None), or raise
    :class:`NotYaml`.
    """
    try:
        if len(text) > LONGEST:
            raise NotYaml(f"it has {len(text):,} characters, more than {LONGEST:,}")
        _check_size(text)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise NotYaml(" ".join(str(error).split())) from None
    except NotYaml:
        raise
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        # Of the constructors: a 13th month, !!bool maybe, a number of 5,000 digits.
        raise NotYaml(f"it has a value that cannot be read: {' '.join(str(error).split())}") from None


def read(path: Path) -> Any:
    """Return the value in a file; raises OSError or :class:`NotYaml`."""
    if path.exists() and not path.is_file():  # a device or a pipe has no end
        raise NotYaml("it is a folder" if path.is_dir() else "it is not a file")
    try:
        with open(path, "rb") as file:
            content = file.read(LONGEST + 1)
    except ValueError as error:
        raise NotYaml(f"its name is none: {error}") from None
    if len(content) > LONGEST:
        raise NotYaml(f"it is longer than {LONGEST:,} bytes")
    try:
        return parse(content.decode())
    except UnicodeDecodeError as error:
        raise NotYaml(f"it is not UTF-8: {error}") from None


def _check_size(text: str) -> None:
    """Raise :class:`NotYaml` for a text that is too deep or stands for too many values, by its events alone."""
    open_ones: list[tuple[str | None, int]] = []  # anchor and size so far of each list and mapping not yet closed
    sizes: dict[str, int] = {}  # anchor -> values
    total = 0
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((event.anchor, 1))
            if event.anchor:
                sizes[event.anchor] = 0  # open: an alias to it would be part of itself
            if len(open_ones) > DEEPEST:
                raise NotYaml(f"it is more than {DEEPEST} levels deep")
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_ones.pop()
        elif isinstance(event, yaml.ScalarEvent):
            anchor, size = event.anchor, 1
        elif isinstance(event, yaml.AliasEvent):
            anchor, size = None, sizes.get(event.anchor, 1)
            if size == 0:
                raise NotYaml(f"the alias *{event.anchor} is part of what it stands for")
        else:
            continue
        if anchor:
            sizes[anchor] = size
        total = size
        if open_ones:
            above, total = open_ones[-1][0], open_ones[-1][1] + size
            open_ones[-1] = above, total
        if total > MOST:
            raise NotYaml(f"it stands for more than {MOST:,} values")
