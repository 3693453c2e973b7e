"""The content of folders."""

from __future__ import annotations

import hashlib
from pathlib import Path


def content(folder: Path) -> dict[str, str]:
    """Every file of a folder but what a diagnosis writes."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] != "diagnosis"
    }
