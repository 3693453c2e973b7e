"""FedSER: exact oracles (O-R1 to O-R8), what is drawn, its transforms, and public readings as mutants."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.batch_transforms import AREA, RATIO, BatchTransforms
from algorithms.fedavg import FedAvg
from algorithms.fedser import FedSer
from engine.algorithm import Batch, Net, Tensors, seeds
from engine.base.errors import ConfigError
from engine.client.steps.flat_net import FlatNet
from engine.experiment import Local
from engine.models import CNN, MODELS, Model, ResNet8, ResNet20, build_model, narrowed
from engine.models.narrow import kept
from tests.support.bench import CPU, FEW, Bench
from tests.support.tiny import assignment, dataset, drive, experiment

RESNET = {"model": {"name": "resnet8"}}
STILL = Local(epochs=1, batch_size=4)  # with a rate of 1e-30 weights stay, to the bit, and statistics move


def rng(purpose: str = "test") -> torch.Generator:
    return seeds.generator(0, purpose)


def with_draw(fedser: FedSer, bench: Bench, number: int = 0) -> Batch:
    """A client's rows, and what ``fedser`` draws for them."""
    drawn = fedser.step_randomness(bench.client(number), len(bench.batch(number).y), bench.start)
    return replace(bench.batch(number), drawn=drawn)


def gradient(algorithm: FedAvg, bench: Bench, batch: Batch) -> Tensor:
    """[P] of the loss on ``batch``, in training mode, at the bench's start."""
    bench.net.load(bench.start["weights"], bench.start["buffers"])
    bench.net.train(True)
    return bench.net.backward(algorithm.loss(bench.net, batch, bench.start, {})).clone()


# --- the loss -----------------------------------------------------------------------------------------


class Fixed:
    """A net of given logits, a leaf each for the full network and for its sub-networks, and what it was asked."""

    def __init__(self, full: list[float], narrow: list[list[float]]) -> None:
        self.full = self.leaf(full)
        self.subnets = [self.leaf(logits) for logits in narrow]
        self.asked: list[tuple[Any, ...]] = []

    @staticmethod
    def leaf(p: list[float]) -> Tensor:
        return torch.tensor([p], dtype=torch.float64).log().requires_grad_()

    def __call__(self, x: Tensor) -> Tensor:
        return self.full

    def narrow(self, *asked: Any) -> Any:
        self.asked.append(asked)
        logits = self.subnets[len(self.asked) - 1]
        return lambda x: logits


def loss_of(fedser: FedSer, net: Any) -> Tensor:
    drawn = {"subnets": [(0.9, (2, 2)), (0.8, (2, 2))]}
    client: Any = None
    return fedser.loss(net, Batch(torch.zeros(1, 1, 2, 2), torch.tensor([0]), client, drawn), {}, {})


