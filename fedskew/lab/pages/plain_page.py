"""A page of facts, tables and pictures, one section after the other, that needs nothing else. All text is escaped."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
from markupsafe import Markup

from fedskew.lab.drawing import Drawing
from fedskew.lab.pages.theme import dressing, part

Fact = tuple[str, str, str]  # label, figure, detail


@dataclass(frozen=True)
class Table:
    """A table of the page, all text."""

    head: tuple[str, ...]
    rows: list[list[str]]
    prose: tuple[int, ...] = ()  # columns that hold sentences


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    note: str = ""
    table: Table | None = None
    drawings: Sequence[Drawing] = ()


def render(kind: str, title: str, name: str, facts: Sequence[Fact], sections: Sequence[Section]) -> str:
    """The page; ``kind`` is the command that made it, ``name`` what it is about."""
    return _template().render(
        kind=kind, title=title, name=name, facts=facts, sections=sections, svg=Markup, **dressing()
    )


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(part("plain.html.j2"))
