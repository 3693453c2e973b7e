"""A round on paper, beside arithmetic by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.base.errors import ConfigError
from engine.record.run_folder import RunFolder
from fedskew.lab.scaling import plan
from fedskew.lab.scaling.plan import on_paper
from tests.support.scripting_page import keys
from tests.support.sweep_folders import make_run
from tests.support.tiny import drive, experiment

RESNET18 = 11_173_962 + 9_600  # parameters and floating buffers
CLUSTER = {"nodes": 100, "gpus": 8, "clients": 10_000, "model": "resnet18"}


@pytest.mark.parametrize(
    ("block", "blocks", "actors_add", "nodes_take"),
    [("auto", 5000, 4 + 2 + 11, 25 + 13 + 7 + 4 + 2 + 8), (12, 834, 10, 5 + 3 + 2 + 7), (1, 10_000, 24, 50 + 59)],
)
def test_a_network_whose_uploads_the_actors_add(block: Any, blocks: int, actors_add: int, nodes_take: int) -> None:
    """800 actors add at once, and each of 100 nodes takes in one sum at once. Kills: a driver that gets a sum of each
    block; a tree of which all additions go on at once; float32 sums; bits for bytes."""
    paper, of_sum = on_paper({**CLUSTER, "block": block}), 8 * RESNET18
    assert (paper["parameters"], paper["blocks"], paper["actors"]) == (RESNET18, blocks, 800)
    assert (paper["bytes_in"], paper["bytes_down"]) == (of_sum, 100 * 4 * RESNET18)
    seconds = paper["seconds"]
    assert seconds["the additions of uploads"] == pytest.approx(actors_add * RESNET18 / 1.3e8)
    assert seconds["the results' way into the driver"] == pytest.approx((1 + nodes_take) * of_sum * 8 / 10e9)
    assert seconds["the broadcast"] == pytest.approx(100 * 4 * RESNET18 * 8 / 10e9)
    assert paper["binding"] == "the workers' training"
    assert paper["least"] < paper["most"]
    wider = on_paper({**CLUSTER, "block": block, "bandwidth": 25})["seconds"]
    assert wider["the results' way into the driver"] == pytest.approx((1 + nodes_take) * of_sum * 8 / 25e9)
    one_node = on_paper({**CLUSTER, "block": block, "nodes": 1})["seconds"]
    assert one_node["the results' way into the driver"] == pytest.approx(of_sum * 8 / 10e9)
    assert on_paper({**CLUSTER, "clients": 1})["bytes_in"] == 4 * RESNET18  # one block: nothing is to be added


@pytest.mark.parametrize(("block", "blocks", "of_number"), [("auto", 5000, 8), (12, 834, 8), (1, 10_000, 4)])
def test_a_network_whose_uploads_the_driver_adds(block: Any, blocks: int, of_number: int) -> None:
    """Of less than 1 MB. Kills: a tree where there is none; an upload of one client as a float64 sum; a driver that is
    said to add once a client."""
    paper = on_paper({**CLUSTER, "model": "resnet8", "block": block})
    assert 4 * (parameters := paper["parameters"]) < 1e6 and paper["blocks"] == blocks
    assert paper["bytes_in"] == blocks * of_number * parameters
    assert paper["seconds"]["the results' way into the driver"] == pytest.approx(paper["bytes_in"] * 8 / 10e9)
    assert paper["seconds"]["the additions of uploads"] == pytest.approx(blocks * parameters / 1.3e8)


def change(folder: Path, name: str, **columns: list[Any]) -> None:
    """Give columns of a run's table other values."""
    table = RunFolder(folder).arrow(name)
    for column, values in columns.items():
        at = table.schema.get_field_index(column)
        table = table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))
    pq.write_table(table, folder / f"{name}.parquet")


