"""ResNet-18 and ResNet-50 against torchvision's own, layer for layer at equal weights."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.algorithm.seeds import generator
from engine.models import Model, ModelSpec, ResNet18, ResNet50, build_model
from engine.models.resnet import ResidualUnit
from engine.models.resnet_imagenet import Bottleneck

SHAPE = (3, 37, 33)  # odd sizes: floor and ceil, one padding and another, end differently
SPECS: dict[str, ModelSpec] = {"resnet18": ResNet18(stem="large"), "resnet50": ResNet50(stem="large")}
both = pytest.mark.parametrize("name", list(SPECS))


def theirs(name: str, classes: int) -> Any:
    from engine.data.sources.torchvision_compat import torchvision

    return getattr(torchvision.models, name)(weights=None, num_classes=classes)


def with_weights_of(name: str, ours: Model) -> nn.Module:
    """torchvision's network with our tensors; they are in the same order and differ in name."""
    with torch.device("meta"):
        other = theirs(name, ours.head.out_features)
    tensors = [tensor.clone() for tensor in ours.state_dict().values()]
    other.load_state_dict(dict(zip(other.state_dict(), tensors, strict=True)), assign=True)
    return other


def assert_equals_torchvision(name: str, ours: Model) -> None:
    """In both modes: logits, all gradients, the new running statistics."""
    images = torch.randn(3, *SHAPE, dtype=torch.float64, generator=generator(1, "images"))
    ours.train()(images)  # running statistics that are not their initial values
    other = with_weights_of(name, ours)
    for training in (False, True):
        for network in (ours, other):
            network.train(training)
            network.zero_grad()
            F.cross_entropy(network(images), torch.tensor([0, 3, 6])).backward()
        torch.testing.assert_close(ours.eval()(images), other.eval()(images), rtol=1e-10, atol=1e-12)
        for mine, wanted in zip(ours.parameters(), other.parameters(), strict=True):
            assert mine.grad is not None
            assert wanted.grad is not None
            scale = wanted.grad.abs().max().item()
            torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-8, atol=1e-8 * scale)
        for mine, wanted in zip(ours.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(mine, wanted)


def build(name: str, classes: int = 7) -> Model:
    return build_model(SPECS[name], SHAPE, classes, generator(0, "init")).double()


@pytest.mark.slow
@both
def test_equal_weights_equal_networks(name: str) -> None:
    """Kills: a stride, a padding, a norm or a ReLU elsewhere; another order of units; a shortcut from another place."""
    assert_equals_torchvision(name, build(name))


class EarlyStride(Bottleneck):
    """Bug: the stride at the first 1x1, as the paper has it and torchvision has not."""

    def forward(self, x: Tensor) -> Tensor:
        stride = self.conv2.stride[0]
        out = F.relu(self.norm1(self.conv1(x[:, :, ::stride, ::stride])))
        out = F.relu(self.norm2(F.conv2d(out, self.conv2.weight, padding=1)))
        return F.relu(self.norm3(self.conv3(out)) + self.projection(x))


class LateShortcut(ResidualUnit):
    """Bug: the last ReLU before the sum."""

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return out + self.shortcut(x, out.shape[1])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bug"), [("resnet50", EarlyStride), ("resnet18", LateShortcut)])
def test_the_comparison_sees_wrong_units(name: str, bug: type) -> None:
    """Kills: a comparison that any network of these sizes would pass."""
    model = copy.deepcopy(build(name))
    for unit in model.get_submodule("body.units").children():
        unit.__class__ = bug
    with pytest.raises(AssertionError, match="not close"):
        assert_equals_torchvision(name, model)


@both
@pytest.mark.parametrize("classes", [10, 1000])
def test_sizes_are_torchvisions(name: str, classes: int) -> None:
    """11,689,512 and 25,557,032 parameters with 1,000 classes. Kills: a bias that should not be; a missing norm."""
    with torch.device("meta"):
        ours, other = SPECS[name].build((3, 224, 224), classes), theirs(name, classes)
    sizes = [[tensor.shape for tensor in network.state_dict().values()] for network in (ours, other)]
    assert sizes[0] == sizes[1]
    known = {"resnet18": 11_689_512, "resnet50": 25_557_032}[name]
    assert sum(p.numel() for p in ours.parameters()) == known - (1000 - classes) * (ours.head.in_features + 1)


@both
def test_small_stem_differs_in_the_stem_alone(name: str) -> None:
    """3x3, stride 1, no max pooling; a 32 x 32 image ends as 4 x 4. Kills: the large stem's pooling left in."""
    with torch.device("meta"):
        small, large = type(SPECS[name])().build((3, 32, 32), 10), SPECS[name].build((3, 32, 32), 10)
    sizes = [{key: tensor.shape for key, tensor in network.state_dict().items()} for network in (small, large)]
    assert sizes[0].pop("body.stem.weight") == (64, 3, 3, 3)
    assert sizes[1].pop("body.stem.weight") == (64, 3, 7, 7)
    assert sizes[0] == sizes[1]
    seen: list[torch.Size] = []
    small.get_submodule(small.tap_names[-1]).register_forward_hook(lambda _m, _a, output: seen.append(output.shape))
    small(torch.empty(2, 3, 32, 32, device="meta"))
    assert seen[0][2:] == (4, 4)
