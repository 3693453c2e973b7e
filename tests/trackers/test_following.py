"""Trackers beside a run: what they miss is told later, and nothing that happens to one reaches the run."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.run.run import run
from fedskew.trackers import beside, following, targets
from fedskew.trackers.following import Following
from fedskew.trackers.records import End, Point, Record
from fedskew.trackers.targets import Target, default_place, parsed
from tests.support.command_line import SMALL
from tests.support.sweep_folders import make_run
from tests.support.waiting import settle


class Listener:
    """A tracker that keeps what it is told, in a place that outlives it; ``fails`` says at which calls it raises."""

    def __init__(self, kept: dict[str, Any], fails: Callable[[str], bool]) -> None:
        self._kept, self._fails = kept, fails
        self._call("open")

    def _call(self, what: str) -> None:
        self._kept["calls"] = self._kept.get("calls", 0) + 1
        if self._fails(what):
            raise ConnectionError(f"{what} failed at http://me:secret@there")

    def begin(self, record: Record, points: Sequence[Point]) -> list[Point]:
        self._call("begin")
        there = self._kept.setdefault(record.key, {})
        return [one for one in points if (one.key, one.step) not in there]

    def log(self, record: Record, points: Sequence[Point]) -> None:
        for one in points:
            assert (one.key, one.step) not in self._kept[record.key]
            self._kept[record.key][one.key, one.step] = one.value
            self._call("log")

    def end(self, record: Record, end: End) -> None:
        self._call("end")
        self._kept["ended"] = end.status

    def close(self) -> None:
        self._kept["closed"] = True


@pytest.mark.parametrize("first_failures", [0, 1, 5])
def test_what_a_tracker_misses_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_failures: int
) -> None:
    """Kills: a failure that ends the following, or is told of at each try; numbers that are told twice after one; the
    last rows, or the end, that are not told; a password in the log."""
    run = make_run(tmp_path / "run", rounds=3, summary=False, client_rows=False)
    kept: dict[str, Any] = {}
    failures = iter(range(first_failures))
    fails = lambda what: what == "log" and next(failures, None) is not None  # noqa: E731
    monkeypatch.setattr(Target, "open", lambda _: Listener(kept, fails))
    monkeypatch.setattr(following, "SHARE", 0)
    looks: list[float] = []

    def wait(seconds: float) -> bool:
        looks.append(seconds)
        if len(looks) == 9:  # it ends while nobody looks
            make_run(tmp_path / "run", rounds=3, client_rows=False)
        return len(looks) == 9

    told = Following(run, Target("mlflow", "there"), "0" * 12, wait).to_the_end()
    (points,) = (value for key, value in kept.items() if key not in ("calls", "ended", "closed"))
    assert {step for key, step in points if key == "rounds/lr"} == {1, 2, 3}
    assert (told.left, told.error, told.records) == (0, None, 1) and kept["ended"] == "stopped" and kept["closed"]
    log = (run / "log.txt").read_text() if first_failures else ""
    assert log.count("cannot be reached") == log.count("is told again") == min(first_failures, 1)
    assert "secret" not in log
    assert looks == [0.0, *([2.0, 4.0, 8.0, 16.0, 32.0][:first_failures]), *[following.LOOK] * (8 - first_failures)]


def test_the_first_numbers_do_not_wait_for_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a pause of twenty times what a library took to be imported, in which a short sweep ends; a pause that is
    none after a look that took long."""
    run = make_run(tmp_path / "run", rounds=2, client_rows=False)
    now, kept, looks = [0.0], dict[str, Any](), list[float]()

    def takes(what: str) -> bool:
        now[0] += {"open": 5.0, "begin": 0.25}.get(what, 0.0)
        return False

    monkeypatch.setattr(following, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(Target, "open", lambda _: Listener(kept, takes))
    Following(
        run, Target("mlflow", "there"), None, lambda pause: bool(looks.append(pause) or len(looks) > 2)
    ).to_the_end()
    assert looks == [0.0, 0.25 * following.SHARE, following.LOOK]


def test_what_is_left_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a tracker that fails to the end and is said to have everything."""
    run = make_run(tmp_path / "run", rounds=2, client_rows=False)
    calls: list[str] = []
    monkeypatch.setattr(Target, "open", lambda _: Listener({}, lambda what: what == "log"))
    told = Following(
        run, Target("mlflow", "there"), None, lambda _: bool(calls.append("") or len(calls) > 1)
    ).to_the_end()
    assert told.left > 20 and told.error == "ConnectionError: log failed at http://there"


def test_a_password_that_a_long_error_would_cut_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an error that is cut within a URI, whose password is then not known as one."""
    run = make_run(tmp_path / "run", rounds=1, client_rows=False)

    def fails(target: Target) -> Any:
        raise ConnectionError(f"{'x' * 120} http://me:secret-{'y' * 40}@there")

    monkeypatch.setattr(Target, "open", fails)
    told = Following(run, Target("mlflow", "there"), None, lambda _: True).to_the_end()
    assert told.error is not None and told.error.endswith(" http://there")
    log = (run / "log.txt").read_text()
    assert "xxx http://there)" in log and "secret" not in log


def said_by(lines: list[str]) -> beside.Say:
    return lambda level, text: lines.append(f"{logging.getLevelName(level)} {text}")


def test_a_process_follows_and_ends_with_the_run(tmp_path: Path) -> None:
    """Kills: a process that waits for the end to tell anything; one that outlives the run, holds its priority, or is
    stopped by its Ctrl-C."""
    pytest.importorskip("tensorboard")
    run = make_run(tmp_path / "run", rounds=3, summary=False, client_rows=False)
    lines: list[str] = []
    with beside.beside([Target("tensorboard", str(tmp_path / "tb"))], run, said_by(lines), "0" * 12):
        settle(lambda: any((tmp_path / "tb").rglob("events.out.*")), seconds=60)
        (child,) = (
            int(one)
            for one in subprocess.run(
                ["ps", "--ppid", str(os.getpid()), "-o", "pid=,args="], capture_output=True, text=True, check=True
            ).stdout.split("\n")
            if "fedskew.trackers.following" in one
            for one in [one.split()[0]]
        )
        assert os.getpriority(os.PRIO_PROCESS, child) == 19 and os.getpgid(child) != os.getpgid(0)
        os.kill(child, signal.SIGINT)
        grown = RunFolder(run)
        grown.rounds.add({"stage": "train", "round": 4, "lr": 0.5, "seconds": 1.0, "evaluation_seconds": 0.0})
        grown.flush()
    assert len(lines) == 1 and lines[0].startswith(f"INFO tracked    tensorboard:{tmp_path / 'tb'}: ")
    from fedskew.trackers.tensorboard_events import read

    (folder,) = (tmp_path / "tb").iterdir()
    assert ("rounds/lr", 4) in read(folder)[0]


@pytest.mark.parametrize("what", ["killed", "hangs", "wrong"])
def test_a_tracker_that_fails_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Kills: an error of a tracker's that reaches the run; a wait without an end; a loss of which nothing is said."""
    run = make_run(tmp_path / "run", rounds=2, client_rows=False)
    code = {
        "killed": "import os; os.kill(os.getpid(), 9)",
        "hangs": "import time; time.sleep(600)",
        "wrong": "print('not JSON')",
    }[what]
    monkeypatch.setattr(beside, "COMMAND", ["-c", code])
    monkeypatch.setattr(beside, "PATIENCE", 0.5 if what == "hangs" else 60.0)
    lines: list[str] = []
    began = time.monotonic()
    with beside.beside([Target("mlflow", "http://me:secret@127.0.0.1:9")], run, said_by(lines)):
        pass
    (line,) = lines
    assert line.startswith("WARNING tracker mlflow:http://127.0.0.1:9 ")
    assert {"killed": "died (exit code -9)", "hangs": "not done in time", "wrong": "died (exit code 0)"}[what] in line
    assert line.endswith(f"fedskew export {run} --to mlflow --uri http://127.0.0.1:9 makes it whole")
    assert time.monotonic() - began < 300


def test_an_error_of_the_run_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an error of the body that a tracker's end takes the place of; a process that is left behind."""
    monkeypatch.setattr(beside, "COMMAND", ["-c", "import sys; sys.stdin.read()"])
    with pytest.raises(ZeroDivisionError), beside.beside([Target("mlflow", "http://x")], tmp_path, said_by([])):
        _ = 1 / 0


def test_the_weights_are_those_without_a_tracker(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a tracker that moves a bit or the exit code; a place that is refused after the run has begun; a folder
    that a tracker's own files make unusable."""
    pytest.importorskip("tensorboard")
    words = ["run", *SMALL, "rounds=2", "--json"]
    plain = json.loads(call(*words, "--out", "plain")[1].splitlines()[-1])
    blocked = tmp_path / "a file"
    blocked.write_text("")
    code, out, err = call(*words, "--out", "told", "--track", f"tensorboard:{blocked}", "--track", "tensorboard:tb")
    assert code == 0 and json.loads(out.splitlines()[-1])["weights_sha256"] == plain["weights_sha256"]
    assert "tracked    tensorboard:tb" in err and "lacks" in err and "makes it whole" in err
    assert "tracker tensorboard" in (tmp_path / "told/log.txt").read_text()
    code, _, err = call(*words, "--out", "none", "--track", "tensorboard:none/tb")
    assert code == 2 and "lies in none" in err and not (tmp_path / "none").exists()
    code, _, err = call("export", "told", "--to", "tensorboard", "--out", "tb")
    assert code == 0 and ": 0 new numbers" in err


def test_trackers_as_users_name_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kills: a wrong name, or a library that is not installed, that is found out when the run is over; a password that
    is shown."""
    monkeypatch.setattr(targets, "find_spec", lambda name: name != "wandb" or None)
    assert parsed(["mlflow:http://a:5000", "tensorboard:C:x"]) == (
        Target("mlflow", "http://a:5000"),
        Target("tensorboard", "C:x"),
    )
    assert str(Target("mlflow", "https://me:secret@there/x")) == "mlflow:https://there/x"
    for text, told in {
        "mlfow:x": "did you mean 'mlflow'?",
        "mlflow": "names no place; for example mlflow:FOLDER",
        "wandb:x": "pip install 'fedskew[wandb]'",
    }.items():
        with pytest.raises(ConfigError) as error:
            parsed([text])
        assert str(error.value).endswith(told)
    with pytest.raises(ConfigError, match="track=mlfow:x"):
        run(Experiment(rounds=1), tmp_path / "run", track="mlfow:x")
    assert not (tmp_path / "run").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_place("mlflow", tmp_path / "runs" / "one") == str(tmp_path / "runs" / "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://b")
    assert default_place("mlflow", tmp_path) == "http://b"


def test_a_follower_imports_little() -> None:
    """Kills: a follower that takes the seconds of torch, or of a tracker that was not asked for, from the run."""
    code = "import sys, fedskew.trackers.following; print(*{'torch', 'ray', 'mlflow', 'wandb'} & {*sys.modules})"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=beside.ROOT)
    assert told.stdout.split() == []
