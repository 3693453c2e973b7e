"""Which executor is the fastest, and that it is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import ConfigError, RunError
from engine.experiment import Execution, Experiment
from engine.run.run import Run
from fedskew.cli.studies import tune
from fedskew.lab.executors import WAYS, chosen, default_way, study

SMALL = Experiment(
    name="small",
    rounds=3,
    data={"name": "fashion_mnist_sample", "train_samples": 120, "test_samples": 20},
    partition={"name": "iid", "clients": 4},
    model={"name": "logistic"},
    evaluation={"every": 1},
    execution={"actors": 0, "device": "cpu"},
)


def timed(**seconds: float) -> dict[str, list[float]]:
    return {name: [median, median, 100.0] for name, median in seconds.items()}


def test_the_fastest_by_its_median_is_chosen_where_it_is_clear() -> None:
    """Kills: the mean, the slowest, other bits for a difference that is noise."""
    assert chosen(timed(loop=2.0, block=1.0), "loop") == "block"
    assert chosen(timed(loop=1.0, block=2.0), "block") == "loop"
    assert chosen(timed(loop=1.0, block=0.97), "loop") == "loop"
    assert chosen(timed(loop=1.0, block=1.0, graph=0.5), "loop") == "graph"


def test_each_executor_runs_as_many_rounds() -> None:
    """Kills: an executor that is named and another one that runs; rounds of a stage before, or of the start."""
    said: list[str] = []
    found = study(SMALL, 2, said.append)
    assert list(found) == ["loop", "block"]
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in found.values())
    assert "block: round 4" in said and "block: round 5" not in said


def test_a_way_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one way that cannot compile and takes the others' times along."""
    opened = Run.open

    def refuses(experiment: Experiment, *given: Any) -> Run:
        if experiment.execution.executor == "block":
            raise RunError("a step cannot be compiled")
        return opened(experiment, *given)

    monkeypatch.setattr(Run, "open", refuses)
    assert list(study(SMALL, 1)) == ["loop"]


def test_two_stages_are_timed_in_the_last() -> None:
    """Kills: the rounds of the first stage taken for the last one's."""
    stages = [{"name": "first", "rounds": 3}, {"name": "last", "rounds": 9, "needs": ["first"]}]
    found = study(Experiment.from_mapping({**SMALL.to_mapping(), "stages": stages}), 1)
    assert all(len(rounds) == 1 for rounds in found.values())


def test_the_experiment_is_written_with_the_fastest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a file without the choice, or with anything else changed."""
    monkeypatch.setattr("fedskew.lab.executors.study", lambda *_: timed(loop=1.0, block=2.0))
    tune(SMALL, 2, tmp_path / "new" / "small.yaml")
    written = Experiment.from_yaml(tmp_path / "new" / "small.yaml")
    assert written == SMALL.override(["execution.executor=loop"])
    assert written.resolve().execution.executor == "loop"


def test_the_ways_of_a_card() -> None:
    """Kills: a way that the section refuses; a default that is named as another way."""
    assert list(WAYS) == ["loop", "block", "graph", "block_graph", "graph in lanes", "block_graph compiled"]
    for overrides in WAYS.values():
        SMALL.override(["execution.device=cuda", *overrides])
    graph = Execution(device="cuda", executor="graph")
    assert default_way(graph) == "graph" and default_way(graph.model_copy(update={"lanes": 8})) == "graph in lanes"


def test_what_cannot_be_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Kills: no rounds that divide by zero later; a folder that is overwritten."""
    with pytest.raises(ConfigError, match=r"--rounds=0: must be at least 1"):
        tune(SMALL, 0, tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match=r"is a folder"):
        tune(SMALL, 1, tmp_path)
