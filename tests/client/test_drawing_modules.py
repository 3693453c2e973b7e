"""Modules that draw: from the client's step stream, alike in every executor, for every worker, each time."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine.algorithm import Phase
from engine.base.errors import UnkeyedDraw
from engine.client.steps import drawing_modules, random_operations
from engine.client.steps import training_loop as sequential
from engine.client.steps.client_round import ClientTask
from engine.client.steps.drawing_modules import StepDraws, drawing_from, may_draw
from engine.client.trainer import Trainer
from engine.client.vmap import training_loop as block
from engine.client.vmap.cuda_graph import Programs
from engine.data.samples.batches import Rows
from engine.experiment import Local
from engine.models import MODELS, build_model
from tests.client.test_block_options import RAGGED, Telling
from tests.support.bench import CPU, Bench
from tests.support.drawing import LAYERS, WIDTH, Noise, drawing, registered
from tests.support.side_by_side import assert_alike, one_by_one, together
from tests.support.tiny import drive, experiment_of, open_driver

SOME = ("dropout", "gauss", "stochastic depth", "rrelu")
Drawn = dict[int, list[Tensor]]  # seed of a stream -> what was drawn from it, in order


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    """All that is drawn during a test, by stream."""
    found: Drawn = defaultdict(list)
    filled = random_operations._filled

    def noted(*args: Any) -> Tensor:
        tensor = filled(*args)
        found[args[-1].initial_seed()].append(tensor.clone())
        return tensor

    monkeypatch.setattr(random_operations, "_filled", noted)
    return found


def visits(bench: Bench, algorithm: Any, **local: Any) -> list[ClientTask]:
    received, section = bench.received(algorithm), Local(**{"epochs": 2, "batch_size": 8, "lr": 0.1, **local})
    return [
        ClientTask(algorithm, section, number, part, bench.context, received, {}, newcomer=True)
        for number, part in enumerate(bench.parts)
    ]


def both(*layers: str, phases: tuple[Phase, ...] = (Phase(),), **local: Any) -> tuple[Any, Any]:
    """What clients come to in one pass, and one by one."""
    bench = Bench(drawing(*layers)(), sizes=RAGGED)
    tasks = visits(bench, Telling(wanted=phases), **local)
    return together(bench.trainer, tasks), one_by_one(bench.trainer, tasks)


# --- the same numbers in every executor ----------------------------------------------------------------


@pytest.mark.parametrize("layer", LAYERS)
def test_executors_draw_alike(layer: str, drawn: Drawn) -> None:
    """Kills: a draw of all clients from one stream, in another shape, order or precision than the client has alone;
    an operation without a rule; a gradient that does not see the mask."""
    bench = Bench(drawing(layer)(), sizes=RAGGED)
    tasks = visits(bench, Telling())
    in_one_pass, ours = together(bench.trainer, tasks), {**drawn}
    drawn.clear()
    assert_alike(in_one_pass, one_by_one(bench.trainer, tasks), 1e-9)
    assert ours.keys() == drawn.keys()
    if layer not in ("choices", "order of rows"):  # which fill nothing
        assert len(drawn) == len(RAGGED)
    for seed, numbers in drawn.items():
        assert all(map(torch.equal, ours[seed], numbers)), seed
        assert len(ours[seed]) == len(numbers)


OPTIONS: dict[str, tuple[tuple[Phase, ...], dict[str, Any]]] = {
    "momentum": ((Phase(),), {"momentum": 0.9, "weight_decay": 0.01}),
    "full": ((Phase(),), {"batch_size": "full"}),
    "gradient": ((Phase(emit="gradient", batch="full"), Phase()), {}),
    "names": ((Phase(name="a", steps=2), Phase(), Phase(name="a", steps=1)), {}),
    "head": ((Phase(trainable="head"), Phase(trainable="body")), {}),
    "cached": ((Phase(trainable="head", features="cached"), Phase()), {}),
    "repeat": ((Phase(repeat=2, epochs=1),), {"augment": "flip"}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a stream that is opened anew each step, chunk or phase; draws where a body is frozen; a probe with masks
    of its own."""
    monkeypatch.setattr(sequential, "CHUNK", 7)
    monkeypatch.setattr(block, "CHUNK", 7)
    phases, local = OPTIONS[option]
    assert_alike(*both(*SOME, phases=phases, **local), 1e-9)


