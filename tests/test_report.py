"""The report: a page that needs nothing but itself, and files that agree with the trials."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import os
import re
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from engine.analysis import figures
from engine.analysis.claims import judge
from engine.analysis.drawing import INK, THEME, Sketch
from engine.analysis.importance import importance
from engine.analysis.layouts import comparisons, layout_frame
from engine.analysis.report import write
from engine.analysis.scales import Scale, quantity, settings_of
from engine.analysis.tables import Axis, load
from engine.errors import ConfigError
from tests.sweep_folders import ALPHA, MU, make_run, make_sweep

ATTACK = "<script>alert(1)</script>"
CLAIMS: list[dict[str, Any]] = [
    {
        "text": f"A little of the proximal term helps {ATTACK}",
        "source": "Li et al. 2020, figure 2",
        "better": {"mu": 0.1},
        "worse": {"mu": 0.0},
    },
    {
        "text": "It gains more than twenty points",
        "source": "nobody",
        "better": {"mu": 0.1},
        "worse": {"mu": 0.0},
        "margin": 0.2,
    },
    {
        "text": "Less of it is better than more",
        "source": "nobody",
        "better": {"mu": 0.01},
        "worse": {"mu": 1.0},
        "where": {"alpha": 0.5},
    },
]
TABLE: dict[str, Any] = {
    "title": "FedProx & its mu",
    "rows": ["mu"],
    "columns": ["alpha"],
    "source": "Li et al. 2020, table 1",
    "published": [
        {"setting": {"mu": 0.1, "alpha": 0.05}, "value": 0.7316},
        {"setting": {"mu": 0.0, "alpha": 0.5}, "value": 0.9127, "same_setting": False, "note": "with 100 clients"},
    ],
}
FAILED = 7
REASON = "RunError: weights are not finite in round 3"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 trials, one of which failed; written once, for all tests that only read."""
    folder = make_sweep(
        tmp_path_factory.mktemp("sweeps") / "one",
        rounds=6,
        failed=[FAILED],
        title=f"FedProx {ATTACK} & $\\mu$",
        claims=CLAIMS,
        tables=[TABLE],
        client_rows=False,
    )
    write(folder)
    return folder


def small(folder: Path, **fields: Any) -> Path:
    return make_sweep(folder, **{"seeds": (0, 1), "rounds": 3, "client_rows": False} | fields)


# --- reading a page ---------------------------------------------------------------------------------------

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What stands in a page, by element; fails on tags that do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.attributes: list[tuple[str, str, str]] = []  # tag, name, value
        self.badges: list[str] = []
        self.rows: dict[str, list[list[str]]] = {}  # of each table
        self.tips: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self._table = ""
        self.feed(self.source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.attributes += [(tag, name, value) for name, value in values.items()]
        if "data-verdict" in values:
            self.badges.append(values["data-verdict"])
        if "data-tip" in values:
            self.tips.append(values["data-tip"])
        if tag == "table":
            self._table = values.get("id", "")
        if tag == "tr":
            self.rows.setdefault(self._table, []).append([])
        if tag in ("td", "th"):
            self.rows[self._table][-1].append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data: str) -> None:
        if "script" not in self._open and "style" not in self._open:
            self.text.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[self._table][-1][-1] += data

    def table(self, name: str) -> tuple[list[str], list[list[str]]]:
        head, *rows = self.rows[name]
        return [title.strip() for title in head], rows


def page_of(folder: Path) -> Page:
    return Page(folder / "report" / "report.html")


def check_self_contained(page: Page) -> None:
    for tag, name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
            assert value.startswith(("#", "data:")), (tag, name, value[:80])
        assert not name.startswith("on"), (tag, name)
    style_and_script = re.findall(r"<(?:style|script)[^>]*>(.*?)</(?:style|script)>", page.source, re.DOTALL)
    assert len(style_and_script) == 2
    for word in ("http:", "https:", "//", "@import", "fetch(", "XMLHttpRequest", "import(", "WebSocket", "sendBeacon"):
        found = [part for part in style_and_script if word in re.sub(r"(^|\s)//.*", "", part)]
        assert not found, word
    for address in re.findall(r"url\((.*?)\)", page.source):
        assert address.startswith("#"), address


# --- the page ---------------------------------------------------------------------------------------------


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


