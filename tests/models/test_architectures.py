"""The networks of the later papers: sizes, blocks, taps, and sub-networks against plain torch layers.

What all networks share (body and head, initial weights, stacked weights) is in test_models.py.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from engine.algorithm.seeds import generator
from engine.base.errors import ConfigError
from engine.client.steps.flat_net import FlatNet
from engine.models import (
    CNN,
    CNN3,
    MLP,
    MODELS,
    FedRepCifar,
    LeNet,
    MobileNetV2,
    Model,
    ModelSpec,
    MoonCNN,
    PflegoCifar,
    PflegoMLP,
    PflegoOmniglot,
    ResNet8,
    ResNet18,
    ResNet32,
    ResNet50,
    build_model,
    narrowed,
)
from engine.models.heads import NormalisedLinear
from engine.models.layers import DepthwiseConv, OverlapBlock, PlaneLinear
from engine.models.mobilenet import InvertedResidual
from engine.models.narrow import cuts

SMALL = (3, 16, 16)
CIFAR = (3, 32, 32)
MNIST = (1, 28, 28)


def build(spec: ModelSpec, shape: tuple[int, int, int] = SMALL, classes: int = 10) -> Model:
    return build_model(spec, shape, classes, generator(0, "init"))


def images(count: int, shape: tuple[int, int, int] = SMALL, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, *shape, dtype=dtype, generator=generator(1, "images"))


@pytest.mark.parametrize(
    ("spec", "classes", "parameters", "buffers", "norms"),
    [
        (MobileNetV2(), 10, 2_296_922, 35_088, 57),  # spec 0.6
        (MobileNetV2(), 100, 2_412_212, 35_088, 57),
        (MobileNetV2(norm="group"), 10, 2_296_922, 0, 0),
        (ResNet18(), 10, 11_173_962, 9_600, 20),
        (ResNet50(), 10, 23_520_842, 53_120, 53),
        (LeNet(), 10, 4_864 + 102_464 + 614_784 + 73_920 + 1_930, 0, 0),
        (ResNet8(), 10, 78_042, 672, 9),
        (ResNet8(shortcut="pad"), 10, 78_042 - 512 - 2_048 - 64 - 128, 480, 7),
        (ResNet32(), 10, 466_906, 2_464, 33),
    ],
)
def test_sizes(spec: ModelSpec, classes: int, parameters: int, buffers: int, norms: int) -> None:
    """For images of 32 x 32 in colour. Kills: a bias beside a norm, a block too few, a shortcut without its norm."""
    with torch.device("meta"):
        model = spec.build(CIFAR, classes)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert sum(b.numel() for b in model.buffers() if b.is_floating_point()) == buffers
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == norms


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        *((PflegoMLP(), 1), (PflegoCifar(), 2), (PflegoOmniglot(), 4), (FedRepCifar(), 2)),
        *(
            (CNN3(), 3),
            (LeNet(), 2),
            (ResNet8(), 3),
            (ResNet32(), 15),
            (ResNet18(), 8),
            (ResNet50(), 16),
            (MobileNetV2(), 17),
        ),
    ],
)
def test_taps(spec: ModelSpec, count: int) -> None:
    """Each block once, in order of depth. Kills: a unit left out, a tap inside of a unit."""
    net = FlatNet(build(spec), torch.device("cpu"), torch.float32)
    x = images(2, dtype=torch.float32)
    logits, outputs = net.taps(x, net.tap_names)
    assert list(outputs) == list(net.tap_names)
    assert len(outputs) == count
    torch.testing.assert_close(logits, net(x), rtol=1e-4, atol=1e-4)
    if not isinstance(spec, MobileNetV2):  # whose blocks end without a ReLU
        assert all(output.min() >= 0 for output in outputs.values())


def test_mobilenet_shapes() -> None:
    """Strides 1, 1, 2, 2, 1, 2, 1 over the stages. Kills: the strides of the network for ImageNet."""
    with torch.device("meta"):
        model = MobileNetV2().build(CIFAR, 10)
    shapes: list[tuple[int, ...]] = []
    for name in model.tap_names:
        model.get_submodule(name).register_forward_hook(lambda _m, _a, output: shapes.append(tuple(output.shape[1:3])))
    model(torch.empty(2, *CIFAR, device="meta"))
    stages = ((16, 32, 1), (24, 32, 2), (32, 16, 3), (64, 8, 4), (96, 8, 3), (160, 4, 3), (320, 4, 1))
    assert shapes == [(channels, size) for channels, size, count in stages for _ in range(count)]


@pytest.mark.parametrize(("out", "stride"), [(8, 1), (16, 1), (8, 2), (16, 2)])
def test_inverted_residual(out: int, stride: int) -> None:
    """By hand. Kills: a ReLU after the last norm, a shortcut at stride 2, no 1x1 where channels change, ReLU6."""
    block = InvertedResidual(8, 48, out, stride, "batch", 1).double()
    own = dict(block.named_parameters())
    for name in ("norm1", "norm2"):
        own[f"{name}.weight"].data.fill_(9)  # far beyond the 6 of ReLU6
    x = images(4, (8, 7, 7))

    def norm(x: Tensor, name: str) -> Tensor:
        return F.batch_norm(x, None, None, own[f"{name}.weight"], own[f"{name}.bias"], training=True)

    hidden = F.relu(norm(F.conv2d(x, own["conv1.weight"]), "norm1"))
    hidden = F.relu(norm(F.conv2d(hidden, own["conv2.weight"], stride=stride, padding=1, groups=48), "norm2"))
    wanted = norm(F.conv2d(hidden, own["conv3.weight"]), "norm3")
    if stride == 1:
        wanted = wanted + (x if out == 8 else norm(F.conv2d(x, own["projection.0.weight"]), "projection.1"))
    torch.testing.assert_close(block(x), wanted)
    assert sum(1 for _ in block.projection.parameters()) == (3 if (out, stride) == (16, 1) else 0)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 7), (1, 1, 1)])
@pytest.mark.parametrize(
    "spec", [ResNet8(), ResNet18(), ResNet18(stem="large"), ResNet50(), MobileNetV2(), PflegoCifar()]
)
def test_any_image(spec: ModelSpec, shape: tuple[int, int, int]) -> None:
    """Kills: a pool of fixed size."""
    with torch.device("meta"):
        model = spec.build(shape, 10)
    assert model(torch.empty(4, *shape, device="meta")).shape == (4, 10)


@pytest.mark.parametrize(("name", "least"), [("cnn3", 8), ("lenet", 16), ("pflego_omniglot", 16), ("fedrep_cifar", 16)])
def test_small_images_are_refused(name: str, least: int) -> None:
    """Kills: a bound that is off by one, a torch error."""
    spec, shape = MODELS.build({"name": name}), (1, least, least)
    assert build(spec, shape)(images(2, shape, torch.float32)).shape == (2, 10)
    wanted = f"needs images of at least {least}x{least} pixels, these are 40x{least - 1}; for example"
    with pytest.raises(ConfigError, match=rf"model\.name={name}: {wanted}"):
        build(spec, (1, 40, least - 1))


# --- the personalised methods' networks (calibration spec 0.1) ----------------------------------------


@pytest.mark.parametrize(
    ("spec", "shape", "body", "features"),
    [
        (PflegoMLP(), MNIST, 157_000, 200),
        (PflegoCifar(), CIFAR, 1_754_496, 192),
        (PflegoOmniglot(), MNIST, 111_424, 64),
        (CNN3(), MNIST, 320 + 18_496 + 73_856, 128),
        (FedRepCifar(), CIFAR, 4_864 + 102_464 + 1600 * 120 + 120 + 120 * 64 + 64, 64),
    ],
)
def test_floats_of_the_body(spec: ModelSpec, shape: tuple[int, int, int], body: int, features: int) -> None:
    """What goes over the wire. Kills: a bias, a width or a padding changed."""
    with torch.device("meta"):
        model = spec.build(shape, 7)
    assert sum(p.numel() for p in model.body.parameters()) == body
    assert sum(p.numel() for p in model.head.parameters()) == 7 * (features + 1)
    assert not list(model.buffers())


def test_pflego_mlp_is_a_narrow_mlp() -> None:
    """Kills: a second hidden layer; a head or a projection that does not reach it."""
    for fields in ({}, {"head": "normalised", "projection": True}):
        mine, wanted = build(PflegoMLP(**fields)), build(MLP((200,), **fields))
        assert list(mine.state_dict()) == list(wanted.state_dict())
        assert all(torch.equal(mine.state_dict()[name], tensor) for name, tensor in wanted.state_dict().items())
        assert mine.tap_names == wanted.tap_names


def plain_pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 2)


def same_pool(x: Tensor) -> Tensor:
    """3x3 maxima of stride 2 with TensorFlow's "same" padding, window by window, of [B, C, H, W]."""
    ranges = []
    for size in x.shape[2:]:
        out = math.ceil(size / 2)
        before = max(2 * (out - 1) + 3 - size, 0) // 2
        starts = [2 * place - before for place in range(out)]
        ranges.append([range(max(start, 0), min(start + 3, size)) for start in starts])
    rows = [[x[:, :, a][:, :, :, b].amax((2, 3)) for b in ranges[1]] for a in ranges[0]]
    return torch.stack([torch.stack(row, dim=2) for row in rows], dim=2)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 2), (2, 3), (3, 4), (5, 5), (8, 8), (9, 6), (32, 32)])