@pytest.mark.parametrize("one_pass", [False, True])
def test_the_probe_has_the_draws_of_the_first_step(one_pass: bool) -> None:
    """Kills: an objective at the end that differs by its masks alone; a probe that moves the stream."""
    found = both("dropout", "gauss", phases=(Phase(lr=0.0, epochs=1),))[0 if one_pass else 1]
    told = [trained for trained in found if trained.loss_before is not None]
    assert told
    for trained in told:
        assert trained.loss_after == pytest.approx(trained.loss_before, rel=1e-12)


def test_streams_of_steps_and_clients_differ(drawn: Drawn) -> None:
    """Kills: one mask for all steps, or for all clients."""
    both("gauss")
    firsts = [numbers[0].flatten()[:WIDTH] for numbers in drawn.values()]
    steps = [numbers[at].flatten()[:WIDTH] for numbers in drawn.values() for at in range(2)]
    assert len({tuple(one.tolist()) for one in firsts}) == len(firsts) > 3
    assert len({tuple(one.tolist()) for one in steps}) == 2 * len(firsts)


# --- the same bits for every run ------------------------------------------------------------------------

ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ditto": {},
    "moon": {},
    "perfedavg": {},
    "fedmix": {},
    "fedser": {},
    "fedrecon": {"recon_steps": 2},
    "scaffold": {"option": "I"},
    "skd1": {},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_comes_to_the_same_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Kills: a forward pass of the algorithm, of its setup or of the server's training outside of any stream; numbers
    of a worker."""
    layers = ("dropout", "gauss") if name == "fedser" else SOME
    model = {**registered(monkeypatch, *layers), **({"projection": True} if name == "moon" else {})}
    for executor in ("loop", "block") if name in ("fedavg", "ditto") else ("loop",):
        found = set()
        for workers in (1, 2):
            torch.manual_seed(workers)
            execution = {"workers": workers, "block": 2, "executor": executor}
            changes = {"rounds": 1, "model": model, "execution": execution, "evaluation": {"every": 0}}
            found.add(drive(tmp_path / f"{executor}{workers}", experiment_of(name, ALGORITHMS[name], **changes)).shas)
        assert len(found) == 1


def test_own_models_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: fine tuning and adaption, in an evaluation, with numbers of the process."""
    rows = []
    for number in range(2):
        torch.manual_seed(number)
        evaluation = {"personal_every": 1, "fine_tune_epochs": 1, "fine_tune_part": "all"}
        config = experiment_of("perfedavg", {}, rounds=2, model=registered(monkeypatch, *SOME), evaluation=evaluation)
        frame = drive(tmp_path / str(number), config).folder.frame("personal")
        rows.append(frame.drop(columns=["seconds"], errors="ignore"))
    assert rows[0].equals(rows[1])


def test_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a stream that is older than its round."""
    config = experiment_of("fedavg", {}, rounds=3, model=registered(monkeypatch, *SOME))
    whole = drive(tmp_path / "whole", config).sha
    driver = open_driver(tmp_path / "parts", config)
    driver.advance(until=2)
    driver.close()
    assert drive(tmp_path / "again", config).sha == whole
    again = open_driver(tmp_path / "parts", config)
    while not again.finished:
        again.advance()
    assert again.close()["weights_sha256"] == whole


# --- who draws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(MODELS))
def test_our_networks_pay_nothing(name: str) -> None:
    """Kills: a network of ours whose modules are looked at in each pass."""
    shape = (1, 28, 28) if name == "pflego_omniglot" else (3, 32, 32)
    with torch.device("meta"):
        model = MODELS[name]().build(shape, 10)
    assert not any(map(may_draw, model.modules()))


def test_modules_that_may_draw() -> None:
    """Kills: a layer of torch's that is taken for quiet; dropout of nothing that is taken for a draw."""
    assert all(map(may_draw, (nn.Dropout(), nn.LSTM(2, 2, 2, dropout=0.1), nn.MultiheadAttention(2, 1, dropout=0.1))))
    assert may_draw(Noise(torch.rand_like))
    assert not any(map(may_draw, (nn.LSTM(2, 2), nn.MultiheadAttention(2, 1), nn.Sequential(), nn.ReLU())))


