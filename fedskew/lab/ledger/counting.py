"""Each claim counted once, though its sweep may have been recorded in both profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fedskew.lab.ledger.rows import EARLIER, NOT_RUN, WORDS, Row, SweepRows, Word


def counts(sweeps: Iterable[SweepRows]) -> dict[Word, int]:
    """Count the claims by what they came to, in the order of :data:`WORDS`."""
    words = [row.word for _, row in counted_rows(sweeps)]
    return {word: words.count(word) for word in WORDS}


def counted_rows(sweeps: Iterable[SweepRows]) -> list[tuple[SweepRows, Row]]:
    """Return the one row of each claim that is counted, with its sweep, in the order of the claims' first rows.

    A claim is known by sweep, text and source, and has a row in each profile in which it was recorded. The profile
    paper's goes before the laptop's; a verdict goes before one of an earlier version, which counts for nothing, and
    that one before "not yet run". What was run with the second best settings is counted nowhere.
    """
    rows: dict[tuple[str, str, str, int], list[tuple[SweepRows, Row]]] = {}
    for sweep in sweeps:
        seen = Counter[tuple[str, str, str]]()  # a claim that was reworded beside what it was before
        for row in sweep.rows if not sweep.choice else ():
            claim = (sweep.name, row.claim.text, row.claim.source)
            seen[claim] += 1
            rows.setdefault((*claim, seen[claim]), []).append((sweep, row))
    return [min(group, key=_rank) for group in rows.values()]


def to_mappings(sweeps: Sequence[SweepRows]) -> list[dict[str, Any]]:
    """Return all rows as plain data, for JSON; ``counted``: whether it is the row that its claim is counted by."""
    counted = {id(row) for _, row in counted_rows(sweeps)}
    found = []
    for sweep in sweeps:
        mappings = zip(sweep.rows, sweep.to_mappings(), strict=True)
        found += [values | {"counted": id(row) in counted} for row, values in mappings]
    return found


def _rank(found: tuple[SweepRows, Row]) -> tuple[int, bool]:
    sweep, row = found
    return {EARLIER: 1, NOT_RUN: 2}.get(row.word, 0), sweep.profile != "paper"
