"""The algorithms sketched in docs/contract.md, taken from the page: imported, type-checked, and run.

Each test names what it kills: what the contract would have to drop, or a sketch to get wrong, for it to fail.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import ALGORITHMS
from engine import seeds
from engine.algorithm import Kind, Net
from engine.data import Assignment
from engine.models import MLP
from engine.models.resnet import ResNet20
from tests.bench import CPU, FEW, Bench
from tests.tiny import CLASSES, Driven, assignment, dataset, drive, experiment, open_driver

ROOT = Path(__file__).parents[1]
NAMES = ("cbfl", "cbhma")
RESNET = {"name": "resnet20"}
FULL: dict[str, Any] = {"rounds": 2, "participation": {}}


def blocks() -> dict[str, str]:
    """Heading of a section -> its python block."""
    page = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    found = {section.split()[0].lower(): re.findall(r"```python\n(.*?)```", section, re.DOTALL) for section in sections}
    return {name: code for name, codes in found.items() for code in codes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("sketches")
    for name, code in blocks().items():
        (folder / f"sketch_{name}.py").write_text(code, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture
def sketches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules by name, their algorithms registered for the test."""
    modules = {name: importlib.import_module(f"sketch_{name}") for name in NAMES}
    for name, module in modules.items():
        (cls,) = (
            value
            for value in vars(module).values()
            if dataclasses.is_dataclass(value) and getattr(value, "__module__", "") == module.__name__
        )
        monkeypatch.setitem(ALGORITHMS, name, cls)
    return modules


def run(path: Path, name: str, model: dict[str, Any] | None = None, fields: dict[str, Any] | None = None) -> Driven:
    """Two rounds of an algorithm with every client of ``FEW``."""
    rows = dataset(sum(FEW))
    changes = {**FULL, **({"model": model} if model else {}), "algorithm": {"name": name, **(fields or {})}}
    return drive(path / name, experiment(**changes), rows, assignment(FEW))


def states(done: Driven) -> list[dict[str, np.ndarray]]:
    return [done.driver.pool.fetch(handle) for handle in done.driver._states.read(range(len(FEW)))]


def test_the_page_has_every_sketch_and_they_type_check(folder: Path) -> None:
    """Kills: a sketch that uses what the contract does not offer; a contract whose types its users cannot meet."""
    assert tuple(blocks()) == NAMES
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "-p", str(folder), "--pythonpath", sys.executable]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_neutral_values_are_fedavg_to_the_bit(tmp_path: Path, sketches: Any) -> None:
    """Kills: a loss, a draw or an exchange that leaves a trace where its weight is zero (O-C2)."""
    assert run(tmp_path, "cbfl", RESNET, {"warmup": 2}).sha == run(tmp_path, "fedavg", RESNET).sha


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_move_the_model_and_resume(tmp_path: Path, sketches: Any, name: str) -> None:
    """Kills: an entry that no checkpoint holds; an undeclared one; an algorithm that only imports."""
    fields = {
        "cbfl": {"generator_steps": 2, "fake_batch": 4},
        "cbhma": {"epochs": 1},
    }.get(name, {})
    done = run(tmp_path, name, RESNET, fields)
    fresh = done.driver._fresh["weights"]
    assert done.sha == run(tmp_path, name, RESNET, fields).sha  # restored from its last checkpoint
    assert torch.isfinite(done.server["weights"]).all()
    body = done.driver.layout.body
    assert not torch.equal(done.server["weights"][:body], fresh[:body])


# --- CBFL ---------------------------------------------------------------------------------------------


def test_cbfl_draws_classes_by_what_a_client_lacks(sketches: Any) -> None:
    """Kills: draws with the local frequency, or from the same stream for every client (vectors of 9.2)."""
    bench = Bench(MLP(hidden=(8,)))
    cbfl = sketches["cbfl"].Cbfl(fake_batch=60_000)
    client = dataclasses.replace(bench.client(0), num_examples=4, class_counts=torch.tensor([3, 1, 0, 0]))
    assert cbfl.draw(client, 4, {}) == {}
    shares = torch.bincount(cbfl.draw(client, 4, {"teacher": torch.zeros(1)})["labels"]) / 60_000
    np.testing.assert_allclose(shares.numpy(), [1 / 12, 1 / 4, 1 / 3, 1 / 3], atol=0.01)


