"""Does memory grow with rounds, or with trials? Heaps and Ray's object store over a long run and over a long sweep.

    python -m benchmarks.memory_over_time [--rounds 2000] [--trials 1000] [--out FOLDER]

run      SCAFFOLD, whose server and clients keep state, on two client actors; looked at every few rounds
sweep    trials of one tiny round each, in reused processes; looked at four times a second

Each part is a process of its own with a Ray of its own. A heap is what one process alone holds and no file backs
(``Pss_Anon``); the store is the shared memory that Ray's objects have touched so far, which is kept and used again: it
grows while more objects are held than ever before. The slope is that of a straight line through the looks after half of
the way, with a 95 % interval from ten means of neighbouring looks, since single ones are not independent.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.common import RESULTS, save, verdict
from benchmarks.memory import GROWTH_LIMIT, WARM_UP, _plasma, actors_of, bookkeeping, descendants, heap

ROOT = Path(__file__).parents[1]
ACTORS = 2
EVERY = 20  # rounds between two looks
GROUPS = 10  # means that a slope's interval is made of
# MB per 100: of a run's processes and of the store nothing may be kept of a round; of a trial, Tune keeps its last
# result and what it was told, and the sweep's own table one line.
LIMITS = {"run": GROWTH_LIMIT, "sweep": 10.0}
STORE_LIMIT = 0.1
UNITS = {"run": "rounds", "sweep": "trials"}

Looks = dict[str, list[tuple[float, float]]]  # what is weighed -> (rounds or trials so far, megabytes)


def rays_own() -> dict[str, int]:
    """Ray's servers below this process."""
    names = {"raylet/raylet": "raylet", "gcs/gcs_server": "GCS"}
    found = {}
    for pid in descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it may have just ended
            program = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            found |= {name: pid for end, name in names.items() if program.endswith(end)}
    return found


def look(looks: Looks, at: float, pids: dict[str, int]) -> None:
    """Weigh everything once."""
    for name, pid in pids.items():
        megabytes = heap(pid)
        if megabytes is not None:
            looks.setdefault(name, []).append((at, round(megabytes, 3)))
    looks.setdefault("object store", []).append((at, round(_plasma(pids["raylet"]) / 2**20, 3)))


def over_rounds(rounds: int) -> Looks:
    """Of the process of the command, the driver, the client actors and Ray."""
    from engine.run.run import Run

    looks: Looks = {}
    # A client's state is large enough for the object store: what is smaller than 100 kB travels without it.
    changes = {"algorithm.name": "scaffold", "model.name": "mlp", "model.hidden": [50]}
    experiment = bookkeeping(rounds, ACTORS).replace(changes)
    with tempfile.TemporaryDirectory() as folder:
        run = Run.open(experiment, Path(folder) / "run")
        try:
            pids = {"command": os.getpid(), **actors_of(run), **rays_own()}
            while not run.finished:
                run.advance(until=run.round + EVERY, seconds=60.0)
                look(looks, run.round, pids)
        finally:
            run.close()
    return looks


def over_trials(trials: int) -> Looks:
    """Of the process that runs the sweep, the processes of trials, and Ray."""
    from benchmarks import sweeps
    from engine.sweeps.folder import SweepFolder
    from engine.sweeps.named import load
    from engine.sweeps.options import How
    from engine.sweeps.running import run_sweep

    looks: Looks = {}
    over = threading.Event()
    named: dict[int, str] = {}

    def watch(folder: Path) -> None:
        while not over.wait(0.25):
            ended = len(list(folder.glob("trials/*/summary.json")))
            if not ended:
                continue
            for pid in descendants(os.getpid()):
                if pid not in named and _is_trial(pid):
                    named[pid] = f"trial process {len(named)}"
            look(looks, ended, {"sweep": os.getpid(), **{name: pid for pid, name in named.items()}, **rays_own()})

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "sweep"
        watcher = threading.Thread(target=watch, args=(folder,), daemon=True)
        watcher.start()
        try:
            seeds = f"seeds={json.dumps(list(range(trials)))}"
            run_sweep(load(f"{sweeps.__file__}:trivial", "laptop", [seeds], {}), folder, How(mode="inside"))
        finally:
            over.set()
            watcher.join()
        assert [record.status for record in SweepFolder(folder).records()] == ["finished"] * trials
    return looks


