"""The scaling study: what is measured in which order, what is kept, what the page says; in process, by a made-up clock
or on tiny clients."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

from engine.base.errors import ConfigError
from engine.client.blocks import cut
from engine.experiment import Experiment
from fedskew.cli import studies as cli_scale
from fedskew.lab.pages import text_table
from fedskew.lab.scaling import page as scaling_page
from fedskew.lab.scaling import study as scaling
from fedskew.lab.scaling.study import COLUMNS, MEANS, TURN, cohort_of, endless, measure_turn, over_turns
from tests.support.scaling_clock import MACHINE, SMALL, Clock, simulated, study
from tune_configs import EXPERIMENTS

# --- what is measured -------------------------------------------------------------------------------------


def test_what_is_run(tmp_path: Path) -> None:
    """Kills: evaluations or checkpoints inside a turn; actors or a cohort that are not passed on; a lost field of the
    model; a number of actors that is measured twice."""
    found = study(tmp_path / "s", (4, 0, 4), cohort=16)
    assert found.counts == [0, 4]
    experiment = found.experiment_of(4)
    assert (experiment.execution.actors, experiment.execution.block) == (4, 2)
    assert (experiment.participation.count, experiment.model.hidden) == (16, (8,))  # type: ignore[attr-defined]
    assert experiment.evaluation.every == experiment.evaluation.local_every == 0
    assert min(experiment.checkpoint.every, experiment.rounds) >= 10**9


@pytest.mark.parametrize(
    ("room", "counts"),
    [
        (1, (0, 1)),
        (2, (0, 1, 2)),
        (4, (0, 1, 2, 3, 4)),
        (6, (0, 1, 2, 3, 4, 6)),
        (8, (0, 1, 2, 3, 4, 8)),
        (64, (0, 1, 2, 3, 4, 8, 16, 32, 64)),
        (100, (0, 1, 2, 3, 4, 8, 16, 32, 64, 100)),
    ],
)
def test_actors_for_a_machine(monkeypatch: pytest.MonkeyPatch, room: int, counts: tuple[int, ...]) -> None:
    """Kills: a loop without an end; cores that are never used; more actors than cores."""
    execution = Experiment(**SMALL).execution
    assert scaling.actors_for(room, execution) == counts
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert scaling.actors_for(room, execution.model_copy(update={"gpus_per_actor": 0.5})) == counts[1:]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"actors": (1, 9)}, "--actors=9: must be at most the 8 clients of a round"),
        ({"actors": (-1, 2)}, "must be numbers from 0 on"),
        ({"cohort": 30, "actors": (1,)}, "30"),
    ],
)
def test_what_a_study_refuses(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """Kills: a study that fails after minutes."""
    with pytest.raises(ConfigError) as error:
        found = study(tmp_path / "s", **changes)
        found.measure(measure_turn)
    assert said in str(error.value)


def test_stages_are_refused() -> None:
    """Kills: rounds of a stage that is not the one meant."""
    staged = Experiment(**{**SMALL, "stages": [{"name": "one", "rounds": 2}]})
    with pytest.raises(ConfigError, match="a study has one kind of round"):
        endless(staged)


# --- the study --------------------------------------------------------------------------------------------


def test_turns_go_round(tmp_path: Path) -> None:
    """Kills: all turns of one number of actors in a row."""
    clock, found = Clock(), study(tmp_path / "s")
    found.measure(clock)
    assert clock.turns == [0, 1, 2, 4, 8] * 5
    assert len(found.rows) == 5 * 5
    assert found.left == []


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    """Kills: turns that are lost or measured twice; another study's turns; turns beyond those asked for in a model."""
    with pytest.raises(KeyboardInterrupt):
        study(tmp_path / "s", (1, 2)).measure(Clock(dies_after=3))
    assert pq.read_table(tmp_path / "s" / "scaling.parquet").num_rows == 3
    again = study(tmp_path / "s", (1, 2))
    assert again.left[:2] == [(2, 1), (1, 2)] and len(again.left) == 5 * 2 - 3
    clock = Clock()
    again.measure(clock)
    table = pq.read_table(tmp_path / "s" / "scaling.parquet")
    assert tuple(table.column_names) == COLUMNS
    rows = table.to_pylist()
    assert rows == again.rows and len(clock.turns) + 3 == len(rows) == 5 * 2
    assert len({(row["actors"], row["turn"]) for row in rows}) == len(rows)
    finished, fewer = Clock(), study(tmp_path / "s", (1, 2), turns=2)
    fewer.measure(finished)
    assert finished.turns == [] and {row["turn"] for row in fewer.measured()} == {0, 1}
    assert fewer.fitted() != again.fitted()


