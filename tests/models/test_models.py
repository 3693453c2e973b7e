"""Models: sizes, the body-head split, initialisation, batched and sliced weights.

Each docstring ends with the mutation that the test kills.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from engine.algorithm.seeds import generator
from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.models import (
    CNN,
    MLP,
    MODELS,
    Logistic,
    Model,
    ModelSpec,
    MoonCNN,
    ResNet20,
    ResNet56,
    build_model,
    initialise,
    narrowed,
)
from engine.models.layers import GroupNorm
from engine.models.narrow import kept
from engine.models.resnet import ResidualUnit
from tests.support.networks import VARIANTS

MNIST = (1, 28, 28)
CIFAR = (3, 32, 32)
SMALL = (3, 16, 16)

variants = pytest.mark.parametrize("spec", VARIANTS.values(), ids=VARIANTS.keys())
hidden_variants = pytest.mark.parametrize(
    "spec", [spec for spec in VARIANTS.values() if not isinstance(spec, Logistic)]
)


def build(spec: ModelSpec, shape: tuple[int, int, int] = SMALL, classes: int = 10, seed: int = 0) -> Model:
    return build_model(spec, shape, classes, generator(seed, "init"))


def images(count: int, shape: tuple[int, int, int] = SMALL, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, *shape, dtype=dtype, generator=generator(1, "images"))


def state(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers, copied."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "count"),
    [
        (Logistic(), MNIST, 10, 7_850),
        (MLP(), MNIST, 10, 199_210),
        (CNN(), MNIST, 10, 1_663_370),
        (CNN(norm="batch"), MNIST, 10, 1_663_370 + 32 + 64),  # per channel two norm weights for one bias
        (MoonCNN(), CIFAR, 10, 92_626),
        (MoonCNN(projection=False), CIFAR, 10, 456 + 2_416 + 48_120 + 10_164 + 850),
        (ResNet20(), CIFAR, 10, 272_474),
        (ResNet20(shortcut="pad"), CIFAR, 10, 269_722),
        (ResNet20(norm="group"), CIFAR, 10, 272_474),
        (ResNet20(), CIFAR, 100, 278_324),
        (ResNet56(shortcut="pad"), CIFAR, 10, 853_018),  # He et al. 2016: 0.85 M
    ],
)
def test_parameter_count(spec: ModelSpec, shape: tuple[int, int, int], classes: int, count: int) -> None:
    """Numbers of the issue and of the layers' arithmetic.

    Kills: a bias, a width, a padding or a unit changed.
    """
    model = build(spec, shape, classes)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert model(images(2, shape, torch.float32)).shape == (2, classes)


def test_resnet20_buffers() -> None:
    """784 normalised channels, a mean and a variance each. Kills: a shortcut without its BatchNorm."""
    model = build(ResNet20(), CIFAR)
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 21
    assert sum(buffer.numel() for buffer in model.buffers() if buffer.is_floating_point()) == 1_568
    assert not list(build(ResNet20(norm="group"), CIFAR).buffers())


@variants
def test_body_and_head(spec: ModelSpec) -> None:
    """forward is head(features), the head's two tensors come last.

    Kills: head registered first; a ReLU in between.
    """
    model = build(spec).eval()
    x = images(3, dtype=torch.float32)
    untouched = x.clone()
    features = model.features(x)
    assert features.shape == (3, model.head.in_features)
    assert torch.equal(model(x), model.head(features))
    assert torch.equal(x, untouched)
    names = [name for name, _ in model.named_parameters()]
    assert names[-2:] == ["head.weight", "head.bias"]
    assert all(name.startswith("body.") for name in names[:-2])
    assert all(name.startswith("body.") for name, _ in model.named_buffers())


@pytest.mark.parametrize(
    ("spec", "count"),
    [(Logistic(), 0), (MLP(), 2), (CNN(), 2), (MoonCNN(), 2), (ResNet20(), 9), (ResNet56(), 27)],
)
def test_taps(spec: ModelSpec, count: int) -> None:
    """Each tap sees one activation after ReLU, in order of depth.

    Kills: a tap before the unit's last ReLU; one left out.
    """
    model = build(spec, (3, 16, 16))
    seen: list[str] = []
    handles = []
    for name in model.tap_names:

        def hook(_module: nn.Module, _args: object, output: Tensor, name: str = name) -> None:
            seen.append(name)
            assert output.min() >= 0 and output.max() > 0

        handles.append(model.get_submodule(name).register_forward_hook(hook))
    model(images(4, dtype=torch.float32))
    assert seen == list(model.tap_names)
    assert len(set(seen)) == count
    with pytest.raises(AttributeError):
        Model(nn.Flatten(), nn.Linear(2, 2), ("body.missing",))


def test_initial_weights_follow_the_key_alone() -> None:
    """Equal keys equal bits, other keys other bits.

    Kills: a draw from the global generator, or a reseeding of it.
    """
    for spec in VARIANTS.values():
        torch.manual_seed(3)
        before = torch.get_rng_state()
        first = state(build(spec))
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(4)
        second, third = state(build(spec)), state(build(spec, seed=1))
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert not torch.equal(first["head.weight"], third["head.weight"])
        assert not torch.equal(first["head.bias"], third["head.bias"])


@variants
def test_initial_weights_are_torch_defaults(spec: ModelSpec) -> None:
    """The same bits as torch's own layers seeded alike.

    Kills: another bound, fan-out for fan-in, another order.
    """
    torch.manual_seed(5)
    oracle = state(spec.build(SMALL, 10))
    model = spec.build(SMALL, 10)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.fill_(math.nan if tensor.is_floating_point() else 7)  # what to_empty may leave behind
    initialise(model, torch.Generator().manual_seed(5))
    for name, tensor in state(model).items():
        torch.testing.assert_close(tensor, oracle[name], rtol=1e-6, atol=0)


@pytest.mark.parametrize("rule", ["kaiming_uniform", "kaiming_normal"])
def test_convolutions_as_in_the_authors_networks(rule: Any) -> None:
    """As torch.nn.init draws them: CBFL's kaiming_uniform_(a=0), GradAug's kaiming_normal_(fan_out, relu).

    Kills: torch's default by another name, fans mixed up, other layers drawn too; a field that no digest knows, and
    one that changes digests, or bits, where it is not used.
    """
    conv, wanted = nn.Conv2d(6, 8, 3, groups=2), torch.empty(8, 3, 3, 3)
    initialise(nn.Sequential(conv), torch.Generator().manual_seed(5), rule)
    if rule == "kaiming_uniform":
        nn.init.kaiming_uniform_(wanted, generator=torch.Generator().manual_seed(5))
    else:
        kind: Any = "relu"
        nn.init.kaiming_normal_(wanted, 0, "fan_out", kind, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(conv.weight.detach(), wanted)
    assert conv.bias is not None and not conv.bias.any()
    plain, drawn = (build(MODELS.build({"name": "resnet8", "conv_init": how}), CIFAR) for how in ("torch", rule))
    stems = [dict(model.named_parameters())["body.stem.weight"] for model in (plain, drawn)]
    assert not torch.equal(*stems)
    assert float(drawn.head.weight.detach().abs().max()) <= 1 / 8  # of 64 features
    one, same, other = (
        Experiment.from_mapping({"model": {"name": "resnet8", **fields}})
        for fields in ({}, {"conv_init": "torch"}, {"conv_init": rule})
    )
    assert one.digest == same.digest != other.digest
    assert "conv_init" not in one.identity()["model"]


def test_a_model_of_its_own_weights_has_no_rule_for_them() -> None:
    """Kills: a rule that is asked for and silently not followed."""

    @dataclass(frozen=True)
    class Kept(Logistic):
        keeps_weights: ClassVar[bool] = True

    with pytest.raises(ConfigError, match="conv_init=kaiming_normal: is not for a model that draws its own weights"):
        Kept(conv_init="kaiming_normal")


def test_initialise_refuses_what_it_does_not_know() -> None:
    """Kills: tensors that keep what was in memory, of an unknown module or of a subclass's own."""

    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.scale = nn.Parameter(torch.ones(1))

    for module, name in ((nn.PReLU(), "weight"), (Scaled(), "scale")):
        with pytest.raises(ConfigError, match=rf"^model={type(module).__name__}: has {name} in 0, .*; write keep"):
            initialise(nn.Sequential(module), torch.Generator())


