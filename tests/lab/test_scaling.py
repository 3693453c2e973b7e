"""The scaling study: what is measured in which order, what is kept, what the page says; in process, by a made-up clock
or on tiny clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from engine.base.errors import ConfigError
from engine.client.blocks import cut_blocks
from engine.experiment import Experiment
from engine.worker.in_process import InProcessPool
from fedskew.cli import studies as cli_scale
from fedskew.lab.scaling import measure as scaling_runs
from fedskew.lab.scaling import page as scaling_page
from fedskew.lab.scaling.law import AMDAHL, USL
from fedskew.lab.scaling.plan import MODELS, Setting, Wanted, actors_for, make_plan
from fedskew.lab.scaling.study import SCHEMA, Study, over_turns
from tests.support.scaling_clock import LAW, MACHINE, SMALL, Clock, plan
from tune_configs import EXPERIMENTS

# --- the plan ---------------------------------------------------------------------------------------------


def test_the_sweeps_meet_in_one_setting() -> None:
    """Kills: strong scaling with a cohort that grows; weak scaling with one that does not; points measured twice."""
    found = plan()
    shared = Setting(8, 8, "auto", "mlp")
    assert all(shared in sweep for sweep in found.sweeps.values())
    assert {(s.actors, s.clients) for s in found.sweeps["strong"]} == {(n, 8) for n in (0, 1, 2, 4, 8)}
    assert {(s.actors, s.clients) for s in found.sweeps["weak"]} == {(n, n) for n in (1, 2, 4, 8)}
    assert [s.clients for s in found.sweeps["clients"]] == [8, 16]  # 2 and 4 would leave actors idle
    assert [s.block for s in found.sweeps["blocks"]] == ["auto", 1, 4]
    assert [s.model for s in found.sweeps["models"]] == ["mlp", "logistic", "cnn"]
    assert len(found.settings) == len(set(found.settings)) == 5 + 3 + 1 + 2 + 2
    assert [len(group) for group in found.groups] == [11, 1, 1]


def test_what_is_run_at_a_setting() -> None:
    """Kills: evaluations or checkpoints inside a turn; a setting that is not passed on; a lost field of the model."""
    found = plan()
    experiment = found.experiment_of(Setting(4, 16, 2, "mlp"))
    assert (experiment.execution.actors, experiment.execution.block) == (4, 2)
    assert (experiment.participation.count, experiment.model.hidden) == (16, (8,))  # type: ignore[attr-defined]
    assert experiment.evaluation.every == experiment.evaluation.local_every == 0
    assert min(experiment.checkpoint.every, experiment.rounds) >= 10**9
    assert found.experiment_of(Setting(4, 16, 2, "cnn")).to_mapping()["model"]["name"] == "cnn"


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
def test_actors_for_a_machine(room: int, counts: tuple[int, ...]) -> None:
    """Kills: a loop without an end; cores that are never used; more actors than cores."""
    assert actors_for(room, in_process=True) == counts
    assert actors_for(room, in_process=False) == counts[1:]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"actors": (1, 9)}, "--actors=9: must be at most the 8 clients of a round"),
        ({"actors": (-1, 2)}, "must be numbers from 0 on"),
        ({"clients": (8, 21)}, "--clients-per-round=21: must be from 1 to 20"),
        ({"clients": (0,)}, "--clients-per-round=0: must be from 1 to 20"),
        ({"blocks": ("auto", 0)}, "--blocks=0: must be auto or at least 1"),
        ({"models": ("mlq",)}, "did you mean 'mlp'"),
        ({"cohort": 30}, "--clients-per-round=30: must be from 1 to 20"),
    ],
)
def test_what_a_plan_refuses(changes: dict[str, Any], said: str) -> None:
    """Kills: a study that fails after minutes."""
    with pytest.raises(ConfigError) as error:
        plan(**changes)
    assert said in str(error.value)


def test_stages_are_refused() -> None:
    """Kills: rounds of a stage that is not the one meant."""
    staged = Experiment(**{**SMALL, "stages": [{"name": "one", "rounds": 2}]})
    with pytest.raises(ConfigError, match="a study has one kind of round"):
        make_plan(staged, 8, 20, (1,), Wanted())


# --- the study --------------------------------------------------------------------------------------------


def test_turns_go_round(tmp_path: Path) -> None:
    """Kills: all turns of one setting in a row; the same setting always first."""
    clock, study = Clock(), Study.open(plan(), MACHINE, tmp_path / "s")
    study.measure(clock)
    first_group = clock.opened_groups[0]
    for turn in range(5):
        part = clock.turns[turn * 11 : (turn + 1) * 11]
        assert part == first_group[turn:] + first_group[:turn]
    assert len(clock.turns) == 5 * 13 == len(study.rows)
    assert study.left == 0


def test_an_interrupted_study_goes_on(tmp_path: Path) -> None:
    """Kills: turns that are lost or measured twice; sessions that cannot be told apart; another study's turns."""
    asked = plan(actors=(1, 2))
    with pytest.raises(KeyboardInterrupt):
        Study.open(asked, MACHINE, tmp_path / "s").measure(Clock(dies_after=17))
    assert pq.read_table(tmp_path / "s" / "scaling.parquet").num_rows == 17
    again = Study.open(asked, MACHINE, tmp_path / "s")
    assert again.left == 5 * len(asked.settings) - 17
    clock = Clock()
    again.measure(clock)
    table = pq.read_table(tmp_path / "s" / "scaling.parquet")
    assert table.schema.equals(SCHEMA)
    rows = table.to_pylist()
    assert len(clock.turns) + 17 == len(rows) == 5 * len(asked.settings)
    keys = {(row["actors"], row["clients"], row["block"], row["model"], row["turn"]) for row in rows}
    assert len(keys) == len(rows)
    assert [row["session"] for row in rows] == [0] * 17 + [1] * (len(rows) - 17)
    finished = Clock()
    Study.open(asked, MACHINE, tmp_path / "s").measure(finished)
    assert finished.opened_groups == []


