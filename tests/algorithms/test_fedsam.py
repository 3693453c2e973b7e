"""FedSAM: a step by hand, many beside plain PyTorch, and the neighbourhood's radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.fedsam import FedSam
from engine.algorithm import Client, Tensors, seeds
from engine.client.steps.client_round import ClientTask
from engine.data.samples.batches import orders
from engine.experiment import Local
from engine.models import MLP, ModelSpec, ResNet8
from tests.support.bench import Bench
from tests.support.pencil import Federation, quadratic


def test_a_step_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a step down before the second gradient; weights that stay where the second gradient was taken."""
    monkeypatch.setattr(FedAvg, "loss", quadratic(2.0))  # f = (y - 3)^2, away from 3 by 2.3
    federation = Federation(FedSam(rho=0.5), [[3.0]], [1], lr=0.1, start=0.7)
    assert federation.train(0).upload["weights"][0].item() == pytest.approx(0.7 - 0.1 * 2 * (0.7 - 0.5 - 3), abs=1e-12)


def plain(spec: ModelSpec, bench: Bench, rho: float, local: Local) -> tuple[Tensor, Tensor]:
    """A client's training by SAM in PyTorch's own words; its weights and buffers."""
    net = Bench(spec, sizes=(11,)).net
    net.load(bench.start["weights"], bench.start["buffers"])
    net.model.train()
    optimizer = torch.optim.SGD(net.parameters, lr=bench.context.lr, momentum=local.momentum)
    passes = orders(11, 4, "keep", seeds.generator(0, "batches", 1, 0))
    for _, batches in zip(range(2), passes, strict=False):
        for positions in batches:
            x, y = bench.trainer.rows.batch(bench.parts[0][positions])
            optimizer.zero_grad()
            F.cross_entropy(net.model(x), y).backward()
            grads = [p.grad.clone() for p in net.parameters if p.grad is not None]
            norm = torch.sqrt(torch.stack([grad.square().sum() for grad in grads]).sum())
            with torch.no_grad():
                for parameter, grad in zip(net.parameters, grads, strict=True):
                    parameter.add_(rho * grad / (norm + 1e-12))
            optimizer.zero_grad()
            F.cross_entropy(net.model(x), y).backward()
            with torch.no_grad():
                for parameter, grad in zip(net.parameters, grads, strict=True):
                    parameter.sub_(rho * grad / (norm + 1e-12))
            optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters]), net.buffers


@pytest.mark.parametrize("spec", [MLP(hidden=(5,)), ResNet8()], ids=["mlp", "batchnorm"])
def test_many_steps_are_plain_pytorchs(spec: ModelSpec) -> None:
    """Kills: a norm of each layer; running statistics of one pass alone; momentum of the first gradients."""
    bench, local = Bench(spec, sizes=(11,)), Local(epochs=2, batch_size=4, momentum=0.9)
    algorithm = FedSam(rho=0.3)
    task = ClientTask(algorithm, local, 0, bench.parts[0], bench.context, bench.start, {}, newcomer=True)
    result = bench.trainer.train(task)
    weights, buffers = plain(spec, bench, 0.3, local)
    torch.testing.assert_close(result.upload["weights"], weights, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(result.buffers, buffers, rtol=1e-9, atol=1e-10)


def test_the_second_gradient_is_taken_rho_away() -> None:
    """Kills: another radius; a direction down; the norm of a slice where the head alone is trained."""
    seen: list[Tensor] = []

    @dataclass(frozen=True)
    class Spy(FedSam):
        def perturbation(
            self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client
        ) -> Tensor:
            away: Any = super().perturbation(grad, weights, received, state, client)
            seen.append(away)
            assert torch.cosine_similarity(away, grad, dim=0) == pytest.approx(1)
            return away

    bench = Bench(MLP(hidden=(5,)))
    task = ClientTask(Spy(rho=0.2), Local(), 0, bench.parts[0], bench.context, bench.start, {}, newcomer=True)
    bench.trainer.train(task)
    assert seen
    assert [away.norm().item() for away in seen] == pytest.approx([0.2] * len(seen))
