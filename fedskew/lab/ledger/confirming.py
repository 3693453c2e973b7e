"""An entry held against the present code: the trials of one seed, computed again, must be equal to the bit.

Code changes far more often than what it computes does, and a ledger that forgot its verdicts each time would be empty
most of the time. So a seed is enough: every setting once, its rounds to the last, and the hash of its weights.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

from engine.base.errors import RunError
from engine.results.coverage import ENDED
from engine.results.settings import key
from fedskew.lab.ledger.entry import Confirmation, Entry
from fedskew.lab.ledger.stated import Stated
from fedskew.lab.ledger.table import DRAWN
from fedskew.lab.quantities import quantity

MOST = 3  # trials that are named


def seed_of(entry: Entry) -> int:
    """Return the seed of which the most trials have finished, the first of them; raises :class:`RunError` for none."""
    finished = Counter(row["seed"] for row in entry.table.rows if row["status"] == "finished")
    if not finished:
        raise RunError(f"no trial of {entry.name} has finished, so there is nothing to be confirmed; record it again")
    return min(finished, key=lambda seed: (-finished[seed], seed))


def confirmed(entry: Entry, again: Entry, stated: Stated) -> Entry:
    """Return the entry with the confirmation that ``again``, the trials of one of its seeds, is.

    stated: the sweep as it is now. Raises :class:`RunError` where a trial has not ended, was computed by other code, or
    came to other bits (weights, partition, or a figure that the entry keeps), and where a setting has no trial of the
    seed, so that nothing would be known of it.
    """
    seed, sources = seed_of(entry), stated.sources()
    if {*again.codes.values()} != {sources}:
        raise RunError(f"{again.name}: its trials were computed by other code than this; remove their folder")
    found = {_setting(again, row): row for row in again.table.rows if row["seed"] == seed}
    ended = [row for row in entry.table.rows if row["status"] in ENDED]
    of_seed = {_setting(entry, row): row for row in ended if row["seed"] == seed}
    alone = next((row["trial"] for row in ended if _setting(entry, row) not in of_seed), None)
    if alone is not None:
        raise RunError(f"{entry.name}: seed {seed} has no trial of the setting of trial {alone}; run the sweep again")
    wrong = []
    for setting, row in of_seed.items():
        wrong += [f"trial {row['trial']} ({what})" for what in _differing(entry, row, found.get(setting))]
    if wrong:
        more = f" and {len(wrong) - MOST} more" if len(wrong) > MOST else ""
        told = f"{', '.join(wrong[:MOST])}{more}"
        raise RunError(f"{entry.name} comes to other bits now: {told}; run the sweep again, and record it")
    one = Confirmation(sources, seed, len(found), round(again.seconds, 3))
    others = tuple(before for before in entry.confirmed if before.sources != sources)
    return replace(entry, confirmed=(*others, one))


def _setting(entry: Entry, row: dict[str, Any]) -> Any:
    return key([row[axis] for axis in entry.table.axes])


def _differing(entry: Entry, row: dict[str, Any], other: dict[str, Any] | None) -> list[str]:
    """Name what a trial of now has otherwise: one thing is enough."""
    if other is None or other["status"] not in ENDED:
        return ["has not ended"]
    metrics = [name for name in entry.table.metrics if quantity(name).unit != "s"]  # time is never the same
    names = ("status", DRAWN, "weights", *metrics)
    return [f"its {name}" for name in names if _there(row.get(name)) != _there(other.get(name))][:1]


def _there(value: Any) -> Any:
    """Return the value, None for a figure that a trial does not have: a folder's is no number, an entry's is None."""
    return None if isinstance(value, float) and math.isnan(value) else value
