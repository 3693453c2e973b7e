"""``--json`` on every command: one object on standard output, with the keys that docs/scripting.md names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from engine.base import errors
from engine.base.json_text import plain
from fedskew.cli import listing, results
from fedskew.cli.child import stop_code
from fedskew.cli.main import app
from fedskew.cli.output import alone_on_stdout, print_json
from tests.support.command_line import SMALL
from tests.support.loops import each
from tests.support.scripting_page import ERROR, EXIT_CODES, HEADINGS, keys
from tests.support.sweep_folders import ALPHA, MU, make_sweep

ROOT = Path(__file__).parents[2]
Call = Callable[..., tuple[int, str, str]]
COMMANDS: Any = typer.main.get_command(app)


def one_object(out: str) -> dict[str, Any]:
    """The object on standard output, which has nothing else."""
    assert out.endswith("\n") and out.count("\n") == 1, out
    found = json.loads(out, parse_constant=pytest.fail)
    assert isinstance(found, dict)
    return found


@each("name", list(COMMANDS.commands))
def test_every_command_has_it_and_is_documented(name: str) -> None:
    """Kills: a command without --json; one whose object no page describes; another sentence for the same option."""
    options = {text: one.help for one in COMMANDS.commands[name].params for text in one.opts}
    assert options.get("--json") == "print one JSON object to standard output, and all else to standard error"
    assert name in HEADINGS


def test_the_page_has_no_command_that_is_gone() -> None:
    """Kills: a command that scripts are promised and is not there; a key that one table promises twice."""
    commands = HEADINGS[: HEADINGS.index("A claim")]
    assert {*commands} == {*COMMANDS.commands}
    assert len(HEADINGS) == len({*HEADINGS}) and sorted({*EXIT_CODES}) == EXIT_CODES


def test_every_exit_code_is_documented() -> None:
    """Kills: an error with an exit code of its own that the table does not have."""
    found, left = set[int](), [errors.FedskewError]
    while left:
        kind = left.pop()
        found.add(kind.exit_code)
        left += kind.__subclasses__()
    assert {*found, stop_code(), 0} <= {*EXIT_CODES}


@pytest.mark.parametrize("what", [None, "experiments", "sweeps", "algorithms", "models", "datasets", "partitions"])
def test_list(call: Call, what: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a table in the place of the object, and a list whose entries have no name or no fields."""
    monkeypatch.setattr(listing, "SWEEPS", {"ccvr": ("main",)})  # all of them take seconds
    code, out, err = call("list", *filter(None, [what]), "--json")
    found = one_object(out)
    assert (code, err, found["list"]) == (0, "", what)
    assert found.keys() == keys("list")
    entries = {entry["name"]: entry for entry in found["entries"]}
    named = {"experiments": "quickstart", "sweeps": "ccvr.main", "algorithms": "fedprox", "partitions": "iid"}
    assert named.get(str(what), next(iter(entries))) in entries and all(entry["about"] for entry in entries.values())
    if what == "algorithms":
        assert entries["fedprox"]["fields"]["mu"] == 0.01
    if what == "sweeps":
        assert entries["ccvr.main"]["trials"]["laptop"] > 1


