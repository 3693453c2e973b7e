"""The leaderboard of some folders: its cells, what is bold, and that every cell can be made again from its page."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import ConfigError, RunFolderError
from engine.experiment import Experiment
from engine.results.claims import PaperTable
from engine.results.frames import load_results
from fedskew.lab.comparing.intervals import interval
from fedskew.lab.comparing.ranking import settings_of
from fedskew.lab.comparing.ranks import critical_difference
from fedskew.lab.leaderboard import Board, board_of, write
from fedskew.lab.report.facts import facts
from fedskew.lab.report.paper_tables import paper_tables
from tests.support.scripting_page import keys
from tests.support.sweep_folders import ALPHA, BASE, MU, make_run, make_sweep

TWO_MU = {**MU, "values": [0.0, 0.1]}


def final(setting: Any, seed: int) -> float:
    """mu=0.1 is better by two points at the first alpha, and by nothing that three seeds could tell at the second."""
    gain = 0.02 + seed / 1000 if setting["alpha"] < 0.1 else (0.01, -0.01, 0.005)[seed]
    return 0.7 + seed / 50 + (gain if setting["mu"] else 0.0)


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("board") / "swept"
    return make_sweep(folder, axes=(TWO_MU, ALPHA), rounds=2, failed=[11], accuracy=final, client_rows=False)


@pytest.fixture(scope="module")
def board(swept: Path) -> Board:
    return board_of(load_results(swept).folders, "accuracy")


def test_cells_are_methods_by_tasks(board: Board, swept: Path) -> None:
    """Kills: a seed in another cell, labels of what does not differ, an interval of another mean, a trial that has
    failed in a cell, or left out without a word."""
    assert board.rows == ("fedprox(mu=0)", "fedprox(mu=0.1)")
    assert board.columns == ("fashion_mnist_sample, partition.alpha=0.05", "fashion_mnist_sample, partition.alpha=0.5")
    trials = load_results(swept).trials
    for (row, column), cell in board.cells.items():
        own = trials[(trials["mu"] == (0.0, 0.1)[row]) & (trials["alpha"] == (0.05, 0.5)[column])].dropna(
            subset=["accuracy"]
        )
        assert [run.name for run in cell.runs] == own["trial"].tolist()
        assert cell.mean == pytest.approx(own["accuracy"].mean())
        assert (cell.low, cell.high) == interval(own["accuracy"].tolist())
    assert [len(cell.runs) for cell in board.cells.values()] == [3, 3, 3, 2]
    assert board.left_out == ("1 of 12 trials of swept have not finished, or have no accuracy",)


def test_bold_is_what_seeds_cannot_tell_from_the_best(board: Board) -> None:
    """Kills: the best alone in bold, or whatever is near it; a smaller loss that counts as worse."""
    assert {place for place, cell in board.cells.items() if cell.best} == {(1, 0), (0, 1), (1, 1)}


def ranked(folder: Path, mus: list[float], alphas: list[float], failed: tuple[int, ...] = ()) -> Board:
    """A leaderboard of FedProx: the larger mu the better, at the last alpha the other way round."""

    def accuracy(setting: Any, seed: int) -> float:
        sign = -1 if setting["alpha"] == alphas[-1] and len(alphas) > 2 else 1
        return 0.5 + sign * 0.1 * mus.index(setting["mu"]) + seed / 100

    axes = ({**MU, "values": mus}, {**ALPHA, "values": alphas})
    made = make_sweep(folder, axes=axes, seeds=(0, 1), rounds=2, accuracy=accuracy, failed=failed, client_rows=False)
    board = board_of(load_results(made).folders, "accuracy")
    write(load_results(made).folders, folder / "board", "accuracy")
    return board


def test_methods_are_ranked_over_the_tasks_that_all_have(tmp_path: Path) -> None:
    """Kills: a rank of a task that a method lacks; the worst as 1; ranks of two methods or of one task; a difference
    for another number of tasks; JSON or a page without them."""
    # Of mu=0.01 both seeds at the third alpha have failed: the task is left out.
    board = ranked(tmp_path / "one", [0.0, 0.01, 0.1], [0.05, 0.5, 1.0, 5.0], failed=(12, 13))
    assert board.ranks is not None
    methods = ("fedprox(mu=0.1)", "fedprox(mu=0.01)", "fedprox(mu=0)")
    assert (board.ranks.settings, board.ranks.left_out) == (methods, 1)
    assert board.ranks.average == pytest.approx((5 / 3, 2.0, 7 / 3))
    assert board.ranks.of_block == ((1.0, 2.0, 3.0), (1.0, 2.0, 3.0), (3.0, 2.0, 1.0))
    assert board.ranks.critical == pytest.approx(critical_difference(3, 3))
    found = json.loads((tmp_path / "one" / "board" / "leaderboard.json").read_text())["ranks"]
    assert found.keys() == keys("Ranks of a leaderboard") and 0 < found["p"] < 1
    assert {one["method"]: round(one["rank"], 2) for one in found["methods"]} == dict(
        zip(methods, (1.67, 2.0, 2.33), strict=True)
    )
    assert [task.rpartition("=")[2] for task in found["tasks"]] == ["0.05", "0.5", "5"]
    page = (tmp_path / "one" / "board" / "leaderboard.html").read_text()
    assert "<h2>Mean ranks</h2>" in page and f"{found['critical_difference']:.2f} or more apart" in page
    assert page.count('<td data-v="1.0">1</td>') == 3 and "which so few tasks cannot show" not in page
    two = ranked(tmp_path / "two", [0.0, 0.01, 0.1], [0.05, 0.5])
    assert two.ranks is not None and two.ranks.average == (1.0, 2.0, 3.0) and two.ranks.critical > 2
    assert "which so few tasks cannot show" in (tmp_path / "two" / "board" / "leaderboard.html").read_text()
    for name, mus, alphas in (("methods", [0.0, 0.1], [0.05, 0.5]), ("tasks", [0.0, 0.01, 0.1], [0.5])):
        assert ranked(tmp_path / name, mus, alphas).ranks is None
        assert json.loads((tmp_path / name / "board" / "leaderboard.json").read_text())["ranks"] is None
        assert "Mean ranks" not in (tmp_path / name / "board" / "leaderboard.html").read_text()


def test_what_is_worse_by_the_same_on_every_seed_is_not_bold(tmp_path: Path) -> None:
    """Kills: an interval that is not a number taken for one that contains 0, on the leaderboard or in a report; few
    equal figures told apart."""

    def apart(setting: Any, seed: int) -> float:
        return 0.5 + (0.2 if setting["mu"] else 0.0)

    folder = make_sweep(tmp_path / "apart", axes=(TWO_MU,), rounds=2, accuracy=apart, client_rows=False)
    results = load_results(folder).folders["apart"]
    results.trials["accuracy"] = [apart({"mu": mu}, 0) for mu in results.trials["mu"]]
    found = board_of({"apart": results}, "accuracy").cells
    assert {place for place, cell in found.items() if cell.best} == {(1, 0)}
    (view,) = paper_tables(replace(results, tables=(PaperTable("Table 1", ("mu",), (), "accuracy"),)))
    assert {row[0].text: row[1].style == "best" for row in view.tables[0].rows} == {"0": False, "0.1": True}
    results.trials["accuracy"] = 0.5
    results = replace(results, metric="accuracy", tables=(PaperTable("Table 1", ("mu",), (), "accuracy"),))
    (view,) = paper_tables(results)
    assert [row[1].style for row in view.tables[0].rows] == ["best", "best"]
    told = {name: detail for name, _, detail in facts(results, settings_of(results))}
    assert told["best"].endswith("1 other not told apart from it")


def test_draws_of_the_partition_are_tasks(tmp_path: Path) -> None:
    """Kills: an axis that counts as repetitions of one cell; runs of one seed that are several in a mean and one in a
    comparison."""
    draw = {"name": "draw", "key": "partition.seed", "kind": "grid", "values": [0, 3], "log": False}
    folder = make_sweep(tmp_path / "draws", axes=(draw,), seeds=(0, 1), rounds=2, client_rows=False)
    found = board_of(load_results(folder).folders)
    assert len(found.columns) == 2 and [len(cell.runs) for cell in found.cells.values()] == [2, 2]
    runs = [make_run(tmp_path / f"r{own}", Experiment(**BASE).replace({"partition.seed": own})) for own in (0, 1)]
    with pytest.raises(ConfigError, match=r"folders=r0:\w+, r1:\w+: are one method and task on one seed, by other"):
        board_of(load_results(*runs).folders)


def test_every_cell_is_made_again_by_its_command(swept: Path, tmp_path: Path) -> None:
    """Kills: a config of another run, a command that names no file, a hash that is another's; bytes that change."""
    folders = load_results(swept).folders
    page = write(folders, tmp_path / "board", "accuracy")
    text, found = page.read_text(encoding="utf-8"), json.loads((tmp_path / "board" / "leaderboard.json").read_text())
    runs = [run for cell in found["cells"] for run in cell["runs"]]
    assert len(runs) == 11
    for run in runs:
        words = run["command"].split()
        assert words[:2] == ["fedskew", "run"] and words[2] == run["config"]
        experiment = Experiment.from_yaml(tmp_path / "board" / run["config"])
        assert (experiment.digest, experiment.seed) == (run["experiment"], run["seed"])
        assert experiment == folders["swept"].experiment(run["trial"])
        for shown in (run["command"], run["experiment"], run["weights"][:16], f'href="{run["config"]}"'):
            assert shown in text
    before = {path.name: path.read_bytes() for path in (tmp_path / "board").rglob("*.*")}
    write(load_results(swept).folders, tmp_path / "board", "accuracy")
    assert {path.name: path.read_bytes() for path in (tmp_path / "board").rglob("*.*")} == before


