"""The training loop, flat weights, batches, augmentation, keyed draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from algorithms.fedavg import FedAvg
from algorithms.fedrecon import FedRecon
from algorithms.pfedme import PFedMe
from algorithms.pflego import Pflego
from engine.algorithm import Algorithm, Context, Entries, Kind, ModelState, Phase, seeds
from engine.base.errors import RunError
from engine.client.steps import training_loop
from engine.client.steps.client_round import ClientProgress, ClientTask, Streams
from engine.client.steps.entries import checked, copied, floats, sliced
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.training_loop import CHUNK, SequentialLoop
from engine.client.trainer import Trainer
from engine.data.samples.augmentation import augmented, draw
from engine.data.samples.batches import Rows, orders
from engine.experiment import Local
from engine.models import MODELS, build_model
from tests.support.tiny import CLASSES, dataset

CPU = torch.device("cpu")


def network(name: str = "mlp", dtype: torch.dtype = torch.float32, **fields: Any) -> FlatNet:
    fields = {"hidden": (6,)} if name == "mlp" and not fields else fields
    model = build_model(MODELS.build({"name": name, **fields}), (1, 8, 8), CLASSES, seeds.generator(0, "weights"))
    return FlatNet(model, CPU, dtype)


def trainer(net: FlatNet, samples: int = 120) -> Trainer:
    data = dataset(samples)
    return Trainer(net, Rows(data, data.train, CPU, net.weights.dtype), seed=0)


def context(net: FlatNet, round: int = 1) -> Context:
    return Context(round, 0.1, 4, 120, 2, 2.0, 0.5, net.layout)


def loop_of(net: FlatNet, algorithm: FedAvg | None = None, rows: int = 20, local: Local | None = None) -> Any:
    """The loop of a client with the first ``rows`` rows, at the net's present weights."""
    work = trainer(net, max(rows, 120))
    indices = torch.arange(rows)
    client = work.client(0, indices, context(net))
    received = {"weights": net.weights.clone(), "buffers": net.buffers.clone()}
    task = ClientTask(algorithm or FedAvg(), local or Local(batch_size=8), 0, indices, client.context, received, {})
    progress = ClientProgress(task, client, received, {}, ModelState(*received.values()))
    return SequentialLoop(work.net, work.rows, work.forward, progress)


# --- keyed draws --------------------------------------------------------------------------------------


def test_every_part_of_a_key_matters_and_nothing_else() -> None:
    """Kills: a key that ignores the seed, the purpose, the round or the client, or that joins them ambiguously."""
    keys = [
        seeds.key(seed, purpose, round, client)
        for seed in (0, 1)
        for purpose in ("batches", "augment")
        for round in (1, 11)
        for client in (-1, 1, 11)
    ]
    assert len(set(keys)) == len(keys)
    # printf 0/batches/1/2 | b2sum -l 64, its bytes read little-endian, halved
    assert seeds.key(0, "batches", 1, 2) == int.from_bytes(bytes.fromhex("78c970419b82f3af"), "little") >> 1
    assert seeds.generator(3, "x").initial_seed() == seeds.key(3, "x")


def test_streams_are_consumed_in_order_and_apart() -> None:
    """Kills: one stream for all purposes; a stream that starts again at each call."""
    one, two = Streams(0, 1, 2), Streams(0, 1, 2)
    first = torch.rand(2, generator=one("noise"))
    torch.rand(5, generator=two("other"))
    assert torch.equal(first, torch.rand(2, generator=two("noise")))
    assert not torch.equal(first, torch.rand(2, generator=one("noise")))


# --- batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "sizes"), [("keep", [4, 4, 2]), ("drop", [4, 4]), ("wrap", [4, 4, 4])], ids=["keep", "drop", "wrap"]
)
def test_the_last_batch(last: Any, sizes: list[int]) -> None:
    """Kills: a rule that loses rows, or fills up with rows of the same batch."""
    batches = next(orders(10, 4, last, seeds.generator(0, "test")))
    assert [len(batch) for batch in batches] == sizes
    seen = torch.cat(batches).tolist()
    if last != "drop":
        assert set(seen) == set(range(10))
    if last == "wrap":
        assert seen[10:] == seen[:2]
    assert all(len(set(batch.tolist())) == len(batch) for batch in batches)


