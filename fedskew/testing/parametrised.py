"""Checks as tests of pytest: one for each part and check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedskew.testing.checks import Check, check_names, checks_of
from fedskew.testing.failure import NotApplicable


class SkippingCheck:
    """A check as a test calls it: one that has no meaning for the part skips the test."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.__name__ = check.name
        self.__doc__ = check.what

    def __call__(self, part: Any) -> None:
        import pytest

        try:
            self.check(part)
        except NotApplicable as reason:
            pytest.skip(str(reason))


def parametrize_with_checks(
    parts: Iterable[Any],
    expected_failures: Mapping[str, str] | None = None,
    checks: Iterable[str] | None = None,
    full: bool = False,
) -> Callable[[Any], Any]:
    """Return a decorator by which a test is run for each part and check: ``def test_mine(part, check): check(part)``.

    parts: instances with their fields. expected_failures: name of a check -> why it must fail; such a test is an
    expected failure, and fails if the check passes. checks: names of those to make; None: all. full: those on Ray
    actors and on a card, too. Raises :class:`ConfigError` for a name that no check of these parts has.
    """
    import pytest

    parts, expected = list(parts), dict(expected_failures or {})
    of_parts = [(part, check) for part in parts for check in checks_of(part, full or checks is not None)]
    chosen = None if checks is None else list(checks)
    check_names([*expected, *(chosen or ())], [check for _, check in of_parts])
    params = [
        pytest.param(
            part,
            SkippingCheck(check),
            id=f"{type(part).__name__}-{check.name}",
            marks=[pytest.mark.xfail(strict=True, reason=expected[check.name])] if check.name in expected else [],
        )
        for part, check in of_parts
        if chosen is None or check.name in chosen
    ]
    return pytest.mark.parametrize(("part", "check"), params)
