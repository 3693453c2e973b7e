"""Mending of a sweep that an earlier process has left: records that are lost, trials that must compute again.

A trial whose record, summary, rows or experiment are lost or damaged costs itself alone. Its record is made anew from
the plan, what cannot be read is set aside as ``NAME.damaged``, and the trial computes again what is lost: from its
newest whole checkpoint where its rows are whole, else from the start. An ended trial ends again where it ended.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.base.errors import RunFolderError
from engine.base.files import set_aside, writing
from engine.experiment import Change, Experiment
from engine.record import summary, wholeness
from engine.record.numerics import other_code
from engine.record.run_folder import RunFolder
from engine.record.shapes import RUN
from engine.record.sweep_files import RECORD, PlannedTrial
from engine.run.local_driver import LocalDriver
from engine.sweeps.folder import SweepFolder, TrialRecord

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class Left:
    """What is left of an earlier process."""

    records: tuple[TrialRecord, ...] = ()  # of the trials that have begun, in the order of the plan
    damaged: frozenset[str] = frozenset()  # those that have ended and are not whole

    @property
    def whole(self) -> int:
        """The number of trials that have ended and are whole."""
        return sum(record.ended and record.trial not in self.damaged for record in self.records)


def left_behind(folder: SweepFolder, planned: Sequence[PlannedTrial], before: Mapping[str, PlannedTrial]) -> Left:
    """Read the records of ``planned`` trials, make anew those that are lost, and look for damage.

    ``before``: the plan of the earlier process, by trial, which knows what a searcher had proposed. Raises
    :class:`RunFolderError` for trials that other code has ended, with which those to come could not be compared.
    """
    with writing(folder.path):
        records = [record for one in planned if (record := _record(folder, one, before)) is not None]
    damaged, others = set[str](), list[str]()
    for record in records:
        if record.status in ("finished", "stopped"):
            try:
                run = folder.run_folder(record.trial)
                wholeness.check_ended(run)
                # A searcher's trials may have algorithms that the sweep's base has not, so that each is asked.
                others += [record.trial] if other_code(run.summary(), run.experiment()) else []
            except RunFolderError as error:
                log.warning("trial %s is computed again: %s", record.trial, error)
                damaged.add(record.trial)
    if others:
        raise RunFolderError(
            f"{folder.path} has {len(others)} trials of other code ({others[0]} is one), with which the others could "
            "not be compared; run it as a new sweep with --out, or go back to that code"
        )
    return Left(tuple(records), frozenset(damaged))


def with_settings(
    planned: Sequence[PlannedTrial], before: Mapping[str, PlannedTrial], records: Sequence[TrialRecord]
) -> list[PlannedTrial]:
    """Fill in the settings that are known from an earlier plan and from records."""
    known = {name: one.setting for name, one in before.items() if one.setting is not None}
    known |= {record.trial: record.setting for record in records}
    return [
        one if one.setting is not None else PlannedTrial(one.trial, one.seed, known.get(one.trial)) for one in planned
    ]


def _record(folder: SweepFolder, planned: PlannedTrial, before: Mapping[str, PlannedTrial]) -> TrialRecord | None:
    """Return a trial's record, made anew from the plan if it is damaged; None for one that has not begun."""
    place = folder.run_folder(planned.trial).path
    if os.path.lexists(place) and not place.is_dir():
        log.warning("%s is not a folder: it is set aside as %s", place, set_aside(place).name)
    try:
        record = folder.record(planned.trial)
        if record is not None:
            return record
    except RunFolderError as error:
        log.warning("trial %s goes on without its record: %s", planned.trial, error)
        set_aside(place / RECORD)
    if planned.setting is not None and not place.exists():
        return None  # it has not begun
    setting = planned.setting or (before[planned.trial].setting if planned.trial in before else None)
    if setting is None:  # the searcher has not proposed it, or nobody knows any more: then it is proposed again
        if place.exists():
            log.warning("nobody knows the setting of trial %s: it is set aside as %s", place, set_aside(place).name)
        return None
    schedule = _schedule(folder.run_folder(planned.trial), setting)
    record = TrialRecord(planned.trial, setting, planned.seed, schedule=schedule)
    folder.write(record)
    return record


def _schedule(folder: RunFolder, setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Make the schedule of a trial that was changed in mid-run from what its experiment says; [] for any other."""
    try:
        experiment = folder.experiment() if folder.has_experiment() else None
    except RunFolderError:
        experiment = None
    if experiment is None or not experiment.schedule:
        return []
    names = {experiment.key_of(name): name for name in setting}
    changes = [
        (one.round, {names.get(key, key): value for key, value in one.set.items()}) for one in experiment.schedule
    ]
    began = {name: experiment.value_of(name) for _, change in changes for name in change}
    return [
        {"first_round": round, "set": change, "parent": None, "from": None} for round, change in [(1, began), *changes]
    ]


# --- one trial, in its own process ------------------------------------------------------------------------


def make_room(folder: RunFolder, patience: float) -> None:
    """Put out of the way what keeps a run from going on in ``folder``: all of it, unless its rows are whole.

    The summary is written anew in any case. ``patience``: seconds to wait for a process that still writes there.
    """
    if not folder.has_experiment():
        return
    with folder.locked(patience):
        if (folder.path / summary.FILE).is_dir():
            set_aside(folder.path / summary.FILE)
        try:
            wholeness.check_begun(folder)
        except RunFolderError as error:
            log.warning("%s; the trial begins anew", error)
            clear(folder)


def clear(folder: RunFolder) -> None:
    """Delete the run in ``folder``; what stands in the place of one of its files or folders is set aside."""
    for path in list(folder.path.iterdir()):
        in_a_files_place = RUN.rank(path.name) is not None and not path.is_file()
        in_a_folders_place = RUN.content(path.name) is not None and not path.is_dir()
        if in_a_files_place or in_a_folders_place:
            set_aside(path)
    folder.clear()


def scheduled(experiment: Experiment, schedule: Sequence[Mapping[str, Any]]) -> Experiment:
    """Return ``experiment`` as population-based training has changed it, by the record's ``schedule``."""
    if len(schedule) < 2:
        return experiment
    experiment = experiment.replace(dict(schedule[0]["set"]))
    changes: list[Change] = []
    for entry in schedule[1:]:
        now = experiment.model_copy(update={"schedule": tuple(changes)}).replace({}).at(entry["first_round"])
        new = {experiment.key_of(name): value for name, value in entry["set"].items() if now.value_of(name) != value}
        if new:
            changes.append(Change(round=entry["first_round"], set=new))
    return experiment.model_copy(update={"schedule": tuple(changes)}).replace({})


def ended_again(local: LocalDriver, last: int) -> None:
    """Compute up to where the trial has ended before, its end or after round ``last``, and write its summary."""
    driver = local.driver
    # Of one that came to its end the last round says too little: a stage without rounds, or a branch, may follow it.
    until = last if last < driver.experiment.spans[-1].stop - 1 else None
    while driver.is_before(until):  # more than once if another run computes it
        local.advance(math.inf, until=until)
    local.close()
