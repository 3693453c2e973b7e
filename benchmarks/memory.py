"""Does memory grow with rounds? Many rounds of an experiment that is all bookkeeping, each process weighed.

Weighed is what a process alone holds and no file backs (``Pss_Anon`` of Linux): its heap. Shared memory, such as the
data set and the weights in Ray's object store, is not counted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.experiment import Experiment
from engine.run import Run

GROWTH_LIMIT = 0.5  # MB per 100 rounds
EVERY = 20  # rounds between two looks
WARM_UP = 0.3  # of the rounds: pools, caches and arenas fill up first


@dataclass(frozen=True)
class Growth:
    """Of one process."""

    name: str
    megabytes: float  # at the end
    per_100_rounds: float  # slope of a straight line through the looks after the warm-up


def bookkeeping(rounds: int, actors: int) -> Experiment:
    """Rounds in which almost nothing is trained, with rows, evaluations and checkpoints as usual."""
    return Experiment(
        name="memory",
        rounds=rounds,
        data={"name": "fashion_mnist_sample", "train_samples": 1000, "test_samples": 200},
        partition={"name": "iid", "clients": 50},
        model={"name": "logistic"},
        local={"epochs": 1, "batch_size": 32, "lr": 0.05},
        participation={"count": 10},
        execution={"actors": actors},
    )


def growth(actors: int, rounds: int) -> list[Growth]:
    """Of this process (``actors`` 0), or of the driver actor and the client actors; nothing where it cannot be told."""
    looks: dict[int, list[tuple[int, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Run.open(bookkeeping(rounds, actors), Path(folder) / "run")
        try:
            pids = actors_of(Path("/proc")) if actors else [None]
            while not run.finished:
                progress = run.advance()
                if progress.round % EVERY == 0:
                    for number, pid in enumerate(pids):
                        weight = heap(pid)
                        if weight is not None:
                            looks.setdefault(number, []).append((progress.round, weight))
        finally:
            run.close()
    return [_grown(_name(number, actors), looks[number], rounds) for number in looks]


def _name(number: int, actors: int) -> str:
    return f"actor process {number + 1} of {actors + 1}, driver among them" if actors else "driver in process"


def _grown(name: str, looks: list[tuple[int, float]], rounds: int) -> Growth:
    at, weights = np.array([look for look in looks if look[0] >= WARM_UP * rounds]).T
    return Growth(name, float(weights[-1]), 100 * float(np.polyfit(at, weights, 1)[0]))


def heap(pid: int | None) -> float | None:
    """Megabytes of anonymous memory of a process (None: this one); None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid or 'self'}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    sizes = dict(line.split(":") for line in text.splitlines()[1:])
    return int(sizes["Pss_Anon"].split()[0]) / 1024 if "Pss_Anon" in sizes else None


def actors_of(processes: Path) -> list[int]:
    """The Ray actors at work on this machine; Ray names a worker ``ray::Class.method``, or ``ray::IDLE``."""
    return sorted(_named(processes))


def _named(processes: Path) -> Iterator[int]:
    for path in processes.glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if title.startswith("ray::") and not title.startswith("ray::IDLE"):
            yield int(path.parent.name)
