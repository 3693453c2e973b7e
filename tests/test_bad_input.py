"""Everything that can be refused is refused in one sentence, before anything starts, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from engine import cli, ray_pool
from engine.data import SOURCES, sources
from tests.bad_input import datasets, experiments, folders, partitions, sweeps
from tests.bad_input.case import Case
from tests.sweep_folders import MU, make_sweep

CASES: list[Case] = [*experiments.CASES, *datasets.CASES, *partitions.CASES, *sweeps.CASES, *folders.CASES]


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No data set of this machine, no network, no GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(sources, "DEBIAN_FASHION_MNIST", Path("no/such/folder"))
    for download in ("_download_fashion_mnist", "_download_cifar10"):
        monkeypatch.setattr(sources, download, lambda folder: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that was stopped before its last round, and a sweep with its trials; to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedskew", *folders.BEGUN, "--until", "2", "--out", str(folder / "run")])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        assert exit.value.code == 0
    make_sweep(folder / "sweep", axes=[MU], seeds=(0,), rounds=4)
    return {kind: folder / kind for kind in ("run", "sweep")}


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    def started(*args: object, **kwargs: object) -> None:
        pytest.fail("Ray was started")

    monkeypatch.setattr(ray, "init", started)
    monkeypatch.setattr(ray_pool, "connect", started)


def content(folder: Path) -> dict[str, str]:
    """Of everything below a folder: a digest of each file, where each link leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = f"-> {os.readlink(path)}" if path.is_symlink() else "folder" if path.is_dir() else ""
        found[str(path.relative_to(folder))] = kind or hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def check_sentence(case: Case, code: Any, out: str, err: str) -> None:
    assert code == 2, err
    assert "Traceback" not in err
    assert err.startswith("error: ")
    assert len(err.strip().splitlines()) == 1, err
    assert case.message in err
    assert out == ""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_is_refused_in_one_sentence(
    case: Case, begun: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: a traceback, another exit code, a second sentence; Ray or data before the refusal; a file left behind."""
    if case.begun:
        shutil.copytree(begun[case.begun], tmp_path / case.begun)
    case.prepare(tmp_path)
    if not case.loads:
        for kind in SOURCES.values():
            monkeypatch.setattr(kind, "load", lambda self: pytest.fail("data were loaded"))
    before = content(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedskew", *case.words])
    monkeypatch.setattr(cli.console, "width", 200, raising=False)
    capsys.readouterr()
    code: Any = 0
    try:
        cli.main()
    except SystemExit as exit:
        code = exit.code
    check_sentence(case, code, *capsys.readouterr())
    assert content(tmp_path) == before
