"""Executors graph and block_graph: what a replayed step reads, and that it is the loop's step.

Here a recorder without a GPU stands for CUDA's: what it replays is the function of the moment in which it was captured,
which finds in memory what a captured graph would find there.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Client, Net, Phase, PostTraining, Tensors, idle_when
from engine.base.errors import ConfigError, MemoryShort, RunError
from engine.client.steps import training_loop as sequential
from engine.client.steps.client_round import ClientProgress, ClientResult
from engine.client.steps.flat_net import FlatNet
from engine.client.steps.step_inputs import Inputs
from engine.client.trainer import Trainer
from engine.client.vmap import cuda_graph
from engine.client.vmap import training_loop as block
from engine.client.vmap.block_rows import lockstep
from engine.client.vmap.cuda_graph import Captured, CudaRecorder, Program
from engine.client.vmap.dense import Product
from engine.client.vmap.step_memory import Memory
from engine.client.vmap.step_plan import step_plans
from engine.client.vmap.steps import descend, optimizer
from engine.data import Dirichlet
from engine.data.samples.batches import Rows, batch_sizes
from engine.experiment import Experiment, Local
from engine.models import MLP
from tests.support.bench import Bench
from tests.support.outcomes import SHORT, come_to
from tests.support.tiny import BATCHNORM, Driven, assignment, drive, experiment_of, open_driver

CAPTURING = pytest.mark.parametrize("executor", ["graph", "block_graph"])
STACKED = [
    name for name, kind in ALGORITHMS.items() if not issubclass(kind, PostTraining) and not kind.requires.no_vmap
]
DECAY = {"lr_decay": 0.5, "epochs": 1}  # rates differ between rounds


class NoQuestions(TorchDispatchMode):
    """Refuses what would wait for the device, or copy numbers of Python's to it."""

    ASKED = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "lift_fresh", "multinomial")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        assert name not in self.ASKED, f"a step asks the device: {name}"
        return func(*args, **(kwargs or {}))


class Fence(TorchDispatchMode):
    """Refuses to read or write what is not kept where a replay would find it, or made by the step itself."""

    def __init__(self, kept: Iterable[Tensor]) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage().data_ptr() for tensor in kept}
        self._made: list[Any] = []  # so that no address is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor) and tensor.numel() and tensor.device.type != "meta":
                assert tensor.untyped_storage().data_ptr() in self._known, f"{func} has a tensor that nobody keeps"
        made = func(*args, **(kwargs or {}))
        self._made.append(made)
        self._known |= {one.untyped_storage().data_ptr() for one in tree_leaves(made) if isinstance(one, Tensor)}
        return made


