"""How long from the command to the end of the first round? The quickstart, in process and on Ray; a minute or two.

    python -m benchmarks.first_round

Each start is a new ``fedskew run`` and, on Ray, a new Ray. A round counts as over when its checkpoint, which is written
after each round here, lies in the run's folder. The first start of each kind, for which files come from the disk, is
dropped.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, save, verdict
from engine.experiment import Experiment

LIMITS = {0: 5.0, 2: 15.0}  # client actors -> seconds, of the median
LOOK = 0.01  # seconds between two looks for the checkpoint
ROUNDS = 10**6  # it is stopped before that


def first_round(overrides: Sequence[str], limit: float = 120.0) -> float:
    """Seconds from the command to the first checkpoint; the run is then stopped."""
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary) / "run"
        changes = ["checkpoint.every=1", f"rounds={ROUNDS}", *overrides]
        command = [sys.executable, "-m", "engine.cli", "run", "--out", str(run), *changes]
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                while not any(run.glob("checkpoints/[0-9]*.safetensors")):
                    if process.poll() is not None or time.perf_counter() - began > limit:
                        process.kill()
                        said = process.stdout.read() if process.stdout else ""
                        told = f"no round in {limit:g} s, or by its end: {said[-500:]}"
                        raise RuntimeError(f"{' '.join(changes)}: {told}")
                    time.sleep(LOOK)
                return time.perf_counter() - began
            finally:
                process.send_signal(signal.SIGINT)  # as Ctrl-C: the round is ended, Ray is shut down
                process.communicate()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    parser.add_argument("--actors", nargs="+", type=int, choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--starts", type=int, default=5, help="after one that is dropped")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for first_round.json")
    options = parser.parse_intermixed_args(arguments)
    Experiment().override(options.overrides)  # what cannot be is refused here
    table = Table("client actors", "seconds, median", "least to most", title="from the command to the end of round 1")
    found, limits = {}, []
    for actors in options.actors:
        changes = [f"execution.actors={actors}", *options.overrides]
        seconds = [first_round(changes) for _ in range(1 + options.starts)][1:]
        median = statistics.median(seconds)
        found[actors] = {"median": median, "seconds": seconds, "limit": LIMITS[actors]}
        table.add_row(str(actors), f"{median:.1f}", f"{min(seconds):.1f} to {max(seconds):.1f}")
        text = f"actors={actors}: the first round ends {median:.1f} s after the command, limit {LIMITS[actors]:g}"
        limits.append((text, median <= LIMITS[actors]))
    Console(width=100).print(table)
    save("first_round", {"overrides": options.overrides, "actors": found}, options.results)
    return verdict(limits)


if __name__ == "__main__":
    raise SystemExit(main())
