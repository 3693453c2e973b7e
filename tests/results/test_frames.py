"""Runs and sweeps as tables: documented columns, rows that are all there, damage that is named, and SQL over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from engine.base.errors import ConfigError, RunFolderError
from engine.experiment import Experiment
from engine.record.run_folder import RunFolder
from engine.record.tables import GROUP_ROWS
from engine.results.frames import Frames, load_results
from engine.results.frames.frame_columns import AXES, FIGURES, TABLES, markdown
from engine.results.loading import load
from fedskew.lab.query import answer
from tests.support.sweep_folders import ALPHA, BASE, MU, make_run, make_sweep

ROOT = Path(__file__).parents[2]
# What users' scripts may rest on. Add what is new; change or delete nothing.
FROZEN = {
    "trials": """source:string sweep:string trial:string digest:string seed:int64 AXIS:null status:string reason:string
        setting:string profile:string experiment:string code:string data_name:string partition_name:string
        model_name:string algorithm_name:string accuracy:double best_accuracy:double best_round:double
        last10_accuracy:double last10_std:double local_last10_accuracy:double local_gap:double loss:double rounds:int64
        rounds_asked:int64 rounds_computed:int64 rounds_to_target:double bytes_to_target:double
        client_floats_to_best:double worst_decile_accuracy:double many_accuracy:double medium_accuracy:double
        few_accuracy:double label_entropy:double step_label_entropy:double label_hellinger:double
        label_jensen_shannon:double label_total_variation:double effective_classes:double
        personal_accuracy:double personal_last10_accuracy:double personal_client_accuracy:double
        personal_worst_decile_accuracy:double participants_accuracy:double participants_std:double
        fine_tuned_accuracy:double fine_tuned_client_accuracy:double held_out_accuracy:double
        held_out_client_accuracy:double held_out_tuned_client_accuracy:double seconds:double floats_up:double
        floats_down:double seconds_to_target:double cka_logits:double cka_lowest_other:double
        cka_logits_margin:double cka_mean:double norm_correlation:double generated_agreement:double
        nearest_distance:double nearest_distance_test:double nearest_ratio:double cost_row_minimum:double
        simulated_seconds:double scope:string breaks_privacy:bool weights_sha256:string
        parent:string schedule:string folder:string FIGURE:double""",
    "rounds": """source:string sweep:string trial:string digest:string seed:int64 stage:string round:int64
        in_lineage:bool lr:double clients:int64 failed:int64 samples:int64 steps:int64 loss_before:double
        loss_after:double local_accuracy:double update_norm:double weights_sha256:string floats_up:int64
        floats_down:int64 scalars:map<string,double> seconds:double evaluation_seconds:double reused:bool scope:string
        accuracy:double loss:double test_samples:int64 simulated_seconds:double""",
    "clients": """source:string sweep:string trial:string digest:string seed:int64 stage:string round:int64
        in_lineage:bool client:int64 samples:int64 steps:int64 loss_before:double loss_after:double
        local_accuracy:double seconds:double floats_up:int64 floats_down:int64 actor:int64 reused:bool""",
    "classes": """source:string sweep:string trial:string digest:string seed:int64 stage:string round:int64
        in_lineage:bool scope:string class:int64 accuracy:double samples:int64 reused:bool""",
    "personal": """source:string sweep:string trial:string digest:string seed:int64 stage:string round:int64
        in_lineage:bool client:int64 point:string participant:bool samples:int64 accuracy:double loss:double
        reused:bool""",
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 trials in two stages, of which one failed, one was stopped and one goes on."""
    folder = tmp_path_factory.mktemp("frames") / "swept"
    outcomes: dict[str, Any] = {"failed": [1], "stopped": [2], "killed": [3]}
    return make_sweep(folder, seeds=(0, 1, 2), stages=True, personal=("post_server",), **outcomes)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("frames") / "ran")


@pytest.fixture(scope="module")
def both(swept: Path, ran: Path) -> Frames:
    return load_results(swept, ran, metric="class_accuracy[1]")


def test_no_documented_column_goes() -> None:
    """Kills: a column that is renamed, goes, changes its type or its place among the others."""
    for name, frozen in FROZEN.items():
        kept = frozen.split()
        documented = [f"{one.name}:{one.type}".replace(", ", ",") for one in TABLES[name]]
        assert [one for one in documented if one in kept] == kept, name
    assert list(TABLES) == list(FROZEN)


