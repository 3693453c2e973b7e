"""Whatever deletes deletes its own: files of others, planted under names like the engine's, are there byte for byte."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from tests.support.foreign import ANYWHERE, IN_A_STORE, TOKEN, Foreign
from tests.support.tiny import drive_with_store, experiment, open_driver

KEYS = ("abcdef", "abbess", "abbot", "ab", "able_1")


def published(store: StageStore, key: str, round: int, size: int = 1000) -> None:
    def write(folder: Path) -> None:
        (folder / "states").mkdir()
        (folder / "weights").write_bytes(bytes(size))
        (folder / "states" / "one").write_text(key)

    store.publish(key, round, write)


def entries(store: StageStore) -> list[Path]:
    return sorted(path.parent for path in store.path.glob("ab/*/[0-9]*/manifest.json") if _is_entry(path.parent))


def _is_entry(place: Path) -> bool:
    return place.parent.name in KEYS and len(place.name) == 6


# --- stores -------------------------------------------------------------------------------------------


def emptied(store: StageStore, draw: random.Random) -> None:
    published(StageStore(store.path, limit_bytes=1), draw.choice(KEYS), 99)


def discarded(store: StageStore, draw: random.Random) -> None:
    for entry in entries(store):
        store.discard(entry.parent.name, int(entry.name))


def damaged(store: StageStore, draw: random.Random) -> None:
    for entry in entries(store):
        if draw.random() < 0.5:
            content = draw.choice([b"", b"{}", b"[]", json.dumps({"key": "abbot", "round": 1, "files": {}}).encode()])
            (entry / "manifest.json").write_bytes(content)
        store.open(entry.parent.name, int(entry.name))
        store.fetch(entry.parent.name, int(entry.name), store.path.parent / "fetched")


def published_anew(store: StageStore, draw: random.Random) -> None:
    for entry in entries(store):
        (entry / "manifest.json").unlink()
        published(store, entry.parent.name, int(entry.name))


def taken_over(store: StageStore, draw: random.Random) -> None:
    for key in KEYS:
        store.want(key, draw.randrange(5))
        for _ in range(3):
            with store.lease(key) or pytest.fail("refused"):
                pass


@pytest.mark.parametrize("seed", range(4))
def test_a_store_leaves_what_is_not_its_own(tmp_path: Path, seed: int) -> None:
    """Kills: a folder of two letters taken for a key's, what lies in an entry deleted with it, a number that is read
    and written another way, an old folder swept for its age alone."""
    draw = random.Random(seed)
    store = StageStore(tmp_path / "store")
    for key in KEYS:
        for round in draw.sample(range(5), 2):
            published(store, key, round)
    taken_over(store, draw)
    foreign = Foreign(store.path, draw)
    foreign.plant(IN_A_STORE)
    foreign.plant_everywhere(ANYWHERE, 0.1)
    foreign.age()
    deleting: list[Callable[[StageStore, random.Random], None]] = [
        emptied,
        discarded,
        damaged,
        published_anew,
        taken_over,
    ]
    for happens in draw.sample(deleting, len(deleting)):
        happens(StageStore(store.path), draw)
        assert foreign.lost == [], happens.__name__
        foreign.age()
    for key in KEYS:
        published(StageStore(store.path), key, 7)
    (store.path / "tally" / "total").write_text("unknown")
    emptied(store, draw)
    assert foreign.lost == []
    assert store.size() == 0 and entries(store) == []


def test_entries_beside_foreign_files_are_evicted_yet(tmp_path: Path) -> None:
    """Kills: a store that lets anything be and grows, an entry that is used or evicted again after it was emptied."""
    store = StageStore(tmp_path / "store", limit_bytes=20_000)
    published(store, "abcdef", 1)
    (store.path / "ab/abcdef/000001/notes.txt").write_text("mine")
    for round in range(2, 50):
        published(store, "abcdef", round)
    assert store.size() <= 20_000 and store.rounds("abcdef")[0] > 1
    assert [path.name for path in (store.path / "ab/abcdef/000001").iterdir()] == ["notes.txt"]
    assert os.listdir(store.path / "temporary") == []


def test_a_removal_that_was_killed_is_followed_up(tmp_path: Path) -> None:
    """Kills: half an entry that takes room for ever; one that is deleted with what lies beside it."""
    store = StageStore(tmp_path / "store")
    published(store, "abcdef", 1)
    away = store.path / "temporary" / f"out-{TOKEN}"
    os.rename(store.path / "ab/abcdef/000001", away)
    foreign = Foreign(store.path, random.Random(0))
    foreign.plant([f"temporary/out-{TOKEN}/notes.txt"])
    foreign.age()
    published(StageStore(store.path), "abcdef", 2)
    assert [path.name for path in away.iterdir()] == ["notes.txt"] and foreign.lost == []


def test_a_manifest_that_points_elsewhere_deletes_nothing(tmp_path: Path) -> None:
    """Kills: an eviction that follows a stranger's manifest, or a link in an entry, out of the store."""
    store = StageStore(tmp_path / "store")
    (tmp_path / "home").mkdir()
    for number, names in enumerate([["../../../../home/letter"], [str(tmp_path / "home/letter")], ["link/letter"]]):
        published(store, "abcdef", number)
        entry = store.path / f"ab/abcdef/{number:06d}"
        (entry / "link").symlink_to(tmp_path / "home")
        (tmp_path / "home" / "letter").write_text("dear")
        told = {"key": "abcdef", "round": number, "files": {name: [4, "00"] for name in names}}
        (entry / "manifest.json").write_text(json.dumps(told))
        for discard in (store.discard, store.open):
            discard("abcdef", number)
            assert (tmp_path / "home" / "letter").read_text() == "dear"


