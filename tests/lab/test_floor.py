"""The floor of a round: counts and terms against figures worked out by hand, and the command as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import benchmark
from torch.utils.flop_counter import FlopCounterMode

from algorithms import ALGORITHMS
from engine.base.errors import ConfigError, RunError
from engine.data.samples.batches import orders
from engine.experiment import Execution, Experiment, Local
from engine.models import MODELS, build_model
from engine.models.cost import ModelCost, count, model_cost
from engine.models.layers import DepthwiseConv, MeanPool
from engine.models.resnet import ResidualUnit
from fedskew.cli import studies as cli_floor
from fedskew.lab.floor import device_speed
from fedskew.lab.floor import measured as measured_floor
from fedskew.lab.floor.counts import (
    Floor,
    LocalWork,
    RoundWork,
    Speed,
    busiest,
    least,
    local_work,
    round_work,
    weight_moves,
)
from fedskew.lab.floor.measured import MeasuredFloor, TimedRound, cut_short, last_with_rounds
from tests.support import tiny
from tests.support.command_line import fedskew

SHAPE = (1, 8, 8)


def cost_of(name: str, shape: tuple[int, int, int] = SHAPE, **values: Any) -> ModelCost:
    return model_cost(MODELS.build({"name": name, **values}), shape, tiny.CLASSES)


def counted(*modules: nn.Module, shape: tuple[int, int, int]) -> ModelCost:
    return count(nn.Sequential(*modules), shape)


# --- one sample ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "parameters", "macs", "first", "activations"),
    [
        (cost_of("logistic"), 64 * 4 + 4, 256, 256, 4),
        (cost_of("mlp", hidden=[12]), 780 + 52, 768 + 48, 768, 12 + 4),
        (
            cost_of("cnn"),
            (25 * 32 + 32) + (25 * 32 * 64 + 64) + (256 * 512 + 512) + (512 * 4 + 4),
            25 * 32 * 64 + 25 * 32 * 64 * 16 + 256 * 512 + 512 * 4,
            25 * 32 * 64,
            32 * 16 + 256 + 512 + 4,  # what the second convolution, fc and the head read; and the scores
        ),
    ],
    ids=["logistic", "mlp", "cnn"],
)
def test_small_networks_by_hand(cost: ModelCost, parameters: int, macs: int, first: int, activations: int) -> None:
    """Kills: a bias or a pooled pixel counted as a multiply-add; an input gradient of the first layer."""
    assert (cost.parameters, cost.macs, cost.first_macs, cost.activations) == (parameters, macs, first, activations)
    assert cost.flops == 6 * macs - 2 * first
    assert cost.buffers == 0
    assert not cost.has_batchnorm


def test_a_residual_unit_by_hand() -> None:
    """Kills: a shared input that is kept twice; a shortcut without its cost; norms for nothing; buffers that count."""
    unit = ResidualUnit(16, 32, stride=2, shortcut="conv", norm="batch", group_size=16)
    stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
    cost = counted(stem, unit, MeanPool(), nn.Linear(32, 4), shape=SHAPE)
    assert {layer.name: layer.macs for layer in cost.layers} == {
        "0": 9 * 16 * 64,
        "1.conv1": 9 * 16 * 32 * 16,
        "1.norm1": 32 * 16,
        "1.conv2": 9 * 32 * 32 * 16,
        "1.norm2": 32 * 16,
        "1.projection.0": 16 * 32 * 16,
        "1.projection.1": 32 * 16,
        "3": 32 * 4,
    }
    assert [layer.name for layer in cost.layers if layer.is_first] == ["0"]
    assert cost.parameters == 144 + 4608 + 9216 + 512 + 3 * 64 + 132
    assert cost.parameters == sum(layer.parameters for layer in cost.layers)
    assert cost.buffers == 3 * 64
    assert cost.has_batchnorm
    assert cost.activations == 16 * 64 + 4 * 512 + 32 + 4


def test_every_layer_that_reads_the_images_is_first() -> None:
    """Kills: a rule that takes the first layer in order alone."""
    unit = ResidualUnit(2, 4, stride=2, shortcut="conv", norm="group", group_size=2)
    cost = counted(unit, MeanPool(), nn.Linear(4, 4), shape=(2, 8, 8))
    assert [layer.name for layer in cost.layers if layer.is_first] == ["0.conv1", "0.projection.0"]
    assert cost.first_macs == 9 * 2 * 4 * 16 + 2 * 4 * 16


def test_groups_share_no_filters() -> None:
    """Kills: a depthwise convolution counted as a dense one."""
    cost = counted(DepthwiseConv(8, stride=1), MeanPool(), nn.Linear(8, 4), shape=(8, 8, 8))
    assert cost.layers[0].macs == 9 * 8 * 64


@pytest.mark.parametrize("name", ["mlp", "cnn", "lenet", "resnet8", "resnet20"])
def test_torch_counts_the_same(name: str) -> None:
    """Kills: any factor of 6 M - 2 M1; torch's own counter knows convolutions and matrices, and no norms."""
    shape, rows = (3, 16, 16), 4
    spec = MODELS.build({"name": name})
    model = build_model(spec, shape, tiny.CLASSES, torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(torch.zeros(rows, *shape)), torch.zeros(rows, dtype=torch.int64)).backward()
    cost = model_cost(spec, shape, tiny.CLASSES)
    dense = [layer for layer in cost.layers if layer.kind in ("Conv2d", "Linear", "PlaneLinear")]
    assert counter.get_total_flops() == rows * replace(cost, layers=tuple(dense)).flops


