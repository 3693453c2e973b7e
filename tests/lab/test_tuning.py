"""Sides that are tuned before a sweep: what is searched, what is chosen, who is given it, what is refused."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from engine.base.errors import ConfigError, RunError, RunFolderError
from engine.results.results import Axis, Results
from engine.sweeps import running
from engine.sweeps.definition import Asha, Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.options import How
from engine.sweeps.planning import plan
from engine.sweeps.running import SweepResult, reopened
from engine.sweeps.tuned import Tuned
from fedskew.lab.ledger import Entry, write
from fedskew.lab.ledger.recording import sweep_of
from fedskew.lab.sweeping import tuning
from fedskew.lab.sweeping.tuning import begin_second_best, choices, forget_failed, searching, with_choices
from fedskew.lab.tuned_sides import read, to_mappings
from tests.lab.test_claims import results
from tests.support import small_sweeps
from tests.support.small_sweeps import base

RATES = (1e-6, 0.1)  # of the small sweep's sides


def small() -> NamedSweep:
    return load(f"{small_sweeps.__file__}:tuned", "laptop", [], {})


class Searched:
    """What the searches of the sides come to: the accuracies of the two rates, in the order of the sides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *accuracies: tuple[float, float]) -> None:
        self.sweeps: list[NamedSweep] = []
        self._accuracies = accuracies
        monkeypatch.setattr(tuning, "load", self.load)

    def __call__(self, named: NamedSweep, path: Path) -> bool:
        self.sweeps.append(named)
        return len(self.sweeps) <= len(self._accuracies)

    def load(self, path: Path) -> Results:
        first, second = self._accuracies[int(path.name)]
        made = results({0.1: ([first, first], [second, second])})
        trials = made.trials.rename(columns={"mu": "local.lr"})
        trials["local.lr"] = [RATES[0], RATES[0], RATES[1], RATES[1]]
        trials["status"] = ["failed" if math.isnan(one) else "finished" for one in trials["last10_accuracy"]]
        axes = (Axis("local.lr", "local.lr", "grid", RATES, True), made.axes[1])
        return replace(made, trials=trials, axes=axes, seeds=(7,))


def test_each_side_is_searched_on_held_out_seeds_and_gets_its_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a search on the sweep's seeds or of the other side; one side's choice given to the other; the worst
    chosen; a candidate that failed and wins; a search that is made again on a folder that knows its choices."""
    named, folder = small(), SweepFolder(tmp_path)
    searched = Searched(monkeypatch, (0.8, 0.6), (math.nan, 0.5))
    sides = choices(named, folder, searched)
    assert sides is not None
    for one, name in zip(searched.sweeps, ("fedavg", "fedprox"), strict=True):
        trials = plan(one.sweep)
        assert [(t.experiment.value_of("algorithm.name"), t.seed, t.experiment.local.lr) for t in trials] == [
            (name, 7, RATES[0]), (name, 7, RATES[1])
        ]  # fmt: skip
        assert not one.sweep.claims and not one.sweep.tuned
    assert [side.chosen.values for side in sides] == [{"local.lr": RATES[0]}, {"local.lr": RATES[1]}]
    assert [one.mean for one in sides[1].candidates] == [0.5, None]
    assert "local.lr=1e-06, the best of 2 by" in sides[0].sentence

    def complete(setting: Any) -> dict[str, Any]:
        return with_choices(named.sweep, sides, named.sweep.base.replace(setting), setting)

    trials = [(t.experiment.value_of("algorithm.name"), t.experiment.local.lr) for t in plan(named.sweep, complete)]
    assert trials == [("fedavg", RATES[0]), ("fedprox", RATES[1])]
    assert choices(named, folder, searched) == sides
    assert len(searched.sweeps) == 2
    (tmp_path / "tuning.json").write_text(json.dumps({"sides": [{"where": {}}]}))
    with pytest.raises(RunFolderError, match=r"tuning.json cannot be read .*; delete it"):
        choices(named, folder, searched)


def test_a_search_that_is_cut_off_chooses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a choice among what was there when the sweep was killed; one where every candidate has failed."""
    assert choices(small(), SweepFolder(tmp_path), Searched(monkeypatch, (0.8, 0.6))) is None
    assert read(tmp_path) == ()
    with pytest.raises(RunError, match=r"no candidate of algorithm.name=fedavg has finished"):
        choices(small(), SweepFolder(tmp_path), Searched(monkeypatch, (math.nan, math.nan)))


