"""The sweeps of the board."""

from __future__ import annotations

import pytest

from algorithms import ALGORITHMS
from engine.base.errors import ConfigError
from engine.base.own_modules import is_ours
from engine.sweeps.named import PROFILES, load
from engine.sweeps.planning import plan
from fedskew.lab.sweeping.tuning import searching
from tests.support.loops import each
from tune_configs import SWEEPS, board, fair

METHODS = {
    "fmnist_dir01": board.SHARED,
    "fmnist_dir05": board.SHARED,
    "fmnist_two_classes": board.SHARED,
    "cifar10_dir01": board.ON_CIFAR,
    "personal_dir01": board.PERSONAL,
    "personal_two_classes": board.PERSONAL,
}


def test_every_method_is_on_a_board_or_it_is_said_why() -> None:
    """Kills: a method that is forgotten; one that is left out and is there all the same; a sweep that no one lists."""
    ours = {name for name, kind in ALGORITHMS.items() if is_ours(kind)}
    shown = {*board.SHARED, *board.PERSONAL, *board.ON_CIFAR}
    assert shown | {*board.LEFT_OUT} == ours
    assert not shown & {*board.LEFT_OUT}
    assert SWEEPS["board"] == tuple(METHODS)


@pytest.mark.parametrize("profile", PROFILES)
@each("name", METHODS)
def test_methods_differ_in_what_is_searched_alone(name: str, profile: str) -> None:
    """Kills: a method that is left out, has more seeds or candidates, another network, other data, rounds or measures;
    a candidate that is scored on test images; seeds that test on the same rows."""
    sweep = load(f"board.{name}", profile, [], SWEEPS).sweep
    verdicts = [(trial.seed, trial.experiment) for trial in plan(sweep)]
    assert [one.to_mapping()["algorithm"]["name"] for _, one in verdicts] == 5 * [*METHODS[name]]
    assert all(one.data.test_part == seed for seed, one in verdicts) and sweep.seeds == board.SEEDS
    apart = {"algorithm": None}
    assert len({str({**one.to_mapping(), **apart}) for _, one in verdicts}) == 5
    for side in sweep.tuned:
        assert len(side.candidates()) == 12


@each("name", METHODS)
def test_candidates_are_scored_on_rows_that_nobody_trains_on(name: str) -> None:
    """Kills: a candidate that is scored on test images, is there twice, or has a seed of the board."""
    named = load(f"board.{name}", "laptop", [], SWEEPS)
    for side in named.sweep.tuned[:2]:
        trials = plan(searching(named, side).sweep)
        assert len(trials) == len({trial.experiment.digest for trial in trials}) == 12 * 2
        assert {trial.experiment.data.validation for trial in trials} == {0.1}
        assert not {trial.seed for trial in trials} & {*fair.SEEDS, *board.SEEDS}


def test_a_method_of_ones_own_has_as_many_candidates() -> None:
    """Kills: a side with fewer rates than its fields leave room for, or more; a task that is none."""
    for fields in ({}, {"algorithm.mu": (0.1, 1.0)}, {"algorithm.mu": (0.01, 0.1, 1.0)}):
        found = board.beside_fedavg("laptop", "fedprox", fields)
        assert [len(side.candidates()) for side in found.tuned] == [12, 12]
    for fields in ({"algorithm.mu": (0.1, 0.2, 0.5, 1.0, 2.0)}, {board.RATE: (0.1, 0.2)}):
        with pytest.raises(ConfigError, match="do not come to twelve candidates"):
            board.beside_fedavg("laptop", "fedprox", fields)
    with pytest.raises(ConfigError, match="is none of the board"):
        board.beside_fedavg("laptop", "fedprox", task="mnist")