def test_run_resume_and_report(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a run whose folder a script must guess; what own code prints on standard output; a resumed run without an
    object, or a report without its page."""
    (tmp_path / "loud_one.py").write_text("print('here')\n")
    with_own = ["--with", "loud_one.py"]
    code, out, err = call("run", *SMALL, "rounds=1", "--json", "--out", "run", *with_own)
    found = one_object(out)
    assert (code, found["folder"], found["rounds"]) == (0, "run", 1)
    assert "here" in err and "test accuracy" in err
    assert {**found, "folder": None} == {**one_object(call("resume", "run", "--json")[1]), "folder": None}
    monkeypatch.setattr(results, "report", lambda folder, *more: folder / "report" / "report.html")
    code, out, _ = call("report", "run", "--json")
    assert (code, one_object(out)["report"]) == (0, "run/report/report.html")


def test_what_a_sweep_came_to(tmp_path: Path) -> None:
    """Kills: claims without verdict or interval; a figure that nobody recorded as a number."""
    claim = {"text": "mu helps", "source": "us", "better": {"mu": 0.1}, "worse": {"mu": 0.0}}
    nothing = {**claim, "metric": "cka_classifier"}
    axes = ({**MU, "values": [0.0, 0.1]}, ALPHA)
    make_sweep(tmp_path / "sweep", axes=axes, rounds=2, client_rows=False, claims=[claim, nothing])
    found = plain(results.outcome_in(tmp_path / "sweep"))
    assert {*found, "folder", "report"} == keys("report")
    assert [one.keys() for one in found["claims"]] == [keys("A claim")] * 2
    assert found["claims"][0]["low"] < found["claims"][0]["effect"] < found["claims"][0]["high"]
    assert found["claims"][0]["rope"] == 0.005 and 0 <= found["claims"][0]["above"] <= 1
    assert found["claims"][1]["effect"] is None and found["trials"] == 12


def test_the_cells_of_a_sweep(call: Call) -> None:
    """Kills: cells as a table alone, which a script cannot name."""
    found = one_object(call("run", "drift.fedprox_mu", "--json")[1])
    assert found.keys() == keys("Cells")
    assert "drift.fedprox_mu:mu=1,alpha=0.05" in found["cells"]


def test_check_new_doctor_and_claims(call: Call, tmp_path: Path) -> None:
    """Kills: an object of other keys than the page says, an exit code that --json changes, lines beside the object."""
    code, out, err = call("new", "partition", "own_json", "--json")
    found = one_object(out)
    assert (code, found["file"]) == (0, "own_json.py") and found.keys() == keys("new")
    code, out, err = call("check", "own_json.py", "--json")
    found = one_object(out)
    assert code == 0 and found.keys() == keys("check") and found["parts"][0]["name"] == "own_json"
    assert "  ok       every_row_at_most_once" in err
    code, out, _ = call("doctor", "--json")
    assert one_object(out).keys() == keys("doctor") and code in (0, 1)
    code, out, _ = call("claims", "drift", "--root", str(ROOT), "--json")
    assert one_object(out).keys() == keys("claims") and code == 0


@pytest.mark.parametrize(
    ("words", "kind", "field", "code"),
    [
        (["run", "local.lrr=1"], "ConfigError", "local.lrr", 2),
        (["list", "colours"], "ConfigError", "list", 2),
        (["report", "nowhere"], "RunFolderError", None, 2),
        (["run", "--nonsense"], "Usage", None, 2),
        (["nonsense"], "Usage", None, 2),
        (["resume"], "Usage", None, 2),
    ],
)
def test_an_error_is_an_object_too(call: Call, words: list[str], kind: str, field: str | None, code: int) -> None:
    """Kills: an empty standard output after a refusal; a sentence that is missing on standard error."""
    ended, out, err = call(*words, "--json")
    error = one_object(out)["error"]
    assert error.keys() == {*ERROR}
    assert (ended, error["kind"], error["field"], error["exit_code"]) == (code, kind, field, code)
    assert error["message"] and "rror" in err
    assert call(*words)[1] == ""


def test_ctrl_c_is_an_object_too(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a stopped command that says nothing to the script that called it."""

    def stopped() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedskew.cli.doctor.examine", stopped)
    code, out, _ = call("doctor", "--json")
    error = one_object(out)["error"]
    assert (code, error["kind"], error["exit_code"]) == (130, "Stopped", 130)


def test_one_object_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: a second object after the first; numbers that strict JSON lacks; an object that nobody asked for."""
    import numpy as np

    with alone_on_stdout(["report", "--json"]):
        print_json({"a": [float("nan"), np.float32(0.5), np.int64(3), Path("x")], "b": {1: float("inf")}})
        print_json({"error": {}})
        print("of somebody else")
    out, err = capsys.readouterr()
    assert one_object(out) == {"a": [None, 0.5, 3, "x"], "b": {"1": None}}
    assert err == "of somebody else\n"
    with alone_on_stdout(["report"]):
        print_json({})
    assert capsys.readouterr().out == ""
    assert plain((True, None, "é", b"\xff")) == [True, None, "é", "_w=="]
