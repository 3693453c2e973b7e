"""Executor ``block`` against executor ``loop``: every option of local training and every kind of phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Client, Context, Kind, LocalRun, ModelState, Net, Phase, PhaseResult, Tensors
from engine.client.steps import training_loop as sequential
from engine.client.steps.client_round import ClientTask
from engine.client.vmap import training_loop as block
from engine.experiment import Local
from engine.models import CNN, CNN3, MLP, Logistic, ModelSpec, MoonCNN, PflegoCifar, ResNet8
from tests.support.bench import Bench
from tests.support.side_by_side import RAGGED, assert_alike, one_by_one, together

MODELS: dict[str, ModelSpec] = {
    "logistic": Logistic(),
    "mlp": MLP(hidden=(6,)),
    "projection": MLP(hidden=(6,), projection=True),
    "normalised": MLP(hidden=(6,), head="normalised"),
    "normalised logistic": Logistic(head="normalised"),
    "resnet8": ResNet8(),
}
NAMES = ("a", "b")  # of phases
TOLD = ("steps", "accumulation", "lr", "gradient")


@dataclass(frozen=True)
class Telling(FedAvg):
    """FedAvg in phases that the test chooses, which uploads all that it is told of a client's round."""

    wanted: tuple[Phase, ...] = (Phase(),)

    entries: ClassVar[Mapping[str, Kind]] = {
        **FedAvg.entries,
        **dict.fromkeys(TOLD, Kind.TENSOR),
        **{f"{name}.{part}": Kind.TENSOR for name in NAMES for part in ("start", "end", "buffers", "num_examples")},
    }

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return self.wanted

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        told = {"steps": run.steps, "accumulation": run.accumulation, "lr": run.lr}
        told |= {} if run.gradient is None else {"gradient": run.gradient}
        told |= {f"{name}.{part}": value for name, ended in run.ends.items() for part, value in vars(ended).items()}
        return {"weights": run.end, **{name: torch.as_tensor(value) for name, value in told.items()}}, {}