def test_cbfl_statistics_gap_reads_the_right_buffers(sketches: Any) -> None:
    """Kills: taps of outputs in place of inputs; running means and variances mixed up or of another layer (9.3)."""
    bench = Bench(ResNet20())
    net, x = bench.net, bench.batch(0).x
    names, stored = net.norm_names, net.buffers.clone()
    net.train(True)  # normalised by the batch, so that no layer's variance is tiny
    _, inputs = net.taps(x, names, inputs=True)
    moments = [
        moment
        for name in names
        for moment in (inputs[name].mean((0, 2, 3)), inputs[name].var((0, 2, 3), unbiased=False))
    ]
    matched = torch.cat(moments).detach()
    assert matched.shape == net.buffers.shape
    gap = sketches["cbfl"].statistics_gap
    assert float(gap(net, inputs, matched).detach()) == pytest.approx(0, abs=1e-4)
    assert float(gap(net, inputs, stored).detach()) > 1
    weights = {"bn": torch.tensor([[-1.0], [1.0]]).view(2, 1, 1, 1).double() + 1}  # mean 1, variance 1

    class OneLayer:
        norm_names = ("bn",)

    standard = torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert float(gap(OneLayer(), weights, standard)) == pytest.approx(0.5, abs=1e-5)


def test_cbfl_generator_is_trained_on_what_enters_batchnorm(sketches: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: statistics of outputs; a generator that writes the teacher's buffers or weights (O-C7)."""
    bench = Bench(ResNet20())
    asked: list[bool] = []
    original = bench.net.taps

    def spy(x: Tensor, names: tuple[str, ...], inputs: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        asked.append(inputs)
        return original(x, names, inputs)

    monkeypatch.setattr(bench.net, "taps", spy)
    bench.net.train(False)
    place = SimpleNamespace(net=bench.net, device=CPU, rng=lambda purpose: seeds.generator(0, purpose, 1))
    train = sketches["cbfl"].train_generator
    made = train(place, bench.start, layout=bench.net.layout, gamma=1.0, lr=0.01, steps=2)
    assert asked == [True, True]
    assert set(made) == set(sketches["cbfl"].GENERATOR)
    assert torch.equal(bench.net.weights, bench.start["weights"])
    assert torch.equal(bench.net.buffers, bench.start["buffers"])


def test_cbfl_refreshes_on_schedule_and_counts_as_fedavg(tmp_path: Path, sketches: Any) -> None:
    """Kills: rounds counted from the run's start in a later stage; a teacher that moves between refreshes (O-C10)."""
    tiny = {"name": "cbfl", "refresh": 2, "generator_steps": 2, "fake_batch": 4}
    stages = [
        {"name": "base", "algorithm": {"name": "fedavg"}, "rounds": 1},
        {"name": "cbfl", "algorithm": tiny, "rounds": 3, "needs": ["base"]},
    ]
    seen: list[dict[str, Tensor]] = []
    config = experiment(model=RESNET, stages=stages, participation={})
    driver = open_driver(tmp_path, config, dataset(sum(FEW)), assignment(FEW))
    while not driver.finished:
        before = driver._server["weights"]
        driver.advance()
        seen.append({**driver._server, "before": before})
    driver.close()
    assert "teacher" not in seen[0]
    assert torch.equal(seen[1]["teacher"], seen[1]["before"])  # the first round of the stage: the warm-up's model
    assert torch.equal(seen[2]["teacher"], seen[1]["teacher"])
    assert torch.equal(seen[3]["teacher"], seen[3]["before"])
    assert not torch.equal(seen[3]["embed"], seen[1]["embed"])
    assert set(driver.folder.frame("clients")["floats_down"]) == {driver.layout.size + driver.layout.buffers}


# --- CBHMA --------------------------------------------------------------------------------------------


def test_cbhma_costs(sketches: Any) -> None:
    """Kills: few teachers taken for many; correlation upside down; a diagonal that is not the row's minimum (3.12)."""
    sets = ([0, 2, 3, 4, 5, 9], [2, 3, 4, 6, 7, 9], [4, 5, 6, 7, 8, 9], [0, 1, 6, 7, 8, 9], [0, 2, 3, 5, 8, 9])  # IS-1
    known = torch.zeros(5, 10, dtype=torch.bool)
    for row, classes in zip(known, sets, strict=True):
        row[classes] = True
    labels = torch.arange(10).repeat(4)
    logits = torch.randn(5, 40, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    logits = logits + 20 * F.one_hot(labels, 10)  # every teacher is right about every class it knows
    cost, row_weight = sketches["cbhma"].costs(logits, known, labels)
    assert (cost > 0).all()
    assert torch.equal(cost.argmin(1), torch.arange(10))
    level = torch.tensor([4.605170] * 10, dtype=torch.float64)
    level[1], level[9] = 5.703782, 4.094345
    torch.testing.assert_close(row_weight, level / level.mean(), rtol=1e-5, atol=0)
    shifted = logits + torch.arange(5).view(5, 1, 1)  # a constant on a teacher's logits changes no prediction
    torch.testing.assert_close(sketches["cbhma"].costs(shifted, known, labels)[0], cost)


def test_cbhma_asks_every_teacher_and_distils(tmp_path: Path, sketches: Any) -> None:
    """Kills: answers of the global model in place of each client's own; a student that is a mean of its teachers."""
    labels = dataset(200).train.labels
    parts = Assignment(tuple(np.flatnonzero(np.isin(labels, pair)) for pair in ([0, 1], [2], [3])))
    fields = {"name": "cbhma", "epochs": 12, "batch_size": 8, "public_rows": 30}
    config = experiment(rounds=1, participation={}, algorithm=fields, local={"epochs": 6, "batch_size": 8, "lr": 0.1})
    done = drive(tmp_path, config, dataset(200), parts)
    assert done.server["cost"].shape == (CLASSES, CLASSES)
    assert done.summary["accuracy"] > 0.7  # chance is 0.25, a teacher's best about 0.5
    asked = [
        sketches["cbhma"].answer(View(done, number, state), {"images": done.server["images"]})["logits"]
        for number, state in enumerate(states(done))
    ]
    assert not torch.equal(asked[0], asked[1])
    assert (asked[1].argmax(2) == 2).double().mean() > 0.8  # the teacher of class 2 sees it everywhere


class View:
    """A client as ``clients.map`` shows it."""

    def __init__(self, done: Driven, number: int, state: dict[str, np.ndarray]) -> None:
        trainer = done.driver.pool._worker.trainer  # type: ignore[attr-defined]
        self.net: Net = trainer.net
        self.state = {name: torch.tensor(array) for name, array in state.items()}
        self.client = trainer.client(number, torch.as_tensor([0]), done.driver._context(1, 0))


# --- what holds for all -------------------------------------------------------------------------------


def test_a_state_without_a_beginning_is_refused() -> None:
    """Kills: state that is dropped without a word because no init_state announces it."""
    from algorithms.fedavg import FedAvg

    class Forgetful(FedAvg):
        def upload(self, run: Any, received: Any, state: Any) -> Any:
            return {"weights": run.end}, {"weights": run.end}

    class Denying(Forgetful):
        def init_state(self, received: Any, parent: Any, client: Any) -> Any:
            return {"weights": received["weights"]}

        @property
        def stateful(self) -> bool:
            return False

    for algorithm in (Forgetful(), Denying()):
        with pytest.raises(TypeError, match="keeps a state, but init_state gives it no first one, or stateful says"):
            Bench(MLP(hidden=(8,))).train(algorithm, 0)


def test_what_is_not_kept_is_made_for_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a client that is no newcomer any more and has nothing; one whose first state depends on the round."""
    from algorithms.fedavg import FedAvg

    rounds: list[float] = []

    class Fresh(FedAvg):
        entries = {**FedAvg.entries, "draw": Kind.SCALAR}  # noqa: RUF012

        @property
        def stateful(self) -> bool:
            return False

        def init_state(self, received: Any, parent: Any, client: Any) -> Any:
            return {"draw": torch.rand((), generator=client.rng("draw"))}

        def upload(self, run: Any, received: Any, state: Any) -> Any:
            rounds.append(float(state["draw"]))
            return {"weights": run.end}, {}

    monkeypatch.setitem(ALGORITHMS, "fedavg", Fresh)
    done = drive(tmp_path, experiment(rounds=3, participation={}), dataset(sum(FEW)), assignment(FEW))
    assert rounds[:3] == rounds[3:6] == rounds[6:]
    assert len(set(rounds)) == len(FEW)
    assert done.driver._states.read(range(len(FEW))) == [None] * len(FEW)
