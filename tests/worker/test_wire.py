"""What travels between a driver and its actors."""

from __future__ import annotations

import numpy as np
import torch

from engine.client.messages import ClientFailure, TrainResult
from engine.client.steps.entries import copied
from engine.worker.ray.wire import from_wire, received, to_wire


def read_only(values: list[float]) -> np.ndarray:
    """As Ray gives it: memory of a whole node."""
    array = np.array(values, np.float32)
    array.flags.writeable = False
    return array


def test_what_arrives_is_copied() -> None:
    """Kills: a tensor that aliases memory of the whole node."""
    array = read_only([1, 1, 1])
    for tensor in (received({"a": array}, torch.device("cpu"))["a"], from_wire([array])[0]):
        tensor.add_(1)
        assert array.tolist() == [1, 1, 1] and tensor.tolist() == [2, 2, 2]


def test_a_block_comes_back_as_it_was_sent() -> None:
    """Kills: a tensor that travels as torch pickles it, an entry that is left behind, a number of another type."""
    block = TrainResult(failures=[ClientFailure(3, None, "why")])
    block.sum.add(0, {"weights": torch.arange(3.0), "cost": torch.tensor(2.5, dtype=torch.float64)}, None, 4.0, 7)
    block.stacked.append({"weights": torch.ones(2, 2)[:, 1]})
    [there], sent = block.sum.parts, to_wire(block)
    [part] = sent.sum.parts
    arrays = [*part.value.uploads.values(), part.value.buffers, sent.stacked[0]["weights"]]
    assert all(isinstance(array, np.ndarray) and array.flags.c_contiguous for array in arrays)
    assert there.value is not None and isinstance(there.value.uploads["weights"], torch.Tensor)
    again = from_wire(sent)
    total = again.sum.whole()
    assert (again.failures, total.weight, total.num_examples) == (block.failures, 4.0, 7)
    assert total.clients == 1 and again.stacked[0]["weights"].tolist() == [1, 1]
    for name, tensor in there.value.uploads.items():
        assert torch.equal(total.uploads[name], tensor) and total.uploads[name].dtype == tensor.dtype


def test_entries_have_one_layout_in_process_and_on_the_wire() -> None:
    """Kills: a transposed matrix that keeps its strides in process and loses them on the wire: its products differ in
    bits; a graph that a copy brings along."""
    matrix = torch.arange(6.0).reshape(2, 3).requires_grad_().t()
    (here,) = copied({"m": matrix}, torch.device("cpu")).values()
    (there,) = received(to_wire({"m": matrix}), torch.device("cpu")).values()
    assert here.stride() == there.stride() and torch.equal(here, there)
    assert not here.requires_grad and here.data_ptr() != matrix.data_ptr()
