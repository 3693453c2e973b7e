"""How much memory do all processes of a contestant hold together? Each is weighed in a process tree of its own.

Weighed is the proportional set size of Linux (``Pss``): what a process alone holds, and its share of what it holds
with others, libraries, shared weights and Ray's object store included; so that the sum over processes counts all once.

    python -m benchmarks.footprint W1 --actors 2 --seconds 10 [key=value ...]    # a child, to be weighed from outside
    python -m benchmarks.footprint --plain FOLDER                                # with what Given.write wrote
    python -m benchmarks.footprint --idle-ray 2                                  # Ray, and nothing on it
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import threading
import time
from itertools import cycle
from pathlib import Path

from benchmarks.memory import tree

ROOT = Path(__file__).parents[1]
EVERY = 0.25  # seconds between two looks


class Footprint:
    """The most that a process and those below it have held together while the block ran, in megabytes.

    with Footprint(pid) as footprint: ...
    footprint.peak     NaN where the system does not tell

    every: seconds between two looks; None does not look.
    """

    def __init__(self, pid: int, every: float | None = EVERY) -> None:
        self.peak = float("nan")
        self._pid, self._every = pid, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Footprint:
        if self._every is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._every is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            sizes = tree(self._pid)
            if sizes:
                self.peak = max(sum(sizes.values()), 0.0 if math.isnan(self.peak) else self.peak)


def weighed(arguments: list[str]) -> float:
    """The peak of a child with these arguments, in megabytes."""
    command = [sys.executable, "-m", "benchmarks.footprint", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as child, Footprint(child.pid) as footprint:
        if child.wait():
            raise RuntimeError(f"{' '.join(command)} ended with code {child.returncode}")
    return footprint.peak


def idle_on_ray(cpus: int, seconds: float) -> None:
    import ray  # alone: neither torch nor the engine is in what is subtracted

    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False)
    time.sleep(seconds)


def follow_plainly(folder: Path, seconds: float) -> None:
    from benchmarks.peers.given import Given
    from benchmarks.plain_loop import PlainLoop, task_of

    given = Given.read(folder)
    loop = PlainLoop(task_of(folder / "plan", folder, own_order=0), given.processes)
    began = time.perf_counter()
    for number, cohort in enumerate(cycle(given.cohorts), start=1):
        loop.round(number, cohort)
        if time.perf_counter() - began >= seconds:
            break
    loop.close()


def run_engine(workload: str, overrides: list[str], seconds: float) -> None:
    from benchmarks.workloads import WORKLOADS
    from engine.run.run import Run

    with tempfile.TemporaryDirectory() as folder:
        run = Run.open(WORKLOADS[workload].experiment(workload, overrides), Path(folder) / "run")
        run.advance(seconds)
        run.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", help="W1, W2 or W3")
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--actors", type=int, help="the engine on so many client actors; 0: in process")
    what.add_argument("--plain", type=Path, help="the plain loop, at the work given in this folder")
    what.add_argument("--idle-ray", type=int, help="Ray with so many CPUs")
    parser.add_argument("--seconds", type=float, default=10.0, help="of work, or of idleness")
    options = parser.parse_intermixed_args()
    if options.idle_ray is not None:
        idle_on_ray(options.idle_ray, options.seconds)
    elif options.plain is not None:
        follow_plainly(options.plain, options.seconds)
    else:
        run_engine(options.workload, [f"execution.actors={options.actors}", *options.overrides], options.seconds)


if __name__ == "__main__":
    main()
