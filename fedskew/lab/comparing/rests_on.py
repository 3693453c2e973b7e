"""The trials that a claim rests on."""

from __future__ import annotations

from typing import Any

from engine.results.claims import Claim
from engine.results.results import Results
from engine.results.settings import matches


def rests_on(results: Results, claim: Claim) -> list[dict[str, Any]]:
    """Pick the trials that a claim compares, whatever became of them, as rows of the trials table."""
    return [
        row
        for row in results.trials.to_dict("records")
        if any(all(name in row and matches(row[name], side[name]) for name in side) for side in claim.sides)
    ]
