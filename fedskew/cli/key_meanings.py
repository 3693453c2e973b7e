"""What each key of an experiment means: the table of docs/config.md, in a file that is installed with fedskew.

``python -m fedskew.cli.key_meanings`` in a checkout writes that file anew; a test holds the two equal.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

PAGE = Path("docs/config.md")
FILE = Path(__file__).with_name("key_meanings.json")


@cache
def known() -> dict[str, tuple[str, str]]:
    """Return key -> (its type as the table words it, its meaning)."""
    return {key: (kind, meaning) for key, (kind, meaning) in json.loads(FILE.read_text(encoding="utf-8")).items()}


def of_page(text: str) -> dict[str, list[str]]:
    """Read the table of keys from the page's text."""
    section = text.split("\n## Keys\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return {row[0].strip("`"): [row[2], row[5]] for row in rows[2:]}


def to_text(meanings: dict[str, list[str]]) -> str:
    """Return the file's content."""
    return json.dumps(meanings, indent=0, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(to_text(of_page(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