def test_another_study_is_refused(tmp_path: Path) -> None:
    """Kills: turns of two machines, or of two studies, in one fit."""
    study(tmp_path / "s")
    others: tuple[dict[str, Any], ...] = ({"actors": (1,)}, {"cpus": 2.0})
    for other in others:
        with pytest.raises(ConfigError, match="holds a study of another experiment, of other actors or on another m"):
            study(tmp_path / "s", **other)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty and holds no study"):
        study(tmp_path / "full")


def test_a_measurements_row(tmp_path: Path) -> None:
    """Kills: rates of the wrong unit; the time of ten rounds for one's."""
    found = study(tmp_path / "s")
    found.measure(Clock(noise=0.0))
    (row,) = (row for row in found.measured() if row["actors"] == 8 and row["turn"] == 0)
    seconds = simulated(8, [0.1] * 4, 0.001, 0.002)[0] + 0.006
    assert row["rounds_per_second"] == pytest.approx(1 / seconds, rel=1e-12)
    assert (row["blocks"], row["clients"], row["rounds"]) == (4, 8, 10)


@pytest.mark.parametrize("block", [2, "auto"])
@pytest.mark.parametrize("executor", ["loop", "block"])
def test_the_model(tmp_path: Path, executor: str, block: Any) -> None:
    """Kills: the in-process point in the fit; a prediction of as many blocks as were measured, or of those of another
    executor."""
    execution = {**SMALL["execution"], "block": block, "executor": executor}
    experiment = Experiment(**{**SMALL, "partition": {"name": "iid", "clients": 64}, "execution": execution})
    found = study(tmp_path / "s", cohort=64, experiment=experiment)
    found.measure(Clock())
    fitted = found.fitted()
    assert fitted is not None and list(fitted.parts) == [1, 2, 4, 8]
    guesses = [fitted.predict(actors) for actors in (3, 4, 16, 64)]
    for one in guesses:
        blocks = [0.05 * len(part) for part in cut(range(64), block, one.actors, executor == "block")]
        seconds = simulated(one.actors, blocks, 0.001, 0.002)[0] + 0.006
        assert one.low <= 1 / seconds <= one.high
        assert one.beyond == (one.actors > 8)
    notes = [one.note.partition(";")[0] for one in guesses]
    if block == 2:
        assert (notes[0], notes[3]) == ("bound by the workers' training", "bound by the longest block")


@pytest.mark.slow
@pytest.mark.parametrize(("actors", "binding"), [((0,), None), ((1,), "the workers' training")])
def test_few_actors(tmp_path: Path, actors: tuple[int, ...], binding: str | None) -> None:
    """Kills: a page that fails where there is no model; one number of actors that has none."""
    found = study(tmp_path / "s", actors)
    found.measure(Clock())
    page, *_ = scaling_page.write(found, (8,))
    described = json.loads((tmp_path / "s" / "fit.json").read_text())
    assert (described and described["binding"]) == binding
    assert ("there is no model" in page.read_text()) == (binding is None)
    if described:
        assert described["predictions"][0]["beyond"] and described["unit"] == "rounds per second"


