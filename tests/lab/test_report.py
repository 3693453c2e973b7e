"""The report: a page that needs nothing but itself, and files that agree with the trials."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from engine.base.errors import ConfigError, RunFolderError
from engine.base.owned import owned
from engine.experiment import Experiment
from engine.record.columns import SCHEMAS
from engine.results.frames import load_results
from engine.results.loading import load
from fedskew.lab.comparing.comparisons import comparisons, paper_frame
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.drawing import Drawing, new_panel
from fedskew.lab.report import write
from fedskew.lab.report.folder import PICTURES_AND_TABLES
from fedskew.lab.report.paper_tables import paper_tables
from fedskew.trackers.records import run_record, sweep_record
from tests.support.foreign import ANYWHERE, Foreign
from tests.support.report_pages import ATTACK, CLAIMS, FAILED, REASON, TABLE, check_self_contained, page_of, small
from tests.support.sweep_folders import ALPHA, BASE, EPOCHS, MU, make_run

pytestmark = pytest.mark.slow
CLIENTS, WHO = SCHEMAS["clients"], ("clients", "actors")

# --- the page ------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_but_itself(sweep: Path) -> None:
    """Kills: a web font, a script from a server, an SVG's namespace link, a style or script the policy refuses."""
    page = page_of(sweep)
    check_self_contained(page)
    policy = next(value for tag, name, value in page.attributes if name == "content" and "default-src" in value)
    (script,) = re.findall(r"<script>(.*?)</script>", page.source, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert len(page.source) < 1_000_000


def test_every_trial_has_its_row(sweep: Path) -> None:
    """Kills: a trial left out, figures of another trial, a failed trial without its reason."""
    trials = load(sweep).trials
    head, rows = page_of(sweep).table("trials")
    assert [row[0] for row in rows] == trials["trial"].tolist()
    for row, trial in zip(rows, trials.to_dict("records"), strict=True):
        cells = dict(zip(head, row, strict=True))
        assert cells["status"] == trial["status"]
        assert float(cells["mu"]) == trial["mu"] and float(cells["alpha"]) == trial["alpha"]
        assert cells["seed"] == str(trial["seed"])
        if trial["status"] == "failed":
            assert cells["final (%)"] == "" and cells["reason"] == REASON
        else:
            assert cells["final (%)"] == f"{100 * trial['accuracy']:.1f}" and cells["reason"] == ""
            assert cells["weights"] == trial["weights_sha256"][:12]


def test_a_failure_is_said_in_front_of_the_table(sweep: Path) -> None:
    """Kills: a reason that one has to scroll for."""
    text = "".join(page_of(sweep).text)
    assert re.search(rf"Failed:\s+{FAILED:05d} \(mu=0.01, alpha=0.05, seed=1\): {REASON}", text)
    assert "24" in text and "23 finished, 1 failed" in text


def test_claims_have_their_verdicts(sweep: Path) -> None:
    """Kills: a verdict of another claim, all claims held, effects as fractions."""
    verdicts = judge(load(sweep))
    words = [one.verdict for one in verdicts]
    assert words == ["held", "not held", "undecided"]
    page = page_of(sweep)
    assert page.badges == words
    text = " ".join("".join(page.text).split())
    for one in verdicts:
        assert f"{100 * one.effect:+.1f} points".replace("-", "−") in text
    assert f"about {verdicts[2].seeds_to_decide} seeds would decide it" in text
    assert "1 held, 1 not held, 1 undecided" in text
    frame = pd.read_csv(sweep / "report" / "claims.csv")
    assert frame["verdict"].tolist() == words
    np.testing.assert_allclose(frame["effect"], [one.effect for one in verdicts])
    _, cells = page.table("claim-1-cells")
    assert [row[1] for row in cells] == ["held", "held"]


def test_a_target_that_the_paper_never_reached_is_a_figure(tmp_path: Path) -> None:
    """Kills: "never" left out as if the paper had said nothing; an infinite difference beside it."""
    never = {"setting": {"mu": 0.1, "alpha": 0.5}, "value": math.inf, "same_setting": False}
    table = {**TABLE, "metric": "rounds_to_target", "published": [never]}
    made = small(tmp_path / "sweep", tables=[table], target_accuracy=0.5)
    view = paper_tables(load(made))[0]
    below = [cell.below for row in view.tables[0].rows for cell in row if cell.below]
    assert below == ["paper never, other setting"]
    assert "the published figure" in view.tables[0].note


def test_the_table_shows_means_and_what_cannot_be_told_from_the_best(sweep: Path) -> None:
    """Kills: bold by mean alone, the best of all columns, published figures mixed up, fractions for percent."""
    results = load(sweep)
    layout = results.tables[0]
    cells = paper_frame(results, layout).to_dict("records")
    head, rows = page_of(sweep).table("table-1")
    assert head == ["mu", "alpha=0.05", "alpha=0.5"]
    for cell in cells:
        column = head.index(f"alpha={cell['alpha']:g}")
        (row,) = [row for row in rows if float(row[0]) == cell["mu"]]
        assert row[column].startswith(f"{100 * cell['mean']:.1f} ± {100 * cell['std']:.1f}")
    assert rows[2][1].endswith("paper 73.2")
    assert rows[0][2].endswith("paper 91.3, other setting")
    source = page_of(sweep).source
    assert '<small class="other">paper 91.3, other setting</small>' in source
    assert "<small>paper 73.2</small>" in source
    bold = set(
        re.findall(r'<td class="best"[^>]*>([\d.]+) ', source.partition('id="table-1"')[2].partition("</table>")[0])
    )
    compared = comparisons(results, layout).to_dict("records")
    expected = set()
    for alpha in (0.05, 0.5):
        whole = {cell["mu"]: cell for cell in cells if cell["alpha"] == alpha and not cell["failed"]}
        best = max(whole.values(), key=lambda cell: cell["mean"])
        near = [row["mu"] for row in compared if row["alpha"] == alpha and row["low"] <= 0 <= row["high"]]
        near = [mu for mu in near if mu in whole]
        expected |= {f"{100 * c['mean']:.1f}" for c in cells if c["alpha"] == alpha and c["mu"] in [best["mu"], *near]}
    assert bold == expected
    assert 2 <= len(bold) < len(cells)


def test_comparisons_stand_behind_the_table(sweep: Path) -> None:
    """Kills: p for Holm's p, differences against another column's best."""
    results = load(sweep)
    head, rows = page_of(sweep).table("table-1-comparisons")
    compared = comparisons(results, results.tables[0]).to_dict("records")
    assert len(rows) == len(compared) == 6
    for row, one in zip(rows, compared, strict=True):
        cells = dict(zip(head, row, strict=True))
        assert cells["setting"] == one["setting"] and cells["best of the column"] == one["reference"]
        assert cells["difference (points)"] == f"{100 * one['difference']:+.1f}".replace("-", "−")
        assert float(cells["p"]) == pytest.approx(one["p"], abs=1e-3)
        assert float(cells["p, Holm"]) == pytest.approx(one["p_holm"], abs=1e-3)
        assert one["p_holm"] > one["p"]


def test_what_users_write_is_text(sweep: Path) -> None:
    """Kills: a title that runs as a script; a claim that does."""
    page = page_of(sweep)
    assert "<script>alert" not in page.source
    assert page.source.count("&lt;script&gt;alert(1)") >= 3  # title twice, claim
    assert f"FedProx {ATTACK} & $\\mu$" in page.text


def test_headers_sort_and_say_so(sweep: Path) -> None:
    """Kills: a header without a button, cells that sort as text, an empty cell that sorts as 0."""
    source = page_of(sweep).source
    table = source.partition('<table id="trials">')[2].partition("</table>")[0]
    head, body = table.split("</thead>")
    assert head.count("<button type=") == head.count('<th scope="col"') > 10
    failed = next(row for row in body.split("<tr>") if f"{FAILED:05d}" in row)
    assert 'data-v=""' in failed
    accuracy = load(sweep).trials["accuracy"].tolist()[0]
    assert f'data-v="{accuracy!r}"' in body


def test_the_origin_is_folded_in(sweep: Path) -> None:
    """Kills: a report that does not say what was asked for, or in which arithmetic it was computed."""
    text = "".join(page_of(sweep).text)
    asked = yaml.safe_load((sweep / "sweep.yaml").read_text())
    assert asked["digest"] in text
    assert "precisionfloat32" in "".join(text.split())
    assert "dirichlet" in text and "target_accuracy: 0.7" in text


# --- the files -----------------------------------------------------------------------------------------------


def test_files_agree_with_the_trials(sweep: Path) -> None:
    """Kills: rounded CSV, a table without its file, a figure without its PNG, a trials table left behind."""
    results, report = load(sweep), sweep / "report"
    trials = pd.read_csv(report / "trials.csv", dtype={"trial": str})
    assert trials["trial"].tolist() == results.trials["trial"].tolist()
    for column in ("mu", "seed", "accuracy", "last10_accuracy", "worst_decile_accuracy", "rounds_to_target"):
        np.testing.assert_array_equal(trials[column], results.trials[column])
    assert json.loads(trials["class_accuracy"].tolist()[0]) == results.trials["class_accuracy"].tolist()[0]
    parquet = pd.read_parquet(sweep / "trials.parquet")
    assert parquet["last10_accuracy"].tolist()[:FAILED] == results.trials["last10_accuracy"].tolist()[:FAILED]
    cells = pd.read_csv(report / "table-1.csv")
    np.testing.assert_allclose(cells["mean"], paper_frame(results, results.tables[0])["mean"])
    page = page_of(sweep)
    pictures = sorted(report.glob("*.png"))
    assert len(pictures) == page.source.count("<img ") == page.source.count("<figure") == 10
    for picture in pictures:
        with Image.open(picture) as image:
            assert image.width > 500 and len(image.getcolors(1_000_000) or []) > 10, picture
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_equal_folders_give_equal_bytes(tmp_path: Path) -> None:
    """Kills: a time stamp, a random id, an order that depends on hashing; any picture taken for an old one of ours."""
    made = small(tmp_path / "sweep", rounds=4, failed=[1], claims=CLAIMS[:1])
    (made / "report").mkdir()
    for name in ("heat-9.png", "paper.tex", "heat-1.svg", "report.md"):
        (made / "report" / name).write_text("of an earlier version")
    foreign = Foreign(made, random.Random(0))
    foreign.plant(ANYWHERE)
    foreign.plant(ANYWHERE, below=made / "report")
    first, second = (
        {path.name: path.read_bytes() for path in write(made).parent.iterdir() if path.is_file()} for _ in range(2)
    )
    assert set(first) == set(second) and not {"heat-9.png", "paper.tex", "heat-1.svg", "report.md"} & set(first)
    assert [name for name in first if first[name] != second[name]] == []
    assert foreign.lost == []


def test_another_metric(tmp_path: Path) -> None:
    """Kills: a metric that is read and not used, a maximum where less is better, percent for a loss."""
    made = small(tmp_path / "sweep", rounds=8, target_accuracy=0.75)
    write(made, "loss")
    page = page_of(made)
    by_loss = load(made, "loss").settings()
    best = by_loss.sort_values("mean").iloc[0]
    assert f"mu={best['mu']:g}, alpha={best['alpha']:g}" in "".join(page.text).partition("best")[2][:200]
    _, rows = page.table("table-1")
    assert rows[0][1].startswith(f"{by_loss['mean'][0]:.4g}")
    write(made, "rounds_to_target")  # some never reach it
    assert "Rounds to 75 % accuracy" in page_of(made).source
    with pytest.raises(ConfigError, match="metric=nothing"):
        write(made, "nothing")


# --- sweeps of all shapes ------------------------------------------------------------------------------------

SHAPES: dict[str, dict[str, Any]] = {
    "no axis": {"axes": ()},
    "one axis": {"axes": (MU,)},
    "one value": {"axes": (MU | {"values": [0.1]},), "seeds": (3,)},
    "three axes": {"axes": (MU, ALPHA, EPOCHS), "seeds": (0,), "stages": True, "rounds": 5},
    "lists and mappings": {
        "axes": (
            {
                "name": "algorithm",
                "key": "algorithm",
                "kind": "grid",
                "values": [{"name": "fedavg"}, {"name": "fedprox", "mu": 0.1}],
                "log": False,
            },
            {"name": "hidden", "key": "model.hidden", "kind": "grid", "values": [[8], [16, 8]], "log": False},
        )
    },
    "words": {
        "axes": (
            {
                "name": "<b>$model",
                "key": "model.name",
                "kind": "grid",
                "values": ["mlp", "logistic"],
                "log": False,
            },
        )
    },
    "drawn": {
        "axes": (
            {"name": "mu", "key": "algorithm.mu", "kind": "sampled", "values": None, "log": True},
            {"name": "lr", "key": "local.lr", "kind": "sampled", "values": None, "log": True},
            ALPHA | {"values": [0.05, 0.06, 0.07, 0.08, 0.1, 0.2, 0.3, 0.5]},
        ),
        "stopped": range(0, 16, 3),
    },
    "all failed": {"failed": range(16), "claims": CLAIMS, "tables": [TABLE]},
    "all stopped": {"axes": (MU,), "stopped": range(8), "rounds": 6},
    "under way": {"axes": (MU,), "killed": [0, 3]},
    "a table of other axes": {"axes": (MU,), "tables": [TABLE], "claims": CLAIMS},
}


def check_names(report: Path) -> None:
    """What a report is made of goes when another one takes its place."""
    files = {path for path in report.iterdir() if path.suffix not in (".html", ".json")}
    assert files == set(owned(report, PICTURES_AND_TABLES))


@pytest.mark.parametrize("shape", SHAPES)
def test_sweeps_of_all_shapes(shape: str, tmp_path: Path) -> None:
    """Kills: a report that needs two axes, numbers, a finished trial, scalars, or tables that fit."""
    made = small(tmp_path / "sweep", **SHAPES[shape])
    write(made)
    page = page_of(made)
    check_self_contained(page)
    trials = load(made).trials
    head, rows = page.table("trials")
    assert len(rows) == len(trials)
    assert [row[head.index("status")] for row in rows] == trials["status"].tolist()
    check_names(made / "report")
    names = {path.stem.rstrip("0123456789").rstrip("-") for path in (made / "report").glob("*.png")}
    expected = {
        "no axis": {"curves-accuracy", "curves-loss", "classes", "partition"},
        "one axis": {"curves-accuracy", "curves-loss", "sensitivity", "classes", "partition"},
        "one value": {"curves-accuracy", "curves-loss", "classes", "partition"},
        "all failed": set(),
        "drawn": {"curves-accuracy", "curves-loss", "sensitivity", "heat", "importance"} | {"classes", "partition"},
        "three axes": {"curves-accuracy", "sensitivity", "heat", "importance"} | {"classes", "partition"},
    }
    assert names == expected.get(shape, names)
    if shape == "all failed":
        assert "".join(page.text).count(REASON) == 17  # in each row, and once for all in front of the table
        assert page.badges == ["undecided"] * 3
    if shape == "a table of other axes":
        assert "This sweep cannot fill the table" in "".join(page.text)
        assert page.badges[:2] == [one.verdict for one in judge(load(made))][:2]


def test_a_single_run(tmp_path: Path) -> None:
    """Kills: a report for sweeps only."""
    run = make_run(tmp_path / "run", rounds=5)
    path = write(run)
    assert path == run / "report" / "report.html"
    page = page_of(run)
    check_self_contained(page)
    _, rows = page.table("trials")
    assert len(rows) == 1 and rows[0][0] == "run"
    names = {picture.name for picture in path.parent.glob("*.png")}
    assert names == {"curves-accuracy.png", "curves-loss.png", "classes.png", "partition-1.png"}
    summary = json.loads((run / "summary.json").read_text())
    assert f"{100 * summary['last10_accuracy']:.1f} %" in "".join(page.text)


def test_a_schedule_is_shown(tmp_path: Path) -> None:
    """Kills: a trial of population-based training shown as if it had kept what it began with; its last accuracy beside
    a setting that its last rounds did not have, in the page, trials.parquet, the frames and to trackers; a change that
    its weights never saw, since they are of the round before it."""
    made = small(tmp_path / "sweep", axes=(MU,))
    path = made / "trials" / "00003" / "trial.json"
    record = json.loads(path.read_text())
    began, last = record["setting"]["mu"], record["rounds"]
    changes = [{"first_round": 1, "set": {"mu": began}, "parent": None, "from": None}]
    changes += [{"first_round": 2, "set": {"mu": 0.12}, "parent": "ab", "from": "00001"}]
    changes += [{"first_round": last + 1, "set": {"mu": 0.7}, "parent": "cd", "from": "00002"}]
    path.write_text(json.dumps(record | {"schedule": changes}))
    write(made)
    head, rows = page_of(made).table("trials")
    schedules = [row[head.index("schedule")] for row in rows]
    told = f"from round 1: mu={began:g}; from round 2: mu=0.12, copied from 00001; "
    told += f"from round {last + 1}: mu=0.7, copied from 00002"
    assert schedules == ["", "", "", told, "", "", "", ""] and rows[3][head.index("mu")] == "0.12"
    kept = pq.read_table(made / "trials.parquet").to_pylist()
    for row in (kept[3], load_results(made).arrow("trials").to_pylist()[3]):
        assert (row["mu"], row["parent"], json.loads(row["schedule"])) == (0.12, "00002", changes)
    assert kept[2]["parent"] is kept[2]["schedule"] is None and kept[2]["mu"] != 0.12
    above = sweep_record(made, yaml.safe_load((made / "sweep.yaml").read_text()))
    told_of = run_record(path.parent, json.loads(path.read_text()), above)
    assert told_of is not None and told_of.params["setting.mu"] == 0.12


HARD = {  # values of an axis
    "large": (-1e308, 1e308),
    "small": (0.0, 5e-324),
    "escapes": ("\x1b]0;a\x07\x9b31m\u202e", "a$\\frac$"),
    "nul": ("a\0b", "c"),
}


@pytest.mark.pictures
@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("case", HARD)
def test_a_picture_that_cannot_be_drawn_costs_that_picture(
    tmp_path: Path, case: str, log: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: a report that dies of one value that has no place on an axis, or of letters that no font has."""
    made = small(tmp_path / "sweep", axes=({**MU, "values": [0.0, 0.1], "log": log},))
    values = dict(zip((0.0, 0.1), HARD[case], strict=True))
    for path in (made / "trials").glob("*/trial.json"):
        record = json.loads(path.read_text())
        path.write_text(json.dumps(record | {"setting": {"mu": values[record["setting"]["mu"]]}}))
    sweep = yaml.safe_load((made / "sweep.yaml").read_text())
    sweep["axes"][0]["values"] = [*values.values()]
    (made / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    path = write(made)
    page = page_of(made)
    check_self_contained(page)
    assert len(page.table("trials")[1]) == 4 and (path.parent / "curves-accuracy.png").stat().st_size > 1000
    lacks = "sensitivity cannot be drawn and is left out (" in caplog.text
    assert lacks == (case == "large") == (not any(path.parent.glob("sensitivity*")))


@pytest.mark.pictures
def test_a_figure_that_cannot_be_painted_is_a_blank(caplog: pytest.LogCaptureFixture) -> None:
    """Kills: an error of what paints, in the middle of a page; a page that has a broken picture."""
    figure, axes = new_panel()
    axes.set_title("$\\frac$")
    assert len(Drawing("curves", "", figure).png) > 100
    assert "curves.png cannot be drawn and is left out (" in caplog.text


def test_numbers_of_hundreds_of_digits_are_refused(tmp_path: Path) -> None:
    """Kills: a whole number that no real number has a place for, in a sweep, of which every table dies."""
    made = small(tmp_path / "sweep", axes=(MU,))
    path = made / "trials" / "00001" / "trial.json"
    path.write_text(re.sub('"mu": [0-9.]+', f'"mu": 1{"0" * 400}', path.read_text()))
    assert load(made).trials["status"].tolist()[1] == "damaged"
    text = (made / "sweep.yaml").read_text()
    (made / "sweep.yaml").write_text(text.replace("- 0.01", f"- 1{'0' * 400}"))
    with pytest.raises(RunFolderError, match="it has a number of more than 250 digits"):
        write(made)


def test_reuse_is_said(tmp_path: Path) -> None:
    """Kills: rounds asked for and computed exchanged; a failed trial's rounds counted as saved."""
    made = small(tmp_path / "sweep", axes=(MU,), rounds=10, failed=[1])
    for path in (made / "trials").glob("*/trial.json"):
        record = json.loads(path.read_text())
        if record["status"] == "finished" and record["trial"] != "00000":
            path.write_text(json.dumps(record | {"rounds_computed": 4}))
    write(made)
    text = " ".join("".join(page_of(made).text).split())
    assert "rounds asked for80" in text
    assert "rounds computed34" in text  # 10 + 6 * 4
    assert "reuse saved 36 (45 %)" in text


# --- oracles -------------------------------------------------------------------------------------------------

ORACLE = {"name": "iid_calibration", "fraction": 1.0}
STAGES = [
    {"name": "train", "rounds": 3, "algorithm": {"name": "fedavg"}},
    {"name": "calibrate", "rounds": 0, "needs": ["train"], "algorithm": ORACLE},
]
CALIBRATION = "stages.calibrate.algorithm"


def calibrations(folder: Path) -> Path:
    """A sweep of a calibration and its oracle, with a table and a claim on both."""
    values = [{"name": "ccvr"}, ORACLE]
    return small(
        folder,
        base={"stages": STAGES},
        axes=({"name": CALIBRATION, "key": CALIBRATION, "kind": "grid", "values": values, "log": False},),
        tables=[{"title": "By calibration", "rows": [CALIBRATION], "columns": []}],
        claims=[
            {"text": "It bounds the other", "source": "", "better": {CALIBRATION: values[1]},
             "worse": {CALIBRATION: values[0]}, "margin": -0.01},
            {"text": "It is above nothing", "source": "", "better": {CALIBRATION: values[0]}, "kind": "above"},
        ],
    )  # fmt: skip


def shares(folder: Path) -> Path:
    """A sweep of nothing but the oracle, by a field of it."""
    axis = {"name": "fraction", "key": f"{CALIBRATION}.fraction", "kind": "grid", "values": [0.25, 1.0], "log": False}
    return small(
        folder,
        base={"stages": STAGES},
        axes=(axis,),
        tables=[{"title": "By share", "rows": ["fraction"], "columns": []}],
        claims=[{"text": "More is better", "source": "", "better": {"fraction": 1.0}, "worse": {"fraction": 0.25}}],
    )


def test_an_oracle_is_marked_where_it_is_named(tmp_path: Path) -> None:
    """Kills: an oracle among methods, in a table, a claim, a trial's row or as the best, that looks like one of them;
    a mark on what is none."""
    made = calibrations(tmp_path / "sweep")
    write(made)
    page = page_of(made)
    named = "iid_calibration(breaks-privacy, fraction=1)"
    head, rows = page.table("trials")
    marks = [(row[head.index("privacy")], named in row) for row in rows]
    assert marks == [("", False)] * 2 + [("breaks-privacy", True)] * 2
    assert [row[0] for row in page.table("table-1")[1]] == ["ccvr", named]
    text = " ".join("".join(page.text).split())
    unmarked = re.sub(r"iid_calibration\(breaks-privacy|name: iid_calibration", "", text)  # the config is YAML
    assert "iid_calibration" not in unmarked
    assert text.count("an oracle: breaks privacy") == 2  # facts and the one claim
    assert "2 of 4 trials" in text


def test_an_oracle_is_marked_where_only_its_fields_are_named(tmp_path: Path) -> None:
    """Kills: a table, a claim or the best setting of an oracle whose axes are numbers, without a word of it."""
    made = shares(tmp_path / "sweep")
    write(made)
    page = page_of(made)
    head, rows = page.table("trials")
    assert {row[head.index("privacy")] for row in rows} == {"breaks-privacy"}
    text = " ".join("".join(page.text).split())
    assert "Every figure is of an oracle: breaks privacy." in text
    assert text.count("an oracle: breaks privacy") == 3  # facts, claim, table
    assert re.search(r"fraction=\S+, breaks-privacy", text)  # the best


def test_a_run_names_its_slowest_clients_and_actors(tmp_path: Path, sweep: Path) -> None:
    """Kills: times without the number of steps; rounds of other runs, or clients without a step, among them; the
    quickest first; a table of the one actor that there is; one in a sweep's report."""
    run = make_run(tmp_path / "run", client_rows=False)
    rows = [  # client, actor, steps, seconds, reused
        (3, 0, 10, 1.0, False),
        (3, 1, 10, 3.0, False),
        (5, 1, 2, 1.0, False),
        (7, 0, 100, 4.0, False),
        (7, 1, 1, 9.0, True),
        (9, 1, 0, 9.0, False),
    ]
    columns = dict(zip(("client", "actor", "steps", "seconds", "reused"), zip(*rows, strict=True), strict=True))
    table = {name: columns.get(name, ["train" if name == "stage" else 1] * len(rows)) for name in CLIENTS.names}
    pq.write_table(pa.table(table, CLIENTS), run / "clients.parquet")
    write(run)
    found = {name: [[float(cell) for cell in row] for row in page_of(run).table(f"slowest-{name}")[1]] for name in WHO}
    assert found["clients"] == [[5, 1, 2, 1, 1, 500], [3, 2, 20, 4, 3, 200], [7, 1, 100, 4, 4, 40]]
    assert found["actors"] == [[1, 2, 12, 4, 3, 333.3], [0, 2, 110, 5, 4, 45.45]]
    csv = pd.read_csv(run / "report/slowest-actors.csv")
    assert csv["ms_per_step"].tolist() == pytest.approx([1000 / 3, 5000 / 110])
    pq.write_table(pa.table({**table, "actor": [0] * len(rows)}, CLIENTS), run / "clients.parquet")
    write(run)
    assert "slowest-clients" in page_of(run).rows and "slowest-actors" not in page_of(run).rows
    assert not (run / "report/slowest-actors.csv").exists()
    assert "slowest-clients" not in page_of(sweep).rows


def test_a_run_that_ends_in_an_oracle_says_so(tmp_path: Path) -> None:
    """Kills: a single run's report without the mark; the mark on other runs."""
    run = make_run(tmp_path / "oracle", Experiment(**{**BASE, "stages": STAGES}))
    other = make_run(tmp_path / "other", rounds=5)
    for folder, count in ((run, 1), (other, 0)):
        write(folder)
        text = "".join(page_of(folder).text)
        assert text.count("an oracle: breaks privacy") == count
        assert ("breaks-privacy" in text) == bool(count), "the trial's row"
