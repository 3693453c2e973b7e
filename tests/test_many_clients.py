"""Memory in proportion to a round's cohort: what a round takes and what is kept, whatever the number of clients."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.data import Replacement
from engine.driver import Driver
from tests.tiny import CLASSES, dataset, experiment, open_driver

COHORT = 8


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def many(folder: Path, clients: int, **changes: Any) -> Driver:
    """A driver of clients that share 120 samples, 6 each."""
    settings = experiment(
        rounds=8,
        local={"epochs": 1},
        participation={"count": COHORT},
        evaluation={"every": 0},
        checkpoint={"every": 100},
        **changes,
    )
    data = dataset()
    partition = Replacement(clients=clients, samples=6)
    parts = partition.share_tests(partition.assign(data.train.labels, CLASSES), data)
    return open_driver(folder, settings, data, parts)


def test_a_round_takes_no_more_with_more_clients(tmp_path: Path, traced: None) -> None:
    """Kills: a Python object for each client in a round, a list of all of them, states of all that is opened."""
    taken = []
    for clients in (200, 20_000):
        driver = many(tmp_path / str(clients), clients)
        driver.advance()  # caches are filled
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        driver.advance()
        taken.append(tracemalloc.get_traced_memory()[1] - before)
    assert taken[1] - taken[0] < 2 * (20_000 - 200)  # a list of them would be 8 bytes each, without the numbers


def test_an_assignment_weighs_what_its_rows_do(traced: None) -> None:
    """Kills: an array object for each client, which weighs more than the six rows in it."""
    labels = dataset().train.labels
    before, _ = tracemalloc.get_traced_memory()
    parts = Replacement(clients=20_000, samples=6).assign(labels, CLASSES)
    kept = tracemalloc.get_traced_memory()[0] - before
    rows = 8 * sum(map(len, parts.clients))
    assert rows < kept < 1.5 * rows


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_states_on_disk_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """Those in memory show that this tells. Kills: a store on disk that keeps what it has written, a cache beyond its
    bound, a round's states that outlive it, a file for each client whether it took part or not."""
    execution = {"actors": 0, "device": "cpu", "state_store": store, "state_cache_mb": 0}
    driver = many(tmp_path, 500, algorithm={"name": "scaffold"}, execution=execution)
    made, run = [], driver.pool.run

    def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for result in run(*args, **kwargs):
            made.extend(weakref.ref(array) for state in result.handles for array in state.values())
            yield result

    monkeypatch.setattr(driver.pool, "run", watched)
    while not driver.finished:
        driver.advance()
    gc.collect()
    touched = len(driver._joined)
    alive = sum(array() is not None for array in made)
    assert len(made) == 8 * COHORT and touched > 5 * COHORT
    assert alive == (1 if store == "disk" else touched)  # the last one, however small the bound
    assert len(driver._states.files) == touched
    files = list((tmp_path / "checkpoints" / "states").iterdir())
    assert len(files) == touched
    assert max(path.stat().st_size for path in files) < 4 * driver.layout.size + 200
