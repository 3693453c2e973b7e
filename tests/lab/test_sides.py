"""Runs and sweeps compared: what differs in config, differences paired by seed, and why what is not paired is not."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import ConfigError, RunFolderError
from engine.experiment import Experiment
from engine.results.frames import load_results
from engine.results.loading import load
from fedskew.lab.comparing.intervals import difference
from fedskew.lab.comparing.sides import Comparison, compare, config_keys, keys_of_trials
from tests.support.scripting_page import keys
from tests.support.sweep_folders import ALPHA, BASE, MU, WARM_UP, make_run, make_sweep

TWO_MU = {**MU, "values": [0.0, 0.1]}


def compared(*folders: Path, metrics: tuple[str, ...] = ()) -> Comparison:
    return compare(load_results(*folders).folders, metrics)


def run_of(folder: Path, seed: int, final: float, **changes: Any) -> Path:
    return make_run(folder, Experiment(**{**BASE, "rounds": 2, "seed": seed}).replace(changes), final)


def test_config_keys_are_those_that_decide() -> None:
    """Kills: a key that moves no result among the differences, one that does left out, a stage without its name."""
    plain = config_keys(Experiment(**BASE).to_mapping())
    moved = {"name": "other", "seed": 3, "partition.seed": 9, "execution.actors": 2, "checkpoint.every": 3}
    assert config_keys(Experiment(**BASE).replace(moved).to_mapping()) == plain
    assert plain["algorithm.mu"] == 0.0 and plain["rounds"] == 12 and plain["execution.precision"] == "float32"
    staged = Experiment(**{**BASE, "stages": WARM_UP}).to_mapping()
    keys = config_keys(staged)
    assert keys["stages.warm-up.rounds"] == 5 and "rounds" not in keys and keys["algorithm.mu"] == 0.0
    staged["stages"][1]["algorithm"] = staged["stages"][0]["algorithm"]
    assert not [name for name in config_keys(staged) if name.startswith("algorithm")]


def test_runs_that_differ_in_seeds_are_one_side(tmp_path: Path) -> None:
    """Kills: seeds that are not paired, or are sides since each tests on rows of its own, a pair of other seeds, a
    difference of the wrong sign, means over seeds of no pair."""
    finals = {0: (0.7, 0.75), 1: (0.6, 0.68), 2: (0.65, 0.71), 3: (0.9, None)}
    rows = {seed: {"data.test_samples": 1_000, "data.test_part": seed} for seed in finals}
    one = [run_of(tmp_path / f"a{seed}", seed, first, **rows[seed]) for seed, (first, _) in finals.items()]
    two = [
        run_of(tmp_path / f"b{seed}", seed, other, **rows[seed], **{"algorithm.mu": 0.1})
        for seed, (_, other) in finals.items()
        if other is not None
    ]
    found = compared(*one, *two, metrics=("accuracy",))
    assert [side.name for side in found.sides] == ["a0 and 3 more", "b0 and 2 more"]
    assert found.config == {"algorithm.mu": (("0",), ("0.1",))}
    (pair,) = found.pairs
    accuracy = {folder.name: load(folder).trials["accuracy"].iloc[0] for folder in [*one, *two]}
    wanted = difference([accuracy[f"b{seed}"] - accuracy[f"a{seed}"] for seed in range(3)])
    assert pair.seeds == (0, 1, 2) and pair.difference > 0.02
    assert (pair.difference, pair.low, pair.high, pair.p) == (wanted.mean, wanted.low, wanted.high, wanted.p)
    assert pair.mean_first == pytest.approx(sum(accuracy[f"a{seed}"] for seed in range(3)) / 3)
    assert pair.mean_second - pair.mean_first == pytest.approx(pair.difference)
    assert pair.low < wanted.mean < pair.high
    assert (pair.equal_weights, pair.equal_partitions) == (0, 3)


def test_two_runs_are_compared_in_all_they_have(tmp_path: Path) -> None:
    """Kills: equal bits, another seed or another partition without a word; an interval of one pair."""
    one, same = run_of(tmp_path / "one", 0, 0.7), run_of(tmp_path / "same", 0, 0.7)
    other, far = run_of(tmp_path / "other", 0, 0.8, **{"partition.alpha": 9.0}), run_of(tmp_path / "far", 1, 0.7)
    found = compared(one, same, other)
    first = {pair.second: pair for pair in found.pairs if pair.metric == "accuracy"}
    assert (first["same"].equal_weights, first["same"].difference) == (1, 0.0)
    assert (first["other"].equal_weights, first["other"].equal_partitions) == (0, 0)
    assert {pair.metric for pair in found.pairs} >= {"accuracy", "last10_accuracy", "loss", "seconds", "floats_up"}
    assert math.isnan(found.pairs[0].low)
    apart = compared(one, far)
    assert not apart.pairs and apart.unpaired == ("no seed has finished in both (one: [0], far: [1])",)


def test_cells_of_sweeps_are_paired_by_their_config(tmp_path: Path) -> None:
    """Kills: cells paired by their numbers, an axis of one sweep alone that counts as another cell everywhere, a
    p-value that is not adjusted for the cells, unfinished trials in a pair."""
    first = make_sweep(
        tmp_path / "first", axes=(TWO_MU, ALPHA), seeds=(0, 1, 2), failed=[0], rounds=2, client_rows=False
    )
    gain = make_sweep(
        tmp_path / "gain",
        axes=({**ALPHA, "values": [0.5, 0.05, 5.0]},),
        seeds=(2, 1, 0, 7),
        rounds=2,
        client_rows=False,
        accuracy=lambda setting, seed: 0.5 + setting["alpha"] / 100 + seed / 1000,
    )
    found = compared(first, gain)
    cells = {pair.cell: pair for pair in found.pairs}
    assert set(cells) == {"mu=0, alpha=0.05", "mu=0, alpha=0.5"}  # the second sweep's mu is 0
    assert cells["mu=0, alpha=0.05"].seeds == (1, 2) and cells["mu=0, alpha=0.5"].seeds == (0, 1, 2)
    trials: Any = dict(list(load_results(first, gain).trials.groupby("source")))
    at = {name: frame[frame["alpha"] == 0.5].set_index("seed")["last10_accuracy"] for name, frame in trials.items()}
    mine = trials["first"][(trials["first"]["alpha"] == 0.5) & (trials["first"]["mu"] == 0)]
    mine = mine.set_index("seed")["last10_accuracy"]
    wanted = difference([at["gain"][seed] - mine[seed] for seed in (0, 1, 2)])
    one = cells["mu=0, alpha=0.5"]
    assert (one.difference, one.low, one.high, one.p) == (wanted.mean, wanted.low, wanted.high, wanted.p)
    assert cells["mu=0, alpha=0.5"].p_holm == pytest.approx(2 * wanted.p)
    told = "; ".join(found.unpaired)
    assert "trial 00000 of first is failed (RunError" in told
    assert "2 cells are in first and not in gain: mu=0.1, alpha=0.05, mu=0.1, alpha=0.5" in told
    assert "1 cell is in gain and not in first: alpha=5" in told


def test_the_draw_of_the_partition_can_be_an_axis(tmp_path: Path) -> None:
    """Kills: trials of one seed and two draws that are one cell, so that a pair drops one of them; a draw of the
    partition or a part of the test rows that follows from the seed, or is the same for all, as a key."""
    draw = {"name": "draw", "key": "partition.seed", "kind": "grid", "values": [0, 3], "log": False}
    one, two = (
        make_sweep(tmp_path / name, axes=(draw,), seeds=(0, 1), rounds=2, client_rows=False, base={"name": name})
        for name in ("one", "two")
    )
    found = compared(one, two)
    assert [(pair.cell, pair.seeds) for pair in found.pairs] == [("draw=0", (0, 1)), ("draw=3", (0, 1))]
    plain = Experiment(**BASE).replace({"data.test_samples": 100})
    for draws in ({0: 5, 1: 6}, {0: 5, 1: 5}):
        for name in ("partition.seed", "data.test_part"):
            made = {str(seed): plain.replace({"seed": seed, name: own}) for seed, own in draws.items()}
            keys = keys_of_trials({name: one.to_mapping() for name, one in made.items()})
            assert keys["0"] == keys["1"] == config_keys(made["0"].to_mapping())
            shared = keys["0"] == config_keys(plain.to_mapping())
            assert shared == (name == "partition.seed")  # one part for all is another task than a part for each


def test_after_many_looks_there_is_no_p(tmp_path: Path) -> None:
    """Kills: a p of one look beside an interval of many."""
    one = make_sweep(tmp_path / "one", axes=(ALPHA,), rounds=2, client_rows=False)
    two = make_sweep(tmp_path / "two", axes=(ALPHA,), rounds=2, client_rows=False, looks="repeatedly")
    assert all(math.isnan(pair.p) and math.isnan(pair.p_holm) for pair in compared(one, two).pairs)


def test_sweeps_without_a_common_cell_say_what_is_apart(tmp_path: Path) -> None:
    """Kills: an empty table without a reason."""
    axes = [({**ALPHA, "values": values},) for values in ([0.05, 0.5], [1.0, 5.0])]
    one, two = (make_sweep(tmp_path / f"s{n}", axes=axis, seeds=(0,), rounds=1) for n, axis in enumerate(axes))
    found = compared(one, two)
    assert not found.pairs
    told = "they have no common values of partition.alpha (s0: 0.05, 0.5; s1: 1, 5)"
    assert found.unpaired[-1] == f"no cell of s1 is one of s0: {told}"


def test_a_figure_that_one_side_lacks_is_told(tmp_path: Path) -> None:
    """Kills: a pair without the figure that is left out in silence; a seed that is said not to have finished; a
    sentence for each figure, or on figures that neither of two runs has."""
    one, two = (
        make_sweep(
            tmp_path / name,
            axes=(TWO_MU,),
            seeds=(0, 1, 2),
            client_rows=False,
            target_accuracy=0.6,
            accuracy=lambda setting, seed, low=low: 0.4 if (setting["mu"], seed) in low else 0.8,
        )
        for name, low in (("one", [(0.1, 1)]), ("two", [(0.0, 0), (0.1, 1), (0.0, 2), (0.0, 1)]))
    )
    found = compared(one, two, metrics=("accuracy", "rounds_to_target"))
    pairs = {(pair.metric, pair.cell): pair.seeds for pair in found.pairs}
    assert pairs == {
        ("accuracy", "mu=0"): (0, 1, 2),
        ("accuracy", "mu=0.1"): (0, 1, 2),
        ("rounds_to_target", "mu=0.1"): (0, 2),
    }
    assert found.unpaired == (
        "two has no rounds_to_target on seeds 0, 1, 2 at mu=0, and is left out there",
        "one has no rounds_to_target on seed 1 at mu=0.1, and is left out there",
        "two has no rounds_to_target on seed 1 at mu=0.1, and is left out there",
    )
    plain = run_of(tmp_path / "plain", 0, 0.7)
    own = make_run(tmp_path / "own", Experiment(**{**BASE, "rounds": 2}), 0.7, personal=("post_server",))
    assert not compared(plain, run_of(tmp_path / "same", 0, 0.7)).unpaired
    (told,) = compared(plain, own).unpaired
    assert told.startswith("plain has no personal_accuracy, personal_last10_accuracy, ")


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    """Kills: a comparison of a folder with itself, of a metric that is none, with a sweep that has not begun."""
    one = run_of(tmp_path / "one", 0, 0.7)
    with pytest.raises(ConfigError, match="name two or more"):
        compared(one)
    with pytest.raises(ConfigError, match="did you mean 'accuracy'"):
        compared(one, run_of(tmp_path / "two", 0, 0.7), metrics=("acuracy",))
    empty = make_sweep(tmp_path / "empty", axes=(), seeds=(0,), failed=[0])
    with pytest.raises(RunFolderError, match="no trial that has begun"):
        compared(one, empty)


def test_the_command_shows_and_prints_it(call: Any, tmp_path: Path) -> None:
    """Kills: a table without the interval, JSON with what is no number, a reason that is not printed."""
    axes = (TWO_MU,)
    a = make_sweep(tmp_path / "a", axes=axes, seeds=(0, 1, 2), rounds=2)
    b = make_sweep(
        tmp_path / "b",
        axes=axes,
        seeds=(0, 1, 2, 3),
        rounds=2,
        killed=[0],
        accuracy=lambda setting, seed: 0.9 + seed / 100,
        base={"local": {"lr": 0.5}},
    )
    code, out, _ = call("compare", "a", "b")
    assert code == 0 and "local.lr" in out and "b less a, paired by seed" in out and "95 %" in out
    assert "not paired: 1 trial of b: running (00000)" in out and "no difference" in out
    code, out, _ = call("compare", "a", "b", "--json", "--metric", "loss")
    found = json.loads(out)
    assert found.keys() == keys("compare")
    assert all(pair.keys() == keys("A pair") for pair in found["pairs"])
    assert found["config"] == {"local.lr": {"a": ["0.05"], "b": ["0.5"]}}
    assert [(pair["cell"], pair["seeds"]) for pair in found["pairs"]] == [("mu=0", [1, 2]), ("mu=0.1", [0, 1, 2])]
    assert {pair["metric"] for pair in found["pairs"]} == {"loss"} and a != b


def test_a_folder_may_be_named_like_a_column(call: Any, tmp_path: Path) -> None:
    """Kills: rows that are dictionaries by their header, so that folders "seeds" and "difference" show no accuracy."""
    for name, final in (("seeds", 0.7), ("difference", 0.8)):
        run_of(tmp_path / name, 0, final)
    code, out, _ = call("compare", "seeds", "difference", "--metric", "seconds", "--metric", "rounds")
    head = next(line for line in out.splitlines() if line.split().count("seeds") == 2)
    assert code == 0 and head.split().count("difference") == 2
    assert "seconds (s)  0.5    0.5         0 s         0" in out  # of either side, the difference, the seed
