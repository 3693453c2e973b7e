"""A sweep of which something is missing or damaged says so everywhere, and costs no other trial."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.record.sweep_files import PLAN
from engine.results.loading import load
from engine.results.trials import METRICS
from fedskew.lab.report import write
from tests.support.command_line import fedskew
from tests.support.report_pages import CLAIMS, page_of, small
from tests.support.sweep_folders import ALPHA, MU, make_sweep

GONE = ("00002", "00005", "00011", "00020")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sweep(tmp_path_factory.mktemp("sweeps") / "whole", rounds=3, client_rows=False, claims=CLAIMS)


@pytest.fixture
def lossy(whole: Path, tmp_path: Path) -> Path:
    """24 planned trials, of which four have gone with the tables that were made of them."""
    folder = Path(shutil.copytree(whole, tmp_path / "lossy"))
    for trial in GONE:
        shutil.rmtree(folder / "trials" / trial)
    (folder / "trials.parquet").unlink(missing_ok=True)
    return folder


@pytest.mark.slow
def test_what_is_missing_is_said_everywhere(
    lossy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kills: "20 (20 finished)" of 24; a page, a claim, a table or a terminal that takes what is there for all; a
    sentence without the repair; another exit code."""
    code, _, err = fedskew(monkeypatch, capsys, "report", str(lossy))
    said = " ".join(err.split())
    assert code == 0
    assert "20 of 24 planned trials are here (20 finished, 4 missing)" in said
    assert f"fedskew resume {lossy}" in said.replace(" /", "/").replace("resume/", "resume /")
    page, report = page_of(lossy), lossy / "report"
    text = " ".join("".join(page.text).split())
    assert "Incomplete: 20 of 24 planned trials are here (20 finished, 4 missing)." in text
    assert "Missing: 00002, 00005, 00011, 00020." in text
    assert text.lower().count("incomplete: of the ") == 3  # beside each claim
    assert "4 are missing (00002, 00005, 00011, 00020)" not in text  # each has what it rests on
    assert '<aside class="incomplete"' in page.source
    head, rows = page.table("trials")
    assert [row[0] for row in rows if row[head.index("status")] == "missing"] == list(GONE)
    plain = json.loads((report / "report.json").read_text())
    told = plain["completeness"]
    assert told["planned"] == 24 and told["statuses"] == {"finished": 20, "missing": 4}
    assert told["complete"] is False and told["missing"] == list(GONE)
    assert all("missing" in claim["lacks"] for claim in plain["claims"])
    claims: Any = pd.read_csv(report / "claims.csv")
    assert claims["lacks"].str.contains("missing").all()
    trials: Any = pd.read_csv(report / "trials.csv", dtype={"trial": str})
    assert trials.loc[trials["status"] == "missing", "trial"].tolist() == list(GONE)
    written: Any = pd.read_parquet(lossy / "trials.parquet")
    assert written["status"].tolist().count("missing") == 4


def test_a_claim_lacks_what_it_rests_on_alone(lossy: Path) -> None:
    """Kills: a gap elsewhere held against a claim; a group that is averaged over what happens to be there."""
    from fedskew.lab.report.claim_views import claim_views

    results = load(lossy)
    views = claim_views(results)
    settings: Any = results.trials.set_index("trial")[["mu", "alpha"]]
    for view in views:
        claim = view.verdict.claim
        for trial in GONE:
            mu, alpha = settings.loc[trial]
            belongs = mu in (claim.better["mu"], claim.worse["mu"]) and alpha == claim.where.get("alpha", alpha)
            assert (trial in view.lacks) == belongs
    assert results.settings()["missing"].sum() == 4
    assert results.trials["trial"].tolist() == [f"{number:05d}" for number in range(24)]


def test_a_sweep_that_is_whole_says_nothing(whole: Path) -> None:
    """Kills: a banner on every page."""
    results = load(whole)
    assert results.completeness.complete and results.completeness.sentences() == []
    assert (results.completeness.figure, results.completeness.counts) == ("24", "24 finished")