class Recorder:
    """Replays by calling the captured function again; what it reads is looked at when it is called first."""

    made: list[Recorder]
    kept: Callable[[], list[Tensor]]  # of the program whose step is being captured

    def __init__(self, device: torch.device) -> None:
        self.warmed = self.recorded = self.replayed = 0
        self.made.append(self)

    def warm_up(self, work: Callable[[], None]) -> None:
        self.warmed += 1
        with NoQuestions(), torch.device("meta"):  # a tensor that is not made beside others is made elsewhere
            work()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        calls = count()

        def replay() -> None:
            self.replayed += 1
            with nullcontext() if next(calls) else Fence(self.kept()):
                work()

        return replay


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers record without a GPU; ``Recorder.made`` is all recorders of a test."""
    monkeypatch.setattr(Recorder, "made", [], raising=False)
    monkeypatch.setattr("engine.client.jobs.CudaRecorder", Recorder)
    together, capture = block.VmapLoop.__init__, Program._capture
    always: list[Tensor] = []  # what a worker has from its start on

    def opened(self: block.VmapLoop, net: FlatNet, rows: Rows, *rest: Any) -> None:
        always[:] = [*net.model.parameters(), *net.model.buffers(), rows.images, rows.labels, rows.scale, rows.shift]
        together(self, net, rows, *rest)

    def captured(self: Program, work: Any, inputs: Inputs) -> Captured:
        found = capture(self, work, inputs)
        self._recorder.kept = lambda: [*always, *self._held.values(), *found.inputs.named().values()]  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(block.VmapLoop, "__init__", opened)
    monkeypatch.setattr(Program, "_capture", captured)


def config(name: str, executor: str, **changes: Any) -> Experiment:
    """In float64, on the CPU, where a user could not ask for an executor that captures."""
    execution = {"precision": "float64", "executor": "loop"}
    settings = experiment_of(name, SHORT.get(name), **{"rounds": 2, "local": DECAY, "execution": execution, **changes})
    return with_executor(settings, executor)


def with_executor(settings: Experiment, executor: str) -> Experiment:
    execution = settings.execution.model_copy(update={"executor": executor, "workers": 1})
    return settings.model_copy(update={"execution": execution})


def programs_of(run: Driven) -> list[Program]:
    return list(run.driver.pool._workers[0].trainer.programs._programs.values())  # type: ignore[attr-defined]


def gap(one: Driven, two: Driven) -> float:
    """The largest difference of what two runs have come to, and of the losses that their clients tell."""
    columns = ["loss_before", "loss_after"]
    losses = [torch.tensor(run.folder.frame("clients")[columns].astype(float).to_numpy()) for run in (one, two)]
    assert torch.equal(losses[0].isnan(), losses[1].isnan())
    buffers = [run.server["buffers"].double() for run in (one, two)]
    pairs = ([come_to(one), come_to(two)], buffers, [loss.nan_to_num(0.0) for loss in losses])
    return max(float((mine - other).abs().max()) for mine, other in pairs if mine.numel())


def test_what_a_replay_could_not_find_is_noticed() -> None:
    """Kills: a recorder that lets everything pass."""
    kept, other = torch.ones(2), torch.ones(2)
    with Fence([kept]):
        kept[1:].add_(torch.zeros(1)).mul_(kept[:1])
        with pytest.raises(AssertionError, match="nobody keeps"):
            kept.add_(other)
    recorder = Recorder(torch.device("cpu"))
    for work in (kept.sum().item, kept.nonzero, lambda: kept * torch.tensor(2.0), lambda: kept + torch.zeros(2)):
        with pytest.raises((AssertionError, RuntimeError)):
            recorder.warm_up(work)
    recorder.warm_up(lambda: kept.mul_(kept.new_full((), 2.0)))


# --- the same as the loop -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "ditto", "pflego", "cbfl"])  # all: tests/card, with CI's torch
def test_replayed_steps_are_those_of_the_loop(tmp_path: Path, name: str) -> None:
    """Kills: anything of one client, step or round that a captured step goes on reading in another, or that is gone by
    then; a step that waits for the device, or that makes a tensor where the others are not."""
    loop = drive(tmp_path / "loop", config(name, "loop"))
    for executor in ("graph", "block_graph"):
        Recorder.made.clear()
        assert gap(drive(tmp_path / executor, config(name, executor)), loop) < 1e-9
        assert sum(one.recorded for one in Recorder.made) and sum(one.replayed for one in Recorder.made)


SETTINGS: dict[str, dict[str, Any]] = {
    "momentum": {"local": {**DECAY, "momentum": 0.9, "weight_decay": 0.01}},
    "nesterov": {"local": {**DECAY, "momentum": 0.9, "nesterov": True}},
    "adam": {"local": {**DECAY, "optimizer": "adam", "lr": 0.01, "weight_decay": 0.01}},
    "rmsprop": {"local": {**DECAY, "optimizer": "rmsprop", "lr": 0.001, "momentum": 0.5}},
    "rates by step": {"local": {**DECAY, "lr_by": "step", "momentum": 0.9, "clip_norm": 0.5}},
    "augmented": {"local": {**DECAY, "augment": "crop_flip"}},
    "full": {"local": {**DECAY, "batch_size": "full"}},
    "batchnorm": {**BATCHNORM, "rounds": 2, "participation": {"count": 4}},
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", list(SETTINGS))
@pytest.mark.parametrize(("name", "executor"), [("fedprox", "block_graph"), ("ditto", "graph")])
def test_whatever_the_local_work(tmp_path: Path, name: str, setting: str, executor: str) -> None:
    """Kills: an optimizer's memory or BatchNorm's statistics that stay from another client; augmented rows of another
    step; a full batch of another size."""
    changes = {"rounds": 3, **SETTINGS[setting]}
    loop, captured = (drive(tmp_path / one, config(name, one, **changes)) for one in ("loop", executor))
    assert gap(captured, loop) < 1e-9
    assert sum(one.replayed for one in Recorder.made) > 0


@CAPTURING
def test_hyper_parameters_that_change_in_mid_run(tmp_path: Path, executor: str) -> None:
    """Kills: a hyper-parameter that is read when a step is captured and never again."""
    schedule = [{"round": 3, "set": {"algorithm.mu": 3.0}}, {"round": 4, "set": {"local.momentum": 0.5}}]
    changes = {"rounds": 4, "schedule": schedule}
    loop, captured = (drive(tmp_path / one, config("fedprox", one, **changes)) for one in ("loop", executor))
    still = drive(tmp_path / "still", config("fedprox", "loop", rounds=4))
    assert gap(captured, loop) < 1e-9 < gap(still, loop)


# --- captured once ------------------------------------------------------------------------------------

EQUAL = assignment([16] * 6)


@pytest.mark.parametrize(("executor", "steps"), [("graph", 3 * 6 * 4), ("block_graph", 3 * 2 * 4)])
def test_a_bucket_is_captured_once(tmp_path: Path, executor: str, steps: int) -> None:
    """Kills: a step that is captured again for another client or round, or at its first coming; a step that is run
    and replayed."""
    local = {"lr_decay": 0.5, "epochs": 2}
    drive(tmp_path, config("fedprox", executor, rounds=3, local=local), parts=EQUAL)
    (recorder,) = Recorder.made
    assert recorder.warmed == recorder.recorded == 2  # the step of which the loss is told, and all others
    assert recorder.warmed + recorder.replayed == steps


@pytest.mark.slow
@CAPTURING
def test_addresses_stay(tmp_path: Path, executor: str) -> None:
    """Kills: a tensor that is replaced where a captured step reads it."""
    driver = open_driver(tmp_path, config("ditto", executor, rounds=3, **BATCHNORM, participation={"count": 4}))
    seen: list[dict[str, int]] = []
    while not driver.finished:
        driver.next()
        (program,) = driver.pool._workers[0].trainer.programs._programs.values()  # type: ignore[attr-defined]
        captured = program._captured.items()
        inputs = {f"{key} {name}": t for key, one in captured for name, t in one.inputs.named().items()}
        seen.append({name: tensor.data_ptr() for name, tensor in (program._held | inputs).items()})
    assert {"weights", "starts", "received weights", "kept personal", "lr", "class counts"} <= seen[0].keys()
    for before, after in pairwise(seen):
        assert before.items() <= after.items()


def test_what_leaves_is_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an upload, a state or a model that is a view of memory that the next client is trained in."""
    inside, outside = set[int](), set[int]()
    phases, original = block.VmapLoop.phases, Trainer._result

    def spy(self: Any) -> Iterator[Iterator[None]]:
        yield from phases(self)
        inside.update(held.untyped_storage().data_ptr() for held in self._memory._held.values())

    def leave(self: Any, progress: ClientProgress, *args: Any) -> ClientResult:
        trained = original(self, progress, *args)
        for tensors in (
            trained.upload,
            trained.new_state,
            trained.personal._asdict(),
            {"": trained.weights, "b": trained.buffers},
        ):
            outside.update(tensor.untyped_storage().data_ptr() for tensor in tensors.values() if tensor.numel())
        return trained

    monkeypatch.setattr(Trainer, "_result", leave)
    monkeypatch.setattr(block.VmapLoop, "phases", spy)
    for name in ("pflego", "pfedme", "scaffold", "local"):
        inside.clear()
        outside.clear()
        drive(tmp_path / name, config(name, "graph", rounds=1, participation={"count": 3}))
        assert inside and outside and not inside & outside


