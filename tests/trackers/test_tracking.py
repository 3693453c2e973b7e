"""Trackers beside a run: what they miss is told later, and nothing that happens to one reaches the run."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import fedskew
from engine.base.errors import ConfigError, ResourceError
from engine.experiment import Experiment
from fedskew.trackers import tracking
from fedskew.trackers.exporting import exported
from fedskew.trackers.records import End, Point, Progress, Record
from fedskew.trackers.tracking import Target, default_place, parsed, tracked, without_secrets
from tests.support.command_line import SMALL
from tests.support.sweep_folders import make_run

PLACE = Target("mlflow", "http://me:secret@127.0.0.1:9")


class Listener:
    """A tracker that keeps what it is told, in a place that outlives it; ``fails`` says at which calls it raises."""

    def __init__(self, kept: dict[str, Any], fails: Callable[[str], object]) -> None:
        self._kept, self._fails = kept, fails
        self._call("open")

    def _call(self, what: str) -> None:
        if self._fails(what):
            raise ConnectionError(f"{'x' * 120} {what} failed at http://me:secret-{'y' * 200}@there")

    def begin(self, record: Record) -> Progress:
        self._call("begin")
        return Progress(dict(self._kept.get("rows", {})))

    def log(self, record: Record, points: Sequence[Point], progress: Progress) -> None:
        self._call("log")
        for one in points:
            assert (one.key, one.step) not in self._kept
            self._kept[one.key, one.step] = one.value
        self._kept["rows"] = progress.rows

    def end(self, record: Record, end: End, progress: Progress) -> None:
        self._call("end")
        self._kept["ended"] = end.status

    def close(self) -> None:
        self._kept["closed"] = True


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two passes."""
    monkeypatch.setattr(tracking, "LOOK", 0.0)
    monkeypatch.setattr(tracking, "SHARE", 0.0)
    monkeypatch.setattr(Target, "check", lambda *_: None)


def listens(monkeypatch: pytest.MonkeyPatch, fails: Callable[[str], object] = lambda _: False) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    monkeypatch.setattr(Target, "open", lambda _: Listener(kept, fails))
    return kept


def said_by(lines: list[str]) -> tracking.Say:
    return lambda level, text: lines.append(f"{logging.getLevelName(level)} {text}")


@pytest.mark.parametrize(("hook", "first_failures"), [("log", 0), ("log", 1), ("log", 5), ("end", 1)])
def test_what_a_tracker_misses_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook: str, first_failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: a failure that ends the following, or is told of at each try; numbers that are told twice after one; the
    last rows, or the end, that are not told; a password in the log."""
    run = make_run(tmp_path / "run", rounds=3, client_rows=False)
    ended = (run / "summary.json").rename(tmp_path / "summary.json")
    failures = iter(range(first_failures))
    told = threading.Event()

    def fails(what: str) -> bool:
        failed = what == hook and next(failures, None) is not None
        if what == "log" and not failed:
            told.set()
        return failed

    kept, lines = listens(monkeypatch, fails), list[str]()
    if hook == "end":
        ended.rename(run / "summary.json")
    with caplog.at_level("WARNING", logger="fedskew"), tracked([PLACE], run, said_by(lines)) as look:
        look()
        assert told.wait(60)
        if hook == "log":
            ended.rename(run / "summary.json")  # it ends while nobody looks
    assert {step for key, step in (one for one in kept if isinstance(one, tuple)) if key == "rounds/lr"} == {1, 2, 3}
    assert kept["ended"] == "stopped" and kept["closed"]
    assert len(lines) == 1 and lines[0].startswith("INFO tracked    mlflow:http://127.0.0.1:9: ")
    log = caplog.text
    assert log.count("cannot be reached") == log.count("is told again") == min(first_failures, 1)
    assert "secret" not in log


@pytest.mark.parametrize("what", ["fails", "hangs"])
def test_a_tracker_that_fails_costs_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Kills: an error of a tracker's that reaches the run; a wait without an end; a loss of which nothing is said, or
    with a password that a long error would cut."""
    run = make_run(tmp_path / "run", rounds=2, client_rows=False)
    go_on, lines = threading.Event(), list[str]()
    monkeypatch.setattr(tracking, "PATIENCE", 0.0 if what == "hangs" else 60.0)
    listens(monkeypatch, lambda call: call == "begin" and (what == "fails" or go_on.wait()))
    with tracked([PLACE], run, said_by(lines)):
        pass
    go_on.set()
    (line,) = lines
    assert line.startswith("WARNING tracker mlflow:http://127.0.0.1:9 ") and "secret" not in line
    assert {"fails": "lacks numbers (ConnectionError: ", "hangs": "was not done in time"}[what] in line
    assert line.endswith(f"fedskew export {run} --to mlflow:http://127.0.0.1:9 makes it whole")


@pytest.mark.parametrize("what", ["open", "log", "end"])
def test_an_export_to_a_server_that_trickles_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Kills: an export without a bound, where each byte that comes begins a library's own deadline anew."""
    run, over = make_run(tmp_path / "run", rounds=3, client_rows=False), threading.Event()
    listens(monkeypatch, lambda call: call == what and not over.wait())
    monkeypatch.setattr(tracking, "ANSWER", 0.2)
    with pytest.raises(
        ResourceError, match=r"^mlflow:http://127.0.0.1:9 cannot be reached .*no whole answer in 0.2 s\)"
    ):
        exported(run, PLACE.kind, PLACE.place)
    over.set()


