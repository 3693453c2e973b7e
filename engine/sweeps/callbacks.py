"""Callbacks of Ray Tune's that a sweep's author brings: told of every trial, and kept from doing harm.

A callback is an onlooker. Whatever it raises is told in one line and in the log, and it is asked no more; the sweep
goes on, since its trials do not depend on it. It gets copies of what trials report, so that it cannot change them.

Three loggers of Tune's are another matter: Tune may make them by itself unless it is given one of their class. So these
are handed on as they are: a second one, behind a :class:`Guarded`, would write each report into its file again.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback

log = logging.getLogger("fedskew")
NO_OTHERS = "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"
TUNES_OWN = (CSVLoggerCallback, JsonLoggerCallback, TBXLoggerCallback)
HOOKS = (
    *("on_step_begin", "on_step_end", "on_trial_start", "on_trial_restore", "on_trial_save", "on_trial_complete"),
    *("on_trial_recover", "on_trial_error", "on_checkpoint"),
)


class Guarded(tune.Callback):
    """One callback of the author's, as Tune sees it."""

    # Of one that Tune has unpickled, which knows nobody any more; see __getstate__.
    _callback: tune.Callback | None = None
    _is_set_up = True

    def __init__(self, callback: tune.Callback, say: Callable[[str], None]) -> None:
        """``say``: shows a line to whoever runs the sweep."""
        self._callback = callback
        self._say = say
        self._trials: list[Any] = []
        self._is_set_up = False

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its callbacks, for a way of resuming that is not ours; another's may not be pickled."""
        return {}

    def setup(self, *positions: Any, **info: Any) -> None:
        if not self._is_set_up:  # once, although a long sweep takes one Tune after another
            self._is_set_up = True
            self._ask("setup", *positions, **info)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._ask("on_trial_result", iteration, trials, trial, copy.deepcopy(result), **info)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self._trials += trials if self._callback is not None else []  # perhaps of one portion; see on_end

    def on_end(self) -> None:
        """Tell of the end of the whole sweep, of this process."""
        self._ask("on_experiment_end", self._trials)
        self._trials = []

    def _ask(self, hook: str, *positions: Any, **info: Any) -> None:
        if self._callback is None:
            return
        try:
            getattr(self._callback, hook)(*positions, **info)
        except Exception as error:  # an onlooker's own
            name = type(self._callback).__name__
            self._callback = None
            told = f"callback {name} raised in {hook} ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            log.error("%s", told, exc_info=True)
            self._say(f"{told}; the sweep goes on without it")


def _hook(name: str) -> Callable[..., None]:
    def ask(self: Guarded, *positions: Any, **info: Any) -> None:
        self._ask(name, *positions, **info)

    ask.__name__ = name
    return ask


for _name in HOOKS:
    setattr(Guarded, _name, _hook(_name))


def guarded(callbacks: Sequence[tune.Callback], say: Callable[[str], None]) -> list[Guarded]:
    """Return the author's callbacks as they are handed to Tune, without Tune's own loggers."""
    return [Guarded(one, say) for one in callbacks if type(one) not in TUNES_OWN]


def tunes_own(callbacks: Sequence[tune.Callback]) -> list[tune.Callback]:
    """Return new ones of Tune's loggers, which have no values of their own: those that are asked for, and the one that
    its results are read from.
    """
    kinds = dict.fromkeys([*(type(one) for one in callbacks if type(one) in TUNES_OWN), JsonLoggerCallback])
    return [kind() for kind in kinds]


@contextmanager
def no_others() -> Iterator[None]:
    """Keep Tune from making loggers by itself meanwhile, unless the user wants it: they cost two files and 10 ms a
    trial.
    """
    before = os.environ.get(NO_OTHERS)
    os.environ.setdefault(NO_OTHERS, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[NO_OTHERS]