def test_moon_projection() -> None:
    """z = fc(relu(fc(h))), and the head reads z. Kills: a ReLU after the projection, or none inside it."""
    model = build(MoonCNN(), CIFAR)
    body = model.body
    assert isinstance(body, nn.Sequential)
    x = images(4, CIFAR, torch.float32)
    h = body[:6](x)
    assert h.shape == (4, 84) and h.min() >= 0
    own = dict(body.named_parameters())
    inner = F.relu(F.linear(h, own["project1.weight"], own["project1.bias"]))
    z = F.linear(inner, own["project2.weight"], own["project2.bias"])
    torch.testing.assert_close(model.features(x), z)
    assert z.shape == (4, 256) and z.min() < 0


def test_pad_shortcut() -> None:
    """Channel i goes to channel i, new channels are zero.

    Kills: padding on both sides, another pixel of the four.
    """
    unit = ResidualUnit(4, 8, 2, "pad", "batch", 1)
    nn.init.zeros_(unit.conv2.weight)
    x = images(2, (4, 5, 5), torch.float32)
    out = unit(x)
    assert out.shape == (2, 8, 3, 3)
    assert torch.equal(out[:, :4], F.relu(x[:, :, ::2, ::2]))
    assert not out[:, 4:].any()


def test_group_norm() -> None:
    """torch's GroupNorm for all channels, fewer groups where they do not divide.

    Kills: always one group; a crash at 13.
    """
    norm = GroupNorm(2, 32)
    x = images(3, (32, 4, 4), torch.float32)
    torch.testing.assert_close(norm(x), F.group_norm(x, 2))
    for channels, groups in ((26, 2), (13, 1)):
        part = {"weight": norm.weight[:channels], "bias": norm.bias[:channels]}
        out = functional_call(norm, part, x[:, :channels])
        torch.testing.assert_close(out, F.group_norm(x[:, :channels], groups))
    unit = build(ResNet20(norm="group", group_size=4)).get_submodule("body.units.8.norm2")
    assert isinstance(unit, GroupNorm) and unit.num_groups == 16


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 7), (1, 1, 1)])
def test_resnet_takes_any_image(shape: tuple[int, int, int]) -> None:
    """Kills: a fixed 8x8 average pool."""
    for shortcut in ("conv", "pad"):
        model = build(ResNet20(shortcut=shortcut), shape)
        assert model(images(4, shape, torch.float32)).shape == (4, 10)


