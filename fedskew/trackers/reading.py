"""Folders of runs and sweeps as records: what is on disk now, and what has come since the last look.

Nothing here needs torch, or the code of the user's own parts: a tracker's process reads YAML, JSON and parquet alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine import __version__
from engine.base import safe_yaml
from engine.base.errors import RunFolderError
from engine.base.opening import read_text
from engine.record.schemas import SCHEMAS
from engine.record.sweep_files import RECORD, read_plan, read_record
from engine.record.tables import PARTS, Table
from fedskew.trackers.records import End, Point, Record, Status

TABLES = ("rounds", "evaluations")
CLASSES = 100  # of which single accuracies are told; those of more are in the tables
PICTURES = "*.png"


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config by dotted keys; a list of named mappings is taken apart by their names, as ``stages.train``."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{key}.")
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
            for number, one in enumerate(value):
                place = one["name"] if name == "stages" else number
                found |= flat(one, f"{key}.{place}.")
        else:
            found[key] = json.dumps(value) if isinstance(value, list | Mapping) else value
    return found


class RunRows:
    """The numbers of one run's tables, as they come."""

    def __init__(self, path: Path, staged: bool) -> None:
        """``staged``: its points are named by their stages, of which it has several."""
        self._path = path
        self._staged = staged
        self._tables = {name: Table(path / f"{name}.parquet", SCHEMAS[name]) for name in TABLES}
        self._seen: set[tuple[str, int]] = set()
        self._stamp: object = None
        self._times: dict[tuple[str, int], float] = {}  # (stage, round) -> when its row came to be
        self.begins: str | None = None  # the hash of the weights after the first round

    @property
    def last_step(self) -> int:
        return max((round for _, round in self._times), default=0)

    @property
    def first_time(self) -> float:
        return min(self._times.values(), default=math.inf)

    def new(self) -> list[Point]:
        """Return the points that have come since those that were :meth:`taken`; [] for a table that cannot be read."""
        stamp = [(path, self._changed(path)) for path in self._files()]
        if stamp == self._stamp:
            return []
        try:
            frames = {name: table.frame() for name, table in self._tables.items()}
        except RunFolderError:  # the run itself tells of a damaged table, and mends it
            return []
        self._note_times(frames["rounds"].to_dict("records"))
        points = [
            point for name in TABLES for row in frames[name].to_dict("records") for point in self._points(name, row)
        ]
        found = [point for point in points if (point.key, point.step) not in self._seen]
        if not found:
            self._stamp = stamp
        return found

    def taken(self, points: list[Point]) -> None:
        """Leave these points out from now on."""
        self._seen |= {(point.key, point.step) for point in points}

    def _files(self) -> list[Path]:
        return [table.path for table in self._tables.values()] + sorted((self._path / PARTS).glob("*.parquet"))

    @staticmethod
    def _changed(path: Path) -> tuple[int, int] | None:
        try:
            found = path.stat()
        except OSError:  # not there yet, or just put into its table
            return None
        return found.st_mtime_ns, found.st_size

    def _note_times(self, rows: list[dict[str, Any]]) -> None:
        """Place the rows in time: the last one when its file was written, those before it by what rounds took.

        A row that had a time keeps it. Rounds that another run computed took no time here.
        """
        if not rows:
            return
        self.begins = str(rows[0].get("weights_sha256") or "")
        written = [self._changed(path) for path in self._files() if path.name.startswith("rounds.")]
        time = max((stamp[0] / 1e9 for stamp in written if stamp is not None), default=0.0)
        placed: dict[tuple[str, int], float] = {}
        for row in reversed(rows):
            at = (str(row["stage"]), int(row["round"]))
            if at in self._times:
                break
            placed[at] = time
            if not row.get("reused"):
                time -= sum(_number(row.get(name)) or 0.0 for name in ("seconds", "evaluation_seconds"))
        earliest = max(self._times.values(), default=-math.inf)  # time goes on
        self._times |= {at: max(when, earliest) for at, when in placed.items()}

    def _points(self, table: str, row: Mapping[str, Any]) -> Iterator[Point]:
        stage, step = str(row["stage"]), int(row["round"])
        time = self._times.get((stage, step), max(self._times.values(), default=0.0))
        place = f"{stage}/{table}" if self._staged else table
        if table == "evaluations" and row.get("scope") != "global":
            place = f"{place}/{row.get('scope')}"
        for name, value in _numbers(table, row):
            yield Point(f"{place}/{name}", step, value, time)