def test_one_computation_counts_once(tmp_path: Path) -> None:
    """Kills: a seed that is counted twice, other bits of one experiment that are averaged away; a stranger's name on
    the page that is markup."""
    for name in ("<b>one", "two"):
        make_run(tmp_path / name, final=0.7, client_rows=False)
    folders = [tmp_path / "<b>one", tmp_path / "two"]
    (cell,) = board_of(load_results(*folders).folders).cells.values()
    assert len(cell.runs) == 1
    assert "<b>one" not in write(load_results(*folders).folders, tmp_path / "board").read_text().split("<main>")[1]
    path = tmp_path / "two" / "summary.json"
    summary = json.loads(path.read_text()) | {"weights_sha256": "f" * 64}
    path.write_text(json.dumps(summary))
    with pytest.raises(RunFolderError, match="are one experiment by one code with other bits"):
        board_of(load_results(*folders).folders)
    path.write_text(json.dumps(summary | {"versions": {"code": "other"}}))
    assert "by two codes with other bits" in board_of(load_results(*folders).folders).left_out[0]
    path.unlink()
    with pytest.raises(ConfigError, match="have no finished trial"):
        board_of(load_results(folders[1]).folders)


def test_the_command_writes_it(call: Any, swept: Path, tmp_path: Path) -> None:
    code, out, err = call("leaderboard", str(swept), "--json")
    assert code == 0 and "leaderboard/leaderboard.html" in err
    assert json.loads(out).keys() == keys("leaderboard")
    assert all(cell.keys() == keys("A cell of a leaderboard") for cell in json.loads(out)["cells"])
    assert json.loads(out) == json.loads((tmp_path / "leaderboard" / "leaderboard.json").read_text())