FORGOTTEN: list[tuple[str, str, dict[str, Any]]] = [
    ("fedavg", "body.1.weight", {}),
    ("fedavg", "lr", {}),
    ("fedprox", "weights", {}),
    ("fedprox", "received weights", {}),
    ("fedprox", "velocity of all", SETTINGS["momentum"]),
    ("fedprox", "means of all", SETTINGS["adam"]),
    ("fedprox", "squares of all", SETTINGS["adam"]),
    ("fedprox", "steps of all", SETTINGS["adam"]),
    ("fedavg", "running_mean", SETTINGS["batchnorm"]),
    ("scaffold", "kept control", {}),
    ("feddc", "examples", {}),
    ("fedper", "absent classes", {}),
    ("fedavg_local", "class counts", {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "forgotten", "changes"), FORGOTTEN)
def test_what_is_not_copied_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, forgotten: str, changes: dict[str, Any]
) -> None:
    """Kills: a test of this file that would pass if one of the tensors that a step reads were left as it was."""
    changes = {"rounds": 2, **changes}
    loop = drive(tmp_path / "loop", config(name, "loop", **changes))
    left = set[str]()
    for way in ("rows", "whole", "number"):
        original = getattr(Program, way)

        def leaves(self: Program, key: str, given: Any, *, _copied: Any = original, **like: Any) -> Tensor:
            if forgotten not in key or key not in self._held:
                return _copied(self, key, given, **like)
            left.add(key)
            return self._held[key] if isinstance(given, float) else self._held[key][: len(given)]

        monkeypatch.setattr(Program, way, leaves)
    with suppress(RunError):  # or the weights have grown without bound
        assert gap(drive(tmp_path / "left", config(name, "block_graph", **changes)), loop) > 1e-6
    assert left