@pytest.mark.parametrize(
    ("other", "machine", "said"),
    [({"turns": 3}, {}, "turns"), ({"actors": (1,)}, {}, "sweeps"), ({}, {"cpus": 2.0}, "machine")],
)
def test_another_study_is_refused(tmp_path: Path, other: dict[str, Any], machine: dict[str, Any], said: str) -> None:
    """Kills: turns of two machines, or of two plans, in one fit."""
    Study.open(plan(), MACHINE, tmp_path / "s")
    with pytest.raises(ConfigError, match=f"holds a study with another {said}"):
        Study.open(plan(**other), {**MACHINE, **machine}, tmp_path / "s")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(ConfigError, match="is not empty and holds no study"):
        Study.open(plan(), MACHINE, tmp_path / "full")


def test_a_measurements_row(tmp_path: Path) -> None:
    """Kills: rates of the wrong unit; a setting that forgets a sweep that it belongs to."""
    study = Study.open(plan(), MACHINE, tmp_path / "s")
    study.measure(Clock(noise=0.0))
    (row,) = (row for row in study.of("weak") if row["actors"] == 8 and row["turn"] == 0)
    assert row["sweeps"] == "strong weak clients blocks models"
    assert row["rounds_per_second"] == pytest.approx(LAW(8), rel=1e-12)
    assert row["clients_per_second"] == pytest.approx(8 * LAW(8), rel=1e-12)
    assert (row["samples"], row["load"], row["parameters"]) == (800, 0.5, 6_370)


def test_the_laws_of_both_ways(tmp_path: Path) -> None:
    """Kills: the in-process point in the fit; weak scaling fitted to rounds; a forgotten bound on blocks."""
    study = Study.open(plan(), MACHINE, tmp_path / "s")
    study.measure(Clock())
    fitted = study.fitted((3, 4, 16))
    for sweep, rate in (("strong", 40.0), ("weak", 320.0)):
        found = fitted[sweep].fit
        assert found is not None and found.name == USL
        assert found.law.rate == pytest.approx(rate, rel=1e-9)
        assert found.law.contention == pytest.approx(0.05, rel=1e-6)
        assert found.law.coherency == pytest.approx(0.002, rel=1e-6)
        assert [residual.actors for residual in found.residuals] == [1, 2, 4, 8]
        inside, _, outside = fitted[sweep].predictions
        assert not inside.beyond and outside.beyond
        assert inside.low < inside.value < inside.high
    assert "only 4 blocks in a round" in fitted["strong"].predictions[2].note
    assert "blocks" not in fitted["strong"].predictions[1].note + fitted["weak"].predictions[2].note


