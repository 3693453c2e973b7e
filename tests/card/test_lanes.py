"""Lanes on the pretended card: the bits of one, in an order that lets kernels of several clients run side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Net, Tensors
from engine.client.steps import training_loop as sequential
from engine.client.steps.client_round import ClientTask
from engine.client.trainer import Trainer
from engine.client.vmap import training_loop as block
from tests.support.on_card import gap, on_card
from tests.support.pretended_card import Counts, why_not
from tests.support.pretended_card.order import Order
from tests.support.tiny import Driven

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.usefixtures("tiny_norm")]

# Sections with which other lines of the steps, and of what is around them, are run.
SETTINGS: dict[str, dict[str, Any]] = {
    "batchnorm and augmented": {"model": {"name": "tiny_norm"}, "local": {"augment": "crop_flip"}},
    "adam at falling rates": {"local": {"optimizer": "adam", "lr": 0.01, "lr_decay": 0.5}},
    "full batches": {"local": {"batch_size": "full"}},
}


def in_lanes(folder: Path, name: str, lanes: int, **changes: Any) -> tuple[Driven, Counts]:
    """Three rounds of all five clients, none of which has as many rows as another, in one block."""
    changes["local"] = {"epochs": 2, **changes.get("local", {})}
    changes["execution"] = {"block": 5, "lanes": lanes}
    participation = {"count": 5, **changes.pop("participation", {})}
    return on_card(folder / str(lanes), name, "graph", rounds=3, participation=participation, **changes)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox", "pflego", "cbfl"])
def test_bits_are_those_of_one_lane(tmp_path: Path, name: str) -> None:
    """Kills: a lane that replays another's graph, reads rows before they are there or leaves its client's weights to
    the next; results in the order of lanes."""
    one, _ = in_lanes(tmp_path, name, 1)
    three, counts = in_lanes(tmp_path, name, 3)
    assert gap(one, three) == 0.0
    assert one.shas == three.shas
    assert counts.replays > 0


@pytest.mark.parametrize("setting", list(SETTINGS))
def test_whatever_the_local_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """Kills: steps that are not captured and do not wait for the lane; buffers and rates of another lane."""
    for module in (sequential, block):
        monkeypatch.setattr(module, "CHUNK", 10)  # so that some full batches are more than one chunk
    one, three = (in_lanes(tmp_path, "fedper", lanes, **SETTINGS[setting])[0] for lanes in (1, 3))
    assert gap(one, three) == 0.0


@dataclass(frozen=True)
class Spoilt(FedAvg):
    """The client of 13 rows diverges from the second round on."""

    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        spoils = batch.client.context.round > 1 and batch.client.num_examples == 13
        if isinstance(spoils, Tensor):
            return super().loss(net, batch, received, state) * torch.where(spoils, torch.inf, 1.0)
        return super().loss(net, batch, received, state) * (torch.inf if spoils else 1.0)


def test_one_that_diverges_leaves_the_others_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a group that is dropped for one of its clients; weights that are not finite in the next round's lane."""
    monkeypatch.setitem(ALGORITHMS, "spoilt", Spoilt)
    drop = {"on_client_error": "drop"}
    one, three = (in_lanes(tmp_path, "spoilt", lanes, participation=drop)[0] for lanes in (1, 3))
    assert gap(one, three) == 0.0
    failed = [run.folder.frame("failures") for run in (one, three)]
    assert len(failed[0]) == 2 and failed[0].equals(failed[1])


def test_a_client_that_raises_is_found_among_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: lanes that are not waited for when one of them raises, and whose memory is written then."""
    taken = block.VmapLoop._take_step

    def raises(self: block.VmapLoop, *given: Any) -> None:
        if self.members[0].task.num_examples == 13 and self.members[0].task.context.round == 3:
            raise ValueError("not this one")
        taken(self, *given)

    monkeypatch.setattr(block.VmapLoop, "_take_step", raises)
    drop = {"on_client_error": "drop"}
    one, three = (in_lanes(tmp_path, "fedavg", lanes, participation=drop)[0] for lanes in (1, 3))
    assert gap(one, three) == 0.0
    assert len(three.folder.frame("failures")) == 1


@contextmanager
def replays() -> Iterator[list[tuple[Any, int]]]:
    """Of each replay: its stream, and beside how many other streams' latest replays it may run."""
    found: list[tuple[Any, int]] = []
    latest: dict[Any, int] = {}
    act = Order.act

    def noted(self: Order, stream: Any, what: Any, *uses: Any) -> int:
        clock = dict(self.of(stream))
        now = act(self, stream, what, *uses)
        if what == "a replay":
            beside = [other for other, time in latest.items() if other is not stream and clock.get(other, 0) < time]
            found.append((stream, len(beside)))
            latest[stream] = now
        return now

    with patch.object(Order, "act", noted):
        yield found


@pytest.mark.parametrize("client_loss", [False, True])
def test_steps_of_lanes_are_in_no_order(tmp_path: Path, client_loss: bool) -> None:
    """Kills: a join, or a wait of the host, between steps of different lanes; lanes on one stream; whole clients one
    after the other; one lane for all."""
    changes = {"evaluation": {"every": 3, "client_loss": client_loss}, "local": {"epochs": 4}}
    with replays() as found:
        in_lanes(tmp_path, "scaffold", 3, **changes)
    assert len({stream for stream, _ in found}) == 3
    streams, beside = zip(*found[-(len(found) // 4) :], strict=True)  # of the last round
    assert max(beside) == 2 and sum(count > 0 for count in beside) > len(beside) / 2
    assert sum(one is not other for one, other in pairwise(streams)) > len(streams) / 2


def test_the_trial_before_a_stage_has_all_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a preflight that counts the memory of one client where several have theirs at a time; of more than do."""
    groups, trained = list[int](), Trainer.train_in_lanes

    def noted(self: Trainer, tasks: Sequence[ClientTask], probe: bool = False) -> Any:
        groups.append(len(tasks))
        return trained(self, tasks, probe)

    monkeypatch.setattr(Trainer, "train_in_lanes", noted)
    in_lanes(tmp_path, "fedavg", 2)
    assert groups == [2, 5, 5, 5]  # the trial, one client to a lane, and three rounds