@pytest.mark.parametrize(
    ("name", "forgotten", "changes"),
    [
        ("fedavg", "rows", {}),
        ("fedavg", "x", SETTINGS["augmented"]),
        ("fedavg", "y", SETTINGS["augmented"]),
        ("mixup_local", "drawn share", {}),
        ("mixup_local", "drawn partners", {}),
    ],
)
def test_a_steps_own_input_that_is_not_copied_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, forgotten: str, changes: dict[str, Any]
) -> None:
    """Kills: as above, of what differs from step to step."""
    loop = drive(tmp_path / "loop", config(name, "loop", **changes))
    copied, left = Captured.run, set[str]()

    def run(self: Captured, inputs: Inputs) -> None:
        left.update({forgotten} & inputs.named().keys())
        rows = inputs.rows | ({forgotten: self.inputs.rows[forgotten]} if forgotten in inputs.rows else {})
        key = forgotten.removeprefix("drawn ")
        copied(self, Inputs(rows, inputs.drawn | ({key: self.inputs.drawn[key]} if key in inputs.drawn else {})))

    monkeypatch.setattr(Captured, "run", run)
    assert gap(drive(tmp_path / "left", config(name, "graph", **changes)), loop) > 1e-6
    assert left


# --- what is no tensor ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadsTheRound(FedAvg):
    """A loss that depends on where the run stands."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        context = batch.client.context
        return super().loss(net, batch, received, state) * (1 + context.lr) * (2 if context.round % 2 else 1)


@CAPTURING
def test_what_a_step_reads_of_the_context_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """Kills: a round's number, or a rate that the algorithm itself reads, that stays as it was at the capture."""

    monkeypatch.setitem(ALGORITHMS, "reads", ReadsTheRound)

    def run(name: str) -> Driven:
        return drive(tmp_path / name, config("reads", name, rounds=4), parts=EQUAL)

    loop, captured = run("loop"), run(executor)
    assert gap(captured, loop) < 1e-9
    *_, recorder = Recorder.made  # those before are of trials: the algorithm is one of one's own
    assert recorder.recorded == 4 * 2  # anew each round
    monkeypatch.setattr(cuda_graph._Watched, "__getattr__", lambda self, name: getattr(self._context, name))
    Recorder.made.clear()
    (tmp_path / executor).rename(tmp_path / "before")
    assert gap(run(executor), loop) > 1e-6


