"""The colours of a page, in the light and in the dark, and the parts that its pages are made of."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from importlib import resources

from markupsafe import Markup

from fedskew.lab.drawing import THEME

PAGE_COLOURS = {  # beside those of the figures: in the light, in the dark
    "rule": ("#cfd4da", "#3a424d"),
    "shade": ("#f4f5f7", "#1d2229"),
    "link": ("#0b5cad", "#7db8f0"),
    "good": ("#0a6e4b", "#4fcf9f"),
    "bad": ("#b03a06", "#ff9466"),
}


def part(name: str, package: str = "fedskew.lab.pages") -> str:
    """Return the text of the file ``name`` of a package."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def dressing() -> dict[str, Markup | str]:
    """Style and script of a page, and the hash by which its content policy allows the script."""
    light = {name: colour for colour, (name, _) in THEME.items()} | {n: c for n, (c, _) in PAGE_COLOURS.items()}
    dark = dict(THEME.values()) | {n: c for n, (_, c) in PAGE_COLOURS.items()}

    def rule(colours: Mapping[str, str], scheme: str) -> str:
        return f"color-scheme:{scheme};" + "".join(f"--{name}:{colour};" for name, colour in colours.items())

    theme = (
        f":root{{{rule(light, 'light')}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{rule(dark, 'dark')}}}}}\n"
        f":root[data-theme=dark]{{{rule(dark, 'dark')}}}\n"
    )
    script = part("page.js")
    return {
        "style": Markup(theme + part("page.css")),
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    }
