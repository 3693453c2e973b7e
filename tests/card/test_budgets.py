"""How often a step and a round start work on a card, wait for it and upload to it, against ``budgets.py``."""

from __future__ import annotations

import pytest

from tests.card.budgets import BUDGETS, parsed, written
from tests.support.card_costs import Cost, Row, measured, rows, told
from tests.support.pretended_card import why_not

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.usefixtures("tiny_norm")]
WRITE = "python -m tests.card.count --write"


def test_the_table_has_every_row_once_and_no_other() -> None:
    """Kills: a method that is counted and not held to anything; a row that nobody counts; one that is read wrongly."""
    assert list(BUDGETS) == list(rows())
    row = {("a", "loop"): Row(Cost(1.125, 0.25, 2, 0), Cost(12345, 0, 6, 7))}
    assert parsed(written(row)) == row and parsed(written(BUDGETS)) == BUDGETS


@pytest.mark.parametrize(("name", "executor"), list(rows()))
def test_within_the_budget(name: str, executor: str) -> None:
    """Kills: a wait, an upload or a launch more in each step or round; a gain that nobody keeps."""
    found, counts = measured(name, executor)
    budget = BUDGETS[name, executor]
    for what in ("step", "round"):
        now, before = vars(getattr(found, what)), vars(getattr(budget, what))
        changes = ", ".join(
            f"{before[kind]:g} {kind} are {now[kind]:g} now" for kind in now if now[kind] != before[kind]
        )
        is_more = any(now[kind] > before[kind] for kind in now)
        repair = f"find out why among\n{told(counts)}\nor, if it is meant," if is_more else "keep what was gained:"
        assert not changes, f"a {what} of {name}, {executor}: {changes}; {repair} {WRITE}"
