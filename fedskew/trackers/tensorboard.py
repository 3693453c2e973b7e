"""TensorBoard: event files, a folder for each run, with its config in the HParams plugin's terms."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.base.files import write_atomically
from engine.base.opening import read_bytes, read_text
from fedskew.trackers.records import End, Point, Progress, Record

PROGRESS = "fedskew-progress.json"  # in a run's folder: how much of it has been told


class TensorBoard:
    """A folder of event files."""

    def __init__(self, place: str) -> None:
        self._place = Path(place)
        self._place.mkdir(parents=True, exist_ok=True)
        self._writers: dict[str, Any] = {}

    def folder(self, record: Record) -> Path:
        """Return where a record's events are: a trial's below its sweep's."""
        if record.parent is None:
            return self._place / _named(f"{record.name}-{record.key}")
        trial = record.key.removeprefix(f"{record.parent.key}/")  # its name, and what it begins with
        return self._place / _named(f"{record.parent.name}-{record.parent.key}") / _named(trial)

    def begin(self, record: Record) -> Progress:
        path = self.folder(record) / PROGRESS
        if path.exists():
            return Progress.from_json(read_text(path))
        from torch.utils.tensorboard.summary import hparams

        params = {key: _param(value) for key, value in record.params.items()}
        writer = self._writer(record)
        for summary in hparams(params, {})[:2]:
            writer.file_writer.add_summary(summary, walltime=record.started)
        writer.add_text("fedskew/run", _table(record.tags), walltime=record.started)
        return Progress()

    def log(self, record: Record, points: Sequence[Point], progress: Progress) -> None:
        writer = self._writer(record)
        for point in points:
            writer.add_scalar(point.key, point.value, point.step, point.time)
        self._save(record, progress)

    def end(self, record: Record, end: End, progress: Progress) -> None:
        from matplotlib.image import imread
        from torch.utils.tensorboard.summary import hparams

        writer = self._writer(record)
        for name, value in end.figures.items():
            writer.add_scalar(name, value, end.step, end.time)
        for path in end.files:
            if path.suffix == ".png":
                image = imread(io.BytesIO(read_bytes(path)))
                writer.add_image(f"pictures/{path.stem}", image, end.step, end.time, "HWC")
            elif path.suffix in (".yaml", ".json"):
                text = "\n".join(f"    {line}" for line in read_text(path).splitlines())  # Markdown's code
                writer.add_text(f"fedskew/{path.name}", text, end.step, end.time)
        writer.add_text("fedskew/result", _table({"status": end.status, **end.tags}), end.step, end.time)
        writer.file_writer.add_summary(hparams({}, {})[2], walltime=end.time)
        self._save(record, progress)
        self._writers.pop(record.key).close()

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, record: Record) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        if record.key not in self._writers:
            self._writers[record.key] = SummaryWriter(str(self.folder(record)))
        return self._writers[record.key]

    def _save(self, record: Record, progress: Progress) -> None:
        self._writers[record.key].flush()
        write_atomically(self.folder(record) / PROGRESS, progress.to_json())


def _param(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else "null" if value is None else str(value)


def _named(text: str) -> str:
    """Return a folder's name: letters, digits, dots, dashes."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")


def _table(values: Any) -> str:
    """Return a mapping as a table in Markdown."""
    return "\n".join(["| | |", "|-|-|", *(f"| {name} | {value} |" for name, value in values.items())])
