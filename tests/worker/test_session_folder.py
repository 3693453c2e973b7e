"""The folder of a Ray that is started here: who may enter it, and when it goes."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from engine.experiment import Execution
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
        asked.update(words)

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
    given.parent.rmdir()


def test_a_ray_that_does_not_start_leaves_nothing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a folder for each failed start."""

    def init(**words: Any) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RuntimeError, match="no"):
        cluster.connect(Execution(actors=1))
    assert list(base.iterdir()) == []


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
    assert "_temp_dir" not in start(monkeypatch)