def check_loss_by_hand(fedser: FedSer) -> None:
    """-log 0.7 + mu (KL(p || q) + KL(p || p)) for p = (0.7, 0.3), q = (0.4, 0.6); no gradient reaches p as a target."""
    p, q = [0.7, 0.3], [0.4, 0.6]
    divergence = 0.7 * math.log(0.7 / 0.4) + 0.3 * math.log(0.3 / 0.6)
    assert divergence == pytest.approx(0.1837869)  # the other way round it is 0.19204
    net = Fixed(p, [q, p])
    loss = loss_of(fedser, net)
    assert float(loss.detach()) == pytest.approx(-math.log(0.7) + fedser.mu * divergence, rel=1e-12)
    loss.backward()
    torch.testing.assert_close(net.full.grad, torch.tensor([[-0.3, 0.3]], dtype=torch.float64))  # p - e_y
    wanted = fedser.mu * torch.tensor([[0.4 - 0.7, 0.6 - 0.3]], dtype=torch.float64)  # mu (q - p)
    torch.testing.assert_close(net.subnets[0].grad, wanted)
    torch.testing.assert_close(net.subnets[1].grad, torch.zeros(1, 2, dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize("mu", [1.75, 0.5])
def test_loss_by_hand(mu: float) -> None:
    """Kills: the student first, a teacher that is trained (O-R6), a mean over sub-networks, a mean over classes."""
    check_loss_by_hand(FedSer(mu=mu))


def test_dividing_by_the_number_of_sub_networks() -> None:
    """Kills: an option that does nothing; a division that reaches the cross entropy."""
    p, q = [0.7, 0.3], [0.4, 0.6]
    by_n, summed = (loss_of(FedSer(normalise_by_n=by_n), Fixed(p, [q, q])) for by_n in (True, False))
    supervised = -math.log(0.7)
    assert float(by_n.detach()) - supervised == pytest.approx((float(summed.detach()) - supervised) / 2)


def test_the_options_reach_the_sub_network() -> None:
    """Kills: a divisor or a kind of statistics that the loss forgets."""
    net = Fixed([0.7, 0.3], [[0.4, 0.6]] * 2)
    loss_of(FedSer(width_divisor=8, subnet_bn="running"), net)
    assert net.asked == [(0.9, 8, "running"), (0.8, 8, "running")]


def test_without_sub_networks_it_is_fedavg() -> None:
    """Kills: a draw, a rounding or a statistic that n = 0 or mu = 0 leave behind (O-R1). To the bit, buffers too."""
    bench = Bench(ResNet8())
    local = Local(epochs=2, batch_size=4, lr=0.1, momentum=0.9)
    plain, *neutral = (
        bench.train(algorithm, 2, local=local) for algorithm in (FedAvg(), FedSer(subnets=0), FedSer(mu=0.0))
    )
    regular = bench.train(FedSer(), 2, local=local)
    for trained in neutral:
        assert torch.equal(trained.weights, plain.weights)
        assert torch.equal(trained.buffers, plain.buffers)
    assert not torch.equal(regular.weights, plain.weights)


@pytest.mark.parametrize("subnet_bn", ["batch", "running"])
@pytest.mark.parametrize("transform", ["resize", "resize_back", "rotate", "crop", "none"])
def test_running_statistics_belong_to_the_full_network(transform: Any, subnet_bn: Any) -> None:
    """Kills: sub-networks that write running statistics (O-R1)."""
    bench = Bench(ResNet8())
    bench.context = replace(bench.context, lr=1e-30)
    fedser = FedSer(transform=transform, subnet_bn=subnet_bn)
    trained, plain = (bench.train(algorithm, 0, local=STILL) for algorithm in (fedser, FedAvg()))
    assert torch.equal(trained.buffers, plain.buffers)
    assert not torch.equal(trained.buffers, bench.start["buffers"])


@pytest.mark.parametrize("fields", [{"transform": "none"}, {"transform": "resize", "scales": (1.0,)}])
def test_whole_width_on_the_same_images_adds_nothing(fields: dict[str, Any]) -> None:
    """Kills: a sub-network that is not the network at width 1 (O-R2); a term of its own that does not vanish."""
    bench = Bench(ResNet8())
    whole = FedSer(min_width=1.0, **fields)
    batch = with_draw(whole, bench)
    plain = gradient(FedAvg(), bench, batch)
    torch.testing.assert_close(gradient(whole, bench, batch), plain, rtol=0, atol=1e-12)
    narrow = FedSer(min_width=0.5, **fields)
    assert (gradient(narrow, bench, with_draw(narrow, bench)) - plain).abs().max() > 1e-3
    trained = [bench.train(algorithm, 0).upload["weights"] for algorithm in (whole, FedAvg())]
    torch.testing.assert_close(*trained, rtol=0, atol=1e-10)


def test_a_transform_is_seen_at_whole_width() -> None:
    """Kills: a batch that goes untransformed into the sub-network."""
    bench = Bench(ResNet8())
    plain = gradient(FedAvg(), bench, bench.batch(0))
    for transform in ("resize", "resize_back", "rotate", "crop"):
        scales = (0.75,)
        fedser = FedSer(min_width=1.0, transform=transform, scales=scales)
        batch = with_draw(fedser, bench)
        if transform == "rotate":
            batch = replace(batch, drawn={"subnets": [(1.0, (1,))]})
        assert (gradient(fedser, bench, batch) - plain).abs().max() > 1e-3, transform


# --- sub-networks -------------------------------------------------------------------------------------


def outside(model: Model, width: float, divisor: int = 1) -> Tensor:
    """[P] which parameters the sub-network lacks."""
    masks = {name: torch.ones_like(parameter, dtype=torch.bool) for name, parameter in model.named_parameters()}
    for name, part in narrowed(model, width, divisor=divisor).items():
        if name in masks:
            masks[name][tuple(slice(size) for size in part.shape)] = False
    return torch.cat([mask.reshape(-1) for mask in masks.values()])


@pytest.mark.parametrize("divisor", [1, 8])
@pytest.mark.parametrize("spec", [ResNet8(), CNN(norm="group")], ids=["resnet8", "cnn"])
def test_gradients_outside_the_slice_are_the_full_networks(spec: Any, divisor: int) -> None:
    """Kills: sub-networks of the last channels or of all; a target with a gradient (O-R4, O-R6). To the bit."""
    bench = Bench(spec)
    fedser = FedSer(min_width=0.4, transform="none", width_divisor=divisor)
    drawn = {"subnets": [(0.4, ()), (0.6, ())]}
    batch = replace(bench.batch(0), drawn=drawn)
    added = gradient(fedser, bench, batch) - gradient(FedAvg(), bench, batch)
    beyond = outside(bench.net.model, 0.6, divisor)
    assert 0.3 < beyond.double().mean() < 0.9
    assert not added[beyond].any()
    assert added[~beyond].abs().max() > 1e-4


STAND_ALONE = {  # width and divisor -> channels of the three stages
    (0.8, 1): (13, 26, 51),
    (0.8, 8): (16, 24, 48),
    (0.5, 8): (8, 16, 32),
    (0.9, 8): (16, 32, 56),
}


@pytest.mark.parametrize(("asked", "channels"), STAND_ALONE.items(), ids=str)
@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_a_sub_network_stands_alone(asked: tuple[float, int], channels: tuple[int, int, int], statistics: Any) -> None:
    """A network of its own, built narrow, of the first rows of every tensor, gives the same (O-R3, O-R5).

    Kills: another prefix; running statistics in place of the batch's or the other way round.
    """
    bench = Bench(ResNet20())
    net, x = bench.net, bench.batch(1).x
    net.train(True)
    net(x)  # running statistics that are not their initial ones
    width, divisor = asked
    small = ResNet20().with_widths((1, 8, 8), 4, channels).double()
    wide, narrow = net.model.state_dict(), small.state_dict()
    parts = {name: wide[name][tuple(slice(n) for n in narrow[name].shape)].clone() for name in wide}
    small.load_state_dict({**narrow, **parts})
    small.train(statistics == "batch")
    before = net.buffers.clone()
    torch.testing.assert_close(net.narrow(width, divisor, statistics)(x), small(x), rtol=1e-10, atol=1e-10)
    frozen = net.at(net.weights, net.buffers, train=True).narrow(width, divisor, statistics)
    small.load_state_dict({**small.state_dict(), **narrowed_buffers(net, small)})
    torch.testing.assert_close(frozen(x), small(x).detach(), rtol=1e-10, atol=1e-10)
    assert torch.equal(net.buffers, before)
    assert net.model.training


def narrowed_buffers(net: FlatNet, small: nn.Module) -> dict[str, Tensor]:
    wide, narrow = dict(net.model.named_buffers()), dict(small.named_buffers())
    return {name: wide[name][tuple(slice(n) for n in narrow[name].shape)].clone() for name in wide}


def test_running_statistics_in_a_sub_network_are_no_matter_of_the_batch() -> None:
    """Kills: batch statistics under another name; statistics of the start of the round."""
    bench = Bench(ResNet8())
    net, x = bench.net, bench.batch(1).x
    net.train(True)
    net(x)
    frozen, own = net.narrow(0.8, 1, "running"), net.narrow(0.8)
    torch.testing.assert_close(frozen(x)[:2], frozen(x[:2]))
    assert (own(x)[:2] - own(x[:2])).abs().max() > 1e-3
    was = frozen(x)
    net(10 * x)  # the full network's pass moves what the next sub-network reads
    assert not torch.equal(net.narrow(0.8, 1, "running")(x), was)


def test_kept_with_a_divisor() -> None:
    """FedAlign's numbers. Kills: truncation, a guard of all channels or at divisor 1, more channels than there are."""
    assert [kept(channels, 0.8, 8) for channels in (16, 32, 64)] == [16, 24, 48]
    assert [kept(channels, 0.8) for channels in (16, 32, 64)] == [13, 26, 51]
    assert [kept(channels, 0.25, 8) for channels in (16, 32, 64)] == [8, 8, 16]  # 4 is more than a tenth below 8
    assert kept(64, 0.29, 8) == 24  # 18.56 -> 16, more than a tenth less
    assert kept(64, 0.27, 8) == 16  # 17.28 -> 16, less than a tenth less
    assert [kept(channels, width, 8) for channels, width in ((6, 0.5), (6, 1.0), (17, 1.0), (20, 0.99))] == [
        6,
        6,
        17,
        20,
    ]
    assert kept(10, 0.01) == kept(100, 0.004) == 1
    for divisor in (1, 2, 8, 16):
        for channels in (3, 16, 20, 64):
            numbers = [kept(channels, width, divisor) for width in np.linspace(0.01, 1, 199)]
            assert numbers == sorted(numbers)
            assert 1 <= numbers[0] <= numbers[-1] == channels


NARROWED = [  # what the issue names
    {"name": "resnet20"},
    {"name": "resnet56"},
    {"name": "resnet18"},
    {"name": "resnet50"},
    {"name": "resnet20", "norm": "group"},
    {"name": "resnet20", "projection": True},
    {"name": "resnet20", "head": "normalised"},
    {"name": "resnet18", "projection": True, "head": "normalised"},
    {"name": "mobilenetv2"},
]
FLATTENING = [
    *({"name": "cnn", "norm": norm} for norm in ("none", "batch", "group")),
    {"name": "cnn", "projection": True, "head": "normalised"},
    {"name": "moon_cnn"},
    {"name": "mlp"},
]


@pytest.mark.slow
@pytest.mark.parametrize("model", NARROWED + FLATTENING, ids=str)
def test_models_that_have_sub_networks(model: dict[str, Any]) -> None:
    """Kills: a model of the issue that cannot be narrowed; one that is refused only when training has begun."""
    transform = "resize_back" if model in FLATTENING else "resize"
    config = experiment(algorithm={"name": "fedser", "transform": transform}, model=model)
    fedser = config.algorithm
    assert isinstance(fedser, FedSer)
    built = build_model(MODELS.build(model), (3, 16, 16), 10, rng())
    net = FlatNet(built, CPU, torch.float32, (3, 16, 16))
    net.train(True)
    x = torch.randn(2, 3, 16, 16, generator=rng())
    logits = net.narrow(0.8)(fedser.transformed(x, (12, 12)))
    assert logits.shape == (2, 10)
    assert net.backward(logits.square().sum()).any()


# --- what is drawn ------------------------------------------------------------------------------------


def drawn_by(fedser: FedSer, steps: int = 1, **where: Any) -> list[Any]:
    """The sub-networks of some steps of a client."""
    bench = Bench(CNN())
    bench.context = replace(bench.context, **{key: where[key] for key in where if key == "round"})
    bench.trainer.seed = where.get("seed", 0)
    client = bench.client(where.get("client", 0))
    return [fedser.step_randomness(client, 4, bench.start)["subnets"] for _ in range(steps)]


def widths_of(steps: list[Any]) -> list[list[float]]:
    return [[width for width, _ in step] for step in steps]


def test_uniform_widths() -> None:
    """Kills: widths from 0 on, one width for all, a sorted sample, one draw a round."""
    widths = np.array(widths_of(drawn_by(FedSer(subnets=3, min_width=0.5), 400)))
    assert widths.shape == (400, 3)
    assert widths.min() >= 0.5
    assert widths.max() < 1
    assert len(np.unique(widths)) == widths.size
    assert abs(widths.mean() - 0.75) < 0.02
    assert abs(widths.std() - 0.5 / 12**0.5) < 0.01
    ascending = np.mean(np.diff(widths, axis=1) > 0)
    assert 0.4 < ascending < 0.6


def test_sandwich() -> None:
    """Kills: a narrowest one beside n others; narrowest first; uniform ones in the order drawn."""
    sandwich = FedSer(subnets=4, min_width=0.5, width_sampling="sandwich")
    widths = np.array(widths_of(drawn_by(sandwich, 200)))
    assert widths.shape == (200, 4)
    assert (widths[:, -1] == 0.5).all()
    assert (np.diff(widths, axis=1) <= 0).all()
    assert abs(widths[:, :-1].mean() - 0.75) < 0.02
    assert widths_of(drawn_by(FedSer(subnets=1, width_sampling="sandwich"), 3)) == [[0.8]] * 3


def test_draws_are_keyed() -> None:
    """Kills: a global generator; draws by place or by worker; options that shift each other's draws."""
    torch.manual_seed(1)
    first = drawn_by(FedSer(), 5)
    torch.manual_seed(2)
    assert drawn_by(FedSer(), 5) == first
    others = [drawn_by(FedSer(), 5, **where) for where in ({"client": 1}, {"round": 2}, {"seed": 1})]
    assert len({str(steps) for steps in [first, *others]}) == 4
    for transform in ("rotate", "crop", "none"):
        assert widths_of(drawn_by(FedSer(transform=transform), 5)) == widths_of(first)
    sandwich = drawn_by(FedSer(width_sampling="sandwich"), 5)
    assert [[shape for _, shape in step] for step in sandwich] == [[shape for _, shape in step] for step in first]
    assert len({shape for step in drawn_by(FedSer(), 40) for _, shape in step}) == 3


def test_the_order_of_rows_is_fedavgs() -> None:
    """Kills: sub-networks that draw from the stream of batches."""
    bench = Bench(ResNet8())
    seen: dict[str, list[Tensor]] = {"fedser": [], "fedavg": []}

    class Watching(FedSer):
        def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
            seen["fedser" if self.mu else "fedavg"].append(batch.y)
            return super().loss(net, batch, received, state)

    for mu in (0.0, 1.75):
        bench.train(Watching(mu=mu), 2)
    assert len(seen["fedser"]) == len(seen["fedavg"]) > 1
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*seen.values(), strict=True))