def _numbers(table: str, row: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a row by column, single classes and the server's scalars included."""
    for column in SCHEMAS[table]:
        value = row.get(column.name)
        if column.name == "round" or value is None:
            continue
        if pa.types.is_map(column.type):
            entries = [(f"{column.name}/{name}", one) for name, one in value]
        elif pa.types.is_list(column.type):
            entries = [(f"{column.name}/{number}", one) for number, one in enumerate(value)]
            entries = entries if len(entries) <= CLASSES and column.name == "class_accuracy" else []
        elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            entries = [(column.name, value)]
        else:
            continue
        for name, one in entries:
            number = _number(one)
            if number is not None:
                yield name, number


def _number(value: Any) -> float | None:
    """Return a finite number, None for what is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# --- runs and sweeps --------------------------------------------------------------------------------------


@dataclass
class RunUnit:
    """One run as a tracker sees it: by itself, or a trial of a sweep."""

    path: Path
    digest: str | None = None  # of a run by itself whose summary is not written yet, if that is known
    sweep: Record | None = None  # of a trial
    whole_only: bool = False  # told only when it is over, since until then its rows may be replaced

    def __post_init__(self) -> None:
        self.rows: RunRows | None = None
        self._record: Record | None = None
        self._ended: tuple[object, End] | None = None

    def record(self) -> Record | None:
        """Return what it is; None until there is enough on disk to know."""
        if self._record is None or (self.rows is not None and self.rows.begins is None):  # failed, and may be retried
            self._record = self._read() or self._record
        return self._record

    def new(self) -> list[Point]:
        return self.rows.new() if self.rows is not None else []

    def _read(self) -> Record | None:
        trial = self._trial()
        if self.whole_only and (trial is None or trial["status"] == "running"):
            return None
        config = _yaml(self.path / "experiment.yaml")
        if config is None and (trial is None or trial["status"] == "running"):
            return None
        config = config or {}
        rows = RunRows(self.path, len(config.get("stages") or ()) > 1)
        rows.new()
        if rows.begins is None and (trial is None or self.sweep is None or trial["status"] == "running"):
            return None
        self.rows = rows
        told = {"fedskew.folder": self.path.name, "fedskew.version": __version__}
        begins = (rows.begins or "")[:12]
        if trial is None or self.sweep is None:
            digest = str(self._summary().get("experiment") or self.digest or _digest_of(self.path))
            return Record(
                "-".join(filter(None, [digest, begins])),
                str(config.get("name", self.path.name)),
                flat(config),
                {**told, "fedskew.kind": "run", "fedskew.experiment": digest},
                self._started(),
            )
        setting = {f"setting.{name}": value for name, value in flat(trial["setting"]).items()}
        return Record(
            "-".join(filter(None, [f"{self.sweep.key}/{trial['trial']}", begins])),
            str(trial["trial"]),
            {**flat(config), **setting, "seed": trial["seed"]},
            {**told, "fedskew.kind": "trial", "fedskew.sweep": self.sweep.key, "fedskew.trial": str(trial["trial"])},
            self._started(),
            self.sweep.key,
            self.sweep.name,
        )

    def _trial(self) -> dict[str, Any] | None:
        try:
            return read_record(self.path / RECORD)
        except RunFolderError:
            return None

    def _summary(self) -> dict[str, Any]:
        return _json(self.path / "summary.json") or {}

    def _started(self) -> float:
        written = (_written(self.path / name) for name in ("experiment.yaml", RECORD))
        first = self.rows.first_time if self.rows is not None else math.inf
        return min([one for one in (*written, first) if one is not None and math.isfinite(one)], default=0.0)

    def end(self) -> End | None:
        """Return how it ended, as far as that is on disk; None while it goes on."""
        files = [self.path / name for name in ("experiment.yaml", "parts.json", "summary.json", RECORD)]
        artifacts = [*files, *sorted(self.path.glob(PICTURES))]
        stamp = [(path, RunRows._changed(path)) for path in artifacts]
        if self._ended is None or self._ended[0] != stamp:
            trial, summary = self._trial() if self.sweep else None, self._summary()
            status: Status = trial["status"] if trial else summary.get("status", "running")
            if status == "running" or (self.sweep is None and not summary):
                return None
            artifacts = [path for path in artifacts if path.is_file()]
            figures = {f"summary/{name}": one for name, value in summary.items() if (one := _number(value)) is not None}
            step = int(figures.get("summary/rounds", self.rows.last_step if self.rows else 0))
            time = max((stamp[0] / 1e9 for path in artifacts if (stamp := RunRows._changed(path))), default=0.0)
            tags = self._tags(summary, trial)
            self._ended = (stamp, End(status, time, step, figures, tags, artifacts))
        return self._ended[1]

    @staticmethod
    def _tags(summary: Mapping[str, Any], trial: Mapping[str, Any] | None) -> dict[str, str]:
        named = {name: summary.get(name) for name in ("weights_sha256", "states_sha256", "data_sha256", "stopped_by")}
        versions = summary.get("versions")
        named |= {f"version.{name}": one for name, one in versions.items()} if isinstance(versions, dict) else {}
        named |= {"experiment": summary.get("experiment"), "reason": (trial or {}).get("reason")}
        return {f"fedskew.{name}": str(value) for name, value in named.items() if value is not None}


class SweepUnit:
    """The sweep above its trials."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self._values = values
        self.rows = None
        told = {name: values.get(name) for name in ("metric", "mode", "profile", "partitions", "samples")}
        told |= {"seeds": json.dumps(values.get("seeds")), "axes": json.dumps([one["name"] for one in values["axes"]])}
        rank = values.get("tuned_rank")  # whose folder has the digest of the best candidates' one
        words = [str(values["digest"]), str(values.get("code", "")), f"rank{rank}" if rank else ""]
        key = "-".join(filter(None, words))
        tags = {"fedskew.folder": path.name, "fedskew.version": __version__, "fedskew.kind": "sweep"}
        tags |= {"fedskew.sweep": key, "fedskew.title": str(values.get("title", ""))}
        params = {**flat(values.get("base", {})), **{f"sweep.{name}": one for name, one in told.items()}}
        name = f"{values.get('name', path.name)} ({values.get('profile', '')})"
        started = _written(path / "plan.json") or _written(path / "sweep.yaml") or 0.0
        self._record = Record(key, name, params, tags, started)

    def record(self) -> Record:
        return self._record

    def new(self) -> list[Point]:
        return []

    def end(self) -> End | None:
        """Return what became of the trials; None until all have ended."""
        records = list(_trial_records(self.path))
        statuses = [str(one["status"]) for one in records]
        try:
            planned = read_plan(self.path, self._values) or ()
        except RunFolderError:
            planned = ()
        if "running" in statuses or len(statuses) < len(planned) or not statuses:
            return None
        counts = {f"sweep/{status}": float(statuses.count(status)) for status in ("finished", "stopped", "failed")}
        report = self.path / "report"
        artifacts = [self.path / "sweep.yaml", self.path / "plan.json", report / "report.html", report / "trials.csv"]
        artifacts = [path for path in (*artifacts, *sorted(report.glob(PICTURES))) if path.is_file()]
        status: Status = "failed" if set(statuses) == {"failed"} else "finished"
        time = max((_written(path.parent / RECORD) or 0.0 for path in _trial_paths(self.path)), default=0.0)
        return End(status, time, 0, counts, {}, artifacts)


class Folder:
    """A run or a sweep on disk, with all that is to be told of it."""

    def __init__(self, path: Path, digest: str | None = None) -> None:
        """``digest``: of the run's experiment, where that is known."""
        self.path = path
        self._digest = digest
        self._sweep: SweepUnit | None = None
        self._run: RunUnit | None = None
        self._trials: dict[str, RunUnit] = {}
        self._whole_only = False

    def units(self) -> Iterator[RunUnit | SweepUnit]:
        """Yield the sweep and its trials, or the run; what has come since the last call, too."""
        if self._sweep is None and (values := _yaml(self.path / "sweep.yaml")) is not None:
            if not isinstance(values.get("axes"), list) or "digest" not in values:
                raise RunFolderError(f"{self.path / 'sweep.yaml'} cannot be read as a sweep (it has no axes or digest)")
            scheduler = values.get("scheduler")
            self._whole_only = isinstance(scheduler, dict) and scheduler.get("name") == "pbt"
            self._sweep = SweepUnit(self.path, values)
        if self._sweep is None:
            self._run = self._run or RunUnit(self.path, self._digest)
            yield self._run
            return
        yield self._sweep
        for path in _trial_paths(self.path):
            trial = path.parent
            if trial.name not in self._trials:
                self._trials[trial.name] = RunUnit(trial, None, self._sweep.record(), self._whole_only)
            yield self._trials[trial.name]

    def is_there(self) -> bool:
        """Return whether a run or a sweep was begun here."""
        return any((self.path / name).is_file() for name in ("sweep.yaml", "experiment.yaml"))


def _trial_paths(sweep: Path) -> list[Path]:
    return sorted((sweep / "trials").glob(f"*/{RECORD}"))


def _trial_records(sweep: Path) -> Iterator[dict[str, Any]]:
    for path in _trial_paths(sweep):
        try:
            yield read_record(path)
        except RunFolderError:
            yield {"status": "running"}  # about to be written, or to be made anew by a resume


def _digest_of(path: Path) -> str:
    from engine.record.run_folder import RunFolder  # with torch, and the user's own parts

    return RunFolder(path).experiment().digest


def _written(path: Path) -> float | None:
    """Return when a file was last written; None where there is none."""
    stamp = RunRows._changed(path)
    return stamp[0] / 1e9 if stamp is not None else None


def _yaml(path: Path) -> dict[str, Any] | None:
    try:
        values = safe_yaml.read(path)
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(read_text(path))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None
