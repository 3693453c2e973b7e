"""A disk that fails: at each write of a run once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import ResourceError
from engine.experiment import Experiment
from engine.run.run import run
from tests.faults.harness import differences, reference
from tests.faults.workloads import WORKLOADS

pytestmark = pytest.mark.faults


def short(workload: str) -> Experiment:
    """Of a workload three rounds, with a checkpoint after each and few pictures to draw."""
    return WORKLOADS[workload].replace({"rounds": 3, "participation.count": 3, "checkpoint.every": 1})


class Spoilt:
    """``os.fsync`` or ``os.replace``, of which the ``at``-th call fails, and those after it where ``lasting``."""

    def __init__(self, name: str, at: int, lasting: bool) -> None:
        self._call = getattr(os, name)
        self._at = at
        self._lasting = lasting
        self.calls = 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        self.calls += 1
        if self.calls == self._at or (self._lasting and self.calls > self._at):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *map(str, args[:1]))
        return self._call(*args, **named)


@pytest.mark.long
@pytest.mark.parametrize(
    ("workload", "name", "lasting"), [("scaffold", "fsync", True), ("scaffold on disk", "replace", False)]
)
def test_each_write_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workload: str, name: str, lasting: bool
) -> None:
    """Kills: a write whose failure is a traceback, or is passed over; a folder after it that cannot be gone on with, or
    goes on to other bits or rows; half a file."""
    experiment = short(workload)
    monkeypatch.setitem(WORKLOADS, workload, experiment)
    monkeypatch.setattr("fedskew.lab.run_pictures.RunPictures.on_end", lambda *args: None)
    undisturbed = reference(workload, tmp_path)
    at = 0
    while True:
        at += 1
        folder, spoilt = tmp_path / f"run{at}", Spoilt(name, at, lasting)
        with monkeypatch.context() as patched:
            patched.setattr(os, name, spoilt)
            try:
                run(experiment, folder)
            except ResourceError as error:
                told = str(error)
            else:
                break
        assert "cannot be written (No space left on device)" in told, at
        assert not list(folder.rglob("*.tmp")), at
        run(experiment, folder)
        assert differences(undisturbed, type(undisturbed)(folder)) == [], at
    assert spoilt.calls < at  # no write is left that was not spoilt
    assert at > 20