# --- transforms ---------------------------------------------------------------------------------------


def draws(fields: dict[str, Any], image: tuple[int, int, int], count: int = 200) -> list[tuple[int, ...]]:
    transforms, generator = BatchTransforms(**fields), rng()
    return [transforms.draw_transform(generator, image) for _ in range(count)]


@pytest.mark.parametrize("transform", ["resize", "resize_back"])
def test_sizes(transform: str) -> None:
    """GradAug's 32, 28 and 24 of 32. Kills: sides of their own scales, a size that is never drawn, no pixel at all."""
    assert set(draws({"transform": transform}, (3, 32, 32))) == {(32, 32), (28, 28), (24, 24)}
    assert set(draws({"transform": transform}, (1, 28, 28))) == {(28, 28), (24, 24), (21, 21)}
    assert set(draws({"transform": transform}, (1, 16, 8))) == {(16, 8), (14, 7), (12, 6)}
    assert set(draws({"transform": transform, "scales": (0.01,)}, (1, 8, 8))) == {(1, 1)}
    sizes = draws({"transform": transform}, (3, 32, 32), 3000)
    assert all(abs(sizes.count((size, size)) - 1000) < 120 for size in (32, 28, 24))


def test_resizing() -> None:
    """Bilinear with aligned corners, by hand. Kills: another interpolation; a size that is not kept or not restored."""
    x = torch.tensor([[0.0, 2.0, 4.0], [6.0, 8.0, 10.0], [12.0, 14.0, 16.0]]).expand(2, 3, 3, 3)
    small = BatchTransforms().transformed(x, (2, 2))
    assert torch.equal(small, torch.tensor([[0.0, 4.0], [12.0, 16.0]]).expand(2, 3, 2, 2))
    assert BatchTransforms().transformed(x, (3, 3)) is x
    bumpy = x.clone()
    bumpy[..., 1, 1] = 100.0
    again = BatchTransforms(transform="resize_back").transformed(bumpy, (2, 2))
    torch.testing.assert_close(again, x)  # what is between the corners is lost


