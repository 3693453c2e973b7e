"""The search for the files of a data set, and what is said when they are missing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from engine.base.errors import DataError
from engine.base.files import expanded


def cache_folder() -> Path:
    """Return the folder that downloads go to: ``$XDG_CACHE_HOME/fedskew``, or ``~/.cache/fedskew``."""
    return expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "XDG_CACHE_HOME") / "fedskew"


def existing(root: str, wanted: str) -> Path:
    """Return ``root`` as a folder that is there, or raise :class:`DataError`; ``wanted`` is what it should hold."""
    folder = expanded(root, "data.root")
    if not _is_folder(folder):
        looked = folder.absolute()
        raise DataError(f"data.root={root}: there is no such folder (looked at {looked}); give one that holds {wanted}")
    return folder


def check_within(table: Path, files: list[str]) -> None:
    """Raise :class:`DataError` where ``table`` names a file that would not lie in its own folder."""
    for file in files:
        place = PurePosixPath(file)
        if "\0" in file or not place.name or place.is_absolute() or ".." in place.parts:
            raise DataError(f"{table}: names the file {file!r}, which leads out of its folder; get it again")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # a name that is too long, a folder that may not be looked into
        return False


def find(
    name: str,
    root: str | None,
    places: list[Path],
    locate: Callable[[Path], Path | None],
    wanted: str,
    repair: str,
    download: Callable[[Path], None] | None = None,
) -> Path:
    """Find the folder of a known data set: below ``root`` if given, else below ``places``, else downloaded.

    locate gives the folder of the data below a folder, None if they are not there. A given root is never
    replaced by another place. The download goes to the last of ``places``; most sets have none, and ``repair``
    says what the user downloads and where it goes. Raises :class:`DataError` where the data are in none of them.
    """
    if root is not None:
        found = locate(existing(root, wanted))
        if found is None:
            looked = expanded(root, "data.root").absolute()
            raise DataError(f"data.root={root}: has no {name}; looked for {wanted} in {looked}; {repair}")
        return found
    for place in places:
        found = locate(place)
        if found is not None:
            return found
    looked = ", ".join(str(place) for place in places)
    if download is None:
        raise DataError(f"{name} was not found (looked in {looked}); {repair}")
    found, reason = None, "incomplete"
    try:
        places[-1].mkdir(parents=True, exist_ok=True)
        download(places[-1])
        found = locate(places[-1])
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if found is None:
        repair += "; a copy in parquet files, as the Hugging Face hub has it, is read by data.name=parquet"
        raise DataError(f"{name} was not found (looked in {looked}) and its download failed ({reason}); {repair}")
    return found


def find_unpacked(name: str, root: str | None, below: tuple[str, ...], contents: tuple[str, ...], archive: str) -> Path:
    """Find the folder with all of ``contents`` (files or folders).

    It is ``root``, or the cache folder's ``name``, or one of ``below`` in it. archive: what the user downloads and
    unpacks, with its address. Raises :class:`DataError` as :func:`find`.
    """

    def locate(place: Path) -> Path | None:
        folders = (place / sub for sub in ("", *below))
        return next((f for f in folders if all((f / content).exists() for content in contents)), None)

    place = cache_folder() / name
    repair = f"download {archive}, unpack it and give its folder as data.root (or put it into {place})"
    return find(name, root, [place], locate, " and ".join(contents), repair)