@dataclass(frozen=True)
class LossFromTheSecondRound(FedAvg):
    """A loss that is the contract's in the first round, beside a hook that always acts."""

    @idle_when(lambda self, context: context.stage_round == 1)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        return 2 * super().loss(net, batch, received, state)

    def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
        return grad


def test_another_loss_is_another_way() -> None:
    """Kills: a step that was captured with one loss and is replayed where the other one is due."""
    bench = Bench(MLP(hidden=(6,)))
    first, second, third = (
        step_plans(
            LossFromTheSecondRound(), Local(), (Phase(),), replace(bench.context, stage_round=round), bench.net, False
        )
        for round in (1, 2, 3)
    )
    assert first != second == third


@CAPTURING
def test_caches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    """Kills: graphs that add up without end; a bound that changes what comes out."""
    loop = drive(tmp_path / "loop", config("fedprox", "loop", rounds=4))
    monkeypatch.setattr(cuda_graph, "GRAPHS", 2)
    monkeypatch.setattr(cuda_graph, "COUNTED", 3)
    captured = drive(tmp_path / "few", config("fedprox", executor, rounds=4))
    assert gap(captured, loop) < 1e-9
    for program in programs_of(captured):
        assert len(program._captured) <= 2 and len(program._uses) <= 3
    changes = {"schedule": [{"round": r, "set": {"algorithm.mu": float(r)}} for r in (2, 3, 4)]}
    assert len(programs_of(drive(tmp_path / "mus", config("fedprox", executor, rounds=4, **changes)))) == 2


class Counting:
    """Captures and replays nothing, and counts."""

    def __init__(self) -> None:
        self.written = self.captured = self.replayed = 0

    def warm_up(self, work: Callable[[], None]) -> None:
        self.written += 1

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1

        def replay() -> None:
            self.replayed += 1

        return replay


def stepped(program: Program, *sizes: int, bucket: Any = 0) -> None:
    for size in sizes:
        program.step(bucket, lambda inputs: None, Inputs({"rows": torch.empty(size, device="meta")}))


def test_clients_of_many_sizes_are_captured_seldom() -> None:
    """Kills: captures that push each other out in turn, of buckets that nearly all come again. Blocks of 10 of the 100
    clients of Dirichlet(0.1), of 50,000 rows in batches of 50: 196 steps a round, of 250 kinds in 60 rounds."""
    labels = np.arange(50_000) % 10
    parts = Dirichlet(clients=100, alpha=0.1).draw(np.random.default_rng(0), labels, 10, None).clients
    recorder, rng = Counting(), np.random.default_rng(1)
    program = Program(recorder, 10, "FedAvg")
    for _ in range(60):
        sizes = sorted((len(parts[client]) for client in rng.choice(100, 10, replace=False)), reverse=True)
        for _ in range(5):
            batches = [[size for size in batch_sizes(rows, 50, "keep") if size > 1] for rows in sizes]
            left = [iter(own) for own in batches]
            for first, last, _ in lockstep(batches):
                (size,) = {next(left[client]) for client in range(first, last)}
                stepped(program, size, bucket=(first, last))
    assert len(program._uses) > 3 * cuda_graph.GRAPHS
    assert recorder.captured < 180 and recorder.written < recorder.replayed / 4


def test_what_comes_most_is_kept() -> None:
    """Kills: a place that goes to whoever came last; places held for ever by what a past round has read."""
    recorder = Counting()
    program: Any = Program(recorder, 1, "FedAvg")
    stepped(program, *[size for size in range(1, cuda_graph.GRAPHS + 1) for _ in range(4)])
    assert (recorder.captured, recorder.written) == (cuda_graph.GRAPHS,) * 2
    stepped(program, *[1000] * 4)
    assert recorder.captured == cuda_graph.GRAPHS  # not more often than others
    stepped(program, *[1000] * 2)
    assert (recorder.captured, recorder.written, recorder.replayed) == (65, 69, 3 * 64 + 1)
    program._read.add("round")
    program.context = SimpleNamespace(round=1)
    stepped(program, *[1, 2] * 2)
    assert recorder.captured == 67  # what has no round's number is over


