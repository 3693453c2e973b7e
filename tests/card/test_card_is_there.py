"""CI has the pretended card: a torch that cannot take it ends in a failure there, and in skipped tests elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

from tests.support.pretended_card import why_not


def refusal(reason: str, environment: Mapping[str, str]) -> str:
    """Return what is wrong with skipping the tests of this folder for ``reason``; empty if nothing is, or none is."""
    if not reason or environment.get("CI", "").lower() in ("", "0", "false"):
        return ""
    return f"CI is set and tests/card would be skipped: {reason}; install the torch of .ci/constraints.txt"


def test_ci_skips_nothing_for_want_of_a_card() -> None:
    """Kills: a suite that is green on CI because every test of the pretended card was skipped."""
    if said := refusal(why_not(), os.environ):
        pytest.fail(said, pytrace=False)
    if why_not():
        pytest.skip(why_not())


@pytest.mark.parametrize("value", ["true", "1", "True"])
def test_who_is_on_ci_is_told_why(value: str) -> None:
    """Kills: a card that is not there and no failure; a failure without the reason, or without the way out."""
    assert refusal("no card", {"CI": value}) == (
        "CI is set and tests/card would be skipped: no card; install the torch of .ci/constraints.txt"
    )
    assert refusal("", {"CI": value}) == ""


@pytest.mark.parametrize("environment", [{}, {"CI": ""}, {"CI": "false"}, {"CI": "0"}])
def test_elsewhere_they_may_be_skipped(environment: dict[str, str]) -> None:
    """Kills: a laptop with a CUDA build whose suite fails; "CI=false" that is taken for a CI."""
    assert refusal("no card", environment) == ""
