"""APFL: exact oracles in one dimension, and wrong versions as mutants; that its global part is FedAvg's is in
test_reductions.py."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from algorithms.apfl import APFL
from algorithms.fedavg import FedAvg
from engine.algorithm import Client, LocalRun, ModelState, Tensors
from tests.support.pencil import Federation, quadratic

TARGETS = [[1.0], [4.0] * 2, [-3.0] * 5]
COHORTS = ([0, 2], [1], [0, 1], [0, 1, 2], [0, 2])
RATE, START = 0.1, 0.7


@pytest.fixture(autouse=True)
def pencil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "loss", quadratic())


def check_by_hand(algorithm: APFL, steps: list[int], times: float = 1.0) -> list[float]:
    """Alg. 1 with f_k = (u - x_k)^2 / 2, all of whose steps of v see the received w; all alphas at the end.

    With one step a round it is the paper's to the letter.
    """
    targets = [[times * target for target in own] for own in TARGETS]
    federation = Federation(algorithm, targets, steps, lr=RATE, start=START)
    server, own, shares = START, dict[int, float](), dict[int, float]()
    for cohort in COHORTS:
        ends = dict[int, float]()
        for client in cohort:
            (x, *_), v, w, a = targets[client], own.get(client, server), server, shares.get(client, algorithm.alpha)
            slope = (v - w) * (a * v + (1 - a) * w - x)
            for _ in range(steps[client]):
                v -= RATE * a * (a * v + (1 - a) * server - x)
            for _ in range(steps[client]):
                w -= RATE * (w - x)
            own[client], ends[client] = v, w
            shares[client] = min(max(a - RATE * slope, 0), 1) if algorithm.adaptive else a
        server = sum(len(targets[k]) * w for k, w in ends.items()) / sum(len(targets[k]) for k in cohort)
        for client, trained in zip(cohort, federation.round(cohort), strict=True):
            a, v = shares[client], own[client]
            found = [trained.new_state["personal"][0], trained.new_state["alpha"], trained.personal.weights[0]]
            wanted = [v, a, a * v + (1 - a) * ends[client]]
            assert [float(value) for value in found] == pytest.approx(wanted, rel=1e-11)
        assert federation.weight == pytest.approx(server, rel=1e-12)
    for client, v in own.items():
        a = shares[client]
        assert federation.own(client) == pytest.approx(a * v + (1 - a) * server, rel=1e-11)
    return list(shares.values())


@pytest.mark.parametrize("steps", [[1, 1, 1], [2, 9, 4]], ids=["one step", "many"])
@pytest.mark.parametrize(
    "fields", [{}, {"alpha": 0.9}, {"alpha": 0.3, "adaptive": False}, {"alpha": 0.0}, {"alpha": 1.0}], ids=str
)
def test_by_hand(fields: dict[str, Any], steps: list[int]) -> None:
    """Kills: an alpha too few or too many in a step of v, shares exchanged, a slope at the end of training, a v or an
    alpha that is not kept."""
    shares = check_by_hand(APFL(**fields), steps)
    changed = any(share != fields.get("alpha", 0.5) for share in shares)
    assert changed == fields.get("adaptive", True) or fields.get("alpha") == 0


def test_shares_stay_between_0_and_1() -> None:
    """Kills: a missing bound on either side."""
    shares = check_by_hand(APFL(), [2, 9, 4], times=10)
    assert 1.0 in shares


class OneAlpha(APFL):
    """A step of v that forgets that the mixture moves by alpha of it."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return state["alpha"] * grad if client.phase == "personal" else grad


class Restarting(APFL):
    """Own weights that begin at the received ones each round."""

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return super().start(received, {**state, "personal": received["weights"]}, client)


class SendsTheMixture(APFL):
    """The server averages clients' own models."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.ends["personal"].end}, super().upload(run, received, state)[1]


@pytest.mark.parametrize("mutant", [OneAlpha, Restarting, SendsTheMixture])
def test_mutants_are_killed(mutant: type[APFL]) -> None:
    with pytest.raises(AssertionError):
        check_by_hand(mutant(), [2, 9, 4])