class Pulled(Telling):
    """Back to where the phase began, the harder the more rows a client has, its head harder than its body."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        layout, share = client.context.layout, client.num_examples / client.context.num_examples
        gap = weights - received["phase_start"]
        head = client.class_counts.sum() * layout.head_of(gap) + layout.head_of(weights - received["weights"])
        return grad + share * layout.join(layout.body_of(gap), head)


class Perturbed(Pulled):
    """Its gradient is taken away from the weights, each client's elsewhere, by norms of what the phase trains."""

    def perturbation(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        far = client.num_examples * grad / (grad.norm() + 1e-12)
        return 0.01 * (far + weights - received["phase_start"])


def both(
    algorithm: FedAvg,
    spec: ModelSpec,
    sizes: tuple[int, ...] = RAGGED,
    shape: tuple[int, int, int] = (1, 8, 8),
    work: tuple[int, ...] = (),
    **local: Any,
) -> tuple[list[Any], list[Any]]:
    """What clients come to in one pass, and one by one; ``work``: each client's, see Local.doing."""
    bench = Bench(spec, sizes=sizes, shape=shape)
    received = bench.received(algorithm)
    section = Local(**{"epochs": 2, "batch_size": 8, "lr": 0.1, **local})
    visits = [
        ClientTask(algorithm, section.doing(own), number, part, bench.context, received, {}, newcomer=True)
        for number, (part, own) in enumerate(zip(bench.parts, work or [None] * len(sizes), strict=True))
    ]
    return together(bench.trainer, visits), one_by_one(bench.trainer, visits)


PLAIN = (Phase(),)
OPTIONS: dict[str, tuple[tuple[Phase, ...], dict[str, Any]]] = {
    "plain": (PLAIN, {}),
    "momentum": (PLAIN, {"momentum": 0.9}),
    "nesterov": (PLAIN, {"momentum": 0.9, "nesterov": True}),
    "weight decay": (PLAIN, {"weight_decay": 0.05}),
    "adam": (PLAIN, {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.05}),
    "adamw": (PLAIN, {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.05}),
    "rmsprop": (PLAIN, {"optimizer": "rmsprop", "lr": 0.001, "momentum": 0.5, "weight_decay": 0.05}),
    "clipped": (PLAIN, {"clip_norm": 0.3, "momentum": 0.9}),
    "rates by step": (PLAIN, {"lr_by": "step", "lr_schedule": "linear", "lr_period": 4, "lr_end": 0.1}),
    "rates of a warm-up": ((Phase(steps=3), Phase(steps=2, lr=0.05)), {"lr_by": "step", "lr_warmup": 2}),
    "flip": (PLAIN, {"augment": "flip"}),
    "crop_flip": (PLAIN, {"augment": "crop_flip"}),
    "drop": (PLAIN, {"last_batch": "drop"}),
    "wrap": (PLAIN, {"last_batch": "wrap"}),
    "steps": (PLAIN, {"steps": 5}),
    "steps without a batch": (PLAIN, {"steps": 5, "last_batch": "drop", "batch_size": 10}),
    "full": (PLAIN, {"batch_size": "full"}),
    "phase's batch": ((Phase(batch=3, epochs=1),), {}),
    "no step": ((Phase(steps=0), Phase(epochs=0)), {}),
    "repeat": ((Phase(repeat=3, epochs=1),), {"augment": "flip"}),
    "steps of repeated batches": ((Phase(repeat=2, steps=5),), {}),
    "support and query": ((Phase(name="a", rows="support"), Phase(name="b", rows="query")), {}),
    "little support": ((Phase(rows="support", support=0.2), Phase(rows="query", support=0.2, batch="full")), {}),
    "body": ((Phase(trainable="body"),), {"momentum": 0.9, "weight_decay": 0.05}),
    "head": ((Phase(trainable="head"),), {"momentum": 0.9, "weight_decay": 0.05, "augment": "flip"}),
    "body in place": ((Phase(trainable="body"),), {}),
    "head in place": ((Phase(trainable="head"),), {}),
    "cached": ((Phase(trainable="head", features="cached"),), {"augment": "flip"}),
    "cached, of a part": ((Phase(trainable="head", features="cached", rows="query"), Phase()), {}),
    "cached and full": ((Phase(trainable="head", features="cached", batch="full", steps=3),), {}),
    "head, then body": ((Phase(trainable="head", steps=2, lr=0.5), Phase(trainable="body", lr=0.05)), {}),
    "gradient": ((Phase(emit="gradient"),), {}),
    "full gradient": ((Phase(emit="gradient", batch="full"), Phase()), {}),
    "gradient of the body": ((Phase(), Phase(emit="gradient", trainable="body", batch="full", epochs=1)), {}),
    "gradient that some have not": (
        (Phase(emit="gradient", rows="support", epochs=3), Phase(rows="support", epochs=1)),
        {},
    ),
    "kept buffers": ((Phase(buffers="keep"), Phase(name="a", steps=1)), {}),
    "names": ((Phase(name="a", steps=3), Phase(), Phase(name="b", trainable="head"), Phase(name="a", steps=1)), {}),
    "rates": ((Phase(lr=0.3, steps=1), Phase(steps=1)), {}),
}


# Networks of linear layers go another way than others, and yet another with a gradient hook.
WAYS = {"written out": ("mlp", Telling), "hooked": ("mlp", Pulled), "mapped": ("resnet8", Telling)}
WAYS |= {"perturbed": ("mlp", Perturbed), "perturbed, mapped": ("resnet8", Perturbed)}


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_options(option: str, way: str) -> None:
    """Kills: a velocity or a moment that is shared, kept over phases or moved by a client that has no step; decay of
    what is not trained; draws of rows or of images from another client's stream, in another order, or drawn more often;
    rows of a client in place of positions in its part; counts of steps by passes, or of the client with most rows."""
    (model, kind), (chosen, local) = WAYS[way], OPTIONS[option]
    found, wanted = both(kind(wanted=chosen), MODELS[model], **local)
    assert_alike(found, wanted, 1e-11)
    idle = all(phase.emit == "gradient" or 0 in (phase.steps, phase.epochs) for phase in chosen)
    assert any(trained.steps for trained in wanted) != idle


UNEQUAL = {
    **{name: OPTIONS[name] for name in ("momentum", "adam", "rates by step", "crop_flip", "steps", "full", "cached")},
    "a head on all rows": ((Phase(trainable="head", features="cached", batch="full"), Phase()), {}),
    "of a part": ((Phase(trainable="head", features="cached", batch="full", rows="support"), Phase(steps=2)), {}),
}


@pytest.mark.parametrize("option", UNEQUAL)
@pytest.mark.parametrize("way", ["written out", "hooked"])
def test_unequal_work(option: str, way: str) -> None:
    """Kills: as many steps for all as for the client with most rows, or for those with as many rows; a schedule, a
    moment or a draw that goes on with others' steps; clients that step together by rows which are not in order."""
    (model, kind), (chosen, local) = WAYS[way], UNEQUAL[option]
    found, wanted = both(kind(wanted=chosen), MODELS[model], work=(1, 3, 4, 4, 1, 2), **local)
    assert_alike(found, wanted, 1e-11)
    assert len({trained.steps for trained in wanted}) > 2


def test_clients_of_equal_work_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: clients in the order of their rows alone, whose later passes fall apart."""
    taken, take = list[int](), block.VmapLoop._take_step

    def counted(loop: Any, first: int, last: int, *rest: Any) -> None:
        taken.append(last - first)
        take(loop, first, last, *rest)

    monkeypatch.setattr(block.VmapLoop, "_take_step", counted)
    both(Telling(), MODELS["mlp"], sizes=(8, 8, 8, 8), work=(1, 3, 1, 3))
    assert taken == [4, 2, 2]


@pytest.mark.parametrize("option", ["plain", "momentum", "body", "head", "body in place", "cached", "names"])
@pytest.mark.parametrize("model", ["logistic", "projection", "normalised", "normalised logistic"])
def test_other_networks_of_linear_layers(model: str, option: str) -> None:
    """Kills: a body without weights, of which no loss is reported; a ReLU after a layer that has none; a head of
    another kind taken for a linear one."""
    chosen, local = OPTIONS[option]
    assert_alike(*both(Telling(wanted=chosen), MODELS[model], **local), 1e-11)


CONVOLVING: dict[str, tuple[ModelSpec, tuple[int, int, int]]] = {
    "group normalisation": (CNN(norm="group"), (1, 8, 8)),
    "batch normalisation": (CNN(norm="batch"), (1, 8, 8)),
    "overlapping pooling": (PflegoCifar(), (3, 8, 8)),
    "mean pooling": (CNN3(), (3, 8, 8)),
    "projection": (MoonCNN(), (3, 16, 16)),
    "projection, normalised": (ResNet8(projection=True, head="normalised"), (3, 8, 8)),
}


@pytest.mark.parametrize("name", CONVOLVING)
def test_other_networks_of_convolutions(name: str) -> None:
    """Kills: a layer that is mapped over clients wrongly, or not at all, of which torch would warn."""
    spec, shape = CONVOLVING[name]
    assert_alike(*both(Telling(), spec, (3, 1, 4), shape, batch_size=3), 1e-11)


class ByPhase(Telling):
    """Its loss is not the same in each phase."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return F.cross_entropy(net(batch.x), batch.y) * {"": 1.0, "a": 2.0, "b": 3.0}[batch.client.phase]


def test_the_objective_is_that_of_its_phase() -> None:
    """Kills: the first batch measured again by the last phase's objective."""
    for chosen in ((Phase(name="a", steps=1), Phase(steps=1)), (Phase(name="b", rows="support"), Phase(name="a"))):
        assert_alike(*both(ByPhase(wanted=chosen), MODELS["mlp"]), 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_full_batch_is_exact_over_chunks(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a step for each chunk; a mean of chunk means where chunks differ in size; rows of another chunk."""
    for module in (sequential, block):
        monkeypatch.setattr(module, "CHUNK", 5)
    model, kind = WAYS[way]
    whole = Phase(batch="full", steps=3)
    cached = replace(whole, trainable="head", features="cached")
    for chosen in ((whole,), (replace(whole, emit="gradient"), whole), (cached,)):
        found, wanted = both(kind(wanted=chosen), MODELS[model])
        assert_alike(found, wanted, 1e-11)


@pytest.mark.parametrize("sizes", [(16,), (8, 8, 8), (1, 1, 1), (3, 2, 7), (1, 1, 40)])
@pytest.mark.parametrize("way", WAYS)
def test_sizes(way: str, sizes: tuple[int, ...]) -> None:
    """Kills: a block of one client, whose entries are all shared; clients of equal size in another order; a block whose
    clients all have fewer rows than a batch, or none that BatchNorm takes."""
    model, kind = WAYS[way]
    assert_alike(*both(kind(), MODELS[model], sizes), 1e-11)


@dataclass(frozen=True)
class Entering(Telling):
    """Its second phase starts elsewhere, each client's in another place; with ``anew`` it is another model."""

    anew: bool = False

    def phase_start(
        self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client
    ) -> ModelState | Tensor | None:
        far = previous.start + client.num_examples * (previous.end - previous.start)
        if client.phase == "a" and self.anew:
            return ModelState(far, received["buffers"])
        return far if client.num_examples > 8 else None


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("model", ["mlp", "resnet8"])
def test_a_phase_starts_where_each_client_says(model: str, anew: bool) -> None:
    """Kills: an entry of another client; buffers that stay where others are given, or the other way round; the first
    batch of a model that was left."""
    steps = Phase(steps=2)
    chosen = (steps, replace(steps, name="a"), replace(steps, name="b"))
    assert_alike(*both(Entering(wanted=chosen, anew=anew), MODELS[model]), 1e-11)


# --- what a hook must not do ----------------------------------------------------------------------------


class DrawsInLoss(FedAvg):
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        noise = torch.randn(batch.x.shape, generator=batch.client.rng("noise"))
        return F.cross_entropy(net(batch.x + noise), batch.y)


class DrawsInGradient(FedAvg):
    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad + torch.randn(grad.shape, generator=client.rng("noise"))


class DrawsNumbers(FedAvg):
    def step_randomness(self, client: Client, rows: int, received: Tensors) -> dict[str, Any]:
        return {"width": 0.5}


class DrawsRagged(FedAvg):
    def step_randomness(self, client: Client, rows: int, received: Tensors) -> dict[str, Any]:
        return {"rows": torch.zeros(client.num_examples)}


class KeepsRagged(FedAvg):
    entries: ClassVar[Mapping[str, Kind]] = {**FedAvg.entries, "mine": Kind.TENSOR, "more": Kind.TENSOR}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"mine": torch.zeros(client.num_examples)}

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return F.cross_entropy(net(batch.x), batch.y) + 0 * state["mine"].sum()


class KeepsMore(KeepsRagged):
    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        extra = {"more": torch.zeros(2)} if client.num_examples < 8 else {}
        return {"mine": torch.zeros(2), **extra}


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (
            DrawsInLoss,
            r"a loss or gradient draws nothing itself: what it needs of 'noise' comes from Algorithm.step_randomness",
        ),
        (DrawsInGradient, r"draws nothing itself: what it needs of 'noise' comes from Algorithm.step_randomness"),
        (
            DrawsNumbers,
            r"DrawsNumbers.step_randomness: 'width' is no tensor of one shape for all clients of a block; "
            r"say so in requires.no_vmap",
        ),
        (
            DrawsRagged,
            r"DrawsRagged.step_randomness: 'rows' is no tensor of one shape for all clients of a block; "
            r"say so in requires.no_vmap",
        ),
        (KeepsRagged, r"KeepsRagged: what clients keep: 'mine' is no tensor of one shape for all clients of a block; "),
        (KeepsMore, r"KeepsMore: what clients keep: 'more' is no tensor of one shape for all clients of a block; say"),
    ],
)
def test_a_hook_that_cannot_be_stacked_is_told_so(kind: type[FedAvg], message: str) -> None:
    """Kills: one client's noise for all of them; an entry that only some have left out without a word; an error that
    names no method and no repair."""
    with pytest.raises(TypeError, match=message):
        both(kind(), MODELS["mlp"])
