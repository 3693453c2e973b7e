"""CBFL's generator and its training against a frozen model (eqs. 6 to 9); the DCGAN of its ablation."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from algorithms.fedavg import FedAvg
from algorithms.generators import GeneratorSpec, images, moments_of, packed, statistics_gap, train_against, train_on
from engine.algorithm import Batch, Tensors, seeds
from engine.client.training_tools import FlatTrainingTools
from engine.experiment import Local
from engine.models import ResNet8, ResNet20, initialise
from tests.support.bench import Bench
from tests.support.tiny import CLASSES

SMALL = GeneratorSpec((1, 8, 8), CLASSES, noise=8, width=8)


@pytest.mark.parametrize(
    ("image", "classes", "wanted"),
    [((3, 32, 32), 10, 1_052_139), ((3, 32, 32), 100, 1_061_139), ((1, 28, 28), 10, 857_065)],
)
def test_as_many_parameters_as_the_authors(image: tuple[int, int, int], classes: int, wanted: int) -> None:
    """Kills: another layer, width, kernel or bias (spec 0.6)."""
    with torch.device("meta"):
        found = GeneratorSpec(image, classes).build()
    assert sum(p.numel() for p in found.parameters()) == wanted
    assert (found.norm1.eps, found.norm2.eps, found.norm0.eps, found.norm3.affine) == (0.8, 0.8, 1e-5, False)


@pytest.mark.parametrize("image", [(1, 8, 8), (3, 9, 6), (3, 32, 32)])
def test_images_are_the_modules_own(image: tuple[int, int, int]) -> None:
    """Kills: a vector cut at other places than it was made of, running moments left behind, training mode; sides that
    4 does not divide."""
    spec = GeneratorSpec(image, 3, noise=5, width=4)
    module = spec.build()
    initialise(module, torch.Generator().manual_seed(0))
    noise, labels = torch.randn(6, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1, 2])
    for _ in range(3):
        module(noise, labels)  # moves the running moments
    made = images(spec, packed(module), noise, labels)
    assert made.shape == (6, *image)
    assert not made.requires_grad
    assert torch.equal(made, module.eval()(noise, labels))
    other = images(spec, packed(module), noise, (labels + 1) % 3)
    assert (made - other).abs().mean() > 1e-3  # the label matters


@pytest.mark.parametrize(
    ("generated", "stored", "wanted"),
    [
        ((0, 1), (0, 1), 0.0),
        ((1, 1), (0, 1), 0.5),
        ((0, 4), (0, 1), 0.8068528),
        ((0, 1), (0, 4), 0.3181472),
        ((1, 2), (0, 3), 0.2027326),
    ],
)
def test_the_gap_of_statistics_by_hand(
    generated: tuple[float, float], stored: tuple[float, float], wanted: float
) -> None:
    """Kills: the divergence the other way round, deviations taken for variances, unbiased variances (O-C3)."""
    mean, variance = generated
    x = torch.tensor([mean - variance**0.5, mean + variance**0.5], dtype=torch.float64).view(2, 1, 1, 1)
    x.requires_grad_()
    gap = statistics_gap([x], torch.tensor(stored, dtype=torch.float64))
    assert gap.item() == pytest.approx(wanted, abs=2e-6)  # 1e-6 is added to twice the variance
    [grad] = torch.autograd.grad(gap, x)
    assert (grad.abs().max() < 1e-5) == (generated == stored)


@pytest.mark.parametrize("dead", [0.0, 1e-30])
def test_a_dead_channel_is_told_from_a_live_one_in_finite_numbers(dead: float) -> None:
    """Kills: the logarithm of a stored variance of 0, as of a depthwise channel that died, whose gradient is NaN."""
    x = torch.tensor([-1.0, 1.0, 3.0, 5.0], dtype=torch.float64).view(2, 2, 1, 1).requires_grad_()
    gap = statistics_gap([x], torch.tensor([0.0, 0.0, dead, 1.0], dtype=torch.float64))
    [grad] = torch.autograd.grad(gap, x)
    assert gap.isfinite() and gap > 1 and grad.isfinite().all() and (grad.abs() > 0).all()


def test_channels_are_summed_and_layers_averaged() -> None:
    """Kills: the printed sum over layers by default (E-03), a mean over channels, buffers read in another order."""
    one = torch.tensor([-1.0, 1.0], dtype=torch.float64).view(2, 1, 1, 1)  # moments 0, 1
    two = torch.cat((one, one + 1), dim=1)  # moments 0, 1 and 1, 1
    buffers = torch.tensor([0, 1, 0, 0, 1, 4], dtype=torch.float64)  # one: 0 | 1; two: 0, 0 | 1, 4
    by_hand = 0.0 + (0.0 + (math.log(2) + 2 / 8 - 0.5))
    assert statistics_gap([one, two], buffers).item() == pytest.approx(by_hand / 2, abs=1e-6)
    assert statistics_gap([one, two], buffers, mean=False).item() == pytest.approx(by_hand, abs=1e-6)


def test_the_gap_is_of_what_enters_each_layer() -> None:
    """Kills: outputs in place of inputs; running means and variances mixed up, or of another layer (9.3)."""
    bench = Bench(ResNet20())
    net, stored = bench.net, bench.net.buffers.clone()
    net.train(True)  # normalised by the batch, so that no layer's variance is tiny
    _, taken = net.taps(bench.batch(0).x, net.norm_names, inputs=True)
    inputs = [taken[name].detach() for name in net.norm_names]
    moments = [moment for x in inputs for moment in (x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False))]
    matched = torch.cat(moments)
    assert matched.shape == net.buffers.shape
    assert statistics_gap(inputs, matched).item() == pytest.approx(0, abs=1e-4)
    assert statistics_gap(inputs, stored) > 1


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 4, 5)])
def test_moments_in_one_pass_are_those_of_a_copy(shape: tuple[int, ...]) -> None:
    """Kills: other axes, or an unbiased variance, where a GPU reads the inputs as they lie."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for at_once, of_copy in zip(moments_of(x, True), moments_of(x, False), strict=True):
        torch.testing.assert_close(at_once, of_copy, rtol=0, atol=1e-14)


