"""Local training alone: each client is plain training, and nothing travels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.local import LocalOnly
from engine.algorithm import Algorithm, Client, Context, LocalRun, ModelState, Pooled, Tensors
from engine.data import Assignment
from tests.support.pencil import Federation, quadratic
from tests.support.tiny import SIZES, drive, experiment

TARGETS, STEPS = [[1.0], [4.0] * 2, [-3.0] * 5], [2, 9, 4]
COHORTS = ([0, 2], [1], [0, 1], [0, 1, 2])


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalOnly, "loss", quadratic())


def check_each_goes_on_alone(algorithm: Algorithm) -> None:
    """f = (y - x)^2 / 2: after s steps in all a client is at x + (1 - eta)^s (y_0 - x), whatever the others do."""
    federation = Federation(algorithm, TARGETS, STEPS, start=0.7)
    done = [0, 0, 0]
    for cohort in COHORTS:
        for client, trained in zip(cohort, federation.round(cohort), strict=True):
            done[client] += STEPS[client]
            target = TARGETS[client][0]
            wanted = target + 0.9 ** done[client] * (0.7 - target)
            assert trained.new_state["personal"][0].item() == pytest.approx(wanted, rel=1e-12)
            assert federation.own(client) == pytest.approx(wanted, rel=1e-12)
            assert not trained.upload
        assert federation.weight == 0.7
    assert Federation(algorithm, TARGETS, STEPS, start=0.7).own(1) == 0.7  # of one that has not taken part


@pytest.mark.usefixtures("pencil")
def test_each_goes_on_alone() -> None:
    """Kills: a client that starts afresh each round, or from another's weights."""
    check_each_goes_on_alone(LocalOnly())


@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [12]}, {"name": "resnet8"}], ids=["mlp", "batchnorm"])
def test_a_client_is_a_federation_of_one(tmp_path: Path, model: dict[str, Any]) -> None:
    """Kills: statistics or weights of the server's that come back, draws of another round; to the bit, with FedAvg of
    one client, which is plain training (test_golden.py)."""
    setting: dict[str, Any] = {
        "model": model,
        "local": {"momentum": 0.9, "lr": 0.02, "lr_decay": 0.9, "batch_size": 16},
    }
    rows = np.arange(120)
    alone = drive(tmp_path / "a", experiment(**setting), parts=Assignment((rows[:70],)))
    two = Assignment((rows[:70], rows[70:]))
    run = drive(tmp_path / "b", experiment(algorithm={"name": "local"}, **setting), parts=two)
    for entry, wanted in (("personal", "weights"), ("personal_buffers", "buffers")):
        np.testing.assert_array_equal(run.states[0][entry], alone.server[wanted].numpy())
        assert not np.array_equal(run.states[1][entry], alone.server[wanted].numpy()) or not len(alone.server[wanted])
        assert torch.equal(run.server[wanted], run.driver.federation.fresh[wanted])


def test_nothing_travels_but_the_start(tmp_path: Path) -> None:
    """Kills: weights counted with each round, buffers that are forgotten among what all start from; an upload."""
    run = drive(
        tmp_path, experiment(algorithm={"name": "local"}, participation={"count": 3}, model={"name": "resnet8"})
    )
    clients, exchanges = run.folder.frame("clients"), run.folder.frame("exchanges")
    assert set(clients["floats_up"]) == set(clients["floats_down"]) == {0}
    assert exchanges[["when", "client", "floats_up", "floats_down"]].to_numpy().tolist() == [
        ["start", client, 0, run.driver.layout.size + run.driver.layout.buffers] for client in range(len(SIZES))
    ]
    asked = set(clients["client"])
    assert asked < set(range(len(SIZES)))
    assert {client for client, state in enumerate(run.states) if state} == asked


def test_a_stage_goes_on_from_the_one_before(tmp_path: Path) -> None:
    """Kills: clients that start from fresh weights. Steps of 1e-30 leave weights as they are."""
    stages = [
        {"name": "together", "rounds": 1},
        {"name": "alone", "rounds": 1, "needs": ["together"], "algorithm": {"name": "local"}, "local": {"lr": 1e-30}},
    ]
    run = drive(tmp_path, experiment(stages=stages))
    assert not torch.equal(run.server["weights"], run.driver.federation.fresh["weights"])
    for state in run.states:
        np.testing.assert_array_equal(state["personal"], run.server["weights"].numpy())


@pytest.mark.slow
@pytest.mark.parametrize("participation", [{}, {"count": 3}], ids=["all", "some"])
def test_two_stages_are_one(tmp_path: Path, participation: dict[str, Any]) -> None:
    """Kills: personal models that are thrown away where a stage of the same method follows. To the bit, BatchNorm's
    statistics included, and for a client that takes part in one stage alone."""
    setting: dict[str, Any] = {
        "model": {"name": "resnet8"},
        "algorithm": {"name": "local"},
        "local": {"momentum": 0.9, "lr_decay": 0.9},
        "participation": participation,
    }
    stages = [{"name": "one", "rounds": 2}, {"name": "two", "rounds": 2, "needs": ["one"]}]
    whole = drive(tmp_path / "a", experiment(rounds=4, **setting))
    halves = drive(tmp_path / "b", experiment(stages=stages, **setting))
    cohorts = halves.folder.frame("clients").groupby("stage")["client"]
    again = set(cohorts.get_group("two"))
    assert again & set(cohorts.get_group("one"))
    for client in again:
        for entry in ("personal", "personal_buffers"):
            np.testing.assert_array_equal(halves.states[client][entry], whole.states[client][entry])


@pytest.mark.parametrize("name", ["ditto", "pfedme"])
def test_other_methods_go_on_from_the_same_models(tmp_path: Path, name: str) -> None:
    """Kills: a method that overrides the first state. Steps of 1e-30 leave models as they are."""
    stages: list[dict[str, Any]] = [
        {"name": "alone", "rounds": 1, "algorithm": {"name": name}},
        {"name": "on", "rounds": 1, "needs": ["alone"], "algorithm": {"name": "local"}, "local": {"lr": 1e-30}},
    ]
    before = drive(tmp_path / "a", experiment(stages=stages[:1]))
    after = drive(tmp_path / "b", experiment(stages=stages))
    for kept, state in zip(before.states, after.states, strict=True):
        assert not np.array_equal(kept["personal"], before.server["weights"].numpy())
        np.testing.assert_array_equal(state["personal"], kept["personal"])


# --- mutants ------------------------------------------------------------------------------------------


class Restarting(LocalOnly):
    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return super().start(received, state, client)._replace(weights=received["weights"])


class Averaging(LocalOnly):
    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}, super().upload(run, received, state)[1]

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return FedAvg().aggregate(server, pooled, context)


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("mutant", [Restarting, Averaging])
def test_mutants_are_killed(mutant: type[LocalOnly]) -> None:
    with pytest.raises(AssertionError):
        check_each_goes_on_alone(mutant())
