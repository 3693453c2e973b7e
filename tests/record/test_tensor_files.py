"""Named tensors are read in the order in which they were written."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch

from engine.algorithm import Tensors
from engine.record.checkpoints import Checkpoint, Position, decode, encode
from engine.record.states import DiskStore, MemoryStore
from engine.record.tensor_files import decoded

NAMES = ["newest", "middle", "older", "a whole number"]


def entries() -> Tensors:
    return {name: torch.ones(2, dtype=torch.int64 if "whole" in name else torch.float32) for name in NAMES}


def test_states_keep_the_order_of_their_names(tmp_path: Path) -> None:
    """Kills: a state whose entries are in another order once it was on the disk, by a resume or for lack of room."""
    memory, disk = MemoryStore(tmp_path, lambda state: state), DiskStore(tmp_path, lambda state: state, cache_mb=0)
    for store in (memory, disk):
        store.commit({0: entries()})
        store.restore(store.save())
        (found,) = store.read([0])
        assert [*found] == NAMES


def test_checkpoints_keep_the_order_of_the_servers_entries(tmp_path: Path) -> None:
    """Kills: a resumed server that goes through its entries in another order."""
    path = tmp_path / "checkpoint"
    path.write_bytes(encode(Checkpoint(Position(0, 1), entries(), {}, {}), "owner"))
    assert [*decode(path, "owner").server] == NAMES


def test_a_file_of_before_is_read_in_its_own_order() -> None:
    """Kills: folders that an earlier version wrote and this one cannot read."""
    tensors, metadata = decoded(safetensors.torch.save(entries()))
    assert {*tensors} == {*NAMES} and metadata == {}