def test_a_smaller_block_is_trained_in_the_memory_of_a_larger(tmp_path: Path) -> None:
    """Kills: memory and graphs for each size of a block; a block that does not fit into what there is."""
    changes = {"rounds": 6, "participation": {"fraction": 0.5, "scheme": "binomial"}}
    loop, captured = (drive(tmp_path / one, config("ditto", one, **changes)) for one in ("loop", "block_graph"))
    assert gap(captured, loop) < 1e-9
    sizes = captured.folder.frame("rounds")["clients"]
    largest = -(-sizes.max() // 2)
    assert sizes.nunique() > 2
    assert max(program.capacity for program in programs_of(captured)) == largest
    assert len(Recorder.made) < sizes.nunique()


# --- what is not captured -------------------------------------------------------------------------------


@pytest.mark.slow
@CAPTURING
@pytest.mark.parametrize("name", [name for name, kind in ALGORITHMS.items() if kind.requires.no_vmap])
def test_what_cannot_be_stacked_is_the_loops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, executor: str
) -> None:
    """Kills: an algorithm that is trained otherwise than it can be; one that is, and nobody is told."""
    caplog.set_level(logging.INFO, "fedskew")
    loop = drive(tmp_path / "loop", config(name, "loop"))
    assert "trained by" not in caplog.text
    captured = drive(tmp_path / executor, config(name, executor))
    assert captured.shas == loop.shas
    told = [record.message for record in caplog.records if "trained by" in record.message]
    assert told == [f"stage train: trained by loop and not by {executor}, since {ALGORITHMS[name].requires.no_vmap}"]


@CAPTURING
def test_clients_with_networks_of_their_own_are_the_loops(tmp_path: Path, executor: str) -> None:
    """Kills: clients of different networks in one stack."""
    models = {"client_models": [{"name": "mlp", "hidden": [6]}, {"name": "logistic"}]}
    settings = config("local", "loop", **models)
    assert drive(tmp_path / "a", with_executor(settings, executor)).shas == drive(tmp_path / "b", settings).shas


@CAPTURING
def test_a_step_is_the_same_however_many_a_client_takes(tmp_path: Path, executor: str) -> None:
    """Kills: a memory of captured steps for each number of epochs, which throws out that of another client."""
    changes = {"rounds": 3, "work": {"low": 1, "high": 4}}
    loop, captured = (drive(tmp_path / one, config("fedavg", one, **changes)) for one in ("loop", executor))
    assert gap(captured, loop) < 1e-9
    assert len(programs_of(captured)) == 1


@CAPTURING
def test_large_full_batches_are_run_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, executor: str
) -> None:
    """Kills: a captured step for each of many sizes; chunks whose shares are those of another client."""
    caplog.set_level(logging.INFO, "fedskew")
    monkeypatch.setattr(sequential, "CHUNK", 10)
    monkeypatch.setattr(block, "CHUNK", 10)
    changes = {"rounds": 3, **SETTINGS["full"]}
    loop, captured = (drive(tmp_path / one, config("fedavg", one, **changes)) for one in ("loop", executor))
    assert gap(captured, loop) < 1e-9
    told = [record.message for record in caplog.records if "captured" in record.message]
    assert told == ["FedAvg: full batches of more than 10 rows are not captured, but run step by step"]
    assert len(programs_of(captured)[0]._captured) > 0  # those of clients with fewer rows