def test_the_second_best_is_another_folder_of_the_same_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the best again; a folder of the best that is overwritten; choices of another sweep."""
    named, first = small(), SweepFolder(tmp_path / "first")
    how = How().to_mapping()
    with pytest.raises(ConfigError, match="is no folder of this sweep"):
        begin_second_best(named, first.path, None, how)
    first.create(named, how)
    with pytest.raises(ConfigError, match=r"has no tuning.json yet; run that sweep first"):
        begin_second_best(named, first.path, None, how)
    choices(named, first, Searched(monkeypatch, (0.8, 0.6), (0.4, 0.5)))
    second = begin_second_best(named, first.path, None, how)
    assert second == tmp_path / "first-second-best"
    assert [side.chosen.values["local.lr"] for side in read(second)] == [RATES[1], RATES[0]]
    assert "the second best of 2" in read(second)[0].sentence
    assert begin_second_best(named, first.path, second, how) == second  # it is gone on with
    with pytest.raises(ConfigError, match="is the folder of the best candidates; name another one"):
        begin_second_best(named, first.path, first.path, how)
    with pytest.raises(ConfigError, match="first-second-best: is of the second best candidates itself; name that of"):
        begin_second_best(named, second, None, how)


def test_the_second_best_of_an_entry_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a sensitivity that only the folder's owner can make; candidates of another sweep's entry; an entry of
    before that is taken for one without a second candidate; a file that is no entry."""
    monkeypatch.chdir(tmp_path)
    named, how = small(), How().to_mapping()
    (tmp_path / "first").mkdir()
    sides = choices(named, SweepFolder(tmp_path / "first"), Searched(monkeypatch, (0.8, 0.6), (0.4, 0.5)))
    definition = {**named.sweep.to_mapping(), "searched": to_mappings(sides or ())}
    nothing: dict[str, Any] = {"settings": "", "codes": {}, "versions": (), "machine": {}, "metrics": (), "trials": ()}
    asked = {"name": named.name, "profile": "laptop", "overrides": (), "digest": named.digest}
    entry = Entry(**asked, definition=definition, **nothing)
    path = write(tmp_path / "ledger", entry)
    made = begin_second_best(named, path, None, how)
    assert made.name == f"{named.name}-laptop-{named.digest}-second-best"
    assert [side.chosen.values["local.lr"] for side in read(made)] == [RATES[1], RATES[0]]
    assert choices(replace(named, rank=1), SweepFolder(made), Searched(monkeypatch)) == read(made)
    second = replace(entry, definition={**definition, "searched": to_mappings(read(made)), "choice": "second-best"})
    again = begin_second_best(named, write(tmp_path / "ledger", second), tmp_path / "again", how)  # as claims.md says
    assert read(again) == read(made)
    for changed, said in (
        (replace(entry, digest="0" * 12), "is no entry of this sweep"),
        (replace(entry, definition=named.sweep.to_mapping()), "has no candidates: it was recorded before"),
    ):
        write(path.parent, changed)
        with pytest.raises(ConfigError, match=said):
            begin_second_best(named, path, None, how)
    path.write_text("no entry")
    with pytest.raises(RunFolderError, match="cannot be read as an entry"):
        begin_second_best(named, path, None, how)


