"""Callbacks of a sweep's author: onlookers, whatever they do."""

from __future__ import annotations

import logging
import pickle
from dataclasses import replace
from typing import Any

import pytest
from ray import tune
from ray.tune.logger import CSVLoggerCallback, JsonLoggerCallback

from engine.base.errors import ConfigError
from engine.run.log import Messages
from engine.sweeps.callbacks import Guarded, guarded, tunes_own
from engine.sweeps.named import NamedSweep
from tests.support.small_sweeps import pair


class Seen(tune.Callback):
    """Keeps the hooks that it was asked; raises in one of them, and changes whatever it is shown."""

    def __init__(self, raises: str = "") -> None:
        self.hooks: list[str] = []
        self._raises = raises
        self.lock = (one for one in ())  # which nobody can pickle

    def _keep(self, hook: str) -> None:
        self.hooks.append(hook)
        if hook == self._raises:
            raise KeyError("mine")

    def setup(self, *a: Any, **info: Any) -> None:
        self._keep("setup")

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._keep(f"start {trial}")

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        result["accuracy"] = result["config"]["lr"] = 1.0
        self._keep("result")

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._keep(f"complete {trial}")

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self._keep(f"end of {len(trials)}")


def two_portions(callback: tune.Callback, lines: list[str]) -> dict[str, Any]:
    """What Tune asks of a callback in a sweep of two portions; the result that it was shown."""
    guarded = Guarded(callback, lines.append)
    result: dict[str, Any] = {"accuracy": 0.5, "config": {"lr": 0.1}}
    for trial in ("00000", "00001"):
        guarded.setup(stop=None)
        guarded.on_step_begin(iteration=0, trials=[])
        guarded.on_trial_start(iteration=0, trials=[trial], trial=trial)
        guarded.on_trial_result(iteration=0, trials=[trial], trial=trial, result=result)
        guarded.on_trial_complete(iteration=0, trials=[trial], trial=trial)
        guarded.on_experiment_end(trials=[trial])
        assert pickle.loads(pickle.dumps(guarded)).on_step_end(iteration=0, trials=[]) is None
    guarded.on_end()
    return result


def test_a_callback_sees_one_experiment_and_changes_nothing(messages: Messages) -> None:
    """Kills: a hook that is lost; a set-up or an end for each portion; a result that a callback changes, by which a
    scheduler would decide; a callback that must be pickled."""
    seen, lines = Seen(), list[str]()
    assert two_portions(seen, lines) == {"accuracy": 0.5, "config": {"lr": 0.1}}
    each = [hook for trial in ("00000", "00001") for hook in (f"start {trial}", "result", f"complete {trial}")]
    assert seen.hooks == ["setup", *each, "end of 2"]
    assert (lines, messages.drain()) == ([], [])


@pytest.mark.parametrize("hook", ["setup", "start 00000", "result", "end of 2"])
def test_one_that_raises_is_told_and_asked_no_more(messages: Messages, hook: str) -> None:
    """Kills: a sweep that ends by an onlooker's error; one that goes on as if nothing had been; an error at each
    trial."""
    seen, lines = Seen(hook), list[str]()
    two_portions(seen, lines)
    assert seen.hooks.count(hook) == 1 and seen.hooks[-1] == hook
    (line,) = lines
    assert line.startswith("callback Seen raised in ") and line.endswith(
        "(KeyError: 'mine'); the sweep goes on without it"
    )
    assert len(messages.drain()) == 1
    assert logging.getLogger("fedskew").level <= logging.ERROR


def test_loggers_that_tune_makes_itself_are_its_own() -> None:
    """Kills: one behind a guard, beside which Tune puts another that writes into the same file; one that still has the
    trials of an earlier portion; one of the author's that is derived from it, without a guard."""

    class Derived(JsonLoggerCallback):
        pass

    given = (JsonLoggerCallback(), Derived(), CSVLoggerCallback(), Seen())
    own = tunes_own(given)
    assert [type(one) for one in own] == [JsonLoggerCallback, CSVLoggerCallback] and not set(map(id, own)) & {
        *map(id, given)
    }
    assert [one._callback for one in guarded(given, print)] == [given[1], given[3]]


def test_callbacks_are_no_part_of_what_a_sweep_is() -> None:
    """Kills: a sweep that is another one with a callback, so that it cannot be resumed; a callback that is none."""
    sweep = pair("laptop")
    with_one = replace(sweep, callbacks=(Seen(),))
    assert with_one == sweep and with_one.to_mapping() == sweep.to_mapping()
    digests = {NamedSweep("a.py:pair", "laptop", (), "", one).digest for one in (sweep, with_one)}
    assert len(digests) == 1
    with pytest.raises(ConfigError, match=r"callbacks=.*must be objects of ray\.tune\.Callback"):
        replace(sweep, callbacks=(print,))