def test_frozen_networks_and_evaluation_draw_nothing(drawn: Drawn) -> None:
    """Kills: a stream that moves with what is not trained."""
    net = Bench(drawing(*SOME)()).net
    x = torch.zeros(2, 1, 8, 8, dtype=torch.float64)
    with drawing_from(StepDraws([lambda purpose: torch.Generator()])):
        net.train(True)
        net.at(net.weights, net.buffers)(x)
        net.train(False)
        net(x)
    assert not drawn


# --- what is refused --------------------------------------------------------------------------------------


class Loose(nn.Module):
    """Has a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=self.generator, dtype=x.dtype)


class Always(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


REFUSED: dict[str, tuple[Any, str]] = {
    "own generator": (Loose, r"module body\.3 \(Loose\) draws .* by rand, from a generator of its own"),
    "no rule": (lambda: Noise(torch.poisson), r"module body\.3 \(Noise\) draws .* by poisson, which has no rule"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("one_pass", [False, True])
def test_what_has_no_key_is_refused(monkeypatch: pytest.MonkeyPatch, what: str, one_pass: bool) -> None:
    """Kills: numbers of a worker in place of a client's."""
    layer, message = REFUSED[what]
    monkeypatch.setitem(LAYERS, "refused", layer)
    bench = Bench(drawing("refused")())
    tasks = visits(bench, Telling())
    with pytest.raises(UnkeyedDraw, match=message):
        (together if one_pass else one_by_one)(bench.trainer, tasks)


def test_a_draw_in_an_evaluation_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kills: an accuracy with noise; ``drop`` that drops whoever draws."""
    monkeypatch.setitem(LAYERS, "always", Always)
    config = experiment_of(
        "fedavg", {}, model=registered(monkeypatch, "always"), participation={"on_client_error": "drop"}
    )
    with pytest.raises(UnkeyedDraw, match=r"module body\.3 \(Always\) draws .* outside of training; draw where self"):
        drive(tmp_path, config)


def test_a_captured_step_is_refused() -> None:
    """Kills: masks that are captured with a step, and so are one mask for all steps."""

    class Recorder:
        def warm_up(self, work: Any) -> None:
            work()

        def record(self, work: Any) -> Any:
            raise AssertionError

    bench = Bench(drawing("dropout")())
    rows = Rows(bench.rows, bench.rows.train, CPU, torch.float64)
    trainer = Trainer(bench.net, rows, seed=0, programs=Programs(Recorder))
    message = r"body\.3 \(Dropout\) draws .* which a captured step would repeat; set execution.executor=block"
    with pytest.raises(UnkeyedDraw, match=message):
        trainer.train_together(visits(bench, Telling()))


def test_modules_are_left_alone_after_an_error() -> None:
    """Kills: a mode that stays on once a module has raised an error."""

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    model = nn.Sequential(Broken())
    assert drawing_modules.watch(model)
    with pytest.raises(ValueError, match="no"):
        model(torch.zeros(1))
    assert not drawing_modules._here.opened
    torch.rand(1)  # which would be refused


def test_a_module_within_another_is_entered_once() -> None:
    """Kills: modes within modes."""
    inner = build_model(drawing("dropout")(), (1, 8, 8), 4, torch.Generator())
    outer = nn.Sequential(Noise(torch.rand_like), inner)
    outer[0].inner = nn.Dropout()
    drawing_modules.watch(outer)
    assert [bool(module._forward_pre_hooks) for module in (outer[0], outer[0].inner)] == [True, False]