def test_the_table_shows_means_and_what_cannot_be_told_from_the_best(sweep: Path) -> None:
    """Kills: bold by mean alone, the best of all columns, published figures mixed up, fractions for percent."""
    results = load(sweep)
    layout = results.tables[0]
    cells = layout_frame(results, layout).to_dict("records")
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
        best = max((cell for cell in cells if cell["alpha"] == alpha), key=lambda cell: cell["mean"])
        near = [row["mu"] for row in compared if row["alpha"] == alpha and row["low"] <= 0 <= row["high"]]
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
    """Kills: a title that runs as a script, in the page or in Markdown; a claim that does."""
    page = page_of(sweep)
    assert "<script>alert" not in page.source
    assert page.source.count("&lt;script&gt;alert(1)") >= 3  # title twice, claim
    assert f"FedProx {ATTACK} & $\\mu$" in page.text
    assert "<script" not in (sweep / "report" / "report.md").read_text()


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


# --- the files --------------------------------------------------------------------------------------------


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
    np.testing.assert_allclose(cells["mean"], layout_frame(results, results.tables[0])["mean"])
    page = page_of(sweep)
    pictures = sorted(report.glob("*.png"))
    assert len(pictures) == page.source.count("<svg ") == page.source.count("<figure") > 10
    for picture in pictures:
        with Image.open(picture) as image:
            assert image.width > 500 and len(image.getcolors(1_000_000) or []) > 10, picture
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_markdown_says_the_same(sweep: Path) -> None:
    """Kills: a Markdown report without verdicts, pictures that are not there, a table torn by a bar."""
    report = sweep / "report"
    text = (report / "report.md").read_text()
    assert [text.count(f"**{word}**") for word in ("held", "not held", "undecided")] == [1, 1, 1]
    for name in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (report / name).exists()
    trials = load(sweep).trials
    for row in trials.to_dict("records"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {row['trial']} ")]
        assert row["status"] == "failed" or f" {100 * row['accuracy']:.1f} " in line
    assert f"| {REASON} |" in text
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    for block in tables:
        assert len({line.count("|") - line.count("\\|") for line in block.splitlines()}) == 1


def test_equal_folders_give_equal_bytes(tmp_path: Path) -> None:
    """Kills: a time stamp, a random id, an order that depends on hashing."""
    made = small(tmp_path / "sweep", rounds=4, failed=[1], claims=CLAIMS[:1])
    (made / "report").mkdir()
    (made / "report" / "heat-9.png").write_text("of an earlier sweep")
    first = {path.name: path.read_bytes() for path in write(made).parent.iterdir()}
    second = {path.name: path.read_bytes() for path in write(made).parent.iterdir()}
    assert set(first) == set(second) and "heat-9.png" not in first
    assert [name for name in first if first[name] != second[name]] == []


def test_another_metric(tmp_path: Path) -> None:
    """Kills: a metric that is read and not used, a maximum where less is better, percent for a loss."""
    made = small(tmp_path / "sweep", rounds=8, target_accuracy=0.75)
    write(made, "loss")
    page = page_of(made)
    by_loss = load(made, "loss").settings()
    best = by_loss.sort_values("mean").iloc[0]
    assert f"mu={best['mu']:g}, alpha={best['alpha']:g}" in "".join(page.text).partition("best")[2][:200]
    assert any(tip.startswith("mu=0, alpha=0.05\n") and "%" in tip for tip in page.tips)  # a curve's
    _, rows = page.table("table-1")
    assert rows[0][1].startswith(f"{by_loss['mean'][0]:.4g}")
    write(made, "rounds_to_target")  # some never reach it
    assert "rounds to 75 % accuracy" in page_of(made).source
    with pytest.raises(ConfigError, match="metric=nothing"):
        write(made, "nothing")


# --- sweeps of all shapes ---------------------------------------------------------------------------------

EPOCHS = {"name": "epochs", "key": "local.epochs", "kind": "grid", "values": [1, 5], "log": False}
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
    names = {path.stem.rstrip("0123456789").rstrip("-") for path in (made / "report").glob("*.png")}
    expected = {
        "no axis": {"curves-accuracy", "curves-loss", "classes", "clients", "partition"},
        "one axis": {"curves-accuracy", "curves-loss", "sensitivity", "classes", "clients", "partition"},
        "one value": {"curves-accuracy", "curves-loss", "classes", "clients", "partition"},
        "all failed": set(),
        "drawn": {"curves-accuracy", "curves-loss", "sensitivity", "heat", "importance", "parallel"}
        | {"classes", "clients", "partition"},
        "three axes": {"curves-accuracy", "sensitivity", "heat", "importance", "parallel"}
        | {"classes", "clients", "partition"},
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
    assert names == {"curves-accuracy.png", "curves-loss.png", "classes.png", "clients.png", "partition-1.png"}
    summary = json.loads((run / "summary.json").read_text())
    assert f"{100 * summary['last10_accuracy']:.1f} %" in "".join(page.text)


def test_a_schedule_is_shown(tmp_path: Path) -> None:
    """Kills: a trial of population-based training shown as if it had kept what it began with."""
    made = small(tmp_path / "sweep", axes=(MU,))
    path = made / "trials" / "00003" / "trial.json"
    record = json.loads(path.read_text())
    record["schedule"].append({"first_round": 3, "set": {"algorithm.mu": 0.12}, "parent": "ab"})
    path.write_text(json.dumps(record))
    write(made)
    head, rows = page_of(made).table("trials")
    schedules = [row[head.index("schedule")] for row in rows]
    assert schedules == ["", "", "", "from round 3: algorithm.mu=0.12", "", "", "", ""]


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


# --- figures ----------------------------------------------------------------------------------------------


def test_figures_tell_the_numbers_behind_them(sweep: Path) -> None:
    """Kills: tips in another order than the marks, a mean over other trials, a band of one seed."""
    results = load(sweep)
    settings = settings_of(results)
    drawings, frame = figures.curves(results, settings)
    curves = results.curves()
    wanted = curves[(curves["mu"] == 0.1) & (curves["alpha"] == 0.5) & (curves["round"] == 6)]["accuracy"]
    drawn = frame[(frame["mu"] == 0.1) & (frame["alpha"] == 0.5) & (frame["round"] == 6)]
    assert drawn[drawn["quantity"] == "accuracy"]["mean"].item() == pytest.approx(wanted.mean())
    assert drawn["seeds"].item() == 3
    (panel,) = [one for one in drawings if "alpha=0.5" in one.caption]
    assert f"mu=0.1, alpha=0.5\nround 6: {100 * wanted.mean():.1f} %" in panel.svg.replace("&#10;", "\n")

    (heat,) = figures.heat_maps(results, settings)
    for setting in settings:
        mean = np.mean([row["last10_accuracy"] for row in setting.finished])
        told = f"{setting.label}\n{100 * mean:.1f} %"
        (tip,) = [tip for tip in tips_of(heat.svg) if tip.startswith(told)]
        assert tip.endswith("2 seeds" if setting.values == {"mu": 0.01, "alpha": 0.05} else "3 seeds")
        assert f">{100 * mean:.1f}</text>" in heat.svg

    first, _ = figures.sensitivity(results, settings)
    places = [(float(x), tip) for x, tip in re.findall(r'<use [^>]*x="([\d.]+)"[^>]*data-tip="(mu=[^"]*)"', first.svg)]
    assert len(places) == 23
    by_mu = {mu: [x for x, tip in places if tip.startswith(f"mu={mu},")] for mu in ("0", "0.01", "0.1", "1")}
    assert [len(by_mu[mu]) for mu in by_mu] == [6, 5, 6, 6]
    assert max(by_mu["0"]) < min(by_mu["0.01"]) < max(by_mu["0.01"]) < min(by_mu["0.1"]) < min(by_mu["1"])


def tips_of(svg: str) -> list[str]:
    return [tip.replace("&#10;", "\n") for tip in re.findall(r'data-tip="([^"]*)"', svg)]


def test_a_figure_takes_the_colours_of_the_page() -> None:
    """Kills: black letters on a dark page, text drawn as curves, a tip that breaks out of its attribute."""
    with figures.matplotlib.rc_context(figures.STYLE):
        sketch = Sketch(3, 2)
        axes = sketch.figure.subplots()
        axes.set_xlabel(f'{ATTACK} $x$ {INK} "')
        marks = axes.scatter([1, 2, 3], [1, 2, 3], color=figures.CATEGORIES[0])
        sketch.tip(marks, ['one"><script>', "two", "three"])
        drawing = sketch.finish("plain", "A <b>figure</b>.")
    outside_text = re.sub(r">[^<]*</text>", "", drawing.svg)
    assert not [colour for colour in THEME if colour in outside_text]
    assert "var(--ink)" in drawing.svg and "var(--category-0)" in drawing.svg
    assert f'&lt;script&gt;alert(1)&lt;/script&gt; $x$ {INK} "</text>' in drawing.svg
    assert "<script" not in drawing.svg and "<b>" not in drawing.svg
    assert tips_of(drawing.svg) == ["one&quot;&gt;&lt;script&gt;", "two", "three"]
    assert "http" not in drawing.svg
    with Image.open(io.BytesIO(drawing.png)) as image:
        assert image.size == (600, 400)


def test_zero_has_a_place_on_a_logarithmic_axis() -> None:
    """Kills: log(0), values at equal distances, a tick for a value that is not there."""
    axis = Axis("mu", "algorithm.mu", "grid", (0.0, 0.001, 0.1, 1.0), True)
    scale = Scale.of(axis, [0.0, 0.001, 0.1, 1, 1.0])
    assert [scale[value] for value in (0.001, 0.1, 1)] == pytest.approx([-3, -1, 0])
    assert scale[0] < -3 and math.isfinite(scale[0])
    assert [name for _, name in scale.ticks] == ["0", "0.001", "0.1", "1"]
    drawn = Scale.of(axis, list(np.geomspace(1e-3, 10, 40)))
    assert [name for _, name in drawn.ticks] == ["0.001", "0.01", "0.1", "1", "10"]
    words = Scale.of(Axis("option", "k", "grid", ("II", "I", True, [1, 2]), False), ["I", "II", True, [1, 2]])
    assert [words[value] for value in ("II", "I", True, [1, 2])] == [0, 1, 2, 3]
    assert not words.ordered


def test_quantities_are_written_with_their_units() -> None:
    """Kills: a fraction for a percentage, a percentage for a difference of points, 1e9 bytes."""
    accuracy = quantity("last10_accuracy")
    assert accuracy.text(0.81249, unit=True) == "81.2 %"
    assert accuracy.difference(-0.0123, unit=True) == "−1.2 points"
    assert accuracy.difference(0.0123) == "+1.2"
    assert accuracy.difference(-0.00001) == "0.0"
    assert accuracy.text(math.nan) == "–"
    assert quantity("bytes_to_target", 0.7).text(2_500_000, unit=True) == "2.5 MB"
    assert quantity("bytes_to_target", 0.7).title == "traffic to 70 % accuracy (MB)"
    assert quantity("rounds_to_target", 0.7).text(12.0) == "12"
    assert quantity("loss").text(0.123456) == "0.1235"


def test_partitions_of_many_clients_are_a_picture() -> None:
    """Kills: 100,000 bubbles."""
    counts = np.random.default_rng(0).integers(0, 20, (400, 100))
    drawing = figures.partition("partition-1", "alpha=0.1", counts)
    assert len(drawing.svg) < 150_000
    assert 'href="data:image/png;base64,' in drawing.svg
    few = figures.partition("partition-2", "", np.array([[3, 0], [1, 40]]))
    assert tips_of(few.svg) == [
        "client 0, class 0: 3 samples",
        "client 1, class 0: 1 sample",
        "client 1, class 1: 40 samples",
    ]


def test_importance_finds_what_matters(tmp_path: Path) -> None:
    """Kills: seeds as a hyper-parameter, an order by name, a forest on nothing, praise for one that knows nothing."""
    axes = (MU, EPOCHS | {"values": [1, 2, 4]})
    told = small(tmp_path / "told", axes=axes, accuracy=lambda s, seed: 0.5 + 0.05 * s["epochs"])
    results = load(told)
    worth = importance(results, settings_of(results))
    assert worth is not None
    assert worth.frame["axis"].tolist() == ["epochs", "mu"]
    shares = worth.frame["share"].tolist()
    assert shares[0] > 0.95 and sum(shares) == pytest.approx(1)
    assert worth.unseen > 0.8 and worth.settings == 12 and worth.trials == 24
    assert "R² = 0.9" in worth.note or "R² = 1.0" in worth.note

    luck = small(tmp_path / "luck", axes=axes, accuracy=lambda s, seed: 0.5 + 0.1 * (hash_of(s, seed) % 97) / 97)
    results = load(luck)
    worth = importance(results, settings_of(results))
    assert worth is not None and worth.out_of_bag < 0.3
    assert "do not read anything into the order" in worth.note

    few = load(small(tmp_path / "few", axes=(MU, ALPHA)))
    assert importance(few, settings_of(few)) is None


def hash_of(setting: dict[str, Any], seed: int) -> int:
    return int(hashlib.sha256(repr((sorted(setting.items()), seed)).encode()).hexdigest(), 16)


# --- in a browser -----------------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """Chromium without a window, over the DevTools protocol on a pipe."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        wire = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                wire,
                CHROMIUM,
                *flags,
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out = ours_in, ours_out
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict[str, Any]] = []
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            assert part, "the browser is gone"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._in)
        os.close(self._out)