@pytest.mark.parametrize(("spec", "least"), [(CNN(), 4), (MoonCNN(), 16)])
def test_images_too_small(spec: ModelSpec, least: int) -> None:
    """The smallest image works, one pixel less is one sentence.

    Kills: a bound that is off by one, a torch error.
    """
    x = images(2, (1, least, least), torch.float32)
    assert build(spec, (1, least, least))(x).shape == (2, 10)
    with pytest.raises(ConfigError, match=f"needs images of at least {least}x{least} pixels"):
        build(spec, (1, 40, least - 1))


@pytest.mark.slow
@variants
def test_stacked_weights_equal_a_loop(spec: ModelSpec) -> None:
    """Logits, gradients and new running statistics of three clients.

    Kills: control flow on values, clients mixed up.
    """
    clients = [build(spec, seed=seed).double() for seed in range(3)]
    x, labels = images(3 * 4).unflatten(0, (3, 4)), torch.arange(12).reshape(3, 4) % 10

    def loss(
        parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = functional_call(clients[0], (parameters, buffers), (x,))
        return F.cross_entropy(logits, labels), logits

    parameters, buffers = stack_module_state([*clients])
    gradients, logits = vmap(grad(loss, has_aux=True))(parameters, buffers, x, labels)
    for index, client in enumerate(clients):
        expected = client(x[index])
        torch.testing.assert_close(logits[index], expected)
        F.cross_entropy(expected, labels[index]).backward()
        for name, parameter in client.named_parameters():
            torch.testing.assert_close(gradients[name][index], parameter.grad)
        for name, buffer in client.named_buffers():
            torch.testing.assert_close(buffers[name][index], buffer)


def test_kept_channels() -> None:
    """Round half up, at least one. Kills: floor, Python's half-to-even round, zero channels."""
    assert [kept(channels, 0.8) for channels in (16, 32, 64)] == [13, 26, 51]
    assert [kept(10, 0.25), kept(10, 0.35), kept(10, 0.01), kept(10, 1.0)] == [3, 4, 1, 10]


STANDALONE = {
    "mlp": (MLP(hidden=(20, 10)), lambda: MLP(hidden=(16, 8)).build(SMALL, 10)),
    "cnn": (CNN(), lambda: CNN().with_widths(SMALL, 10, (26, 51, 410))),
    "cnn batch": (CNN(norm="batch"), lambda: CNN(norm="batch").with_widths(SMALL, 10, (26, 51, 410))),
    "resnet20": (ResNet20(), lambda: ResNet20().with_widths(SMALL, 10, (13, 26, 51))),
    "resnet20 pad": (
        ResNet20(shortcut="pad"),
        lambda: ResNet20(shortcut="pad").with_widths(SMALL, 10, (13, 26, 51)),
    ),
}


@pytest.mark.parametrize(("spec", "build_small"), STANDALONE.values(), ids=STANDALONE.keys())
def test_sub_network_stands_alone(spec: ModelSpec, build_small: Callable[[], Model]) -> None:
    """In both modes a network built small with the sliced tensors.

    Kills: a sliced stem input or class, w (c H W) inputs.
    """
    model, small, x = build(spec).double(), build_small().double(), images(4)
    model(x)  # running statistics that are not their initial values
    small.load_state_dict(narrowed(model, 0.8))
    for training in (False, True):
        for network in (model, small):
            network.train(training)
        part = narrowed(model, 0.8)
        torch.testing.assert_close(functional_call(model, part, (x,)), small(x))
        for name, buffer in small.named_buffers():
            torch.testing.assert_close(part[name], buffer)


@hidden_variants
def test_sub_network_leaves_the_rest_alone(spec: ModelSpec) -> None:
    """Gradients only inside the slices, running statistics as before.

    Kills: buffers as views, parameters as copies.
    """
    model, x = build(spec).double(), images(4)
    before = state(model)
    part = narrowed(model, 0.6)
    functional_call(model, part, (x,)).square().sum().backward()
    assert all(torch.equal(before[name], tensor) for name, tensor in state(model).items())
    touched = 0
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        inside = torch.zeros_like(gradient)
        inside[tuple(slice(size) for size in part[name].shape)] = 1
        assert not (gradient * (1 - inside)).any()
        touched += bool((gradient * inside).any())
    assert touched >= len(before) / 4
    assert part["head.weight"].shape[0] == part["head.bias"].shape[0] == 10


@pytest.mark.parametrize("spec", [MLP(hidden=(20, 10)), CNN(), MoonCNN(), MoonCNN(projection=False)])
def test_sub_network_is_the_full_one_with_zeros(spec: ModelSpec) -> None:
    """Without norms, dropped channels are channels of zeros.

    Kills: planes cut in the wrong place, another prefix.
    """
    model, x = build(spec).double(), images(4)
    part = narrowed(model, 0.6)
    zeroed = {name: torch.zeros_like(parameter) for name, parameter in model.named_parameters()}
    for name, tensor in zeroed.items():
        tensor[tuple(slice(size) for size in part[name].shape)] = part[name].detach()
    torch.testing.assert_close(functional_call(model, part, (x,)), functional_call(model, zeroed, (x,)))


@hidden_variants
def test_full_width_is_the_model(spec: ModelSpec) -> None:
    """Also from given tensors instead of the model's own.

    Kills: the argument ignored, a channel lost at width 1.
    """
    model, x = build(spec), images(4, dtype=torch.float32)
    other = build(spec, seed=1)
    assert torch.equal(functional_call(model, narrowed(model, 1.0, state(other)), (x,)), other(x))


def test_sub_networks_of_stacked_weights() -> None:
    """One width for a block of clients.

    Kills: sizes read from the stacked tensors, a clone that is not batched.
    """
    model, x = build(ResNet20(shortcut="pad")).double(), images(2 * 4).unflatten(0, (2, 4))
    clients = [state(build(ResNet20(shortcut="pad"), seed=seed).double()) for seed in range(2)]
    stacked = {name: torch.stack([client[name] for client in clients]) for name in clients[0]}
    before = {name: tensor.clone() for name, tensor in stacked.items()}
    logits = vmap(lambda own, x: functional_call(model, narrowed(model, 0.8, own), (x,)))(stacked, x)
    for index, client in enumerate(clients):
        expected = functional_call(model, narrowed(model, 0.8, client), (x[index],))
        torch.testing.assert_close(logits[index], expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in stacked.items())


@pytest.mark.parametrize("width", [0.0, -0.5, 1.1, math.nan])
def test_width_out_of_range(width: float) -> None:
    """Kills: an empty network, a slice longer than its tensor."""
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        narrowed(build(MLP()), width)


def test_models_without_sub_networks() -> None:
    """Kills: a sub-network that silently is the full one, a torch error on shapes in mid-training."""
    with pytest.raises(ConfigError, match="without hidden layers"):
        narrowed(build(Logistic()), 0.5)
    for layer in (nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, groups=4)):
        body = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Flatten())
        with pytest.raises(ConfigError, match=r"layer body.1 \(\w+\) cannot run with fewer channels"):
            narrowed(Model(body, nn.Linear(4, 2)), 0.5)


