"""SCAFFOLD: the oracles of spec 14 that test_golden.py does not have, and public bugs as mutants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.feddc import relative_size
from algorithms.scaffold import Scaffold
from engine.algorithm import Batch, Client, Context, LocalRun, Net, Pooled, Tensors
from tests.support.pencil import Federation, linear, quadratic
from tests.support.tiny import BATCHNORM, drive, experiment

TARGETS, STEPS = [[1.0], [4.0] * 2, [-3.0] * 5], [2, 9, 4]
COHORTS = ([0, 2], [1], [0, 1], [0, 1, 2], [1, 2])
SHARE = torch.tensor([1, 2, 5], dtype=torch.float64) / 8


def controls(federation: Federation) -> Tensor:
    """[K] of the clients, zero before they take part."""
    return torch.stack([torch.zeros(2).double()[0] if s is None else s["control"][0] for s in federation.states])


def check_server_control_is_the_mean_of_all(algorithm: Scaffold, federation: Any = Federation) -> None:
    """O-S1 at partial participation: c = sum_k s_k c_k."""
    ours = federation(algorithm, TARGETS, STEPS)
    for cohort in COHORTS:
        ours.round(cohort)
        weights = torch.full_like(SHARE, 1 / 3) if algorithm.weighting == "uniform" else SHARE
        torch.testing.assert_close(ours.server["control"][0], weights @ controls(ours), rtol=0, atol=1e-12)


def check_first_round_is_fedavg(algorithm: Scaffold) -> None:
    """O-S2."""
    weights = []
    for one in (algorithm, FedAvg()):
        federation = Federation(one, TARGETS, STEPS, start=0.7)
        federation.round()
        weights.append(federation.weight)
    assert weights[0] == pytest.approx(weights[1], rel=1e-12)


def check_control_of_a_linear_loss(algorithm: Scaffold, **local: Any) -> None:
    """O-S4 with control variates that are not zero: c_k is b_k after any participation, for any steps and momentum."""
    federation = Federation(algorithm, TARGETS, STEPS, lr=0.03, local={"epochs": 7, **local})
    for cohort in COHORTS:
        federation.round(cohort)
        for client in cohort:
            assert controls(federation)[client].item() == pytest.approx(TARGETS[client][0], rel=1e-9)


@pytest.fixture
def pencil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "loss", quadratic())


@pytest.fixture
def slopes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedAvg, "loss", linear)


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_server_control_is_the_mean_of_all(weighting: Any) -> None:
    """Kills: the cohort in place of all clients (O-S1, E-06)."""
    check_server_control_is_the_mean_of_all(Scaffold(weighting=weighting))


@pytest.mark.usefixtures("slopes")
@pytest.mark.parametrize("local", [{}, {"momentum": 0.9}, {"momentum": 0.5, "nesterov": True}], ids=str)
def test_control_of_a_linear_loss(local: dict[str, Any]) -> None:
    """Kills: bare steps, epochs or rows for the accumulated weight (O-S4)."""
    check_control_of_a_linear_loss(Scaffold(), **local)


@pytest.mark.usefixtures("pencil")
def test_first_round_is_fedavg() -> None:
    """Kills: control variates that do not start at zero (O-S2)."""
    check_first_round_is_fedavg(Scaffold())


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("option", ["I", "II"])
def test_one_full_step_of_all_is_fedsgd_in_every_round(option: Any) -> None:
    """Kills: corrections that do not cancel over all clients (O-S3): c_k is the gradient at the received weights."""
    ours, theirs = (Federation(one, TARGETS, [1, 1, 1], start=0.7) for one in (Scaffold(option=option), FedAvg()))
    for _ in range(4):
        received = ours.weight
        ours.round()
        theirs.round()
        assert ours.weight == pytest.approx(theirs.weight, rel=1e-12)
        gradients = received - torch.tensor([client[0] for client in TARGETS], dtype=torch.float64)
        torch.testing.assert_close(controls(ours), gradients, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("pencil")
def test_identical_clients_need_no_correction() -> None:
    """Kills: a correction that is not the difference of two equal things (O-S5)."""
    ours, theirs = (Federation(one, [[2.0]] * 3, [5] * 3, start=0.7) for one in (Scaffold(), FedAvg()))
    for _ in range(4):
        ours.round()
        theirs.round()
        assert ours.weight == pytest.approx(theirs.weight, rel=1e-12)


def test_a_sampled_cohort_reaches_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: control variates that are stale by construction, or scaled by the cohort (O-S6).

    20 clients with f_k = a_k/2 (y - b_k)^2, 5 of them in each of 100 rounds of four steps at 0.05; FedAvg stalls.
    (The oracle's 100 clients, 10 a round, 300 rounds of ten steps at 0.01 give 1e-6 too, in half a minute.)
    """
    rng = torch.Generator().manual_seed(0)
    b = 2 * torch.rand(20, generator=rng) - 0.5
    a = 1 + b.double() ** 2

    def loss(self: Any, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        target = batch.x.view(-1)[0]
        weight = net.model.head.weight.view(())  # type: ignore[attr-defined]
        return (1 + target**2) / 2 * (weight - target).square()

    monkeypatch.setattr(FedAvg, "loss", loss)
    optimum = float((a * b).sum() / a.sum())
    ends = []
    for algorithm, rounds in ((Scaffold(), 100), (FedAvg(), 40)):
        federation = Federation(algorithm, [[float(target)] for target in b], [4] * 20, lr=0.05)
        for _ in range(rounds):
            federation.round(sorted(torch.randperm(20, generator=rng)[:5].tolist()))
        ends.append(abs(federation.weight - optimum))
    assert ends[0] < 1e-6
    assert ends[1] > 1e-2


def test_control_variates_cover_weights_and_no_buffers(tmp_path: Path) -> None:
    """Kills: control variates of running statistics (O-S7)."""
    run = drive(tmp_path, experiment(algorithm={"name": "scaffold"}, rounds=1, **BATCHNORM))
    states = [run.driver.lineage.states.store.read([client])[0] for client in range(8)]
    assert {tensor.shape for state in states if state for tensor in state.values()} == {(run.driver.layout.size,)}
    assert run.server["control"].shape == (run.driver.layout.size,)
    assert run.driver.layout.buffers > 0


# --- mutants ------------------------------------------------------------------------------------------


class CohortForAll(Scaffold):
    """E-06 and NIID-Bench before August 2022: divided by the selected clients."""

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return super().aggregate(
            server, pooled, replace(context, num_clients=pooled.count, num_examples=int(pooled.weight))
        )


class RandomServer(Scaffold):
    """NIID-Bench: c is a random network's weights."""

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        server = super().init_server(parent, context)
        return {**server, "control": torch.full_like(server["control"], 0.3)}


class RandomClients(Scaffold):
    """NIID-Bench: so is each c_k."""

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        drawn = torch.randn(received["weights"].shape, generator=client.rng("control"), dtype=torch.float64)
        return {"control": drawn}


class Counted(Scaffold):
    """Something else than the accumulated weight."""

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return super().upload(replace(run, accumulation=self.count(run)), received, state)

    def count(self, run: LocalRun) -> Any:
        return run.steps


class Samples(Counted):
    """Plato issue 382."""

    def count(self, run: LocalRun) -> Any:
        return run.num_examples


class Epochs(Counted):
    """FL4Health PR 64."""

    def count(self, run: LocalRun) -> Any:
        return run.local.epochs


class Unscaled(Scaffold):
    """FedDC's repository: trains with c / s_k, updates c_k with c."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + (received["control"] / relative_size(client) - state["control"])


class ByPlace(Federation):
    """CBFL's code: c_k belongs to a place in the cohort, through the process that trains it."""

    def round(self, cohort: list[int] | None = None) -> Any:
        own, ids = self.states, list(range(len(self.targets))) if cohort is None else cohort
        places = getattr(self, "places", [None] * len(own))
        self.states = list(own)
        for place, client in enumerate(ids):
            self.states[client] = places[place]
        trained = super().round(cohort)
        self.places = [trained[place].new_state if place < len(ids) else places[place] for place in range(len(own))]
        return trained


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("mutant", [CohortForAll, RandomServer, RandomClients])
def test_a_server_control_that_is_not_the_mean_is_killed(mutant: Any, weighting: Any) -> None:
    with pytest.raises(AssertionError):
        check_server_control_is_the_mean_of_all(mutant(weighting=weighting))


@pytest.mark.usefixtures("pencil")
def test_state_by_place_in_the_cohort_is_killed() -> None:
    with pytest.raises(AssertionError):
        check_server_control_is_the_mean_of_all(Scaffold(), ByPlace)


@pytest.mark.usefixtures("pencil")
@pytest.mark.parametrize("mutant", [RandomServer, RandomClients])
def test_a_random_start_is_killed(mutant: Any) -> None:
    with pytest.raises(AssertionError):
        check_first_round_is_fedavg(mutant())


@pytest.mark.usefixtures("slopes")
@pytest.mark.parametrize(
    ("mutant", "local"), [(Counted, {"momentum": 0.9}), (Samples, {}), (Epochs, {}), (Unscaled, {})]
)
def test_wrong_control_variates_are_killed(mutant: Any, local: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_control_of_a_linear_loss(mutant(), **local)


@pytest.mark.slow
@pytest.mark.usefixtures("pencil")
def test_bare_steps_under_momentum_diverge() -> None:
    """What the mutant costs: control variates ten times too large feed on themselves (spec 4.2)."""
    sizes = []
    for algorithm in (Scaffold(), Counted()):
        federation = Federation(algorithm, [[1.0], [4.0], [-3.0]], [10] * 3, lr=0.01, local={"momentum": 0.9})
        for _ in range(60):
            federation.round()
        sizes.append(float(controls(federation).abs().max()))
    assert sizes[0] < 10
    assert sizes[1] > 1e3
