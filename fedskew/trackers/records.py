"""What a tracker is told of a folder: runs, trials and sweeps as records, and the numbers of their tables as points."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from engine import __version__
from engine.base import safe_yaml
from engine.base.errors import RunFolderError
from engine.base.opening import read_bytes, read_text
from engine.record.columns import SCHEMAS
from engine.record.numerics import UNKNOWN
from engine.record.run_folder import RunFolder
from engine.record.stage_hashes import CODE
from engine.record.sweep_files import RECORD, read_plan, read_record, setting_at

TABLES = ("rounds", "evaluations")  # whose numbers are told
CLASSES = 100  # of which single accuracies are told; those of more are in the tables
FIGURES_OF = ("weights_sha256", "states_sha256", "data_sha256", "stopped_by", "experiment")  # of a summary, as tags


class Point(NamedTuple):
    """One number of a run."""

    key: str  # table and column: rounds/loss_after
    step: int  # the round, global
    value: float
    time: float  # seconds since 1970, about when its row came to be


@dataclass(frozen=True)
class Record:
    """A run, a trial of a sweep, or the sweep above its trials."""

    key: str  # two folders of equal results have the same one
    name: str
    params: Mapping[str, Any]  # the resolved config by dotted keys
    tags: Mapping[str, str]
    started: float  # seconds since 1970
    parent: Record | None = None  # the sweep that a trial belongs to


@dataclass(frozen=True)
class End:
    """What is known of a run when it is over, or of a sweep."""

    status: str  # finished | stopped | failed
    time: float  # seconds since 1970
    step: int  # its last round
    figures: Mapping[str, float] = field(default_factory=dict)  # by name, ``summary/accuracy``
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[Path] = ()

    @property
    def digest(self) -> str:
        """16 hex digits of all of it but times."""
        contents = [(path.name, hashlib.sha256(read_bytes(path)).hexdigest()) for path in self.files]
        text = json.dumps([self.status, self.step, dict(self.figures), dict(self.tags), contents], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Progress:
    """How much of a record a tracker has; each tracker keeps it beside the record, as JSON."""

    rows: dict[str, int] = field(default_factory=dict)  # table -> rows whose numbers it has
    end: str = ""  # the digest of the end

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Progress:
        values = json.loads(text or "{}")
        return cls(dict(values.get("rows", {})), str(values.get("end", "")))


class Tracker(Protocol):
    """A place that runs are told to. Its errors are its library's own."""

    def begin(self, record: Record) -> Progress:
        """Find the record, or make it; return how much of it is there."""
        ...

    def log(self, record: Record, points: Sequence[Point], progress: Progress) -> None:
        """Add points, after which there is as much as ``progress`` says."""
        ...

    def end(self, record: Record, end: End, progress: Progress) -> None:
        """Tell how it ended, after which there is as much as ``progress`` says."""
        ...

    def close(self) -> None:
        """Write what is not yet written."""
        ...


class Push:
    """Tells a tracker what is in the folder of a run or a sweep, and only what the tracker does not have."""

    def __init__(self, folder: Path, tracker: Tracker) -> None:
        self._folder = folder
        self._tracker = tracker
        self._known: dict[str, Progress] = {}  # key of a record -> what the tracker has of it
        self._told: dict[Path, object] = {}  # folder of a run -> its files as they were when all of them was told
        self.points = 0  # numbers that were told here

    @property
    def records(self) -> int:
        """Runs, trials and sweeps that the tracker knows of."""
        return len(self._known)

    def once(self) -> None:
        """Tell what is new; errors of the tracker's are not caught, and what it was told before one stays told."""
        sweep = _mapping(self._folder / "sweep.yaml")
        if not sweep:
            self._run(self._folder)
            return
        if not isinstance(sweep.get("axes"), list) or "digest" not in sweep:
            raise RunFolderError(f"{self._folder / 'sweep.yaml'} cannot be read as a sweep (it has no axes or digest)")
        trials = dict(_trials(self._folder))
        if not trials and sweep.get(CODE, UNKNOWN) == UNKNOWN:
            return  # its sides are tuned first: its key is not known yet
        record = sweep_record(self._folder, sweep)
        self._begun(record)
        copies = isinstance(sweep.get("scheduler"), dict) and sweep["scheduler"].get("name") == "pbt"
        for path, trial in trials.items():
            # Until a trial's end a copy of another one may take the place of its rows.
            if trial["status"] != "running" or not (copies or "setting" not in trial):
                self._run(path, trial, record)
        self._end(record, _sweep_end(self._folder, sweep, list(trials.values())))

    def _run(self, path: Path, trial: Mapping[str, Any] | None = None, sweep: Record | None = None) -> None:
        """Tell of a run, or of a sweep's trial; its tables are read if one of its files has changed."""
        files = _stamps(path)
        record = run_record(path, trial, sweep) if self._told.get(path) != files else None
        if record is None:
            return
        known = self._begun(record)
        points, rows, last = points_of(path, record.started, known.rows)
        if rows != known.rows:
            progress = Progress(rows, known.end)
            self._tracker.log(record, points, progress)
            self._known[record.key] = progress
            self.points += len(points)
        self._end(record, _run_end(path, trial, last))
        self._told[path] = files

    def _begun(self, record: Record) -> Progress:
        if record.key not in self._known:
            self._known[record.key] = self._tracker.begin(record)
        return self._known[record.key]

    def _end(self, record: Record, end: End | None) -> None:
        known = self._known[record.key]
        if end is not None and end.digest != known.end:
            progress = Progress(known.rows, end.digest)
            self._tracker.end(record, end, progress)
            self._known[record.key] = progress  # not before: an end that failed is told again