def test_a_pass_without_batches_ends() -> None:
    """Kills: an endless loop over empty passes: fewer rows than a batch, and short batches dropped."""
    assert list(orders(3, 8, "drop", seeds.generator(0, "test"))) == []
    run = loop_of(network(), rows=3, local=Local(batch_size=8, last_batch="drop", steps=5))
    run.run(Phase())
    assert run.progress.steps == 0


def test_an_empty_half_takes_no_step() -> None:
    """Kills: a mean over no rows, which is not a number, for a client of one row."""
    run = loop_of(network(), rows=1)
    run.run(Phase(rows="support"))
    assert run.progress.steps == 0
    run.run(Phase(rows="query"))
    assert run.progress.steps == 1


def test_wrapping_a_client_smaller_than_half_a_batch() -> None:
    """Kills: a wrap that runs out of rows."""
    assert [len(b) for b in next(orders(3, 8, "wrap", seeds.generator(0, "test")))] == [8]


def test_each_pass_has_a_new_order() -> None:
    """Kills: shuffling once."""
    first, second = islice(orders(50, 50, "keep", seeds.generator(0, "test")), 2)
    assert not torch.equal(first[0], second[0])


def test_rows_are_normalised_and_left_alone() -> None:
    """Kills: a scale by 256, a swap of mean and std, an in-place normalisation of the resident images."""
    data = dataset()
    rows = Rows(data, data.train, CPU, torch.float64)
    before = data.train.images.copy()
    x, y = rows.batch(torch.tensor([3, 1]))
    np.testing.assert_allclose(x.numpy(), (data.train.images[[3, 1]] / 255.0 - 0.5) / 0.25, rtol=1e-12)
    assert y.tolist() == data.train.labels[[3, 1]].tolist()
    x.zero_()
    np.testing.assert_array_equal(data.train.images, before)
    assert rows.images.data_ptr() == data.train.images.ctypes.data  # shared, not copied


def test_flips_and_crops_are_those_of_the_images() -> None:
    """Kills: rows and columns swapped, an offset off by one, channels mixed up, flips of whole batches."""
    x = torch.arange(2 * 3 * 5 * 6).view(2, 3, 5, 6).to(torch.uint8)
    many = x[:1].expand(300, -1, -1, -1)
    out = augmented(many, draw("crop_flip", 300, seeds.generator(0, "test")))
    padded = F.pad(x[0], (4, 4, 4, 4))
    windows = {
        bytes(torch.stack([w, w.flip(-1)])[flip].contiguous().numpy().tobytes())
        for top in range(9)
        for left in range(9)
        for w in [padded[:, top : top + 5, left : left + 6]]
        for flip in (0, 1)
    }
    seen = {image.contiguous().numpy().tobytes() for image in out}
    assert seen <= windows
    assert len(seen) > 100
    flipped = augmented(many, draw("flip", 300, seeds.generator(0, "test")))
    share = float((flipped == x[0].flip(-1)).flatten(1).all(1).float().mean())
    assert 0.4 < share < 0.6
    assert ((flipped == x[0]).flatten(1).all(1) | (flipped == x[0].flip(-1)).flatten(1).all(1)).all()


# --- flat weights -------------------------------------------------------------------------------------


def test_body_first_head_last() -> None:
    """Kills: a layout in another order, for which slices would be the wrong weights."""
    net = network()
    assert net.layout.size == 64 * 6 + 6 + 6 * CLASSES + CLASSES
    head = torch.cat([net.model.head.weight.reshape(-1), net.model.head.bias])
    assert torch.equal(net.layout.head_of(net.weights), head)
    assert torch.equal(net.layout.join(net.layout.body_of(net.weights), head), net.weights)
    net.weights.zero_()
    assert not net.model.head.weight.any()  # the module sees the vector
    with torch.no_grad():
        net.model.head.bias.fill_(2)
    assert net.weights[-CLASSES:].tolist() == [2.0] * CLASSES  # and the other way


@pytest.mark.parametrize("part", ["all", "body", "head"])
def test_backward_is_the_gradient_of_the_part(part: str) -> None:
    """Kills: gradients in another order than weights; a part that reaches beyond itself."""
    net = network("resnet20")
    x, y = torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
    got = net.backward(F.cross_entropy(net(x), y), part).clone()
    for parameter in net.parameters:
        parameter.grad = None
    F.cross_entropy(net(x), y).backward()
    full = torch.cat([p.grad.reshape(-1) for p in net.parameters if p.grad is not None])
    torch.testing.assert_close(got, full[net.slices[part][0]], rtol=0, atol=0)


