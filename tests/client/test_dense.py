"""What is written out for several clients at once, against torch: networks of linear layers, losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from engine.algorithm import seeds
from engine.client.steps.flat_net import FlatNet
from engine.client.vmap.block_rows import alike, padded
from engine.client.vmap.dense import Dense, Product
from engine.client.vmap.vmap_rules import StackedRules
from engine.models import MLP, MODELS, Logistic, Model, ModelSpec, build_model
from engine.models.heads import NormalisedLinear
from tests.support.tiny import CLASSES

CLIENTS, ROWS, SHAPE = 3, 5, (2, 4, 4)


def stacked(net: FlatNet) -> list[Tensor]:
    """Of each parameter one for each client, [K, ...]."""
    rng = seeds.generator(0, "clients")
    return [torch.randn(CLIENTS, *p.shape, generator=rng, dtype=p.dtype) / 4 for p in net.parameters]


def by_autograd(net: FlatNet, parameters: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Losses [K], and the gradient of each parameter [K, ...], client by client."""
    losses, grads = [], []
    for client in range(CLIENTS):
        leaves = [tensor[client].clone().requires_grad_() for tensor in parameters]
        named = dict(zip(net.names, leaves, strict=True))
        loss = F.cross_entropy(functional_call(net.model, named, (x[client],)), y[client])
        losses.append(loss.detach())
        grads.append(torch.autograd.grad(loss, leaves))
    return torch.stack(losses), [torch.stack(own) for own in zip(*grads, strict=True)]


def with_body(*layers: nn.Module, head: nn.Module | None = None) -> Model:
    return Model(nn.Sequential(*layers), head or nn.Linear(6, CLASSES))  # type: ignore[arg-type]


NETWORKS: dict[str, Model | ModelSpec] = {
    "logistic": Logistic(),
    "one hidden": MLP(hidden=(6,)),
    "three hidden": MLP(hidden=(6, 3, 9)),
    "projection": MLP(hidden=(6,), projection=True),
    "no relu": with_body(nn.Flatten(), nn.Linear(32, 7), nn.Linear(7, 6)),
    "relu after the second": with_body(nn.Flatten(), nn.Linear(32, 7), nn.Linear(7, 6), nn.ReLU()),
}


def network(name: str) -> FlatNet:
    spec = NETWORKS[name]
    model = spec if isinstance(spec, Model) else build_model(spec, SHAPE, CLASSES, seeds.generator(0, "weights"))
    return FlatNet(model, torch.device("cpu"), torch.float64, SHAPE)


