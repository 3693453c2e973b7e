"""The sweeps of eleven methods beside FedAvg."""

from __future__ import annotations

import pytest

from engine.sweeps.named import PROFILES, load
from engine.sweeps.planning import plan
from fedskew.lab.sweeping.tuning import searching
from tests.support.loops import each
from tune_configs import SWEEPS

NAMES = {
    "methods.shared": ["fedavg", "fedsam", "feddecorr", "fedcm", "qfedavg", "fedetf", "fedexp", "fedacg"],
    "methods.personal": ["fedavg", "local", "fedala", "ifca", "apfl", "lg_fedavg"],
}


@pytest.mark.parametrize("profile", PROFILES)
@each("name", NAMES)
def test_methods_differ_in_what_is_searched_alone(name: str, profile: str) -> None:
    """Kills: a method that is left out, has more seeds or candidates, other data, rounds or measures; a candidate that
    is scored on test images."""
    named = load(name, profile, [], SWEEPS)
    verdicts = [trial.experiment.to_mapping() for trial in plan(named.sweep)]
    assert [one["algorithm"]["name"] for one in verdicts] == 5 * NAMES[name]
    assert len({str({**one, "algorithm": None}) for one in verdicts}) == 5
    for side in named.sweep.tuned:
        trials = plan(searching(named, side).sweep)
        assert len(trials) == 6 * 2
        assert {trial.experiment.data.validation for trial in trials} == {0.1}
        assert len({trial.experiment.digest for trial in trials}) == len(trials)
