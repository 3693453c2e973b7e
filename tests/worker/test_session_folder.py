"""The folder of a Ray that is started here: who may enter it, and when it goes."""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from engine.base.errors import ResourceError
from engine.experiment import Execution
from engine.worker import addresses
from engine.worker.ray import cluster, session_folder


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder whose path is short; no Ray is started, and none runs."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr("atexit.register", lambda function: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        yield Path(folder)
        session_folder._close()


def start(monkeypatch: pytest.MonkeyPatch, address: str | None = None) -> dict[str, Any]:
    """What ``connect`` asks Ray for."""
    asked: dict[str, Any] = {}

    def init(**words: Any) -> None:
        asked.update(words, token_file=os.environ.get("RAY_AUTH_TOKEN_PATH"))

    monkeypatch.setattr(addresses, "answers", lambda *_: True)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})  # of the one that is joined
    cluster.connect(Execution(actors=1), address)
    return asked


def test_nobody_else_may_enter_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: Ray below /tmp for all; a folder that Ray, which opens what it is given, opens; one for each start."""
    given = Path(start(monkeypatch)["_temp_dir"])
    assert given.parent.parent == base
    assert stat.S_IMODE(given.parent.stat().st_mode) == 0o700
    assert not given.exists()  # Ray makes it, as it likes
    again = Path(start(monkeypatch)["_temp_dir"])
    assert list(base.iterdir()) == [again.parent]


def test_a_ray_of_somebody_elses_keeps_its_folder(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a folder of ours for a cluster that is only joined."""
    assert "_temp_dir" not in start(monkeypatch, "10.0.0.1:6379")
    assert list(base.iterdir()) == []


def test_it_goes_with_all_that_is_in_it_and_nothing_else(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: sessions that pile up; a link that is followed; a folder put in its place; one beside it."""
    (base / "precious").mkdir()
    (base / "precious" / "thesis.tex").touch()
    given = Path(start(monkeypatch)["_temp_dir"])
    (given / "session" / "logs").mkdir(parents=True)
    (given / "session_latest").symlink_to(base / "precious")
    session_folder._close()
    assert [path.name for path in base.iterdir()] == ["precious"]
    assert (base / "precious" / "thesis.tex").exists()
    given = Path(start(monkeypatch)["_temp_dir"])
    given.parent.rename(base / "moved")
    given.parent.mkdir()
    (given.parent / "thesis.tex").touch()
    session_folder._close()
    assert (given.parent / "thesis.tex").exists()


def test_a_child_leaves_its_parents_folder_alone(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a forked process whose end takes the folder away from the Ray of its parent."""
    given = Path(start(monkeypatch)["_temp_dir"])
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr("os.getpid", lambda: parent + 1)
        patch.setattr(ray, "shutdown", lambda: pytest.fail("the parent's Ray was ended"))
        session_folder._close()
    assert given.parent.exists()
    session_folder.remove_made(given.parent, given.parent.stat().st_ino)


def test_a_ray_that_does_not_start_is_tried_once_more(
    base: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: a raw error of Ray's on a busy machine; a try without end; a folder for each failed start."""
    tries: list[str] = []

    def init(**words: Any) -> None:
        tries.append(words["_temp_dir"])
        if len(tries) in (1, 3, 4):
            raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", init)
    cluster.connect(Execution(actors=1))
    assert len(tries) == 2 and "timed out during startup" in caplog.text and "tried once more" in caplog.text
    told = r"^Ray could not be started on this machine \(Exception: The current .*\), twice; 'fedskew doctor' looks for"
    with pytest.raises(ResourceError, match=told):
        cluster.connect(Execution(actors=1))
    assert len(tries) == 4 and list(base.iterdir()) == []


# --- the token -------------------------------------------------------------------------------------------------------


@pytest.fixture
def nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without a token, of a user who has named none."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("home", ["there", "not there", "unset"])
def test_the_token_is_the_sessions_own(
    base: Path, nobodys_home: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """Kills: a token in a home folder, which may not be there; another one for a second Ray, since Ray has read the
    first; a variable that names a file which has gone."""
    if home != "there":
        monkeypatch.setenv("HOME", "/nonexistent")
    if home == "unset":
        monkeypatch.delenv("HOME")
    tokens = set[str]()
    for _ in range(2):
        asked = start(monkeypatch)
        file = Path(asked["token_file"])
        assert file.parent == Path(asked["_temp_dir"]).parent  # which nobody else may enter
        tokens.add(file.read_text())
    [token] = tokens
    assert re.fullmatch("[0-9a-f]{64}", token)
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ and list(nobodys_home.iterdir()) == []


def test_a_token_of_the_users_is_used(base: Path, nobodys_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a token of ours by which the user's own tools, or a cluster that is joined later, are locked out."""
    (nobodys_home / ".ray").mkdir()
    (nobodys_home / ".ray" / "auth_token").write_text("mine")
    assert start(monkeypatch)["token_file"] is None
    (nobodys_home / ".ray" / "auth_token").unlink()
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    assert start(monkeypatch)["token_file"] is None
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/mine")
    assert start(monkeypatch)["token_file"] == os.environ["RAY_AUTH_TOKEN_PATH"] == "/mine"


def test_sockets_have_room_for_their_names(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a temporary folder with a long name, in which no Ray starts: a socket's path has 107 bytes at most."""
    deep = base / ("x" * 40)
    deep.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(deep))
    given = start(monkeypatch)["_temp_dir"]
    assert given.startswith("/tmp/fedskew-")
    name = "session_2026-11-22_19-48-57_796161_4194304/sockets/plasma_store"
    assert len(f"{given}/{name}") <= 107
    monkeypatch.setattr(session_folder, "LONGEST", 60)
    with pytest.raises(ResourceError, match=r"^Ray needs a folder for its sockets .* set RAY_TMPDIR to one$"):
        start(monkeypatch)
