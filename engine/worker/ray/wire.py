"""The wire between a driver and its actors: tensors travel as numpy arrays, which Ray neither copies nor pickles.

An array that arrives is memory that all processes of a node share, and a tensor that were a view of it would spoil it
for all of them without an error. So whatever arrives is copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.algorithm import Tensors


class SentCall(NamedTuple):
    """A call as it is sent."""

    args: tuple[Any, ...]
    has_state: tuple[bool, ...]  # of each of its clients, whether the next one of the states is its
    returned_states: int  # how many results there are for clients' new states
    sum_apart: bool = False  # its sum is a result of its own, which stays where it is


class CallMeasure(NamedTuple):
    """What an actor measured of a call batch, sent before the batch's values."""

    seconds: float  # of work
    sizes: list[int]  # bytes of each value, as it comes to the driver
    kind: str  # the actor's device class


CallReply = tuple[CallMeasure, list[Any]]  # the values of the calls, as they are on the wire


def to_wire(value: Any) -> Any:
    """Return a value with arrays in place of its tensors, in dictionaries, lists, tuples and dataclasses."""
    return _changed(value, Tensor, lambda tensor: tensor.detach().cpu().contiguous().numpy())


def from_wire(value: Any) -> Any:
    """Undo :func:`to_wire`; the tensors are copies."""
    return _changed(value, np.ndarray, torch.tensor)


def received(entries: dict[str, np.ndarray], device: torch.device) -> Tensors:
    """Return entries that have arrived, copied to a device."""
    return {name: torch.tensor(array, device=device) for name, array in entries.items()}


def _changed(value: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {name: _changed(entry, kind, change) for name, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_changed(entry, kind, change) for entry in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{own.name: _changed(getattr(value, own.name), kind, change) for own in fields(value)})
    return value
