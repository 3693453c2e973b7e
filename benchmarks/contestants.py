"""The engine and the plain loop at the same rounds: the same clients, of the same data, in each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Protocol

from benchmarks.plain_loop import PlainLoop, task_of
from benchmarks.workloads import Inputs
from engine.experiment import Experiment
from engine.run.run import Run


class Contestant(Protocol):
    def turn(self, rounds: range) -> float:
        """Seconds per round by the clock on the wall, over these rounds."""
        ...

    def close(self) -> None: ...


class Engine:
    """A run of the engine, advanced turn by turn. Everything counts: dispatch, aggregation, rows, checkpoints."""

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self._run = Run.open(experiment, folder)

    def turn(self, rounds: range) -> float:
        """Rounds go on from those before."""
        assert rounds.start == self._run.round + 1, f"the run has done {self._run.round} rounds, not {rounds.start - 1}"
        began = time.perf_counter()
        while self._run.round < rounds[-1]:
            self._run.advance(seconds=60.0, until=rounds[-1])
        return (time.perf_counter() - began) / len(rounds)

    def close(self) -> None:
        self._run.close()


class Plain:
    """The plain loop, drawing the order of clients' rows itself."""

    def __init__(self, inputs: Inputs, processes: int) -> None:
        self._loop = PlainLoop(task_of(inputs.plan, inputs.folder, own_order=0), processes)
        self._cohort = inputs.cohort

    def turn(self, rounds: range) -> float:
        cohorts = [self._cohort(number) for number in rounds]
        began = time.perf_counter()
        for number, cohort in zip(rounds, cohorts, strict=True):
            self._loop.round(number, cohort)
        return (time.perf_counter() - began) / len(rounds)

    def close(self) -> None:
        self._loop.close()
