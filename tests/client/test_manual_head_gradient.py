"""Steps of a head that are written out, against autograd: equal to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.fedavg import FedAvg
from algorithms.fedrep import FedRep
from engine.algorithm import Batch, Context, Net, Phase, Tensors, seeds
from engine.client.steps import training_loop
from engine.client.steps.manual_head_gradient import ManualHeadGradient
from engine.experiment import Local
from engine.models import MLP, Model
from tests.support.bench import Bench
from tests.support.tiny import CLASSES

HEADS = Phase(trainable="head", features="cached")


@dataclass(frozen=True)
class Spoken(FedRep):
    """FedRep with the same loss once more in words of its own, which the engine cannot know."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return super().loss(net, batch, received, state)


@dataclass(frozen=True)
class Live(FedRep):
    """FedRep that runs the body in every step of the head."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return tuple(replace(phase, features="live") for phase in super().phases(context))


LOCAL: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 5},
    "momentum": {"batch_size": 4, "momentum": 0.9, "weight_decay": 0.01},
    "chunks of all rows": {"batch_size": "full"},
}


@pytest.mark.parametrize("fields", LOCAL.values(), ids=list(LOCAL))
def test_a_round_has_autograds_bits(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: rows of another step, a chunk without its share, a first loss that is not kept, a softmax over classes
    that the client lacks; a chunk that is kept for another one; bits that are not autograd's."""
    monkeypatch.setattr(training_loop, "CHUNK", 5)  # 12 rows are three unequal chunks
    bench, local = Bench(MLP(hidden=(6,))), Local(epochs=2, lr=0.3, **fields)
    one, other, live = (bench.train(kind(head_epochs=7), 0, local=local) for kind in (FedRep, Spoken, Live))
    assert torch.equal(one.weights, other.weights)
    assert torch.equal(one.new_state["head"], other.new_state["head"])
    torch.testing.assert_close(one.weights, live.weights, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rows", "features", "classes"), [(1, 3, 2), (32, 64, 10), (300, 200, 10), (20, 512, 100)])
def test_a_gradient_has_autograds_bits(rows: int, features: int, classes: int, dtype: torch.dtype) -> None:
    """Kills: a product in another layout, a softmax by other operations, a mean that is taken elsewhere."""
    rng = seeds.generator(0, "head")
    z, weight, bias = (
        torch.randn(*s, generator=rng, dtype=dtype) for s in [(rows, features), (classes, features), (classes,)]
    )
    absent = torch.rand(classes, generator=rng) < 0.4
    absent[0] = False
    y = (~absent).nonzero().flatten()[torch.randint(int((~absent).sum()), (rows,), generator=rng)]
    for own in (absent, None):
        leaves = weight.clone().requires_grad_(), bias.clone().requires_grad_()
        logits = F.linear(z, *leaves)
        loss = F.cross_entropy(logits if own is None else logits.masked_fill(own, -torch.inf), y)
        found = ManualHeadGradient(weight, bias, own).gradients(z, y)
        for one, other in zip(found, torch.autograd.grad(loss, leaves), strict=True):
            assert torch.equal(one, other)


def test_what_is_not_a_plain_head_is_left_to_autograd() -> None:
    """Kills: a loss, a body, a layer or a precision of somebody's own that is passed over."""
    bench = Bench(MLP(hidden=(6,)))
    client, model, of = bench.client(0), bench.net.model, ManualHeadGradient.of
    assert of(model, FedAvg(), HEADS, client) is not None
    assert of(model, Spoken(), HEADS, client) is None
    assert of(model, FedAvg(), replace(HEADS, features="live"), client) is None
    assert of(model, FedAvg(), HEADS, client, lambda: torch.autocast("cpu", torch.bfloat16)) is None
    for head in (nn.Linear(6, CLASSES, bias=False), type("Own", (nn.Linear,), {})(6, CLASSES)):
        assert of(Model(nn.Flatten(), head), FedAvg(), HEADS, client) is None