def test_an_error_of_the_run_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an error of the body that a tracker's end takes the place of."""
    listens(monkeypatch, lambda _: True)
    with pytest.raises(ZeroDivisionError), tracked([PLACE], tmp_path, said_by([])):
        _ = 1 / 0


def test_the_weights_are_those_without_a_tracker(
    tmp_path: Path, call: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a tracker that moves a bit or the exit code; a place that is refused after the run has begun; a folder
    that a tracker's own files make unusable."""
    pytest.importorskip("tensorboard")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    words = ["run", *SMALL, "rounds=2", "--json"]
    plain = json.loads(call(*words, "--out", "plain")[1].splitlines()[-1])
    blocked = tmp_path / "a file"
    blocked.write_text("")
    code, out, err = call(*words, "--out", "told", "--track", f"tensorboard:{blocked}", "--track", "tensorboard:tb")
    assert code == 0 and json.loads(out.splitlines()[-1])["weights_sha256"] == plain["weights_sha256"]
    assert "tracked    tensorboard:tb" in err and "lacks" in err and "makes it whole" in err
    code, _, err = call(*words, "--out", "none", "--track", "tensorboard:none/tb")
    assert code == 2 and "lies in none" in err and not (tmp_path / "none").exists()
    code, _, err = call("export", "told", "--to", "tensorboard:tb")
    assert code == 0 and ": 0 new numbers" in err


SECRET = {  # what a tracker's place is, and what may be seen of it
    "postgresql://me:hush/secret@there/db": "postgresql://...",
    "postgresql://me:hush?secret@there/db": "postgresql://...",
    "postgresql://me:hush#secret@there/db": "postgresql://...",
    "postgresql://me:hush@secret@there/db": "postgresql://there/db",
    "postgresql://me:hush%2Fsecret@there:5432/db": "postgresql://there:5432/db",
    "http://hushsecret@there/x": "http://there/x",
    "http://there/x?token=hushsecret": "http://there/x?...",
    "http://there/x?at=a@b&token=hushsecret": "http://...",
    "http://there/x#hushsecret": "http://there/x?...",
    "http://me:hushsecret@[there/x": "http://...",
    "databricks": "databricks",
    "a@b/c:d": "a@b/c:d",
    "sqlite:////home/a@b/x.db": "sqlite:////home/a@b/x.db",
}


@pytest.mark.parametrize("place", SECRET)
def test_no_password_of_an_address_is_shown(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch, call: Callable[..., tuple[int, str, str]]
) -> None:
    """Kills: a password that a rule takes for a path, since it has a slash or an @ in it; a token in the query; one
    that a library's error repeats, whole, in pieces or decoded, that an export, a log or the advised command shows, or
    that a traceback keeps in a file."""
    assert without_secrets(place) == SECRET[place]
    run = make_run(tmp_path / "run", rounds=1, client_rows=False)
    text = f"no {place}, no {unquote(place)}, no url: /x?{urlsplit(place.replace('[', '')).query}"
    text += ", port: 'hush'" * bool(re.search("hush[/?#]", place))  # as a parser says that takes it for one

    def fails(_: Target) -> None:
        raise OSError(text)

    monkeypatch.setattr(Target, "open", fails)
    lines = list[str]()
    with tracked([Target("mlflow", place)], run, said_by(lines)):
        pass
    code, out, err = call("export", str(run), "--to", f"mlflow:{place}", "--json")
    for told in (*lines, out, err):
        assert not {"hush", "secret"} & {*re.findall("hush|secret", told)}, told
        assert f"mlflow:{SECRET[place]}" in told and "OSError" in told
    assert code == 2 and "Traceback" not in err


def test_trackers_as_users_name_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kills: a wrong name, or a library that is not installed, that is found out when the run is over; a password that
    is shown."""
    monkeypatch.undo()
    monkeypatch.setattr(tracking, "find_spec", lambda name: name != "wandb" or None)
    assert parsed(["mlflow:http://a:5000", "tensorboard:C:x"]) == (
        Target("mlflow", "http://a:5000"),
        Target("tensorboard", "C:x"),
    )
    assert str(Target("mlflow", "https://me:secret@there/x")) == "mlflow:https://there/x"
    for text, message in {
        "mlfow:x": "did you mean 'mlflow'?",
        "mlflow": "names no place; for example mlflow:FOLDER",
        "wandb:x": "pip install 'fedskew[wandb]'",
    }.items():
        with pytest.raises(ConfigError) as error:
            parsed([text])
        assert str(error.value).endswith(message)
    with pytest.raises(ConfigError, match="track=mlfow: names no tracker"):  # and nothing of a secret behind it
        fedskew.run(Experiment(rounds=1), tmp_path / "run", track="mlfow:http://me:hush@host")
    assert not (tmp_path / "run").exists()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert default_place("mlflow", tmp_path / "runs" / "one") == str(tmp_path / "runs" / "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://b")
    assert default_place("mlflow", tmp_path) == "http://b"
