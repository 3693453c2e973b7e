"""``fedskew export``: a folder to a tracker or to files, after the fact."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from engine.base.errors import ConfigError, FedskewError, ResourceError, RunFolderError, nearest, require
from engine.base.files import holds_results, refuse_links, write_atomically
from engine.base.writable import check_no_results
from fedskew.trackers.records import Push
from fedskew.trackers.tracking import TRACKERS, Bounded, Target, default_place, described, within, without_secrets

FILES = ("csv", "parquet")
KINDS = (*TRACKERS, *FILES)


class Exported(NamedTuple):
    """What an export has done."""

    place: str  # without a password
    summary: str  # what was new there, in words
    new: int  # numbers, or files


def exported(folder: Path, kind: str, place: str | None = None) -> Exported:
    """Bring the run or the sweep in ``folder`` to where ``kind`` and ``place`` say.

    A tracker knows how many rows of each run it has, so a second export adds nothing, and that of a run which has grown
    adds what has come. Raises :class:`FedskewError` for what cannot be read, reached or written.
    """
    require(kind in KINDS, "--to", kind, "is no place for results", nearest(kind, KINDS))
    if not holds_results(folder):
        raise RunFolderError(f"{folder} is neither a run nor a sweep: it has no experiment.yaml and no sweep.yaml")
    refuse_links(folder)
    if kind in FILES:
        out = Path(place) if place else folder / "tables"
        paths = write_tables(folder, kind, out)
        return Exported(str(out), ", ".join(path.name for path in paths), len(paths))
    target = Target(kind, place or default_place(kind, folder))
    target.check("--to", folder)
    try:
        tracker: Any = Bounded(within(target.open))
        with closing(tracker):
            push = Push(folder, tracker)
            push.once()
    except FedskewError:
        raise
    except Exception as error:  # whatever a library, a network or a server does
        reason = described(error, target.place)
        raise ResourceError(f"{target} cannot be reached or written ({reason}); mend that and export again") from None
    told = f"{push.points:,} new numbers, runs: {push.records:,}"
    return Exported(without_secrets(target.place), told, push.points)


def write_tables(folder: Path, kind: str, out: Path) -> list[Path]:
    """Write the tables of ``fedskew.load_results(folder)`` to ``out``, as ``kind`` (csv or parquet); their paths.

    A second export writes the same bytes. Raises :class:`FedskewError` for a folder that cannot be read, and for a
    place that cannot be written, or that is the folder of a run or a sweep, whose own tables have these names.
    """
    from engine.base import parquet
    from engine.base.csv_text import csv_text
    from engine.results.frames import load_results
    from engine.results.frames.frame_columns import TABLES

    check_no_results(out, "--to")
    frames, paths = load_results(folder), list[Path]()
    try:
        out.mkdir(parents=True, exist_ok=True)
        refuse_links(out)
        for name in TABLES:
            path = out / f"{name}.{kind}"
            if kind == "csv":
                write_atomically(path, csv_text(getattr(frames, name)))
            else:
                parquet.write(path, frames.arrow(name))
            paths.append(path)
    except OSError as error:
        raise ConfigError("--to", out, f"cannot be written ({error.strerror or error})", "name another place") from None
    return paths