def trained_bench() -> tuple[Bench, Tensors]:
    """A network with BatchNorm that knows the tiny images, and its weights and buffers."""
    bench = Bench(ResNet8(), sizes=(60,))
    local = Local(epochs=8, batch_size=10, lr=0.1)
    done = bench.train(FedAvg(), 0, local=local)
    shared = {"weights": done.weights, "buffers": done.buffers}
    bench.net.load(shared["weights"], shared["buffers"])
    bench.net.train(False)
    return bench, shared


def workbench(bench: Bench) -> FlatTrainingTools:
    return FlatTrainingTools(bench.net, lambda purpose: seeds.generator(0, purpose, 1))


def standing(bench: Bench, generator: torch.Tensor, buffers: torch.Tensor) -> tuple[float, float]:
    """Cross entropy and gap of statistics on fresh noise."""
    rng = torch.Generator().manual_seed(5)
    labels = torch.randint(CLASSES, (200,), generator=rng)
    fake = images(SMALL, generator, torch.randn(200, SMALL.noise, generator=rng).double(), labels)
    logits, inputs = bench.net.taps(fake, bench.net.norm_names, inputs=True)
    gap = statistics_gap([inputs[name] for name in bench.net.norm_names], buffers)
    return F.cross_entropy(logits, labels).item(), gap.item()


@pytest.mark.slow
def test_training_lowers_both_terms_and_leaves_the_model_alone() -> None:
    """Kills: a sign, labels that do not reach the loss, a model that is in training mode or trained (O-C7, O-C8)."""
    bench, shared = trained_bench()
    before = {name: tensor.clone() for name, tensor in shared.items()}
    fresh, trained = (
        train_against(workbench(bench), shared, SMALL, steps, 32, 0.003, 1.0, mean=True)["generator"]
        for steps in (1, 80)
    )
    (ce, gap), (ce_after, gap_after) = (standing(bench, made, shared["buffers"]) for made in (fresh, trained))
    assert ce_after < ce / 2
    assert gap_after < gap / 2
    assert all(torch.equal(shared[name], before[name]) for name in before)
    assert torch.equal(bench.net.weights, before["weights"])
    assert torch.equal(bench.net.buffers, before["buffers"])
    assert all(p.grad is None for p in bench.net.parameters)


@pytest.mark.slow
def test_gamma_is_what_holds_the_statistics() -> None:
    """Kills: a gap that is computed and not added."""
    bench, shared = trained_bench()
    without, held = (
        train_against(workbench(bench), shared, SMALL, 150, 32, 0.003, gamma, mean=True)["generator"]
        for gamma in (0.0, 1.0)
    )
    assert standing(bench, held, shared["buffers"])[1] < standing(bench, without, shared["buffers"])[1] / 2


def test_a_dcgan_comes_to_look_like_its_clients_rows() -> None:
    """Kills: a generator that is trained for the judge and not against it, or on noise alone."""
    rng = torch.Generator().manual_seed(3)
    ramp = torch.linspace(-1.5, 1.5, 8).double().expand(1, 8, 8)
    rows = ramp + 0.3 * torch.randn(40, 1, 8, 8, generator=rng).double()
    bench = Bench(ResNet8())
    batch = Batch(rows, torch.zeros(40, dtype=torch.int64), bench.client(0))
    spec = GeneratorSpec((1, 8, 8), 0, noise=8, width=8)
    near = []
    for steps in (1, 150):
        made = train_on(lambda: iter([batch]), rng.manual_seed(0), spec, steps, 16, 0.003)
        noise = torch.randn(100, 8, generator=rng).double()
        mean = images(spec, made, noise, torch.zeros(100, dtype=torch.int64)).mean(0)
        near.append(torch.corrcoef(torch.stack((mean.flatten(), ramp.flatten())))[0, 1].item())
    assert near[1] > 0.9 > 0.5 > near[0]
