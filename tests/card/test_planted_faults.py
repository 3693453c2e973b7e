"""What the pretended card notices of wrong code, one fault at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from engine.client.steps.entries import floats
from tests.card.faults import FAULTS, Fault
from tests.support.on_card import gap, most, on_card, on_cpu
from tests.support.planted import place, planted
from tests.support.pretended_card import Counts, why_not
from tests.support.tiny import Driven

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not())
Sound = tuple[Driven, Driven, Counts]  # on the CPU; on the card, and what it asked of it


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Fault], Sound]:
    """The runs of a fault's setting by the code as it is, once for all faults that have it.

    What a process does on the card for the first time it counts once: so a run that nobody counts comes before them.
    """
    on_card(tmp_path_factory.mktemp("first"), "fedavg", "loop")

    @cache
    def once(setting: str, number: int) -> Sound:
        fault, folder = FAULTS[number], tmp_path_factory.mktemp("sound")
        plain = on_cpu(folder / "cpu", fault.method, **fault.changes)
        return plain, *on_card(folder / "card", fault.method, fault.executor, **fault.changes)

    settings = [f"{fault.method} {fault.executor} {fault.changes}" for fault in FAULTS]
    return lambda fault: once(setting := settings[FAULTS.index(fault)], settings.index(setting))


def test_every_fault_has_its_place() -> None:
    """Kills: a fault that is planted nowhere, or in two places; two of one name."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        place(fault.right)
    with pytest.raises(LookupError, match="not once in the sources"), planted("import torch\n", "import numpy\n"):
        pass


def test_a_fault_is_there_for_as_long_as_it_is_planted() -> None:
    """Kills: a fault that goes on in the next test, one that is planted beside the function that is called."""
    entries = {"a": torch.ones(2, 3)}
    right = "total += numbers if bits is None else math.ceil("
    with planted(right, right.replace("numbers", "1 + numbers")):
        assert floats(entries) == 7
    assert floats(entries) == 6


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_it_is_noticed(tmp_path: Path, fault: Fault, sound: Callable[[Fault], Sound]) -> None:
    """Kills: a card that lets the fault pass; one that sees it in sound code as well."""
    plain, healthy, counts = sound(fault)
    assert gap(healthy, plain) <= most(fault.method, fault.executor)
    with planted(fault.right, fault.wrong):
        told = noticed(tmp_path, fault, plain, counts)
    assert re.search(fault.noticed, told), told


def noticed(folder: Path, fault: Fault, plain: Driven, sound: Counts) -> str:
    """What the card makes of the run with the fault in it: an error, other numbers, or more of what is counted."""
    try:
        run, counts = on_card(folder / "faulty", fault.method, fault.executor, **fault.changes)
        if not gap(run, plain) <= most(fault.method, fault.executor):
            return "other numbers"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    more = [kind for kind, count in counts.totals.items() if count > sound.totals[kind]]
    return f"more {', '.join(more)}" if more else "nothing"