# --- one client ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "local", "batchnorm", "steps", "seen"),
    [
        (20, {"epochs": 2}, False, 6, 40),
        (20, {"epochs": 2, "last_batch": "drop"}, False, 4, 32),
        (20, {"epochs": 2, "last_batch": "wrap"}, False, 6, 48),
        (7, {"last_batch": "keep"}, False, 1, 7),
        (7, {"last_batch": "drop"}, False, 0, 0),
        (7, {"last_batch": "wrap"}, False, 1, 8),
        (20, {"epochs": 0.5}, False, 2, 16),
        (20, {"epochs": 1.9}, False, 6, 40),
        (20, {"epochs": 1.25}, False, 4, 28),
        (9, {"epochs": 3}, False, 6, 27),
        (9, {"epochs": 3}, True, 3, 24),  # the batch of one has no statistics
        (9, {"steps": 3}, True, 2, 16),  # and takes a step's place
        (1, {"epochs": 5}, True, 0, 0),
        (20, {"steps": 5}, False, 5, 8 + 8 + 4 + 8 + 8),
        (20, {"steps": 2, "last_batch": "drop", "batch_size": 32}, False, 0, 0),
        (20, {"epochs": 3, "batch_size": "full"}, False, 3, 60),
        (1, {"epochs": 3, "batch_size": "full"}, True, 0, 0),
        (0, {"steps": 4}, False, 0, 0),
    ],
)
def test_steps_and_rows(rows: int, local: dict[str, Any], batchnorm: bool, steps: int, seen: int) -> None:
    """Kills: ceil for floor; a dropped batch's rows; a lone row that BatchNorm is trained on; steps that add up."""
    assert local_work(rows, Local(**{"batch_size": 8, **local}), batchnorm) == LocalWork(steps, seen)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 40),
    batch=st.integers(1, 12),
    last=st.sampled_from(["keep", "drop", "wrap"]),
    epochs=st.integers(1, 4),
)
def test_the_engine_draws_the_same_batches(rows: int, batch: int, last: Any, epochs: int) -> None:
    """Kills: a pass that is not the one of the training loop."""
    passes = islice(orders(rows, batch, last, torch.Generator().manual_seed(0)), epochs)
    sizes = [len(positions) for batches in passes for positions in batches]
    work = local_work(rows, Local(epochs=epochs, batch_size=batch, last_batch=last), has_batchnorm=False)
    assert work == LocalWork(len(sizes), sum(sizes))


