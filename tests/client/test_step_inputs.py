"""What steps are given, packed for one copy to a GPU; on a card itself: tests of the pretended one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from engine.client.steps.batched_upload import ALIGNED, in_one_copy, packed, unpacked
from engine.client.steps.step_inputs import AHEAD, Inputs, on_device, sent_ahead

MANY = (
    torch.arange(7),
    torch.tensor([True, False, True]),
    torch.rand(3, 5, dtype=torch.float64).mT,  # not contiguous
    torch.tensor(2.5),
    torch.empty(0, 4),
    torch.rand(2, 3),
)


def test_what_is_packed_comes_out_again() -> None:
    """Kills: a view that begins amid another's bytes or where its type may not begin; a transposed tensor's rows."""
    room = packed(MANY)
    assert room.dtype == torch.uint8
    assert len(room) % ALIGNED == 0
    for tensor, view in zip(MANY, unpacked(room, MANY), strict=True):
        assert view.dtype == tensor.dtype
        assert torch.equal(view, tensor)
        assert view.storage_offset() * view.element_size() % ALIGNED == 0


def test_what_is_there_stays() -> None:
    """Kills: a copy on the CPU, which would cost each step; tensors in another order."""
    assert all(one is tensor for one, tensor in zip(in_one_copy(MANY, torch.device("cpu")), MANY, strict=True))


def test_numbers_stay_numbers() -> None:
    """Kills: a draw that is no tensor lost on its way, or the names of draws and rows mixed up."""
    step = Inputs({"rows": MANY[0]}, {"noise": MANY[5], "count": 3})
    [same] = on_device([step], torch.device("cpu"))
    doubled = same.mapped(lambda tensor: tensor * 2)
    assert doubled.drawn["count"] == 3
    assert torch.equal(doubled.drawn["noise"], 2 * MANY[5])
    assert torch.equal(doubled.rows["rows"], 2 * MANY[0])


def test_steps_without_passes_go_to_a_device_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an upload a step; rows of another step; steps that are asked for long before they are due, or never."""
    far, uploads = torch.device("meta"), list[Any]()
    sizes, drawn = [3, 1, 2] * AHEAD, list[int]()
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)  # as there is no card

    def steps() -> Iterator[Inputs]:
        for size in sizes:
            drawn.append(size)
            yield Inputs({"x": torch.zeros(size, 2)}, {"y": torch.zeros(size, dtype=torch.int64)})

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if (kwargs or {}).get("device") == far:
                uploads.append(func)
            return func(*args, **(kwargs or {}))

    with Counts():
        coming = sent_ahead(steps(), far)
        first = next(coming)
        assert len(drawn) == AHEAD
        shapes = [tuple(map(len, own.named().values())) for own in [first, *coming]]
    assert shapes == [(size, size) for size in sizes]
    assert len(uploads) == 3
    assert next(sent_ahead(steps(), torch.device("cpu"))).rows["x"].device.type == "cpu"
    assert len(drawn) == 1 + len(sizes)
