"""A sweep's trials in portions: one Tune after another, since each keeps all its trials to its end.

Searcher and scheduler go on from one portion to the next with what they know, and so the same trials run in the same
order as in one portion; between two of them the last trials of the first are waited for, and processes start anew. All
write to one folder of Tune's, in which each trial has its own.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ray import tune

from engine.sweeps.callbacks import Guarded, no_others

# Trials of a Tune, some 150 kB each, and as many as keep the wait at its end short beside it.
LEAST, PER_SLOT = 200, 20


@dataclass(frozen=True)
class Ended:
    """A trial that ended with an error: Tune's folder of it, and the error."""

    path: str
    error: Exception


@dataclass(frozen=True)
class Portions:
    """What runs all trials of a sweep; to be used once."""

    make: Callable[[int], tune.Tuner]  # number of trials -> what runs so many, with the same searcher each time
    total: int
    portion: int
    callbacks: Sequence[Guarded] = ()  # of the sweep's author, who are told of one experiment

    def fit(self) -> list[Ended]:
        """Run the trials, and return those that ended with an error; stops where Tune does not finish a portion."""
        failed: list[Ended] = []
        for begun in range(0, self.total, self.portion):
            asked = min(self.portion, self.total - begun)
            with no_others():
                results = self.make(asked).fit()
            failed += [Ended(one.path, one.error) for one in results if one.error is not None]
            if results.num_terminated + results.num_errors < asked:  # Ctrl-C
                break
            del results
            _forget()
        for callback in self.callbacks:
            callback.on_end()
        return failed


def _forget() -> None:
    """Free the trials of a portion: they, and what ran them, know each other, and loggers' files are left open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def portion_for(slots: int) -> int:
    """Return how many trials a portion has where ``slots`` run at a time."""
    return max(LEAST, PER_SLOT * slots)
