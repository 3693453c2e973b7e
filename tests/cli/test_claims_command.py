"""``fedskew claims``: the page and the README's rows that are in the repository, and how they are made."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from engine.results.claims import Claim
from fedskew.cli.claims import BOARD, LEDGER, PAGE, README, ledger
from tests.support.sweep_folders import make_sweep
from tune_configs import SWEEPS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The pages and tables of this repository, to be changed."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / LEDGER, root / LEDGER)
    for page in (BOARD, PAGE, README):
        shutil.copy(ROOT / page, root / page)
    return root


@pytest.mark.long
def test_the_pages_are_what_the_command_makes(call: Any, checkout: Path) -> None:
    """Kills: a claim, a table or code that was changed without the page; a page or a README that was edited by hand;
    a check that writes, or finds nothing."""
    code, _, err = call("claims", "--check", "--root", str(ROOT))
    assert code == 0, err
    edited = {PAGE: ("not yet run", "held"), README: ("| CCVR |", "| CVR |"), BOARD: ("cbfl", "cbf")}
    for page, (before, after) in edited.items():
        text = (checkout / page).read_text()
        (checkout / page).write_text(text.replace(before, after, 1))
        code, _, err = call("claims", "--check", "--root", str(checkout))
        assert (code, f"{page} is not up to date" in err) == (1, True)
        assert (checkout / page).read_text() != text
        (checkout / page).write_text(text)


@pytest.mark.long
def test_every_claim_has_a_row() -> None:
    """Kills: a sweep, or a claim that the profile paper alone states, that the ledger leaves out; one told twice."""
    rows = ledger(ROOT)
    assert {sweep.name for sweep in rows} <= {f"{module}.{name}" for module, names in SWEEPS.items() for name in names}
    assert {sweep.paper for sweep in rows if sweep.rows} == {*SWEEPS} - {"board"}
    told = [(sweep.name, row.claim.text, row.claim.source) for sweep in rows for row in sweep.rows if not sweep.entry]
    assert len(told) == len(set(told)) > 100
    assert any(sweep.profile == "paper" for sweep in rows)


def test_a_folder_is_recorded(call: Any, checkout: Path, tmp_path: Path) -> None:
    """Kills: an entry that is written and not judged; trials of another setting that count as the sweep's; JSON with
    a number that is none; rows of other papers in what was asked for."""
    name = "drift.scaffold_options"
    shutil.rmtree(checkout / LEDGER)
    axis = {"name": "option", "key": "algorithm.option", "kind": "grid", "values": ["I", "II"], "log": False}
    base = {"algorithm": {"name": "scaffold"}}
    equal = Claim("II is as good", "nobody", {"option": "II"}, {"option": "I"}, margin=0.5, kind="equal")
    fields = {"claims": [equal.to_mapping()], "name": name, "reference": name, "overrides": ["rounds=3"]}
    folder = make_sweep(tmp_path / "sweep", axes=[axis], rounds=3, client_rows=False, base=base, **fields)
    code, _, err = call("claims", "--record", str(folder), "--root", str(checkout))
    assert code == 0, err
    assert "6 trials in" in err
    page = (checkout / PAGE).read_text()
    assert re.search(r"\| 2 \| II is as good \| nobody \| of an earlier version \| [+−][\d.]+ points", page)
    assert "held then; since, its code had changed already when it was recorded, its setting has changed" in page
    code, out, _ = call("claims", name, "--json", "--root", str(checkout))
    rows = json.loads(out, parse_constant=pytest.fail)["claims"]
    assert code == 0
    assert {row["sweep"] for row in rows} == {name}
    assert rows[1]["verdict"] == "of an earlier version" and rows[1]["judged"] == "held"
    assert rows[1]["command"] == f"fedskew sweep {name} rounds=3"
    code, out, _ = call("claims", "drift", "--root", str(checkout))
    assert code == 0
    assert f"{name} (with rounds=3)" in out and "ccvr" not in out


def test_figures_are_compared_and_nothing_is_written(
    call: Any, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: pages that are made anew in the checkout of somebody who wanted to look."""
    asked: list[Any] = []
    monkeypatch.setattr("fedskew.cli.claims._confirm", lambda *words: asked.append(words))
    (checkout / PAGE).write_text("stale")
    place = checkout / LEDGER / "ccvr.cka.laptop.yaml"
    code, _, err = call("claims", "--confirm", str(place), "--figures", "0.005", "--root", str(checkout))
    assert (code, asked) == (0, [(place, checkout, 0.005)]), err
    assert (checkout / PAGE).read_text() == "stale"


def test_a_row_with_second_best_settings_says_so(call: Any) -> None:
    """Kills: one claim twice, with two effects, under one name."""
    code, out, _ = call("claims", "ccvr.headline", "--root", str(ROOT))
    assert (code, out.count("\n ccvr.headline "), out.count("\n ccvr.headline, second best ")) == (0, 5, 5)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ccvr.mian"], "did you mean 'ccvr.main'"),
        (["--record"], "needs the folder of a sweep"),
        (["--record", "nowhere"], "nowhere/sweep.yaml cannot be read"),
        (["--record", "mine"], "is a sweep of a file of your own"),
        (["--record", "--check", "mine"], "choose one of the two"),
        (["--confirm"], "--confirm=true: needs entries of the ledger"),
        (["--figures", "0.005", "mine"], "--figures=0.005: compares what --confirm runs; add --confirm"),
        (["--confirm", "--check", "mine"], "writes nothing, and --confirm does"),
        (["--confirm", "--record", "mine"], "is not for what --record adds"),
        (["--confirm", "nowhere.yaml"], "nowhere.yaml cannot be read as an entry of the ledger"),
        (["drift", "--check"], "--check=true: is of the whole page, not of drift alone; name nothing"),
        (["--root", "mine"], "is no checkout of fedskew"),
    ],
)
def test_wrong_words(call: Any, checkout: Path, words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a traceback; a sweep of one's own among the papers' claims; a check that passes without a look."""
    monkeypatch.chdir(checkout)
    (checkout / "mine").mkdir()
    (checkout / "mine" / "sweep.yaml").write_text("{reference: '/somewhere/mine.py:f', profile: laptop, overrides: []}")
    code, _, err = call("claims", *words)
    assert (code, said in " ".join(err.split())) == (2, True), err
    there, here = ({path.name: path.read_bytes() for path in (root / LEDGER).iterdir()} for root in (checkout, ROOT))
    assert there == here
