"""A run's folder: what is in it, and how it is written as the run goes.

    experiment.yaml       the resolved experiment
    partition.parquet     which client has which rows                partition.png  a picture of the training rows
    rounds.parquet        one row per round, and stage without any   curves.png     accuracy and loss over rounds
    clients.parquet       one row per client and round
    evaluations.parquet   one row per evaluation, with per-class accuracy
    personal.parquet      one row per client and evaluation of its model on its own test rows, if there were any
    exchanges.parquet     one row per client and exchange outside rounds, if there were any
    failures.parquet      one row per client and round that it was left out of, if there were any
    matrices.parquet      one row per pair of classes of each matrix that the server ends with, see matrices.py
    matrices.png          heat maps of them
    classes.png           accuracy of each class, and who holds it, if the last stage has no rounds
    sampler.png           class shares of clients' samples and of what local steps see, if an algorithm adds rows
    summary.json          the run in a dozen figures                 log.txt        what happened
    checkpoints/          see checkpoints.py

Tables grow at every checkpoint, by a whole new file put in the old one's place, so each is readable at any moment
and holds no round that the checkpoint beside it does not.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from engine.base import parquet, safe_yaml
from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import locked, refuse_links, write_atomically
from engine.base.writable import check_writable
from engine.client import precision
from engine.experiment import CHOICES, Experiment
from engine.record import communication, personal
from engine.record.checkpoints import Position
from engine.record.last_rounds import comparable, local_of_last_rounds, of_last_rounds

Row = dict[str, Any]

PARTS = "rows"  # the folder of tables' parts, while a run goes on
OWN_FILES = (
    "experiment.yaml",
    "partition.parquet",
    "partition.png",
    "sampler.png",
    "rounds.parquet",
    "clients.parquet",
    "evaluations.parquet",
    "personal.parquet",
    "exchanges.parquet",
    "failures.parquet",
    "matrices.parquet",
    "matrices.png",
    "classes.png",
    "summary.json",
    "curves.png",
    "diagnosis",
    "images",
    "log.txt",
    "checkpoints",
    "fetched",
    PARTS,
    ".lock",
)

# What a finished run's summary has at the least, for whoever shows it.
SHOWN = ("name", "algorithm", "accuracy", "best_accuracy", "best_round", "last10_accuracy", "rounds")
SHOWN += ("seconds_per_round", "floats_up", "floats_down", "weights_sha256")
BREAKS_PRIVACY = "an oracle: breaks privacy"  # the label of what an algorithm with ``breaks_privacy`` came to
BEFORE = ".before-"  # of a folder that holds an earlier run for a moment, see RunFolder.prepared
GONE_WITHIN = 5.0  # seconds: an actor that was killed lets go of its folder's lock
TRIAL = "trial.json"  # beside them where the run is a trial of a sweep; see engine/sweeps

SCHEMAS = {
    "rounds": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),  # global, from 1
            ("lr", pa.float64()),
            ("clients", pa.int64()),  # in the cohort, without those that failed
            ("failed", pa.int64()),  # clients that were left out, see participation.on_client_error
            ("samples", pa.int64()),  # of these clients
            ("steps", pa.int64()),  # optimizer steps, over these clients
            ("loss_before", pa.float64()),  # mean over the cohort by samples; see clients
            ("loss_after", pa.float64()),
            ("local_accuracy", pa.float64()),  # mean of the local models on the test set, before aggregation
            ("update_norm", pa.float64()),  # Euclidean norm of the global weights' change
            ("weights_sha256", pa.string()),  # of the global model right after aggregation
            ("floats_up", pa.int64()),
            ("floats_down", pa.int64()),
            ("scalars", pa.map_(pa.string(), pa.float64())),  # the server's entries of kind scalar after the round
            ("seconds", pa.float64()),  # of the round without evaluation
            ("evaluation_seconds", pa.float64()),
            ("reused", pa.bool_()),  # computed by another run, and taken over with its figures
        ]
    ),
    "clients": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            ("client", pa.int64()),
            ("samples", pa.int64()),
            ("steps", pa.int64()),
            ("loss_before", pa.float64()),  # the objective on the client's first batch, before its first step
            ("loss_after", pa.float64()),  # on the same batch, after its last step
            (
                "local_accuracy",
                pa.float64(),
            ),  # of the local model on the test set, every evaluation.local_every rounds
            ("seconds", pa.float64()),
            ("floats_up", pa.int64()),
            ("floats_down", pa.int64()),
            (
                "actor",
                pa.int64(),
            ),  # where it ran; with seconds and reused, all that may differ between equal runs
            ("reused", pa.bool_()),
        ]
    ),
    "evaluations": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            # global: the global model on the whole test set; personal, where there is none: clients' own models, each
            # on its own share of the test rows, all rows together
            ("scope", pa.string()),
            ("accuracy", pa.float64()),  # a fraction
            ("loss", pa.float64()),  # mean cross entropy; null: not finite, as for a class that the model cannot name
            ("samples", pa.int64()),
            ("class_accuracy", pa.list_(pa.float64())),
            ("class_samples", pa.list_(pa.int64())),
            ("reused", pa.bool_()),
        ]
    ),
    # Clients' own models, each on its own share of the test rows.
    "personal": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            ("client", pa.int64()),
            # received: what a participant of the round got, with what it keeps, before its local work
            # post_local: the same after its local work, before the server's step
            # post_server: what every client would get next, with what it keeps
            # fine_tuned: that after fine-tuning, at the end of the run, if asked for
            ("point", pa.string()),
            ("participant", pa.bool_()),  # in the round's cohort
            ("samples", pa.int64()),  # the client's test rows, at least one
            ("accuracy", pa.float64()),  # a fraction
            ("loss", pa.float64()),  # mean cross entropy; null: not finite, as for a class that the model cannot name
            ("reused", pa.bool_()),
        ]
    ),
    # Messages outside rounds, in numbers of any kind: of clients.map as they were given, see the contract.
    "exchanges": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),  # after which it took place: the last of the stage before, or of the stage
            ("when", pa.string()),  # prepare, finish: the method that asked; start: what is sent once and kept
            ("exchange", pa.int64()),  # counts the passes over the clients of that method, from 1
            ("client", pa.int64()),
            ("samples", pa.int64()),
            ("floats_up", pa.int64()),
            ("floats_down", pa.int64()),
            ("reused", pa.bool_()),
        ]
    ),
    "failures": pa.schema(
        [
            ("stage", pa.string()),
            ("round", pa.int64()),
            ("client", pa.int64()),
            ("step", pa.int64()),  # from which on something was not finite, from 1; null: not known, or it raised
            ("reason", pa.string()),
            ("reused", pa.bool_()),
        ]
    ),
}


GROUP_ROWS = 20_000  # of a parquet row group: about a megabyte
PART_ROWS = 5_000  # of a table's part, from which on another one is begun


def _is_own(path: Path) -> bool:
    """Whether a run wrote it; a kill may leave files behind that were about to be moved to their place."""
    name = path.name
    left_behind = name.startswith(".") and (name.endswith(".tmp") or name.startswith(BEFORE))
    return left_behind or name in (*OWN_FILES, TRIAL)


def finite(value: float | None) -> float | None:
    """None for infinity and NaN, which JSON has no word for."""
    return value if value is not None and math.isfinite(value) else None


class Table:
    """A parquet file that grows by rows.

    Parquet cannot be appended to, so a flush writes a file anew: the table itself while that is small, from then on
    parts of it beside it, of which the last one grows. A flush takes as long in the last round as in the first.
    :meth:`fold` puts parts back into the table; one whose rows have got there already is of a fold that was killed.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.name = path.stem
        self.schema = schema
        self._pending: list[Row] = []

    def add(self, row: Row) -> None:
        self._pending.append({"reused": False, **row})

    def flush(self) -> None:
        """Append what is pending."""
        if not self._pending:
            return
        fresh = pa.Table.from_pylist(self._pending, schema=self.schema)
        path = self._grows()
        if path.exists():
            with _reader(path) as reader:
                fresh = pa.concat_tables([self._whole(parquet.valid(reader.read(use_threads=False))), fresh])
        with self._replacing(path) as writer:
            writer.write_table(fresh.combine_chunks(), row_group_size=GROUP_ROWS)
        self._pending.clear()

    def fold(self) -> None:
        """All rows into the table itself, row group by row group, so that memory does not grow with the file."""
        parts = self._parts()
        if parts:
            held = self.schema.empty_table()
            with self._replacing(self.path) as writer:
                for group in self._groups((self.path, *parts)):
                    held = pa.concat_tables([held, group])
                    while len(held) >= GROUP_ROWS:
                        writer.write_table(held.slice(0, GROUP_ROWS).combine_chunks())
                        held = held.slice(GROUP_ROWS)
                if len(held):
                    writer.write_table(held.combine_chunks())
        for path in self._all_parts():
            path.unlink()
        with suppress(OSError):  # none was needed, or other tables have parts there
            (self.path.parent / PARTS).rmdir()

    def frame(self) -> pd.DataFrame:
        """All that was flushed, also of a run that goes on meanwhile."""
        while True:
            paths = [self.path, *self._parts()] if self.path.exists() else []
            try:
                frames = [parquet.read(path).to_pandas() for path in paths]
            except FileNotFoundError:  # just folded
                continue
            except (OSError, pa.ArrowException) as error:
                raise RunFolderError(f"{self.path} cannot be read ({error})") from None
            if len(frames) > 1:
                return pd.concat(frames, ignore_index=True)
            return frames[0] if frames else self.schema.empty_table().to_pandas()

    def _grows(self) -> Path:
        """The file that the next rows go into."""
        if not self.path.exists():
            return self.path
        last = (self.path, *self._parts())[-1]
        begins, rows = self._begins(last), _rows(last)
        return last if rows < (GROUP_ROWS if last == self.path else PART_ROWS) else self._part(begins + rows)

    def _part(self, begins: int) -> Path:
        """That begins with a row of this number."""
        folder = self.path.parent / PARTS
        folder.mkdir(exist_ok=True)
        return folder / f"{self.name}.{begins:012d}.parquet"

    def _begins(self, path: Path) -> int:
        return 0 if path == self.path else int(path.name.split(".")[1])

    def _parts(self) -> list[Path]:
        """In their order, and without those of a fold that was killed before it removed them."""
        found = self._all_parts()
        folded = _rows(self.path) if found and self.path.exists() else 0
        return [path for path in found if self._begins(path) >= folded]

    def _all_parts(self) -> list[Path]:
        return sorted((self.path.parent / PARTS).glob(f"{self.name}.*.parquet"))

    def read(self, stage: str, last_round: int) -> list[Row]:
        """A stage's rows up to a round, as far as written."""
        self.fold()
        if not self.path.exists():
            return []
        with _reader(self.path) as reader:
            rows: list[Row] = self._whole(parquet.valid(reader.read(use_threads=False))).to_pylist()
        return [row for row in rows if row["stage"] == stage and row["round"] <= last_round]

    def truncate(self, last_rounds: Mapping[str, int]) -> None:
        """Keep the rows of each stage up to its last round; drop those of other stages, and what is pending."""
        self._pending.clear()
        self.fold()
        if not self.path.exists():
            return
        with _reader(self.path) as reader:
            table = self._whole(parquet.valid(reader.read(use_threads=False)))
        keep = [
            round <= last_rounds.get(stage, -1)
            for stage, round in zip(table["stage"].to_pylist(), table["round"].to_pylist(), strict=True)
        ]
        if not all(keep):
            with self._replacing(self.path) as writer:
                writer.write_table(table.filter(pa.array(keep)), row_group_size=GROUP_ROWS)

    def _groups(self, paths: Iterable[Path]) -> Iterator[pa.Table]:
        """The row groups of these files, one after the other."""
        for path in paths:
            with _reader(path) as reader:
                for group in range(reader.num_row_groups):
                    yield self._whole(parquet.valid(reader.read_row_group(group, use_threads=False)))

    def _whole(self, table: pa.Table) -> pa.Table:
        """With the columns that came after the file was begun, empty; :class:`RunFolderError` for other ones."""
        for column in self.schema:
            if column.name not in table.column_names:
                if column.name in ("stage", "round"):
                    raise RunFolderError(f"{self.path} cannot be read (it has no column {column.name!r})")
                table = table.append_column(column, pa.nulls(len(table), column.type))
        try:
            return table.select(self.schema.names).cast(self.schema)
        except (pa.ArrowException, ValueError) as error:
            raise RunFolderError(f"{self.path} cannot be read ({error}); move it away and resume") from None

    @contextmanager
    def _replacing(self, path: Path) -> Iterator[pq.ParquetWriter]:
        """A writer of a new file that takes the old one's place when it is whole."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with pq.ParquetWriter(temporary, self.schema, compression="zstd") as writer:
                yield writer
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def _reader(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with parquet.opened(path) as reader:
            yield reader
    except (OSError, pa.ArrowException) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); move it away and resume") from None


def _rows(path: Path) -> int:
    with _reader(path) as reader:
        return reader.metadata.num_rows


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds = Table(path / "rounds.parquet", SCHEMAS["rounds"])
        self.clients = Table(path / "clients.parquet", SCHEMAS["clients"])
        self.evaluations = Table(path / "evaluations.parquet", SCHEMAS["evaluations"])
        self.personal = Table(path / "personal.parquet", SCHEMAS["personal"])
        self.exchanges = Table(path / "exchanges.parquet", SCHEMAS["exchanges"])
        self.failures = Table(path / "failures.parquet", SCHEMAS["failures"])

    # --- the experiment ---------------------------------------------------------------------------------

    @classmethod
    def for_experiment(cls, experiment: Experiment, out: Path | None) -> RunFolder:
        """``runs/<name>-<hash>``, or ``out``; refuses a folder that holds another experiment."""
        folder = cls(out or Path("runs") / f"{experiment.name}-{experiment.digest}")
        if os.path.exists(folder.path) and not folder.path.is_dir():
            raise ConfigError("--out", folder.path, "is not a folder", "name another one")
        refuse_links(folder.path)
        if folder.has_experiment():
            found = folder.experiment().digest
            if found != experiment.digest:
                raise ConfigError(
                    "--out",
                    folder.path,
                    f"holds another experiment ({found}, this one is {experiment.digest})",
                    "name another folder, or leave --out away",
                )
        elif os.path.exists(folder.path) and not all(map(_is_own, folder.path.iterdir())):
            raise ConfigError("--out", folder.path, "is not empty and holds no run", "name another folder")
        else:
            check_writable(folder.path, "--out")
        return folder

    def has_experiment(self) -> bool:
        return os.path.exists(self.path / "experiment.yaml")

    def experiment(self) -> Experiment:
        """Raises :class:`RunFolderError` if this is no run folder."""
        path = self.path / "experiment.yaml"
        if not self.has_experiment():
            raise RunFolderError(f"{self.path} is not a run folder: it has no experiment.yaml")
        try:
            return Experiment.from_mapping(safe_yaml.read(path))
        except (ValueError, OSError, TypeError) as error:
            raise RunFolderError(f"{path} is not an experiment of this version ({error})") from None

    @contextmanager
    def prepared(self, overwrite: bool) -> Iterator[None]:
        """Make room for a run; put everything back as it was if it cannot be opened.

        With ``overwrite`` what an earlier run wrote here is put aside, and deleted once the new run is open. Files
        that the engine did not write are never touched.
        """
        had_run = self.has_experiment()
        made = [place for place in (self.path, *self.path.parents) if not place.exists()]
        if overwrite and (self.path / ".lock").exists():
            with self.locked():  # else its lock would be put aside with the files of the run that goes on here
                pass
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            aside = Path(tempfile.mkdtemp(prefix=BEFORE, dir=self.path))
        except OSError as error:
            raise ConfigError("--out", self.path, f"cannot be written ({error.strerror})", "name another") from None
        if overwrite:
            self._move(self.path, aside)
        try:
            yield
        except BaseException:
            # Another command may have begun the same run meanwhile: what is here is its own then.
            with suppress(RunFolderError), self.locked(GONE_WITHIN):
                if overwrite or not had_run:
                    self.clear()
                    self._move(aside, self.path)
            for place in (aside, *made):  # the innermost first; another run may be in one
                with suppress(OSError):
                    place.rmdir()
            raise
        shutil.rmtree(aside)

    def _move(self, source: Path, target: Path) -> None:
        for name in OWN_FILES:
            if (source / name).exists():
                (source / name).rename(target / name)

    def clear(self) -> None:
        """Delete the run."""
        for path in [*(self.path / name for name in OWN_FILES), *self.path.glob(".*.tmp")]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Held by the one process that may write here; let go of by the kernel if that process is killed.

        ``patience``: seconds to wait for it.
        """
        with locked(self.path / ".lock", patience):
            yield

    def create(self, experiment: Experiment) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "experiment.yaml", experiment.to_yaml())

    # --- the tables -------------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[Table, ...]:
        return self.rounds, self.clients, self.evaluations, self.personal, self.exchanges, self.failures

    def flush(self) -> None:
        for table in self.tables:
            table.flush()

    def fold(self) -> None:
        for table in self.tables:
            table.fold()

    def truncate(self, experiment: Experiment, position: Position | None) -> None:
        """Drop what lies beyond ``position``: it is about to be computed again."""
        last_rounds: dict[str, int] = {}
        if position is not None:
            for number, stage in enumerate(experiment.chain[: position.stage + 1]):
                last_rounds[stage.name] = position.round if number == position.stage else 2**62
        for table in self.tables:
            table.truncate(last_rounds)

    def frame(self, table: str) -> pd.DataFrame:
        """``rounds``, ``clients``, ``evaluations``, ``personal``, ``exchanges`` or ``failures`` as far as written."""
        return Table(self.path / f"{table}.parquet", SCHEMAS[table]).frame()

    # --- the summary ------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        path = self.path / "summary.json"
        if not path.exists():
            return {}
        try:
            summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(summary, dict):
                raise ValueError("it holds no mapping")
            lacking = [name for name in SHOWN if name not in summary]
            if summary.get("status") == "finished" and lacking:
                raise ValueError(f"it has no {lacking[0]}")
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"{path} cannot be read ({error})") from None
        return summary

    def summarise(self, experiment: Experiment, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``summary.json`` from the tables and from ``facts``; accuracies are fractions of the test set.

        Accuracies and rounds are those of the last stage and of the stages it comes from; costs are those of all,
        and floats those of rounds and of the exchanges outside them, which are also given by themselves. The best
        accuracy and the mean and standard deviation (n - 1) of the last ten rounds are over evaluations of the same
        scope as the last one. The figures of personal models (see personal.py) are there if the run has them.
        """
        lineage = experiment.lineage
        all_rounds, exchanges = self.frame("rounds"), self.frame("exchanges")
        every: list[Row] = all_rounds.to_dict("records")
        rounds = [row for row in every if row["stage"] in lineage]
        evaluations = [row for row in self.frame("evaluations").to_dict("records") if row["stage"] in lineage]
        without_rounds = experiment.without_rounds
        trained = [row for row in every if row["stage"] not in without_rounds]
        per_round = [row["seconds"] for row in trained if row["stage"] in lineage]
        exchanged = {name: int(column.sum()) for name, column in exchanges[communication.BOTH_WAYS].items()}
        last_round = rounds[-1]["round"] if rounds else 0
        final = evaluations[-1] if evaluations else {}
        same_scope = comparable(evaluations)
        last10 = of_last_rounds(same_scope, last_round, without_rounds)
        best = max(same_scope, key=lambda row: row["accuracy"]) if same_scope else {}
        order = {stage.name: number for number, stage in enumerate(experiment.chain) if stage.name in lineage}
        to_best = [
            communication.until(rows, order, best["stage"], best["round"]) for rows in (all_rounds, exchanges) if best
        ]
        local10 = local_of_last_rounds(rounds, last_round)
        clients = personal.of_stages(self.frame("personal"), lineage)
        of_clients = personal.figures(clients, last_round, without_rounds)
        summary = {
            "name": experiment.name,
            "experiment": experiment.digest,
            "precision": precision.told(experiment.execution),
            "algorithm": CHOICES["algorithm"].dump(experiment.chain[-1].algorithm),
            "scope": final.get("scope"),
            "accuracy": final.get("accuracy"),
            "loss": finite(final.get("loss")),
            "best_accuracy": best.get("accuracy"),
            "best_round": best.get("round"),
            "best_stage": best.get("stage"),
            "last10_accuracy": statistics.fmean(last10) if last10 else None,
            "last10_std": statistics.stdev(last10) if len(last10) > 1 else None,
            "local_last10_accuracy": statistics.fmean(local10) if local10 else None,
            "stage_accuracy": {row["stage"]: row["accuracy"] for row in evaluations},  # after each stage's last round
            **{name: value for name, value in of_clients.items() if value is not None},
            "breaks_privacy": any(s.algorithm.breaks_privacy for s in experiment.chain if s.name in lineage),
            "rounds": last_round,
            "rounds_asked": len(trained),
            # Over rounds; who and why: failures.parquet.
            "clients_failed": sum(int(count) for row in every if (count := row.get("failed", 0)) > 0),
            "rounds_computed": sum(not row["reused"] for row in trained),
            "seconds_per_round": statistics.median(per_round) if per_round else None,
            "seconds": sum(row["seconds"] + row["evaluation_seconds"] for row in every),
            "floats_up": sum(row["floats_up"] for row in every) + exchanged["floats_up"],
            "floats_down": sum(row["floats_down"] for row in every) + exchanged["floats_down"],
            "exchange_floats_up": exchanged["floats_up"],
            "exchange_floats_down": exchanged["floats_down"],
            "client_floats_to_best": communication.of_one_client(*to_best) if to_best else None,
            **facts,
        }
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2, allow_nan=False) + "\n")
        return summary
