"""What each method reduces to FedAvg at, what it must differ in, and that both executors come to the same.

Mini-batches of clients of unequal size, with and without momentum, in the engine's usual float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fedskew_more import METHODS
from small import CNN, Driven, drive, experiment, federation

COUNTS = ((9, 4, 0, 0), (0, 5, 13, 2), (1, 0, 4, 2), (6, 6, 6, 6), (0, 0, 0, 1))
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"local": {"batch_size": 4, "steps": None, "epochs": 2, "lr": 0.1}},
    "momentum": {
        "local": {"batch_size": 4, "steps": 7, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
        "participation": {"count": 3},
    },
    "batchnorm": {"local": {"batch_size": 4, "steps": 4, "lr": 0.1}, "model": CNN, "participation": {"count": 4}},
}
# name -> fields at which the server's weights are FedAvg's to the bit, by both executors
REDUCES: dict[str, list[dict[str, Any]]] = {
    "feddyn": [],  # the server steps once more along the mean update
    "fedntd": [{"beta": 0.0}, {"beta": 0.0, "tau": 3.0}],
    "fedlc": [{"tau": 0.0}],
    "fedrs": [{"alpha": 1.0}],
    "fedrod": [{"gamma": 0.0}, {"gamma": 0.0, "personal_epochs": 0}],  # its generic model
    "fedadam": [],  # steps are divided by their own size
    "fedyogi": [],
    "fedbn": [{}],  # on a model without BatchNorm
    "fedproto": [],  # no weights are averaged; lam=0 is local: test_fedproto.py
}
# name -> fields of runs that must all end in different places, none of them FedAvg's
DIFFERS: dict[str, list[dict[str, Any]]] = {
    "feddyn": [{}, {"alpha": 0.5}, {"weighting": "samples"}, {"server_lr": 0.5}],
    "fedntd": [{}, {"beta": 0.3}, {"tau": 3.0}, {"server_lr": 0.5}],
    "fedlc": [{}, {"tau": 0.3}],
    "fedrs": [{}, {"alpha": 0.9}, {"alpha": 0.0}],
    "fedrod": [{}, {"gamma": 0.5}],
    "fedadam": [{}, {"beta1": 0.5}, {"beta2": 0.9}, {"tau": 0.1}, {"server_lr": 0.1}],
    "fedyogi": [{}, {"beta1": 0.5}, {"beta2": 0.9}, {"tau": 0.1}, {"server_lr": 0.1}],
    "fedbn": [{}],
}


def run_of(folder: Path, fields: dict[str, Any], setting: str, executor: str, precision: str = "float32") -> Driven:
    execution = {"executor": executor, "precision": precision}
    return drive(folder, experiment(fields, execution=execution, **SETTINGS[setting]), federation(COUNTS))


def test_every_method_has_its_rows() -> None:
    """Kills: a method that is added without saying what it reduces to."""
    assert REDUCES.keys() == METHODS.keys() == DIFFERS.keys() | {"fedproto"}


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_reduces_to_fedavg(tmp_path: Path, setting: str, executor: str) -> None:
    """Kills: a term that does not vanish at its neutral value, a hook that is idle and has a way of its own; a phase
    that draws from FedAvg's numbers."""
    wanted = run_of(tmp_path / "fedavg", {"name": "fedavg"}, setting, executor).server
    for name, rows in REDUCES.items():
        if name == "fedbn" and setting == "batchnorm":
            continue
        for number, fields in enumerate(rows):
            found = run_of(tmp_path / f"{name}{number}", {"name": name, **fields}, setting, executor).server
            for entry in ("weights", "buffers"):
                assert torch.equal(found[entry], wanted[entry]), (name, fields, entry)


@pytest.mark.parametrize("name", DIFFERS)
def test_options_differ_from_fedavg_and_each_other(tmp_path: Path, name: str) -> None:
    """Kills: a term that is never added, an option that is read nowhere."""
    setting = "batchnorm" if name == "fedbn" else "plain"
    rows = [{"name": "fedavg"}, *({"name": name, **fields} for fields in DIFFERS[name])]
    ends = [run_of(tmp_path / str(i), row, setting, "loop").server["weights"] for i, row in enumerate(rows)]
    for i, one in enumerate(ends):
        for other in ends[:i]:
            assert (one - other).abs().max() > 1e-6, rows[i]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_executors_agree(tmp_path: Path, name: str, setting: str) -> None:
    """Kills: a loss that sums over a block in place of a client, counts of the first client for all, a state or an
    upload that only one executor makes."""
    fields = {"name": name}
    loop, block = (run_of(tmp_path / one, fields, setting, one, precision="float64") for one in ("loop", "block"))
    assert loop.server.keys() == block.server.keys()
    for entry, tensor in loop.server.items():
        torch.testing.assert_close(block.server[entry], tensor, rtol=0, atol=1e-10)
    for one, other in zip(loop.states, block.states, strict=True):
        assert one.keys() == other.keys()
        for entry, array in one.items():
            torch.testing.assert_close(torch.tensor(other[entry]), torch.tensor(array), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", METHODS)
def test_blocks_are_trained_in_one_pass(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an executor that trains these methods' clients one by one after all, so that two of them always agree."""
    from engine.client.trainer import Trainer

    together: list[int] = []
    original = Trainer.train_together
    spy = lambda self, tasks, *args: together.append(len(tasks)) or original(self, tasks, *args)  # noqa: E731
    monkeypatch.setattr(Trainer, "train_together", spy)
    run_of(tmp_path, {"name": name}, "plain", "block")
    assert max(together) > 1
