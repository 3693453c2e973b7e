"""Own parts on the command line: --with, what is said without it, and after an edit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from algorithms import ALGORITHMS
from engine.base import last_word, own_modules
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
    last_word.needed_files.clear()


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
