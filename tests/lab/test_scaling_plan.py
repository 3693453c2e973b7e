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
from fedskew.lab.scaling.plan import on_paper
from tests.support.scripting_page import keys
from tests.support.sweep_folders import make_run
from tests.support.tiny import drive, experiment

RESNET18 = 11_173_962 + 9_600  # parameters and floating buffers
CLUSTER = {"nodes": 100, "gpus": 8, "clients": 10_000, "model": "resnet18"}


@pytest.mark.parametrize(
    ("block", "blocks", "gigabytes", "driver_adds"),
    [("auto", 16, 3.2, 3.04), (12, 834, 167, 158.5), (1, 10_000, 1000, 1900)],
)
def test_ten_thousand_clients_of_a_hundred_megabytes(
    block: Any, blocks: int, gigabytes: float, driver_adds: float
) -> None:
    """A model of 25 million numbers is 100 MB; in proportion to one of resnet18's. Kills: a float32 sum; an upload of
    one client as a float64 one; a driver that is said to add once a client; bits for bytes."""
    paper, ours = on_paper({**CLUSTER, "block": block}), RESNET18 / 25e6
    assert (paper["parameters"], paper["blocks"], paper["actors"]) == (RESNET18, blocks, 800)
    assert paper["bytes_in"] / ours == pytest.approx(gigabytes * 1e9, rel=0.01)
    assert paper["bytes_down"] / ours == pytest.approx(100 * 0.1e9)
    seconds = paper["seconds"]
    assert seconds["the driver's additions"] / ours == pytest.approx(driver_adds, rel=0.02)
    assert seconds["the results' way into the driver"] == pytest.approx(paper["bytes_in"] * 8 / 10e9)
    assert seconds["the broadcast"] / ours == pytest.approx(8.0)
    assert paper["binding"] == ("the longest block" if block == "auto" else "the driver's additions")
    assert paper["least"] < paper["most"]
    wider = on_paper({**CLUSTER, "block": block, "bandwidth": 25})["seconds"]
    assert wider["the results' way into the driver"] == pytest.approx(paper["bytes_in"] * 8 / 25e9)


def test_where_figures_are_from(tmp_path: Path) -> None:
    """Kills: a default that is said to be measured, or outdoes what was given; figures of rounds by clients."""
    folder = tmp_path / "run"
    drive(folder, experiment(rounds=2, participation={"count": 4}, execution={"block": 2}))
    paper = on_paper({"measured": str(folder), "nodes": 2, "gpus": 3, "clients": 12, "block": 2, "bandwidth": 1})
    figures = {one["name"]: one for one in paper["figures"]}
    measured = f"measured in {folder}"
    wanted = {"seconds": measured, "bandwidth": "given", "additions": measured, "aggregation": measured}
    assert {name: one["from"] for name, one in figures.items()} == wanted | {"evaluation": measured}
    rounds, clients = RunFolder(folder).frame("rounds"), RunFolder(folder).frame("clients")
    parameters = json.loads((folder / "summary.json").read_text())["parameters"]
    assert paper["parameters"] == parameters
    assert figures["seconds"]["value"] == pytest.approx(clients["seconds"].mean())
    assert figures["additions"]["value"] == pytest.approx(4 * parameters / rounds["addition_seconds"].sum())
    assert paper["seconds"]["the driver's additions"] == pytest.approx(3 * rounds["addition_seconds"].mean())
    assert paper["seconds"]["the workers' training"] == pytest.approx(2 * clients["seconds"].mean())
    assert paper["bytes_in"] == 6 * 8 * parameters  # in process nothing came in, so that this is on paper
    table = RunFolder(folder).arrow("rounds")
    at = table.schema.get_field_index("bytes_in")
    pq.write_table(table.set_column(at, table.schema.field(at), pa.array([500, 500])), folder / "rounds.parquet")
    assert on_paper({"measured": str(folder), "clients": 12, "block": 2})["bytes_in"] == 6 * 250
    defaults = {one["name"]: one["from"] for one in on_paper(CLUSTER)["figures"]}
    assert defaults["seconds"] == "default: 500 rows at 1 TFLOP/s" and defaults["bandwidth"] == "default"


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
    assert "bound by the longest block" in err and "500 rows at 1 TFLOP/s" in err
    assert call("scale", "--plan", "cifar10")[0] == 2
    assert not (tmp_path / "runs").exists()
