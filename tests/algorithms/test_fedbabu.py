"""FedBABU: oracle 9 of calibration spec 2.9, its means and heads, and what public code gets wrong as mutants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.fedbabu import FedBabu, orthogonal
from engine.algorithm import Client, Context, LocalRun, ModelState, ParamLayout, Phase, Tensors
from engine.base.errors import ConfigError
from engine.experiment import Local
from engine.models import MLP
from engine.models.resnet import ResNet20
from tests.support.bench import FEW, Bench
from tests.support.pencil import pool
from tests.support.tiny import drive, experiment, open_driver

HEAVY: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}  # what a head not really fixed would feel
SOME: dict[str, Any] = {"participation": {"count": 3}, "rounds": 3}


def check_the_head_is_constant(folder: Path, monkeypatch: pytest.MonkeyPatch, cls: type[FedBabu]) -> None:
    """Oracle 9: to the bit the first one, on the server after every round and in every client's model."""
    monkeypatch.setitem(ALGORITHMS, "fedbabu", cls)
    driver = open_driver(folder, experiment(algorithm={"name": "fedbabu"}, local=HEAVY, **SOME))
    size, first = driver.layout.head, driver.layout.head_of(driver.federation.fresh["weights"]).clone()
    models: list[np.ndarray] = []
    driver.watch(lambda client, model: models.append(model["weights"]))
    while not driver.finished:
        before = driver.weights[0]
        driver.advance()
        assert torch.equal(driver.weights[0][-size:], first)
        assert not torch.equal(driver.weights[0][:-size], before[:-size])
    driver.close()
    assert len(models) == 9
    assert all(np.array_equal(weights[-size:], first.numpy()) for weights in models)


def check_means(cls: type[FedBabu]) -> None:
    """The new body, by numpy: every client counts the same, or by its rows. The head is not touched by either."""
    bench = Bench(MLP(hidden=(8,)))
    layout, server = bench.net.layout, {"weights": bench.start["weights"]}
    for weighting, shares in (("uniform", np.full(len(FEW), 1 / 3)), ("samples", np.array(FEW) / sum(FEW))):
        algorithm = cls(weighting=weighting)  # pyright: ignore[reportArgumentType]
        trained = [bench.train(algorithm, number) for number in range(len(FEW))]
        bodies = np.stack([one.upload["body"].numpy() for one in trained])
        got = algorithm.aggregate(server, pool(trained), bench.context)["weights"]
        np.testing.assert_allclose(layout.body_of(got).numpy(), shares @ bodies, rtol=0, atol=1e-12)
        assert torch.equal(layout.head_of(got), layout.head_of(server["weights"]))


class ZeroedGradient(FedBabu):
    """Bug (FL-bench): everything is trained with the head's gradient set to zero, which does not stop its decay."""

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return (Phase(),)

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        layout = client.context.layout
        return layout.join(layout.body_of(grad), 0 * layout.head_of(grad))


class OwnHead(FedBabu):
    """Bug: a random head for each client."""

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        head = torch.randn(client.context.layout.head, generator=client.rng("head"))
        return super().start({**received, "head": head.to(received["head"])}, state, client)


class Drifting(FedBabu):
    """Bug: the server averages whole models."""

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {"weights": server["weights"], **super().broadcast(server, context)}

    def phases(self, context: Context) -> tuple[Phase, ...]:
        return (Phase(),)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end}, state

    def aggregate(self, server: Tensors, pooled: Any, context: Context) -> Tensors:
        return {**server, "weights": pooled.mean["weights"]}


class AlwaysBySamples(FedBabu):
    """Bug: the option is not read."""

    def weight(self, run: LocalRun) -> float:
        return float(run.num_examples)


def test_the_head_is_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a step, momentum or decay at the head; a mean that rounds it."""
    check_the_head_is_constant(tmp_path, monkeypatch, FedBabu)


@pytest.mark.parametrize("bug", [ZeroedGradient, OwnHead, Drifting])
def test_heads_that_move_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: type[FedBabu]) -> None:
    """Kills: an oracle that sees the server's head alone, or no decay."""
    with pytest.raises(AssertionError):
        check_the_head_is_constant(tmp_path, monkeypatch, bug)


def test_means() -> None:
    """Kills: a mean by rows where clients count, or the other way round."""
    check_means(FedBabu)


def test_a_wrong_mean_is_killed() -> None:
    """Kills: clients of one size."""
    with pytest.raises(AssertionError):
        check_means(AlwaysBySamples)


def test_the_body_is_trained_as_if_the_head_had_no_gradient() -> None:
    """To the bit, with BatchNorm and momentum. Kills: a body in eval mode; batches other than FedAvg's."""
    bench, local = Bench(ResNet20()), Local(epochs=2, batch_size=4, lr=0.05, momentum=0.9)
    ours, whole = (bench.train(cls(), 0, local=local) for cls in (FedBabu, ZeroedGradient))
    assert torch.equal(ours.upload["body"], whole.upload["body"])
    assert torch.equal(ours.buffers, whole.buffers)
    assert not torch.equal(ours.upload["body"], bench.received(FedBabu())["body"])


