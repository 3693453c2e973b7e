"""The normalised classifier (calibration spec 1.3a, oracle 7) and MOON's projection, on every model."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from engine.algorithm.seeds import generator
from engine.base.errors import ConfigError
from engine.client.steps.flat_net import FlatNet
from engine.models import MLP, MODELS, Model, ModelSpec, ResNet8, build_model, narrowed
from engine.models.heads import NormalisedLinear
from tests.support.loops import each
from tests.support.tiny import experiment

SHAPE = (3, 16, 16)
every = pytest.mark.parametrize("name", [name for name in MODELS if name not in ("resnet50", "resnet56")])


def build(spec: ModelSpec, seed: int = 0) -> Model:
    return build_model(spec, SHAPE, 5, generator(seed, "init"))


def normal(*shape: int, purpose: str = "values") -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=generator(1, purpose))


def inputs(name: str) -> Tensor:
    """Three rows such as the model takes: pixels, or token ids below 100."""
    x = normal(3, *SHAPE)
    return (10 * x.abs()).floor() if MODELS[name].takes_tokens else x


# --- the normalised head ------------------------------------------------------------------------------


def assert_normalised(head: nn.Linear) -> None:
    """What a head of 7 features and 5 classes does, whatever its weights."""
    z, weight = normal(6, 7), normal(5, 7, purpose="weight")
    assert [name for name, _ in head.named_parameters()] == ["weight"]  # no bias
    head.double()
    head.weight.data.copy_(weight)
    logits = head(z)
    wanted = torch.stack([z @ row / row.dot(row).sqrt() for row in weight], dim=1)
    torch.testing.assert_close(logits, wanted, rtol=1e-12, atol=1e-12)
    assert (logits.abs() <= z.norm(dim=1, keepdim=True) * (1 + 1e-12)).all()
    torch.testing.assert_close(F.softmax(logits, dim=1).sum(1), torch.ones(6, dtype=torch.float64))
    # Invariant to the scale of each class's weights; so no gradient along them.
    head.weight.data.copy_(weight * torch.tensor([[1e-6], [0.3], [1.0], [7.0], [1e6]], dtype=torch.float64))
    torch.testing.assert_close(head(z), wanted, rtol=1e-12, atol=1e-12)
    head.weight.data.copy_(weight)
    (gradient,) = torch.autograd.grad(F.cross_entropy(head(z), torch.arange(6) % 5), [head.weight])
    torch.testing.assert_close((gradient * weight).sum(1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    # A class without weights has logit 0, and the others are as they were.
    head.weight.data[2] = 0
    torch.testing.assert_close(head(z)[:, 2], torch.zeros(6, dtype=torch.float64), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(head(z).sum(), [head.weight])
    assert torch.isfinite(gradient).all()


def test_normalised_head() -> None:
    """Kills: norms over classes, over the whole matrix or squared; a bias; a division by zero; normalised features."""
    assert_normalised(NormalisedLinear(7, 5))


class OverClasses(NormalisedLinear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, F.normalize(self.weight, dim=0))


class WholeMatrix(NormalisedLinear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight / self.weight.norm())


class Unguarded(NormalisedLinear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight / self.weight.norm(dim=1, keepdim=True))


class Cosine(NormalisedLinear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(F.normalize(input), F.normalize(self.weight))


class Detached(NormalisedLinear):
    """The norm as a constant: the value is right and the gradient is not."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight / self.weight.norm(dim=1, keepdim=True).detach().clamp_min(1e-12))


@pytest.mark.parametrize("bug", [OverClasses, WholeMatrix, Unguarded, Cosine, Detached, nn.Linear])
def test_the_oracle_sees_wrong_heads(bug: type[nn.Linear]) -> None:
    """Kills: an oracle that any head would pass."""
    with pytest.raises(AssertionError):
        assert_normalised(bug(7, 5))


