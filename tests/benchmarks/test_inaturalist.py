"""Thousands of natural clients in small: what SCAFFOLD keeps of them, counted, and the benchmark that weighs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.inaturalist import FIELDS, LIMITS, Peak, States, judged, judged_states, states_of, workload, write_data
from engine.base.sizes import size_text
from engine.experiment import Checkpointing
from engine.record.state_projection import most_files
from engine.run.local_driver import LocalDriver
from engine.run.preparing import prepare
from engine.server.cohort import draw_cohort

pytestmark = pytest.mark.slow

CLIENTS, CLASSES, SIDE = 300, 40, 8
MODEL = {"name": "mlp", "hidden": [8]}
PARAMETERS = (3 * SIDE * SIDE + 1) * 8 + 9 * CLASSES


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("inaturalist") / "data", CLIENTS, CLASSES, SIDE)


def test_natural_clients_with_a_long_tail(data: Path) -> None:
    """Kills: owners without images, classes that nobody has or everybody has, sizes that are all alike."""
    loaded = workload("fedavg", data, MODEL).data.load()
    assert loaded.train.owners is not None
    sizes = np.bincount(loaded.train.owners)
    assert len(sizes) == CLIENTS and sizes.min() >= 2
    assert sizes.max() > 10 * np.median(sizes) > 10
    assert len(loaded.classes) == CLASSES and np.bincount(loaded.test.labels).tolist() == [1] * CLASSES
    held = np.zeros((CLIENTS, CLASSES), dtype=bool)
    held[loaded.train.owners, loaded.train.labels] = True
    assert held.any(axis=0).all() and held.sum(axis=1).mean() < CLASSES / 4


@pytest.mark.parametrize("method", list(FIELDS))
def test_states_on_the_disk_are_counted_exactly(data: Path, tmp_path: Path, method: str) -> None:
    """Kills: a state for a client that never took part, two for one that did twice, other numbers than the model's."""
    execution = {"actors": 0, "device": "cpu", "state_store": "disk"}
    without_batchnorm = {"gamma": 0.0} if method == "cbfl" else {}
    algorithm = {"name": method, **FIELDS[method], **without_batchnorm}
    settings = workload(method, data, MODEL, execution=execution, algorithm=algorithm)
    prepared = prepare(settings.resolve(), tmp_path, False)
    prepared.write()
    run = LocalDriver(prepared)
    while not run.driver.finished:
        run.advance(1)
    summary = run.close()
    assert summary["clients"] == CLIENTS and summary["parameters"] == PARAMETERS
    found = states_of(tmp_path)
    if method != "scaffold":
        assert found is None
        return
    cohorts = [draw_cohort(0, number, range(CLIENTS), settings.participation) for number in (1, 2, 3)]
    touched = set().union(*map(set, cohorts))
    assert 55 < len(touched) < 3 * 23  # some took part twice
    assert found is not None
    assert (found.clients, found.files, found.numbers) == (len(touched), len(touched), (4 * PARAMETERS,))
    assert found.size == pytest.approx(len(touched) * 4 * PARAMETERS, rel=0.02)  # the files' headers
    assert found.projected.startswith(f"up to 64 clients x {size_text(4 * PARAMETERS)}")
    assert most_files(CLIENTS, 23 / CLIENTS, 3, Checkpointing()) == pytest.approx(3 * 23)


def test_every_bound_is_judged() -> None:
    """Kills: a method or a process without a bound, a cache that all are allowed, a state too many that passes."""
    model = 50 * 2**20
    base = Peak(driver=model, client=model, store=0, model=1)
    kept = States(clients=69, files=69, numbers=(model,), size=69 * model, projected="")

    def peaks(part: str, more: float) -> dict[str, Peak]:
        """All at their bounds, and ``part`` beyond them."""
        found = {}
        for method in FIELDS:
            size = {one: (LIMITS[one][method] + (more if one == part else 0)) * model for one in LIMITS}
            size["store"] += 512 * 2**20 if method == "scaffold" else 0
            total = {one: size[one] + getattr(base, one) for one in LIMITS}
            found[method] = Peak(**total, model=model, states=kept if method == "scaffold" else None)
        return found

    assert all(met for _, met in judged(peaks("", 0), base)) and len(judged(peaks("", 0), base)) == 9 + 2
    for part in LIMITS:
        missed = [text for text, met in judged(peaks(part, 0.1), base) if not met]
        assert len(missed) == len(FIELDS) and all(f", {part}: " in text for text in missed)
    for wrong in (States(69, 70, (model,), 0, ""), States(69, 69, (model, model + 4), 0, "")):
        assert [met for _, met in judged_states(wrong, model)].count(False) == 1
