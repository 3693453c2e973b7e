"""The results of any number of runs and sweeps in one object.

frames = load_results("runs/ccvr.main-laptop-0123456789ab", "runs/quickstart-a1b2c3d4e5f6")
frames.trials                   one row per trial; so frames.rounds, .clients, .classes, .personal (pandas)
frames.arrow("rounds")          the same as an Arrow table
frames.folders                  each folder's Results, by source; frames.results where there is one folder
frames.damage                   "SOURCE:TRIAL", or SOURCE -> what cannot be read

Every column is documented in ``frame_columns.py``. Large tables are read when they are first asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import pandas as pd
import pyarrow as pa

from engine.base.errors import RunFolderError, nearest, one_line, require
from engine.base.files import holds_results
from engine.results.frames import rows
from engine.results.frames.frame_columns import TABLES
from engine.results.loading import load
from engine.results.results import Results
from engine.results.simulated_time import Devices

log = logging.getLogger("fedskew")


class Frames:
    """The results of runs and sweeps as tables; made by :func:`load_results`."""

    def __init__(self, folders: Mapping[str, Results], lost: Mapping[str, str] | None = None) -> None:
        self._lost = dict(lost or {})
        self.folders = dict(folders)  # by source: the name of the folder, with its parents where two have one name
        self._tables: dict[str, pa.Table] = {}

    @property
    def results(self) -> Results:
        """The :class:`Results` of the one folder; raises :class:`ConfigError` where several were given."""
        many = f"{len(self.folders)} folders were given, each with Results of its own"
        require(len(self.folders) == 1, "results", ", ".join(self.folders), many, "take one of .folders by its name")
        return next(iter(self.folders.values()))

    @property
    def damage(self) -> dict[str, str]:
        """What cannot be read, by ``SOURCE:TRIAL`` or SOURCE; it may grow as large tables are read."""
        found = dict(self._lost)
        for source, results in self.folders.items():
            damage = {**results.completeness.damage, **results.unread}
            found |= {f"{source}:{trial}": told for trial, told in sorted(damage.items())}
        return found

    def arrow(self, name: str) -> pa.Table:
        """Return the table ``name`` of docs/schema.md; raises :class:`ConfigError` for an unknown one.

        Trials whose rows cannot be read are left out of it and named in :attr:`damage` and in the log.
        """
        require(name in TABLES, "table", name, "is none of a result's", nearest(name, TABLES))
        if name not in self._tables:
            before = set(self.damage)
            self._tables[name] = rows.trials(self.folders) if name == "trials" else rows.of_runs(self.folders, name)
            for place, told in self.damage.items():
                if place not in before:
                    log.warning("%s has no rows in %s: %s", place, name, told)
        return self._tables[name]

    @cached_property
    def trials(self) -> pd.DataFrame:
        """One row for each trial, whatever became of it."""
        return self._frame("trials")

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """One row for each round of each trial, with the evaluation after it."""
        return self._frame("rounds")

    @cached_property
    def clients(self) -> pd.DataFrame:
        """One row for each client and round of its cohort."""
        return self._frame("clients")

    @cached_property
    def classes(self) -> pd.DataFrame:
        """One row for each class and evaluation."""
        return self._frame("classes")

    @cached_property
    def personal(self) -> pd.DataFrame:
        """One row for each client, round and point at which its own model was evaluated."""
        return self._frame("personal")

    def _frame(self, name: str) -> pd.DataFrame:
        table = self.arrow(name)
        sure = {column.name for column in TABLES[name] if not column.lacking}
        series = {column: _series(table[column], column in sure) for column in table.schema.names}
        return pd.DataFrame(series, columns=table.schema.names)


def load_results(*folders: Path | str, metric: str | None = None, devices: Devices | None = None) -> Frames:
    """Read the folders of runs and sweeps as one object, see :class:`Frames`.

    ``metric``: a column of the trials to compare by, in place of the sweeps' own; ``devices``: those that simulated
    time supposes, likewise. Raises :class:`RunFolderError` for a
    folder that is neither a run's nor a sweep's, or if none can be read. What is damaged, a run among others or a trial
    of a sweep, is left out alone, and named in the log and in :attr:`Frames.damage`.
    """
    require(bool(folders), "folders", "", "name no run and no sweep", 'for example load_results("runs/quickstart-...")')
    paths = [Path(folder) for folder in folders]
    places = [path.resolve() for path in paths]
    for number, place in enumerate(places):
        require(place not in places[:number], "folders", paths[number], "is given twice", "name it once")
    found, lost = dict[str, Results](), dict[str, str]()
    for name, path in zip(_names(places), paths, strict=True):
        try:
            found[name] = load(path, metric, devices)
        except RunFolderError as error:
            if len(lost) + 1 == len(paths) or not holds_results(path):
                raise
            lost[name] = one_line(str(error))
            log.warning("%s is left out: %s", name, lost[name])
    frames = Frames(found, lost)
    for source, results in frames.folders.items():
        if not results.completeness.complete and results.completeness.damage:
            log.warning("%s: %s", source, " ".join(results.completeness.sentences(results.path)))
    return frames


def _names(places: Sequence[Path]) -> list[str]:
    """Name each folder by the end of its path, as short as tells it from the others."""
    found = []
    for place in places:
        depth = 1
        while sum(one.parts[-depth:] == place.parts[-depth:] for one in places) > 1:
            depth += 1
        found.append(one_line("/".join(place.parts[-depth:])))
    return found


def _series(column: pa.ChunkedArray, sure: bool) -> pd.Series:
    """Return a column for pandas: whole numbers and truths that may be null have pandas' own types for that."""
    if pa.types.is_map(column.type):
        return pd.Series(column.to_pylist(maps_as_pydicts="strict"), dtype=object)
    if not sure and pa.types.is_int64(column.type):
        return column.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    if not sure and pa.types.is_boolean(column.type):
        return column.to_pandas(types_mapper={pa.bool_(): pd.BooleanDtype()}.get)
    return column.to_pandas()
