"""``fedskew export``: a folder to a tracker, to files or to Optuna's storage, after the fact."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from engine.base.errors import FedskewError, ResourceError, RunFolderError, nearest, one_line, require
from fedskew.trackers import optuna_study, table_files
from fedskew.trackers.pushing import Pushing
from fedskew.trackers.reading import Folder
from fedskew.trackers.targets import TRACKERS, Target, check_outside, checked, default_place, without_password

FILES = ("csv", "parquet")
KINDS = (*TRACKERS, *FILES, "optuna")


class Exported(NamedTuple):
    """What an export has done."""

    place: str  # without a password
    told: str  # what was new there, in words
    new: int  # numbers, settings of Optuna's, or files


def exported(folder: Path, kind: str, place: str | None = None) -> Exported:
    """Bring the run or the sweep in ``folder`` to where ``kind`` and ``place`` say.

    What is there already is found by digests and left alone, so a second export adds nothing, and that of a run which
    has grown adds what has come. Raises :class:`FedskewError` for what cannot be read, reached or written.
    """
    require(kind in KINDS, "--to", kind, "is no place for results", nearest(kind, KINDS))
    if not Folder(folder).is_there():
        raise RunFolderError(f"{folder} is neither a run nor a sweep: it has no experiment.yaml and no sweep.yaml")
    if kind in FILES:
        out = Path(place) if place else folder / "tables"
        paths = table_files.write(folder, kind, out)
        return Exported(str(out), ", ".join(path.name for path in paths), len(paths))
    if kind == "optuna":
        place = place or f"sqlite:///{folder.resolve().parent / 'optuna.db'}"
        name, added = optuna_study.write(folder, place)
        return Exported(without_password(place), f"{added} settings in the study {name}", added)
    target = checked(Target(kind, place or default_place(kind, folder)), "--to")
    check_outside(target, folder, "--out")
    records, points = _told(folder, target)
    return Exported(without_password(target.place), f"{points:,} new numbers, runs: {records:,}", points)


def _told(folder: Path, target: Target) -> tuple[int, int]:
    """Tell a tracker all of a folder; how many runs it knows of, and the numbers that were new."""
    tracker = None
    try:
        tracker = target.open()
        pushing = Pushing(folder, tracker)
        pushing.once()
        return pushing.records, pushing.points
    except FedskewError:
        raise
    except Exception as error:  # whatever a library, a network or a server does
        told = without_password(one_line(f"{type(error).__name__}: {' '.join(str(error).split())}"))[:300]
        raise ResourceError(f"{target} cannot be reached or written ({told}); mend that and export again") from error
    finally:
        if tracker is not None:
            tracker.close()
