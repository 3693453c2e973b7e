"""A sweep with claims, a table and a failure, and its page read back."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.support.sweep_folders import make_sweep

ATTACK = "<script>alert(1)</script>"
CLAIMS: list[dict[str, Any]] = [
    {
        "text": f"A little of the proximal term helps {ATTACK}",
        "source": "Li et al. 2020, figure 2",
        "better": {"mu": 0.1},
        "worse": {"mu": 0.0},
    },
    {
        "text": "It gains more than twenty points",
        "source": "nobody",
        "better": {"mu": 0.1},
        "worse": {"mu": 0.0},
        "margin": 0.2,
    },
    {
        "text": "Less of it is better than more",
        "source": "nobody",
        "better": {"mu": 0.01},
        "worse": {"mu": 1.0},
        "where": {"alpha": 0.5},
    },
]
TABLE: dict[str, Any] = {
    "title": "FedProx & its mu",
    "rows": ["mu"],
    "columns": ["alpha"],
    "source": "Li et al. 2020, table 1",
    "published": [
        {"setting": {"mu": 0.1, "alpha": 0.05}, "value": 0.7316},
        {"setting": {"mu": 0.0, "alpha": 0.5}, "value": 0.9127, "same_setting": False, "note": "with 100 clients"},
    ],
}
FAILED = 7
REASON = "RunError: weights are not finite in round 3"


def small(folder: Path, **fields: Any) -> Path:
    return make_sweep(folder, **{"seeds": (0, 1), "rounds": 3, "client_rows": False} | fields)


VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What stands in a page, by element; fails on tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.attributes: list[tuple[str, str, str]] = []  # tag, name, value
        self.badges: list[str] = []
        self.rows: dict[str, list[list[str]]] = {}  # of each table
        self.tips: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self._table = ""
        self.feed(self.source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in values.items()]
        if "data-verdict" in values:
            self.badges.append(values["data-verdict"])
        if "data-tip" in values:
            self.tips.append(values["data-tip"])
        if tag == "table":
            self._table = values.get("id", "")
        if tag == "tr":
            self.rows.setdefault(self._table, []).append([])
        if tag in ("td", "th"):
            self.rows[self._table][-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if "script" not in self._open and "style" not in self._open:
            self.text.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[self._table][-1][-1] += data

    def table(self, name: str) -> tuple[list[str], list[list[str]]]:
        head, *rows = self.rows[name]
        return [title.strip() for title in head], rows


def page_of(folder: Path) -> Page:
    return Page(folder / "report" / "report.html")


def check_self_contained(page: Page) -> None:
    for tag, name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
            assert value.startswith(("#", "data:")), (tag, name, value[:80])
        assert not name.startswith("on"), (tag, name)
    style_and_script = re.findall(r"<(?:style|script)[^>]*>(.*?)</(?:style|script)>", page.source, re.DOTALL)
    assert len(style_and_script) == 2
    for word in ("http:", "https:", "//", "@import", "fetch(", "XMLHttpRequest", "import(", "WebSocket", "sendBeacon"):
        found = [part for part in style_and_script if word in re.sub(r"(^|\s)//.*", "", part)]
        assert not found, word
    for address in re.findall(r"url\((.*?)\)", page.source):
        assert address.startswith("#"), address
