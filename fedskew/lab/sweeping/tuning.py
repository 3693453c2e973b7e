"""Tuning before a sweep: each side that ``Sweep.tuned`` names gets the best of its candidates, on seeds held out.

The search of a side is a sweep of its own, in ``tuning/<number of the side>`` of the sweep's folder: so it is resumed
like one, and none of its trials is among those that claims, tables and figures are made of. What was chosen is in
``tuning.json``, see fedskew/lab/tuned_sides.py; from then on the folder keeps it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.base.errors import RunError, RunFolderError, require, resume_command
from engine.base.files import locked, writing
from engine.experiment import Experiment
from engine.record.sweep_files import SEARCHES
from engine.results.loading import load
from engine.results.results import Group, Results, grouped
from engine.results.settings import key, setting_label
from engine.sweeps import running
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep
from engine.sweeps.observers import Observers, SweepObserver
from engine.sweeps.options import How
from engine.sweeps.running import Complete, SweepResult
from engine.sweeps.space import is_grid
from engine.sweeps.tuned import Tuned
from fedskew.lab.ledger import read as entry_of
from fedskew.lab.tuned_sides import FILE, Candidate, TunedSide, read, second_best, write

log = logging.getLogger("fedskew")


def run_sweep(
    named: NamedSweep,
    out: Path | None,
    how: How,
    address: str | None = None,
    observers: Sequence[SweepObserver] | Observers = (),
    retry_failed: bool = False,
) -> SweepResult:
    """Run a sweep as :func:`engine.sweeps.running.run_sweep` does, after the search for each of its tuned sides."""
    folder = SweepFolder.for_sweep(named, out)
    named = folder.with_added(named)
    if not named.sweep.tuned:
        return running.run_sweep(named, folder.path, how, address, observers, retry_failed)
    rule = "cannot keep a sweep whose sides are tuned in folders of their own"
    require(how.storage is None, "--storage", how.storage, rule, "use a folder that all nodes share, or leave it out")
    shared, told = replace(how, store=how.store or folder.path.parent / "store"), Observers(observers)

    def search(side: NamedSweep, path: Path) -> bool:
        return not running.run_sweep(side, path, shared, address, told, retry_failed).interrupted

    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    with locked(folder.path / ".lock"):
        if not folder.is_sweep():
            folder.create(named, how.to_mapping())
        if retry_failed:
            forget_failed(folder)
        sides = choices(named, folder, search)
    if sides is None:
        return SweepResult(folder.path, 0, {}, 0, 0, True)
    complete = completing(named.sweep, sides)
    return running.run_sweep(named, folder.path, how, address, told, retry_failed, complete=complete)


def choices(
    named: NamedSweep, folder: SweepFolder, search: Callable[[NamedSweep, Path], bool]
) -> tuple[TunedSide, ...] | None:
    """Return what each side was given, searched for now unless the folder knows it; None if it was interrupted.

    search: runs a sweep in a folder, and returns whether it came to its end.
    """
    known = read(folder.path)
    if known:
        _check_same(folder.path, named.sweep, known)
        return known
    best = []
    for number, side in enumerate(named.sweep.tuned):
        path = folder.path / SEARCHES / str(number)
        if not search(searching(named, side), path):
            return None
        died = [record for record in SweepFolder(path).records() if record.died]
        if died:
            raise RunError(
                f"{len(died)} candidates of {setting_label(side.where)} were ended by the machine ({died[0].trial}: "
                f"{died[0].reason}), so nothing is chosen; {resume_command(folder.path)} "
                "--retry-failed, or leave them out of the sweep"
            )
        best.append(ranked(side, load(path)))
    sides = second_best(best) if named.rank else tuple(best)
    with writing(folder.path):
        write(folder.path, sides)
    return sides


def _check_same(folder: Path, sweep: Sweep, sides: Sequence[TunedSide]) -> None:
    """Refuse choices that are not of this sweep's search: they would set what nobody has searched for."""
    expected = [(key(dict(side.where)), {*map(key, side.candidates())}) for side in sweep.tuned]
    if [(key(side.where), {key(one.values) for one in side.candidates}) for side in sides] != expected:
        raise RunFolderError(f"{folder / FILE} is of another search; delete it, and fedskew resume makes it anew")


def forget_failed(folder: SweepFolder) -> None:
    """Delete choices among candidates of which one has failed, so that those are searched again.

    Of choices that come from elsewhere, as those of the second best do, there is no search here to be gone on with.
    """
    sides = read(folder.path)
    failed = [setting_label(side.where) for side in sides if any(one.mean is None for one in side.candidates)]
    if not failed or not (folder.path / SEARCHES).is_dir():
        return
    if folder.has_trials():
        log.warning(
            "%s has failed candidates of %s, which are not tried again: its trials have begun with the choice among "
            "the others; for another choice run it as a new sweep with --out",
            folder.path,
            "; ".join(failed),
        )
    else:
        (folder.path / FILE).unlink()


