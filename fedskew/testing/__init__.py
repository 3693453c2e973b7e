"""The conformance suite: whether a part (an algorithm, a model, data, a partition) keeps what the engine counts on.

    @parametrize_with_checks([FedDyn(alpha=0.1)])
    def test_mine(part, check):
        check(part)

It offers ``parametrize_with_checks`` for pytest, and ``checks_of``, which lists the checks of a part; each is a small
function that raises ``NotConforming``. Read ``checks.py`` first, then ``algorithm_values.py`` for what a check looks
like. Apart from ``fedskew`` itself, since it takes torch to be imported; see docs/own_parts.md.
"""

from fedskew.testing.checks import Check, checks_of, parametrize_with_checks
from fedskew.testing.failure import NotApplicable, NotConforming

__all__ = ["Check", "NotApplicable", "NotConforming", "checks_of", "parametrize_with_checks"]
