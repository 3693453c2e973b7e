"""HTML pages that need nothing else: one skeleton, one style, one script, the same tables and figures in all of them.

It offers ``render``, which fills a template of this folder, and ``Section`` and ``text_table`` for the plain pages of
studies. All text is escaped.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
import pandas as pd
from markupsafe import Markup

from fedskew.lab.drawing import Drawing
from fedskew.lab.pages.tables import Cell, Table

__all__ = ["Fact", "Section", "render", "render_plain", "text_table"]

Fact = tuple[str, str, str]  # label, figure, detail


@dataclass(frozen=True)
class Section:
    """A heading of a plain page and what stands below it."""

    heading: str
    note: str = ""
    table: Table | None = None
    drawings: Sequence[Drawing] = ()


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], prose: Sequence[int] = ()) -> Table:
    """Make a table of nothing but text; prose: numbers of the columns that hold sentences."""
    cells = [[Cell(text, style="long" if n in prose else "") for n, text in enumerate(row)] for row in rows]
    return Table("", "", "", head, cells, pd.DataFrame())


def render_plain(kind: str, title: str, name: str, facts: Sequence[Fact], sections: Sequence[Section]) -> str:
    """Render a page of facts and sections; ``kind`` is the command that made it, ``name`` what it is about."""
    return render("plain.html.j2", kind=kind, title=title, name=name, facts=facts, sections=sections)


def render(template: str, **values: Any) -> str:
    """Fill a template of this folder; each needs ``kind``, ``name``, ``title`` and ``facts``."""
    return _environment().get_template(template).render(**_style_and_script(), **values)


@functools.cache
def _environment() -> jinja2.Environment:
    options: dict[str, Any] = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    return jinja2.Environment(loader=jinja2.FunctionLoader(_part), undefined=jinja2.StrictUndefined, **options)


def _part(name: str) -> str:
    return resources.files("fedskew.lab.pages").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _style_and_script() -> dict[str, Markup | str]:
    """Give style and script of a page, and the hash by which its content policy allows the script."""
    script = _part("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return {"style": Markup(_part("page.css")), "script": Markup(script), "script_hash": digest}
