"""Seeds that are added until each claim of a sweep is held or not held: ``fedskew sweep --until-decided``.

After every look at the claims the next seeds are written to ``sweep.yaml``, and then run: one seed, or as many as fill
the places of trials; and four in all before the second look, since three decide nothing. The claims are judged by an
interval that is right for many looks (fedskew/lab/comparing/intervals.py), from the first one on and for good: a folder
whose seeds were added once is never judged otherwise.

A claim counts as decided while all seeds at hand decide it, so one that falls back to undecided is gone on with.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.base.errors import ConfigError, require
from engine.experiment import parse_assignment
from engine.results.loading import load
from engine.results.statistics import CONFIDENCE
from engine.sweeps.definition import Optuna
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep
from engine.sweeps.observers import Observers, SweepObserver
from engine.sweeps.options import How
from engine.sweeps.running import SweepResult
from fedskew.lab.comparing.intervals import fewest
from fedskew.lab.comparing.verdicts import Verdict, beyond_seeds, judge
from fedskew.lab.sweeping.measuring import Measure, run_and_measure
from fedskew.lab.wording import counted

MOST = 20  # seeds, where the user names no number
OPTION = "--until-decided"


def check(named: NamedSweep, most: int) -> None:
    """Refuse a sweep whose claims no added seed can decide."""
    sweep = named.sweep
    require(len(sweep.claims) > 0, OPTION, named.name, "has no claim to decide", "leave the option away")
    unequal = "ends or changes trials by each other's figures, so that seeds do not compare"
    require(sweep.scheduler is None, OPTION, named.name, unequal, "leave the option or the scheduler away")
    proposed = isinstance(sweep.search, Optuna)
    rule = "has settings that a searcher proposes, which no claim compares"
    require(not proposed, OPTION, named.name, rule, "leave the option or the searcher away")
    for text in named.overrides:
        if parse_assignment(text)[0] == "seeds":
            raise ConfigError(OPTION, text, "names seeds that the option is to choose", "leave one of the two away")
    least = fewest(CONFIDENCE)
    rule = f"is below the {least} seeds from which on a claim can be decided"
    require(most >= least, "--most", most, rule, f"set --most {MOST}")
    begun = len(sweep.seeds) - len(named.added)
    rule = f"is below the {begun} seeds that the sweep begins with"
    require(most >= begun, "--most", most, rule, f"set --most {max(begun, MOST)}")


def run_until_decided(
    named: NamedSweep,
    out: Path | None,
    how: How,
    address: str | None = None,
    observers: Sequence[SweepObserver] | Observers = (),
    retry_failed: bool = False,
    measured_by: Measure | None = None,
) -> tuple[NamedSweep, SweepResult, list[Verdict]]:
    """Run a sweep's seeds, and add seeds until each claim is decided or there are ``named.most``.

    measured_by: as of :func:`run_and_measure`, after the trials and before each look.
    Returns the sweep with all its seeds, what became of its trials, and the verdicts: none if it was interrupted, or
    every trial failed. After a crash or Ctrl-C, call it again.
    """
    folder, told = SweepFolder.for_sweep(named, out), Observers(observers)
    most = MOST if named.most is None else named.most
    if folder.is_sweep() and folder.with_added(replace(named, most=None)).most == most:
        most = max(most, fewest(CONFIDENCE))  # a folder of when fewer were allowed, and decided nothing
    check(named, most)
    named = folder.with_added(replace(named, most=most))
    while True:
        outcome = run_and_measure(named, folder.path, how, address, told, retry_failed, measured_by)
        retry_failed = False  # once: what fails again is not tried at each look
        if not outcome.measurable:
            return named, outcome, []
        results = load(folder.path)
        verdicts = judge(results)
        undecided = [one for one in verdicts if one.verdict == "undecided" and not beyond_seeds(results, one.claim)]
        seeds = _next(named, outcome, most) if undecided else ()
        if not seeds:
            return named, outcome, verdicts
        named = named.grown((*named.added, *seeds))
        told.tell("on_message", f"{len(undecided)} of {len(verdicts)} claims undecided: {_added(seeds)}")


def _next(named: NamedSweep, outcome: SweepResult, most: int) -> tuple[int, ...]:
    """Return the seeds to add: as many as fill the places of trials, or as it takes for an interval to have ends.

    One at the least, and none beyond the most.
    """
    seeds, settings = named.sweep.seeds, outcome.trials // len(named.sweep.seeds)
    wanted = max(outcome.places // settings, fewest(CONFIDENCE) - len(seeds), 1)
    count = min(wanted, most - len(seeds))
    held_out = named.sweep.tuning_seeds if named.sweep.tuned else ()
    free = (seed for seed in itertools.count(max(seeds) + 1) if seed not in held_out)
    return tuple(itertools.islice(free, max(count, 0)))


def _added(seeds: tuple[int, ...]) -> str:
    return f"seed {seeds[0]} is added" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]} are added"


def sentence(number: int, verdict: Verdict, never: str) -> str:
    """Say what has become of a claim; ``never``: why no number of seeds decides it, if that is so."""
    seeds = counted(len(verdict.seeds), "seed")
    if verdict.verdict != "undecided":
        said = f"{verdict.verdict} with {seeds}"
    elif never:
        said = f"undecided, and no number of seeds decides it ({never})"
    elif all(len(cell.seeds) < 2 for cell in verdict.cells):
        said = f"undecided after {seeds}, since {verdict.why}"
    elif verdict.seeds_to_decide is None:
        said = f"undecided after {seeds}, and so near the margin that 1,000 would not do"
    else:
        said = f"undecided after {seeds}; about {verdict.seeds_to_decide} would decide it"
    return f"claim {number}    {said}: {verdict.claim.text}"