def test_every_frame_has_the_documented_columns(both: Frames) -> None:
    """Kills: a column that is made and not documented, or the other way round; one of another type or place; a column
    that is null and said never to be."""
    placed = {AXES: [("mu", pa.float64()), ("alpha", pa.float64())], FIGURES: [("class_accuracy[1]", pa.float64())]}
    for name, documented in TABLES.items():
        table = both.arrow(name)
        table.validate(full=True)
        wanted = [one for column in documented for one in placed.get(column.name, [(column.name, column.type)])]
        assert list(zip(table.schema.names, table.schema.types, strict=True)) == wanted
        assert len(table) > 0
        lacking = {column.name: column.lacking for column in documented}
        assert not [column for column in table.schema.names if table[column].null_count and not lacking.get(column, 1)]
        frame = getattr(both, name)
        assert list(frame.columns) == table.schema.names and len(frame) == len(table)


def test_types_in_pandas_do_not_depend_on_the_rows(both: Frames, ran: Path) -> None:
    """Kills: a column of whole numbers that is of reals as soon as one is lacking."""
    alone = load_results(ran)
    for name in ("rounds", "clients", "classes"):
        assert getattr(alone, name).dtypes.equals(getattr(both, name).dtypes)
    kinds = {name: str(both.rounds[name].dtype) for name in ("round", "clients", "in_lineage", "accuracy")}
    assert kinds == {"round": "int64", "clients": "Int64", "in_lineage": "bool", "accuracy": "float64"}
    assert str(both.trials["breaks_privacy"].dtype) == "boolean"


def test_the_page_is_that_of_the_code(call: Any) -> None:
    """Kills: a page that was edited, or not made again; a column without a sentence."""
    code, out, _ = call("query", "--columns")
    assert (code, out) == (0, markdown())
    assert (ROOT / "docs" / "schema.md").read_text(encoding="utf-8") == out
    assert all(one.meaning.endswith(".") for columns in TABLES.values() for one in columns)


def test_rows_are_those_of_the_trials(both: Frames, swept: Path, ran: Path) -> None:
    """Kills: a trial's rows under another trial's name, rows of a trial under way that are left out, an evaluation
    beside another round, classes in another order, stages outside the lineage that are not told apart."""
    rounds = both.rounds.set_index(["source", "trial"])
    assert len(both.trials) == 25 and both.trials["source"].value_counts().to_dict() == {"swept": 24, "ran": 1}
    counts = rounds.groupby(level=[0, 1]).size()
    assert counts["swept"].to_dict() == {f"{n:05d}": {2: 4}.get(n, 12) for n in range(24) if n != 1}
    for folder, source, trial in ((swept / "trials" / "00007", "swept", "00007"), (ran, "ran", "ran")):
        run = RunFolder(folder)
        own, wanted = rounds.loc[(source, trial)], run.frame("rounds")
        assert own["floats_up"].tolist() == wanted["floats_up"].tolist()
        assert own["round"].tolist() == wanted["round"].tolist()
        evaluations = run.frame("evaluations")
        assert own["accuracy"].tolist() == evaluations["accuracy"].tolist()
        assert own["test_samples"].tolist() == evaluations["samples"].tolist()
        last = both.classes[(both.classes["source"] == source) & (both.classes["trial"] == trial)].tail(10)
        assert last["accuracy"].tolist() == evaluations["class_accuracy"].iloc[-1].tolist()
        assert last["class"].tolist() == [*range(10)]
    assert rounds["in_lineage"].all()


def test_stages_beside_the_lineage_and_rounds_without_evaluation(tmp_path: Path) -> None:
    """Kills: rows of a branch that are lost, or taken for the lineage's; accuracies that move up a round."""
    after = [{"name": name, "needs": ["train"], "rounds": 1} for name in ("beside", "end")]
    folder = make_run(tmp_path / "run", Experiment(**BASE, stages=[{"name": "train", "rounds": 2}, *after]))
    path = folder / "evaluations.parquet"
    kept = RunFolder(folder).evaluations.arrow().take([1, 2, 3])
    pq.write_table(kept, path)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"rows": {}}))
    rounds = load_results(folder).rounds
    assert rounds["stage"].tolist() == ["train", "train", "beside", "end"]
    assert rounds["in_lineage"].tolist() == [True, True, False, True]
    assert pd.isna(rounds["accuracy"].iloc[0]) and pd.isna(rounds["test_samples"].iloc[0])
    assert rounds["accuracy"].tolist()[1:] == kept["accuracy"].to_pylist()


