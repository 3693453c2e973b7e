"""Observers of a sweep: told of its trials as they begin, report and end. They change nothing of it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray import tune

from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep
from engine.sweeps.planning import Mode

log = logging.getLogger("fedskew")


@dataclass(frozen=True)
class SweepStart:
    """What is known of a sweep before its first trial runs."""

    named: NamedSweep
    folder: SweepFolder
    trials: int  # in all
    ended: int  # of these, in an earlier process
    places: int  # trials at a time
    mode: Mode  # where a trial computes, and why there
    to_report: int  # trials that report in this process; as a rule those that ended before do so again


class SweepObserver:
    """Does nothing at each event; a progress table overrides what it shows. One that raises is asked no more."""

    def on_prepare(self) -> None:
        """Called when data and Ray are about to be prepared."""

    def on_start(self, start: SweepStart) -> None:
        """Called when all is prepared."""

    def on_trial_start(self, trial: str, config: Mapping[str, Any]) -> None:
        """Called when a trial begins; ``config``: its setting, with ``trial`` and ``seed``."""

    def on_trial_result(self, trial: str, config: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Called when a trial reports; ``config``: as for its start, of the rounds that it reports."""

    def on_trial_end(self, trial: str, status: str, reason: str | None) -> None:
        """Called when a trial has ended: finished, stopped, or failed for a reason."""

    def on_message(self, text: str) -> None:
        """Called with what whoever runs the sweep should know."""

    def on_end(self) -> None:
        """Called when no trial runs any more, whatever the reason."""


class Observers(SweepObserver):
    """Tells several observers of each event, and leaves out one that has raised: the sweep does not depend on it."""

    def __init__(self, observers: Sequence[SweepObserver] | Observers) -> None:
        """``observers`` that are told already stay the same: who is left out in one sweep is so in the next."""
        self._observers = observers._observers if isinstance(observers, Observers) else list(observers)

    def tell(self, event: str, *values: Any) -> None:
        for observer in [*self._observers]:
            try:
                getattr(observer, event)(*values)
            except Exception as error:
                self._observers.remove(observer)
                name, text = type(observer).__name__, " ".join(str(error).split())[:200]
                log.error("%s raised in %s, and is told no more (%s)", name, event, text, exc_info=True)
                if event != "on_end":
                    with suppress(Exception):
                        observer.on_end()  # a terminal, say, is to be left as it was


class TrialEvents(tune.Callback):
    """Tells observers of Ray Tune's trials, and records the end of those that Tune ended."""

    # Of one that Tune has unpickled, which knows nobody any more; see __getstate__.
    _observers = Observers(())

    def __init__(self, start: SweepStart, stopper: str, observers: Observers) -> None:
        """``stopper``: what else than the sweep's own rule may stop a trial."""
        self.folder = start.folder
        self._stop = start.named.sweep.stop
        self._stopper = stopper
        self._observers = observers
        self._last: dict[str, Mapping[str, Any]] = {}  # trial -> its last report
        self.ended = set[str]()  # the trials that Tune has ended

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its callbacks, for a way of resuming that is not ours; a terminal cannot be."""
        return {}

    def say(self, text: str) -> None:
        """Tell whoever runs the sweep."""
        self._observers.tell("on_message", text)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._observers.tell("on_trial_start", str(trial), trial.config)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self._last[str(trial)] = result
        trial.config["trial"] = str(trial)  # PBT hands on the name of the trial that was copied
        trial.evaluated_params.update(trial.config)  # and leaves the values of the start, which TensorBoard would show
        self._observers.tell("on_trial_result", str(trial), result["config"], result)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self.folder.bring(str(trial))
        last = trial.last_result or self._last.get(str(trial), {})
        self._last.pop(str(trial), None)
        status = "failed" if last.get("failed") else "finished"
        if not last.get("ended"):
            reached = [f"{name}={last[name]:.4g}" for name, goal in self._stop.items() if last.get(name, -1) >= goal]
            if reached:  # it has come as far as was asked for
                self.folder.end(str(trial), "finished", f"{', '.join(reached)} reached after round {last['round']}")
            else:
                self.folder.end(str(trial), "stopped", f"stopped by {self._stopper} after round {last.get('round')}")
        self.ended.add(str(trial))
        record = self.folder.record(str(trial))
        reason = str(last.get("reason")) if last.get("failed") else None
        self._observers.tell("on_trial_end", str(trial), status if record is None else record.status, reason)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._last.pop(str(trial), None)
        self.folder.bring(str(trial))
        self.ended.add(str(trial))
        self._observers.tell("on_trial_end", str(trial), "failed", None)
