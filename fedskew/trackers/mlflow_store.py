"""MLflow: a run as an MLflow run, a sweep as one with its trials below it. Through ``MlflowClient`` alone, which has no
state that a user's own calls of ``mlflow`` would meet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fedskew.trackers.records import End, Point, Record, Status, lacking

T = TypeVar("T")
METRICS, PARAMS = 1000, 100  # of a request, at most
LONGEST = 6000  # characters of a parameter's value
STATUSES: dict[Status, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED", "running": "RUNNING"}
KEY, POINTS, END = "fedskew.key", "fedskew.points", "fedskew.end"  # tags by which a run is known again
# Of MLflow's own variables, where the user has set none: a server that is down is known to be in seconds.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


class Mlflow:
    """An MLflow store: a server, a database, or a folder with a database of its own."""

    def __init__(self, place: str) -> None:
        """``place``: a URI that MLflow knows, or a folder, in which ``mlflow.db`` and ``artifacts/`` are put."""
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        from mlflow.tracking import MlflowClient

        artifacts = None
        if "://" not in place and place != "databricks":
            folder = Path(place).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            place, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedskew")
        found = self._client.get_experiment_by_name(name)
        self._experiment = found.experiment_id if found else self._client.create_experiment(name, artifacts)
        self._runs: dict[str, str] = {}  # key -> MLflow's own
        self._points: dict[str, int] = {}  # that the run has
        self._ends: dict[str, str] = {}
        self._found: dict[str, Any] = {}  # trials of a sweep, looked up at once

    def begin(self, record: Record, points: Sequence[Point]) -> Sequence[Point]:
        run = self._find(record)
        if run is None:
            tags = {KEY: record.key, **record.tags}
            if record.parent is not None:
                tags["mlflow.parentRunId"] = self._runs[record.parent]
            started = round(1000 * record.started)
            run = self._client.create_run(self._experiment, started, tags, run_name=record.name)
        self._runs[record.key] = run.info.run_id
        self._ends[record.key] = run.data.tags.get(END, "")
        self._add_params(run, record.params)
        new = points
        if run.data.tags.get(POINTS) == str(len(points)):
            new = []
        elif run.data.metrics:
            new = lacking([_renamed(point) for point in points], self._known(run))
        self._points[record.key] = len(points) - len(new)
        return new

    def log(self, record: Record, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        run = self._runs[record.key]
        for some in _parts(points, METRICS):
            metrics = [Metric(name_of(one.key), one.value, round(1000 * one.time), one.step) for one in some]
            self._client.log_batch(run, metrics=metrics)
        self._points[record.key] += len(points)
        self._client.set_tag(run, POINTS, str(self._points[record.key]))

    def end(self, record: Record, end: End) -> None:
        if self._ends[record.key] == end.digest:
            return
        from mlflow.entities import Metric, RunTag

        run, time = self._runs[record.key], round(1000 * end.time)
        metrics = [Metric(name_of(name), value, time, end.step) for name, value in end.figures.items()]
        for some in _parts(metrics, METRICS):
            self._client.log_batch(run, metrics=some)
        tags = [RunTag(name_of(name), value[:LONGEST]) for name, value in end.tags.items()]
        for some in _parts(tags, PARAMS):
            self._client.log_batch(run, tags=some)
        for path in end.artifacts:
            self._client.log_artifact(run, str(path))
        self._client.set_terminated(run, STATUSES[end.status], time)
        self._client.set_tag(run, END, end.digest)  # last: an end that was cut short is told again
        self._ends[record.key] = end.digest

    def close(self) -> None:
        """Nothing is kept back."""

    # --- what is there --------------------------------------------------------------------------------------

    def _find(self, record: Record) -> Any:
        """Return the run of that key; those of a whole sweep are looked for with the sweep."""
        if record.parent is not None and record.parent in self._runs:
            return self._found.get(record.key)
        is_sweep = record.tags.get("fedskew.kind") == "sweep"
        tag = "fedskew.sweep" if is_sweep else KEY
        found = {run.data.tags.get(KEY, ""): run for run in self._all(f"tags.`{tag}` = '{record.key}'")}
        if is_sweep:
            self._found |= found
        return found.get(record.key)

    def _all(self, condition: str) -> Iterator[Any]:
        token: str | None = None
        while True:
            page = self._client.search_runs([self._experiment], condition, max_results=500, page_token=token)
            yield from page
            token = page.token
            if not token:
                return

    def _known(self, run: Any) -> set[tuple[str, int]]:
        histories = (self._client.get_metric_history(run.info.run_id, key) for key in run.data.metrics)
        return {(one.key, one.step) for history in histories for one in history}

    def _add_params(self, run: Any, params: Mapping[str, Any]) -> None:
        """Add the parameters that a run does not have: one that was cut short, all of a new one."""
        from mlflow.entities import Param

        there = run.data.params
        named = {name_of(key): str(value)[:LONGEST] for key, value in params.items()}
        new = [Param(name, value) for name, value in named.items() if name not in there]
        for some in _parts(new, PARAMS):
            self._client.log_batch(run.info.run_id, params=some)


def name_of(key: str) -> str:
    """Return a key in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", key)


def _renamed(point: Point) -> Point:
    return Point(name_of(point.key), point.step, point.value, point.time)


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
