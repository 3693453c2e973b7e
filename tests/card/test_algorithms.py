"""Every algorithm in every executor on the pretended card: the CPU's numbers, and nothing that a card refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from algorithms import ALGORITHMS
from algorithms.scaffold import Scaffold
from fedskew.testing.algorithm_runs import same_on_a_gpu
from fedskew.testing.failure import NotConforming
from tests.support.on_card import CAPTURING, gap, most, on_card, on_cpu
from tests.support.planted import planted
from tests.support.pretended_card import card, why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.usefixtures("tiny_norm")]

# Sections with which other lines of the local work and of the evaluation are run.
SETTINGS: dict[str, dict[str, Any]] = {
    "momentum": {"local": {"momentum": 0.9, "weight_decay": 0.01}},
    "adam": {"local": {"optimizer": "adam", "lr": 0.01}},
    "augmented": {"local": {"augment": "crop_flip"}},
    "full batches": {"local": {"batch_size": "full"}},
    "several stages of lr": {"local": {"lr_decay": 0.5}},
    "every evaluation": {"evaluation": {"every": 1, "local_every": 1, "personal_every": 1, "fine_tune_epochs": 1}},
    "batchnorm": {"model": {"name": "tiny_norm"}},
}


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_executor_has_the_numbers_of_the_cpu(tmp_path: Path, name: str) -> None:
    """Kills: a tensor on the other device, a draw of the CPU's on the card, a question or an upload within a capture, a
    number that a graph keeps from its capture, memory that a graph reads and nobody holds."""
    plain = on_cpu(tmp_path / "cpu", name)
    for executor in ("loop", "block", "lanes", "block_graph"):  # graph is lanes: test_lanes.py
        run, counts = on_card(tmp_path / executor, name, executor)
        assert gap(run, plain) <= most(name, executor), executor
        captures = executor in CAPTURING and not ALGORITHMS[name].requires.no_vmap
        assert (counts.replays > 0) is captures, executor


@pytest.mark.parametrize("setting", list(SETTINGS))
@pytest.mark.parametrize("executor", ["loop", "block_graph"])
def test_whatever_the_local_work_and_the_evaluation(tmp_path: Path, setting: str, executor: str) -> None:
    """Kills: the same in lines that defaults do not reach."""
    plain = on_cpu(tmp_path / "cpu", "fedper", **SETTINGS[setting])
    run, counts = on_card(tmp_path / "card", "fedper", executor, **SETTINGS[setting])
    assert gap(run, plain) <= most("fedper", executor) and counts.launches


def test_the_check_of_own_parts_finds_what_a_card_refuses() -> None:
    """Kills: ``fedskew check`` that lets a part pass whose tensors are on the CPU, or refuses a sound one."""
    control = 'grad + (received["control"] - state["control"])'
    with card():
        same_on_a_gpu(Scaffold())
        with (
            planted(control, f'{control} * weights.new_ones(1, device="cpu")'),
            pytest.raises(NotConforming, match=r"^Scaffold fails on a GPU: .*; make tensors on the device"),
        ):
            same_on_a_gpu(Scaffold())