def test_the_repair_names_the_files_that_it_needs(lossy: Path) -> None:
    """Kills: a command to resume that a sweep of one's own file, or with parts of one, refuses for want of it."""
    assert "--with" not in " ".join(load(lossy).completeness.sentences(lossy))
    part = {"name": "mine", "origin": "file", "place": "/code/my method.py", "version": None, "code": "0" * 16}
    for trial in ("00000", "00001"):
        (lossy / "trials" / trial / "parts.json").write_text(json.dumps({"stages.train.algorithm": part}))
    (lossy / "sweep.yaml").write_text((lossy / "sweep.yaml").read_text() + "reference: /code/mine.py:two_rates\n")
    given = "--with /code/mine.py --with '/code/my method.py'"
    for folder, begin in ((lossy, f"fedskew resume {lossy}"), (None, "fedskew resume with this folder and")):
        assert f"{begin} {given} computes what is not there" in " ".join(load(lossy).completeness.sentences(folder))


def test_an_earlier_version_planned_in_silence(lossy: Path) -> None:
    """Kills: a sweep without a plan that counts as whole; settings that are made up; a damaged plan that
    is believed."""
    (lossy / PLAN).unlink()
    found = load(lossy).completeness
    assert (found.planned, found.statuses, found.missing) == (24, {"finished": 20, "missing": 4}, GONE)
    assert found.nameless == GONE and len(load(lossy).trials) == 20
    (lossy / PLAN).write_text('{"trials": [{"trial": "00000", "seed": 0')
    found = load(lossy).completeness
    assert found.planned == 24 and "plan.json cannot be read" in found.problem and not found.complete
    (lossy / PLAN).unlink()
    sweep = (lossy / "sweep.yaml").read_text()
    (lossy / "sweep.yaml").write_text(sweep.replace("kind: grid", "kind: grid", 1) + "samples: many\n")
    found = load(lossy).completeness
    assert found.planned is None and not found.complete
    assert "how many trials were planned is not recorded" in " ".join(found.sentences())


def test_what_the_plan_has_not_is_said(lossy: Path) -> None:
    """Kills: a folder from elsewhere that fills a gap."""
    shutil.copytree(lossy / "trials/00000", lossy / "trials/00099")
    record = lossy / "trials/00099/trial.json"
    record.write_text(record.read_text().replace("00000", "00099"))
    found = load(lossy).completeness
    assert not found.complete and "00099" in found.problem and len(found.missing) == 4


# --- damage ---------------------------------------------------------------------------------------------------

Damage = Callable[[Path], object]


def _text(name: str, content: str | bytes) -> Damage:
    return lambda trial: (trial / name).write_bytes(content.encode() if isinstance(content, str) else content)


def _cut(name: str) -> Damage:
    return lambda trial: (trial / name).write_bytes((trial / name).read_bytes()[:-30])


def _folder(name: str) -> Damage:
    return lambda trial: ((trial / name).unlink(), (trial / name).mkdir())


def _gone(name: str) -> Damage:
    return lambda trial: (trial / name).unlink()


def _edited(name: str, **values: Any) -> Damage:
    return lambda trial: (trial / name).write_text(json.dumps(json.loads((trial / name).read_text()) | values))


def _columns(name: str, **values: Any) -> Damage:
    return lambda trial: pd.read_parquet(trial / name).assign(**values).to_parquet(trial / name)


def _fewer(name: str) -> Damage:
    return lambda trial: pd.read_parquet(trial / name).iloc[:1].to_parquet(trial / name)


