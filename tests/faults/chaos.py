"""Many schedules, one after the other: ``python -m tests.faults.chaos --count 100 --seed 0``, or ``make chaos``.

What is done is written down after each one, so that the same command goes on where it was stopped. It ends with exit
code 1 if a run came to other bits than the undisturbed one, or ended in a way that is not documented.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from engine import __version__
from tests.faults.cluster import TwoNodes
from tests.faults.harness import happen
from tests.faults.schedules import KINDS, draw

ENDS = ("went on", "ended", "not reached")
BEGIN, END = "<!-- chaos: written by make chaos -->", "<!-- end of chaos -->"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="schedules")
    parser.add_argument("--seed", type=int, default=0, help="of the first; the next ones follow")
    parser.add_argument("--where", choices=[*KINDS], help="all of them there; none: as drawn")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further one begins")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="for runs and what came of them")
    parser.add_argument("--page", type=Path, default=None, help="a page whose table is to have the figures")
    asked = parser.parse_args()
    folder = (asked.folder / f"seed-{asked.seed}").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    began, nodes = time.monotonic(), None
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = git.stdout.strip()
    try:
        for seed in range(asked.seed, asked.seed + asked.count):
            done = folder / f"{seed}.json"
            if done.exists():
                continue
            if time.monotonic() - began > 60 * asked.minutes:
                print(f"{asked.minutes:g} minutes are over; the same command goes on with schedule {seed}")
                break
            schedule = draw(seed, asked.where)
            shutil.rmtree(folder / f"schedule-{seed}", ignore_errors=True)  # of a schedule that was interrupted
            if schedule.where != "in process" and nodes is None:
                nodes = TwoNodes()
            outcome = happen(schedule, folder, None if schedule.where == "in process" else nodes)
            done.write_text(json.dumps({**outcome.to_mapping(), "commit": commit}, indent=1) + "\n")
            print(f"{'FAILED' if outcome.problems else 'passed'} {outcome.seconds:5.1f} s  {outcome.told}", flush=True)
            for problem in outcome.problems:
                print(f"    {problem}", flush=True)
            if not outcome.problems:
                shutil.rmtree(folder / f"schedule-{seed}", ignore_errors=True)
    finally:
        if nodes is not None:
            nodes.close()
    outcomes = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    figures = summed_up(outcomes, asked.seed)
    text = json.dumps(figures, indent=1) + "\n"
    (folder / "figures.json").write_text(text)
    if asked.page is not None:
        asked.page.with_name("chaos.json").write_text(text)
        asked.page.write_text(with_table(asked.page.read_text(), figures))
    print(f"{figures['schedules']} schedules, {figures['failed']} of them failed; {figures['launches']} launches")
    return 1 if figures["failed"] else 0


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
    """Of a page, in Markdown."""
    lines = [
        f"{figures['schedules']} schedules from seed {figures['seed']} on, {figures['launches']} launches, "
        f"{figures['minutes']:g} minutes, at {' and '.join(figures['commits'])}: **{figures['failed']} failed**.",
        "",
        "| fault | went on | ended, and was resumed | not reached |",
        "|---|---|---|---|",
    ]
    for kind, ends in figures["faults"].items():
        lines.append(f"| {kind} | " + " | ".join(str(ends.get(end, 0)) for end in ENDS) + " |")
    return "\n".join(lines)


def with_table(page: str, figures: dict[str, Any]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(figures)}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
