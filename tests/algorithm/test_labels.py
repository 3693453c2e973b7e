"""Local labels and the rows of a personal head: there and back, and what is never touched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.fedper import FedPer
from engine.algorithm import Client, ParamLayout, Tensors, seeds
from engine.algorithm.labels import own_logits, packed, spread, unpacked
from engine.client.steps.client_round import ClientTask
from engine.client.steps.entries import kept, opened
from engine.data import Assignment
from engine.experiment import Local
from engine.models import MLP
from tests.support.bench import Bench
from tests.support.tiny import context_of, dataset, drive, experiment

COUNTS = st.lists(st.integers(0, 3), min_size=2, max_size=12).filter(any).map(torch.tensor)


@given(counts=COUNTS, features=st.integers(1, 4), bias=st.booleans())
@settings(max_examples=50, deadline=None)
def test_heads_go_there_and_back(counts: torch.Tensor, features: int, bias: bool) -> None:
    """Kills: rows of the wrong classes, a bias that goes to another row, a head without bias that gets one."""
    classes = len(counts)
    size = classes * (features + bias)
    layout = ParamLayout(body=3, head=size, buffers=0, classes=classes, features=features)
    head = torch.arange(1.0, size + 1)
    rows = packed(head, counts, layout)
    assert rows.shape == (int((counts > 0).sum()), features + bias)
    whole = unpacked(rows, counts, layout)
    own = torch.cat(((counts > 0).repeat_interleave(features), *([counts > 0] if bias else [])))
    assert torch.equal(whole, torch.where(own, head, torch.zeros(())))
    assert torch.equal(packed(whole, counts, layout), rows)


@given(counts=COUNTS)
@settings(max_examples=50, deadline=None)
def test_spread_logits_give_the_local_labels_loss(counts: torch.Tensor) -> None:
    """Kills: local logits put in the wrong global places, or in others than labels are; gaps, an off-by-one."""
    present = torch.nonzero(counts).view(-1)
    logits = torch.randn(5, len(counts), generator=seeds.generator(0, "logits"))
    labels = present[torch.arange(5) % len(present)]
    wide = spread(logits, counts)
    assert torch.equal(wide[:, present], logits[:, : len(present)])  # increasing, without gaps
    wanted = F.cross_entropy(logits[:, : len(present)], torch.searchsorted(present, labels))
    torch.testing.assert_close(F.cross_entropy(wide, labels), wanted)
    assert set(wide.argmax(1).tolist()) <= set(present.tolist())


def test_absent_classes_have_no_gradient_and_no_probability() -> None:
    """Kills: a mask of zeros in place of -inf, which leaves absent classes their share."""
    bench = Bench(MLP(hidden=(5,)))
    bench.relabel(1, 2)  # one class alone
    client = bench.client(1)
    head = torch.randn(4, 5, dtype=torch.float64, generator=seeds.generator(0, "head")).requires_grad_()
    logits = own_logits(torch.ones(3, 5, dtype=torch.float64) @ head.T, client.class_counts)
    assert torch.softmax(logits, 1)[:, 2].tolist() == [1.0, 1.0, 1.0]
    (grad,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([2, 2, 2])), head)
    assert torch.equal(grad, torch.zeros_like(grad))


@pytest.mark.parametrize("local", [{"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam", "weight_decay": 0.1}])
def test_absent_rows_stay_zero(tmp_path: Path, local: dict[str, object]) -> None:
    """Kills: decay or momentum on rows that are not there; a first head with rows of other classes."""
    labels = dataset().train.labels
    parts = Assignment(tuple((labels == number).nonzero()[0][:9] for number in range(3)))
    settings = experiment(algorithm={"name": "fedper"}, local=local, rounds=2)
    run = drive(tmp_path, settings, parts=parts)
    for number in range(3):
        state = run.driver.pool.fetch(run.driver.lineage.states.store.read([number])[0])
        assert state["head"].shape == (1, 13)  # one class: its 12 weights and its bias
    trainer = run.driver.pool._workers[0].trainer  # type: ignore[attr-defined]
    client = trainer.client(0, torch.as_tensor(parts.clients[0]), context_of(run.driver, 1))
    body = run.driver.layout.body_of(run.server["weights"])
    first_head = run.driver.layout.head_of(run.server["weights"])
    received = {"base": body, "top": body[:0], "first_head": first_head, "buffers": run.server["buffers"]}
    indices = torch.as_tensor(parts.clients[0])
    visit = ClientTask(FedPer(), Local(), 0, indices, client.context, received, {}, newcomer=True)
    first = trainer.state_of(visit, client)
    rows = first["head"][: 4 * 12].view(4, 12)
    assert rows[0].abs().min() > 0
    assert rows[1:].abs().max() == 0


def test_a_first_head_depends_on_seed_and_client_alone(tmp_path: Path) -> None:
    """Kills: heads that are alike, or that depend on the round of a client's first participation."""
    bench = Bench(MLP(hidden=(5,)))
    algorithm = FedPer(head_init="kaiming")
    received = {"base": bench.net.layout.body_of(bench.start["weights"]), "top": bench.start["weights"][:0]}
    received["buffers"] = bench.start["buffers"]

    def first(number: int, round: int = 1, seed: int = 0) -> torch.Tensor:
        bench.trainer.seed = seed
        client = bench.trainer.client(number, bench.parts[0], replace(bench.context, round=round))
        visit = ClientTask(algorithm, Local(), number, bench.parts[0], client.context, received, {}, newcomer=True)
        return bench.trainer.state_of(visit, client)["head"]

    assert torch.equal(first(0), first(0, round=7))
    assert not torch.equal(first(0), first(1))
    assert not torch.equal(first(0), first(0, seed=1))