@pytest.mark.slow
@pytest.mark.parametrize(("actors", "law"), [((0,), None), ((1,), None), ((0, 1, 2), AMDAHL)])
def test_few_actors(tmp_path: Path, actors: tuple[int, ...], law: str | None) -> None:
    """Kills: a page that fails where no law can be fitted; kappa that two counts are said to identify."""
    study = Study.open(plan(actors), MACHINE, tmp_path / "s")
    study.measure(Clock())
    page, fitted = scaling_page.write(study, (8,))
    described = json.loads((tmp_path / "s" / "fit.json").read_text())["strong"]
    assert described["law"] == law
    text = page.read_text()
    assert ("No law was fitted" in text) == (law is None)
    if law:
        assert described["kappa"] == 0 and described["peak"] is None
        assert described["predictions"][0]["low"] is None and described["predictions"][0]["beyond"]
        assert "two counts of actors identify contention at most" in text
        assert fitted["weak"].fit is not None


def test_means_over_turns() -> None:
    """Kills: an arithmetic mean; extremes over all settings."""
    rows = [{"n": n, "x": x} for n, x in ((2, 1.0), (2, 4.0), (1, 3.0))]
    assert over_turns(rows, "n", "x") == [
        {"n": 2, "x": 1.0, "mean": pytest.approx(2.0), "low": 1.0, "high": 4.0},
        {"n": 1, "x": 3.0, "mean": pytest.approx(3.0), "low": 3.0, "high": 3.0},
    ]


# --- the page ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page(tmp_path: Path) -> None:
    """Kills: a name that becomes markup; a file that is missing; a page that loads something; bytes that depend on
    when."""
    attack = "<script>alert(1)</script>&\"'"
    study = Study.open(plan(), {**MACHINE, "hardware": attack}, tmp_path / "s")
    study.measure(Clock())
    for row in study.rows:
        if row["model"] == "cnn":
            row["model"] = attack
    study.plan.sweeps["models"] = tuple(  # type: ignore[index]
        Setting(s.actors, s.clients, s.block, attack) if s.model == "cnn" else s for s in study.plan.sweeps["models"]
    )
    page, _ = scaling_page.write(study, (16,))
    text = page.read_text()
    assert attack not in text and "<script>alert" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 3  # the machine, the table, the picture
    assert text.count("<svg") == 5 and "default-src 'none'" in text
    assert not [word for word in ("http://", "https://", " src=") if word in text]
    for heading in ("Strong scaling", "Weak scaling", "Predictions", "Clients per round", "Block size", "Model size"):
        assert f"<h2>{heading}" in text
    assert "beyond what was measured; only 4 blocks in a round" in text
    files = {item.name for item in (tmp_path / "s").iterdir()}
    pictures = {"strong.png", "weak.png", "clients.png", "blocks.png", "models.png"}
    assert files == pictures | {"study.json", "scaling.parquet", "fit.json", "scaling.html", ".lock"}
    before = {item.name: item.read_bytes() for item in (tmp_path / "s").iterdir()}
    scaling_page.write(study, (16,))
    assert {item.name: item.read_bytes() for item in (tmp_path / "s").iterdir()} == before


# --- runs -------------------------------------------------------------------------------------------------


def test_the_engine_in_process(tmp_path: Path) -> None:
    """Kills: warm-up rounds that count; a cohort or a block that does not arrive; parameters of another model."""
    asked = plan((0,), clients=(4, 8), blocks=("auto", 3), models=("mlp", "logistic"), turns=2, seconds=1e-6)
    study = Study.open(asked, MACHINE, tmp_path / "s")
    study.measure(scaling_runs.EngineBench(asked, Experiment(**SMALL).data.load()))
    rows = study.rows
    assert len(rows) == 2 * len(asked.settings) == 2 * 4
    assert all(row["rounds"] == 1 and row["seconds"] > 0 for row in rows)
    assert {(row["clients"], row["samples"]) for row in rows} == {(4, 40), (8, 80)}
    assert {(row["block"], row["blocks"]) for row in rows if row["block"] == "3"} == {("3", 3)}
    resolved = {name: asked.experiment_of(Setting(0, 8, 1, name)).resolve().execution.executor for name in MODELS[:2]}
    assert {row["model"]: row["executor"] for row in rows} == resolved
    sizes = {row["model"]: row["parameters"] for row in rows}
    assert sizes == {"mlp": 784 * 8 + 8 + 8 * 10 + 10, "logistic": 7850}