def searching(named: NamedSweep, side: Tuned) -> NamedSweep:
    """Return the sweep that finds a side's best candidate: its settings times its candidates, on held-out seeds."""
    sweep = named.sweep
    picked = [one for one in sweep.settings() if side.picks(sweep.base.replace(one), one)]
    space: dict[str, Any] = {}
    for name, value in sweep.space.items():
        seen = {key(setting[name]) for setting in picked}
        kept = [one for one in value["grid_search"] if key(one) in seen] if is_grid(value) else []
        space[name] = {"grid_search": kept} if kept else value
    rows = {} if sweep.tuning_rows is None else {"data.validation": sweep.tuning_rows}  # last, or a data set undoes it
    alone = replace(
        sweep,
        space={**space, **side.space, **rows},
        seeds=sweep.tuning_seeds,
        claims=(),
        tables=(),
        tuned=(),
        tuning_rows=None,
        diagnose=False,
        images=False,
        callbacks=(),
    )
    count = len(alone.settings())
    rule = "picks no rectangle of the sweep's axes"
    require(count == len(picked) * len(side.candidates()), "tuned", dict(side.where), rule, "name values of axes alone")
    title = f"Tuning of {setting_label(side.where)} for {named.name}"
    return replace(named, title=title, sweep=alone, added=(), most=None, rank=0)


def ranked(side: Tuned, results: Results) -> TunedSide:
    """Return the candidates of a side, the best first: by the mean over cells and seeds, where all have finished."""
    sign = 1 if results.mode == "max" else -1
    groups = grouped(results, list(side.space), results.metric)
    means = [(group.setting, _mean(group)) for group in groups]
    means.sort(key=lambda pair: (pair[1] is None, 0.0 if pair[1] is None else -sign * pair[1]))
    if not means or means[0][1] is None:
        raise RunError(
            f"no candidate of {setting_label(side.where)} has finished with a {results.metric}, so nothing can be "
            f"chosen; see the reasons in {results.path / 'trials'}, and resume with --retry-failed"
        )
    candidates = tuple(Candidate(dict(values), mean) for values, mean in means)
    return TunedSide(dict(side.where), candidates, results.seeds, results.metric)


def _mean(group: Group) -> float | None:
    values = list(group.values.values())
    whole = set(group.statuses) == {"finished"} and all(map(math.isfinite, values))
    return math.fsum(values) / len(values) if whole else None


def with_choices(
    sweep: Sweep, sides: Sequence[TunedSide], experiment: Experiment, setting: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the setting of a trial with what was chosen for its side; ``experiment``: of the setting without it."""
    for side, tuned in zip(sweep.tuned, sides, strict=True):
        if side.picks(experiment, setting):
            return {**setting, **tuned.chosen.values}
    return dict(setting)


def completing(sweep: Sweep, sides: Sequence[TunedSide]) -> Complete:
    """Return what gives a setting of the sweep what was chosen for its side."""
    if not sides:
        return dict
    return lambda setting: with_choices(sweep, sides, sweep.base.replace(dict(setting)), setting)


def begin_second_best(named: NamedSweep, of: Path, out: Path | None, how: Mapping[str, Any]) -> Path:
    """Make the folder of the same sweep with the second best candidate of each side, and return it.

    of: the folder in which the best were chosen, or the ledger's entry of it.
    """
    option, first = "--second-best", of
    require(len(named.sweep.tuned) > 0, option, named.name, "is a sweep that tunes no side", "leave the option away")
    if of.is_file():
        sides, first = _recorded(named, of), SweepFolder.for_sweep(named, None).path
    else:
        folder = SweepFolder(of)
        same = folder.is_sweep() and folder.sweep().get("digest") == named.digest
        require(same, option, of, "is no folder of this sweep", "name the one in which it was tuned")
        sides = read(of)
        require(len(sides) > 0, option, of, f"has no {FILE} yet", "run that sweep first")
        best = not any(side.rank for side in sides)  # of an entry any will do: it makes no folder beside that one
        require(best, option, of, "is of the second best candidates itself", "name that of the best ones")
    for side in sides:
        has_one = side.candidates[1].mean is not None
        require(has_one, option, of, f"has one candidate of {setting_label(side.where)} that finished", "search more")
    path = out or first.with_name(f"{first.resolve().name}-second-best")
    folder = SweepFolder.for_sweep(named, path)
    other = all(side.rank for side in read(path))
    require(other, "--out", path, "is the folder of the best candidates", "name another one")
    begin_with(replace(named, rank=1), folder, second_best(sides), how)
    return path


def begin_with(named: NamedSweep, folder: SweepFolder, sides: Sequence[TunedSide], how: Mapping[str, Any]) -> None:
    """Make the folder of a sweep whose sides are tuned already."""
    if not folder.is_sweep():
        folder.create(named, how)  # before its choices: one that is killed here is a folder of the same rank
    with writing(folder.path):
        write(folder.path, sides)


def _recorded(named: NamedSweep, path: Path) -> tuple[TunedSide, ...]:
    """Return the sides of a sweep, with their candidates, that an entry of the ledger has."""
    entry = entry_of(path)
    same = (entry.name, entry.digest) == (named.name, named.digest)
    require(same, "--second-best", path, "is no entry of this sweep", "name its own, or the folder of the sweep")
    known = len(entry.searched) > 0
    rule = "has no candidates: it was recorded before entries kept them, or before the sides were tuned"
    require(known, "--second-best", path, rule, "name the folder in which they were tuned")
    return entry.searched