def test_turns() -> None:
    """Kills: turns of one's own choice, a turn that changes the shape of images that are not square."""
    turn = BatchTransforms(transform="rotate")
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).expand(2, 3, 2, 2)
    wanted = [[[1.0, 2.0], [3.0, 4.0]], [[2.0, 4.0], [1.0, 3.0]], [[4.0, 3.0], [2.0, 1.0]], [[3.0, 1.0], [4.0, 2.0]]]
    for turns, image in enumerate(wanted):
        assert torch.equal(turn.transformed(x, (turns,)), torch.tensor(image).expand(2, 3, 2, 2))
    assert set(draws({"transform": "rotate"}, (1, 8, 8))) == {(0,), (1,), (2,), (3,)}
    assert set(draws({"transform": "rotate"}, (1, 8, 4))) == {(0,), (2,)}
    assert turn.transformed(torch.zeros(2, 1, 8, 4), (2,)).shape == (2, 1, 8, 4)


def test_crops() -> None:
    """Kills: a box beyond the image, a box of another area or ratio, one that is not enlarged, height for width."""
    boxes = np.array(draws({"transform": "crop"}, (3, 64, 64), 1000))
    top, left, height, width = boxes.T
    assert (boxes >= 0).all()
    assert (np.minimum(height, width) >= 1).all()
    assert (top + height).max() == (left + width).max() == 64
    share, ratio = height * width / 64**2, width / height
    assert AREA[0] * 0.9 < share.min() < 0.1
    assert share.max() > 0.9
    assert RATIO[0] * 0.9 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < RATIO[1] * 1.1
    assert abs(np.log(ratio).mean()) < 0.02
    assert len(set(top)) > 20
    x = torch.arange(24.0).view(1, 1, 4, 6).expand(2, 3, 4, 6)
    crop = BatchTransforms(transform="crop")
    out = crop.transformed(x, (1, 2, 2, 3))
    assert out.shape == x.shape
    corners = [[float(out[1, 2, row, column]) for column in (0, -1)] for row in (0, -1)]
    assert corners == [[8.0, 10.0], [14.0, 16.0]]
    assert torch.equal(crop.transformed(x, (0, 0, 4, 6)), x)