@pytest.mark.parametrize("part", ["all", "body", "head"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_autograds(name: str, part: str) -> None:
    """Kills: a sum over rows for their mean, a ReLU's mask of another layer or of its input's sign at 0, a product the
    wrong way round; gradients of what is not trained; another client's weights on the way down."""
    net = network(name)
    dense = Dense.of(net.model)
    assert dense is not None
    rng = seeds.generator(0, "rows")
    x = torch.randn(CLIENTS, ROWS, *SHAPE, generator=rng, dtype=torch.float64)
    y = torch.randint(CLASSES, (CLIENTS, ROWS), generator=rng)
    parameters = stacked(net)
    before = [tensor.clone() for tensor in (*parameters, x)]
    inside = {id(parameter) for parameter in net.slices[part][1]}
    trained = [id(parameter) in inside for parameter in net.parameters]
    grads, losses = dense.gradients(parameters, trained, x, y, with_losses=True)
    wanted_losses, wanted = by_autograd(net, parameters, x, y)
    assert losses is not None
    torch.testing.assert_close(losses, wanted_losses, rtol=0, atol=1e-12)
    torch.testing.assert_close(dense.losses(parameters, x, y), wanted_losses, rtol=0, atol=1e-12)
    for is_trained, grad, reference in zip(trained, grads, wanted, strict=True):
        assert (grad is not None) == is_trained
        if grad is not None:
            grad = grad.written_out() if isinstance(grad, Product) else grad
            torch.testing.assert_close(grad, reference, rtol=0, atol=1e-12)
    assert all(torch.equal(one, other) for one, other in zip((*parameters, x), before, strict=True))
    assert dense.gradients(parameters, trained, x, y, with_losses=False)[1] is None


def test_padded_rows_and_absent_classes_have_no_part() -> None:
    """Kills: a mean over padded rows too, a padded row's gradient; classes of another client, or of none, left out."""
    net = network("one hidden")
    dense, rng = Dense.head_of(net.model), seeds.generator(0, "features")
    assert dense is not None
    parameters = stacked(net)[-2:]
    features = [torch.randn(rows, 6, generator=rng, dtype=torch.float64) for rows in (5, 4, 4)]
    absent = torch.zeros(CLIENTS, CLASSES, dtype=torch.bool)
    absent[1, 0] = absent[2, 1:3] = True
    labels = [torch.full((len(z),), CLASSES - 1) for z in features]
    rows = padded(features, labels).rows
    grads, _ = dense.gradients(parameters, [True] * 2, rows["x"], rows["y"], False, absent, rows["weights"])
    for client, (z, y) in enumerate(zip(features, labels, strict=True)):
        leaves = [tensor[client].clone().requires_grad_() for tensor in parameters]
        loss = F.cross_entropy(F.linear(z, *leaves).masked_fill(absent[client], -torch.inf), y)
        told = dense.losses([leaf.detach()[None] for leaf in leaves], z[None], y[None], absent[client, None])
        torch.testing.assert_close(told, loss.detach()[None], rtol=0, atol=1e-12)
        for grad, wanted in zip(grads, torch.autograd.grad(loss, leaves), strict=True):
            grad = grad.written_out() if isinstance(grad, Product) else grad
            assert grad is not None
            torch.testing.assert_close(grad[client], wanted, rtol=0, atol=1e-12)


def test_clients_of_similar_sizes_go_together() -> None:
    """Kills: a client left out or twice in; padding that outgrows the rows; every client by itself."""
    assert list(alike([600, 600, 590, 449, 448, 10, 1])) == [(0, 3), (3, 5), (5, 6), (6, 7)]
    assert list(alike([4, 3, 3])) == [(0, 3)]
    assert list(alike([])) == []


def test_weights_are_kept_as_factors() -> None:
    """Kills: gradients of weights that are written out after all."""
    net = network("three hidden")
    dense = Dense.of(net.model)
    assert dense is not None
    x, y = torch.zeros(CLIENTS, ROWS, *SHAPE, dtype=torch.float64), torch.zeros(CLIENTS, ROWS, dtype=torch.int64)
    grads, _ = dense.gradients(stacked(net), [True] * len(net.parameters), x, y, with_losses=False)
    assert [isinstance(grad, Product) for grad in grads] == [True, False] * 4


class Loud(nn.Linear):
    """A layer of somebody's own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


REFUSED: dict[str, Model] = {
    "a head without bias": with_body(nn.Flatten(), nn.Linear(32, 6), head=nn.Linear(6, CLASSES, bias=False)),
    "a normalised head": with_body(nn.Flatten(), nn.Linear(32, 6), head=NormalisedLinear(6, CLASSES)),
    "a head of one's own": with_body(nn.Flatten(), nn.Linear(32, 6), head=Loud(6, CLASSES)),
    "a layer of one's own": with_body(nn.Flatten(), Loud(32, 6)),
    "a layer without bias": with_body(nn.Flatten(), nn.Linear(32, 6, bias=False)),
    "batch normalisation": with_body(nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6)),
    "dropout": with_body(nn.Flatten(), nn.Linear(32, 6), nn.Dropout()),
    "another activation": with_body(nn.Flatten(), nn.Linear(32, 6), nn.LeakyReLU()),
    "a relu before any layer": with_body(nn.Flatten(), nn.ReLU(), nn.Linear(32, 6)),
    "two relus": with_body(nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.ReLU()),
    "no flatten": with_body(nn.Linear(32, 6)),
    "an empty body": with_body(),
    "layers within layers": with_body(nn.Flatten(), nn.Sequential(nn.Linear(32, 6))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_networks_are_left_to_autograd(name: str) -> None:
    """Kills: a layer that is left out, or taken for the one that it is derived from."""
    assert Dense.of(REFUSED[name]) is None
    assert (Dense.head_of(REFUSED[name]) is None) == ("head" in name)


def test_a_body_of_ones_own_is_left_to_autograd() -> None:
    """Kills: the children of a module that does more than run them one after the other."""

    class Twice(nn.Sequential):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    assert Dense.of(Model(Twice(nn.Flatten(), nn.Linear(32, 6)), nn.Linear(6, CLASSES))) is None


@pytest.mark.parametrize("name", list(MODELS))
def test_of_the_models_those_of_linear_layers_are_known(name: str) -> None:
    """Kills: convolutions or embeddings that are taken apart; a model that says of itself what does not hold."""
    fields: dict[str, Any] = {"name": name}
    spec = MODELS.build(fields)
    with torch.device("meta"):
        model = spec.build((3, 32, 32), 10)
    others = any(isinstance(module, nn.Conv2d | nn.Embedding) for module in model.modules())
    assert (Dense.of(model) is None) == others
    assert not (spec.linear_layers_only and others)


# --- losses mapped over clients -------------------------------------------------------------------------

LOSSES = {
    "cross entropy": lambda z, y, p: F.cross_entropy(z, y),
    "of class shares": lambda z, y, p: F.cross_entropy(z, p),
    "smoothed": lambda z, y, p: F.cross_entropy(z, y, label_smoothing=0.1),
    "summed": lambda z, y, p: F.cross_entropy(z, y, reduction="sum"),
    "divergence": lambda z, y, p: F.kl_div(z.log_softmax(1), p, reduction="batchmean"),
    "divergence of logarithms": lambda z, y, p: F.kl_div(
        z.log_softmax(1), p.clamp(min=1e-3).log(), reduction="batchmean", log_target=True
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_torchs(name: str) -> None:
    """Kills: a rule for options that it does not know, a mean over all entries, a logarithm of a share of 0."""
    rng = seeds.generator(0, "rows")
    logits = torch.randn(CLIENTS, ROWS, CLASSES, generator=rng, dtype=torch.float64).requires_grad_()
    labels = torch.randint(CLASSES, (CLIENTS, ROWS), generator=rng)
    shares = torch.randn(CLIENTS, ROWS, CLASSES, generator=rng, dtype=torch.float64).relu()  # some are 0
    loss = LOSSES[name]
    wanted = torch.stack([loss(*own) for own in zip(logits, labels, shares, strict=True)])
    with StackedRules():
        found = vmap(loss)(logits, labels, shares)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    grads = [torch.autograd.grad(losses.sum(), logits)[0] for losses in (found, wanted)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)
