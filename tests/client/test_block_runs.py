"""Whole runs by executor ``block``: what is stacked, the same numbers as by ``loop``, and bits that stay."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from engine.client.trainer import Trainer
from engine.data import Assignment
from engine.record.columns import HOW_IT_WENT
from engine.run.driver import Driver
from tests.support.outcomes import come_to
from tests.support.tiny import Driven, dataset, drive, experiment_of, open_driver

BLOCK = {"executor": "block"}
NOT_COMPARED = [*HOW_IT_WENT, "weights_sha256"]


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The clients of each pass, as they come."""
    seen: list[list[int]] = []
    original = Trainer.train_together

    def spy(self: Trainer, visits: Any, probe: bool = False) -> Any:
        seen.append([visit.number for visit in visits])
        return original(self, visits, probe)

    monkeypatch.setattr(Trainer, "train_together", spy)
    return seen


def both(folder: Path, name: str = "fedavg", parts: Assignment | None = None, **changes: Any) -> tuple[Driven, Driven]:
    """By the loop and in one pass, in float64."""
    runs = []
    for executor in ("loop", "block"):
        execution = {"precision": "float64", "executor": executor, **changes.get("execution", {})}
        runs.append(drive(folder / executor, experiment_of(name, **{**changes, "execution": execution}), parts=parts))
    return runs[0], runs[1]


def assert_alike(one: Driven, other: Driven) -> None:
    """Weights, states and every table; but for times."""
    torch.testing.assert_close(come_to(one), come_to(other), rtol=1e-9, atol=1e-9)
    for table in ("rounds", "clients", "evaluations", "personal"):
        frames = [run.folder.frame(table).drop(columns=NOT_COMPARED, errors="ignore") for run in (one, other)]
        if table == "personal":  # block by block, point by point
            frames = [frame.sort_values(["round", "point", "client"], ignore_index=True) for frame in frames]
        pd.testing.assert_frame_equal(frames[0], frames[1], rtol=1e-9, atol=1e-9)


# --- what is stacked ----------------------------------------------------------------------------------


def test_half_a_cohort_goes_together(tmp_path: Path, stacked: list[list[int]]) -> None:
    """Kills: blocks that are trained one by one, cut for the loop, or in another order than the cohort."""
    drive(tmp_path / "auto", experiment_of("fedavg", rounds=1, execution=BLOCK))
    assert stacked == [[0, 1, 2, 3], [4, 5, 6, 7]]
    stacked.clear()
    drive(tmp_path / "told", experiment_of("fedavg", rounds=1, execution={**BLOCK, "block": 3}))
    assert stacked == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize(
    "changes",
    [
        {"execution": {"executor": "loop"}},
        {"algorithm": {"name": "fedser"}},
        {"algorithm": {"name": "local"}, "client_models": [{"name": "mlp", "hidden": [5]}, {"name": "logistic"}]},
    ],
    ids=["loop", "one by one", "client models"],
)
def test_what_is_never_stacked(tmp_path: Path, stacked: list[list[int]], changes: dict[str, Any]) -> None:
    """Kills: weights of two networks in one stack, an algorithm that said that it cannot be."""
    values = {"execution": BLOCK, "algorithm": {"name": "fedavg"}, "rounds": 2, **changes}
    name = values.pop("algorithm")["name"]
    drive(tmp_path, experiment_of(name, **values))
    assert stacked == []


# --- the same numbers ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("fedavg", {"local": {"lr_decay": 0.5, "momentum": 0.9}, "participation": {"fraction": 0.5}}),
        ("scaffold", {"participation": {"count": 3}, "rounds": 4}),
        ("ditto", {"evaluation": {"personal_every": 1, "local_every": 2, "fine_tune_epochs": 1}}),
        ("fedper", {"model": {"name": "resnet8"}, "rounds": 2, "local": {"epochs": 1}}),
        ("fedavg", {"execution": {"block": 1}}),
        ("fedavg", {"execution": {"block": 100}, "participation": {"fraction": 0.3, "scheme": "binomial"}}),
    ],
)
def test_a_run_is_the_loops(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    """Kills: a rate that does not decay, reports, uploads or states of a block in another order than its clients, own
    models that are measured in the middle of a pass."""
    assert_alike(*both(tmp_path, name, **changes))


def test_shares_of_an_epoch_are_as_many_steps(tmp_path: Path) -> None:
    """Kills: a share that is counted over the stack, or a client that goes on while others step."""
    local = {"epochs": 0.4, "batch_size": 4, "lr": 0.1}
    loop, block = both(tmp_path, rounds=1, local=local)
    assert_alike(block, loop)
    frame = block.folder.frame("clients")
    assert list(frame["steps"]) == [math.ceil(0.4 * math.ceil(samples / 4)) for samples in frame["samples"]]
    assert len(set(frame["steps"])) > 1


def test_a_client_without_rows_is_none(tmp_path: Path, stacked: list[list[int]]) -> None:
    """Kills: an empty client in a stack, where it would take no step and count all the same."""
    rows = np.split(np.arange(60), [20, 20, 45, 46])
    parts = Assignment(tuple(part.astype(np.int64) for part in rows))
    assert_alike(*both(tmp_path, parts=parts, rounds=2))
    assert stacked == [[0, 2], [3, 4]] * 2


def test_local_models_are_each_clients_own(tmp_path: Path) -> None:
    """Kills: models handed on in the order of rows, in which they are trained, under the ids of another order."""
    seen: dict[str, dict[int, np.ndarray]] = {"loop": {}, "block": {}}
    for executor, models in seen.items():
        execution = {"executor": executor, "precision": "float64"}
        driver = open_driver(tmp_path / executor, experiment_of("fedavg", execution=execution), dataset())
        driver.watch(lambda client, model, models=models: models.update({client: model["weights"]}))
        driver.advance()
        driver.close()
    assert list(seen["block"]) == list(seen["loop"]) == list(range(8))
    for client, weights in seen["loop"].items():
        np.testing.assert_allclose(seen["block"][client], weights, rtol=0, atol=1e-9)


def test_a_clients_time_is_its_share(tmp_path: Path) -> None:
    """Kills: the whole pass charged to each client, or none of it to one that takes no optimizer step."""
    run = drive(tmp_path, experiment_of("fedavg", rounds=1, execution=BLOCK))
    rows = run.folder.frame("clients").set_index("client")
    for ids in ([0, 1, 2, 3], [4, 5, 6, 7]):
        per_row = rows.loc[ids, "seconds"] / rows.loc[ids, "samples"]
        np.testing.assert_allclose(per_row, per_row.iloc[0])
        assert per_row.iloc[0] > 0


# --- bits ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "feddc", "fedper"])
def test_bits_do_not_depend_on_stops_and_stores(tmp_path: Path, name: str) -> None:
    """Kills: a state that is a view of the stack it was trained in, or what is left in a worker after a pass."""
    settings = {"participation": {"count": 5}, "rounds": 4}
    reference = drive(tmp_path / "straight", experiment_of(name, **settings, execution=BLOCK))
    for store, stop in (("memory", 1), ("disk", 3)):
        execution = {**BLOCK, "state_store": store, "state_cache_mb": 0}
        config = experiment_of(name, **settings, execution=execution)
        driver: Driver = open_driver(tmp_path / store, config)
        for _ in range(stop):
            driver.advance()
        driver.close()
        assert drive(tmp_path / store, config).shas == reference.shas
