"""A look at all files of a run's folder: whether a run can go on from them, and whether one that has ended is whole.

Nothing is computed and nothing is changed. Checkpoints look after themselves, see ``checkpoints.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from engine.base import parquet
from engine.base.errors import FedskewError, RunFolderError
from engine.data import Assignment
from engine.experiment import Experiment
from engine.record import matrices
from engine.record.checkpoints import Checkpoints
from engine.record.columns import Row
from engine.record.run_folder import RunFolder
from engine.record.tables import Table


def check_rows(folder: Path, summary: Mapping[str, Any], tables: Iterable[str]) -> None:
    """Raise :class:`RunFolderError` if one of ``tables`` has fewer rows than the run that wrote ``summary`` counted.

    A file's end says how many it has, so that nothing else of it is read.
    """
    evaluated = summary.get("accuracy") is not None
    counted = summary.get("rows", {"rounds": 1, "evaluations": 1} if evaluated else {})  # an earlier version had none
    for name in tables:
        path = folder / f"{name}.parquet"
        if counted.get(name, 0):
            try:
                with parquet.opened(path) as reader:
                    found = reader.metadata.num_rows
            except (OSError, pa.ArrowException) as error:
                raise RunFolderError(f"{path} cannot be read ({error})") from None
            if found < counted[name]:
                raise RunFolderError(f"{path} has lost rows ({found:,} of {counted[name]:,} are left)")


def check_ended(folder: RunFolder) -> None:
    """Raise :class:`RunFolderError` for what has been lost of a run that has ended: its summary, rows, experiment."""
    summary = folder.summary()
    if not summary:
        raise RunFolderError(f"{folder.path} has no summary.json")
    check_rows(folder.path, summary, [table.name for table in folder.tables])
    matrices.load(folder.path)
    _check_tables(folder)


def check_begun(folder: RunFolder) -> None:
    """Raise :class:`RunFolderError` unless a run can go on here: experiment, partition, and the rows of every round up
    to the newest checkpoint.
    """
    try:
        summary = folder.summary()
    except RunFolderError:  # it is written anew
        summary = {}
    check_rows(folder.path, summary, [table.name for table in folder.tables])
    _check_tables(folder)
    try:
        Assignment.load(folder.path / "partition.parquet")
    except FedskewError as error:
        raise RunFolderError(str(error)) from None


def _check_tables(folder: RunFolder) -> None:
    experiment = folder.experiment()
    due = _rounds_until(experiment, folder)  # first: rows are written before the checkpoint that vouches for them
    for table in folder.tables:
        table.check()
    rounds = _rows(folder.rounds, ("stage", "round", "clients", "failed"))
    found = {(row["stage"], row["round"]): row for row in rounds}
    lost = [place for place in due if place not in found]
    if lost:
        raise RunFolderError(f"{folder.rounds.path} has lost rows (round {lost[0][1]} of stage {lost[0][0]})")
    for table, column in ((folder.clients, "clients"), (folder.failures, "failed")):
        counts = table.frame().reindex(columns=["stage", "round"]).groupby(["stage", "round"]).size().to_dict()
        for place in due:
            if counts.get(place, 0) < (found[place][column] or 0):
                raise RunFolderError(f"{table.path} has lost rows (round {place[1]} of stage {place[0]})")


def _rounds_until(experiment: Experiment, folder: RunFolder) -> list[tuple[str, int]]:
    """List stage and round of every row that the newest checkpoint vouches for."""
    names = tuple(stage.name for stage in experiment.chain)
    newest = Checkpoints(folder.path / "checkpoints", experiment.digest, 1, names).newest()
    if newest is None:
        return []
    stages = zip(experiment.chain, experiment.spans, strict=True)
    return [
        (stage.name, round)
        for number, (stage, span) in enumerate(stages)
        for round in (span or (span.start - 1,))
        if number < newest.stage or (number == newest.stage and round <= newest.round)
    ]


def _rows(table: Table, columns: tuple[str, ...]) -> list[Row]:
    """Read these columns; those that came after the table was written are empty."""
    return table.frame().reindex(columns=list(columns)).to_dict("records")