def test_a_step_that_cannot_be_captured_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: CUDA's words for a failed capture, and nothing about what to do."""

    def refuses(self: Recorder, work: Callable[[], None]) -> Callable[[], None]:
        raise RuntimeError("operation not permitted when stream is capturing\nat some line of C++")

    monkeypatch.setattr(Recorder, "record", refuses)
    message = (
        "a step of FedAvg cannot be captured as a CUDA graph: operation not permitted when stream is capturing; "
        "set execution.executor=block"
    )
    with pytest.raises(RunError, match=f"^{message}$"):
        drive(tmp_path, config("fedavg", "graph"))


def test_memory_that_a_capture_lacks_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a card that is too small, told as a step that cannot be captured."""

    def has_no_room(self: Recorder, work: Callable[[], None]) -> Callable[[], None]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Recorder, "record", has_no_room)
    with pytest.raises(MemoryShort, match=r"do not fit into a worker's memory: .*Tried to allocate 2.00 GiB"):
        drive(tmp_path, config("fedavg", "graph"))


# --- optimizers ---------------------------------------------------------------------------------------


LOCALS = [
    Local(),
    Local(momentum=0.9),
    Local(momentum=0.9, nesterov=True, weight_decay=0.1),
    Local(weight_decay=0.1),
    Local(optimizer="adam"),
    Local(optimizer="adam", weight_decay=0.1),
    Local(optimizer="adamw", weight_decay=0.1),
    Local(optimizer="rmsprop", weight_decay=0.1),
    Local(optimizer="rmsprop", momentum=0.5),
    Local(optimizer="adam", lr_by="step", lr_decay=0.5),
    Local(momentum=0.9, lr_by="step", lr_schedule="step", lr_period=2, lr_decay=0.5, lr_warmup=1),
]


def schedule_of_torch(optimizer: torch.optim.Optimizer, local: Local) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda count: float(local.factor(torch.tensor(count))))


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
@pytest.mark.parametrize("local", LOCALS, ids=str)
def test_stacked_optimizers_are_those_of_torch(local: Local, as_tensor: bool) -> None:
    """Kills: a rate, a count of steps or a momentum that is another client's; a wrong sign; an epsilon elsewhere."""
    rng = torch.Generator().manual_seed(0)
    weights, *grads = torch.randn(7, 3, 5, generator=rng, dtype=torch.float64)
    single = [torch.nn.Parameter(row.clone()) for row in weights]
    fields: dict[str, Any] = {"lr": 0.1, "weight_decay": local.weight_decay}
    kinds: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    if local.optimizer in ("sgd", "rmsprop"):
        fields["momentum"] = local.momentum
    if local.optimizer == "sgd":
        fields["nesterov"] = local.nesterov
    theirs = [kinds.get(local.optimizer, torch.optim.SGD)([row], **fields) for row in single]
    schedules = [schedule_of_torch(own, local) for own in theirs] if local.by_step else []
    rate = torch.tensor(0.1, dtype=torch.float64) if as_tensor else 0.1
    step = optimizer(local, weights, rate, Memory(), "all")
    for number, grad in enumerate(grads):
        last = 3 if number % 2 else 2  # the third client takes part in every other step
        step(0, last, weights[:last], grad[:last].clone())
        for row in range(last):
            single[row].grad = grad[row]
            theirs[row].step()
            if schedules:
                schedules[row].step()
    torch.testing.assert_close(weights, torch.stack([row.detach() for row in single]), rtol=0, atol=1e-13)


@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_a_product_is_descended_as_if_written_out(as_tensor: bool) -> None:
    """Kills: factors that are scaled twice, or in the wrong direction."""
    rng = torch.Generator().manual_seed(0)
    weights, dy, x = (torch.randn(2, *shape, generator=rng, dtype=torch.float64) for shape in ((4, 3), (4, 5), (3, 5)))
    wanted = weights - 0.1 * torch.einsum("kob,kib->koi", dy, x)
    descend(weights, Product(dy, x), torch.tensor(0.1, dtype=torch.float64) if as_tensor else 0.1)
    torch.testing.assert_close(weights, wanted, rtol=0, atol=1e-14)


# --- where it can be asked for --------------------------------------------------------------------------


