"""Rounds with differential privacy: by hand, the same on any number of workers and after a resume, and of nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.algorithm import seeds
from engine.algorithm.privacy import Privacy
from engine.experiment import Experiment, Participation
from engine.server.cohort import draw_cohort
from tests.support.tiny import SIZES, assignment, drive, experiment, open_driver

HALF = {"fraction": 0.5, "scheme": "binomial"}
CLIP, NOISE = 0.3, 0.8


@pytest.fixture
def _no_accountant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs end where dp-accounting is not installed; it changes no bit."""
    monkeypatch.setattr(Privacy, "epsilon", lambda self, probability, rounds: None)


def private(**changes: Any) -> Experiment:
    values: dict[str, Any] = {"participation": HALF, "privacy": {"clip": CLIP, "noise": NOISE}, **changes}
    return experiment(**values | {"execution": {"precision": "float64", **changes.get("execution", {})}})


@pytest.mark.usefixtures("_no_accountant")
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_a_round_by_hand(tmp_path: Path, server_lr: float) -> None:
    """Kills: clips, noise, weights by samples or a denominator other than the paper's, anywhere on the way; noise that
    a server's step does not see."""
    algorithm = {"name": "fedavg", "server_lr": server_lr}
    driver = open_driver(tmp_path, private(rounds=1, seed=4, algorithm=algorithm))
    ended, received = dict[int, np.ndarray](), driver.federation.fresh["weights"].numpy().copy()
    driver.watch(lambda client, model: ended.update({client: model["weights"].numpy().copy()}))
    driver.advance()
    summed, norms = np.zeros(len(received)), list[float]()
    for client in driver.federation.cohort(1):
        update = ended[client] - received
        norms.append(float(np.sqrt((update**2).sum())))
        summed += update * min(1.0, CLIP / norms[-1])
    assert min(norms) < CLIP < max(norms) and len(norms) not in (0, 4)  # some are clipped, and fewer or more have come
    drawn = torch.randn(len(received), generator=seeds.generator(4, "privacy", 1), dtype=torch.float64).numpy()
    wanted = received + server_lr * (summed + NOISE * CLIP * drawn) / (0.5 * len(SIZES))
    np.testing.assert_allclose(driver.lineage.server["weights"].numpy(), wanted, rtol=0, atol=1e-14)


def test_a_clip_beyond_all_updates_is_fedavg_with_equal_weights(tmp_path: Path) -> None:
    """Kills: a mean of updates that is none of weights; a sum that starts from another round's weights."""
    changes = {"participation": {}, "rounds": 3}
    parts = assignment([15] * 8)
    plain = drive(tmp_path / "plain", private(**changes, privacy={}), parts=parts)
    clipped = drive(tmp_path / "clipped", private(**changes, privacy={"clip": 1e6}), parts=parts)
    found, wanted = clipped.server["weights"], plain.server["weights"]
    assert torch.allclose(found, wanted, rtol=0, atol=1e-13)
    assert clipped.folder.frame("rounds")["floats_up"].equals(plain.folder.frame("rounds")["floats_up"])


@pytest.mark.usefixtures("_no_accountant")
@pytest.mark.parametrize("executor", ["loop", "block"])
def test_bits_are_those_of_one_worker_and_of_one_sitting(tmp_path: Path, executor: str) -> None:
    """Kills: noise by block or by worker; noise that goes on from where a generator was left."""
    execution = {"executor": executor, "block": 2}
    one = drive(tmp_path / "one", private(execution=execution | {"workers": 1}))
    two = drive(tmp_path / "two", private(execution=execution | {"workers": 2}))
    config = private(execution=execution)
    begun = open_driver(tmp_path / "resumed", config)
    begun.advance(until=1)
    begun.close()
    resumed = drive(tmp_path / "resumed", config)
    assert one.sha == two.sha == resumed.sha
    assert resumed.folder.frame("rounds")["round"].tolist() == [1, 2, 3]


@pytest.mark.usefixtures("_no_accountant")
@pytest.mark.parametrize("noise", [NOISE, 0.0])
def test_that_nobody_was_drawn_does_not_show(tmp_path: Path, noise: float) -> None:
    """Kills: a round without noise, which the accountant does not know, wherever a cohort is empty."""
    few = {"fraction": 0.1, "scheme": "binomial"}
    clients = range(len(SIZES))
    seed = next(s for s in range(100) if not draw_cohort(s, 1, clients, Participation.model_validate(few)))
    privacy = {"clip": CLIP, "noise": noise}
    driver = open_driver(tmp_path, private(rounds=1, seed=seed, participation=few, privacy=privacy))
    driver.advance()
    drawn = torch.randn(
        driver.federation.model_layout.size, generator=seeds.generator(seed, "privacy", 1), dtype=torch.float64
    )
    moved = driver.lineage.server["weights"] - driver.federation.fresh["weights"]
    assert torch.allclose(moved, noise * CLIP * drawn / 0.8, rtol=0, atol=1e-14)


def test_a_summary_has_epsilon_of_the_coins_and_the_rounds(tmp_path: Path) -> None:
    """Kills: an epsilon of the last stage alone, of fewer rounds than were asked for, or made smaller by clients that
    are not there; one of a run without noise."""
    pytest.importorskip("dp_accounting")
    stages = [{"name": "a", "rounds": 2}, {"name": "b", "rounds": 1, "needs": ["a"]}]
    config = private(stages=stages, participation=HALF | {"availability": 0.7})
    summary = drive(tmp_path / "a", config).summary
    assert summary["epsilon"] == config.privacy.epsilon(0.5, 3)
    assert drive(tmp_path / "b", experiment(rounds=1)).summary["epsilon"] is None