def test_rows_of_a_run_under_way_are_all_there(tmp_path: Path) -> None:
    """Kills: parts of a long table that are left out while the run goes on."""
    folder = make_run(tmp_path / "run")
    run = RunFolder(folder)
    row = run.clients.arrow().slice(0, 1).to_pylist()[0]
    for many in (GROUP_ROWS, 1):
        for _ in range(many):
            run.clients.add(row)
        run.flush()
    assert (folder / "rows").exists()
    assert len(load_results(folder).clients) == 48 + GROUP_ROWS + 1


def test_axes_keep_what_they_are(tmp_path: Path) -> None:
    """Kills: whole numbers that become reals, a mapping or a null that is lost, values in another sweep's rows."""
    kinds = {
        "whole": [1, 5],
        "real": [1, 0.5],
        "text": ["a", "b"],
        "mixed": [None, "a"],
        "algorithm": [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}],
    }
    for name, values in kinds.items():
        make_sweep(tmp_path / name, axes=[], seeds=(0, 1), rounds=1)
        axis = {"name": name, "key": name, "kind": "grid", "values": values, "log": False}
        sweep = (tmp_path / name / "sweep.yaml").read_text().replace("axes: []", f"axes: [{json.dumps(axis)}]")
        (tmp_path / name / "sweep.yaml").write_text(sweep)
        for number, value in enumerate(values):
            path = tmp_path / name / "trials" / f"{number:05d}" / "trial.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), "setting": {name: value}}))
    table = load_results(*(tmp_path / name for name in kinds)).arrow("trials")
    found = {name: (str(table[name].type), table[name].drop_null().to_pylist()) for name in kinds}
    assert found == {
        "whole": ("int64", [1, 5]),
        "real": ("double", [1.0, 0.5]),
        "text": ("string", ["a", "b"]),
        "mixed": ("string", ["null", '"a"']),
        "algorithm": ("string", ['{"name": "fedavg"}', '{"mu": 0.1, "name": "fedprox"}']),
    }
    assert table["setting"].to_pylist()[-1] == "fedprox(mu=0.1)"


def coded(folder: Path, code: str) -> str:
    """The digest of the run in ``folder``, said to be computed by ``code``."""
    path = folder / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "versions": {"code": code}}))
    return load_results(folder).trials["digest"].iloc[0]


def test_a_digest_is_of_experiment_and_code(tmp_path: Path) -> None:
    """Kills: a digest that leaves out the seed or the code, or has the place in it; one that a run under way lacks."""
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two")
    other = make_run(tmp_path / "three", load(one).experiment("one").replace({"seed": 1}))
    same = coded(one, "a")
    assert same == coded(two, "a") != coded(two, "b")
    assert coded(other, "a") != same
    unknown = coded(two, "unknown")
    (two / "summary.json").unlink()
    (row,) = load_results(two).trials.to_dict("records")
    assert (row["digest"], row["status"]) == (unknown, "running")