@pytest.mark.parametrize(("executor", "instead"), [("graph", "loop"), ("block_graph", "block")])
def test_capturing_takes_a_gpu(monkeypatch: pytest.MonkeyPatch, executor: str, instead: str) -> None:
    """Kills: a run that fails at its first step where it could have said so before; a repair that stacks no more."""
    message = (
        f"^execution.executor={executor}: replays steps on a GPU, and execution.device is cpu; "
        f"set execution.executor={instead}$"
    )
    with pytest.raises(ConfigError, match=message):
        Experiment(execution={"executor": executor, "device": "cpu"})
    asked = Experiment(execution={"executor": executor, "actors": 0})
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=message):
        asked.resolve()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert asked.resolve().execution.executor == executor
    assert asked.resolve().execution.device == "cuda"


def test_lanes_are_graphs_and_no_other_run() -> None:
    """Kills: lanes of an executor that has none, or of blocks that never fill them; lanes that begin another run."""
    execution = {"executor": "graph", "device": "cuda", "block": 8}
    one, four = Experiment(execution=execution), Experiment(execution={**execution, "lanes": 4})
    assert one.identity() == four.identity()
    message = "execution.lanes=4: is clients {}; {}, or leave it out$"
    for changes, rule, repair in (
        ({"executor": "block"}, "whose steps .* and execution.executor is block", "set execution.executor=graph"),
        ({"block": 3}, "of one block, and execution.block is 3", "set execution.block to 4 or more"),
        ({"block": "auto"}, "of one block, and execution.block is auto", "set execution.block to 4 or more"),
    ):
        with pytest.raises(ConfigError, match=message.format(rule, repair)):
            Experiment(execution={**execution, "lanes": 4, **changes})


# --- CUDA -----------------------------------------------------------------------------------------------


def test_cuda_is_asked_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a first run that does not wait for what it reads, or whose result is not waited for; a capture on another
    stream than the first run's, or into a pool of its own; garbage that is collected during it, or never again."""
    calls: list[Any] = []

    class Stream:
        device = torch.device("cuda")

        def __init__(self, name: Any) -> None:
            self.name = str(name)

        def wait_stream(self, other: Stream) -> None:
            calls.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def within(*args: Any, **kwargs: Any) -> Iterator[None]:
        calls.append(("in", *(getattr(arg, "name", arg) for arg in args[-1:]), *kwargs.values()))
        yield
        calls.append("out")

    replayed = SimpleNamespace(replay=lambda: calls.append("replay"))
    for name, value in {
        "Stream": lambda device: Stream("side"),
        "current_stream": lambda device: Stream("main"),
        "stream": within,
        "graph": within,
        "CUDAGraph": lambda: replayed,
        "graph_pool_handle": lambda: "pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    cuda_graph._capture_stream.cache_clear()
    recorder = CudaRecorder(torch.device("cuda"))
    recorder.warm_up(lambda: calls.append("work"))
    assert calls == ["side waits for main", ("in", "side"), "work", "out", "main waits for side"]
    calls.clear()
    replay = recorder.record(lambda: calls.append(gc.isenabled()))
    (_, of, pool, stream), *rest = calls
    assert (of, pool, stream.name) == (replayed, "pool", "side") and rest == [False, "out"] and gc.isenabled()
    calls.clear()
    replay()
    assert calls == ["replay"]
    cuda_graph._capture_stream.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", STACKED)
def test_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Kills: a capture that CUDA refuses; a replay that is not the loop's step."""
    monkeypatch.setattr("engine.client.jobs.CudaRecorder", CudaRecorder)
    execution = {"precision": "float64", "device": "cuda", "executor": "loop"}
    for model in ({"name": "mlp", "hidden": [12]}, BATCHNORM["model"]):
        settings = config(name, "loop", rounds=3, model=model, execution=execution)
        loop = drive(tmp_path / model["name"] / "loop", settings)
        for executor in ("graph", "block_graph"):
            captured = drive(tmp_path / model["name"] / executor, with_executor(settings, executor))
            assert gap(captured, loop) < 1e-9
            assert any(program._captured for program in programs_of(captured))