# --- runs and trials ------------------------------------------------------------------------------------


def run_record(path: Path, trial: Mapping[str, Any] | None = None, sweep: Record | None = None) -> Record | None:
    """Return the record of a run, or of a sweep's trial; None until there is enough on disk to tell it by.

    A run is known by its experiment's digest and its weights after the first round, a trial by its sweep, its number
    and the same: equal experiments that were computed by different code are different records.
    """
    config = _mapping(path / "experiment.yaml")
    ended = trial is not None and trial["status"] != "running"
    rows = _rows(path, "rounds")
    if not ended and (not config or not rows):
        return None
    begins = str(rows[0].get("weights_sha256") or "")[:12] if rows else ""
    tags = {"fedskew.folder": path.name, "fedskew.version": __version__}
    started = _written(path / "experiment.yaml") or _written(path / RECORD) or 0.0
    if trial is None or sweep is None:
        # Of one that has ended it is written down: to build the experiment may need a table that lies elsewhere.
        digest = _mapping(path / "summary.json").get("experiment") or RunFolder(path).experiment().digest
        tags |= {"fedskew.kind": "run", "fedskew.experiment": digest}
        return Record(f"{digest}-{begins}", str(config.get("name", path.name)), flat(config), tags, started)
    setting = {f"setting.{name}": value for name, value in flat(setting_at(trial, trial.get("rounds", 0))).items()}
    tags |= {"fedskew.kind": "trial", "fedskew.sweep": sweep.key, "fedskew.trial": str(trial["trial"])}
    key = f"{sweep.key}/{trial['trial']}" + (f"-{begins}" if begins else "")
    params = {**flat(config), **setting, "seed": trial["seed"]}
    return Record(key, str(trial["trial"]), params, tags, started, sweep)


def points_of(path: Path, started: float, told: Mapping[str, int]) -> tuple[list[Point], dict[str, int], int]:
    """Return the numbers of a run's rows after those that were told, how many rows there are now, and the last round.

    Rows hold no times: each is placed by what the rounds before it took, rounds taken from another run being free.
    """
    points, counts, last = [], dict[str, int](), 0
    stages = len(_mapping(path / "experiment.yaml").get("stages") or ()) > 1
    times: dict[tuple[str, int], float] = {}  # stage and round -> when it ended
    for table in TABLES:
        rows = _rows(path, table)
        counts[table] = max(len(rows), told.get(table, 0))
        for number, row in enumerate(rows):
            stage, step = str(row["stage"]), int(row["round"])
            if table == "rounds":
                started += 0.0 if row.get("reused") else _number(row.get("seconds")) or 0.0
                times[stage, step] = started
                last = max(last, step)
            if number < told.get(table, 0):
                continue
            place = f"{stage}/{table}" if stages else table
            if table == "evaluations" and row.get("scope") != "global":
                place = f"{place}/{row.get('scope')}"
            time = times.get((stage, step), started)
            points += [Point(f"{place}/{name}", step, value, time) for name, value in _numbers(table, row)]
    return points, {name: count for name, count in counts.items() if count}, last


def _run_end(path: Path, trial: Mapping[str, Any] | None, last: int) -> End | None:
    summary = _mapping(path / "summary.json")
    status = str(trial["status"] if trial else summary.get("status", "running"))
    if status == "running":
        return None
    figures = {f"summary/{name}": one for name, value in summary.items() if (one := _number(value)) is not None}
    versions = summary.get("versions")
    tags = {name: summary.get(name) for name in FIGURES_OF} | {"reason": (trial or {}).get("reason")}
    tags |= {f"version.{name}": one for name, one in versions.items()} if isinstance(versions, dict) else {}
    files = _files(path)
    time = max((_written(file) or 0.0 for file in files), default=0.0)
    named = {f"fedskew.{name}": str(value) for name, value in tags.items() if value is not None}
    return End(status, time, int(figures.get("summary/rounds", last)), figures, named, files)


