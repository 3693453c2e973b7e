"""MLflow: a run as an MLflow run, a sweep as one with its trials below it. Through ``MlflowClient`` alone, which has no
state that a user's own calls of ``mlflow`` would meet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from fedskew.trackers.records import End, Point, Progress, Record

REQUEST = {"metrics": 1000, "params": 100, "tags": 100}  # of a request, at most
LONGEST = 6000  # characters of a parameter's value
STATUSES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
KEY, PROGRESS = "fedskew.key", "fedskew.progress"  # tags by which a run is known again, and how much it has
# Of MLflow's own variables, where the user has set none: a server that is down is known to be in seconds.
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}


class Mlflow:
    """An MLflow store: a server, a database, or a folder with a database of its own."""

    def __init__(self, place: str) -> None:
        """``place``: a URI that MLflow knows, or a folder, in which ``mlflow.db`` and ``artifacts/`` are put."""
        self._lent = [name for name in PATIENCE if name not in os.environ]
        os.environ.update({name: PATIENCE[name] for name in self._lent})
        artifacts = None
        if "://" not in place and place != "databricks":
            folder = Path(place).resolve()
            folder.mkdir(parents=True, exist_ok=True)
            place, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client = MlflowClient(tracking_uri=place)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedskew")
        known = self._client.get_experiment_by_name(name)
        self._experiment = known.experiment_id if known else self._client.create_experiment(name, artifacts)
        self._runs: dict[str, str] = {}  # key -> MLflow's own

    def begin(self, record: Record) -> Progress:
        known = self._client.search_runs([self._experiment], f"tags.`{KEY}` = '{record.key}'")
        if known:
            run = known[0]
        else:
            tags = {KEY: record.key, **record.tags}
            if record.parent is not None:
                tags["mlflow.parentRunId"] = self._runs[record.parent.key]
            started = round(1000 * record.started)
            run = self._client.create_run(self._experiment, started, tags, run_name=record.name)
        self._runs[record.key] = run.info.run_id
        lacking = {name_of(key): str(value)[:LONGEST] for key, value in record.params.items()}
        params = [Param(name, value) for name, value in lacking.items() if name not in run.data.params]
        self._log(record, params=params)
        return Progress.from_json(run.data.tags.get(PROGRESS, ""))

    def log(self, record: Record, points: Sequence[Point], progress: Progress) -> None:
        metrics = [Metric(name_of(one.key), one.value, round(1000 * one.time), one.step) for one in points]
        self._log(record, metrics=metrics)
        self._client.set_tag(self._runs[record.key], PROGRESS, progress.to_json())

    def end(self, record: Record, end: End, progress: Progress) -> None:
        run, time = self._runs[record.key], round(1000 * end.time)
        self._log(record, metrics=[Metric(name_of(key), value, time, end.step) for key, value in end.figures.items()])
        self._log(record, tags=[RunTag(name_of(name), value[:LONGEST]) for name, value in end.tags.items()])
        for path in end.files:
            self._client.log_artifact(run, str(path))
        self._client.set_terminated(run, STATUSES[end.status], time)
        self._client.set_tag(run, PROGRESS, progress.to_json())  # last: an end that was cut short is told again

    def close(self) -> None:
        for name in self._lent:  # a user's own calls are to wait as they did
            os.environ.pop(name, None)

    def _log(self, record: Record, **items: list[Any]) -> None:
        for kind, values in items.items():
            for first in range(0, len(values), REQUEST[kind]):
                some: Any = {kind: values[first : first + REQUEST[kind]]}
                self._client.log_batch(self._runs[record.key], **some)


def name_of(key: str) -> str:
    """Return a key in the characters that MLflow takes."""
    return re.sub(r"[^\w\-. :/]", "_", key)
