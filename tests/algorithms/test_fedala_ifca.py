"""FedALA and IFCA, whose clients look at what they have received before they train."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from algorithms.fedala import FedAla
from algorithms.fedavg import FedAvg
from algorithms.ifca import Ifca
from engine.algorithm import Pooled
from engine.client.steps.client_round import ClientTask
from engine.experiment import Local
from engine.models import MLP, ResNet8
from tests.support.bench import Bench
from tests.support.pencil import Federation, quadratic

TARGETS, STEPS, RATE = [[1.0] * 5, [4.0] * 10], [3, 2], 0.1


def test_fedala_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alg. 1 with f_k = (y - x_k)^2 / 2. Kills: a mix that is not kept, or starts at 0; the gap's sign; a step that
    leaves the gap out or takes it once; weights of the mix outside of 0 and 1."""
    monkeypatch.setattr(FedAvg, "loss", quadratic())
    federation = Federation(FedAla(mix_lr=0.4), TARGETS, STEPS, lr=RATE, start=0.5)
    server, last, mix = 0.5, {0: 0.5, 1: 0.5}, {0: 1.0, 1: 1.0}
    mixes = []
    for cohort in ([0], [1], [0, 1], [0, 1], [1], [0]):
        ends = []
        for client in cohort:
            x, gap = TARGETS[client][0], server - last[client]
            y = last[client] + mix[client] * gap
            if gap:
                mix[client] = min(max(mix[client] - 0.4 * (y - x) * gap, 0.0), 1.0)
            y = last[client] + mix[client] * gap
            for _ in range(STEPS[client]):
                y -= RATE * (y - x)
            last[client] = y
            ends.append((len(TARGETS[client]), y))
            mixes.append(mix[client])
        server = sum(size * y for size, y in ends) / sum(size for size, _ in ends)
        for client, trained in zip(cohort, federation.round(cohort), strict=True):
            assert trained.new_state["last"][0].item() == pytest.approx(last[client], rel=1e-12)
            assert trained.new_state["mix"][0].item() == pytest.approx(mix[client], rel=1e-9)
        assert federation.weight == pytest.approx(server, rel=1e-12)
    assert 0 < min(mixes) < max(mixes) == 1


def test_fedala_takes_lower_layers_as_they_are() -> None:
    """Kills: a mix of the whole model; a body that keeps what the client had."""
    bench = Bench(MLP(hidden=(5,)))
    last = bench.start["weights"] + 1
    state = {"last": last, "mix": torch.full_like(last, 0.25)}
    received = {**bench.start, **FedAla().client_setup(bench.trainer.tools(None), bench.start, state, bench.client(0))}  # type: ignore[arg-type]
    start, layout = FedAla().start(received, state, bench.client(0)).weights, bench.net.layout
    assert torch.equal(layout.body_of(start), layout.body_of(bench.start["weights"]))
    torch.testing.assert_close(layout.head_of(start), layout.head_of(last - 0.25))


def choices(algorithm: Ifca, bench: Bench, models: torch.Tensor) -> list[Any]:
    """What each client comes to that has received ``models``."""
    sent = {"models": models, "buffers": bench.start["buffers"]}
    return [
        bench.trainer.train(ClientTask(algorithm, Local(), number, rows, bench.context, sent, {}, newcomer=True))
        for number, rows in enumerate(bench.parts)
    ]


@pytest.mark.parametrize("spec", [MLP(hidden=(5,)), ResNet8()], ids=["mlp", "batchnorm"])
def test_ifca_trains_the_model_that_fits(spec: Any) -> None:
    """Kills: the worst model; a loss in training mode; training that goes on from another model than was chosen."""
    bench = Bench(spec, sizes=(7, 9, 4))
    noise = torch.randn(3, len(bench.start["weights"]), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    models = bench.start["weights"] + 0.3 * noise
    for number, found in enumerate(choices(Ifca(clusters=3), bench, models)):
        batch = bench.batch(number)
        losses = [F.cross_entropy(bench.net.at(one, bench.start["buffers"])(batch.x), batch.y) for one in models]
        best = int(torch.stack(losses).argmin())
        assert int(found.upload["cluster"]) == best
        start = {"weights": models[best], "buffers": bench.start["buffers"]}
        task = ClientTask(FedAvg(), Local(), number, bench.parts[number], bench.context, start, {}, newcomer=True)
        assert torch.equal(bench.trainer.train(task).upload["weights"], found.upload["weights"])


def test_ifca_averages_by_model() -> None:
    """Kills: a mean without rows, or over all clients; a model that nobody took set to 0, or moved; a server's rate
    that is ignored."""
    stacked = {
        "weights": torch.tensor([[1.0], [4.0], [7.0]]),
        "cluster": torch.tensor([2.0, 0.0, 2.0]),
        "rows": torch.tensor([1.0, 5.0, 3.0]),
    }
    server = {"models": torch.tensor([[10.0], [20.0], [30.0]]), "weights": torch.tensor([50.0])}
    made = Ifca(clusters=3).aggregate(server, Pooled({}, 9.0, 3, stacked, (0, 1, 2)), None)  # type: ignore[arg-type]
    assert made["models"].flatten().tolist() == [4.0, 20.0, (1 + 3 * 7) / 4]
    half = Ifca(clusters=3, server_lr=0.5).aggregate(server, Pooled({}, 9.0, 3, stacked, (0, 1, 2)), None)  # type: ignore[arg-type]
    assert half["models"].flatten().tolist() == [7.0, 20.0, (30 + (1 + 3 * 7) / 4) / 2]
