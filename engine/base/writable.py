"""Checks that a folder can be written to, made before any work is put into its content."""

from __future__ import annotations

import tempfile
from pathlib import Path

from engine.base.errors import ConfigError, require
from engine.base.files import holds_results


def nearest_existing(folder: Path) -> Path:
    """Return ``folder`` if there is such a file or folder, else the nearest one above that there is."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists() or place.is_symlink())


def check_writable(folder: Path, flag: str) -> None:
    """Raise :class:`ConfigError` unless files can be made in ``folder``, or in the folder that it would be made in."""
    try:
        above = nearest_existing(folder)
        reason = "" if above.is_dir() else f"{above} is not a folder"
        if not reason:
            with tempfile.TemporaryFile(dir=above):  # it has no name, and leaves nothing behind
                pass
    except (OSError, ValueError) as error:  # a name that is too long, or that no file can have
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise ConfigError(flag, folder, f"cannot be written ({reason})", "name another")


def check_no_results(folder: Path, flag: str) -> None:
    """Raise :class:`ConfigError` for the folder of a run or a sweep, whose own files may have the same names."""
    require(not holds_results(folder), flag, folder, "is the folder of a run or a sweep", "name another")
