"""Every registered algorithm, every property. A new algorithm is tested here without a line of test code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.answers import Answers
from algorithms.distillation import Distillation
from engine.algorithm import Algorithm, Generative, Kind, ParamLayout, PostTraining, Tensors
from engine.algorithm.generative import own_classes
from engine.base.errors import ConfigError
from engine.client.blocks import cut_blocks
from engine.client.steps.client_round import SERVER, Streams
from engine.client.steps.flat_net import NetAt
from engine.data import Assignment
from engine.experiment import Experiment
from fedskew.testing.algorithm_runs import resumed_is_straight
from fedskew.testing.algorithm_values import is_a_frozen_value
from fedskew.testing.checks import parametrize_with_checks
from tests.support.loops import each
from tests.support.outcomes import SHORT, come_to, variance_mask
from tests.support.tiers import six
from tests.support.tiny import (
    CLASSES,
    SIZES,
    STUDENTS,
    SUITED,
    TINY_NORM,
    Driven,
    assignment,
    before_the_end,
    dataset,
    drive,
    experiment_of,
    open_driver,
    prepared,
)

ALL = pytest.mark.parametrize("name", list(ALGORITHMS))
pytestmark = pytest.mark.usefixtures("tiny_norm")
SETTING: dict[str, Any] = {"participation": {"count": 4}, "rounds": 4}


# Fields with which the order of clients does not decide who meets whom in a batch, where the default would.
ORDER_IS_NO_MATTER: dict[str, dict[str, Any]] = {
    "iid_calibration": {"batch_size": 1000, "fraction": 1.0},
    "cfl_amalgam": {"feature_weight": 0.0},  # teachers' layers are drawn one after the other
}


# Fields without what magnifies rounding: the gradient of a bias before BatchNorm is rounding alone, and Adam's steps
# along it are as long as any other, which a generator in eval mode shows.
SMOOTH: dict[str, dict[str, Any]] = {"cbfl": {"generator": "gaussian_noise"}}


# Fields with which a student of a dozen images has time to learn what the others have learned by then.
ENOUGH: dict[str, dict[str, Any]] = {
    name: {"epochs": 30, **({"lr": 0.01} if name == "cfl_amalgam" else {})} for name in STUDENTS
} | {"pflego": {"tau": 50, "server_lr": 0.003}}


def config(name: str, fields: dict[str, Any] | None = None, **changes: Any) -> Any:
    """With what goes before the algorithm, where that has no rounds."""
    return experiment_of(name, {**SHORT.get(name, {}), **(fields or {})}, **{**SETTING, **changes})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Driven]:
    """The run of ``config(name)``, once for all that compare another one with it."""
    return cache(lambda name: drive(tmp_path_factory.mktemp("plain"), config(name)))


@pytest.mark.slow
@ALL
def test_seed_changes_the_run_but_not_the_partition(tmp_path: Path, name: str, plain: Callable[[str], Driven]) -> None:
    """Kills: a seed that is read nowhere; a partition drawn from the run's seed."""
    norm = TINY_NORM if name == "fedbn" else {}  # without BatchNorm its states are empty
    first, other = config(name, **norm), config(name, seed=1, **norm)
    run = drive(tmp_path / "first", first) if norm else plain(name)
    for one, two in zip(run.shas, drive(tmp_path / "other", other).shas, strict=True):
        assert one != two or one is None  # without state
    labels = dataset().train.labels
    for one, two in zip(*(c.partition.assign(labels, CLASSES, None).clients for c in (first, other)), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("name", six(ALGORITHMS))
def test_stop_and_resume_is_the_straight_run(name: str) -> None:
    """Kills: anything of server, states or round that is not in the checkpoint; a store that forgets or mixes up; a
    draw from a global generator, an iteration over a set."""
    settings = config(name, **TINY_NORM, rounds=3)
    resumed_is_straight(name, settings, prepared(settings, dataset(), assignment(SIZES)))


@each("name", list(ALGORITHMS))
def test_what_a_step_sees_is_said_for_each_client_alone(name: str) -> None:
    """Kills: classes of a step that are negative or NaN, lack the client's own rows, or depend on its neighbours."""
    algorithm = ALGORITHMS[name]()
    counts = torch.tensor([[3, 1, 0, 0], [0, 0, 0, 9], [5, 5, 5, 5]])
    before = counts.clone()
    step_classes = algorithm.step_classes if isinstance(algorithm, Generative) else own_classes
    seen = step_classes(counts, 8)
    assert seen.dtype == torch.float64 and seen.shape == counts.shape and torch.equal(counts, before)
    assert (seen >= 8 * counts / counts.sum(1, keepdim=True) - 1e-12).all() and torch.isfinite(seen).all()
    for row in range(len(counts)):
        assert torch.equal(step_classes(counts[row : row + 1], 8)[0], seen[row])


@pytest.mark.slow
@ALL
def test_precision_is_float64_throughout(tmp_path: Path, name: str, plain: Callable[[str], Driven]) -> None:
    """Kills: a float32 constant or cast on the way of a float64 run."""
    execution = {"actors": 0, "device": "cpu", "precision": "float64"}
    run = drive(tmp_path, config(name, SMOOTH.get(name), execution=execution))
    assert run.server["weights"].dtype == torch.float64
    low = drive(tmp_path / "low", config(name, SMOOTH[name])) if name in SMOOTH else plain(name)
    gap = (come_to(run) - come_to(low)).abs().max()
    assert 0 < gap < 1e-4


@pytest.mark.slow
@ALL
def test_relabelling_clients_changes_nothing_but_the_order_of_sums(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: state or data that belongs to a position in the cohort and not to a client."""
    full = {"participation": {}, "local": {"batch_size": 64, "epochs": 2, "lr": 0.1}}  # one batch: order is no matter
    execution = {"actors": 0, "device": "cpu", "precision": "float64"}
    settings = config(name, ORDER_IS_NO_MATTER.get(name), **full, execution=execution, rounds=2)
    parts = assignment(SIZES)
    turned = Assignment(parts.clients[::-1])
    one = come_to(drive(tmp_path / "a", settings, parts=parts))
    turn_draws(monkeypatch, name)
    two = come_to(drive(tmp_path / "b", settings, parts=turned), turned=True)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-12)


# What draw gives that is a position in the order of the clients -> how many positions there are.
DRAWN_POSITIONS = {"partner": len(SIZES)}


def turn_draws(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """From now on a client draws what the one in its place, counted from the other end, has drawn so far."""
    streams = Streams.__init__

    def begin(own: Streams, seed: int, round: int, client: int, *prefix: str) -> None:
        streams(own, seed, round, client if client == SERVER else len(SIZES) - 1 - client, *prefix)

    monkeypatch.setattr(Streams, "__init__", begin)
    draw = ALGORITHMS[name].step_randomness

    def turned(*args: Any) -> dict[str, Any]:
        drawn = draw(*args)
        return drawn | {key: count - 1 - drawn[key] for key, count in DRAWN_POSITIONS.items() if key in drawn}

    monkeypatch.setattr(ALGORITHMS[name], "step_randomness", turned)


@pytest.mark.slow
@ALL
def test_a_block_of_any_size_gives_the_same_weights(tmp_path: Path, name: str, plain: Callable[[str], Driven]) -> None:
    """Kills: a sum that forgets a block or a weight, or is added block by block; a pass over all clients that is."""
    assert len(cut_blocks(range(SETTING["participation"]["count"]), "auto", 1)) == 4  # plain: one client in each
    for block in (3, 100):
        run = drive(tmp_path / str(block), config(name, execution={"actors": 0, "device": "cpu", "block": block}))
        assert torch.equal(come_to(run), come_to(plain(name)))


@pytest.mark.slow
@ALL
def test_batchnorm_buffers_are_the_plain_sample_mean(tmp_path: Path, name: str) -> None:
    """Kills: a control variate, a momentum or a weight that reaches BatchNorm's statistics; statistics of a phase that
    is the client's own affair; any that are sent where they are not shared."""
    settings = config(name, **TINY_NORM, rounds=2, participation={"count": 3})  # one trainer sees all clients
    driver = open_driver(tmp_path, settings)
    driver.advance()
    shares_buffers = driver.stage.algorithm.shares_buffers  # of the stage that trains
    before = {key: tensor.clone() for key, tensor in driver.lineage.server.items()}
    trained: list[tuple[int, torch.Tensor]] = []
    trainer = driver.pool._workers[0].trainer  # type: ignore[attr-defined]
    original = trainer.train

    def spy(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        trained.append((result.num_examples, result.buffers.clone()))
        return result

    trainer.train = spy
    driver.next()
    if not shares_buffers:
        assert all(len(buffers) == 0 for _, buffers in trained)
        assert torch.equal(driver.lineage.server["buffers"], before["buffers"])
        return
    total = sum(count for count, _ in trained)
    mean = sum(count * buffers.double() for count, buffers in trained) / total
    torch.testing.assert_close(driver.lineage.server["buffers"], mean.float(), rtol=0, atol=0)
    assert not torch.equal(driver.lineage.server["buffers"], before["buffers"])
    assert (driver.lineage.server["buffers"][16:] >= 0).all()  # running variances


# With BatchNorm in training mode, and without it; a frozen body has none. The others train for two epochs.
STEPS_ON_ONE_ROW = {"pflego": (4, 4), "fedrep": (10, 11), "ditto": (0, 4), "pfedme": (0, 8), "fedrod": (2, 4)}
STEPS_ON_ONE_ROW |= {"apfl": (0, 4), "perfedavg": (0, 3)}


@pytest.mark.slow
@ALL
def test_clients_of_one_row_and_of_one_class(tmp_path: Path, name: str) -> None:
    """Kills: a division by zero steps, BatchNorm of a single row, a class count that must not be zero."""
    labels = dataset().train.labels
    by_class = [np.flatnonzero(labels == number) for number in range(CLASSES)]
    parts = Assignment((by_class[0][:1], by_class[1], by_class[2][:9], np.empty(0, np.int64), by_class[3][:8]))
    for model in (TINY_NORM["model"], {"name": "mlp", "hidden": [6]}):
        run = drive(tmp_path / model["name"], config(name, model=model, participation={}, rounds=2), parts=parts)
        assert torch.isfinite(come_to(run)).all()
        rows = run.folder.frame("clients")
        assert set(rows["client"]) == {0, 1, 2, 4}  # client 3 holds nothing and is never drawn
        steps = rows.set_index(["round", "client"])["steps"]
        with_batchnorm, without = STEPS_ON_ONE_ROW.get(name, (0, 2))
        assert steps[1, 0] == (without if model["name"] == "mlp" else with_batchnorm)


FINISHERS = pytest.mark.parametrize("name", [n for n in ALGORITHMS if issubclass(ALGORITHMS[n], PostTraining)])


@pytest.mark.slow
@FINISHERS
@pytest.mark.parametrize("stop", [1, 4])
def test_a_stage_without_rounds_is_one_step(tmp_path: Path, name: str, stop: int) -> None:
    """Kills: a checkpoint that takes a stage without rounds for finished when it has only begun; a second finish; an
    end that writes to what it is given; a row or an evaluation that is missing."""
    driver = open_driver(tmp_path, config(name, **TINY_NORM, evaluation={"every": 0}))
    while driver.round < stop:
        driver.next()
    assert not driver.finished
    driver.close()
    driver = open_driver(tmp_path, config(name, **TINY_NORM, evaluation={"every": 0}))
    given: list[dict[str, torch.Tensor]] = []
    finish = driver.lineage.finish

    def spy() -> None:
        kept, before = driver.lineage.server, {key: value.clone() for key, value in driver.lineage.server.items()}
        finish()
        assert all(torch.equal(kept[key], before[key]) for key in before)
        given.append(before)

    driver.lineage.finish = spy  # type: ignore[method-assign]
    while not driver.finished:
        driver.advance()
    summary = driver.close()
    check_end(ALGORITHMS[name], given[-1], driver.lineage.server, driver.layout)
    stages = [stage.name for stage in driver.experiment.chain]
    rounds, evaluations = (driver.folder.frame(table) for table in ("rounds", "evaluations"))
    ends = [(stage, 4) for stage in stages]
    assert list(zip(rounds["stage"], rounds["round"], strict=True))[3:] == ends
    assert list(zip(evaluations["stage"], evaluations["round"], strict=True)) == ends
    assert summary["accuracy"] == summary["last10_accuracy"] == evaluations["accuracy"].iloc[-1]
    assert summary["stage_accuracy"] == dict(zip(stages, evaluations["accuracy"], strict=True))
    assert (summary["rounds"], summary["rounds_asked"]) == (4, 4)


def check_end(kind: type[Algorithm], before: Tensors, after: Tensors, layout: ParamLayout) -> None:
    """A calibration changes the head alone; answers are asked for and no model changes; a student is a new model."""
    same = torch.equal(after["weights"], before["weights"])
    if issubclass(kind, Distillation):
        assert not same and "answers" not in after
        return
    assert torch.equal(after["buffers"], before["buffers"])
    if issubclass(kind, Answers):
        assert same and "answers" in after.keys() - before.keys()
        return
    assert torch.equal(layout.body_of(after["weights"]), layout.body_of(before["weights"]))
    assert not torch.equal(layout.head_of(after["weights"]), layout.head_of(before["weights"]))


@FINISHERS
def test_what_has_no_rounds_says_so(name: str) -> None:
    """Kills: an algorithm without rounds that is given some, or nothing to start from."""
    with pytest.raises(ConfigError, match=rf"^algorithm.name={name}: has no rounds of its own, .*; write stages"):
        Experiment(algorithm={"name": name})
    before = before_the_end(name, rounds=2)
    end = {"name": "end", "rounds": 3, "needs": [before[-1]["name"]], "algorithm": {"name": name}}
    with pytest.raises(ConfigError, match=rf"stages.end.rounds=3: must be 0, for {name} has no rounds; set stages.end"):
        Experiment(stages=[*before, end])
    with pytest.raises(ConfigError, match=r"stages.end.rounds=0: a stage without rounds goes on from another one; "):
        Experiment(stages=[*before, {**end, "rounds": 0, "needs": []}])


@each("name", list(ALGORITHMS))
def test_is_a_frozen_value(name: str) -> None:
    """Kills: a field that pickling or the config loses; one that can be set; one that nobody has declared."""
    algorithm = ALGORITHMS.build({"name": name})
    is_a_frozen_value(algorithm)
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.anything = 1
    with pytest.raises(ConfigError, match=f"algorithm.nonsense=1: is not a field of algorithm '{name}'"):
        ALGORITHMS.build({"name": name, "nonsense": 1})


# What those below take, which begin from answers, the checks cannot make: test_answers.py and test_distillation.py.
CHECKED = [name for name, kind in ALGORITHMS.items() if not issubclass(kind, Answers | Distillation)]


@pytest.mark.slow
@parametrize_with_checks(
    [ALGORITHMS.build({"name": name, **SUITED.get(name, {}), **SHORT.get(name, {})}) for name in CHECKED],
    checks=("returns_what_it_declares", "inputs_not_written", "keeps_nothing", "values_not_read", "float64_throughout"),
)
def test_keeps_the_rules(part: Algorithm, check: Any) -> None:
    """Kills: an in-place operation on what a method was given, whose memory a node may share; state in self; an entry
    that is not declared; a branch on a tensor's value; a float32 constant."""
    check(part)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if not issubclass(ALGORITHMS[name], PostTraining)])
def test_without_steps_nothing_moves(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a correction that is applied where nobody trained, a division by no steps (O-4)."""
    phases = ALGORITHMS[name].phases
    idle = lambda *args: tuple(dataclasses.replace(phase, epochs=0, steps=None) for phase in phases(*args))  # noqa: E731
    monkeypatch.setattr(ALGORITHMS[name], "phases", idle)
    run = drive(tmp_path, config(name, **TINY_NORM, rounds=2))
    end = run.driver.layout.body if name == "fedetf" else None  # which begins with a head of its own
    for entry in ("weights", "buffers"):
        assert torch.equal(run.server[entry][:end], run.driver.federation.fresh[entry][:end])


@pytest.fixture
def frozen_without_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass of a frozen model is looked at: nothing of it is kept for a backward pass."""
    saved: list[int] = []
    original = NetAt._call

    def spy(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        before = len(saved)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(1) or tensor, lambda tensor: tensor):
            out = original(self, *args, **kwargs)
        if self._frozen:
            assert out.grad_fn is None and not out.requires_grad
            assert len(saved) == before
        return out

    monkeypatch.setattr(NetAt, "_call", spy)


@pytest.mark.slow
@ALL
@pytest.mark.usefixtures("frozen_without_graph")
def test_running_variances_stay_positive(tmp_path: Path, name: str) -> None:
    """Kills: momentum, normalisation or a control variate on running variances, with clients of very unequal size
    (O-5, erratum E-07); a teacher whose graph is built, and takes memory, or that is trained."""
    sizes = [90, 2, 3, 17, 8]
    driver = open_driver(tmp_path, config(name, **TINY_NORM, participation={}), parts=assignment(sizes))
    variances = variance_mask(driver.pool._workers[0].net)  # type: ignore[attr-defined]
    own = {entry for entry, kind in ALGORITHMS[name]().kinds.items() if kind is Kind.BUFFERS}
    while not driver.finished:
        driver.advance()
        kept = [
            state[entry]
            for state in driver.lineage.states.store.read(range(len(sizes)))
            if state
            for entry in own & state.keys()
        ]
        for buffers in (driver.lineage.server["buffers"], *kept):
            assert (buffers[variances] > 0).all()
            assert len(buffers) == driver.layout.buffers  # floating ones alone: counters never travel
    driver.close()


@pytest.mark.slow
@ALL
def test_learns(tmp_path: Path, name: str) -> None:
    """Kills: a sign error; the tiny images are easy, and chance is 0.25."""
    run = drive(tmp_path, config(name, ENOUGH.get(name), rounds=15, participation={}, evaluation={"every": 15}))
    assert run.summary["accuracy"] > 0.85
    rows = run.folder.frame("rounds")
    assert rows["loss_after"].mean() < rows["loss_before"].mean()
