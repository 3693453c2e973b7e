"""What a researcher writes for methods unlike FedAvg, each in a few lines, and that it does what it says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Client,
    Compute,
    Context,
    Entries,
    Entry,
    Kind,
    LocalRun,
    Pooled,
    Tensors,
    TrainingTools,
)
from engine.client.steps.client_round import ClientTask
from engine.experiment import Local
from engine.models import MLP
from tests.support.bench import Bench
from tests.support.side_by_side import assert_alike, one_by_one, together
from tests.support.tiny import SIZES, assignment, dataset, drive, experiment, with_public

# --- a learning rate for each layer -------------------------------------------------------------------------


@dataclass(frozen=True)
class SlowFirstLayer(FedAvg):
    """FedAvg whose first layer learns at a tenth of the rate."""

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        first = client.context.layout.mask(grad, "body.1.*")
        return torch.where(first, 0.1 * grad, grad)


def test_a_rate_for_each_layer() -> None:
    """Kills: a mask of another layer, or of positions in the whole vector where the head alone is trained."""
    bench = Bench(MLP(hidden=(5, 4)))
    names = [name for name, *_ in bench.net.layout.parameters]
    assert names == [f"body.{layer}.{kind}" for layer in (1, 3) for kind in ("weight", "bias")] + [
        "head.weight",
        "head.bias",
    ]
    moved = []
    for algorithm in (FedAvg(), SlowFirstLayer()):
        local = Local(steps=1, batch_size="full")
        task = ClientTask(algorithm, local, 0, bench.parts[0], bench.context, bench.start, {}, newcomer=True)
        moved.append(bench.trainer.train(task).upload["weights"] - bench.start["weights"])
    plain, slow = moved
    size = bench.net.parameters[0].numel() + bench.net.parameters[1].numel()
    torch.testing.assert_close(slow[:size], 0.1 * plain[:size], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(slow[size:], plain[size:], rtol=1e-9, atol=1e-12)
    layout = bench.net.layout
    head = layout.part(slice(layout.body, None))
    part = torch.zeros(layout.head)
    assert not head.mask(part, "body.*").any() and head.mask(part, "head.bias").nonzero().min() == layout.head - 4
    with pytest.raises(ValueError, match=r"no parameter is named 'body.7.\*'; there are body.1.weight"):
        layout.mask(bench.net.weights, "head.*", "body.7.*")


def test_a_rate_for_each_layer_in_blocks() -> None:
    """Kills: a mask that a block's clients do not share."""
    bench = Bench(MLP(hidden=(5, 4)), sizes=(9, 4, 12))
    about = (SlowFirstLayer(), Local(epochs=2, batch_size=4))
    tasks = [
        ClientTask(*about, number, rows, bench.context, bench.start, {}, newcomer=True)
        for number, rows in enumerate(bench.parts)
    ]
    assert_alike(together(bench.trainer, tasks), one_by_one(bench.trainer, tasks), 1e-11)


# --- a server with validation rows --------------------------------------------------------------------------


@dataclass(frozen=True)
class ByValidation(FedAvg):
    """Uploads are weighted by their accuracy on public rows, in the round in which they come."""

    stack_uploads: ClassVar[bool] = True
    public_per_class: ClassVar[int] = 2  # pyright: ignore[reportIncompatibleVariableOverride]

    def aggregate_with(self, server: Tensors, pooled: Pooled, compute: Compute, context: Context) -> Tensors:
        assert pooled.stacked is not None
        given = {"weights": server["weights"], "buffers": server["buffers"], "uploads": pooled.stacked["weights"]}
        return {**server, **compute(by_accuracy, given)}


def by_accuracy(tools: TrainingTools, given: Tensors) -> Tensors:
    """Return the "weights" [P] that the uploads [K, P] come to."""
    x, y = tools.public(2)
    hits = torch.stack([(tools.net.at(one, given["buffers"])(x).argmax(1) == y).sum() for one in given["uploads"]])
    shares = (hits + 1.0) / (hits + 1.0).sum()
    return {"weights": shares.to(given["uploads"]) @ given["uploads"]}


def test_a_server_with_validation_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: aggregation without the uploads of its own round; one that is by rows after all."""
    seen: list[Tensors] = []
    compute = ByValidation.aggregate_with

    def spy(self: ByValidation, server: Tensors, pooled: Pooled, *rest: Any) -> Tensors:
        made = compute(self, server, pooled, *rest)
        seen.append({"mean": pooled.mean["weights"], "made": made["weights"], "stacked": pooled.stacked["weights"]})  # type: ignore[index]
        return made

    monkeypatch.setattr(ByValidation, "aggregate_with", spy)
    monkeypatch.setitem(ALGORITHMS, "byvalidation", ByValidation)
    parts = with_public(assignment(SIZES), dataset())
    run = drive(tmp_path, experiment(algorithm={"name": "byvalidation"}, rounds=2), parts=parts)
    seen = seen[-2:]  # a part from outside is rehearsed before
    assert torch.equal(run.server["weights"], seen[-1]["made"])
    for one in seen:
        shares = torch.linalg.lstsq(one["stacked"].double().T, one["made"].double()[:, None]).solution.flatten()
        assert shares.sum().item() == pytest.approx(1, abs=1e-4)
        assert not torch.allclose(one["made"].double(), one["mean"].double(), atol=1e-5)


# --- quantised uploads --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantised(FedAvg):
    """Clients send their update in 8 bits and its largest entry (FedPAQ, Reisizadeh et al. 2020, arXiv:1909.13014)."""

    entries: ClassVar[Entries] = {
        **FedAvg.entries,
        "update": Entry(Kind.VECTOR, bits=8),
        "scale": Kind.SCALAR,
    }

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        update = run.end - run.start
        scale = update.abs().max().clamp_min(1e-12)
        return {"update": (127 * update / scale).round() / 127 * scale, "scale": scale}, state

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return {**server, "weights": server["weights"] + pooled.mean["update"]}


@pytest.mark.parametrize(("precision", "share"), [("float32", 4), ("float64", 8)])
def test_quantised_uploads_are_counted_by_their_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, share: int
) -> None:
    """Kills: 8 bits that count as a float; bits of the way up that count on the way down."""
    monkeypatch.setitem(ALGORITHMS, "quantised", Quantised)
    execution = {"actors": 0, "device": "cpu", "precision": precision}
    run = drive(tmp_path, experiment(algorithm={"name": "quantised"}, rounds=1, execution=execution))
    size, buffers = run.driver.layout.size, run.driver.layout.buffers
    for wrong in (0, -1, 1.5, "8", True):
        with pytest.raises(ValueError, match="must be a whole number of at least 1"):
            Entry(Kind.VECTOR, bits=wrong)  # type: ignore[arg-type]
    clients = len(SIZES)
    assert run.summary["floats_up"] == clients * (-(-size // share) + 1 + buffers)
    assert run.summary["floats_down"] == clients * (size + buffers)