def test_no_transform() -> None:
    x = torch.randn(2, 1, 4, 4, generator=rng())
    assert set(draws({"transform": "none"}, (1, 4, 4))) == {()}
    assert BatchTransforms(transform="none").transformed(x, ()) is x


# --- a run --------------------------------------------------------------------------------------------


def test_a_run_is_evaluated_at_full_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a narrow net where accuracy is measured (O-R7); resized batches that a run cannot train on."""
    modes: list[bool] = []
    original = FlatNet.narrow

    def spy(net: FlatNet, *args: Any) -> Net:
        modes.append(net.model.training)
        return original(net, *args)

    monkeypatch.setattr(FlatNet, "narrow", spy)
    measured = {"local_every": 1, "personal_every": 1}
    config = experiment(algorithm={"name": "fedser", "transform": "resize"}, **RESNET, rounds=2, evaluation=measured)
    run = drive(tmp_path, config, dataset(sum(FEW)), assignment(FEW))
    assert modes
    assert all(modes)  # in training mode, and evaluation is not
    rows = run.driver.pool._workers[0].test  # type: ignore[attr-defined]
    net = FlatNet(build_model(ResNet8(), (1, 8, 8), 4, rng()), CPU, torch.float32)
    net.load(run.server["weights"], run.server["buffers"])
    net.train(False)
    x, y = rows.batch(torch.arange(40))
    with torch.no_grad():
        assert run.summary["accuracy"] == int((net(x).argmax(1) == y).sum()) / 40


# --- what is refused ----------------------------------------------------------------------------------

WIDTH = "must be greater than 0 and at most 1; for example algorithm.min_width=0.8"
SCALE = "must be greater than 0 and at most 1; [1.0] is no resize"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"min_width": 0.0}, f"algorithm.min_width=0.0: {WIDTH}"),
        ({"min_width": 1.01}, f"algorithm.min_width=1.01: {WIDTH}"),
        ({"min_width": math.nan}, f"algorithm.min_width=nan: {WIDTH}"),
        ({"min_width": 0.0, "subnets": 0}, f"algorithm.min_width=0.0: {WIDTH}"),
        ({"subnets": -1}, "algorithm.subnets=-1: must be at least 0; 0 is FedAvg"),
        ({"mu": -0.5}, "algorithm.mu=-0.5: must be at least 0; 0 is FedAvg"),
        ({"width_divisor": 0}, "algorithm.width_divisor=0: must be at least 1; 1 is none"),
        ({"scales": []}, "algorithm.scales=[]: must have at least 1; for example algorithm.scales=[1.0, 0.875, 0.75]"),
        ({"scales": [1.0, 0.0]}, f"algorithm.scales.1=0.0: {SCALE}"),
        ({"scales": [1.25]}, f"algorithm.scales.0=1.25: {SCALE}"),
        ({"server_lr": 0.0}, "algorithm.server_lr=0.0: must be greater than 0; 1 takes the mean itself"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], message: str) -> None:
    """Kills: a missing check, of this class or of one of its bases."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "fedser", **fields}, **RESNET)
    assert str(error.value) == message


