"""An entry's manifest: the files that are the entry, and so the only ones that may be deleted with it."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from engine.base.opening import read_bytes, regular

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """What an entry's manifest says of it."""

    key: str
    round: int
    files: tuple[str, ...]  # relative to the entry, without the manifest


def described(folder: Path, key: str, round: int) -> dict[str, Any]:
    """Describe an entry as its manifest does: key and round, and sizes and SHA-256 of all files that are there."""
    files = {}
    for path in files_of(folder):
        if str(path) != MANIFEST:
            with open(folder / path, "rb", opener=regular) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                files[path.as_posix()] = [os.fstat(file.fileno()).st_size, digest]
    return {"key": key, "round": round, "files": files}


def files_of(folder: Path) -> list[Path]:
    """List all files in a folder and below, relative to it, in order."""
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def content_of(folder: Path) -> Any:
    """Read the manifest in ``folder`` as it is; None if there is none, or what is there is no JSON."""
    try:
        return json.loads(read_bytes(folder / MANIFEST)) if is_file(folder / MANIFEST) else None
    except (FileNotFoundError, ValueError, RecursionError):
        return None


def read(folder: Path) -> Manifest | None:
    """Read the manifest in ``folder``; None if there is none, or none that an entry of this store can have."""
    content = content_of(folder)
    if not isinstance(content, dict):
        return None
    key, round, files = (content.get(name) for name in ("key", "round", "files"))
    if not isinstance(key, str) or type(round) is not int or not isinstance(files, dict):
        return None
    return Manifest(key, round, tuple(files)) if all(map(_is_inside, files)) else None


def delete(folder: Path, manifest: Manifest) -> None:
    """Delete the files that are the entry in ``folder``, the manifest last: who is killed before it can be followed."""
    for name in (*manifest.files, MANIFEST):
        path = folder / name
        between = [folder.joinpath(*PurePosixPath(name).parts[:depth]) for depth in range(1, len(Path(name).parts))]
        if is_file(path) and not any(place.is_symlink() for place in between):
            path.unlink(missing_ok=True)


def is_file(path: Path) -> bool:
    """Return whether there is a file, and no link to one, at ``path``."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