def test_load_copies() -> None:
    """Kills: a net that aliases what it was given, which may be memory shared by a node."""
    net = network("resnet20")
    weights, buffers = net.weights.clone(), net.buffers.clone()
    net.load(weights, buffers)
    net.train(True)
    net(torch.randn(4, 1, 8, 8))
    net.weights.add_(1)
    assert not torch.equal(net.buffers, buffers)
    assert not torch.equal(net.weights, weights)


def test_buffers_hold_running_statistics_and_no_counters() -> None:
    """Kills: averaging num_batches_tracked, or counting what nobody reads; a running statistic that is no view of the
    vector."""
    net = network("resnet20")
    assert all(buffer.is_floating_point() for buffer in net.model.buffers())
    assert net.buffers.is_floating_point()
    assert net.layout.buffers == sum(b.numel() for n, b in net.model.named_buffers() if "running" in n)
    before = net.buffers.clone()
    net.train(True)
    net(torch.randn(8, 1, 8, 8))
    running = torch.cat([b.reshape(-1) for n, b in net.model.named_buffers() if "running" in n])
    assert torch.equal(net.buffers, running)
    assert not torch.equal(net.buffers, before)


@pytest.mark.parametrize("train", [False, True])
def test_a_frozen_model_builds_no_graph_and_changes_nothing(train: bool) -> None:
    """Kills: a teacher that is trained, whose statistics move, or that puts the student into its own mode."""
    net = network("resnet20")
    x = torch.randn(4, 1, 8, 8)
    other = network("resnet20")
    weights, buffers = torch.randn_like(net.weights) * 0.05, other.buffers.clone() + 0.5
    net.train(True)
    kept = [net.weights.clone(), net.buffers.clone(), weights.clone(), buffers.clone()]
    frozen = net.at(weights, buffers, train=train)
    out, features = frozen(x), frozen.features(x)
    assert not out.requires_grad
    assert all(torch.equal(a, b) for a, b in zip(kept, [net.weights, net.buffers, weights, buffers], strict=True))
    assert net.model.training
    other.load(weights, buffers)
    other.train(train)
    torch.testing.assert_close(out, other(x).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(frozen.head(features), out, rtol=1e-5, atol=1e-6)


def test_taps_are_the_outputs_of_the_named_modules() -> None:
    """Kills: a hook that stays, a name that is ignored."""
    net = network("resnet20")
    net.train(False)
    x = torch.randn(3, 1, 8, 8)
    names = (net.model.tap_names[0], net.model.tap_names[-1])
    logits, taps = net.taps(x, names)
    assert torch.equal(logits, net(x))
    assert tuple(taps) == names
    assert taps[names[0]].shape == (3, 16, 8, 8)
    assert taps[names[1]].shape == (3, 64, 2, 2)
    assert not any(module._forward_hooks for module in net.model.modules())


def test_a_narrow_net_leaves_statistics_alone_and_trains_the_full_weights() -> None:
    """Kills: a sub-network with running statistics of its own; gradients that do not arrive (O-R1, O-R4)."""
    net = network("resnet20")
    net.train(True)
    before = net.buffers.clone()
    x, y = torch.randn(6, 1, 8, 8), torch.tensor([0, 1, 2, 3, 0, 1])
    grad = net.backward(F.cross_entropy(net.narrow(0.5)(x), y))
    assert torch.equal(net.buffers, before)
    assert 0 < int((grad != 0).sum()) < net.layout.size // 2
    full = net.narrow(1.0)(x)
    torch.testing.assert_close(full, net(x), rtol=1e-5, atol=1e-6)


# --- phases -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "local", "steps"),
    [
        (Phase(), Local(batch_size=8, epochs=2), 6),
        (Phase(), Local(batch_size=8, steps=5), 5),
        (Phase(epochs=3), Local(batch_size=8), 9),
        (Phase(steps=7), Local(batch_size=8), 7),
        (Phase(batch=5), Local(batch_size=8), 4),
        (Phase(batch="full"), Local(batch_size=8, epochs=3), 3),
        (Phase(), Local(batch_size=8, last_batch="drop"), 2),
        (Phase(emit="gradient", batch="full"), Local(batch_size=8), 0),
    ],
)
def test_steps_are_counted_by_the_engine(phase: Phase, local: Local, steps: int) -> None:
    """Kills: epochs taken for steps; a phase's wish that is ignored."""
    run = loop_of(network(), local=local)
    run.run(phase)
    assert run.progress.steps == steps


