"""Executor ``block`` against executor ``loop``: every algorithm on two networks, one with BatchNorm, some on larger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from engine.algorithm import PostTraining
from engine.client.steps.flat_net import FlatNet
from engine.experiment import Experiment
from tests.support.loops import each
from tests.support.side_by_side import (
    FIRST_COHORT,
    RAGGED,
    assert_alike,
    one_by_one,
    second_round,
    single_steps,
    together,
)
from tests.support.tiers import six
from tests.support.tiny import drive, experiment_of

TRAINING = [name for name, kind in ALGORITHMS.items() if not issubclass(kind, PostTraining)]
STACKED = [name for name in TRAINING if not ALGORITHMS[name].requires.no_vmap]
# With a server's average, a control variate, heads apart, personal heads, mixed images, a generator and a teacher.
ON_IMAGES = ("fedavg", "scaffold", "pflego", "fedper", "naivemix", "cbfl")
MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "mlp", "hidden": [7, 5]},
    "tiny_norm": {"name": "tiny_norm"},
    "resnet8": {"name": "resnet8"},
    "cnn": {"name": "cnn"},
}
# Fields with which a round has 20 steps at most.
SHORT: dict[str, dict[str, Any]] = {
    "pfedme": {"local_rounds": 4, "inner_steps": 2, "personal_lr": 0.1},
    "pflego": {"tau": 5, "head_lr": 0.1},
    "fedrep": {"head_epochs": 2},
    "fedrecon": {"recon_steps": 3},
}
# What else an algorithm does in its hooks, where it has a choice.
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("scaffold", {"option": "I"}),
    ("feddc", {"clip": 0.05}),
    ("feddc", {"weighting": "samples", "reference_norm": True}),
    ("fednova", {"mu": 0.1}),
    ("clsnorm", {"mu": 0.5}),
    ("naivemix", {"mash": 2}),
    ("cbfl", {"generator": "gaussian_noise", "forward": "separate"}),
    ("cbfl", {"generator": "dcgan", "kd_direction": "student_teacher"}),
    ("cbfl", {"gen_scope": "client", "teacher": "current"}),
    ("cbfl", {"fake_loss": "ce"}),
    ("pflego", {"batch_size": 6, "w_scale": "joint"}),
    ("fedper", {"layers": 2}),
    ("fedbabu", {"train_head": True}),
    ("fedrecon", {"grad_only": True}),
    ("fedrecon", {"reset_head": False, "support_frac": 1.0}),
    ("ditto", {"personal_epochs": 2}),
]


def config(name: str, fields: dict[str, Any], model: str = "mlp", **execution: Any) -> Experiment:
    local = {"epochs": 1, "batch_size": 8, "lr": 0.1}
    changes = {"rounds": 3, "evaluation": {"every": 0}, "local": local, "execution": execution}
    return experiment_of(name, {**SHORT.get(name, {}), **fields}, model=MODELS[model], **changes)


# --- every algorithm ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "fields", "model"),
    six((name, {}, model) for model in ("mlp", "tiny_norm") for name in STACKED)
    + [(*variant, "mlp") for variant in VARIANTS]
    + [pytest.param(name, {}, model, marks=pytest.mark.slow) for name in ON_IMAGES for model in ("resnet8", "cnn")],
)
def test_block_is_loop(
    tmp_path: Path, name: str, fields: dict[str, Any], model: str, tiny_norm: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: rows, draws, states or losses of another client of the block; statistics that are shared, or moved by a
    client that takes no step; a step too many of a client with fewer rows; a hook that sees the block's sizes."""
    trainer, visits, wanted = second_round(tmp_path, config(name, fields, model, precision="float64"))
    assert len(FIRST_COHORT) < len(visits) == len(RAGGED)
    assert 0 < max(trained.steps for trained in wanted) <= 20
    assert sum(trained.loss_after != trained.loss_before for trained in wanted) >= 4  # not of one class, nor of one row
    assert_alike(together(trainer, visits), wanted, 1e-9)
    monkeypatch.setattr(ALGORITHMS[name], "phases", single_steps(ALGORITHMS[name].phases))
    assert_alike(together(trainer, visits), one_by_one(trainer, visits), 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model"), six((name, "mlp") for name in STACKED) + [(name, "resnet8") for name in ("fedavg", "cbfl")]
)
def test_block_is_loop_in_single_precision(
    tmp_path: Path, name: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a stacked step in another precision than the run's."""
    monkeypatch.setattr(ALGORITHMS[name], "phases", single_steps(ALGORITHMS[name].phases))
    # In the layout that a stacked step has: another one rounds otherwise, and where a unit is 0 but for rounding, as
    # two of resnet8 are here, a ReLU has two sides. What the layout does is tested in test_layouts.py.
    monkeypatch.setattr(FlatNet, "laid_out", lambda net, x: x)
    trainer, visits, wanted = second_round(tmp_path, config(name, {}, model))
    assert {trained.weights.dtype for trained in wanted} == {torch.float32}
    assert_alike(together(trainer, visits), wanted, 1e-5)


# --- what is not stacked ------------------------------------------------------------------------------

ALONE = pytest.mark.parametrize("name", [name for name in TRAINING if name not in STACKED])


@each("name", list(ALGORITHMS))
def test_an_algorithm_can_be_stacked_or_says_why(name: str) -> None:
    """Kills: a flag in place of a reason."""
    reason = ALGORITHMS[name].requires.no_vmap
    assert isinstance(reason, str)
    assert not reason or (len(reason.split()) >= 4 and reason[0].islower() and reason[-1].isalpha())


@ALONE
def test_the_reason_is_a_true_one(tmp_path: Path, name: str) -> None:
    """Kills: a claim that was true once: stacked all the same, the round fails, or comes to something else."""
    trainer, visits, wanted = second_round(tmp_path, config(name, {}, precision="float64"))
    with pytest.raises((AssertionError, RuntimeError, TypeError)):
        assert_alike(together(trainer, visits), wanted, 1e-9)


@pytest.mark.slow
@ALONE
def test_what_is_not_stacked_has_the_bits_of_the_loop(tmp_path: Path, name: str) -> None:
    """Kills: blocks of another size, or clients in one pass, where an algorithm says that they cannot be."""
    shas = [drive(tmp_path / executor, config(name, {}, executor=executor)).shas for executor in ("loop", "block")]
    assert shas[0] == shas[1]
