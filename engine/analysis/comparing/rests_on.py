"""The trials that a claim rests on."""

from __future__ import annotations

from typing import Any

from engine.analysis.claims import Claim
from engine.analysis.results import Results
from engine.analysis.settings import matches


def rests_on(results: Results, claim: Claim) -> list[dict[str, Any]]:
    """Pick the trials that a claim compares, whatever became of them, as rows of the trials table."""
    either = {**claim.better, **claim.worse}
    # In a list, so that a value that is a list is one value. What one side alone names picks trials for both.
    sides = [{name: [value] for name, value in {**either, **side}.items()} for side in (claim.better, claim.worse)]
    return [
        row
        for row in results.trials.to_dict("records")
        if all(name in row and matches(row[name], value) for name, value in claim.where.items())
        and any(all(name in row and matches(row[name], side[name]) for name in side) for side in sides)
    ]
