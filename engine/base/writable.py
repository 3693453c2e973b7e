"""Checks that a folder can be written to, made before any work is put into its content."""

from __future__ import annotations

import fcntl
import tempfile
from pathlib import Path

from engine.base.errors import ConfigError, require
from engine.base.files import holds_results


def nearest_existing(folder: Path) -> Path:
    """Return ``folder`` if there is such a file or folder, else the nearest one above that there is."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists() or place.is_symlink())


def check_writable(folder: Path, flag: str, locks: bool = False) -> None:
    """Raise :class:`ConfigError` unless files can be made in ``folder``, or in the folder that it would be made in.

    ``locks``: and unless they can be locked, as those of whoever may be one process only.
    """
    rule = "written"
    try:
        above = nearest_existing(folder)
        reason = "" if above.is_dir() else f"{above} is not a folder"
        if not reason:
            with tempfile.TemporaryFile(dir=above) as file:  # it has no name, and leaves nothing behind
                if locks:
                    rule = "locked"
                    fcntl.flock(file, fcntl.LOCK_EX)  # of a file without a name, which nobody else has
    except (OSError, ValueError) as error:  # a name that is too long, or that no file can have; no locks there
        reason = getattr(error, "strerror", None) or str(error)
    if reason:
        raise ConfigError(flag, folder, f"cannot be {rule} ({reason})", "name another")


def check_no_results(folder: Path, flag: str) -> None:
    """Raise :class:`ConfigError` for the folder of a run or a sweep, whose own files may have the same names."""
    require(not holds_results(folder), flag, folder, "is the folder of a run or a sweep", "name another")