# --- runs ---------------------------------------------------------------------------------------------


def scaffold(rounds: int = 4) -> Experiment:
    return experiment(algorithm={"name": "scaffold"}, rounds=rounds, checkpoint={"every": 1, "keep": 2})


def resumed(folder: Path, config: Experiment, until: int | None = None) -> None:
    driver = open_driver(folder, config)
    while not driver.finished and (until is None or driver.round < until):
        driver.advance()
    driver.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_run_leaves_what_is_not_its_own(tmp_path: Path, seed: int) -> None:
    """Kills: states and parts of tables told by where they lie, temporary files by a dot; an old run cleared away by
    the names of its folders."""
    draw = random.Random(seed)
    folder, config = RunFolder(tmp_path / "run"), scaffold()
    resumed(folder.path, config, until=1)
    foreign = Foreign(folder.path, draw)
    foreign.plant(name for name in ANYWHERE if not name.startswith(("v1", "tune", "stages")))
    for path in ("checkpoints", "checkpoints/states", "rows", "fetched", "images", "diagnosis"):
        foreign.plant(ANYWHERE, 0.3, folder.path / path)
    foreign.age()
    resumed(folder.path, config, until=2)
    assert foreign.lost == [], "resume and prune"
    newest = max((folder.path / "checkpoints").glob("00-train-00*.safetensors"))
    newest.write_bytes(b"half")
    foreign.plant([f"checkpoints/{newest.name}.damaged"])
    resumed(folder.path, config)
    assert foreign.lost == [], "a damaged checkpoint"
    finished = sorted(path for path in folder.path.rglob("*") if path.is_file())
    with pytest.raises(ZeroDivisionError), folder.prepared(overwrite=True):
        assert not folder.has_experiment()
        raise ZeroDivisionError
    assert foreign.lost == [] and sorted(path for path in folder.path.rglob("*") if path.is_file()) == finished
    assert folder.summary()["status"] == "finished"
    with folder.prepared(overwrite=True):
        assert foreign.lost == [] and not folder.has_experiment()
        resumed(folder.path, config, until=1)
    assert foreign.lost == [] and folder.has_experiment(), "overwritten"
    folder.clear()
    assert foreign.lost == [], "cleared"
    left = [path for path in folder.path.rglob("*") if path.is_file() and not path.name.endswith(".damaged-2")]
    assert len(left) == len(foreign), "all else is gone"


def test_what_is_fetched_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    """Kills: a scratch folder that is cleared with what lies in it; one that a foreign file makes useless."""
    store = StageStore(tmp_path / "store")
    first = drive_with_store(tmp_path / "first", scaffold(), store)
    foreign = Foreign(tmp_path / "second", random.Random(0))
    for entry in store.path.glob("??/*/[0-9]*"):
        name = f"fetched/{entry.parent.name}-{entry.name}"
        foreign.plant([f"{name}/a.jpg", f"{name}-mine/a.jpg"])
    foreign.plant(ANYWHERE)
    second = drive_with_store(tmp_path / "second", scaffold(), store)
    assert second["weights_sha256"] == first["weights_sha256"]
    assert second["rounds_computed"] == 0 and foreign.lost == []


@pytest.mark.parametrize("thing", ["images/a.jpg", "checkpoints/mine", "log.txt", "summary.json", "rows/x", ".a.tmp"])
def test_a_folder_with_names_like_a_runs_is_not_taken_for_one(tmp_path: Path, thing: str) -> None:
    """Kills: somebody's folder ``images`` taken for a run's, and cleared away when the run cannot be opened."""
    foreign = Foreign(tmp_path / "mine", random.Random(0))
    foreign.plant([thing])
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        RunFolder.for_experiment(experiment(), tmp_path / "mine")
    folder = RunFolder(tmp_path / "mine")
    if "/" in thing:
        with pytest.raises(ZeroDivisionError), folder.prepared(overwrite=False):
            raise ZeroDivisionError
    assert foreign.lost == []