def test_a_single_row_is_skipped_with_batchnorm_only() -> None:
    """Kills: BatchNorm of one row (a crash, or statistics of nothing); skipping where nothing is wrong."""
    for name, steps in (("mlp", 2), ("resnet20", 1)):
        run = loop_of(network(name), rows=9)
        run.run(Phase())
        assert run.progress.steps == steps, name


@pytest.mark.parametrize("part", ["body", "head"])
def test_what_is_not_trained_keeps_its_bits(part: Any) -> None:
    """Kills: freezing by zero gradients, under which weight decay and momentum go on (a public bug of FedBABU)."""
    net = network()
    before = net.weights.clone()
    local = Local(batch_size=8, momentum=0.9, weight_decay=0.1, epochs=2)
    loop_of(net, local=local).run(Phase(trainable=part))
    frozen = net.slices["head" if part == "body" else "body"][0]
    assert torch.equal(net.weights[frozen], before[frozen])
    assert not torch.equal(net.weights[net.slices[part][0]], before[net.slices[part][0]])


def test_a_frozen_body_keeps_its_statistics() -> None:
    """Kills: a head phase that moves BatchNorm, so that cached features would be wrong."""
    net = network("resnet20")
    before = net.buffers.clone()
    loop_of(net).run(Phase(trainable="head"))
    assert torch.equal(net.buffers, before)


def test_cached_features_are_the_live_ones() -> None:
    """Kills: features of the wrong rows or of train mode."""
    ends = []
    for features in ("live", "cached"):
        net = network("resnet20", torch.float64)
        run = loop_of(net, local=Local(batch_size=8, epochs=3, lr=0.5, augment="crop_flip"))
        run.run(Phase(trainable="head", features=features))  # type: ignore[arg-type]
        ends.append(net.weights.clone())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_a_full_batch_is_exact_over_chunks() -> None:
    """Kills: a mean of chunk means where chunks differ in size; a gradient that is overwritten."""
    rows = CHUNK + 7
    net = network(dtype=torch.float64)
    run = loop_of(net, rows=rows)
    run.run(Phase(batch="full", emit="gradient"))
    x, y = run.rows.batch(torch.arange(rows))
    assert run.progress.gradient is not None
    torch.testing.assert_close(run.progress.gradient, net.backward(F.cross_entropy(net(x), y)), rtol=0, atol=1e-12)


def test_a_full_batch_has_statistics_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: BatchNorm by the rows of a chunk, by which a gradient jumps at row 501; features cached in one chunk."""
    monkeypatch.setattr(training_loop, "CHUNK", 5)
    net = network("resnet8", torch.float64)
    run = loop_of(net, rows=12)
    run.run(Phase(batch="full", emit="gradient", buffers="keep"))
    x, y = run.rows.batch(torch.arange(12))
    net.train()
    assert run.progress.gradient is not None
    torch.testing.assert_close(run.progress.gradient, net.backward(F.cross_entropy(net(x), y)), rtol=0, atol=1e-12)


def test_an_emitted_gradient_takes_no_step_and_can_keep_buffers() -> None:
    """Kills: SCAFFOLD's option I moving BatchNorm before training; a hook applied to what is emitted."""
    net = network("resnet20")
    before = net.weights.clone(), net.buffers.clone()
    run = loop_of(net)
    run.run(Phase(batch="full", emit="gradient", buffers="keep"))
    assert torch.equal(net.weights, before[0])
    assert torch.equal(net.buffers, before[1])
    assert run.progress.gradient is not None
    assert run.progress.gradient.abs().max() > 0
    run.run(Phase(batch="full", emit="gradient"))
    assert not torch.equal(net.buffers, before[1])


def test_support_and_query_are_halves_of_the_rows() -> None:
    """Kills: two draws, whose halves would overlap."""
    run = loop_of(network(), rows=21)
    halves = [run.progress.order.part(Phase(rows=half)) for half in ("support", "query")]  # type: ignore[arg-type]
    assert sorted(torch.cat(halves).tolist()) == list(range(21))
    assert [len(half) for half in halves] == [10, 11]


def test_a_query_is_never_empty() -> None:
    """Kills: a client all of whose rows are support, so that its upload would weigh nothing."""
    for rows, support in ((1, 0.9), (4, 0.9), (3, 1.0)):
        run = loop_of(network(), rows=rows)
        halves = [run.progress.order.part(Phase(rows=half, support=support)) for half in ("support", "query")]  # type: ignore[arg-type]
        assert [len(half) for half in halves] == [rows - 1, 1]


