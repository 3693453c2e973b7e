"""The files of another node as Arrow sees them, with an actor that is in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow import fs

from engine.worker.ray import node_files


def in_process(method: Any) -> Any:
    return SimpleNamespace(remote=method)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> fs.PyFileSystem:
    monkeypatch.setattr(node_files.ray, "get", lambda value: value)
    keeper = node_files._Keeper()
    actor = SimpleNamespace(call=in_process(keeper.call), write=in_process(keeper.write))
    return fs.PyFileSystem(fs.FSSpecHandler(node_files._NodeFiles(keeper=actor)))


def test_files_of_a_node_are_those_of_a_local_file_system(tmp_path: Path, files: fs.PyFileSystem) -> None:
    """Kills: a part of a file, a folder that is not listed, a file that stays; what Tune does with its storage."""
    source, there = tmp_path / "source", str(tmp_path / "there")
    (source / "a/b").mkdir(parents=True)
    (source / "a/one").write_bytes(b"")
    (source / "a/b/two").write_bytes(bytes(range(256)) * 400)
    files.create_dir(there)
    files.create_dir(there)
    fs.copy_files(str(source), there, destination_filesystem=files)
    fs.copy_files(there, str(tmp_path / "back"), source_filesystem=files)
    assert (tmp_path / "back/a/b/two").read_bytes() == (source / "a/b/two").read_bytes()
    assert (tmp_path / "back/a/one").read_bytes() == b""
    found = files.get_file_info(fs.FileSelector(there, recursive=True))
    assert sorted(one.path.removeprefix(there) for one in found) == ["/a", "/a/b", "/a/b/two", "/a/one"]
    files.move(f"{there}/a/one", f"{there}/a/three")
    files.delete_file(f"{there}/a/three")
    with pytest.raises(FileNotFoundError):
        files.delete_file(f"{there}/a/three")
    files.delete_dir(f"{there}/a")
    assert list((tmp_path / "there").iterdir()) == []
    assert files.get_file_info(f"{there}/a").type == fs.FileType.NotFound


def test_a_file_is_another_on_each_disk(tmp_path: Path) -> None:
    """Kills: a node that takes a folder of its own for the sweep's, since it has the path, or the content."""
    names = ["one", "other"]
    for name in names:
        (tmp_path / name).touch()
    one, other = (node_files.identity(tmp_path / name) for name in names)
    assert one == node_files.identity(tmp_path / "one") != other
    assert node_files.identity(tmp_path / "none") is None