@pytest.fixture
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium, chromium-browser or google-chrome")
    with tempfile.TemporaryDirectory(prefix="fedskew-browser-", ignore_cleanup_errors=True) as profile:
        opened = Browser(Path(profile))
        yield opened
        opened.close()


def test_the_page_in_a_browser(sweep: Path, browser: Browser) -> None:
    """Kills: a console error, a request that leaves the page, a page that scrolls sideways on a phone, a dead header,
    theme button or hover value."""
    page = sweep / "report" / "report.html"
    browser.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    browser.call("Page.navigate", url=page.as_uri())
    browser.wait_for("Page.loadEventFired")
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") == 390
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)

    column = "[...document.querySelectorAll('#trials tbody tr')].map(row => row.cells[{}].textContent)"
    accuracy = browser.evaluate(
        "[...document.querySelectorAll('#trials th button')].findIndex(b => b.textContent === 'final (%)')"
    )
    click = f"document.querySelectorAll('#trials th button')[{accuracy}].click()"
    browser.evaluate(click)
    risen = browser.evaluate(column.format(accuracy))
    assert risen[-1] == "" and [float(x) for x in risen[:-1]] == sorted(float(x) for x in risen[:-1])
    assert browser.evaluate(f"document.querySelectorAll('#trials th')[{accuracy}].ariaSort") == "ascending"
    browser.evaluate(click)
    fallen = browser.evaluate(column.format(accuracy))
    assert fallen[-1] == "" and fallen[:-1] == risen[-2::-1]

    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.evaluate(colour)
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate(colour) != light
    letters = "getComputedStyle(document.querySelector('#curves svg text')).fill"
    assert browser.evaluate(letters) == browser.evaluate("getComputedStyle(document.body).color")

    place = browser.evaluate(
        "(async () => { const mark = document.querySelector('#pairs svg [data-tip]'), frame = requestAnimationFrame;"
        " mark.scrollIntoView({block: 'center'}); await new Promise(done => frame(() => frame(done)));"
        " const box = mark.getBoundingClientRect();"
        " return [box.left + box.width / 3, box.top + box.height / 3, mark.dataset.tip]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    shown = "[document.getElementById('tip').hidden, document.getElementById('tip').textContent]"
    assert browser.evaluate(shown) == [False, place[2]]
    browser.evaluate("document.querySelector('#sensitivity svg').focus({preventScroll: true})")
    key = {"key": "ArrowRight", "code": "ArrowRight", "windowsVirtualKeyCode": 39}
    browser.call("Input.dispatchKeyEvent", type="keyDown", **key)
    told = browser.evaluate("document.querySelector('#sensitivity svg [data-tip]').dataset.tip")
    assert browser.evaluate(shown) == [False, told]
    browser.evaluate("document.querySelector('#table-1 td').focus({focusVisible: true})")
    assert browser.evaluate(shown)[1].startswith("mu=0, alpha=0.05\n95 % interval ")

    methods = [event["method"] for event in browser.events if "method" in event]
    assert "Network.requestWillBeSent" in methods
    requested = {
        event["params"]["request"]["url"]
        for event in browser.events
        if event.get("method") == "Network.requestWillBeSent"
    }
    assert {url for url in requested if not url.startswith("data:")} == {page.as_uri()}
    complaints = (
        "Log.entryAdded",
        "Runtime.exceptionThrown",
        "Runtime.consoleAPICalled",
        "Page.javascriptDialogOpening",
    )
    assert [event for event in browser.events if event.get("method") in complaints] == []


def test_the_origin_is_folded_in(sweep: Path) -> None:
    """Kills: a report that does not say what was asked for."""
    text = "".join(page_of(sweep).text)
    asked = yaml.safe_load((sweep / "sweep.yaml").read_text())
    assert asked["digest"] in text
    assert "dirichlet" in text and "target_accuracy: 0.7" in text