def test_overlapping_pooling(height: int, width: int) -> None:
    """Kills: torch's padding of one pixel on either side, or its ``ceil_mode``; 2x2 windows; no window at the end."""
    x = images(2, (3, height, width)).relu()
    torch.testing.assert_close(OverlapBlock(3, 3, padding=2).pool(x), same_pool(x), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("spec", "shape", "widths", "kernel", "padding", "pool", "units"),
    [
        (LeNet(), CIFAR, (64, 64), 5, "valid", plain_pool, (384, 192)),
        (FedRepCifar(), CIFAR, (64, 64), 5, "valid", plain_pool, (120, 64)),
        (PflegoCifar(), CIFAR, (64, 64), 5, "same", same_pool, (384, 192)),
        (PflegoCifar(), (1, 27, 30), (64, 64), 5, "same", same_pool, (384, 192)),
        (PflegoOmniglot(), MNIST, (64, 64, 64, 64), 3, "same", plain_pool, ()),
        (CNN3(), (3, 8, 15), (32, 64, 128), 3, "same", plain_pool, ()),
    ],
)
def test_layers(
    spec: ModelSpec,
    shape: tuple[int, int, int],
    widths: tuple[int, ...],
    kernel: int,
    padding: str,
    pool: Callable[[Tensor], Tensor],
    units: tuple[int, ...],
) -> None:
    """Convolutions with ReLU and pooling, then the units with ReLU. Kills: another of these, or one left out."""
    model = build(spec, shape).double()
    z = x = images(3, shape)
    own = {name.removeprefix("body."): tensor for name, tensor in model.named_parameters()}
    for block, channels in enumerate(widths, 1):
        weight, bias = own[f"block{block}.conv.weight"], own[f"block{block}.conv.bias"]
        assert weight.shape[0] == channels and weight.shape[2:] == (kernel, kernel)
        z = pool(F.relu(F.conv2d(z, weight, bias, padding=padding)))
    z = z.flatten(1)
    for place, size in enumerate(units, 1):
        z = F.relu(F.linear(z, own[f"fc{place}.weight"], own[f"fc{place}.bias"]))
        assert z.shape == (3, size)
    torch.testing.assert_close(model.features(x), z)


