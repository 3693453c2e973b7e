"""One pass over a folder: whatever a tracker does not have yet of it is told to it."""

from __future__ import annotations

from pathlib import Path

from fedskew.trackers.reading import Folder
from fedskew.trackers.records import Record, Tracker


class Pushing:
    """A folder and a tracker, and how far the second one knows the first."""

    def __init__(self, folder: Path, tracker: Tracker, digest: str | None = None) -> None:
        """``digest``: of the run's experiment, where that is known."""
        self._folder = Folder(folder, digest)
        self._tracker = tracker
        self._begun: dict[str, Record] = {}
        self._ended: dict[str, str] = {}  # the digest of the end that was told
        self.points = self.there = 0  # that were told here, and that the tracker had already

    @property
    def records(self) -> int:
        """Runs, trials and sweeps that the tracker knows of."""
        return len(self._begun)

    def once(self) -> None:
        """Tell what is new; the tracker's errors are not caught, and what it was told before one stays told."""
        for unit in self._folder.units():
            record = unit.record()
            if record is None:
                continue
            points = unit.new()
            if record.key not in self._begun:
                lacking = self._tracker.begin(record, points)
                self._begun[record.key] = record
                self.there += len(points) - len(lacking)
            else:
                lacking = points
            if lacking:
                self._tracker.log(record, lacking)
                self.points += len(lacking)
            if unit.rows is not None:
                unit.rows.taken(points)
            end = unit.end()
            if end is not None and self._ended.get(record.key) != end.digest:
                self._tracker.end(record, end)
                self._ended[record.key] = end.digest


def points_of(folder: Folder) -> int:
    """Count the points of a folder that were not taken."""
    return sum(len(unit.new()) for unit in folder.units() if unit.record() is not None)
