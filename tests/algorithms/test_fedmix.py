"""FedMix, NaiveMix and local Mixup: the exact oracles O-FM1 to O-FM6, and public mistakes that they must catch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import Tensor

from algorithms import ALGORITHMS, naivemix
from algorithms.fedmix import FedMix
from algorithms.mixup_local import MixupLocal
from algorithms.naivemix import NaiveMix, averages
from engine.algorithm import Batch, ClientView, Kind, Net, Tensors, seeds
from engine.base.errors import ConfigError
from engine.models import MLP, Logistic
from engine.models.resnet import ResNet20
from tests.support.bench import FEW, Bench
from tests.support.tiny import CLASSES, Driven, assignment, dataset, drive, experiment

ROWS = dataset(sum(FEW)).train
PARTS = assignment(FEW).clients
PIXELS, LABEL = 64, CLASSES  # |x| and M


def run(path: Path, name: str, **fields: Any) -> Driven:
    """Two rounds with every client of ``FEW``, who have 12, 5 and 9 rows."""
    settings = experiment(rounds=2, algorithm={"name": name, **fields})
    return drive(path, settings, dataset(sum(FEW)), assignment(FEW))


def normalised(rows: np.ndarray) -> np.ndarray:
    return (ROWS.images[rows] / 255.0 - 0.5) / 0.25


def given(bench: Bench, batch: Batch, image: Tensor, label: Tensor) -> tuple[Batch, Tensors]:
    """A batch whose partner is (image [1, ...], label [1, C]), and what was received for that."""
    drawn = dataclasses.replace(batch, drawn={"partner": torch.tensor([0])})
    return drawn, {**bench.start, "images": image, "labels": label}


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels, CLASSES).double()


def global_mixup(net: Net, batch: Batch, mix: float, image: Tensor, label: Tensor) -> Tensor:
    """What both methods stand for: Mixup with a raw image of another client."""
    log_p = F.log_softmax(net((1 - mix) * batch.x + mix * image), dim=1)
    return (1 - mix) * F.nll_loss(log_p, batch.y) - mix * (label * log_p).sum(1).mean()


# --- what must be killed ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class MeanOfMean(FedMix):
    """G-01: the gradient of the batch's mean loss, averaged once more, as both public versions have it."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        image, label = self.partner(batch, received)
        x = ((1 - self.mix) * batch.x).requires_grad_()
        log_p = F.log_softmax(net(x), dim=1)
        (slope,) = torch.autograd.grad(F.nll_loss(log_p, batch.y), x, create_graph=True)
        taylor = (slope * image).flatten(1).sum(1).mean()
        return self.mixed(log_p, batch, label) + self.mix * (1 - self.mix) * taylor


@dataclasses.dataclass(frozen=True)
class Detached(FedMix):
    """A Taylor term without a graph: it is in the loss and not in its gradient."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        image, label = self.partner(batch, received)
        z, slope = net.jvp((1 - self.mix) * batch.x, image)
        log_p = F.log_softmax(z, dim=1)
        taylor = ((log_p.exp() - one_hot(batch.y)) * slope).sum(1).mean().detach()
        return self.mixed(log_p, batch, label) + self.mix * (1 - self.mix) * taylor


@dataclasses.dataclass(frozen=True)
class EveryRound(FedMix):
    """Averages that are counted with each broadcast."""

    entries: ClassVar = {**FedMix.entries, **dict.fromkeys(("images", "labels"), Kind.IMAGES)}


def without_the_rest(view: ClientView, shared: Tensors, size: int) -> Tensors:
    """An exchange that drops a client's last, smaller part."""
    made = averages(view, shared, size)
    whole = int(view.client.num_examples) // size if size else 1
    return {name: tensor[:whole] for name, tensor in made.items()}


# --- O-FM1 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedmix", "naivemix"])
def test_no_mixing_is_fedavg_and_sends_nothing(tmp_path: Path, name: str) -> None:
    """Kills: an exchange, a draw or a row of traffic that a share of 0 leaves behind (O-FM1)."""
    plain, mixed = run(tmp_path / "a", "fedavg"), run(tmp_path / "b", name, mix=0)
    assert mixed.sha == plain.sha
    assert set(mixed.server) == {"weights", "buffers"}
    assert mixed.folder.frame("exchanges").empty
    assert mixed.summary["floats_down"] == plain.summary["floats_down"]


# --- O-FM2 and the loss itself ------------------------------------------------------------------------


