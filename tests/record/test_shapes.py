"""A run's own files, deleted and moved in an order that leaves a run behind wherever it is cut short."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from engine.base.owned import Shape, clear, move, owned, remove, remove_left_behind
from engine.record.run_folder import RunFolder
from engine.record.shapes import RUN
from tests.support.tiny import drive, experiment

CONFIG = experiment(algorithm={"name": "scaffold"}, rounds=2, checkpoint={"every": 1, "keep": 2})
SHAPE = Shape((r"last\.txt", r"[a-z]+\.txt"), {"[0-9]+": Shape((r"[a-z]\.bin",))})


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_shape_finds_its_own_in_its_order(tmp_path: Path) -> None:
    """Kills: a name that only begins or ends like ours; folders after files; temporary files left out; links, folders
    and pipes in the place of files."""
    fill(tmp_path, "b.txt", "a.txt", "last.txt", "12/a.bin", "12/b.bin", ".a.txt.7.tmp", "12/.b.bin.7.tmp")
    fill(tmp_path, "b.txt2", "B.txt", "12/ab.bin", "x12/a.bin", ".a.txt.tmp", ".my.7.tmp", "12/12/a.bin", "c.txt/c.txt")
    (tmp_path / "d.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "13").symlink_to(tmp_path / "12")
    found = [str(path.relative_to(tmp_path)) for path in owned(tmp_path, SHAPE)]
    assert found == ["12/.b.bin.7.tmp", "12/a.bin", "12/b.bin", "last.txt", ".a.txt.7.tmp", "a.txt", "b.txt"]
    assert list(owned(tmp_path / "not there", SHAPE)) == list(owned(tmp_path / "a.txt", SHAPE)) == []


def test_what_is_deleted_is_the_shapes(tmp_path: Path) -> None:
    """Kills: a folder deleted with what is in it; empty ones left, or deleted under another name."""
    fill(tmp_path, "run/a.txt", "run/1/a.bin", "run/2/a.bin", "run/2/mine", "run/.a.txt.7.tmp")
    (tmp_path / "run" / "empty").mkdir()
    remove_left_behind(tmp_path / "run", SHAPE)
    assert left(tmp_path / "run") == {"a.txt", "1", "1/a.bin", "2", "2/a.bin", "2/mine", "empty"}
    clear(tmp_path / "run", SHAPE)
    assert left(tmp_path / "run") == {"2", "2/mine", "empty"}
    remove(tmp_path / "run", SHAPE)
    assert left(tmp_path / "run") == {"2", "2/mine", "empty"}
    fill(tmp_path, "other/a.txt", "other/1/a.bin")
    remove(tmp_path / "other", SHAPE)
    remove(tmp_path / "other", SHAPE)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("stop", [1, 9, 12, 14])
@pytest.mark.parametrize("back", [False, True])
def test_a_move_that_is_killed_leaves_a_run_that_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int, back: bool
) -> None:
    """Kills: rows that are gone with their checkpoint yet there; an experiment that goes before its run."""
    run = drive(tmp_path / "run", CONFIG)
    parts = len(list(owned(tmp_path / "run", RUN)))
    if back:
        move(tmp_path / "run", tmp_path / "aside", RUN)
    rename, moved = Path.rename, itertools.count()

    def killed(self: Path, target: Path) -> Path:
        if next(moved) == stop * parts // 15:
            raise ZeroDivisionError
        return rename(self, target)

    places = (tmp_path / "aside", tmp_path / "run") if back else (tmp_path / "run", tmp_path / "aside")
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(ZeroDivisionError):
        move(*places, RUN, back)
    monkeypatch.undo()
    folder = RunFolder(tmp_path / "run")
    assert folder.has_experiment()
    assert drive(folder.path, CONFIG).sha == run.sha
    assert folder.frame("rounds")["round"].tolist() == [1, 2]