@pytest.mark.parametrize(("spec", "features"), [(PflegoOmniglot(), 64), (CNN3(), 128)])
def test_features_are_means_of_planes_of_larger_images_too(spec: ModelSpec, features: int) -> None:
    """Kills: features that a sub-network would cut amid a plane."""
    assert build(spec, (1, 40, 40)).features(images(2, (1, 40, 40), torch.float32)).shape == (2, features)


# --- sub-networks -------------------------------------------------------------------------------------

NARROW: dict[str, ModelSpec] = {
    "lenet": LeNet(),
    "resnet8": ResNet8(),
    "resnet8 group": ResNet8(norm="group", group_size=4),
    "resnet18": ResNet18(),
    "resnet18 large": ResNet18(stem="large"),
    "resnet50": ResNet50(),
    "mobilenetv2": MobileNetV2(),
    "mobilenetv2 group": MobileNetV2(norm="group"),
    "cnn normalised": CNN(norm="batch", head="normalised"),
    "mlp projection": MLP(hidden=(20, 10), projection=True),
    "moon_cnn normalised": MoonCNN(head="normalised"),
    "pflego_cifar": PflegoCifar(),
    "pflego_omniglot": PflegoOmniglot(),
    "cnn3": CNN3(),
    "resnet8 both": ResNet8(head="normalised", projection=True),
}
narrow = pytest.mark.parametrize("spec", NARROW.values(), ids=NARROW.keys())