def check_first_order(fedmix: Callable[..., FedMix], coefficient: str) -> None:
    """O-FM2: the distance to global Mixup quarters when lambda halves. Logistic, since ReLUs have no expansion."""
    bench = Bench(Logistic())
    batch, other = bench.batch(0), bench.batch(1)
    image, label = other.x[:1], one_hot(other.y[:1])
    errors = []
    for mix in (0.02, 0.01, 0.005):
        drawn, received = given(bench, batch, image, label)
        ours = fedmix(mix=mix, taylor_coef=coefficient).loss(bench.net, drawn, received, {})
        errors.append(float((ours - global_mixup(bench.net, batch, mix, image, label)).detach().abs()))
    for large, small in itertools.pairwise(errors):
        assert large / small == pytest.approx(4, rel=0.15)


@pytest.mark.parametrize("coefficient", ["one_minus_lambda", "one"])
def test_global_mixup_to_first_order(coefficient: str) -> None:
    """Kills: a Taylor term of another size or sign."""
    check_first_order(FedMix, coefficient)


def test_a_term_that_is_b_times_too_small_is_no_expansion() -> None:
    """G-01 is caught by O-FM2."""
    with pytest.raises(AssertionError):
        check_first_order(MeanOfMean, "one_minus_lambda")


def check_gradient(fedmix: type[FedMix], spec: Any) -> None:
    """The loss and its gradient in all parameters equal the formula with a gradient of the sum in input space."""
    bench = Bench(spec)
    net, mix = bench.net, 0.1
    net.train(True)
    batch, other = bench.batch(0), bench.batch(1)
    image, label = other.x.mean(0, keepdim=True), one_hot(other.y).mean(0, keepdim=True)
    drawn, received = given(bench, batch, image, label)
    ours = fedmix(mix=mix).loss(net, drawn, received, {})
    gradient = net.backward(ours).clone()
    x = ((1 - mix) * batch.x).requires_grad_()
    log_p = F.log_softmax(net(x), dim=1)
    (slope,) = torch.autograd.grad(F.nll_loss(log_p, batch.y, reduction="sum"), x, create_graph=True)
    taylor = (slope * image).flatten(1).sum(1).mean()
    own, theirs = F.nll_loss(log_p, batch.y), -(label * log_p).sum(1).mean()
    formula = (1 - mix) * own + mix * theirs + mix * (1 - mix) * taylor
    torch.testing.assert_close(ours, formula, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, net.backward(formula), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("spec", [MLP(hidden=(8,)), ResNet20()], ids=["mlp", "resnet20"])
def test_loss_and_gradient_equal_double_backward(spec: Any) -> None:
    """Kills: a Taylor term without its share of the gradient; torch's rule for BatchNorm (see test_jvp.py)."""
    check_gradient(FedMix, spec)


def test_a_term_without_gradient_is_noticed() -> None:
    """A mutant of the one above."""
    with pytest.raises(AssertionError):
        check_gradient(Detached, MLP(hidden=(8,)))


# --- O-FM3, 4, 5 --------------------------------------------------------------------------------------


def test_linear_in_the_partner() -> None:
    """Kills: a loss that mixes the averages into the input, where the mean of losses is no loss at the mean (O-FM3)."""
    bench = Bench(MLP(hidden=(8,)))
    batch, other = bench.batch(0), bench.batch(1)
    losses = {}
    for cls in (FedMix, NaiveMix):
        single = []
        for row in range(len(other.y)):
            drawn, received = given(bench, batch, other.x[row : row + 1], one_hot(other.y[row : row + 1]))
            single.append(cls(mix=0.3).loss(bench.net, drawn, received, {}))
        drawn, received = given(bench, batch, other.x.mean(0, True), one_hot(other.y).mean(0, True))
        losses[cls] = torch.stack(single).mean(), cls(mix=0.3).loss(bench.net, drawn, received, {})
    torch.testing.assert_close(*losses[FedMix], rtol=0, atol=1e-12)
    assert (losses[NaiveMix][0] - losses[NaiveMix][1]).abs() > 1e-4


def test_naivemix_of_single_rows_is_global_mixup(tmp_path: Path) -> None:
    """Kills: shares of input and label that differ; an exchange that loses rows or their labels (O-FM4)."""
    done = run(tmp_path, "naivemix", mash=1, mix=0.2)
    images, labels = done.server["images"].double(), done.server["labels"].double()
    pixels = ((images * 0.25 + 0.5) * 255).round().numpy().astype(np.uint8)
    sent = sorted((x.tobytes(), int(y.argmax())) for x, y in zip(pixels, labels, strict=True))
    assert sent == sorted((x.tobytes(), int(y)) for x, y in zip(ROWS.images, ROWS.labels, strict=True))
    bench = Bench(MLP(hidden=(8,)))
    batch = bench.batch(0)
    for row in (0, 20):
        drawn, received = given(bench, batch, images[row : row + 1], labels[row : row + 1])
        ours = NaiveMix(mix=0.2).loss(bench.net, drawn, received, {})
        exact = global_mixup(bench.net, batch, 0.2, images[row : row + 1], labels[row : row + 1])
        torch.testing.assert_close(ours, exact, rtol=0, atol=1e-13)


def check_rows(fedmix: type[FedMix]) -> None:
    """O-FM5: without BatchNorm a batch's loss is the mean of its rows' own losses."""
    bench = Bench(MLP(hidden=(8,)))
    batch, other = bench.batch(0), bench.batch(1)
    image, label = other.x.mean(0, keepdim=True), one_hot(other.y).mean(0, keepdim=True)
    drawn, received = given(bench, batch, image, label)
    rows = [
        fedmix(mix=0.2).loss(
            bench.net, dataclasses.replace(drawn, x=drawn.x[i : i + 1], y=drawn.y[i : i + 1]), received, {}
        )
        for i in range(len(batch.y))
    ]
    whole = fedmix(mix=0.2).loss(bench.net, drawn, received, {})
    torch.testing.assert_close(whole, torch.stack(rows).mean(), rtol=0, atol=1e-12)


def test_each_row_has_its_own_gradient() -> None:
    """Kills: a term whose size depends on the batch (O-FM5); G-01 is caught by it."""
    check_rows(FedMix)
    with pytest.raises(AssertionError):
        check_rows(MeanOfMean)


# --- O-FM6: the exchange and its traffic --------------------------------------------------------------


def check_exchange(path: Path, name: str, mash: int) -> None:
    done = run(path, name, mash=mash)
    images, labels = done.server["images"].double().numpy(), done.server["labels"].double().numpy()
    sizes = [[len(part)] if mash == 0 else _sizes(len(part), mash) for part in PARTS]
    assert len(images) == len(labels) == sum(map(len, sizes))
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)
    row = 0
    for part, chunks in zip(PARTS, sizes, strict=True):  # in client order
        where = slice(row, row + len(chunks))
        row += len(chunks)
        weighted = np.tensordot(chunks, images[where], 1)
        np.testing.assert_allclose(weighted, normalised(part).sum(0), atol=1e-4)
        counts = np.bincount(ROWS.labels[part], minlength=CLASSES)
        np.testing.assert_allclose(np.array(chunks) @ labels[where], counts, atol=1e-5)
    exchanges = done.folder.frame("exchanges")
    up = exchanges[exchanges["when"] == "prepare"].set_index("client")
    down = exchanges[exchanges["when"] == "start"].set_index("client")
    floats = PIXELS + LABEL
    assert up["floats_up"].to_dict() == {client: len(chunks) * floats for client, chunks in enumerate(sizes)}
    assert (up["floats_down"] == 0).all()
    assert down["floats_down"].to_dict() == {client: len(images) * floats for client in range(len(FEW))}
    assert (down["floats_up"] == 0).all()
    assert len(exchanges) == 2 * len(FEW)
    assert set(exchanges["round"]) == {0}
    size = done.driver.layout.size + done.driver.layout.buffers
    clients = done.folder.frame("clients")
    assert set(clients["floats_down"]) == set(clients["floats_up"]) == {size}
    rounds = 2 * len(FEW) * size
    assert done.summary["floats_up"] == rounds + len(images) * floats
    assert done.summary["floats_down"] == rounds + len(FEW) * len(images) * floats


