"""MOON: exact oracles (O-M1 to O-M4), its queue of previous models, and public bugs as mutants."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from algorithms.moon import Moon
from engine.algorithm import Client, Net, Tensors
from engine.base.errors import ConfigError
from engine.client.steps.flat_net import FlatNet
from engine.models import MoonCNN, ResNet20, build_model
from tests.support.bench import CPU, FEW, Bench
from tests.support.tiny import assignment, dataset, drive, experiment

LOG_2 = math.log(2)
PIXELS = (1, 16, 16)  # the least that moon_cnn takes
SMALL = {"model": {"name": "moon_cnn"}, "rounds": 3}


def moon_bench() -> Bench:
    return Bench(MoonCNN(), shape=PIXELS)


def kept(bench: Bench, count: int = 1, seed: int = 1) -> Tensors:
    """A state of ``count`` previous models, all different from the global one."""
    rng = torch.Generator().manual_seed(seed)
    weights, buffers = bench.start["weights"], bench.start["buffers"]
    noise = torch.randn(count, len(weights), generator=rng, dtype=weights.dtype)
    moved = torch.rand(count, len(buffers), generator=rng, dtype=buffers.dtype)
    return {"previous": weights + 0.05 * noise, "previous_buffers": buffers + moved}


def standing(bench: Bench, weights: Tensor, buffers: Tensor, x: Tensor) -> Tensor:
    """Features of a network of its own at these weights, in eval mode."""
    shape = bench.net.layout.image
    spec = ResNet20() if bench.net.norm_names else MoonCNN()
    net = FlatNet(build_model(spec, shape, 4, torch.Generator()), CPU, torch.float64)
    net.load(weights, buffers)
    net.train(False)
    return net.features(x).detach()


def check_contrast_by_hand(moon: Moon, bench: Bench, count: int) -> None:
    """Eq. 3, row by row, with networks of their own for the global and the previous models."""
    received, state, batch = bench.start, kept(bench, count), bench.batch(0)
    bench.net.train(True)
    bench.net.weights.add_(0.01)  # some way into local training
    z = bench.net.features(batch.x)
    others = [(received["weights"], received["buffers"])]
    others += list(zip(state["previous"], state["previous_buffers"], strict=True))
    total = 0.0
    for row in range(len(batch.y)):
        cosines = []
        for weights, buffers in others:
            other = standing(bench, weights, buffers, batch.x)[row]
            mine = z[row].detach()
            cosines.append(float(mine @ other / (mine.norm() * other.norm()).clamp(min=1e-12)))  # of nothing: 0
        powers = [math.exp(cosine / moon.temperature) for cosine in cosines]
        total -= math.log(powers[0] / sum(powers))
    value = moon.contrast(bench.net, z, batch.x, received, state)
    assert float(torch.as_tensor(value).detach()) == pytest.approx(total / len(batch.y), rel=1e-10)


def check_first_participation_is_fedavg(moon: Moon, bench: Bench) -> None:
    """O-M2."""
    ours, theirs = (bench.train(algorithm, 0) for algorithm in (moon, FedAvg()))
    torch.testing.assert_close(ours.upload["weights"], theirs.upload["weights"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_contrast_by_hand(temperature: float, count: int) -> None:
    """Kills: temperature multiplied, the sum without the positive pair, features before the projection."""
    check_contrast_by_hand(Moon(temperature=temperature, buffer=count), moon_bench(), count)


def test_contrast_by_hand_with_batchnorm() -> None:
    """Kills: frozen models that normalise by the batch."""
    check_contrast_by_hand(Moon(), Bench(ResNet20()), 1)


def test_a_previous_model_that_is_the_global_one_adds_nothing() -> None:
    """Kills: a term with a gradient where both models are the same (O-M2): log 2 for every row, no gradient."""
    bench = moon_bench()
    received, batch = bench.start, bench.batch(0)
    state = {"previous": received["weights"][None], "previous_buffers": received["buffers"][None]}
    bench.net.train(True)
    bench.net.weights.mul_(1.1)
    for rows in (slice(None), slice(0, 1), slice(3, 4)):
        x = batch.x[rows]
        value = Moon().contrast(bench.net, bench.net.features(x), x, received, state)
        assert isinstance(value, Tensor)
        assert float(value.detach()) == pytest.approx(LOG_2, abs=1e-12)
        assert bench.net.backward(value).abs().max() < 1e-12


def test_first_participation_is_fedavg() -> None:
    """Kills: a random or an empty negative (G-02). To the bit; the objective counts the term's log 2."""
    bench = moon_bench()
    check_first_participation_is_fedavg(Moon(mu=5.0), bench)
    state = Moon().init_state(bench.start, {}, bench.client(0))
    losses = [algorithm.loss(bench.net, bench.batch(0), bench.start, state) for algorithm in (Moon(mu=5.0), FedAvg())]
    assert float(losses[0].detach() - losses[1].detach()) == pytest.approx(5 * LOG_2, abs=1e-12)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_bounds(temperature: float) -> None:
    """Kills: a similarity that is no cosine (O-M3): between log(1 + e^(-2/T)) and log(1 + e^(2/T)), both reached."""

    class Fixed:
        """A net whose frozen copies give the features that are written into their weights."""

        def at(self, weights: Tensor, buffers: Tensor) -> Any:
            return type("At", (), {"features": lambda self, x: weights.expand(len(x), -1)})()

    low, high = math.log1p(math.exp(-2 / temperature)), math.log1p(math.exp(2 / temperature))
    if temperature == 0.5:
        assert (low, high) == (pytest.approx(0.01815, abs=5e-6), pytest.approx(4.01815, abs=5e-6))
    z = torch.randn(64, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    empty = torch.zeros(0)
    values = []
    for row in z:
        for near in (*z[:8], 7 * row, -row):
            received = {"weights": near, "buffers": empty}
            state = {"previous": -near[None], "previous_buffers": empty[None]}
            net: Any = Fixed()
            values.append(float(Moon(temperature=temperature).contrast(net, row[None], row[None], received, state)))
    assert min(values) == pytest.approx(low, abs=1e-9)
    assert max(values) == pytest.approx(high, abs=1e-9)


def test_frozen_models_keep_their_statistics() -> None:
    """Kills: a teacher whose BatchNorm moves (O-M4), or a student that is left in eval mode."""
    bench = Bench(ResNet20())
    state = kept(bench)
    before = {name: tensor.clone() for name, tensor in {**bench.start, **state}.items()}
    trained = bench.train(Moon(), 0, state)
    for name, tensor in {**bench.start, **state}.items():
        assert torch.equal(tensor, before[name]), name
    assert not torch.equal(trained.buffers, bench.start["buffers"])
    assert torch.equal(trained.new_state["previous_buffers"][-1], trained.buffers)


def operations(loss: Tensor) -> Counter[str]:
    """How often each operation is in the graph behind ``loss``."""
    seen, open_ends, names = set(), [loss.grad_fn], Counter[str]()
    while open_ends:
        node = open_ends.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names[node.name().removeprefix("torch::autograd::")] += 1
            open_ends += [child for child, _ in node.next_functions]
    return names


def test_no_graph_is_built_through_frozen_models() -> None:
    """Kills: three graphs in place of one, and the memory of three."""
    bench = moon_bench()
    state, batch = kept(bench, 2), bench.batch(0)
    counts, saved = [], []
    for algorithm in (Moon(buffer=2), FedAvg()):
        sizes: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            loss = algorithm.loss(bench.net, batch, bench.start, state)
        counts.append(operations(loss))
        saved.append(sum(sizes))
    assert counts[0]["ConvolutionBackward0"] == counts[1]["ConvolutionBackward0"] > 0
    assert counts[0]["AccumulateGrad"] == counts[1]["AccumulateGrad"] == len(bench.net.parameters)
    features = len(batch.y) * bench.net.layout.features
    assert saved[0] - saved[1] < 20 * features  # of the similarities; a body's activations are far more
    assert saved[1] > 25 * features


def test_the_queue_is_first_in_first_out() -> None:
    """Kills: a queue that grows, that forgets the newest, or that begins with the global model."""
    bench = moon_bench()
    moon, ends, state = Moon(buffer=2), [], None
    for _ in range(4):
        trained = bench.train(moon, 0, state)
        ends.append(trained.upload["weights"])
        state = trained.new_state
        assert torch.equal(state["previous"], torch.stack(ends[-2:]))
        bench.start["weights"] = trained.upload["weights"]  # so that the rounds differ
    single = bench.train(Moon(), 0, trained.new_state)
    assert torch.equal(single.new_state["previous"], single.upload["weights"][None])


def test_each_client_keeps_its_own(tmp_path: Path) -> None:
    """Kills: a previous model of another client, or of a place in the cohort."""
    fields = {"algorithm": {"name": "moon"}, "participation": {"count": 2}, "evaluation": {"local_every": 0}}
    run = drive(tmp_path, experiment(**SMALL, **fields), dataset(sum(FEW), PIXELS), assignment(FEW))
    taken = run.folder.frame("clients").groupby("client")["round"].count()
    states = {client: run.driver.lineage.states.store.read([client])[0] for client in range(len(FEW))}
    states = {client: state for client, state in states.items() if state is not None}
    assert set(states) == set(taken.index)
    assert len({tuple(state["previous"].flatten().tolist()) for state in states.values()}) == len(states)
    assert {state["previous"].shape for state in states.values()} == {(1, run.driver.layout.size)}


def test_its_control_is_fedavg_on_the_same_model(tmp_path: Path) -> None:
    """Kills: a term that stays where mu is 0 (O-M1)."""
    data, parts = dataset(sum(FEW), PIXELS), assignment(FEW)
    runs = [
        drive(tmp_path / str(number), experiment(**SMALL, algorithm=fields), data, parts).sha
        for number, fields in enumerate(({"name": "moon", "mu": 0.0}, {"name": "fedavg"}, {"name": "moon"}))
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mu": -0.1}, "algorithm.mu=-0.1: must be at least 0; 0 is FedAvg"),
        (
            {"temperature": 0.0},
            "algorithm.temperature=0.0: must be greater than 0; for example algorithm.temperature=0.5",
        ),
        ({"buffer": 0}, "algorithm.buffer=0: must be at least 1; for example algorithm.buffer=1"),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], message: str) -> None:
    """Kills: a missing check."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "moon", **fields}, model={"name": "moon_cnn"})
    assert str(error.value) == message


@pytest.mark.parametrize("model", ["mlp", "resnet20", "moon_cnn"])
def test_a_model_without_projection_is_refused(model: str) -> None:
    """Kills: MOON on features that no projection has made, in silence."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": "moon"}, model={"name": model, "projection": False})
    assert str(error.value) == "model.projection=False: must be True for moon; set model.projection=True"