def test_other_entries_are_kept_as_they_are() -> None:
    """Kills: packing by name or by shape."""
    bench = Bench(MLP(hidden=(5,)))
    client, layout = bench.client(0), bench.net.layout
    state = {
        "head": torch.zeros(layout.head),
        "top": torch.arange(4.0),
        "of the stage before": torch.zeros(layout.head),
    }
    stored = kept(FedPer().kinds, state, client)
    assert torch.equal(stored["top"], state["top"])
    assert stored["of the stage before"].shape == (layout.head,)
    assert opened(FedPer().kinds, stored, client).keys() == state.keys()


@pytest.mark.parametrize("first", ["fedper", "pflego"])
def test_a_head_is_read_in_the_next_stage(tmp_path: Path, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a state of the stage before that arrives packed, or is lost, where the next one keeps a head too; a client
    that begins anew."""
    stages = [
        {"name": "one", "rounds": 2, "algorithm": {"name": first}},
        {"name": "two", "rounds": 1, "needs": ["one"], "algorithm": {"name": "fedper"}},
    ]
    seen: set[tuple[int, ...]] = set()
    original = FedPer.init_state

    def spy(self: FedPer, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        seen.update(tuple(parent["head"].shape) for _ in parent)
        return original(self, received, parent, client)

    monkeypatch.setattr(FedPer, "init_state", spy)
    run = drive(tmp_path, experiment(stages=stages))
    assert seen == {(run.driver.layout.head,)}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "kept"), [(2, True), (1, False), (3, False)])
def test_personal_layers_go_on_together(tmp_path: Path, before: int, kept: bool) -> None:
    """Kills: heads that go on over layers that begin anew, or over layers of another cut. Steps of 1e-30 leave what
    clients keep as it is."""
    setting: dict[str, object] = {"model": {"name": "mlp", "hidden": [10, 8, 6]}}
    later: dict[str, object] = {"algorithm": {"name": "fedper", "layers": 2}, "local": {"lr": 1e-30}, "rounds": 1}
    stages = [
        {"name": "one", "rounds": 2, "algorithm": {"name": "fedper", "layers": before}},
        {"name": "two", "needs": ["one"], **later},
    ]
    first = drive(tmp_path / "a", experiment(stages=stages[:1], **setting))
    both = drive(tmp_path / "b", experiment(stages=stages, **setting))
    fresh = drive(tmp_path / "c", experiment(**setting, **later))
    layout = both.driver.layout
    servers = layout.body_of(first.server["weights"])[layout.units[-2] :].numpy()
    for state, old, new in zip(both.states, first.states, fresh.states, strict=True):
        assert np.array_equal(state["head"], (old if kept else new)["head"])
        assert np.array_equal(state["top"], old["top"] if kept else servers)