def _sizes(rows: int, mash: int) -> list[int]:
    return [mash] * (rows // mash) + [rows % mash] * (rows % mash > 0)


@pytest.mark.parametrize("name", ["fedmix", "naivemix"])
@pytest.mark.parametrize("mash", [0, 4, 5, 100])
def test_averages_are_exchanged_and_counted_once(tmp_path: Path, name: str, mash: int) -> None:
    """Kills: means of raw or augmented pixels, a lost last part, labels of other rows, the traffic of spec 0.6."""
    check_exchange(tmp_path, name, mash)


def test_mistakes_of_the_exchange_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O-FM6 catches averages that are counted every round, and a part that is dropped."""
    monkeypatch.setitem(ALGORITHMS, "fedmix", EveryRound)
    with pytest.raises((AssertionError, KeyError)):
        check_exchange(tmp_path / "a", "fedmix", 4)
    monkeypatch.undo()
    monkeypatch.setattr(naivemix, "averages", without_the_rest)
    with pytest.raises((AssertionError, ValueError)):
        check_exchange(tmp_path / "b", "fedmix", 5)


def test_local_mixup_sends_what_fedavg_sends(tmp_path: Path) -> None:
    """Kills: an exchange or an entry that this method has no use for."""
    done = run(tmp_path, "mixup_local")
    size = done.driver.layout.size + done.driver.layout.buffers
    clients = done.folder.frame("clients")
    assert set(clients["floats_down"]) == set(clients["floats_up"]) == {size}
    assert done.folder.frame("exchanges").empty


def test_augmentation_stays_out_of_the_averages(tmp_path: Path) -> None:
    """Kills: means of flipped images."""
    local = {"epochs": 1, "batch_size": 8, "lr": 0.1, "augment": "flip"}
    settings = experiment(rounds=1, algorithm={"name": "fedmix"}, local=local)
    done = drive(tmp_path, settings, dataset(sum(FEW)), assignment(FEW))
    np.testing.assert_allclose(done.server["images"][1].numpy(), normalised(PARTS[1]).mean(0), atol=1e-5)


# --- draws --------------------------------------------------------------------------------------------


def test_a_step_has_one_partner_and_steps_have_others() -> None:
    """Kills: a partner drawn once a round, one per row, or always from the first client."""
    bench = Bench(MLP(hidden=(8,)))
    client = bench.client(0)
    received = {"labels": torch.zeros(5, CLASSES)}
    drawn = [FedMix().step_randomness(client, 8, received)["partner"] for _ in range(300)]
    assert {tuple(index.shape) for index in drawn} == {(1,)}
    assert np.bincount(torch.cat(drawn), minlength=5).min() > 30


@pytest.mark.parametrize("gamma", [0.2, 1.0, 3.0])
def test_weights_of_local_mixup_are_beta_distributed(gamma: float) -> None:
    """Kills: uniform weights whatever gamma says; a permutation that is none."""
    client = Bench(MLP(hidden=(8,))).client(0)
    mixup = MixupLocal(gamma=gamma)
    drawn = [mixup.step_randomness(client, 8, {}) for _ in range(400)]
    shares = [float(step["share"]) for step in drawn]
    assert stats.kstest(shares, "beta", args=(gamma, gamma)).pvalue > 0.01
    assert all(sorted(step["partners"].tolist()) == list(range(8)) for step in drawn)
    assert len({tuple(step["partners"].tolist()) for step in drawn}) > 350


def test_local_mixup_by_hand() -> None:
    """Kills: the partner's label at the partner's own share, or images mixed with other rows than labels."""
    bench = Bench(MLP(hidden=(8,)))
    batch = bench.batch(1)
    share, partners = torch.tensor(0.3, dtype=torch.float64), torch.tensor([2, 0, 4, 1, 3])
    drawn = dataclasses.replace(batch, drawn={"share": share, "partners": partners})
    ours = MixupLocal().loss(bench.net, drawn, bench.start, {})
    rows = [
        0.3 * F.cross_entropy(z, batch.y[i : i + 1]) + 0.7 * F.cross_entropy(z, batch.y[p : p + 1])
        for i, p in enumerate(partners.tolist())
        for z in [bench.net(0.3 * batch.x[i : i + 1] + 0.7 * batch.x[p : p + 1])]
    ]
    torch.testing.assert_close(ours, torch.stack(rows).mean(), rtol=0, atol=1e-12)


def test_losses_have_a_batch_dimension_for_clients() -> None:
    """Kills: a loss that a functional transform cannot stack over clients: per-client gradients equal single ones."""
    bench = Bench(MLP(hidden=(8,)))
    batches = [bench.batch(number) for number in range(2)]
    x, y = (torch.stack([getattr(batch, which)[:5] for batch in batches]) for which in ("x", "y"))
    image, label = batches[1].x.mean(0, keepdim=True), one_hot(batches[1].y).mean(0, keepdim=True)
    drawn, received = given(bench, batches[0], image, label)
    start = bench.start["weights"]
    weights = torch.stack([start, start * 1.1])
    names = [name for name, _ in bench.net.model.named_parameters()]

    def loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        tensors = dict(zip(names, bench.net.parameter_pieces(vector), strict=True))
        net = Functional(bench, tensors)
        return FedMix(mix=0.2).loss(net, dataclasses.replace(drawn, x=x, y=y), received, {})  # type: ignore[arg-type]

    stacked = torch.func.vmap(torch.func.grad(loss))(weights, x, y)
    for number in range(2):
        alone = torch.func.grad(loss)(weights[number], x[number], y[number])
        torch.testing.assert_close(stacked[number], alone, rtol=0, atol=1e-12)


class Functional:
    """The bench's network at tensors that a transform traces: as much of a net as FedMix asks for."""

    def __init__(self, bench: Bench, tensors: dict[str, Tensor]) -> None:
        self.model = bench.net.model
        self.tensors = tensors

    def __call__(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.model, self.tensors, (x,))

    def jvp(self, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        from engine.client.steps.jvp import jvp

        return jvp(self, x, direction)


# --- refusals and warnings ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("fedmix", {"mix": 1.0}, "algorithm.mix=1.0: must be at least 0 and below 1; 0 is FedAvg"),
        ("naivemix", {"mix": -0.1}, "algorithm.mix=-0.1: must be at least 0"),
        ("fedmix", {"mash": -1}, "algorithm.mash=-1: must be at least 0; for example algorithm.mash=0"),
        ("fedmix", {"taylor_coef": "two"}, "algorithm.taylor_coef=two: must be"),
        ("mixup_local", {"gamma": -1}, "algorithm.gamma=-1: must be at least 0; 0 is FedAvg"),
    ],
)
def test_bad_values_are_refused(name: str, fields: dict[str, Any], message: str) -> None:
    """Kills: a value that trains something else without a word."""
    with pytest.raises(ConfigError) as error:
        experiment(algorithm={"name": name, **fields})
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("before", "after", "refused"),
    [
        (
            {"mix": 0.0},
            {"mix": 0.1},
            "schedule=mix=0.1: comes too late: averages are made before the stage's first round",
        ),
        ({"mash": 5}, {"mash": 6}, "schedule=mash=6: comes too late: averages are made before the stage's first round"),
        ({"mix": 0.2}, {"mix": 0.1}, None),
        ({"mix": 0.2}, {"mix": 0.0}, None),
    ],
)
def test_a_schedule_cannot_change_the_averages(before: Any, after: Any, refused: str | None) -> None:
    """Kills: an error in mid-run; averages that are asked for and never made."""
    change = {"round": 2, "set": {f"algorithm.{name}": value for name, value in after.items()}}
    values: dict[str, Any] = {"algorithm": {"name": "fedmix", **before}, "rounds": 3}
    if refused is None:
        experiment(**values, schedule=[change])
        return
    with pytest.raises(ConfigError) as error:
        experiment(**values, schedule=[change])
    assert str(error.value).startswith(refused)
    # In the first round of another stage it comes in time.
    stages = [{"name": "first", "rounds": 1}, {"name": "second", "rounds": 2, "needs": ["first"]}]
    experiment(**values, stages=stages, schedule=[change])


