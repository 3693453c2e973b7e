"""Checks of one's own parts, for tests: ``from fedskew.testing import parametrize_with_checks``.

    @parametrize_with_checks([FedDyn(alpha=0.1)])
    def test_mine(part, check):
        check(part)

Apart from ``fedskew`` itself, since it takes torch to be imported; see docs/own_parts.md.
"""

from engine.studies.conformance.checks import Check, checks_of
from engine.studies.conformance.failure import NotApplicable, NotConforming
from engine.studies.conformance.parametrised import parametrize_with_checks

__all__ = ["Check", "NotApplicable", "NotConforming", "checks_of", "parametrize_with_checks"]