def test_a_phase_that_has_ended_says_over_how_many_rows() -> None:
    """Kills: the client's rows for those of the phase."""
    run = loop_of(network(), rows=21)
    run.run_all([Phase(name, rows=name) for name in ("support", "query", "all")])  # type: ignore[arg-type]
    assert {name: ended.num_examples for name, ended in run.progress.ends.items()} == {
        "support": 10,
        "query": 11,
        "all": 21,
    }


def test_a_phase_has_its_own_learning_rate_and_momentum() -> None:
    """Kills: an optimizer that outlives its phase."""
    net = network()
    run = loop_of(net, local=Local(batch_size=8, momentum=0.9))
    run.run(Phase(lr=0.5))
    assert run.progress.lr == 0.5
    moved = net.weights.clone()
    run.run(Phase(lr=1e-300))  # momentum kept from before would go on moving
    torch.testing.assert_close(net.weights, moved, rtol=0, atol=1e-12)


def test_the_gradient_hook_sees_slices_that_fit() -> None:
    """Kills: a hook called with whole vectors beside a slice of the gradient."""
    seen: list[tuple[int, ...]] = []

    @dataclass(frozen=True)
    class Spy(FedAvg):
        def gradient(self, grad: Any, weights: Any, received: Any, state: Any, client: Any) -> Any:
            seen.append((len(grad), len(weights), len(received["weights"])))
            return grad

    net = network()
    for part in ("all", "body", "head"):
        loop_of(net, Spy(), rows=8).run(Phase(trainable=part))  # type: ignore[arg-type]
    layout = net.layout
    assert seen == [(size,) * 3 for size in (layout.size, layout.body, layout.head)]


LOCALS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {  # local section, torch's class and its fields
    "sgd": (
        {"momentum": 0.9, "nesterov": True},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True},
    ),
    "adam": ({"optimizer": "adam"}, torch.optim.Adam, {}),
    "adamw": ({"optimizer": "adamw"}, torch.optim.AdamW, {}),
    "rmsprop": ({"optimizer": "rmsprop"}, torch.optim.RMSprop, {}),
    "rmsprop with momentum": ({"optimizer": "rmsprop", "momentum": 0.5}, torch.optim.RMSprop, {"momentum": 0.5}),
}
BY_STEP = {"lr_by": "step", "lr_schedule": "cosine", "lr_period": 3, "lr_end": 0.1, "lr_warmup": 2}


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("schedule", [{}, BY_STEP], ids=["one rate", "rates by step"])
@pytest.mark.parametrize("name", LOCALS)
def test_local_optimizers_are_those_of_torch(name: str, schedule: dict[str, Any], clip_norm: float | None) -> None:
    """Kills: a field of the local section that does not reach the optimizer; decay that is clipped; a rate that is the
    step's before or after."""
    fields, kind, theirs = LOCALS[name]
    local = Local(batch_size=8, epochs=2, lr=0.1, weight_decay=0.01, clip_norm=clip_norm, **fields, **schedule)
    net = network(dtype=torch.float64)
    reference = network(dtype=torch.float64).model
    loop_of(net, local=local).run(Phase())
    parameters = [*reference.body.parameters(), *reference.head.parameters()]
    made = kind(parameters, lr=0.1, weight_decay=0.01, **theirs)
    passes: Iterator[list[torch.Tensor]] = orders(20, 8, "keep", seeds.generator(0, "batches", 1, 0))
    data = dataset()
    rows = Rows(data, data.train, CPU, torch.float64)
    rates = iter([0.05, 0.1, 0.1, 0.1 * 0.775, 0.1 * 0.325, 0.01] if schedule else [0.1] * 6)
    norms = []
    for batches in islice(passes, 2):
        for positions in batches:
            x, y = rows.batch(positions)
            made.zero_grad()
            F.cross_entropy(reference(x), y).backward()
            norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, clip_norm or torch.inf)))
            made.param_groups[0]["lr"] = next(rates)
            made.step()
    assert min(norms) > 0.05  # each step is clipped, if any is
    expected = torch.cat([p.detach().reshape(-1) for p in parameters])
    torch.testing.assert_close(net.weights, expected, rtol=1e-9, atol=1e-10)