@pytest.mark.parametrize("name", ["naivemix", "fedmix"])
def test_without_rounds_there_is_nothing_to_mix(name: str) -> None:
    """Kills: images that clients hand over for nothing."""
    end = {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": name}}
    with pytest.raises(
        ConfigError, match=f"stages.end.rounds=0: {name} asks clients for what only its rounds use; set"
    ):
        experiment(stages=[{"name": "train", "rounds": 1}, end])
    experiment(stages=[{"name": "train", "rounds": 1}, {**end, "algorithm": {"name": "fedavg"}}])


def test_averages_of_one_row_are_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kills: raw images that are sent to all without a word."""
    with caplog.at_level("WARNING", logger="fedskew"):
        run(tmp_path / "a", "fedmix", mash=2)
        assert not caplog.records
        run(tmp_path / "b", "fedmix", mash=1)
    assert ["every image is sent to all clients" in record.getMessage() for record in caplog.records] == [True]


def test_seeds_reach_the_partition_of_rows_into_averages(tmp_path: Path) -> None:
    """Kills: averages of rows in the order of the data set."""
    images = [
        drive(
            tmp_path / str(seed),
            experiment(rounds=1, algorithm={"name": "fedmix", "mash": 4}, seed=seed),
            dataset(sum(FEW)),
            assignment(FEW),
        ).server["images"]
        for seed in (0, 1)
    ]
    assert images[0].shape == images[1].shape and not torch.allclose(*images)
    assert seeds.key(0, "mash", 0, 0) != seeds.key(1, "mash", 0, 0)
