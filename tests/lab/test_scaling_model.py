"""The model of a round beside a simulated cluster, of which the truth is known."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.experiment import Experiment
from fedskew.lab.scaling.model import Parts, fit
from tests.support.scaling_clock import SMALL, Clock, simulated, study

PARTS = Parts(training=8.0, longest=1.0, transfer=0.5, addition=1.5, alone={"draw": 0.1, "aggregation": 0.4})


def test_a_round_by_hand() -> None:
    """Kills: a part that counts twice or not at all; the longest block left out of either time; parts that run side by
    side and are added up in the least time."""
    assert PARTS.bounds(2) == (0.5 + 4.0, pytest.approx(0.5 + 4.0 + 0.5 + 2.0))
    assert PARTS.bounds(16) == (0.5 + 1.5, pytest.approx(0.5 + 0.5 + 15 / 16 + 2.0))
    assert PARTS.bounds(1)[1] == 0.5 + 8.0 + 2.0
    assert (PARTS.binding(2), PARTS.binding(16)) == ("the workers' training", "the additions of uploads")
    assert PARTS.enough == 6 and PARTS.binding(6) == "the additions of uploads" != PARTS.binding(5)
    few = Parts(8.0, 4.0, 0.0, 1.0)
    assert few.binding(16) == "the longest block" and few.bounds(16)[0] == 4.0
    assert Parts(1.0, 1.0, 0.0, 1.0, {"aggregation": 2.0}).binding(1) == "the aggregation"
    assert Parts(1.0, 0.0, 0.0, 0.0).enough == math.inf


def test_parts_of_another_round() -> None:
    """Kills: sums that grow with the blocks where the actors add; work that grows; a longest block that stays."""
    finer = replace(PARTS, alone={"draw": 0.1, "broadcast": 0.3}, rest=0.5).scaled(blocks=4, sums=2)
    assert (finer.training, finer.longest, finer.transfer, finer.addition) == (8.0, 0.25, 1.0, 3.0)
    assert (finer.alone, finer.rest) == ({"draw": 0.1, "broadcast": 1.2}, 2.0)
    turns, blocks = [(2, PARTS, 9.0)], {2: 8, 8: 32}
    for one_sum, transfer in ((False, 2.0), (True, 0.5)):
        found = fit(turns, lambda actors: blocks[actors], one_sum)
        least, most = replace(PARTS, longest=0.25, transfer=transfer, addition=3 * transfer).bounds(8)
        rest = found.parts[2].rest * 4
        assert found.predict(8).value == pytest.approx(1 / (least + found.apart * (most + rest - least)))


@pytest.mark.parametrize("seed", range(40))
def test_rounds_lie_between_the_least_time_and_the_most(seed: int) -> None:
    """Of blocks of any lengths, on any number of actors. Kills: a bound that a schedule breaks."""
    rng = np.random.default_rng(seed)
    blocks = (rng.pareto(1.5, size=int(rng.integers(1, 60))) + 0.1).tolist()
    take_in, add = rng.exponential([0.05, 0.2])
    parts = Parts(sum(blocks), max(blocks), take_in * len(blocks), add * len(blocks))
    for actors in (1, 2, 3, 8, 64):
        least, most = parts.bounds(actors)
        assert least * (1 - 1e-12) <= simulated(actors, blocks, take_in, add)[0] <= most * (1 + 1e-12)


@pytest.mark.parametrize(("measured", "turns"), [((8,), 1), ((1, 8), 3), ((16, 32), 3)])
def test_a_cluster_whose_driver_is_the_limit(tmp_path: Path, measured: tuple[int, ...], turns: int) -> None:
    """512 actors, 1,024 blocks of 2 s, 0.19 s for the driver to add one: 0.0051 rounds/s, which a law of actors alone
    took for 0.25. Kills: additions that more actors are said to share; an interval that leaves the truth out; a limit
    that is not named, or too early."""
    larger = {"partition": {"name": "iid", "clients": 1024}, "participation": {"count": 1024}}
    execution = {**SMALL["execution"], "block": 1, "executor": "loop"}
    experiment = Experiment(**{**SMALL, **larger, "execution": execution})
    found = study(tmp_path / "s", measured, 1024, turns, experiment=experiment)
    found.measure(Clock(client=2.0, add=0.19, take_in=0.0, noise=0.01))
    fitted = found.fitted()
    assert fitted is not None
    at_8, at_512 = fitted.predict(8), fitted.predict(512)
    truth = 1 / (simulated(512, [2.0] * 1024, 0.0, 0.19)[0] + 0.006)
    assert truth == pytest.approx(0.0051, abs=5e-5)
    assert at_512.low <= truth <= at_512.high and at_512.value == pytest.approx(truth, rel=0.05)
    assert at_512.high / at_512.low < 1.2
    assert at_512.note.startswith("bound by the additions of uploads; beyond what was measured")
    assert at_8.note.startswith("bound by the workers' training")
    assert fitted.parts[max(measured)].enough == 11


def test_how_far_apart_is_measured() -> None:
    """Kills: a share of the least time instead of what lies between; one below 0."""
    least, most = PARTS.bounds(2)
    found = fit([(2, PARTS, least + 0.25 * (most - least))])
    assert found.apart == pytest.approx(0.25, rel=1e-12)
    assert found.predict(2).value == pytest.approx(1 / (least + 0.25 * (most - least)))
    assert fit([(2, PARTS, 0.9 * least)]).apart == 0
    slow = fit([(2, PARTS, 2 * most)])  # something that the parts do not hold, and more actors may not share
    assert slow.apart == 1 and slow.parts[2].rest == pytest.approx(most)
    assert slow.predict(2).low == slow.predict(2).value == pytest.approx(1 / (2 * most))
    assert slow.predict(64).low == pytest.approx(1 / (PARTS.bounds(64)[1] + most))


def test_parts_are_those_of_the_next_count_below() -> None:
    """Of the median turn. Kills: cores that are shared, and are said to be as fast as one alone; a mean that one slow
    turn rules."""
    slower = Parts(12.0, 1.0, 0.5, 1.5)
    found = fit([(1, PARTS, 9.0), (4, slower, 4.0), (4, slower, 4.1), (4, Parts(99.0, 9.0, 9.0, 9.0), 40.0)])
    assert found.parts == {1: PARTS, 4: slower}, "the rounds lay within the bounds"
    assert [found.near(actors) for actors in (1, 3, 4, 64)] == [1, 1, 4, 4]
    assert fit([(4, slower, 4.0)]).near(2) == 4
    assert [found.predict(actors).beyond for actors in (1, 3, 5)] == [False, False, True]


def test_noise_needs_three_turns() -> None:
    """Kills: an interval that hides what turns lie apart; one out of two turns; one of the turns' mean, in which two of
    five further turns would not lie."""
    least, most = PARTS.bounds(2)
    rng = np.random.default_rng(0)

    def turns(count: int) -> list[tuple[int, Parts, float]]:
        return [(2, PARTS, (least + most) / 2 * math.exp(0.2 * rng.standard_normal())) for _ in range(count)]

    assert math.isnan(fit(turns(2)).noise)
    assert "fewer than 3 turns" in fit(turns(2)).predict(2).note
    inside = []
    for _ in range(200):
        found = fit(turns(5))
        middle = 1 / found.predict(2).value
        inside += [abs(math.log(took / middle)) <= found.noise for _, _, took in turns(5)]
        one = found.predict(2)
        assert one.low < min(1 / most, one.value) and one.high > 1 / least
    assert 0.9 <= float(np.mean(inside)) <= 0.99