@pytest.mark.slow
@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [4]}, {"name": "resnet8"}])
@pytest.mark.parametrize("local", [{}, {"epochs": None, "steps": 4}, {"last_batch": "drop"}, {"batch_size": "full"}])
def test_the_engine_takes_as_many_steps(tmp_path: Path, model: dict[str, Any], local: dict[str, Any]) -> None:
    """Kills: ragged clients, lone rows and short batches counted otherwise than they are trained."""
    local = {key: value for key, value in local.items() if value is not None}
    config = tiny.experiment(rounds=1, model=model, local=local)
    driven = tiny.drive(tmp_path, config)
    taken = driven.folder.frame("clients").set_index("client")["steps"].to_dict()
    cost = model_cost(config.model, SHAPE, tiny.CLASSES)
    work = round_work(cost, config.local, tiny.SIZES, itemsize=4, workers=0)
    assert taken == {client: of.steps for client, of in enumerate(work.clients)}


@pytest.mark.parametrize(
    ("local", "moves"),
    [({}, 4), ({"momentum": 0.9}, 6), ({"momentum": 0.9, "nesterov": True}, 6), ({"optimizer": "adam"}, 8)],
)
def test_what_a_step_moves(local: dict[str, Any], moves: int) -> None:
    """Kills: an optimizer whose vectors are forgotten; momentum that Adam does not have."""
    assert weight_moves(Local(**local)) == moves


# --- a round ------------------------------------------------------------------------------------------------

MLP = cost_of("mlp", hidden=[12])  # 832 parameters, 3,360 FLOP a row, 16 activations
SPEED = Speed(lanes=1, matmul=1e4, convolution=5e3, memory=1e3, weights=2e5, activations=1e5)


def work_of(sizes: list[int], workers: int = 2, **local: Any) -> RoundWork:
    return round_work(MLP, Local(**{"epochs": 2, "batch_size": 8, **local}), sizes, 4, workers)


def test_a_round_by_hand() -> None:
    """Kills: a byte, a worker or a client that is counted twice, or not at all."""
    work = work_of([20, 7])
    assert (work.steps, work.rows) == (6 + 2, 40 + 14)
    assert work.flops == [40 * 3360, 14 * 3360]
    assert work.weight_bytes == [6 * 4 * 832 * 4, 2 * 4 * 832 * 4]
    assert work.activation_bytes == [40 * 4 * 16 * 4, 14 * 4 * 16 * 4]
    assert work.broadcast_bytes == 2 * 832 * 4 * 2
    assert work.aggregation_bytes == 2 * 832 * 4 * (2 + 2)
    here = work_of([20, 7], workers=0)
    assert (here.broadcast_bytes, here.aggregation_bytes) == (0, 2 * 832 * 4 * 2)
    assert work_of([20, 7], optimizer="adam").weight_bytes[0] == 2 * work.weight_bytes[0]
    assert replace(work, itemsize=8).activation_bytes[1] == 2 * work.activation_bytes[1]


def test_buffers_travel_and_are_not_trained() -> None:
    """Kills: statistics of BatchNorm that are no traffic, or that a step moves."""
    cost = replace(MLP, buffers=10)
    work = RoundWork(cost, (LocalWork(1, 8),), moves=4, itemsize=4, workers=1)
    assert work.broadcast_bytes == 2 * 842 * 4
    assert work.weight_bytes == [4 * 832 * 4]


def test_the_terms_by_hand() -> None:
    """Kills: the slower kernel's speed; terms that are added though they go on at once; a term that is left out."""
    work = work_of([20, 7])
    floor = least(work, SPEED)
    assert floor.arithmetic == pytest.approx(54 * 3360 / 1e4)
    assert floor.weights == pytest.approx(8 * 4 * 832 * 4 / 2e5)
    assert floor.activations == pytest.approx(54 * 4 * 16 * 4 / 1e5)
    assert floor.broadcast == pytest.approx(13312 / 2e5)
    assert floor.aggregation == pytest.approx(26624 / 2e5)
    assert floor.imbalance == pytest.approx(0, abs=1e-9)
    assert floor.binding == "arithmetic"
    assert floor.seconds == pytest.approx(floor.arithmetic + floor.broadcast + floor.aggregation)
    fast = least(work, replace(SPEED, convolution=1e9))
    assert fast.binding == "memory"
    assert fast.seconds == pytest.approx(fast.weights + fast.activations + fast.broadcast + fast.aggregation)
    assert set(fast.counted) == {"weights", "activations", "imbalance", "broadcast", "aggregation"}