class Spy(InProcessPool):
    """Counts which part of it was asked for."""

    used: int = 0
    closed: bool = False

    def use(self, count: int) -> None:
        self.used = count

    def close(self) -> None:
        self.closed = True


def test_a_lent_pool(tmp_path: Path) -> None:
    """Kills: a driver that closes the pool of all; one that trains on another setting's actors."""
    asked = plan((1, 2))
    experiments = {n: asked.experiment_of(Setting(n, 4, 1, "mlp")).resolve() for n in (1, 2)}
    runs = {n: scaling_runs.prepare(experiment, tmp_path / str(n), False) for n, experiment in experiments.items()}
    spy: Any = Spy(experiments[2], runs[2].dataset, runs[2].assignment)
    for ready in runs.values():
        ready.write()
    runners = {n: scaling_runs.Runner(ready, spy) for n, ready in runs.items()}
    for n in (2, 1, 2):
        turn = runners[n].turn(0.0)
        assert spy.used == n
        assert (turn.rounds, turn.blocks) == (1, 4)
    for runner in runners.values():
        runner.close()
    assert not spy.closed


def test_room_on_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: CPUs or GPU shares that are counted by the actor; a cluster that is asked for more than it has."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    execution = Experiment(**SMALL).execution
    fat = execution.model_copy(update={"cpus_per_actor": 2.5})
    shared = execution.model_copy(update={"gpus_per_actor": 0.3})
    machine = {"cpus": 16.0, "gpus": 2.0}
    assert scaling_runs.room_for(machine, execution) == 16
    assert scaling_runs.room_for(machine, fat) == 6
    assert scaling_runs.room_for(machine, shared) == 6
    assert scaling_runs.room_for({"cpus": 0.5, "gpus": 0.0}, execution) == 1
    scaling_runs.check_room((1, 17), 16, None)
    with pytest.raises(ConfigError, match="--actors=17: must be at most 16, for which the cluster has room"):
        scaling_runs.check_room((1, 17), 16, "auto")


# --- the command ------------------------------------------------------------------------------------------

QUICK = [
    "quickstart",
    "execution.actors=0",
    "data.train_samples=200",
    "data.test_samples=50",
    "model.hidden=[8]",
    "participation.count=4",
]
FAST = ["--actors", "0", "--clients-per-round", "2,4", "--blocks", "1", "--models", "mlp", "--seconds", "0.01"]


@pytest.mark.slow
def test_the_command(call: Any, tmp_path: Path) -> None:
    """Kills: a command that measures again what is there; predictions that belong to the study's identity."""
    words = ["scale", *QUICK, *FAST, "--turns", "1", "--output", "here"]
    code, _, err = call(*words)
    assert code == 0, err
    assert "3 settings, 1 turns" in err and "No law was fitted" in err and "here/scaling.html" in err
    before = (tmp_path / "here" / "scaling.parquet").read_bytes()
    code, _, err = call(*words, "--predict", "8")
    assert code == 0 and "3 turns are there already" in err
    assert (tmp_path / "here" / "scaling.parquet").read_bytes() == before
    assert call(*words, "--turns", "2")[0] == 2
    named = call("scale", *QUICK, *FAST, "--turns", "1")
    assert named[0] == 0
    assert [path.name.startswith("scale-quickstart-") for path in (tmp_path / "runs").iterdir()] == [True]


@pytest.mark.parametrize("most", [0, 1, 2, 3, 8, 9, 64])
def test_the_default_gives_every_actor_work(most: int) -> None:
    """Kills: a study of actors that idle for want of clients or blocks."""
    sized = EXPERIMENTS["scaling"]().override(cli_scale.sizes_for(most)).resolve()
    count, block = sized.participation.count, sized.execution.block
    assert count is not None and count >= max(32, 4 * most)
    assert len(cut_blocks(range(count), block, together=True)) >= max(2, 2 * most if most > 2 else most)
    assert sized.partition.clients >= 2 * count  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "is neither a file nor a known name"),
        (["--actors", "1,x"], "--actors=1,x: is no list of numbers"),
        (["--actors", ""], "is no list of numbers"),
        (["--blocks", "auto,big"], "--blocks=auto,big: is no list"),
        (["--predict", "0"], "--predict=0: must be at least 1"),
        (["--turns", "0"], "--turns=0: must be at least 1"),
        (["--seconds", "-1"], "--seconds=-1.0: must be above 0"),
        (["--actors", "0", "--models", "mpl"], "model.name=mpl"),
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