def test_a_second_best_that_is_killed_is_still_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the best candidates in a folder of the second best, which was killed before its choices were written, or
    whose choices were lost; a second best that never finished; choices of another search."""
    named, first, how = small(), SweepFolder(tmp_path / "first"), How().to_mapping()
    first.create(named, how)
    choices(named, first, Searched(monkeypatch, (0.8, 0.6), (0.4, 0.5)))
    second = SweepFolder(begin_second_best(named, first.path, None, how))
    (second.path / "tuning.json").unlink()
    again = second.with_added(named)
    second.create(again, how)  # as each start of a sweep does
    sides = choices(second.with_added(named), second, Searched(monkeypatch, (0.8, 0.6), (0.4, 0.5)))
    assert [side.chosen.values["local.lr"] for side in sides or ()] == [RATES[1], RATES[0]]
    text = (second.path / "tuning.json").read_text()
    (second.path / "tuning.json").write_text(text.replace("1e-06", "1e-05"))
    with pytest.raises(RunFolderError, match=r"tuning.json is of another search; delete it"):
        choices(again, second, Searched(monkeypatch))
    (first.path / "tuning.json").unlink()
    choices(named, first, Searched(monkeypatch, (0.8, math.nan), (0.4, 0.5)))
    with pytest.raises(ConfigError, match=r"has one candidate of algorithm.name=fedavg that finished"):
        begin_second_best(named, first.path, tmp_path / "other", how)


def test_candidates_that_died_are_not_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a choice among the others where the machine, not its rate, has ended a candidate."""
    searched, ends = Searched(monkeypatch, (0.8, math.nan), (0.4, 0.5)), [True, False]

    def search(one: NamedSweep, path: Path) -> bool:
        SweepFolder(path).write(TrialRecord("00001", {}, 0))
        SweepFolder(path).end("00001", "failed", "tried 4 times", died=ends.pop(0))
        return searched(one, path)

    with pytest.raises(RunError, match=r"1 candidates of algorithm.name=fedavg .*00001: tried 4 times.*--retry-failed"):
        choices(small(), SweepFolder(tmp_path), search)
    assert read(tmp_path) == ()
    searched, ends = Searched(monkeypatch, (0.8, math.nan), (0.4, 0.5)), [False, False]
    shutil.rmtree(tmp_path / "tuning")
    choices(small(), SweepFolder(tmp_path), search)
    assert read(tmp_path)[0].chosen.values["local.lr"] == RATES[0]