def test_where_figures_are_from(tmp_path: Path) -> None:
    """Kills: a default that is said to be measured, or outdoes what was given; figures of rounds by clients; rounds or
    clients that another run has computed."""
    folder = tmp_path / "run"
    drive(folder, experiment(rounds=3, participation={"count": 4}, execution={"block": 2}))
    given = {"measured": str(folder), "nodes": 2, "gpus": 3, "clients": 12, "block": 2, "bandwidth": 1}
    change(folder, "rounds", reused=[True, False, False], addition_seconds=[9.0, 0.5, 0.3])
    change(folder, "clients", reused=[True] * 4 + [False] * 8, seconds=[9.0] * 4 + [0.5] * 4 + [0.3] * 4)
    paper = on_paper(given)
    figures = {one["name"]: one for one in paper["figures"]}
    measured = f"measured in {folder}"
    wanted = {"seconds": measured, "bandwidth": "given", "additions": measured, "aggregation": measured}
    assert {name: one["from"] for name, one in figures.items()} == wanted | {"evaluation": measured}
    parameters = json.loads((folder / "summary.json").read_text())["parameters"]
    assert paper["parameters"] == parameters
    assert figures["seconds"]["value"] == pytest.approx(0.4)
    assert figures["additions"]["value"] == pytest.approx(4 * parameters / 0.8)
    assert paper["seconds"]["the additions of uploads"] == pytest.approx(6 * 0.2)
    assert paper["seconds"]["the workers' training"] == pytest.approx(2 * 0.4)
    assert paper["bytes_in"] == 6 * 8 * parameters  # in process nothing came in, so that this is on paper
    change(folder, "rounds", bytes_in=[9000, 500, 500])
    assert on_paper({"measured": str(folder), "clients": 12, "block": 2})["bytes_in"] == 6 * 250
    defaults = {one["name"]: one["from"] for one in on_paper(CLUSTER)["figures"]}
    assert defaults["seconds"] == "default: 500 rows at 1 TFLOP/s" and defaults["bandwidth"] == "default"


def test_blocks_are_those_of_the_measured_executor(tmp_path: Path) -> None:
    """Kills: blocks that are trained in one pass and are said to be cut by the actors, in either round."""
    folder = tmp_path / "run"
    drive(folder, experiment(rounds=1, participation={"count": 4}, execution={"executor": "block"}))
    change(folder, "rounds", addition_seconds=[0.5])
    paper = on_paper({"measured": str(folder), "clients": 12})
    assert paper["blocks"] == 2
    assert paper["seconds"]["the additions of uploads"] == pytest.approx(0.5)  # of two blocks, as measured


def test_figures_of_a_run_whose_actors_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a driver that added nothing and is said to be fast; one sum by the blocks; additions of a run in process
    that are given up."""
    folder = tmp_path / "run"
    drive(folder, experiment(rounds=1, participation={"count": 4}, execution={"block": 2}))
    change(folder, "rounds", bytes_in=[500])
    monkeypatch.setattr(plan, "ADDED_APART", 0)
    asked = {"measured": str(folder), "clients": 2, "block": 2}

    def source(paper: dict[str, Any]) -> str:
        return next(one["from"] for one in paper["figures"] if one["name"] == "additions")

    assert source(on_paper(asked)) == f"measured in {folder}"
    with_actors = RunFolder(folder).experiment().replace({"execution.actors": 2})
    monkeypatch.setattr(RunFolder, "experiment", lambda self: with_actors)
    paper = on_paper(asked)
    assert source(paper) == "default" and paper["bytes_in"] == 8 * paper["parameters"]


def test_what_a_plan_refuses(tmp_path: Path) -> None:
    """Kills: a folder of an earlier version in which nothing was added; a model that is not the measured one's."""
    make_run(tmp_path / "old")
    for given, said in (
        ({"nodes": 0}, "nodes=0: must be at least 1; for example nodes=1"),
        ({"node": 1}, "node=1: is not a field of a plan; did you mean 'nodes'?"),
        ({"model": "resnet19"}, "did you mean 'resnet18'?"),
        ({"measured": str(tmp_path)}, "is not a run's folder"),
        ({"measured": str(tmp_path / "old")}, "has no rounds with phases"),
        ({"measured": str(tmp_path / "old"), "model": "cnn"}, "the model is that of measured="),
    ):
        with pytest.raises(ConfigError) as error:
            on_paper(given)
        assert said in str(error.value)


def test_the_command_plans(call: Any, tmp_path: Path) -> None:
    """Kills: a plan that starts to measure; an object of other keys than the page says; a word that is no pair."""
    code, out, err = call("scale", "--plan", "nodes=64", "gpus=8", "clients=10000", "model=resnet18", "--json")
    assert code == 0 and json.loads(out).keys() == keys("A plan of scale")
    assert "bound by the workers' training" in err and "500 rows at 1 TFLOP/s" in err
    assert call("scale", "--plan", "cifar10")[0] == 2
    assert not (tmp_path / "runs").exists()
