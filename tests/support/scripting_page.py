"""What docs/scripting.md promises to scripts: the keys of each command's object, and the exit codes."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "scripting.md").read_text(encoding="utf-8")
EXIT_CODES = [int(code) for code in re.findall(r"^\| (\d+) \| ", TEXT, re.M)]
HEADINGS: list[str] = re.findall(r"^#### (.*)$", TEXT, re.M)
ERROR = re.findall(r"^\| `(\S+)` \|", TEXT.split("### Keys of each command")[0], re.M)


def keys(heading: str) -> set[str]:
    """Return the keys under a heading: a command, or ``A claim``."""
    section = TEXT.split(f"\n#### {heading}\n")[1].split("\n#")[0]
    return set(re.findall(r"^\| `(\S+)` \|", section, re.M)) - {"..."}
