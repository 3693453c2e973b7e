"""The sweeps of ``make calibration`` are those that benchmarks/README.md describes."""

from __future__ import annotations

from pathlib import Path

from benchmarks import calibration
from engine.sweeps.named import load
from engine.sweeps.planning import plan
from tune_configs import SWEEPS


def test_its_sweeps_are_of_the_size_that_the_page_says() -> None:
    """Kills: a benchmark of half an hour that a change of a named sweep makes one of hours; a claim whose trials it
    does not run."""
    file = Path(calibration.__file__).resolve()
    found = {}
    for name in ("gain", "similarity"):
        sweep = load(f"{file}:{name}", "laptop", ["data.train_samples=2000"], SWEEPS).sweep
        trials = plan(sweep, dict)
        work = {
            (sum(stage.rounds for stage in trial.experiment.chain), trial.experiment.local.epochs) for trial in trials
        }
        found[name] = (len(trials), work)
        values = {axis: {str(one[axis]) for one in sweep.settings()} for axis in sweep.settings()[0]}
        for claim in sweep.claims:
            for side in (claim.better, claim.worse, claim.where):
                assert all(str(value) in values[axis] for axis, value in side.items()), claim.text
    assert found == {"gain": (18, {(12, 2)}), "similarity": (6, {(15, 10)})}
