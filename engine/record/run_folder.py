"""A run's folder: its files, and how they are locked, prepared, cleared and written as the run goes.

    experiment.yaml       the resolved experiment
    availability.parquet  who is there when, if a table said so: the run goes by it, wherever the user's own is
    parts.json            where its algorithm, model, data and partition came from
    partition.parquet     which client has which rows                partition.png  a picture of the training rows
    rounds.parquet        one row per round, and stage without any   curves.png     accuracy and loss over rounds
    clients.parquet       one row per client and round
    evaluations.parquet   one row per evaluation, with per-class accuracy
    personal.parquet      one row per client and evaluation of its model on its own test rows, if there were any
    exchanges.parquet     one row per client and exchange outside rounds, if there were any
    failures.parquet      one row per client and round that it was left out of, if there were any
    matrices.parquet      one row per pair of classes of each matrix that the server ends with, see matrices.py
    sampler.png           class shares of clients' samples and of what local steps see, if an algorithm adds rows
    summary.json          the run in a dozen figures                 log.txt        what happened
    checkpoints/          see checkpoints.py

Tables grow at every checkpoint, by a whole new file put in the old one's place, so each is readable at any moment
and holds no round that the checkpoint beside it does not.
"""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base import errors, safe_yaml
from engine.base.allocator import give_back_arrows_memory
from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import locked, refuse_links, write_atomically
from engine.base.owned import clear, move, remove
from engine.base.writable import check_writable
from engine.experiment import Experiment
from engine.record import parts, summary
from engine.record.checkpoints import Position
from engine.record.columns import SCHEMAS, Row
from engine.record.shapes import BEGUN, RUN
from engine.record.sweep_files import RECORD, read_record
from engine.record.tables import PARTS, Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["BREAKS_PRIVACY", "PARTS", "Row", "RunFolder"]

BREAKS_PRIVACY = "an oracle: breaks privacy"  # the label of what an algorithm with ``breaks_privacy`` came to
BEFORE = ".before-"  # of a folder that holds an earlier run for a moment, see RunFolder.prepared
GONE_WITHIN = 5.0  # seconds: an actor that was killed lets go of its folder's lock


