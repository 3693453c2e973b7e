"""Own parts on the command line: --with, what is said without it, and after an edit."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from algorithms import ALGORITHMS
from engine.base import errors, own_modules
from tests.support import own_prox
from tests.support.command_line import SMALL, weights_of

WORDS = [*SMALL, "rounds=3", "checkpoint.every=1", "algorithm.mu=0.1"]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    return own_prox.write(tmp_path / "code", ownprox=own_prox.FILE)


def another_process() -> None:
    """Forget what was loaded, as the next command has."""
    ALGORITHMS.pop("ownprox", None)
    for name in ("ownprox", "own_scale"):
        own_modules.sys.modules.pop(name, None)
        own_modules._read.pop(name, None)
    own_modules._named.clear()
    own_modules._TEXTS.sources.clear()
    errors.needed_files.clear()


def test_a_file_is_given_with_each_command(call: Any, tmp_path: Path, code: Path) -> None:
    """Kills: a file that is taken from the folder; one that is forgotten by the command which says how to go on."""
    given = ("--with", str(code / "ownprox.py"))
    twin = weights_of(call, "run", *WORDS, "algorithm.name=fedprox", "--out", "twin")
    exit, _, err = call("run", *WORDS, "algorithm.name=ownprox", "--out", "mine", "--until", "2", *given)
    assert exit == 0 and f"fedskew resume mine --with {code / 'ownprox.py'}" in err
    another_process()
    exit, _, err = call("resume", "mine")
    assert exit == 2
    assert f"algorithm 'ownprox' came from {code / 'ownprox.py'} and is not known here; give its file: --with" in err
    exit, _, err = call("run", *WORDS, "algorithm.name=ownprox")
    assert exit == 2 and "is not a known algorithm" in err and "a part of your own comes in by --with FILE.py" in err
    assert weights_of(call, "resume", "mine", *given) == twin
    assert call("report", "mine")[0] == 0
    page = (tmp_path / "mine" / "report" / "report.html").read_text()
    assert "algorithm ownprox" in page and f"file {code / 'ownprox.py'}, code " in page
    exit, out, _ = call("list", "algorithms", *given)
    assert exit == 0 and "FedProx (Li et al. 2020, eq. 2)." in " ".join(out.split()) and "mu=0.01" in out


def test_a_printed_command_names_the_file_that_it_needs(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: Path
) -> None:
    """Kills: a leaderboard's command that cannot make its run again for want of the file; a part of a
    package or a script of which nothing is said."""
    given = ("--with", str(code / "ownprox.py"))
    weights = weights_of(call, "run", *WORDS, "algorithm.name=ownprox", "--out", "mine", *given)
    another_process()
    (cell,) = json.loads(call("leaderboard", "mine", "--json")[1])["cells"]
    (run,) = cell["runs"]
    assert run["needs"] == [] and run["command"] in (tmp_path / "leaderboard" / "leaderboard.html").read_text()
    monkeypatch.chdir(tmp_path / "leaderboard")
    assert weights_of(call, *shlex.split(run["command"])[1:], "--out", "again") == weights

    monkeypatch.chdir(tmp_path)
    parts = tmp_path / "mine" / "parts.json"
    own = json.loads(parts.read_text())
    for origin, told in (("package", "install some-methods 1.2"), ("script", "run that script again")):
        own["stages.train.algorithm"] |= {"origin": origin, "place": "some-methods", "version": "1.2"}
        parts.write_text(json.dumps(own))
        (cell,) = json.loads(call("leaderboard", "mine", "--json")[1])["cells"]
        (sentence,) = cell["runs"][0]["needs"]
        assert sentence == f"algorithm 'ownprox' came from some-methods; {told}" and "--with" not in str(cell["runs"])
        page = (tmp_path / "leaderboard" / "leaderboard.html").read_text()
        assert sentence.replace("'", "&#39;") in page
    parts.write_text("{")
    (cell,) = json.loads(call("leaderboard", "mine", "--json")[1])["cells"]
    assert "parts.json cannot be read" in cell["runs"][0]["needs"][0]


@pytest.mark.parametrize("edited", ["ownprox.py", "own_scale.py"])
def test_an_edit_is_other_code(call: Any, tmp_path: Path, code: Path, edited: str) -> None:
    """Kills: rounds of two texts in one run; a finished run that is shown as that of a text it was not made by; hashes
    of today in the record of a run that was begun with others."""
    given = ("--with", str(code / "ownprox.py"))
    call("run", *WORDS, "algorithm.name=ownprox", "--out", "mine", "--until", "2", *given)
    before = json.loads((tmp_path / "mine" / "parts.json").read_text())["stages.train.algorithm"]["code"]
    (code / edited).write_text((code / edited).read_text() + "MORE = 1\n")
    another_process()
    exit, _, err = call("resume", "mine", *given)
    assert exit == 2 and "the run began with code" in err and "(of algorithm 'ownprox'), so bits may differ" in err
    assert json.loads((tmp_path / "mine" / "parts.json").read_text())["stages.train.algorithm"]["code"] == before
    exit, _, _ = call("resume", "mine", "execution.mixed_hardware=true", *given)
    assert exit == 0
    merged = json.loads((tmp_path / "mine" / "parts.json").read_text())["stages.train.algorithm"]["code"]
    assert before in merged.split(" | ") and len(merged.split(" | ")) == 2


def test_a_wrong_file_is_one_sentence(call: Any, tmp_path: Path, code: Path) -> None:
    """Kills: a traceback of a file that is missing, broken or none."""
    (code / "broken.py").write_text("import nothing_of_that\n")
    for file, told in (
        ("nowhere.py", "is not a file; name a Python file"),
        (
            "broken.py",
            "cannot be imported: ModuleNotFoundError: No module named 'nothing_of_that' (broken.py, line 1)",
        ),
        ("../code", "is not a file"),
    ):
        exit, _, err = call("run", "--with", str(code / file), *WORDS)
        assert exit == 2 and told in " ".join(err.split())
        another_process()
