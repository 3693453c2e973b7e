"""TensorBoard: event files, a folder for each run, with its config in the HParams plugin's terms.

Written by TensorBoard's own writer and, to know what is there already, read by its own reader.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.base.opening import read_bytes
from fedskew.trackers.records import End, Point, Record, lacking

END = "fedskew/end"  # the tag under which the digest of a run's end is kept


class TensorBoard:
    """A folder of event files."""

    def __init__(self, place: str) -> None:
        self._place = Path(place)
        self._place.mkdir(parents=True, exist_ok=True)
        self._writers: dict[str, Any] = {}
        self._ends: dict[str, str] = {}

    def folder(self, record: Record) -> Path:
        """Return where a record's events are: a trial's below its sweep's."""
        if record.parent is not None:
            trial = record.key.removeprefix(f"{record.parent}/")  # its name, and what it begins with
            return self._place / _named(f"{record.group}-{record.parent}") / _named(trial)
        return self._place / _named(f"{record.name}-{record.key}")

    def begin(self, record: Record, points: Sequence[Point]) -> Sequence[Point]:
        folder = self.folder(record)
        if any(folder.glob("events.out.tfevents.*")):
            known, self._ends[record.key] = read(folder)
            return lacking(points, known)
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        params = {key: _param(value) for key, value in record.params.items()}
        self._add(record, record.started, hparams_pb(params, trial_id=record.key, start_time_secs=record.started))
        self._add(record, record.started, self._text("fedskew/run", record.tags))
        return points

    def log(self, record: Record, points: Sequence[Point]) -> None:
        for point in points:
            self._add(record, point.time, _scalar(point.key, point.value), point.step)
        self._writers[record.key].flush()

    def end(self, record: Record, end: End) -> None:
        if self._ends.get(record.key) != end.digest:
            for name, value in end.figures.items():
                self._add(record, end.time, _scalar(name, value), end.step)
            for path in end.artifacts:
                if path.suffix == ".png":
                    self._add(record, end.time, _picture(path), end.step)
                elif path.suffix in (".yaml", ".json"):
                    content = read_bytes(path).decode(errors="replace")
                    text = "\n".join(f"    {line}" for line in content.splitlines())  # Markdown's code
                    self._add(record, end.time, self._text(f"fedskew/{path.name}", text), end.step)
            self._add(record, end.time, self._text("fedskew/result", {"status": end.status, **end.tags}), end.step)
            self._add(record, end.time, _session_end(end))
            self._add(record, end.time, self._text(END, end.digest), end.step)
            self._ends[record.key] = end.digest
        if record.key in self._writers:
            self._writers.pop(record.key).close()

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def _add(self, record: Record, time: float, summary: Any, step: int = 0) -> None:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if record.key not in self._writers:
            self._writers[record.key] = EventFileWriter(str(self.folder(record)))
        protos: Any = event_pb2  # whose classes are made as it is imported
        self._writers[record.key].add_event(protos.Event(wall_time=time, step=step, summary=summary))

    @staticmethod
    def _text(tag: str, content: Any) -> Any:
        from tensorboard.plugins.text.summary_v2 import text_pb

        if isinstance(content, dict):
            content = "\n".join(["| | |", "|-|-|", *(f"| {name} | {value} |" for name, value in content.items())])
        return text_pb(tag, content)


def read(folder: Path) -> tuple[set[tuple[str, int]], str]:
    """Return which points a folder's event files hold, and the digest of the end that was told last."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 1})
    events.Reload()
    tags = events.Tags()
    known = {(key, one.step) for key in tags["scalars"] for one in events.Scalars(key)}
    digest = events.Tensors(END)[-1].tensor_proto.string_val[0].decode() if END in tags["tensors"] else ""
    return known, digest


def _protos() -> Any:
    """TensorBoard's messages, whose classes are made as they are imported."""
    from tensorboard.compat.proto import summary_pb2

    return summary_pb2


def _scalar(tag: str, value: float) -> Any:
    protos = _protos()
    return protos.Summary(value=[protos.Summary.Value(tag=tag, simple_value=value)])


def _session_end(end: End) -> Any:
    """The end of a run in the HParams plugin's terms, whose own function for it needs TensorFlow."""
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    api: Any = api_pb2
    data: Any = plugin_data_pb2
    protos = _protos()
    status = api.STATUS_FAILURE if end.status == "failed" else api.STATUS_SUCCESS
    ended = data.SessionEndInfo(status=status, end_time_secs=end.time)
    about = metadata.create_summary_metadata(data.HParamsPluginData(session_end_info=ended))
    tag = metadata.SESSION_END_INFO_TAG
    return protos.Summary(value=[protos.Summary.Value(tag=tag, metadata=about, tensor=metadata.NULL_TENSOR)])


def _picture(path: Path) -> Any:
    protos = _protos()
    content = read_bytes(path)
    width, height = struct.unpack(">II", content[16:24])  # where every PNG has them
    image = protos.Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=content)
    return protos.Summary(value=[protos.Summary.Value(tag=f"pictures/{path.stem}", image=image)])


def _param(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float | str) else "null" if value is None else str(value)


def _named(text: str) -> str:
    """Return a folder's name: letters, digits, dots, dashes."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")