def test_no_client_is_split() -> None:
    """Kills: a cohort shared out evenly to the last row; an imbalance of what does not bind."""
    floor = least(work_of([20, 7]), replace(SPEED, lanes=2))
    assert floor.imbalance == pytest.approx((2 * 40 - 54) * 3360 / 1e4)
    assert floor.seconds == pytest.approx(2 * 40 * 3360 / 1e4 + floor.broadcast + floor.aggregation)
    fast = least(work_of([20, 7]), replace(SPEED, lanes=2, matmul=1e9))
    assert fast.imbalance == pytest.approx((2 * 6 - 8) * 4 * 832 * 4 / 2e5 + (2 * 40 - 54) * 4 * 16 * 4 / 1e5)


def test_longest_first() -> None:
    """Kills: clients in their order; a lane that is not the emptiest."""
    assert busiest([3, 4, 5, 6, 7], 2) == 14  # 7 4 3 | 6 5; the best division has 13
    assert busiest([5, 5, 4, 4, 3, 3], 3) == 8
    assert busiest([1, 9, 2], 1) == 12
    assert busiest([1, 9, 2], 5) == 9
    assert busiest([], 2) == 0


@given(loads=st.lists(st.integers(0, 100), min_size=1, max_size=12), lanes=st.integers(1, 4))
def test_a_division_has_its_bounds(loads: list[int], lanes: int) -> None:
    """Kills: a lane lost, a load dropped."""
    assert max(sum(loads) / lanes, max(loads)) <= busiest(loads, lanes)
    assert busiest(loads, lanes) <= sum(loads) / lanes + max(loads) * (1 - 1 / lanes) + 1e-9


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=8),
    epochs=st.integers(1, 5),
    batch=st.integers(1, 20),
    lanes=st.integers(1, 3),
    faster=st.floats(1, 10),
)
def test_more_work_takes_no_less(sizes: list[int], epochs: int, batch: int, lanes: int, faster: float) -> None:
    """Kills: a term that falls with work, or rises with speed."""
    speed = replace(SPEED, lanes=lanes)
    floor = least(work_of(sizes, epochs=epochs, batch_size=batch), speed)
    longer = least(work_of(sizes, epochs=epochs + 1, batch_size=batch), speed)
    assert longer.seconds > floor.seconds
    assert least(work_of(sizes, epochs=epochs, batch_size=batch, momentum=0.9), speed).weights > floor.weights
    rates = {name: faster * getattr(speed, name) for name in ("matmul", "weights", "activations")}
    assert least(work_of(sizes, epochs=epochs, batch_size=batch), replace(speed, **rates)).seconds == pytest.approx(
        floor.seconds / faster
    )


def test_nobody_takes_no_time() -> None:
    """Kills: a division by the clients of a cohort that is empty."""
    assert least(work_of([], workers=0), SPEED).seconds == 0


# --- the machine --------------------------------------------------------------------------------------------


def test_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: lanes without a core or a card; a process that counts for none."""
    monkeypatch.setattr(device_speed, "cores", lambda: 4)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)

    def lanes(**values: Any) -> int:
        return device_speed.lanes_of(Execution(**{"device": "cpu", **values}), values["actors"])

    assert [lanes(actors=actors) for actors in (0, 1, 3, 9)] == [1, 1, 3, 4]
    assert lanes(actors=3, threads=2, cpus_per_actor=2) == 2
    assert lanes(actors=1, threads=8, cpus_per_actor=8) == 1
    shares = [(1, 0.5), (2, 0.5), (3, 0.5), (4, 1.0)]
    assert [lanes(device="cuda", actors=n, gpus_per_actor=share) for n, share in shares] == [1, 1, 2, 2]
    assert lanes(device="cuda", actors=0) == 1


def test_rates_are_calls_by_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a FLOP for a multiply-add; a copy that reads for nothing; a lane's figure for the machine's."""
    monkeypatch.setattr(device_speed, "cores", lambda: 2)
    monkeypatch.setattr(device_speed, "_calls_per_second", lambda *_: 20.0)
    monkeypatch.setattr(device_speed, "LARGEST_COPY", {"cpu": 2**22})
    speed = device_speed.measure(Execution(device="cpu"), 2, torch.float32, weights=3, activations=2**21)
    assert speed.lanes == 2
    assert speed.matmul == 2 * 20 * 2 * 1024**3
    assert speed.convolution == 2 * 20 * 2 * 16 * (16 * 16) * 64 * 64 * 25
    assert speed.flops == speed.matmul
    assert speed.memory == 2 * 20 * 2**22
    assert speed.weights == speed.memory  # slower through a cache it cannot be
    assert speed.activations == speed.memory