def test_the_loss_knows_all_classes() -> None:
    """Kills: a mask of absent classes; the head is everybody's, so client 2 of three classes pushes the fourth away."""
    bench, local = Bench(MLP(hidden=(8,))), Local(epochs=1, batch_size="full", lr=0.1)
    assert int((bench.client(2).class_counts > 0).sum()) == 3
    end = bench.train(FedBabu(), 2, local=local).upload["body"]
    bench.net.load(bench.start["weights"], bench.start["buffers"])
    batch = bench.batch(2)
    loss = torch.nn.functional.cross_entropy(bench.net(batch.x), batch.y)
    step = bench.net.backward(loss, "body")
    torch.testing.assert_close(end, bench.net.layout.body_of(bench.start["weights"]) - 0.1 * step, rtol=0, atol=1e-12)


# --- the head -----------------------------------------------------------------------------------------


def layout_of(classes: int, features: int, bias: bool) -> ParamLayout:
    return ParamLayout(body=0, head=classes * (features + bias), buffers=0, classes=classes, features=features)


@pytest.mark.parametrize(("classes", "features"), [(4, 9), (6, 6), (9, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_orthogonal_heads(classes: int, features: int, bias: bool) -> None:
    """Kills: rows that are only normalised; QR or one factor alone for the nearest one; a bias that stays."""
    layout = layout_of(classes, features, bias)
    head = torch.randn(layout.head, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    made = orthogonal(head, layout)
    before, weights = (one[: classes * features].view(classes, features) for one in (head, made))
    gram = weights @ weights.T if classes <= features else weights.T @ weights
    torch.testing.assert_close(gram, torch.eye(min(classes, features), dtype=torch.float64), rtol=0, atol=1e-12)
    nearest = torch.linalg.matrix_norm(before, "nuc")  # the largest <W, Q> over orthogonal Q, so the least |W - Q|
    torch.testing.assert_close((before * weights).sum(), nearest, rtol=0, atol=1e-12)
    assert len(made) == layout.head
    assert not made[classes * features :].any()


def test_the_orthogonal_head_is_where_the_server_starts() -> None:
    """Kills: an option that is not read; one that touches the body or the precision."""
    bench = Bench(MLP(hidden=(8,)))
    layout, start = bench.net.layout, {"weights": bench.start["weights"].float()}
    kept, made = (
        FedBabu(head_init=init).init_server(start, bench.context)["weights"] for init in ("keep", "orthogonal")
    )
    assert torch.equal(kept, start["weights"])
    assert torch.equal(layout.body_of(made), layout.body_of(kept))
    assert torch.equal(layout.head_of(made), orthogonal(layout.head_of(kept), layout))
    assert made.dtype == torch.float32


# --- in a run -----------------------------------------------------------------------------------------


def test_the_head_travels_once(tmp_path: Path) -> None:
    """Kills: a head in every broadcast or upload; one that nobody is charged for; one that is charged when trained."""
    fixed = drive(tmp_path / "fixed", experiment(algorithm={"name": "fedbabu"}, **SOME))
    layout, rows = fixed.driver.layout, fixed.folder.frame("clients")
    assert set(rows["floats_up"]) == set(rows["floats_down"]) == {layout.body}
    once = fixed.folder.frame("exchanges")
    assert once[["when", "floats_up", "floats_down"]].values.tolist() == [["start", 0, layout.head]] * 8
    trained = drive(tmp_path / "trained", experiment(algorithm={"name": "fedbabu", "train_head": True}, **SOME))
    rows = trained.folder.frame("clients")
    assert set(rows["floats_up"]) == set(rows["floats_down"]) == {layout.size}
    assert not len(trained.folder.frame("exchanges"))


def test_fine_tuning_is_for_the_evaluation_alone(tmp_path: Path) -> None:
    """Kills: a fine-tuned model that flows back; one that is not fine-tuned; a run without a global accuracy."""
    tuning = {"personal_every": 3, "fine_tune_epochs": 5, "fine_tune_lr": 0.1}
    plain, tuned = (
        drive(tmp_path / name, experiment(algorithm={"name": "fedbabu"}, evaluation=evaluation))
        for name, evaluation in (("plain", {}), ("tuned", tuning))
    )
    assert plain.sha == tuned.sha
    assert plain.summary["accuracy"] == tuned.summary["accuracy"]
    losses = tuned.folder.frame("personal").groupby("point")["loss"].mean()
    assert losses["fine_tuned"] < losses["post_server"]


def test_what_is_refused() -> None:
    """Kills: a head that is trained for some rounds, and sent to nobody; another first head in mid-run."""
    change = [{"round": 2, "set": {"algorithm.train_head": True}}]
    with pytest.raises(ConfigError, match=r"train_head=True: cannot change in mid-run: .*; leave it at False$"):
        experiment(algorithm={"name": "fedbabu"}, schedule=change)
    change = [{"round": 2, "set": {"algorithm.head_init": "orthogonal"}}]
    with pytest.raises(ConfigError, match=r"head_init=orthogonal: cannot change in mid-run: .*; leave it at keep$"):
        experiment(algorithm={"name": "fedbabu"}, schedule=change)
    with pytest.raises(ConfigError, match=r"^server_lr=0: must be greater than 0"):
        FedBabu(server_lr=0)
