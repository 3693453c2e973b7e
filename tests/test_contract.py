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
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from algorithms import ALGORITHMS
from engine.algorithm import Kind, Net
from engine.data import Assignment
from engine.models import MLP
from tests.bench import FEW, Bench
from tests.tiny import CLASSES, Driven, assignment, dataset, drive, experiment

ROOT = Path(__file__).parents[1]
NAMES = ("cbhma",)
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


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_move_the_model_and_resume(tmp_path: Path, sketches: Any, name: str) -> None:
    """Kills: an entry that no checkpoint holds; an undeclared one; an algorithm that only imports."""
    fields = {"cbhma": {"epochs": 1}}.get(name, {})
    done = run(tmp_path, name, RESNET, fields)
    fresh = done.driver._fresh["weights"]
    assert done.sha == run(tmp_path, name, RESNET, fields).sha  # restored from its last checkpoint
    assert torch.isfinite(done.server["weights"]).all()
    body = done.driver.layout.body
    assert not torch.equal(done.server["weights"][:body], fresh[:body])


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