def test_calls_are_timed_by_the_threads_of_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: seconds for calls per second; a lane that has all cores, or that keeps other threads than it had."""
    before, seen = torch.get_num_threads(), set[int]()

    def timed(timer: benchmark.Timer, min_run_time: float) -> Any:
        timer.timeit(1)
        return SimpleNamespace(median=0.25)

    monkeypatch.setattr(benchmark.Timer, "blocked_autorange", timed)
    assert device_speed._calls_per_second(lambda: seen.add(torch.get_num_threads()), 3) == 4.0
    assert seen == {3} and torch.get_num_threads() == before


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine measured in no time, in figures that mean nothing."""
    for name, value in {
        "SECONDS": 1e-4,
        "MATMUL": {"cpu": 16},
        "CONVOLUTION": {"cpu": 1},
        "LEAST_COPY": {"cpu": 2**10},
        "LARGEST_COPY": {"cpu": 2**12},
    }.items():
        monkeypatch.setattr(device_speed, name, value)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_figure_is_measured(dtype: torch.dtype) -> None:
    """Kills: lanes that wait for each other for ever; a kernel that a precision does not have."""
    speed = device_speed.measure(Execution(device="cpu"), 2, dtype, 2**10, 2**11)
    assert all(getattr(speed, field.name) > 0 for field in fields(Speed))


# --- which rounds -------------------------------------------------------------------------------------------

STAGES: dict[str, Any] = {
    "stages": [
        {"name": "warmup", "rounds": 28},
        {"name": "aside", "rounds": 9, "needs": ["warmup"]},
        {"name": "prox", "rounds": 12, "needs": ["warmup"], "algorithm": {"name": "fedprox", "mu": 0.1}},
        {"name": "ccvr", "rounds": 0, "needs": ["prox"], "algorithm": {"name": "ccvr"}},
    ],
}


def test_the_last_stage_with_rounds_is_timed() -> None:
    """Kills: a calibration that is timed; rounds of a stage that it does not come from; a warm-up in full."""
    short = cut_short(tiny.experiment(**STAGES), 5)
    assert [(stage.name, stage.rounds) for stage in short.chain] == [("warmup", 1), ("prox", 6)]
    stage, span = last_with_rounds(short)
    assert (stage.name, span) == ("prox", range(2, 8))
    evaluation = short.evaluation
    assert (evaluation.every, evaluation.local_every, evaluation.personal_every) == (0, 0, 0)
    assert not evaluation.client_loss
    assert evaluation.fine_tuning is None


def test_a_schedule_is_as_it_begins() -> None:
    """Kills: a change that lies beyond the rounds that are left; the values of the experiment for those of a stage."""
    schedule = [{"round": 2, "set": {"local.epochs": 3}}, {"round": 29, "set": {"local.epochs": 4}}]
    short = cut_short(tiny.experiment(**STAGES, schedule=schedule), 2)
    assert [stage.local.epochs for stage in short.chain] == [4, 4]
    alone = cut_short(tiny.experiment(rounds=40, schedule=schedule), 2)
    assert (alone.rounds, alone.local.epochs, alone.schedule) == (3, 2, ())


def timed(number: int, seconds: float, floor: float = 1.0) -> TimedRound:
    terms = dict.fromkeys(("weights", "activations", "imbalance", "broadcast", "aggregation"), 0.0)
    return TimedRound(number, seconds, 10, work_of([10]), Floor(arithmetic=floor, **terms, binding="arithmetic"))