def _is_trial(pid: int) -> bool:
    """Whether a process holds a trial, by the title that Ray gives it; it may have just ended."""
    try:
        return b"Trial" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b".")[0]
    except OSError:
        return False


def slope(looks: list[tuple[float, float]], total: float) -> dict[str, float] | None:
    """Megabytes per 100, with a 95 % interval; None for what was not there to the end."""
    late = np.array([one for one in looks if one[0] >= WARM_UP * total])
    if len(late) < 2 * GROUPS or late[-1, 0] < 0.9 * total:
        return None
    means = np.array([part.mean(axis=0) for part in np.array_split(late, GROUPS)])
    fit: Any = stats.linregress(means[:, 0], means[:, 1])
    error = float(fit.stderr) if np.isfinite(fit.stderr) else 0.0  # of means that are all the same
    half = float(stats.t.ppf(0.975, GROUPS - 2)) * error
    figures = {"per_100": fit.slope, "low": fit.slope - half, "high": fit.slope + half}
    return {name: round(100 * float(value), 4) for name, value in figures.items()} | {"megabytes": float(late[-1, 1])}


def draw(found: dict[str, Looks], path: Path) -> None:
    """Heaps on the left, the object store on the right; a row for the run and one for the sweep."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2 * len(found)), dpi=120, layout="constrained")
    rows: Any = figure.subplots(len(found), 2, squeeze=False, width_ratios=[2, 1])
    for (part, looks), (heaps, store) in zip(found.items(), rows, strict=True):
        for name, line in looks.items():
            (store if name == "object store" else heaps).plot(*zip(*line, strict=True), label=name, linewidth=1)
        heaps.set_title(f"{part}: heaps", loc="left", fontsize=10)
        store.set_title(f"{part}: Ray's object store", loc="left", fontsize=10)
        heaps.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
        for axes in (heaps, store):
            axes.set_ylim(bottom=0)
            axes.set_xlabel(UNITS[part])
            axes.set_ylabel("MB")
            axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(figure).print_png(str(path))


def _in_a_process(part: str, total: int) -> Looks:
    """One part, in a process that has nothing else behind it."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "looks.json"
        command = [sys.executable, "-m", "benchmarks.memory_over_time", "--part", part, "--total", str(total)]
        subprocess.run([*command, "--looks", str(out)], check=True, cwd=ROOT)
        return json.loads(out.read_text())


PARTS: dict[str, Callable[[int], Looks]] = {"run": over_rounds, "sweep": over_trials}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)  # the child's
    parser.add_argument("--total", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--looks", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        options.looks.write_text(json.dumps(PARTS[options.part](options.total)))
        return 0
    totals = {"run": options.rounds, "sweep": options.trials}
    found, slopes, seconds = {}, {}, {}
    for part, total in totals.items():
        began = time.perf_counter()
        found[part] = _in_a_process(part, total)
        seconds[part] = round(time.perf_counter() - began, 1)
        slopes[part] = {name: slope(looks, total) for name, looks in found[part].items()}
    limits = []
    for part, of in slopes.items():
        for name, one in of.items():
            if one is not None:
                limit = STORE_LIMIT if name == "object store" else LIMITS[part]
                told = f"{one['per_100']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f}) MB per 100 {UNITS[part]}"
                text = f"{part}, {name}: {told}, now {one['megabytes']:.1f}; limit {limit:g}"
                limits.append((text, one["per_100"] <= limit))
    about = {"rounds": options.rounds, "actors": ACTORS, "trials": options.trials, "seconds": seconds}
    save("memory_over_time", {**about, "limits": LIMITS, "store_limit": STORE_LIMIT, "slopes": slopes}, options.out)
    draw(found, options.out / "memory_over_time.png")
    return verdict(limits)


if __name__ == "__main__":
    sys.exit(main())