# --- mutants ------------------------------------------------------------------------------------------


class RandomNegative(Moon):
    """G-02: the released code's negative for a client that has not been selected before."""

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        drawn = torch.randn(received["weights"].shape, generator=client.rng("negative"), dtype=torch.float64)
        return {"previous": 0.1 * drawn[None], "previous_buffers": received["buffers"][None]}


class Multiplied(Moon):
    """Temperature multiplied where it divides."""

    def contrast(self, net: Net, z: Tensor, x: Tensor, received: Tensors, state: Tensors) -> Tensor | float:
        return Moon(temperature=1 / self.temperature).contrast(net, z, x, received, state)


class BatchStatistics(Moon):
    """Teachers in train mode."""

    def contrast(self, net: Net, z: Tensor, x: Tensor, received: Tensors, state: Tensors) -> Tensor | float:
        near = net.at(received["weights"], received["buffers"], train=True).features(x)
        far = net.at(state["previous"][0], state["previous_buffers"][0], train=True).features(x)
        similar = torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], dim=1)
        return -F.log_softmax(similar / self.temperature, dim=1)[:, 0].mean()


class WrongWay(Moon):
    """Pushed from the global model."""

    def contrast(self, net: Net, z: Tensor, x: Tensor, received: Tensors, state: Tensors) -> Tensor | float:
        swapped = {"weights": state["previous"][0], "buffers": state["previous_buffers"][0]}
        state = {"previous": received["weights"][None], "previous_buffers": received["buffers"][None]}
        return super().contrast(net, z, x, swapped, state)


def test_a_random_first_negative_is_killed() -> None:
    bench = moon_bench()
    with pytest.raises(AssertionError):
        check_first_participation_is_fedavg(RandomNegative(), bench)


@pytest.mark.parametrize("mutant", [Multiplied(), WrongWay()], ids=lambda mutant: type(mutant).__name__)
def test_wrong_contrasts_are_killed(mutant: Moon) -> None:
    with pytest.raises(AssertionError):
        check_contrast_by_hand(mutant, moon_bench(), 1)


def test_teachers_in_train_mode_are_killed() -> None:
    with pytest.raises(AssertionError):
        check_contrast_by_hand(BatchStatistics(), Bench(ResNet20()), 1)


def test_state_of_another_length_is_no_matter() -> None:
    """Kills: a smaller buffer, in a later change of the schedule, that keeps the old length."""
    bench = moon_bench()
    trained = bench.train(replace(Moon(), buffer=2), 0, kept(bench, 4))
    assert len(trained.new_state["previous"]) == 2
