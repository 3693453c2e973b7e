"""The scaling law, fitted to data of which it is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.base.errors import RunError
from fedskew.lab.scaling.law import AMDAHL, USL, Law, fit, least_squares

TRUE = Law(rate=3.0, contention=0.05, coherency=0.002)
COUNTS = (1, 2, 4, 8, 16)


def turns(law: Law, counts: tuple[int, ...], noise: float, repeats: int, seed: int = 0) -> dict[int, list[float]]:
    rng = np.random.default_rng(seed)
    return {count: (law(count) * np.exp(noise * rng.standard_normal(repeats))).tolist() for count in counts}


def test_the_law_is_gunthers() -> None:
    """Kills: a term with N for N - 1; a peak without its root."""
    law = Law(2.0, 0.1, 0.01)
    assert law(1) == 2.0
    assert law(4) == pytest.approx(8 / (1 + 0.3 + 0.12), rel=1e-15)
    assert law.peak == pytest.approx(math.sqrt(90), rel=1e-15)
    assert law(law.peak) > max(law(9), law(10)) - 1e-12
    assert Law(2.0, 0.1, 0.0).peak == math.inf


@pytest.mark.parametrize(
    "law",
    [TRUE, Law(0.2, 0.0, 0.0), Law(100.0, 0.3, 0.0), Law(1e-3, 0.0, 0.05), Law(7.0, 1.0, 0.0), Law(7.0, 0.5, 0.5)],
    ids=str,
)
def test_exact_data_give_their_law(law: Law) -> None:
    """Kills: a fit that ends beside the minimum; parameters swapped; bounds that exclude 0 or 1."""
    found = least_squares(COUNTS, [law(count) for count in COUNTS])
    assert found.rate == pytest.approx(law.rate, rel=1e-9)
    assert found.contention == pytest.approx(law.contention, abs=1e-9)
    assert found.coherency == pytest.approx(law.coherency, abs=1e-9)


def test_a_fit_needs_no_single_actor() -> None:
    """Kills: a rate that is read off the first count."""
    found = least_squares((2, 4, 8), [TRUE(count) for count in (2, 4, 8)])
    assert found.rate == pytest.approx(TRUE.rate, rel=1e-9)


def test_throughput_that_falls_again() -> None:
    """Kills: kappa left out, by which no curve falls."""
    data = {count: [value] for count, value in {1: 10.0, 2: 16.0, 4: 19.0, 8: 15.0, 16: 9.0}.items()}
    found = fit(data)
    assert found.name == USL
    assert found.law.coherency > 0
    assert 2 < found.law.peak < 8
    assert found.law(16) < found.law(4)


def test_it_is_the_minimum_of_relative_errors() -> None:
    """Kills: absolute errors, by which slow counts do not matter; a minimum that a step beside it undercuts."""
    rng = np.random.default_rng(1)
    measured = np.array([TRUE(count) for count in COUNTS]) * np.exp(0.05 * rng.standard_normal(len(COUNTS)))

    def error(law: Law) -> float:
        return sum((1 - value / law(count)) ** 2 for count, value in zip(COUNTS, measured, strict=True))

    found = least_squares(COUNTS, measured)
    best = error(found)
    for factor in (1 - 1e-3, 1 + 1e-3):
        assert error(Law(found.rate * factor, found.contention, found.coherency)) > best
        assert error(Law(found.rate, found.contention * factor, found.coherency)) > best
        assert error(Law(found.rate, found.contention, found.coherency * factor)) > best


def test_two_counts_are_amdahls() -> None:
    """Kills: a kappa out of two points; an interval, or silence, beyond them."""
    found = fit({1: [1.0, 1.02, 0.98], 2: [1.6, 1.61, 1.58]})
    assert found.name == AMDAHL
    assert "two counts" in found.why
    assert found.law.coherency == 0
    assert found.law(1) == pytest.approx((1.0 * 1.02 * 0.98) ** (1 / 3), rel=1e-12)
    inside, outside = found.predict(2), found.predict(8)
    assert inside.low < inside.value < inside.high
    assert (inside.beyond, inside.note) == (False, "within what was measured")
    assert outside.beyond
    assert math.isnan(outside.low) and math.isnan(outside.high)
    assert "upper bound" in outside.note and "no interval" in outside.note


def test_three_counts_leave_nothing_to_test() -> None:
    """Kills: residuals of 0 that are sold as a good fit."""
    found = fit(turns(TRUE, (1, 2, 4), 0.01, 5))
    assert found.name == USL
    assert "cannot speak against it" in found.why
    assert "nothing was left to test it" in found.predict(8).note
    assert fit(turns(TRUE, COUNTS, 0.01, 5)).predict(32).note == "beyond what was measured"


def test_superlinear_data_end_at_a_bound() -> None:
    """Kills: a negative contention, or one above 1."""
    found = fit({1: [1.0], 2: [2.2], 4: [4.8], 8: [10.0]})
    assert (found.law.contention, found.law.coherency) == (0, 0)
    assert found.law(8) < 10.0
    slower = fit({1: [2.0], 2: [1.5]})
    assert slower.law.contention == 1
    assert slower.law(2) > 1.5 * 1.1


def test_a_fit_is_of_the_geometric_mean() -> None:
    """Kills: a mean that one fast turn rules."""
    found = fit({1: [1.0, 4.0, 2.0], 2: [2.0, 8.0, 4.0], 4: [4.0, 16.0, 8.0]})
    assert found.counts == (1, 2, 4)
    assert found.law.rate == pytest.approx(2.0)


def test_turns_without_noise_have_an_interval_of_no_width() -> None:
    """Kills: an interval that comes from elsewhere than the turns."""
    found = fit(turns(TRUE, COUNTS, 0.0, 6)).predict(32)
    assert found.value == pytest.approx(TRUE(32), rel=1e-9)
    assert found.high - found.low == pytest.approx(0, abs=1e-9)


@pytest.mark.slow
def test_the_interval_covers() -> None:
    """Kills: an interval of single turns, or of normal quantiles on five turns: the first is twice too wide and covers
    always, the second covers 88 %."""
    covered, widths = 0, []
    for seed in range(400):
        found = fit(turns(TRUE, COUNTS, 0.03, 5, seed)).predict(24)
        covered += found.low <= TRUE(24) <= found.high
        widths.append(math.log(found.high / found.low))
    assert 0.91 <= covered / 400 <= 0.985
    assert 0.05 < float(np.median(widths)) < 1.0


def test_few_turns_have_no_interval() -> None:
    """Kills: an interval out of two turns."""
    found = fit(turns(TRUE, COUNTS, 0.02, 2)).predict(8)
    assert math.isnan(found.low)
    assert found.note == "fewer than 3 turns: no interval"


@pytest.mark.parametrize(
    "data", [{4: [1.0, 1.1]}, {1: [1.0], 2: [0.0]}, {0: [1.0], 1: [1.0]}, {1: [1.0], 2: [math.inf]}]
)
def test_what_no_law_can_be_fitted_to(data: dict[int, list[float]]) -> None:
    """Kills: a law through one point; a logarithm of 0."""
    with pytest.raises(RunError):
        fit(data)