@each("name", [name for name in MODELS if name not in ("resnet50", "resnet56")])
def test_every_model_takes_a_normalised_head(name: str) -> None:
    """Same body, C D weights in the head. Kills: a model that builds its own head; a bias that the layout counts."""
    spec = MODELS.build({"name": name, "head": "normalised"})
    assert spec == dataclasses.replace(MODELS.build({"name": name}), head="normalised")
    model = build(spec)
    assert type(model.head) is NormalisedLinear
    plain = build(MODELS.build({"name": name}))
    assert type(plain.head) is nn.Linear
    net, other = (FlatNet(m, torch.device("cpu"), torch.float32) for m in (model, plain))
    assert net.layout.head == 5 * net.layout.features
    assert other.layout.head == 5 * (net.layout.features + 1)
    assert torch.equal(net.layout.body_of(net.weights), other.layout.body_of(other.weights))
    x = inputs(name).float()
    net.train(False)
    z = net.features(x)
    assert torch.equal(net(x), net.head(z))
    assert torch.equal(net.at(net.weights, net.buffers)(x), net(x))
    assert (net(x).abs() <= z.norm(dim=1, keepdim=True) * (1 + 1e-5)).all()
    if name not in ("logistic", "dan"):  # which have no sub-networks
        part = narrowed(model, 0.5)
        assert part["head.weight"].shape[0] == 5
        assert functional_call(model, part, (x,)).shape == (3, 5)


def test_stacked_normalised_heads_equal_a_loop() -> None:
    """Kills: a norm over the stack."""
    clients = [build(ResNet8(head="normalised"), seed).double() for seed in range(2)]
    x, labels = normal(2, 4, *SHAPE), torch.arange(8).reshape(2, 4) % 5
    parameters, buffers = stack_module_state([*clients])

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(clients[0], (parameters, buffers), (x,)), labels)

    gradients = vmap(grad(loss))(parameters, buffers, x, labels)
    for index, client in enumerate(clients):
        F.cross_entropy(client(x[index]), labels[index]).backward()
        for name, parameter in client.named_parameters():
            torch.testing.assert_close(gradients[name][index], parameter.grad)


# --- the projection -----------------------------------------------------------------------------------


@each("name", [name for name in MODELS if name not in ("resnet50", "resnet56")])
def test_every_model_takes_a_projection(name: str) -> None:
    """256 features, z = fc(relu(fc(h))), the head on z. Kills: a projection of other widths, or in the head."""
    with_it = build(MODELS.build({"name": name, "projection": True})).double().eval()
    without = build(MODELS.build({"name": name, "projection": False})).double().eval()
    own = dict(with_it.body.named_parameters())
    for mine, wanted in zip(own.values(), without.body.parameters(), strict=False):
        assert torch.equal(mine, wanted)
    x = inputs(name)
    h = without.features(x)
    hidden = F.relu(F.linear(h, own["project1.weight"], own["project1.bias"]))
    z = F.linear(hidden, own["project2.weight"], own["project2.bias"])
    assert own["project1.weight"].shape == (h.shape[1], h.shape[1])
    assert z.shape == (3, 256)
    torch.testing.assert_close(with_it.features(x), z)
    assert with_it.tap_names == without.tap_names
    assert with_it.head.in_features == 256


def test_who_has_a_projection_and_a_plain_head() -> None:
    """What MOON and CCVR ask an experiment. Kills: a model without the fields, MOON's without its projection."""
    for name in MODELS:
        spec = experiment(model={"name": name}).model
        assert spec.projection == (name == "moon_cnn")
        assert spec.head == "linear"
    changed = experiment(model={"name": "moon_cnn", "head": "normalised", "projection": False})
    assert (changed.model.head, changed.model.projection) == ("normalised", False)
    assert changed.override(["model.name=resnet20"]).model.head == "normalised"
    assert experiment().digest != experiment(model={"head": "normalised"}).digest
    assert MLP((4, 3)).hidden == (4, 3)  # the fields that all models have are by keyword


@each("name", list(MODELS))
def test_bad_heads(name: str) -> None:
    """Kills: a model that does not check what all models have."""
    with pytest.raises(ConfigError, match=r"model\.head=cosine: must be 'linear' or 'normalised'"):
        MODELS.build({"name": name, "head": "cosine"})
    with pytest.raises(ConfigError, match="head=cosine: must be 'linear' or 'normalised'; for example head=linear"):
        MODELS[name](head="cosine")
