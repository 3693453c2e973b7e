"""What help() says of the contract: every attribute and every parameter, and hooks in two groups."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Iterator
from typing import Any

import engine.algorithm as room
from algorithms.fedprox import FedProx
from engine.algorithm import Algorithm, Local, LocalRun
from engine.algorithm.contract import AdvancedHooks

CLASSES = [kind for name in room.__all__ if inspect.isclass(kind := getattr(room, name)) and kind is not Local]


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class itself defines."""
    for name, member in vars(kind).items():
        if (not name.startswith("_") or name == "__call__") and (callable(member) or isinstance(member, property)):
            yield name, member


def missing(kind: type, hooks: str) -> Iterator[str]:
    """Name what the docstrings of a class leave out; ``hooks``: what is said of all hooks' parameters."""
    fields = [name for name in vars(kind).get("__annotations__", {}) if not name.startswith("_")]
    values = list(getattr(kind, "__members__", {}))
    yield from (f"{kind.__name__}.{name}" for name in fields + values if not said(name, kind.__doc__ or ""))
    for name, member in members(kind):
        if not member.__doc__:
            yield f"{kind.__name__}.{name}"
        elif not isinstance(member, property):
            text = member.__doc__ + (hooks if issubclass(kind, AdvancedHooks) else "")
            parameters = [*inspect.signature(member).parameters][1:]
            yield from (f"{kind.__name__}.{name}({word})" for word in parameters if not said(word, text))


def said(word: str, text: str) -> bool:
    return re.search(rf"\b{word}\b", text) is not None


def test_every_attribute_and_parameter_is_told_of() -> None:
    """Kills: an attribute that comes in without its meaning; a sentence that goes with a parameter that stays."""
    left = [name for kind in [AdvancedHooks, *CLASSES] for name in missing(kind, Algorithm.__doc__ or "")]
    assert left == []
    assert [*missing(type("Odd", (), {"__doc__": "Has x.", "__annotations__": {"x": int, "y": int}}), "")] == ["Odd.y"]


def test_hooks_are_in_two_groups() -> None:
    """Kills: an advanced hook among the few that a reader has to know; a group that help() does not show."""
    text = pydoc.plain(pydoc.render_doc(FedProx))
    core, advanced = (text.index(f"Methods inherited from {kind.__module__}.{kind.__name__}:") for kind in KINDS)
    assert core < text.index("upload(self, run") < advanced < text.index("phase_start(self, previous")
    assert len([*members(AdvancedHooks)]) == 14
    assert "accumulation: a_k, such" in pydoc.plain(pydoc.render_doc(LocalRun))


KINDS = (Algorithm, AdvancedHooks)