def found(*rounds: TimedRound, algorithm: str = "fedavg") -> MeasuredFloor:
    config = tiny.experiment_of(algorithm)
    return MeasuredFloor(config, config.chain[-1], MLP, SPEED, rounds)


def test_the_median_round_speaks() -> None:
    """Kills: the fastest round, the mean of two that were no round, a share of another round."""
    odd = found(timed(2, 8.0), timed(3, 4.0, floor=2.0), timed(4, 1.0))
    assert (odd.typical.number, odd.typical.share) == (3, 0.5)
    even = found(timed(2, 8.0), timed(3, 4.0), timed(4, 1.0), timed(5, 2.0))
    assert even.typical.number == 5


def test_whose_floor_it_is() -> None:
    """Kills: a method's second forward pass passed off as the floor's; FedAvg with an excuse."""
    plain = {name for name in ALGORITHMS if name not in tiny.STUDENTS and found(timed(2, 4.0), algorithm=name).is_plain}
    assert {"fedavg", "fedavgm", "local"} <= plain
    assert not {"fedprox", "scaffold", "moon", "cbfl", "fedser", "pflego", "ditto", "perfedavg", "fedmix"} & plain


def test_the_conclusion_is_said() -> None:
    """Kills: a term without a word; a share in which nobody can believe passed over; the wrong term."""
    assert set(cli_floor.BOUND_BY) == {field.name for field in fields(Floor)} - {"binding"}
    text = cli_floor.conclusion(found(timed(2, 0.5, floor=0.125)))
    assert text == "A round took 500 ms and takes at least 125 ms, bound by arithmetic: the floor is 25 % of it."
    assert "measure again" in cli_floor.conclusion(found(timed(2, 0.5)))
    assert "what moon does beside it" in cli_floor.conclusion(found(timed(2, 4.0), algorithm="moon"))
    lone = timed(2, 4.0)
    lone = replace(lone, floor=replace(lone.floor, imbalance=1.5))
    assert "clients that cannot be split" in cli_floor.conclusion(found(lone))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (1e-12, "0.001 ns"),
        (1e-9, "1 ns"),
        (0.001, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9996, "1 s"),
        (1, "1 s"),
        (999.4, "999 s"),
        (999.6, "1 ks"),
        (123456, "123 ks"),
        (1e6, "1 Ms"),
        (2e18, "2e+03 Ps"),
    ],
)
def test_prefixes(value: float, text: str) -> None:
    """Kills: 1000 of a unit for one of the next; a power of ten that rounding moves."""
    assert cli_floor.si(value, "s") == text


# --- the command --------------------------------------------------------------------------------------------

SMALL = [
    "execution.actors=0",
    "data.train_samples=300",
    "data.test_samples=60",
    "partition.clients=6",
    "partition.alpha=0.5",
    "participation.count=3",
    "model.name=mlp",
    "local.epochs=1",
]
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, hasty: None) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return lambda *words: fedskew(monkeypatch, capsys, "floor", *words)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The engine's own rows of the rounds that are timed, as they come."""
    rows: list[dict[str, Any]] = []
    timed = measured_floor._timed
    monkeypatch.setattr(measured_floor, "_timed", lambda *args: rows.extend(timed(*args)) or list(rows))
    return rows


def test_the_command(call: Call, kept: list[dict[str, Any]], tmp_path: Path) -> None:
    """Kills: another cohort than the rounds had; a first round that counts; figures that do not add up or are not
    those that are shown; files left behind."""
    code, out, err = call(*SMALL, "--rounds", "4", "--layers", "--json")
    assert code == 0, err
    saved = json.loads(out)
    assert list(tmp_path.iterdir()) == []
    assert [row["round"] for row in saved["rounds"]] == [2, 3, 4]
    for row, engine in zip(saved["rounds"], kept, strict=True):
        assert {name: row[name] for name in ("round", "seconds", "clients", "samples", "steps")} == {
            name: engine[name] for name in ("round", "seconds", "clients", "samples", "steps")
        }
        floor = row["floor"]
        bound = floor["arithmetic"] if floor["binding"] == "arithmetic" else floor["weights"] + floor["activations"]
        rest = floor["imbalance"] + floor["broadcast"] + floor["aggregation"]
        assert floor["seconds"] == pytest.approx(bound + rest)
        assert row["share"] == floor["seconds"] / row["seconds"]
        assert row["flops"] == row["rows"] * (6 * 198800 - 2 * 156800)
    assert saved["share"] == next(row["share"] for row in saved["rounds"] if row["round"] == saved["typical"])
    assert saved["model"]["parameters"] == 199210
    assert Experiment.from_mapping(saved["experiment"]).participation.count == 3
    assert "199,210 parameters" in err
    assert "body.1" in err
    assert "bound by" in err


