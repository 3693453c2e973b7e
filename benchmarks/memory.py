"""Does memory grow with rounds? Many rounds of an experiment that is all bookkeeping, each process weighed.

Weighed is what a process alone holds and no file backs (``Pss_Anon`` of Linux): its heap. Shared memory, such as the
data set and the weights in Ray's object store, is not counted; :class:`Peaks` weighs that store by itself.
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.experiment import Experiment
from engine.run.run import Run

GROWTH_LIMIT = 0.5  # MB per 100 rounds
EVERY = 20  # rounds between two looks
PROC = Path("/proc")
WARM_UP = 0.5  # of the rounds: pools, caches and arenas fill up first


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
    """Of this process (``actors`` 0), or of the driver and the client actors; nothing where it cannot be told."""
    looks: dict[str, list[tuple[int, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        run = Run.open(bookkeeping(rounds, actors), Path(folder) / "run")
        try:
            pids = actors_of(run) if actors else {"driver in process": os.getpid()}
            while not run.finished:
                progress = run.advance()
                if progress.round % EVERY == 0:
                    for name, pid in pids.items():
                        megabytes = heap(pid)
                        if megabytes is not None:
                            looks.setdefault(name, []).append((progress.round, megabytes))
        finally:
            run.close()
    return [_grown(name, found, rounds) for name, found in looks.items()]


def _grown(name: str, looks: list[tuple[int, float]], rounds: int) -> Growth:
    at, megabytes = np.array([look for look in looks if look[0] >= WARM_UP * rounds]).T
    return Growth(name, float(megabytes[-1]), 100 * float(np.polyfit(at, megabytes, 1)[0]))


def heap(pid: int) -> float | None:
    """Megabytes of anonymous memory of a process; None where the system does not tell."""
    return held(pid, "Pss_Anon")


def tree(pid: int, kind: str = "Pss") -> dict[int, float]:
    """Megabytes of a process and of each below it: proportional set sizes, so what they share counts once in all.

    Of a library's pages a process has its share among all that run, other programs' included: where one of these ends,
    ``Pss`` rises and nobody has asked for memory. ``Pss_Anon`` and what it grows by are the processes' own.
    """
    sizes = {one: held(one, kind) for one in (pid, *descendants(pid))}
    return {one: size for one, size in sizes.items() if size is not None}  # some may have just ended


def processor_seconds(pid: int) -> float:
    """Used by a process and by each below it that still runs."""
    ticks = 0
    for one in (pid, *descendants(pid)):
        try:
            fields = (PROC / f"{one}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        ticks += int(fields[11]) + int(fields[12])  # in user mode, in the kernel
    return ticks / os.sysconf("SC_CLK_TCK")


def held(pid: int, kind: str) -> float | None:
    """Megabytes of one kind of a process' memory, by its name in ``smaps_rollup``; None where nothing tells."""
    try:
        text = (PROC / f"{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    sizes = dict(line.split(":") for line in text.splitlines()[1:])
    return int(sizes[kind].split()[0]) / 1024 if kind in sizes else None


class Peaks:
    """The most that each Ray actor below this process has held, and Ray's object store, while the block ran.

    with Peaks() as peaks: ...
    peaks.heaps       by process, in bytes
    peaks.store       bytes of shared memory that the store has ever touched: it keeps and reuses what it frees
    """

    def __init__(self, every: float = 0.1) -> None:
        self.heaps: dict[int, float] = {}
        self.store = 0
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peaks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            for pid in descendants(os.getpid()):
                try:
                    self.store = max(self.store, _plasma(pid))
                    megabytes = heap(pid) if _is_actor(pid) else None
                except OSError:
                    continue  # it has just ended
                if megabytes is not None:
                    self.heaps[pid] = max(self.heaps.get(pid, 0.0), megabytes * 2**20)


def _plasma(pid: int) -> int:
    """Bytes of the object store's file, of which Ray's raylet has removed the name; 0 in any other process."""
    found = 0
    for path in (PROC / f"{pid}/fd").iterdir():
        try:
            if "plasma" in os.readlink(path):
                found = max(found, path.stat().st_blocks * 512)
        except OSError:
            continue  # closed in between
    return found


def actors_of(run: Run) -> dict[str, int]:
    """The processes of a run on Ray. The client actors are known; of this process' other actors, one is the driver."""
    from engine.run.driver_actor import RemoteDriver

    assert isinstance(run.driver, RemoteDriver)
    clients = [place["pid"] for place in run.driver.placement()]
    named = {f"client actor {number}": pid for number, pid in enumerate(clients)}
    others = [pid for pid in descendants(os.getpid()) if pid not in clients and _is_actor(pid)]
    return ({"driver actor": others[-1]} if others else {}) | named


def _is_actor(pid: int) -> bool:
    """Ray gives a process that holds an actor the title ``ray::Class`` or ``ray::Class.method``."""
    title = (PROC / f"{pid}/cmdline").read_bytes()
    return title.startswith(b"ray::") and not title.startswith(b"ray::IDLE")


def descendants(pid: int) -> list[int]:
    """Ascending; empty where the system does not tell."""
    children: dict[int, list[int]] = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            parent = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            continue  # it has just ended
        children.setdefault(int(parent), []).append(int(path.parent.name))
    found, queue = [], [pid]
    while queue:
        fresh = children.get(queue.pop(), [])
        found += fresh
        queue += fresh
    return sorted(found)
