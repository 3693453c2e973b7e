"""Many schedules, one after the other: ``python -m tests.faults.chaos --count 100 --seed 0``, or ``make chaos``.

Runs first, then half as many sweeps. What is done is written down after each one, so that the same command goes on
where it was stopped. It ends with exit code 1 if a run or a sweep came to other bits than the undisturbed one, or
ended in a way that is not documented.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engine import __version__
from tests.faults import schedules, sweep_schedules
from tests.faults.cluster import TwoNodes
from tests.faults.harness import happen
from tests.faults.launching import Outcome

ENDS = ("went on", "ended", "not reached")
BEGIN, END = "<!-- chaos: written by make chaos -->", "<!-- end of chaos -->"
PARTS = {"runs": "{}.json", "sweeps": "sweep-{}.json"}  # names of what schedules came to


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100, help="schedules of runs")
    parser.add_argument("--sweeps", type=int, default=None, help="schedules of sweeps; none: half as many")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next ones follow")
    parser.add_argument("--where", choices=[*schedules.KINDS], help="all of the runs there; none: as drawn")
    parser.add_argument("--minutes", type=float, default=150.0, help="after which no further one begins")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="for runs and what came of them")
    parser.add_argument("--page", type=Path, default=None, help="a page whose table is to have the figures")
    asked = parser.parse_args()
    folder = (asked.folder / f"seed-{asked.seed}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    sweeps = asked.count // 2 if asked.sweeps is None else asked.sweeps
    seeds = range(asked.seed, asked.seed + asked.count)
    runs = _Runs(folder, asked.where)
    try:
        plan = [
            *_left(folder, "runs", seeds, runs),
            *_left(folder, "sweeps", range(asked.seed, asked.seed + sweeps), _sweep),
        ]
        began = time.monotonic()
        for number, (done, schedule) in enumerate(plan):
            if time.monotonic() - began > 60 * asked.minutes:
                print(
                    f"{asked.minutes:g} minutes are over; the same command goes on with the other {len(plan) - number}"
                )
                break
            outcome = schedule()
            done.write_text(json.dumps({**outcome.to_mapping(), "commit": _commit()}, indent=1) + "\n")
            _tell(outcome)
            _write(folder, asked.seed, asked.page)
    finally:
        runs.close()
    figures = _write(folder, asked.seed, asked.page)
    for part, found in figures.items():
        print(f"{part}: {found['schedules']} schedules, {found['failed']} of them failed; {found['launches']} launches")
    return 1 if any(found["failed"] for found in figures.values()) else 0


class _Runs:
    """Runs under the schedules of their seeds, with the nodes that some of them need."""

    def __init__(self, folder: Path, where: schedules.Where | None) -> None:
        self._folder = folder
        self._where: schedules.Where | None = where
        self._nodes: TwoNodes | None = None

    def __call__(self, folder: Path, seed: int) -> Outcome:
        schedule = schedules.draw(seed, self._where)
        work = folder / f"schedule-{seed}"
        shutil.rmtree(work, ignore_errors=True)  # of a schedule that was interrupted
        inside = schedule.where == "in process"
        if not inside and self._nodes is None:
            self._nodes = TwoNodes()
        outcome = happen(schedule, folder, None if inside else self._nodes)
        if not outcome.problems:
            shutil.rmtree(work, ignore_errors=True)
        return outcome

    def close(self) -> None:
        if self._nodes is not None:
            self._nodes.close()


def _sweep(folder: Path, seed: int) -> Outcome:
    """A sweep under the schedule of a seed, on a Ray of its own."""
    from tests.faults import sweep_harness  # Ray Tune takes seconds to import

    outcome = sweep_harness.happen(sweep_schedules.draw(seed), folder)
    if not outcome.problems:
        shutil.rmtree(folder / f"sweep-schedule-{seed}", ignore_errors=True)
    return outcome


def _left(
    folder: Path, part: str, seeds: Sequence[int], happen: Callable[[Path, int], Outcome]
) -> Iterator[tuple[Path, Callable[[], Outcome]]]:
    """Those that have not happened yet: where to write what they come to, and what lets them happen."""
    for seed in seeds:
        done = folder / PARTS[part].format(seed)
        if not done.exists():
            yield done, partial(happen, folder, seed)


def _tell(outcome: Outcome) -> None:
    print(f"{'FAILED' if outcome.problems else 'passed'} {outcome.seconds:5.1f} s  {outcome.told}", flush=True)
    for problem in outcome.problems:
        print(f"    {problem}", flush=True)


def _commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return git.stdout.strip()


def _write(folder: Path, seed: int, page: Path | None) -> dict[str, Any]:
    """Sum up what was written down so far; with a ``page``, in its table and beside it."""
    figures = {}
    for part, name in PARTS.items():
        outcomes = [json.loads(path.read_text()) for path in sorted(folder.glob(name.format("[0-9]*")))]
        if outcomes:
            figures[part] = summed_up(outcomes, seed)
    text = json.dumps(figures, indent=1) + "\n"
    (folder / "figures.json").write_text(text)
    if page is not None:
        page.with_name("chaos.json").write_text(text)
        page.write_text(with_table(page.read_text(), figures))
    return figures


def summed_up(outcomes: list[dict[str, Any]], seed: int) -> dict[str, Any]:
    """What the schedules of a seed came to, by kind of fault."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        for launch in outcome["launches"]:
            if launch["fault"]:
                went_on, ended, missed = ENDS
                kinds[launch["fault"]][missed if not launch["happened"] else ended if launch["code"] else went_on] += 1
    return {
        "version": __version__,
        "commits": sorted({outcome["commit"] for outcome in outcomes}),
        "seed": seed,
        "schedules": len(outcomes),
        "failed": sum(bool(outcome["problems"]) for outcome in outcomes),
        "launches": sum(len(outcome["launches"]) for outcome in outcomes),
        "minutes": round(sum(outcome["seconds"] for outcome in outcomes) / 60, 1),
        "faults": {kind: dict(ends) for kind, ends in sorted(kinds.items())},
        "problems": {outcome["told"]: outcome["problems"] for outcome in outcomes if outcome["problems"]},
    }


def table(figures: dict[str, Any]) -> str:
    """Of a page, in Markdown: a paragraph for runs, one for sweeps; of single kinds of faults the figures say more."""
    paragraphs = []
    for part, found in figures.items():
        total: Counter[str] = Counter()
        for ends in found["faults"].values():
            total.update(ends)
        went_on, ended, missed = (total[end] for end in ENDS)
        kinds = ", ".join(f"{kind} {sum(ends.values())}" for kind, ends in found["faults"].items())
        paragraphs.append(
            f"{found['schedules']} schedules of {part} from seed {found['seed']} on, {found['launches']} launches, "
            f"{found['minutes']:g} minutes, at {' and '.join(found['commits'])}: **{found['failed']} failed**. "
            f"Faults: {kinds}; in all {went_on + ended + missed}, of which {went_on + ended} happened before the "
            f"launch was over: {went_on} launches went on, {ended} ended and were resumed."
        )
    return "\n\n".join(paragraphs)


def with_table(page: str, figures: dict[str, Any]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(figures)}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
