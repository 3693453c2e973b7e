"""YAML of plain data, read within limits: what is in a file may have been written by anybody.

Tags can name no class, and a text is refused before anything is made of it if it is long, deep, a few lines whose
aliases stand for gigabytes, or has a key twice in one mapping.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from engine.base.opening import NotAFile, regular

LONGEST = 16 * 2**20  # characters of a text, and bytes of a file
DEEPEST = 64  # lists and mappings inside of each other
TOO_DEEP = f"it is more than {DEEPEST} levels deep"
DIGITS = 250  # of a whole number, be they of 16: a real number has no place for more
TOO_LONG, WHOLE = f"it has a number of more than {DIGITS} digits", "tag:yaml.org,2002:int"
MOST = 1_000_000  # values, each alias counted as all that it stands for

# Ten times as fast where PyYAML has been built with them.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


_resolver = yaml.resolver.Resolver()  # of plain words: whether 1 is a number


class NotYaml(ValueError):
    """A text that is no YAML, or one too large to be a config; told in one line."""


class KeyTwice(NotYaml):
    """A mapping that has one key twice, of which Python's would keep the second one alone."""


def parse(text: str) -> Any:
    """Return the value that ``text`` stands for (dictionaries, lists, texts, numbers, dates, None), or raise
    :class:`NotYaml`.
    """
    try:
        if len(text) > LONGEST:
            raise NotYaml(f"it has {len(text):,} characters, more than {LONGEST:,}")
        _check_events(text)
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        if "nesting depth" in str(error):  # the limit that PyYAML has of its own, from 6.0.4 on
            raise NotYaml(TOO_DEEP) from None
        # The stream has no name here: whoever knows the file's names it.
        raise NotYaml(" ".join(str(error).split()).replace('in "<unicode string>", ', "in ")) from None
    except NotYaml:
        raise
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError) as error:
        # Of the constructors: a 13th month, !!bool maybe, a number of 5,000 digits.
        raise NotYaml(f"it has a value that cannot be read: {' '.join(str(error).split())}") from None


def text_of(values: Any) -> str:
    """Return plain data as the text of a YAML file, in their order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read(path: Path) -> Any:
    """Return the value in a file; raises OSError or :class:`NotYaml`."""
    if path.is_dir():
        raise NotYaml("it is a folder")
    try:
        with open(path, "rb", opener=regular) as file:
            content = file.read(LONGEST + 1)
    except NotAFile as error:
        raise NotYaml(str(error)) from None
    except ValueError as error:
        raise NotYaml(f"its name is none: {error}") from None
    if len(content) > LONGEST:
        raise NotYaml(f"it is longer than {LONGEST:,} bytes")
    try:
        return parse(content.decode())
    except UnicodeDecodeError as error:
        raise NotYaml(f"it is not UTF-8: {error}") from None


def whole(digits: str) -> int:
    """Return the number, or raise :class:`NotYaml` for one so long that no real number has a place for it."""
    if len(digits) > DIGITS:
        raise NotYaml(TOO_LONG)
    return int(digits)


class _Keys:
    """Refuses a key that a mapping has already, told each node of a text in order."""

    def __init__(self) -> None:
        # Of each list and mapping not yet closed: key -> its line, and whether a key comes next; None for a list.
        self._open: list[tuple[dict[tuple[str, str], int], bool] | None] = []
        self._anchored: dict[str, tuple[str, str]] = {}  # anchor -> a key that an alias may stand for

    def node(self, event: yaml.Event) -> None:
        """Take a list's or mapping's start, a scalar or an alias; raises :class:`KeyTwice`."""
        key = None
        if isinstance(event, yaml.ScalarEvent):
            key = _scalar(event)
            if event.anchor:
                self._anchored[event.anchor] = key
        elif isinstance(event, yaml.AliasEvent):
            key = self._anchored.get(event.anchor)
        if self._open and (above := self._open[-1]) is not None:
            lines, comes = above
            if comes and key is not None:
                line = event.start_mark.line + 1
                if key in lines:
                    raise KeyTwice(f"it has the key {key[1][:60]!r} twice, in line {lines[key]} and in line {line}")
                lines[key] = line
            self._open[-1] = lines, not comes
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append(({}, True) if isinstance(event, yaml.MappingStartEvent) else None)

    def close(self) -> None:
        """Take the end of a list or mapping."""
        self._open.pop()


def _scalar(event: yaml.ScalarEvent) -> tuple[str, str]:
    """Return type and text: the number 1 is another key than the text "1"."""
    if event.tag not in (None, "!"):
        return event.tag, event.value
    return _resolver.resolve(yaml.ScalarNode, event.value, event.implicit), event.value


def _check_events(text: str) -> None:
    """Raise :class:`NotYaml` for a text that is too deep, stands for too many values or has a key twice.

    It is known by its events alone, before anything is made of them.
    """
    open_ones: list[tuple[str | None, int]] = []  # anchor and size so far of each list and mapping not yet closed
    sizes: dict[str, int] = {}  # anchor -> values
    total, keys = 0, _Keys()
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.NodeEvent):
            keys.node(event)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > DIGITS and _scalar(event)[0] == WHOLE:
            raise NotYaml(TOO_LONG)
        if isinstance(event, yaml.CollectionStartEvent):
            open_ones.append((event.anchor, 1))
            if event.anchor:
                sizes[event.anchor] = 0  # open: an alias to it would be part of itself
            if len(open_ones) > DEEPEST:
                raise NotYaml(TOO_DEEP)
            continue
        if isinstance(event, yaml.CollectionEndEvent):
            keys.close()
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