@pytest.mark.parametrize("field", ["transform", "width_sampling", "subnet_bn"])
def test_unknown_words_are_refused(field: str) -> None:
    """Kills: a word that falls through to a default."""
    with pytest.raises(ConfigError, match=rf"^algorithm.{field}=nonsense: must be "):
        experiment(algorithm={"name": "fedser", field: "nonsense"}, **RESNET)


def test_a_model_without_sub_networks_is_refused() -> None:
    """Kills: a refusal in the first step; one where there is nothing to refuse."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "fedser"}, model={"name": "logistic"})
    assert str(error.value) == (
        "model.name=logistic: a model without hidden layers has no sub-networks; "
        "use a model with some, for example model.name=mlp"
    )
    for fields in ({"subnets": 0}, {"mu": 0.0}):
        experiment(algorithm={"name": "fedser", **fields}, model={"name": "logistic"})


@pytest.mark.parametrize("model", ["cnn", "mlp", "moon_cnn"])
def test_a_model_of_one_resolution_is_refused_a_resize(model: str) -> None:
    """Kills: an error of shapes in mid-training; the same without field, rule or repair."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "fedser", "transform": "resize"}, model={"name": model})
    assert str(error.value) == (
        f"algorithm.transform=resize: is not for model {model}, which takes images of one size; "
        "set algorithm.transform=resize_back"
    )
    for fields in ({"transform": "resize_back"}, {"transform": "resize", "scales": [1.0]}, {"subnets": 0}):
        experiment(algorithm={"name": "fedser", **fields}, model={"name": model})