def test_stages_and_batchnorm(call: Call, kept: list[dict[str, Any]], tmp_path: Path) -> None:
    """Kills: a cohort of another round; a model's lone rows; a stage's local section passed over."""
    (tmp_path / "mine.yaml").write_text(
        json.dumps({**STAGES, "local": {"epochs": 1, "batch_size": 5}, "model": {"name": "resnet8"}})
    )
    words = [word for word in SMALL if not word.startswith(("model", "local"))]
    code, out, err = call(
        "mine.yaml",
        *words,
        "data.train_samples=90",
        "stages.prox.local.epochs=2",
        "--rounds",
        "3",
        "--json",
    )
    assert code == 0, err
    saved = json.loads(out)
    assert saved["stage"] == "prox"
    assert [(row["round"], row["samples"], row["steps"]) for row in saved["rounds"]] == [
        (row["round"], row["samples"], row["steps"]) for row in kept
    ]
    assert [row["round"] for row in kept] == [3, 4]
    assert "stage prox, after one round of warmup" in err
    assert "what fedprox does beside it" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["quickstrat"], "experiment=quickstrat: is neither a file nor a known name; did you mean 'quickstart'?"),
        (["local.lrr=1"], "local.lrr=1: is not a known key"),
        (["--rounds", "1"], "--rounds"),
        (["--round", "5"], "No such option"),
        (["cbhma"], "client_models=['mlp', 'lenet', 'cnn3', 'resnet8', 'resnet20']: have different costs"),
        (["execution.device=cuda", "execution.actors=0"], "needs a GPU and there is none"),
    ],
)
def test_wrong_words(call: Call, tmp_path: Path, words: list[str], text: str) -> None:
    """Kills: a traceback; a run that begins before what is wrong is seen."""
    code, _, err = call(*words)
    assert code == 2
    assert text in err
    assert not list(tmp_path.iterdir())


def test_a_round_that_fails_is_told(call: Call, tmp_path: Path) -> None:
    """Kills: an error of the clearing up in the place of what went wrong; a folder that is left behind."""
    code, _, err = call(*SMALL, "local.lr=1e30")
    assert code == 1
    assert "diverged in round 1" in err
    assert not list(tmp_path.iterdir())


def test_a_sweep_without_a_cell_is_no_experiment(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a floor of nothing, where a sweep's cells have been listed."""
    monkeypatch.setattr("fedskew.lab.floor.measured.measure_floor", pytest.fail)
    code, out, _ = call("drift.fedprox_mu")
    assert code == 0 and "drift.fedprox_mu:mu=1,alpha=0.05" in out


def test_rounds_without_clients_are_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the median of rounds in which nothing happened."""

    class Empty:
        round = 0

        def advance(self, until: int) -> Any:
            self.round += 1
            row = {"stage": "train", "round": self.round, "clients": self.round % 2}
            return type("Progress", (), {"rows": [row]})

    stage = tiny.experiment().chain[0]
    assert [row["round"] for row in measured_floor._timed(Empty(), stage, 5)] == [3, 5]  # pyright: ignore
    with pytest.raises(RunError, match="no client took part"):
        measured_floor._timed(Empty(), stage, 2)  # pyright: ignore


def test_mixed_models_are_refused_before_anything_runs() -> None:
    """Kills: teachers that train for a floor that is never counted."""
    config = tiny.experiment(
        algorithm={"name": "local"}, client_models=["mlp", "logistic"], evaluation={"every": 0}, rounds=1
    )
    with pytest.raises(ConfigError, match="the floor is counted for one model"):
        measured_floor.measure_floor(config, 2)
