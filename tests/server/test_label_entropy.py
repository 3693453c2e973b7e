"""How balanced classes are, in clients' data and in what their local steps see."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Generative, ParamLayout, Tensors
from engine.experiment import Experiment, Local
from engine.results import load
from engine.server.class_balance import balance, changes_classes, label_entropies, last_trained, step_classes
from fedskew.lab.partitions import draw_steps
from fedskew.running import run
from tests.support.tiny import CLASSES, assignment, dataset, drive, experiment


@dataclass(frozen=True)
class Lacking(Generative, FedAvg):
    """FedAvg whose steps see ``fake`` rows more, of classes with probability (1 - P_m) / (C - 1)."""

    fake: int = 70

    def step_classes(self, counts: Tensor, rows: int) -> Tensor:
        shares = counts / counts.sum(dim=1, keepdim=True)
        return rows * shares + self.fake * (1 - shares) / (counts.shape[1] - 1)

    def generate(self, server: Tensors, labels: Tensor, layout: ParamLayout, rng: torch.Generator) -> Tensors:
        raise AssertionError("nobody asks for its images")


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "lacking", Lacking)


def test_balance_by_hand() -> None:
    """Kills: bits for nats over log C, log 0, a mean by samples, shares over all clients."""
    assert balance(np.array([[5, 5, 5, 5]])) == pytest.approx(1)
    assert balance(np.array([[9, 0, 0]])) == 0
    assert balance(np.array([[1, 3]])) == pytest.approx(0.8112781)  # the entropy of a quarter, in bits
    assert balance(np.array([[1, 1, 0, 0]])) == pytest.approx(0.5)
    assert balance(np.array([[1, 0], [50, 50]])) == pytest.approx(0.5)
    assert balance(np.array([[7]])) == 1


def test_rows_of_a_step_by_hand() -> None:
    """Kills: a batch larger than the client, "full" taken for a batch of all clients' rows, clients that mix."""
    counts = np.array([[100, 0, 0, 0, 0, 0, 0, 0, 0, 0], [4, 6, 0, 0, 0, 0, 0, 0, 0, 0]])
    seen = step_classes(FedAvg(), Local(batch_size=50), counts)
    assert seen.tolist() == [[50, *[0] * 9], [4, 6, *[0] * 8]]
    assert step_classes(FedAvg(), Local(batch_size="full"), counts).tolist() == counts.tolist()
    mixed = step_classes(Lacking(), Local(batch_size=50), counts)
    np.testing.assert_allclose(mixed[0], [50, *[70 / 9] * 9])
    np.testing.assert_allclose(mixed[1], [4 + 70 * 0.6 / 9, 6 + 70 * 0.4 / 9, *[70 / 9] * 8])
    assert step_classes(FedAvg(), Local(batch_size=1), counts).dtype == np.float64


def test_a_single_class_beside_generated_rows() -> None:
    """Kills: an entropy of the client's own rows for a step's (50 of one class, 70 / 9 of each other)."""
    counts = np.array([[100, *[0] * 9], [0] * 10])
    settings = experiment(algorithm={"name": "lacking"}, local={"batch_size": 50})
    found = label_entropies(settings, counts)
    own, other = 50 / 120, 70 / 9 / 120
    expected = -(own * math.log(own) + 9 * other * math.log(other)) / math.log(10)
    assert found == {"label_entropy": 0, "step_label_entropy": pytest.approx(expected)}
    assert expected == pytest.approx(0.8516, abs=1e-4)


def test_the_stage_that_is_asked() -> None:
    """Kills: the warm-up's steps, a branch's, or those of a stage that takes none."""
    mixing = {"name": "lacking"}
    stages = [
        {"name": "warm-up", "rounds": 1},
        {"name": "main", "rounds": 2, "needs": ["warm-up"], "algorithm": mixing},
    ]
    branch = {"name": "branch", "rounds": 2, "needs": ["warm-up"], "algorithm": {"name": "fedprox"}}
    end = {"name": "end", "rounds": 0, "needs": ["main"], "algorithm": {"name": "ccvr"}}
    assert last_trained(experiment(stages=stages)).name == "main"
    assert last_trained(experiment(stages=[*stages, branch, end])).name == "main"
    assert last_trained(experiment(stages=[*stages, branch])).name == "branch"
    assert changes_classes(experiment(stages=stages)) and not changes_classes(experiment(stages=[*stages, branch]))
    change = {"round": 3, "set": {"stages.main.algorithm.fake": 5}}
    assert last_trained(experiment(stages=stages, schedule=[change])).algorithm == Lacking(fake=5)


def test_figures_of_a_run(tmp_path: Path) -> None:
    """Kills: a figure that is not written, or that trials lack; a batch's share for the data's."""
    parts, data = assignment([20, 0, 13, 7, 30]), dataset(70)
    counts = parts.class_counts(data.train.labels, CLASSES)
    for name in ("fedavg", "lacking"):
        settings = experiment(rounds=1, algorithm={"name": name})
        summary = drive(tmp_path / name, settings, data, parts).summary
        assert summary["label_entropy"] == pytest.approx(balance(counts[counts.sum(1) > 0]))
        assert (summary["step_label_entropy"] > summary["label_entropy"] + 0.001) == (name == "lacking")
        row = load(tmp_path / name).trials.iloc[0]
        for figure in ("label_entropy", "step_label_entropy"):
            assert row[figure] == summary[figure] == json.loads((tmp_path / name / "summary.json").read_text())[figure]


@pytest.mark.pictures
@pytest.mark.parametrize("algorithm", ["fedavg", "lacking"])
def test_the_picture_is_there_where_a_step_sees_other_classes(tmp_path: Path, algorithm: str) -> None:
    """Kills: a picture of nothing new; one that is missing; one of clients without data."""
    settings = Experiment(
        rounds=1,
        data={"name": "fashion_mnist_sample", "train_samples": 100, "test_samples": 20},
        partition={"name": "dirichlet", "clients": 12, "alpha": 0.05},
        model={"name": "logistic"},
        algorithm={"name": algorithm},
        execution={"actors": 0, "device": "cpu"},
    )
    run(settings, tmp_path)
    assert (tmp_path / "sampler.png").exists() == (algorithm == "lacking")


def test_what_the_picture_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: before and after swapped; rows in another order above and below; samples for shares."""
    drawn = []
    monkeypatch.setattr("fedskew.lab.partitions._shades", lambda axes, shares: drawn.append(shares))
    counts = np.array([[1, 1], [6, 2]])
    expected = torch.tensor([[3.0, 1.0], [4.0, 4.0]]).numpy()
    draw_steps(counts, expected, ("a", "b"), tmp_path / "sampler.png")
    np.testing.assert_allclose(drawn, [[[0.75, 0.25], [0.5, 0.5]], [[0.5, 0.5], [0.75, 0.25]]])