def test_failed_candidates_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: a candidate that ran out of memory once and is out for good; a search that is made again where all have
    finished, or nobody asked for it; trials with two choices, or left so without a word; a search where none was."""
    named, folder = small(), SweepFolder(tmp_path)
    folder.create(named, How().to_mapping())

    def tried(second: float, retry_failed: bool = True) -> tuple[int, float]:
        searched = Searched(monkeypatch, (0.8, second), (0.4, 0.5))

        def search(one: NamedSweep, path: Path) -> bool:
            path.mkdir(parents=True, exist_ok=True)
            return searched(one, path)

        if retry_failed:
            forget_failed(folder)
        choices(named, folder, search)
        return len(searched.sweeps), read(tmp_path)[0].chosen.values["local.lr"]

    assert [tried(math.nan), tried(0.9, retry_failed=False)] == [(2, RATES[0]), (0, RATES[0])]
    assert [tried(0.9), tried(0.7)] == [(2, RATES[1]), (0, RATES[1])]
    (tmp_path / "tuning.json").unlink()
    tried(math.nan)
    folder.write(TrialRecord("00000", {}, 0))
    assert tried(0.9) == (0, RATES[0])
    assert "has failed candidates of algorithm.name=fedavg, which are not tried again" in caplog.text
    for path in (tmp_path / "tuning", tmp_path / "trials"):
        shutil.rmtree(path)
    assert tried(0.9) == (0, RATES[0])  # as of the second best, which were searched elsewhere
    forgotten: list[SweepFolder] = []
    monkeypatch.setattr(tuning, "forget_failed", forgotten.append)
    monkeypatch.setattr(running, "run_sweep", lambda *_, **__: SweepResult(tmp_path, 4, {}, 0, 0, False))
    for retry_failed in (False, True):
        tuning.run_sweep(named, tmp_path, How(), retry_failed=retry_failed)
    assert [one.path for one in forgotten] == [tmp_path]


def test_a_search_is_told_from_its_sweep(tmp_path: Path) -> None:
    """Kills: a search that is resumed, or recorded, as if it were the sweep that it is for."""
    sweep, search = SweepFolder(tmp_path / "sweep"), SweepFolder(tmp_path / "sweep" / "tuning" / "0")
    for folder in (sweep, search):
        folder.create(small(), How().to_mapping())
    for refused in (lambda: reopened(search.path, {}), lambda: sweep_of(search.path)):
        with pytest.raises(RunFolderError, match=f"is a search of the sweep in {sweep.path}"):
            refused()


def test_candidates_are_compared_on_training_rows_that_are_held_out() -> None:
    """Kills: candidates that are scored on test images; a data set of the space that undoes it; verdicts on training
    rows; a digest that stays, or one that moves where nobody asks for it."""
    named = small()
    data = {"data": tune.grid_search([{"name": "fashion_mnist_sample"}])}
    apart = replace(named, sweep=replace(named.sweep, tuning_rows=0.2, space={**named.sweep.space, **data}))
    searched = [plan(searching(apart, side).sweep) for side in apart.sweep.tuned]
    assert {trial.experiment.data.validation for trials in searched for trial in trials} == {0.2}
    assert {trial.experiment.data.validation for trial in plan(apart.sweep)} == {None}
    assert replace(named, sweep=replace(named.sweep, tuning_rows=0.2)).digest != named.digest
    assert "tuning_rows" not in named.sweep.to_mapping()


GRID = {"local.lr": tune.grid_search([0.1, 0.2])}
ONE = Tuned({"mu": 0.0}, GRID)
BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"tuned": (ONE, Tuned({"mu": 1.0}, {"local.lr": tune.grid_search([1, 2, 3])}))},
        "has 3 candidates, and",
    ),
    ({"tuned": (ONE, ONE)}, "picks settings of another side; divide them"),
    ({"tuned": (Tuned({"mu": 0.5}, GRID),)}, "picks no setting of the sweep"),
    ({"tuned": (Tuned({"mu": 0.0}, {"local.lr": tune.uniform(0, 1)}),)}, "must be searched on a grid"),
    ({"tuned": (Tuned({"mu": 0.0}, {"local.lr": tune.grid_search([1])}),)}, "has nothing to choose from"),
    ({"tuned": (Tuned({"mu": 0.0}, {"mu": tune.grid_search([1, 2])}),)}, "tuned=mu: is set by the sweep's own mu"),
    (
        {"tuned": (Tuned({"mu": 0.0}, {"local.lr": tune.grid_search([1, 0.1, 1.0])}),)},
        r"local.lr=\[1, 0.1, 1.0\]: names a candidate twice",
    ),
    ({"tuned": (ONE,)}, r"tuned=mu=1: is of no side"),
    ({"tuned": (ONE,), "tuning_seeds": (3, 0)}, r"tuning_seeds=\[0\]: are seeds of the sweep, too"),
    ({"tuned": (ONE,), "tuning_seeds": ()}, "tuning_seeds=.*: must be whole numbers from 0 on"),
    ({"tuned": (ONE,), "scheduler": Asha(1)}, "is for sweeps of grids alone"),
    ({"tuned": (ONE,), "stop": {"accuracy": 0.5}}, "is for sweeps of grids alone"),
]


@pytest.mark.parametrize(("changes", "message"), BAD, ids=lambda value: str(value)[:30])
def test_what_cannot_be_tuned(changes: dict[str, Any], message: str) -> None:
    """Kills: one side that is searched more than the other, or alone; one candidate that counts as two; claims on seeds
    that chose; a wrong label."""
    with pytest.raises(ConfigError, match=message):
        Sweep(**{"base": base(), "space": {"mu": tune.grid_search([0.0, 1.0])}, **changes})


def test_tuning_is_part_of_what_a_sweep_is() -> None:
    """Kills: a folder that is gone on with by other candidates; a digest that moves where nothing is tuned."""
    named = small()
    assert replace(named, sweep=replace(named.sweep, tuning_seeds=(8,))).digest != named.digest
    alone = replace(named, sweep=replace(named.sweep, tuned=()))
    assert replace(alone, sweep=replace(alone.sweep, tuning_seeds=(8,))).digest == alone.digest
    assert searching(named, named.sweep.tuned[0]).digest != searching(named, named.sweep.tuned[1]).digest
