"""How much of the machine does a sweep use, and how long does it take beside Ray Tune over a loop written by hand?

    python -m benchmarks.sweep_share                        # drift.fedprox_mu beside the loop, in turns; 10 minutes
    python -m benchmarks.sweep_share rounds=200 --turns 1 --alone       # longer trials, the sweep alone

Each is a command of its own, timed by the clock on the wall from its start to its end, the sweep's report counted. The
share is the seconds of the trials' own rounds and evaluations, by (seconds of the command x cores): what is missing is
start-up, trials' ends, the report, and cores that nobody uses at the end.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.common import RESULTS, facts, load, save, verdict
from engine.base.devices import cores
from tune_configs.drift import fedprox_mu

SETTING = "drift.fedprox_mu"
SHARE, HALF = 0.85, 0.5  # at least, of trials of half a minute or longer; at most, of the time beside
LONG = 30.0  # seconds of a trial, from which on the share has a limit


def command(words: list[str]) -> float:
    """Seconds of a command."""
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def swept(folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Run the sweep; its seconds, its trials and their seconds."""
    words = ["-m", "fedskew.cli.launcher", "sweep", SETTING, "--out", str(folder / "sweep"), *overrides]
    wall = command([sys.executable, *words])
    trials = []
    for path in sorted((folder / "sweep").glob("trials/*/rounds.parquet")):
        rows = pq.read_table(path, columns=["seconds", "evaluation_seconds"])
        trials.append(sum(sum(filter(None, column.to_pylist())) for column in rows.columns))
    return {"seconds": wall, "trials": trials, "share": sum(trials) / (wall * cores())}


def by_hand(folder: Path, overrides: list[str]) -> float:
    """Seconds of the same grid as one would write it."""
    path = folder / "experiment.yaml"
    path.write_text(fedprox_mu("laptop").base.override(overrides).to_yaml(), encoding="utf-8")
    return command([sys.executable, "-m", "benchmarks.plain_tune", str(path), str(folder / "tune")])


def judged(turns: list[dict[str, Any]]) -> list[tuple[str, bool]]:
    """Each limit with whether it was met."""
    share = statistics.median(turn["share"] for turn in turns)
    longest = statistics.median(seconds for turn in turns for seconds in turn["trials"])
    found = []
    if longest >= LONG:
        found.append((f"trials of {longest:.0f} s: share {share:.2f}, at least {SHARE}", share >= SHARE))
    ratios = [turn["seconds"] / turn["by_hand"] for turn in turns if "by_hand" in turn]
    if ratios:
        ratio = statistics.median(ratios)
        found.append((f"{ratio:.2f} of the time of Ray Tune with a loop by hand, limit {HALF}", ratio <= HALF))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="without the loop by hand")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for sweep_share.json")
    options = parser.parse_intermixed_args()
    turns: list[dict[str, Any]] = []
    for _ in range(options.turns):
        with tempfile.TemporaryDirectory() as folder:
            turn = swept(Path(folder), options.overrides)
            if not options.alone:
                turn["by_hand"] = by_hand(Path(folder), options.overrides)
        turns.append(turn)
        beside = f", by hand {turn['by_hand']:.1f} s" if "by_hand" in turn else ""
        print(f"{turn['seconds']:.1f} s, share {turn['share']:.2f}{beside}", flush=True)
    measured = {one: result for one, result in load("sweep_share", options.results).items() if one.startswith(SETTING)}
    name = " ".join([SETTING, *options.overrides])
    save("sweep_share", measured | {name: {"cores": cores(), "turns": turns} | facts()}, options.results)
    return verdict(judged(turns))


if __name__ == "__main__":
    raise SystemExit(main())