def _files(path: Path) -> list[Path]:
    """Return the files of a run that a tracker gets at its end."""
    names = ("experiment.yaml", "parts.json", "summary.json", RECORD)
    return [file for file in (*(path / name for name in names), *sorted(path.glob("*.png"))) if file.is_file()]


def _stamps(path: Path) -> dict[str, object]:
    """Return what is another one when a file of a run that is told of has changed."""
    found: dict[str, object] = {}
    for file in (*(path / f"{table}.parquet" for table in TABLES), *_files(path)):
        with suppress(OSError):
            found[file.name] = file.stat().st_mtime_ns, file.stat().st_size
    return found


def _rows(path: Path, table: str) -> list[dict[str, Any]]:
    try:
        return RunFolder(path).frame(table).to_dict("records")
    except RunFolderError:  # the run itself tells of a damaged table, and mends it
        return []


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
        yield from ((name, number) for name, one in entries if (number := _number(one)) is not None)


def _number(value: Any) -> float | None:
    """Return a finite number, None for what is none."""
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a config by dotted keys; a list of named mappings is taken apart by their names, as ``stages.train``."""
    flattened: dict[str, Any] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flattened |= flat(value, f"{key}.")
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) and "name" in one for one in value):
            for number, one in enumerate(value):
                flattened |= flat(one, f"{key}.{one['name'] if name == 'stages' else number}.")
        else:
            flattened[key] = json.dumps(value) if isinstance(value, list | Mapping) else value
    return flattened


# --- sweeps ---------------------------------------------------------------------------------------------


def sweep_record(path: Path, values: Mapping[str, Any]) -> Record:
    """Return the record of a sweep from its ``sweep.yaml``."""
    about = {name: values.get(name) for name in ("metric", "mode", "profile", "partitions", "samples")}
    about |= {"seeds": json.dumps(values.get("seeds")), "axes": json.dumps([one["name"] for one in values["axes"]])}
    rank = values.get("tuned_rank")  # whose folder has the digest of the best candidates' one
    words = [str(values["digest"]), str(values.get("code", "")), f"rank{rank}" if rank else ""]
    key = "-".join(filter(None, words))
    tags = {"fedskew.folder": path.name, "fedskew.version": __version__, "fedskew.kind": "sweep"}
    tags |= {"fedskew.sweep": key, "fedskew.title": str(values.get("title", ""))}
    params = {**flat(values.get("base", {})), **{f"sweep.{name}": one for name, one in about.items()}}
    name = f"{values.get('name', path.name)} ({values.get('profile', '')})"
    return Record(key, name, params, tags, _written(path / "plan.json") or _written(path / "sweep.yaml") or 0.0)


def _sweep_end(path: Path, values: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> End | None:
    """Return what became of the trials; None until all have ended."""
    statuses = [str(one["status"]) for one in trials]
    try:
        planned = read_plan(path, values) or ()
    except RunFolderError:
        planned = ()
    if "running" in statuses or len(statuses) < len(planned) or not statuses:
        return None
    counts = {f"sweep/{status}": float(statuses.count(status)) for status in ("finished", "stopped", "failed")}
    report = path / "report"
    files = [path / "sweep.yaml", path / "plan.json", report / "report.html", report / "trials.csv"]
    files = [file for file in (*files, *sorted(report.glob("*.png"))) if file.is_file()]
    time = max((_written(file) or 0.0 for file in (path / "trials").glob(f"*/{RECORD}")), default=0.0)
    return End("failed" if set(statuses) == {"failed"} else "finished", time, 0, counts, {}, files)


def _trials(sweep: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for path in sorted((sweep / "trials").glob(f"*/{RECORD}")):
        try:
            yield path.parent, read_record(path)
        except RunFolderError:
            yield path.parent, {"status": "running"}  # about to be written, or to be made anew by a resume


def _written(path: Path) -> float | None:
    """Return when a file was last written; None where there is none."""
    with suppress(OSError):
        return path.stat().st_mtime
    return None


def _mapping(path: Path) -> dict[str, Any]:
    """Return what a file of YAML or JSON holds; nothing where it cannot be read as a mapping."""
    try:
        values = safe_yaml.read(path) if path.suffix == ".yaml" else json.loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}