DAMAGE: dict[str, tuple[str, Damage]] = {
    "summary cut off": ("summary.json", _cut("summary.json")),
    "summary gone": ("summary.json", _gone("summary.json")),
    "summary a folder": ("summary.json", _folder("summary.json")),
    "summary a link to nothing": (
        "summary.json",
        lambda at: (_gone("summary.json")(at), os.symlink("no", at / "summary.json")),
    ),
    "summary of bytes": ("summary.json", _text("summary.json", b"\xff\xfe")),
    "summary in words": ("summary.json", _edited("summary.json", accuracy="0.8")),
    "summary of lists": ("summary.json", _edited("summary.json", last10_accuracy=[1])),
    "summary beyond": ("summary.json", _edited("summary.json", floats_up=10**400)),
    "summary of NaN": ("summary.json", _edited("summary.json", accuracy=float("nan"))),
    "experiment cut off": ("experiment.yaml", _text("experiment.yaml", "base: [")),
    "experiment gone": ("experiment.yaml", _gone("experiment.yaml")),
    "experiment a folder": ("experiment.yaml", _folder("experiment.yaml")),
    "experiment that needs itself": (
        "experiment.yaml",
        _text("experiment.yaml", "data: {name: x}\nexecution: {precision: x}\nstages: [{name: a, needs: [a]}]\n"),
    ),
    "evaluations cut off": ("evaluations.parquet", _cut("evaluations.parquet")),
    "evaluations gone": ("evaluations.parquet", _gone("evaluations.parquet")),
    "evaluations with fewer rows": ("evaluations.parquet", _fewer("evaluations.parquet")),
    "evaluations in words": ("evaluations.parquet", _columns("evaluations.parquet", accuracy="high")),
    "evaluations of three classes": (
        "evaluations.parquet",
        lambda at: _columns("evaluations.parquet", class_accuracy=[np.array([0.1, 0.2, 0.3])] * 3)(at),
    ),
    "rounds cut off": ("rounds.parquet", _cut("rounds.parquet")),
    "rounds gone": ("rounds.parquet", _gone("rounds.parquet")),
    "record cut off": ("trial.json", _cut("trial.json")),
    "record of nothing": ("trial.json", _text("trial.json", "{}")),
    "record a folder": ("trial.json", _folder("trial.json")),
    "record in words": ("trial.json", _edited("trial.json", rounds="x")),
    "record of no seed": ("trial.json", _edited("trial.json", seed=[1])),
    "record of another trial": ("trial.json", _edited("trial.json", trial="00001")),
    "record of an unknown status": ("trial.json", _edited("trial.json", status=["finished"])),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("sweeps") / "pair", axes=(MU | {"values": [0.0, 0.1]}, ALPHA), seeds=(0,))


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_to_a_trial_costs_that_trial_alone(pair: Path, tmp_path: Path, kind: str) -> None:
    """Kills: a table of trials that dies of one of them; one that is taken for whole, or not named with its file."""
    name, damage = DAMAGE[kind]
    folder = Path(shutil.copytree(pair, tmp_path / "sweep"))
    damage(folder / "trials" / "00002")
    before, results = load(pair).trials, load(folder)
    trials = results.trials
    assert trials["status"].tolist() == ["finished", "finished", "damaged", "finished"]
    row: dict[str, Any] = trials.to_dict("records")[2]
    assert name in row["reason"] and "\n" not in row["reason"]
    assert [row["mu"], row["alpha"], row["seed"]] == before[["mu", "alpha", "seed"]].iloc[2].tolist()
    assert trials[list(METRICS)].iloc[2].drop(["rounds", "rounds_asked", "rounds_computed"]).isna().all()
    others = [number for number in range(4) if number != 2]
    pd.testing.assert_frame_equal(trials.iloc[others], before.iloc[others], check_dtype=False)
    assert results.completeness.statuses == {"finished": 3, "damaged": 1}
    assert list(results.completeness.damage) == ["00002"]
    results.local_curves()
    assert "00002" not in set(results.curves()["trial"])


@pytest.mark.slow
def test_a_report_of_damaged_trials_is_written(pair: Path, tmp_path: Path) -> None:
    """Kills: a report that is lost to one trial, at its load or later; damage that the page keeps to itself."""
    folder = Path(shutil.copytree(pair, tmp_path / "sweep"))
    for trial, kind in (("00000", "summary in words"), ("00001", "experiment cut off"), ("00003", "record cut off")):
        DAMAGE[kind][1](folder / "trials" / trial)
    (folder / "trials/00002/personal.parquet").write_bytes(b"not parquet")  # read when it is drawn
    write(folder)
    text = " ".join("".join(page_of(folder).text).split())
    assert "4 trials are here (1 finished, 3 damaged)" in text
    for place in ("00000/summary.json", "00001/experiment.yaml", "00003/trial.json", "00002/personal.parquet"):
        assert place in text
    assert json.loads((folder / "report/report.json").read_text())["completeness"]["damage"].keys() == {
        "00000", "00001", "00002", "00003",
    }  # fmt: skip
