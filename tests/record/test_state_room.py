"""Clients' states on the disk: what they are projected to come to, and a run that is refused for it."""

from __future__ import annotations

import logging
import math
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.base.errors import ResourceError
from engine.experiment import Checkpoint
from engine.record import state_projection
from engine.record.state_projection import most_files, size_text, touched
from engine.run.lineage import Lineage
from tests.support.tiny import SIZES, drive, experiment, open_driver

Usage = namedtuple("Usage", "total used free")


def test_clients_touched_by_hand() -> None:
    """Kills: the cohorts' sum, in which a client counts once a round; a fraction of a fraction."""
    assert touched(10, 0.5, 1) == 5
    assert touched(10, 0.5, 2) == 7.5
    assert touched(10, 1.0, 3) == 10
    assert touched(10, 0.5, 0) == touched(10, 0.5, -4) == 0
    assert touched(2295, 23 / 2295, 1000) == pytest.approx(2295, abs=0.2)


def test_files_by_hand() -> None:
    """Kills: one version of each state; a kept checkpoint more or less; a window that is longer than the stage."""
    every_two = Checkpoint(every=2, keep=2)
    assert most_files(8, 1.0, 1, every_two) == 8
    assert most_files(8, 1.0, 2, every_two) == 16
    assert most_files(8, 1.0, 4, every_two) == 16 + 8
    assert most_files(8, 1.0, 6, every_two) == 16 + 8 + 8
    assert most_files(8, 1.0, 6, Checkpoint(every=2, keep=1)) == 16 + 8
    assert most_files(8, 1.0, 3, Checkpoint(every=10, keep=2)) == 24
    # 2 rounds of 5 files; 10 (1 - 1/4) at the checkpoint before; at the one before that the same, 3/4 of it changed
    assert most_files(10, 0.5, 6, every_two) == pytest.approx(10 + 10 * 15 / 16 + 7.5 * 0.75)


def test_files_of_many_rounds() -> None:
    """Kills: versions that count twice, or that nobody counts, where clients take part now and then."""
    clients, share, rounds, every, keep = 3000, 0.03, 60, 10, 3
    rng, newest, saved, files = np.random.default_rng(0), dict[int, int](), list[dict[int, int]](), set[Any]()
    most = 0
    for number in range(1, rounds + 1):
        for client in np.flatnonzero(rng.random(clients) < share).tolist():
            newest[client] = number
            files.add((client, number))
        most = max(most, len(files))
        if number % every == 0:
            saved = [*saved, dict(newest)][-keep:]
            files = {pair for one in saved for pair in one.items()}
    assert most_files(clients, share, rounds, Checkpoint(every=every, keep=keep)) == pytest.approx(most, 0.02)


@pytest.mark.parametrize("keep", [1, 2])
def test_the_store_has_as_many_files_as_projected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int) -> None:
    """Kills: a projection of another store than the one there is. Every client takes part, so it is exact."""
    seen = []
    save = Lineage.save

    def counted(self: Lineage) -> None:
        seen.append(len(list(self.states.store.folder.glob("*.safetensors"))))
        save(self)

    monkeypatch.setattr(Lineage, "save", counted)
    checkpoint = {"every": 2, "keep": keep}
    drive(tmp_path, on_disk(rounds=6, checkpoint=checkpoint))
    expected = [most_files(len(SIZES), 1.0, rounds, Checkpoint(**checkpoint)) for rounds in (2, 4, 6)]
    assert seen == expected


def on_disk(store: str = "disk", algorithm: str = "scaffold", **changes: Any) -> Any:
    execution = {"actors": 0, "device": "cpu", "state_store": store, "precision": "float64"}
    return experiment(algorithm={"name": algorithm}, execution=execution, **changes)


def free(monkeypatch: pytest.MonkeyPatch, size: float) -> None:
    monkeypatch.setattr(state_projection.shutil, "disk_usage", lambda path: Usage(0, 0, size))


def test_a_disk_that_is_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a run that dies in its hundredth round; bytes of float32 in float64; a check of the memory store.

    Three rounds of eight clients, with a checkpoint at the end alone: 24 files of P numbers.
    """
    free(monkeypatch, 0)
    parameters = drive(tmp_path / "memory", on_disk("memory")).driver.layout.size
    drive(tmp_path / "stateless", on_disk(algorithm="fedprox"))
    needed = 24 * 8 * parameters
    free(monkeypatch, needed)
    drive(tmp_path / "enough", on_disk())
    free(monkeypatch, needed - 1)
    sentence = (
        rf"execution.state_store=disk: the states of 8 clients in stage train, {size_text(8 * parameters)} each, "
        rf"will take {size_text(needed)} .* and .*too-small.* has {size_text(needed - 1)} free; make room, or put"
    )
    with pytest.raises(ResourceError, match=sentence):
        open_driver(tmp_path / "too-small", on_disk())


def test_a_later_stage_is_checked_when_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a check of the first stage alone; a refusal after which what there is cannot be gone on with."""
    stages = [
        {"name": "warm-up", "rounds": 2, "algorithm": {"name": "fedavg"}},
        {"name": "main", "rounds": 1, "needs": ["warm-up"], "algorithm": {"name": "scaffold"}},
    ]
    settings = on_disk(stages=stages)
    free(monkeypatch, 0)
    driver = open_driver(tmp_path, settings)
    with pytest.raises(ResourceError, match="in stage main"):
        driver.advance(seconds=60)
    driver.close()
    free(monkeypatch, 1e9)
    resumed = drive(tmp_path, settings)
    assert resumed.folder.frame("rounds")["round"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        ("scaffold", "states: up to 8 clients x {state} = {all}, with older versions {more} on disk, 1.0 GB free"),
        ("moon", "states: grow from nothing, so how large they become is not known; 1.0 GB free"),
        ("fedavg", ""),
    ],
)
def test_the_projection_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, algorithm: str, said: str
) -> None:
    """Kills: a figure without its unit; states of nothing that fit any disk; a line where nobody keeps a state."""
    free(monkeypatch, 1e9)
    caplog.set_level(logging.INFO, "fedskew")
    driver = open_driver(tmp_path, on_disk(algorithm=algorithm))
    size = 8 * driver.layout.size
    lines = [line for line in caplog.messages if line.startswith("states:")]
    wanted = said.format(state=size_text(size), all=size_text(8 * size), more=size_text(24 * size))
    assert lines == ([wanted] if said else [])


def test_sizes_are_readable() -> None:
    """Kills: 1024, a unit too large or too small, digits that nobody reads."""
    assert [size_text(size) for size in (0, 999, 46.8e6, 107.4e9, 3.21e12, 5e15)] == [
        "0.0 kB", "1.0 kB", "46.8 MB", "107 GB", "3.2 TB", "5,000 TB",
    ]  # fmt: skip
    assert math.isclose(2295 * 11_700_000 * 4 / 1e9, 107, rel_tol=0.01)  # SCAFFOLD on iNaturalist, ResNet18