def test_registry() -> None:
    """Every model by its name, there and back. Kills: a name that is missing or points to another class."""
    assert list(MODELS) == [
        *("logistic", "mlp", "cnn", "cnn3", "moon_cnn", "lenet"),
        *("resnet8", "resnet20", "resnet32", "resnet56", "resnet18", "resnet50", "mobilenetv2"),
        *("pflego_mlp", "pflego_cifar", "pflego_omniglot", "fedrep_cifar"),
        "dan",
    ]
    for name in MODELS:
        spec = MODELS.build({"name": name})
        assert MODELS.build(MODELS.dump(spec)) == spec
        assert hash(spec) == hash(MODELS.build({"name": name}))
    assert MODELS.build({"name": "mlp", "hidden": [50]}) == MLP(hidden=(50,))
    assert MODELS.build({"name": "resnet56", "shortcut": "pad"}) == ResNet56(shortcut="pad")


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "mlp", "hidden": []}, r"model\.hidden=\(\): must not be empty; use model\.name=logistic"),
        ({"name": "mlp", "hidden": [5, 0]}, r"model\.hidden\.1=0: must be at least 1"),
        ({"name": "cnn", "norm": "layer"}, r"model\.norm=layer: must be"),
        ({"name": "cnn", "group_size": 5}, r"model\.group_size=5: must be a divisor of 32"),
        ({"name": "resnet20", "norm": "none"}, r"model\.norm=none: must be"),
        ({"name": "resnet20", "group_size": 0}, r"model\.group_size=0: must be a divisor of 16"),
        ({"name": "resnet20", "shortcut": "identity"}, r"model\.shortcut=identity: must be"),
    ],
)
def test_bad_fields(values: dict[str, object], sentence: str) -> None:
    """Kills: a field accepted at construction that fails when the network is built, or when it trains."""
    with pytest.raises(ConfigError, match=sentence):
        MODELS.build(values)


def test_bad_fields_in_python() -> None:
    """The dataclasses check by themselves, without the registry. Kills: checks left to pydantic."""
    with pytest.raises(ConfigError, match="norm=layer: must be 'none', 'batch' or 'group'"):
        CNN(norm="layer")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="shortcut=b: must be 'conv' or 'pad'"):
        ResNet20(shortcut="b")  # pyright: ignore[reportArgumentType]