def test_means_over_turns() -> None:
    """Kills: an arithmetic mean; extremes over all numbers of actors."""
    rows = [{"actors": actors, "rounds_per_second": rate} for actors, rate in ((1, 1.0), (1, 4.0), (2, 3.0))]
    assert over_turns(rows) == [
        {**rows[0], "mean": pytest.approx(2.0), "low": 1.0, "high": 4.0},
        {**rows[2], "mean": pytest.approx(3.0), "low": 3.0, "high": 3.0},
    ]


# --- the page ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    """Kills: a name that becomes markup; a file that is missing; a page that loads something; bytes that depend on
    when."""
    attack = "<script>alert(1)</script>&\"'"
    found = study(tmp_path / "s", hardware=attack)
    found.measure(Clock())
    page, *_ = scaling_page.write(found, (16,))
    text = page.read_text()
    assert attack not in text and "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert text.count(' src="data:image/png;') == text.count(" src=") == 1 and "default-src 'none'" in text
    assert "http://" not in text and "https://" not in text
    for heading in ("The same round on more actors", "Phases", "Predictions"):
        assert f"<h2>{heading}" in text
    assert "bound by the longest block; beyond what was measured" in text
    files = {item.name for item in (tmp_path / "s").iterdir()}
    tables = {"scaling.parquet", "scaling.csv", "study.json", "fit.json"}
    assert files == tables | {"scaling.png", "scaling.html", ".lock"}
    before = {item.name: item.read_bytes() for item in (tmp_path / "s").iterdir()}
    scaling_page.write(found, (16,))
    assert {item.name: item.read_bytes() for item in (tmp_path / "s").iterdir()} == before


def test_figures_of_the_tables(tmp_path: Path) -> None:
    """Kills: residuals with the other sign; a speed-up against the model where one actor was measured; phases of one
    turn."""
    found = study(tmp_path / "s", (1, 2, 4), turns=3)
    found.measure(Clock(noise=0.1))
    fitted = found.fitted()
    assert fitted is not None
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in scaling_page.actors_table(found, fitted).rows}
    means = {row["actors"]: row["mean"] for row in over_turns(found.measured())}
    one, four = means[1], means[4]
    assert rows["4"][:2] == ["4", scaling_page.rate(four)]
    assert rows["4"][5] == f"{100 * (four - fitted.predict(4).value) / four:+.1f} %"
    assert rows["4"][6:] == [f"{four / one:.2f}", f"{25 * four / one:.0f} %"]
    phases = {row[0].text: [cell.text for cell in row[1:]] for row in scaling_page.phases_table(found).rows}
    assert phases["4"][0] == "1" and phases["4"][-2:] == ["90", "0.032"]  # of turns of 80, 90 and 100 ms


# --- runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clients", "rows"), [(4, 40), (8, 80)])
def test_the_engine_in_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, clients: int, rows: int) -> None:
    """Kills: warm-up rounds that count; a cohort that does not arrive; a folder that is left behind; seconds that leave
    out what goes on between rounds."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    clock = count(step=100.0)
    monkeypatch.setattr(scaling, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    advanced = list[Any]()
    advance = scaling.Run.advance
    monkeypatch.setattr(scaling.Run, "advance", lambda *words: advanced.append(advance(*words)) or advanced[-1])
    turn = measure_turn(study(tmp_path / "s", (0,), clients).experiment_of(0).resolve(), 1e-6)
    assert set(turn) == set(TURN) and turn["rounds"] == 1
    assert turn["seconds"] == 100 > sum(turn[name] for name in MEANS) > 0
    assert turn["sums"] == clients / 2
    assert 0 < turn["longest_seconds"] < turn["work_seconds"] <= turn["training_seconds"]
    assert turn["longest_seconds"] >= turn["work_seconds"] * 2 / clients
    assert [[row["samples"] for row in progress.rows] for progress in advanced] == [[rows], [rows]]
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def test_clients_of_a_round() -> None:
    """Kills: a fraction of all clients, where some hold nothing."""
    assert cohort_of(Experiment(**SMALL)) == 8
    assert cohort_of(Experiment(**{**SMALL, "participation": {"fraction": 0.25}})) == 5


def test_room_on_machines(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: CPUs or GPU shares that are counted by the actor; a cluster that is asked for more than it has."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    execution = Experiment(**SMALL).execution
    fat = execution.model_copy(update={"cpus_per_actor": 2.5})
    shared = execution.model_copy(update={"gpus_per_actor": 0.3})
    machine = {"cpus": 16.0, "gpus": 2.0}
    assert scaling.room_for(machine, execution) == 16
    assert scaling.room_for(machine, fat) == 6
    assert scaling.room_for(machine, shared) == 6
    assert scaling.room_for({"cpus": 0.5, "gpus": 0.0}, execution) == 1
    monkeypatch.setattr(scaling, "look_around", lambda *_: {**MACHINE, "cpus": 16.0})
    code, _, err = call("scale", "--actors", "1,17", "--address", "auto")
    assert code == 2 and "--actors=17: must be at most 16, for which the cluster has room" in " ".join(err.split())


# --- the command ------------------------------------------------------------------------------------------

QUICK = [
    "quickstart",
    "execution.actors=0",
    "data.train_samples=200",
    "data.test_samples=50",
    "model.hidden=[8]",
    "participation.count=4",
]
FAST = ["--actors", "0", "--seconds", "0.01"]


@pytest.mark.slow
def test_the_command(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a command that measures again what is there; predictions that belong to the study's identity; a
    cell printed as its class."""
    words = ["scale", *QUICK, *FAST, "--turns", "1", "--out", "here"]
    code, _, err = call(*words)
    assert code == 0, err
    assert "1 settings, 1 turns" in err and "there is no model" in err and "here/scaling.html" in err
    before = (tmp_path / "here" / "scaling.parquet").read_bytes()
    monkeypatch.setattr(scaling_page, "predictions_table", lambda _: text_table(("actors",), [["eight"]]))
    code, _, err = call(*words, "--predict", "8")
    assert "eight" in err and "Cell(" not in err
    assert code == 0 and "1 turns are there already" in err
    assert (tmp_path / "here" / "scaling.parquet").read_bytes() == before
    assert call(*words, "--turns", "2")[0] == 0
    assert call(*words, "local.lr=0.5")[0] == 2
    named = call("scale", *QUICK, *FAST, "--turns", "1")
    assert named[0] == 0
    assert [path.name.startswith("scale-quickstart-") for path in (tmp_path / "runs").iterdir()] == [True]


@pytest.mark.parametrize("most", [0, 1, 2, 3, 8, 9, 64])
def test_the_default_gives_every_actor_work(most: int) -> None:
    """Kills: a study of actors that idle for want of clients or blocks."""
    sized = EXPERIMENTS["scaling"]().override(cli_scale.sizes_for(most)).resolve()
    count, block = sized.participation.count, sized.execution.block
    assert count is not None and count >= max(32, 4 * most)
    assert len(cut(range(count), block, max(most, 1), together=True)) >= max(2, 2 * most if most > 2 else most)
    assert sized.partition.clients >= 2 * count  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "is neither a file nor a known name"),
        (["--actors", "1,x"], "--actors=1,x: is no list of numbers"),
        (["--actors", ""], "is no list of numbers"),
        (["--predict", "0"], "--predict=0: must be at least 1"),
        (["--turns", "0"], "--turns=0: must be at least 1"),
        (["--seconds", "-1"], "--seconds=-1.0: must be above 0"),
        (["--actors", "0", "model.name=mpl"], "model.name=mpl"),
        (["local.lr=-1"], "local.lr=-1"),
    ],
)
def test_what_the_command_refuses(call: Any, tmp_path: Path, words: list[str], said: str) -> None:
    """One sentence and exit code 2, and no folder. Kills: a traceback; a folder that is left behind."""
    code, _, err = call("scale", *words)
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()
