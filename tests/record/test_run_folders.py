"""Run folders that two commands want, or that a killed one has left."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.base import files
from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import link_or_copy
from engine.base.writable import check_writable
from engine.record import run_folder as results
from engine.record.run_folder import PARTS, RunFolder
from tests.support.tiny import drive, experiment, open_driver


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_another_run_has_begun_meanwhile_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Kills: a command that is refused, and clears away the run of the one that was a moment sooner."""
    monkeypatch.setattr(results, "GONE_WITHIN", 0.0)
    folder, other = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    with ExitStack() as held, pytest.raises(RunFolderError), folder.prepared(overwrite):
        held.enter_context(other.locked())
        other.create(experiment())
        with folder.locked():
            pass
    assert other.has_experiment()
    assert not list(folder.path.glob(".before-*"))


def test_a_lock_that_was_cleared_away_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: two processes in one folder, of which one holds a lock's file that the other has deleted."""
    folder, original = RunFolder(tmp_path), files.fcntl.flock
    cleared: list[Path] = []

    def cleared_meanwhile(file: Any, how: int) -> None:
        original(file, how)
        if not cleared:
            cleared.append(folder.path / ".lock")
            cleared[0].unlink()

    monkeypatch.setattr(files.fcntl, "flock", cleared_meanwhile)
    with folder.locked(patience=60.0), pytest.raises(RunFolderError, match="by another process"), folder.locked():
        pass
    assert cleared


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_without_locks_is_told_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Kills: "another process" where there is none, and a wait for it; a folder begun all the same."""

    def no_locks(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    folder, config = RunFolder(tmp_path / "run"), experiment()
    folder.create(config)
    monkeypatch.setattr(files.fcntl, "flock", no_locks)
    told = rf"run cannot be locked \({os.strerror(number)}\); put it on a disk with locks$"
    with pytest.raises(RunFolderError, match=told), folder.locked(patience=60.0):
        pass
    with pytest.raises(ConfigError, match=rf"^--out=.*new: cannot be locked \({os.strerror(number)}\); name another$"):
        RunFolder.for_experiment(config, tmp_path / "new")
    check_writable(tmp_path / "store", "--store")  # which relies on renames alone


def test_a_lock_that_another_process_holds_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a lock that is held told as a file system without any."""
    folder, clock = RunFolder(tmp_path), iter(range(100))
    monkeypatch.setattr(files, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    with folder.locked(), pytest.raises(RunFolderError, match="by another process; wait"), folder.locked(patience=9.0):
        pass
    assert next(clock) > 9


def test_a_run_that_was_half_put_aside_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: Ctrl-C while an earlier run is put aside, which leaves half of it in a folder that nobody looks into."""
    folder, original = RunFolder(tmp_path / "run"), Path.rename
    folder.create(experiment())
    (folder.path / "log.txt").write_text("said")
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    renamed: list[Path] = []

    def interrupted(path: Path, target: Path) -> Path:
        renamed.append(path)
        if len(renamed) == 2:
            raise KeyboardInterrupt
        return original(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), folder.prepared(overwrite=True):
        pass
    assert len(renamed) == 3
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


def test_anybody_may_have_a_file_named_trial_json(tmp_path: Path) -> None:
    """Kills: a folder of somebody else's that a run begins in, and clears if it cannot, since one file has a name."""
    (tmp_path / "trial.json").write_text('{"drug": "x"}')
    (tmp_path / "log.txt").write_text("a thesis")
    with pytest.raises(ConfigError, match="holds no run"):
        RunFolder.for_experiment(experiment(), tmp_path)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Kills: half-written files that stay for good, here and beside the parts of tables."""
    config = experiment(rounds=2)
    undisturbed = drive(tmp_path / "undisturbed", config)
    driver = open_driver(tmp_path / "run", config)
    driver.advance()
    driver.close()
    left = [
        tmp_path / "run" / name for name in (".rounds.parquet.1.tmp", f"{PARTS}/.rounds.000000000005.parquet.1.tmp")
    ]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half a table")
    again = open_driver(tmp_path / "run", config)
    assert not any(path.exists() for path in left)
    again.advance()
    assert again.close()["weights_sha256"] == undisturbed.sha
    assert not (tmp_path / "run" / PARTS).exists()


def test_a_copy_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: half a state under its final name, where a disk is full and links are not possible."""
    (tmp_path / "source").write_bytes(b"a state")

    def no_link(*args: object) -> None:
        raise OSError

    def half(source: Path, target: Path) -> None:
        Path(target).write_bytes(b"a st")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", no_link)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", half)
        with pytest.raises(OSError, match="No space left"):
            link_or_copy(tmp_path / "source", tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    link_or_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"a state"


def test_what_arrow_has_freed_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: pages of tables that Arrow keeps, some more with each checkpoint; and that it keeps of the last one."""
    rows: list[tuple[int, int]] = []
    folder = RunFolder(tmp_path)
    monkeypatch.setattr(
        results, "give_back_arrows_memory", lambda: rows.append((folder.rounds.count(), folder.failures.count()))
    )
    folder.rounds.add({"stage": "train", "round": 1})
    folder.failures.add({"stage": "train", "round": 1, "client": 3})
    folder.flush()
    assert rows == [(1, 1)]


def test_a_table_whose_texts_are_none_is_refused(tmp_path: Path) -> None:
    """Kills: a traceback where a table's bytes are no UTF-8; found by the fuzzer."""
    rounds = drive(tmp_path, experiment(rounds=1)).folder.rounds
    rows = pq.read_table(rounds.path)
    broken = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(struct.pack("2i", 0, 1)), pa.py_buffer(b"\xd3")])
    pq.write_table(rows.set_column(0, "stage", broken), rounds.path)
    for read in (lambda: rounds.read("train", 1), rounds.frame, lambda: rounds.truncate({"train": 0})):
        with pytest.raises(RunFolderError, match=r"rounds.parquet cannot be read"):
            read()