def test_a_schedule_is_checked_too() -> None:
    """Kills: a value that may not be there at the start and comes in mid-run."""
    fields = {"name": "fedser", "transform": "resize_back"}
    with pytest.raises(ConfigError, match=r"^algorithm.transform=resize: is not for model mlp"):
        experiment(algorithm=fields, schedule=[{"round": 2, "set": {"algorithm.transform": "resize"}}])


# --- mutants ------------------------------------------------------------------------------------------


class StudentFirst(FedSer):
    """KL the other way round."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        logits = net(batch.x)
        loss, soft = F.cross_entropy(logits, batch.y), F.softmax(logits.detach(), dim=1)
        for width, _ in batch.drawn["subnets"]:
            p = F.softmax(net.narrow(width)(batch.x), dim=1)
            loss = loss + self.mu * F.kl_div(soft.log(), p, reduction="batchmean")
        return loss


class TrainedTeacher(FedSer):
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        logits = net(batch.x)
        loss, soft = F.cross_entropy(logits, batch.y), F.softmax(logits, dim=1)
        for width, _ in batch.drawn["subnets"]:
            log_p = F.log_softmax(net.narrow(width)(batch.x), dim=1)
            loss = loss + self.mu * F.kl_div(log_p, soft, reduction="batchmean")
        return loss


class Unweighted(FedSer):
    """F-01: as Algorithm 1 prints it, without mu."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return dataclasses.replace(FedSer(), mu=1.0).loss(net, batch, received, state)


@pytest.mark.parametrize("mutant", [StudentFirst, TrainedTeacher, Unweighted])
def test_wrong_losses_are_killed(mutant: type[FedSer]) -> None:
    with pytest.raises(AssertionError):
        check_loss_by_hand(mutant(transform="none"))