def prefix(model: Model, name: str, width: float) -> tuple[int, ...]:
    """The shape of a sub-network's tensor, from the layers alone."""

    def count(channels: int) -> int:
        return math.floor(width * channels + 0.5)

    tensor = model.state_dict()[name]
    owner = model.get_submodule(name.rpartition(".")[0])
    shape = list(tensor.shape)
    if not shape:
        return ()
    if owner is not model.head:
        shape[0] = count(shape[0])
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    if len(shape) > 1 and owner is not first and not isinstance(owner, DepthwiseConv):
        plane = owner.plane if isinstance(owner, PlaneLinear) else 1
        shape[1] = count(shape[1] // plane) * plane
    return tuple(shape)


def standalone(model: Model, part: dict[str, Tensor]) -> Model:
    """A network of its own: torch's layers, made small, with the sliced tensors."""
    twin = copy.deepcopy(model)
    for name, module in list(twin.named_modules()):
        weight = part.get(f"{name}.weight")
        if weight is None:
            continue
        out, bias = len(weight), f"{name}.bias" in part
        if isinstance(module, nn.Conv2d):
            groups = out if module.groups > 1 else 1
            channels = weight.shape[1] * groups
            sizes = {"stride": module.stride, "padding": module.padding, "groups": groups, "bias": bias}
            layer: nn.Module = nn.Conv2d(channels, out, module.kernel_size, **sizes)  # pyright: ignore[reportArgumentType]
        elif isinstance(module, nn.BatchNorm2d):
            layer = nn.BatchNorm2d(out)
        elif isinstance(module, nn.GroupNorm):
            layer = nn.GroupNorm(math.gcd(module.num_groups, out), out)
        elif isinstance(module, NormalisedLinear):
            layer = NormalisedLinear(weight.shape[1], out)
        elif isinstance(module, PlaneLinear):
            layer = nn.Sequential(nn.Flatten(), nn.Linear(weight.shape[1], out))
            part = {key.replace(f"{name}.", f"{name}.1."): tensor for key, tensor in part.items()}
        else:
            layer = nn.Linear(weight.shape[1], out, bias)
        parent, _, own = name.rpartition(".")
        setattr(twin.get_submodule(parent), own, layer)
    twin.to(torch.float64).load_state_dict(part)
    return twin


@pytest.mark.slow
@narrow
def test_sub_network_stands_alone(spec: ModelSpec) -> None:
    """In both modes a small network of torch's own layers with the first channels of every layer.

    Kills: groups of the full network in a depthwise convolution, a stem, shortcut or class that is cut wrongly.
    """
    model, x = build(spec).double(), images(3)
    model(x)  # running statistics that are not their initial values
    part = {name: tensor.detach() for name, tensor in narrowed(model, 0.8).items()}
    full = model.state_dict()
    assert set(part) == set(full) == set(cuts(model, 0.8))
    for name, tensor in part.items():
        shape = prefix(model, name, 0.8)
        assert torch.equal(tensor, full[name][tuple(slice(size) for size in shape)]), name
    twin = standalone(model, part)
    for training in (False, True):
        for network in (model, twin):
            network.train(training)
        torch.testing.assert_close(functional_call(model, narrowed(model, 0.8), (x,)), twin(x))


@narrow
def test_full_width_is_the_model(spec: ModelSpec) -> None:
    """Kills: a channel lost at width 1."""
    model, x = build(spec).eval(), images(2, dtype=torch.float32)
    assert torch.equal(functional_call(model, narrowed(model, 1.0), (x,)), model(x))


@pytest.mark.parametrize("name", ["lenet", "resnet8", "resnet18", "resnet50", "mobilenetv2"])
def test_gradients_reach_the_full_weights(name: str) -> None:
    """Through ``net.narrow``, as FedSER trains. Kills: slices that are copies; a layer that no gradient reaches."""
    net = FlatNet(build(MODELS.build({"name": name})), torch.device("cpu"), torch.float32)
    gradient = net.backward(net.narrow(0.5)(images(2, dtype=torch.float32)).square().sum())
    assert 0 < gradient.count_nonzero() < 0.6 * net.layout.size
    assert net.layout.head_of(gradient).any()
    assert net.layout.body_of(gradient)[:100].any()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "resnet18", "stem": "tiny"}, r"model\.stem=tiny: must be"),
        ({"name": "resnet50", "norm": "none"}, r"model\.norm=none: must be"),
        ({"name": "resnet18", "group_size": 48}, r"model\.group_size=48: must be a divisor of 64"),
        ({"name": "mobilenetv2", "group_size": 16}, r"model\.group_size=16: must be a divisor of 8, .*group_size=4"),
        ({"name": "resnet32", "shortcut": "none"}, r"model\.shortcut=none: must be"),
        ({"name": "lenet", "norm": "batch"}, r"model\.norm=batch: is not a field of model 'lenet'"),
    ],
)
def test_bad_fields(values: dict[str, object], sentence: str) -> None:
    """Kills: a field accepted at construction that fails when the network is built, or when it trains."""
    with pytest.raises(ConfigError, match=sentence):
        MODELS.build(values)
