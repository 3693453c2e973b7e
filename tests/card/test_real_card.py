"""A real card: the CPU's numbers from every algorithm in every executor, and the same bits whenever they are asked for.

Skipped where there is none, as on CI. ``pytest tests/card/test_real_card.py -n 8`` takes two minutes of an H100.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from engine.models import MODELS
from fedskew.testing.algorithm_runs import resumed_is_straight
from fedskew.testing.small_data import dataset
from tests.support.on_card import EXECUTORS, SIZES, execution_of, gap, on_cpu, settings
from tests.support.tiny import Driven, TwoNorms, assignment, drive

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.usefixtures("tiny_norm"),
]

ON_GPU = 1e-6  # in float64, in which a card sums in other orders
RESNET8 = {"model": {"name": "resnet8"}}
# One that has no state, one with control variates, heads on features, images, an oracle of moments, two forward passes.
VARIED = ["fedavg", "scaffold", "pflego", "cbfl", "ccvr", "moon", "fedser"]


def on_card(folder: Path, name: str, executor: str, **changes: Any) -> Driven:
    return drive(folder, settings(name, executor, "cuda", **changes), parts=assignment(SIZES))


@pytest.mark.parametrize("executor", [*EXECUTORS, "lanes"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_executor_has_the_numbers_of_the_cpu(tmp_path: Path, name: str, executor: str) -> None:
    """Kills: what CUDA refuses and the pretended card does not; a kernel with other numbers; a replay on old inputs."""
    assert gap(on_card(tmp_path / "card", name, executor), on_cpu(tmp_path / "cpu", name)) <= ON_GPU


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("executor", [*EXECUTORS, "lanes"])
@pytest.mark.parametrize("name", VARIED)
def test_bits_are_the_same_again(tmp_path: Path, name: str, executor: str, precision: str) -> None:
    """Kills: a kernel that adds in the order in which threads come; an algorithm of cuDNN's that is chosen by time."""
    changes = {**with_convolutions(name), "execution": {**execution_of(executor), **PRECISIONS[precision]}}
    one, other = (on_card(tmp_path / part, name, executor, **changes) for part in ("one", "other"))
    assert gap(one, other) == 0.0
    assert one.shas == other.shas


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("name", VARIED)
def test_lanes_change_no_bit(tmp_path: Path, name: str, lanes: int) -> None:
    """Kills: kernels that a library chooses by the stream, or by what else is underway."""
    found = []
    for count in (1, lanes):
        execution = {**PRECISIONS["float32"], "executor": "graph", "block": 4, "lanes": count}
        changes = {**with_convolutions(name), "participation": {"count": 4}, "execution": execution}
        found.append(on_card(tmp_path / str(count), name, "graph", **changes))
    one, several = found
    assert gap(one, several) == 0.0
    assert one.shas == several.shas


@pytest.mark.parametrize("executor", [*EXECUTORS, "lanes"])
@pytest.mark.parametrize("name", VARIED)
def test_a_resumed_run_has_the_bits_of_the_straight_one(name: str, executor: str) -> None:
    """Kills: a graph, a stream or a cache of a card's that knows what was before."""
    changes = {**with_convolutions(name), "execution": {**execution_of(executor), **PRECISIONS["float32"]}}
    if name != "ccvr":  # has no rounds of its own
        changes["rounds"] = 3
    resumed_is_straight(name, settings(name, executor, "cuda", **changes), assignment(SIZES))


@pytest.mark.parametrize("executor", ["block", "block_graph"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox"])
def test_a_client_that_is_left_alone_in_its_block(tmp_path: Path, name: str, executor: str) -> None:
    """Kills: scales of BatchNorm at an address at which cuDNN's kernels fail, which those of the second client have
    where its weights follow an odd number of others."""
    six = replace(dataset(400, (3, 32, 32)), classes=tuple("abcdef"))  # 272,214 weights: no multiple of four
    changes = {
        "model": {"name": "resnet20"},
        "local": {"batch_size": 50, "lr": 0.001},
        "execution": PRECISIONS["float32"],
    }
    runs = [
        drive(tmp_path / device, settings(name, how, device, **changes), six, assignment((60, 230, 50)))
        for device, how in (("cpu", "loop"), ("cuda", executor))
    ]
    assert gap(*runs) <= 1e-2


@pytest.mark.parametrize("executor", [*EXECUTORS, "lanes"])
def test_norms_at_odd_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str) -> None:
    """Kills: images with channels last where cuDNN then fails to read a norm's vectors."""
    monkeypatch.setitem(MODELS, "two_norms", TwoNorms)
    changes = {"model": {"name": "two_norms"}, "local": {"lr": 0.001}, "execution": PRECISIONS["float32"]}
    images, parts = dataset(120, (3, 32, 32)), assignment(SIZES)
    runs = [
        drive(tmp_path / device, settings("fedavg", how, device, **changes), images, parts)
        for device, how in (("cpu", "loop"), ("cuda", executor))
    ]
    assert gap(*runs) <= 1e-2


PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "tf32": {"precision": "float32", "tf32": True},
    "bfloat16": {"precision": "float32", "autocast": "bfloat16"},
}


def with_convolutions(name: str) -> dict[str, Any]:
    """ResNet8 with BatchNorm; CBFL has its own fields for tiny images, and FedSER networks of its own."""
    return RESNET8 if name != "fedser" else {}