def test_damage_is_named_and_costs_its_own_trial(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kills: a damaged trial that is silently left out, or that takes the others along; a missing one without a row."""
    folder = make_sweep(tmp_path / "sweep", axes=[MU], seeds=(0,))
    trials = folder / "trials"
    (trials / "00000" / "summary.json").write_text("{")
    clients = trials / "00001" / "clients.parquet"
    clients.write_bytes(clients.read_bytes()[:-20])
    for path in sorted((trials / "00002").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (trials / "00002").rmdir()
    frames = load_results(folder)
    assert frames.trials["status"].tolist() == ["damaged", "finished", "missing", "finished"]
    assert list(frames.damage) == ["sweep:00000"] and "00000" in caplog.text
    assert set(frames.rounds["trial"]) == {"00001", "00003"}
    assert set(frames.clients["trial"]) == {"00003"}
    assert list(frames.damage) == ["sweep:00000", "sweep:00001"]
    assert "sweep:00001 has no rows in clients" in caplog.text


def test_a_damaged_run_costs_itself_alone(
    tmp_path: Path, ran: Path, caplog: pytest.LogCaptureFixture, call: Any
) -> None:
    """Kills: one damaged run by which many others cannot be read; one that is left out in silence, or of which a
    comparison takes another for the first; a damaged folder, alone, that is an empty table."""
    names = ("one", "two", "three")
    one, two, three = (make_run(tmp_path / name, rounds=2, client_rows=False) for name in names)
    (one / "summary.json").write_text("{")
    (two / "experiment.yaml").unlink()
    (two / "experiment.yaml").symlink_to(ran / "experiment.yaml")
    frames = load_results(one, two, three, ran)
    assert frames.trials["source"].tolist() == ["three", "ran"] and list(frames.damage) == ["one", "two"]
    assert "one is left out: " in caplog.text and "symbolic link" in frames.damage["two"]
    assert frames.damage["one"].endswith("; move it away and resume")
    for folders in ((one,), (one, two)):
        with pytest.raises(RunFolderError):
            load_results(*folders)
    code, _, err = call("compare", str(one), str(three), str(ran))
    assert code == 2 and "are not all whole" in err


def test_folders_are_told_apart_and_wrong_ones_refused(tmp_path: Path, ran: Path) -> None:
    """Kills: two folders of one name as one source, a folder that counts twice, a folder of folders that is read as
    something or refused without a word on what it holds."""
    for place in ("a", "b"):
        make_run(tmp_path / place / "run")
    frames = load_results(tmp_path / "a" / "run", str(tmp_path / "b" / "run"), ran)
    assert frames.trials["source"].tolist() == list(frames.folders) == ["a/run", "b/run", "ran"]
    assert load_results(ran).results.metric == "last10_accuracy"
    with pytest.raises(ConfigError, match="3 folders were given"):
        _ = frames.results
    with pytest.raises(ConfigError, match="is given twice"):
        load_results(ran, ran.parent / "." / "ran")
    with pytest.raises(RunFolderError, match=r"neither a run nor a sweep: .*; it holds run: name these, as .*a/run"):
        load_results(tmp_path / "a")
    with pytest.raises(ConfigError, match="name no run and no sweep"):
        load_results()
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        frames.arrow("round")


# --- SQL ------------------------------------------------------------------------------------------------


def test_a_query_sees_the_same_tables(both: Frames) -> None:
    """Kills: a table that is not there, another one under its name; a join that finds nothing."""
    query = "select t.alpha, count(*) n, avg(r.accuracy) a from trials t join rounds r using (source, trial) "
    found = answer(both, query + "where t.alpha is not null group by t.alpha order by t.alpha").to_pandas()
    rows = both.rounds.merge(both.trials[["source", "trial", "alpha"]], on=["source", "trial"]).dropna(subset=["alpha"])
    wanted = rows.groupby("alpha")["accuracy"].agg(["size", "mean"])
    assert found["n"].tolist() == wanted["size"].tolist()
    assert found["a"].tolist() == pytest.approx(wanted["mean"].tolist())
    for name in TABLES:
        assert answer(both, f"select count(*) n from {name.upper()}")["n"].to_pylist() == [len(both.arrow(name))]


REFUSED = {
    "select acuracy from trials": "column=acuracy: is no column of trials; did you mean 'accuracy'",
    "select t.sed from trials t": "column=sed: is no column of trials; did you mean 'seed'",
    "select * from trails": "table=trails: .*did you mean 'trials'",
    "drop table trials": "is not one SELECT",
    "select 1; select 2": "is not one SELECT",
    "set enable_external_access=true": "is not one SELECT",
    "select * from read_csv('{file}')": "refused by DuckDB .*disabled by configuration",
    "select * from read_parquet('{file}')": "refused by DuckDB .*disabled by configuration",
    "select * from glob('{file}')": "refused by DuckDB .*disabled by configuration",
    "select * from '{file}'": "table=.*: is no table|disabled by configuration",
    "copy (select 1) to '{file}.new'": "query=",
    "attach '{file}.db'": "query=",
    "select * from both": "query=.*refused|table=both",
    "selec": "refused by DuckDB .*syntax error",
}


@pytest.mark.parametrize("query", REFUSED)
def test_a_query_only_reads_the_tables(both: Frames, tmp_path: Path, query: str) -> None:
    """Kills: a query that reads or writes a file or a variable of this process; a refusal without the nearest name."""
    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    with pytest.raises(ConfigError, match=REFUSED[query]):
        answer(both, query.format(file=file))
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_the_command_prints_tables_csv_and_json(call: Any, swept: Path, ran: Path) -> None:
    """Kills: a format that loses rows or names; a folder taken for the query; a query without folders; one
    that is longer than any file's name may be; a whole number that is rounded beside an empty cell."""
    query = "select trial, alpha, last10_accuracy, null as nothing from trials where seed = 1 order by trial"
    wanted = load_results(swept).trials.query("seed == 1")
    code, out, _ = call("query", str(swept), query, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [row["trial"] for row in rows] == wanted["trial"].tolist()
    assert rows[1]["last10_accuracy"] == wanted["last10_accuracy"].iloc[1] and rows[0]["nothing"] is None
    _, out, _ = call("query", str(swept), query, "--csv")
    assert out.splitlines()[0] == "trial,alpha,last10_accuracy,nothing" and len(out.splitlines()) == 1 + len(wanted)
    _, out, _ = call("query", str(swept), str(ran), "select count(*) as n, max(accuracy) as a from trials")
    assert out.split()[:3] == ["n", "a", "25"]
    lines = call(
        "query", str(swept), "select 9007199254740993 as n, {'a': [1, null]} as l union all select null, null", "--csv"
    )
    assert lines[1].splitlines() == ["n,l", '9007199254740993,"{""a"": [1, null]}"', ","]
    assert call("query", str(swept), f"{query} {'-' * 5000}")[0] == 0
    assert call("query", str(swept))[0] == call("query", query)[0] == call("query", str(swept), str(ran))[0] == 2
    assert "did you mean 'accuracy'" in call("query", str(swept), "select accurac from trials")[2]


def test_one_name_for_two_settings_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kills: a column that holds one sweep's mu and another's weight decay, without a word."""
    make_sweep(tmp_path / "other", axes=[{**MU, "key": "local.weight_decay"}], seeds=(0,), rounds=2, client_rows=False)
    make_sweep(tmp_path / "one", axes=[MU], seeds=(0,), rounds=2, client_rows=False)
    assert len(load_results(tmp_path / "one", tmp_path / "other").trials) > 1
    assert "column mu is algorithm.mu of one sweep and local.weight_decay of another" in caplog.text


def test_columns_of_one_name_are_told_apart(call: Any, swept: Path, tmp_path: Path) -> None:
    """Kills: rows that are dictionaries by their header, so that a self-join shows the second value under the first
    name, or none; a --csv that dies; axes that SQL takes for one, since it does not look at capitals."""
    query = "select a.trial, b.trial, a.alpha, b.alpha from trials a join trials b on a.seed = b.seed "
    query += "where a.trial < b.trial and a.alpha <> b.alpha order by all limit 1"
    found = load_results(swept).trials.set_index("trial")["alpha"]
    row = json.loads(call("query", str(swept), query, "--json")[1])["rows"][0]
    assert [*row] == ["trial", "trial_1", "alpha", "alpha_1"]
    assert row["trial"] != row["trial_1"] and row["alpha"] != row["alpha_1"]
    assert [row["alpha"], row["alpha_1"]] == [found[row["trial"]], found[row["trial_1"]]]
    shown = [[str(value) for value in line] for line in (row.keys(), row.values())]
    assert [line.split(",") for line in call("query", str(swept), query, "--csv")[1].splitlines()] == shown
    assert [line.split() for line in call("query", str(swept), query)[1].splitlines()] == shown
    axes = [MU, {**ALPHA, "name": "Mu"}]
    make_sweep(tmp_path / "capitals", axes=axes, seeds=(0,), rounds=2, client_rows=False)
    with pytest.raises(ConfigError, match="axis=mu: stands for two columns in SQL"):
        answer(load_results(tmp_path / "capitals"), "select Mu from trials")


def test_without_duckdb_there_is_one_sentence(both: Frames, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a traceback for a package that is not there."""
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(Exception, match=r"pip install 'fedskew\[query\]'"):
        answer(both, "select 1")


def test_frames_of_sweeps_are_equal_to_their_results(both: Frames, swept: Path) -> None:
    """Kills: a figure in another trial's row, a figure in another unit, a null that becomes a number."""
    results = load(swept)
    own = both.trials[both.trials["source"] == "swept"].reset_index(drop=True)
    for name in results.metrics:
        wanted = pd.to_numeric(results.trials[name]).astype(float).tolist()
        assert own[name].astype(float).tolist() == pytest.approx(wanted, nan_ok=True), name
    assert own["setting"].iloc[0] == "mu=0, alpha=0.05"
    assert ALPHA["name"] in own