def _is_begun(path: Path) -> bool:
    """Return whether a run that was killed before it wrote its experiment left this behind."""
    if path.is_dir():
        return re.fullmatch(rf"{re.escape(BEFORE)}\w{{8}}", path.name) is not None
    return BEGUN.rank(path.name) is not None


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = path = Path(path)
        self.rounds = Table(path / "rounds.parquet", SCHEMAS["rounds"])
        self.clients = Table(path / "clients.parquet", SCHEMAS["clients"])
        self.evaluations = Table(path / "evaluations.parquet", SCHEMAS["evaluations"])
        self.personal = Table(path / "personal.parquet", SCHEMAS["personal"])
        self.exchanges = Table(path / "exchanges.parquet", SCHEMAS["exchanges"])
        self.failures = Table(path / "failures.parquet", SCHEMAS["failures"])

    # --- the experiment ---------------------------------------------------------------------------------

    @classmethod
    def for_experiment(cls, experiment: Experiment, out: Path | str | None) -> RunFolder:
        """Give ``runs/<name>-<hash>``, or ``out``; refuses a folder that holds another experiment."""
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
        elif folder._is_anothers():
            raise ConfigError("--out", folder.path, "is not empty and holds no run", "name another folder")
        else:
            check_writable(folder.path, "--out", locks=True)
        return folder

    def _is_anothers(self) -> bool:
        """Return whether a folder without an experiment holds what no run has put there."""
        if not os.path.exists(self.path) or all(map(_is_begun, self.path.iterdir())):
            return False
        try:
            read_record(self.path / RECORD)
        except RunFolderError:  # no trial of a sweep, in whose folder anything may lie beside it
            return True
        return False

    def command_anew(self) -> str:
        """Return the command that computes this run again from its beginning."""
        given = [word for file in errors.needed_files for word in ("--with", file)]
        asked = str(self.path / "experiment.yaml")
        return shlex.join(["fedskew", "run", asked, "--out", str(self.path), "--overwrite", *given])

    @property
    def _availability(self) -> Path:
        return self.path / "availability.parquet"

    def has_experiment(self) -> bool:
        """Return whether a run was begun here."""
        return os.path.exists(self.path / "experiment.yaml")

    def experiment(self) -> Experiment:
        """Read the experiment; :class:`RunFolderError` if this is no run folder."""
        path = self.path / "experiment.yaml"
        if not self.has_experiment():
            raise RunFolderError(f"{self.path} is not a run folder: it has no experiment.yaml; name another")
        try:
            values = safe_yaml.read(path)
            if os.path.exists(self._availability):
                values["participation"] = {**values["participation"], "availability": str(self._availability)}
            return Experiment.from_mapping(values)
        except (ValueError, OSError, TypeError, KeyError) as error:
            lacking = next(iter(parts.lacking(self.path).values()), None)
            told = f"{self.path}: {lacking}" if lacking else f"{path} is not an experiment of this version ({error})"
            raise RunFolderError(told) from None

    @contextmanager
    def prepared(self, overwrite: bool) -> Iterator[None]:
        """Make room for a run; put everything back as it was if it cannot be opened.

        With ``overwrite`` what an earlier run wrote here (:data:`~engine.record.shapes.RUN`) is put aside, and deleted
        once the new run is open. Other files are never touched.
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
            try:
                move(self.path, aside, RUN)
            except BaseException:  # Ctrl-C, or a disk that fails; nothing of the new run is here yet
                move(aside, self.path, RUN, back=True)
                aside.rmdir()
                raise
        try:
            yield
        except BaseException:
            # Another command may have begun the same run meanwhile: what is here is its own then.
            with suppress(RunFolderError), self.locked(GONE_WITHIN):
                if overwrite or not had_run:
                    self.clear()
                    move(aside, self.path, RUN, back=True)
            for place in (aside, *made):  # the innermost first; another run may be in one
                with suppress(OSError):
                    place.rmdir()
            raise
        remove(aside, RUN)

    def clear(self) -> None:
        """Delete the run, and nothing else that is in its folder."""
        clear(self.path, RUN)

    @contextmanager
    def locked(self, patience: float = 0.0) -> Iterator[None]:
        """Hold the lock of the one process that may write here; the kernel lets go of it if that process is killed.

        ``patience``: seconds to wait for it.
        """
        with locked(self.path / ".lock", patience):
            yield

    def create(self, experiment: Experiment) -> None:
        """Make the folder of ``experiment``."""
        self.path.mkdir(parents=True, exist_ok=True)
        parts.write(self.path, experiment)
        if experiment.participation.table is not None:
            experiment.participation.table.save(self._availability)
        write_atomically(self.path / "experiment.yaml", experiment.to_yaml())

    # --- the tables -------------------------------------------------------------------------------------

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables that grow as the run goes."""
        return self.rounds, self.clients, self.evaluations, self.personal, self.exchanges, self.failures

    def flush(self) -> None:
        """Append pending rows to all tables, see :meth:`Table.flush`."""
        for table in self.tables:
            table.flush()
        give_back_arrows_memory()  # otherwise a process' memory grows from checkpoint to checkpoint

    def fold(self) -> None:
        """Put the parts of all tables into their tables, see :meth:`Table.fold`."""
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
        """Read the table of that name in :data:`~engine.record.columns.TABLES`, as far as written."""
        return Table(self.path / f"{table}.parquet", SCHEMAS[table]).frame()

    def arrow(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the table of that name, as far as written, or some of its columns, see :meth:`Table.arrow`."""
        return Table(self.path / f"{table}.parquet", SCHEMAS[table]).arrow(columns)

    # --- the summary ------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Read ``summary.json``, see :func:`engine.record.summary.read`."""
        return summary.read(self.path)

    def summarise(self, experiment: Experiment, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Write ``summary.json``, see :func:`engine.record.summary.write`."""
        tables = {name: self.frame(name) for name in ("rounds", "exchanges", "evaluations", "personal")}
        rows = {table.name: table.count() for table in self.tables}  # so that a table that lost some is known
        return summary.write(self.path, experiment, tables, {**facts, "rows": rows})