def test_the_probe_measures_the_first_batch_before_and_after() -> None:
    """Kills: a probe that changes bits; two losses of different batches."""
    ends = []
    for probe in (False, True):
        net = network("resnet20")
        received = {"weights": net.weights.clone(), "buffers": net.buffers.clone()}
        about = (FedAvg(), Local(epochs=4, batch_size=8), 0, torch.arange(20), context(net), received, {})
        trained = trainer(net).train(ClientTask(*about, newcomer=True), probe)
        ends.append((trained.upload["weights"], trained.buffers))
        assert (trained.loss_before is None) != probe
        if trained.loss_before is not None and trained.loss_after is not None:
            assert trained.loss_after < trained.loss_before
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])


def test_divergence_is_named_where_it_arises() -> None:
    """Kills: a NaN that is averaged."""
    net = network()
    received = {"weights": torch.full_like(net.weights, torch.nan), "buffers": net.buffers}
    with pytest.raises(RunError, match="client 5 diverged in round 7"):
        trainer(net).train(ClientTask(FedAvg(), Local(), 5, torch.arange(20), context(net, round=7), received, {}))


@pytest.mark.parametrize(
    ("algorithm", "repair"),
    [
        (FedAvg(), r"from step 1 of 3 on with lr=0.1; lower local.lr"),
        (FedRecon(), r"on; lower the algorithm's own learning rates and local.lr"),
        (PFedMe(), r"on; lower the algorithm's own learning rates and local.lr"),
        (Pflego(tau=1), r"after \d+ steps; lower the algorithm's own learning rates and local.lr"),
    ],
    ids=str,
)
def test_the_rates_to_lower_are_those_of_the_training(algorithm: Algorithm, repair: str) -> None:
    """Kills: local.lr, or a rate that is not to blame, as the repair where phases have rates of their own."""
    net = network()
    numbers = {"weights": net.weights, "body": net.layout.body_of(net.weights), "buffers": net.buffers}
    numbers["first_head"] = net.layout.head_of(net.weights)
    received = {name: torch.full_like(tensor, torch.nan) for name, tensor in numbers.items()}
    local = Local(batch_size=8, augment="none")
    with pytest.raises(RunError, match=f"{repair}$"):
        trainer(net).train(ClientTask(algorithm, local, 5, torch.arange(20), context(net), received, {}, newcomer=True))


# --- entries ------------------------------------------------------------------------------------------


def test_entries_are_held_to_their_declaration() -> None:
    """Kills: a misspelt entry, or one of another shape, that is averaged silently."""
    net = network()
    layout, algorithm = net.layout, FedAvg()
    with pytest.raises(TypeError, match=r"FedAvg.upload: entry 'wieghts' is not declared"):
        checked(algorithm, "upload", {"wieghts": net.weights}, layout)
    with pytest.raises(TypeError, match=rf"shape \({layout.head},\); a vector here has shape \({layout.size},\)"):
        checked(algorithm, "upload", {"weights": layout.head_of(net.weights)}, layout)
    with pytest.raises(TypeError, match="entries are tensors"):
        checked(algorithm, "upload", {"weights": 3.0}, layout)  # type: ignore[dict-item]
    part = sliced(algorithm, {"weights": net.weights, "buffers": net.buffers}, slice(0, 5))
    assert len(part["weights"]) == 5
    assert len(part["buffers"]) == layout.buffers


def test_a_matrix_has_a_row_and_a_column_for_each_class() -> None:
    """Kills: a matrix of other pairs, which would be drawn under the classes' names."""

    class Priced(FedAvg):
        entries: ClassVar[Entries] = {**FedAvg.entries, "cost": Kind.MATRIX}

    layout, square = network().layout, torch.ones(CLASSES, CLASSES)
    assert checked(Priced(), "finish", {"cost": square}, layout)["cost"] is square
    for wrong in (square[0], square[:-1], square[None]):
        with pytest.raises(TypeError, match=rf"a matrix here has shape \({CLASSES}, {CLASSES}\)"):
            checked(Priced(), "finish", {"cost": wrong}, layout)


def test_what_a_worker_is_given_is_copied() -> None:
    """Kills: a worker whose writes in place reach what the server and other workers read."""
    given = {"a": torch.ones(3), "b": torch.zeros(2, 3)}
    own = copied(given, CPU)
    own["a"].add_(1)
    assert given["a"].tolist() == [1, 1, 1]
    assert floats(own) == 9
