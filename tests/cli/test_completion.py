"""The Tab key: what each shell is answered, how light the answer is, and that its words are today's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from fedskew.cli import completion
from fedskew.cli.completion import FILE, answer
from fedskew.cli.completion_words import to_text, words
from fedskew.cli.main import app

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash")


def answered(capsys: pytest.CaptureFixture[str], **environment: str) -> tuple[int | None, str]:
    code = answer(environment)
    return code, capsys.readouterr().out


def in_bash(capsys: pytest.CaptureFixture[str], *typed: str) -> list[str]:
    """What bash is answered where the last word is typed; bash makes three words of key=value."""
    asked = {"COMP_WORDS": "\n".join(typed), "COMP_CWORD": str(len(typed) - 1)}
    code, out = answered(capsys, _FEDSKEW_COMPLETE="complete_bash", **asked)
    assert code == 0
    return out.splitlines()


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        (["fedskew", "re"], ["resume", "report"]),
        (["fedskew", "run", "quick"], ["quickstart"]),
        (["fedskew", "sweep", "drift.fedprox"], ["drift.fedprox_mu"]),
        (["fedskew", "run", "local.las"], ["local.last_batch="]),
        (["fedskew", "run", "algorithm.name", "=", "fedp"], ["fedprox", "fedper", "fedproto"]),
        (["fedskew", "run", "local.last_batch", "="], ["keep", "drop", "wrap"]),
        (["fedskew", "run", "local.last_batch=", "w"], ["wrap"]),
        (["fedskew", "run", "model.projection", "=", ""], ["true", "false"]),
        (["fedskew", "sweep", "ccvr.main", "--until"], ["--until-decided"]),
        (["fedskew", "sweep", "ccvr.main", "--profile", "p"], ["paper"]),
        (["fedskew", "list", "mod"], ["models"]),
        (["fedskew", "resume", "runs/"], []),  # the shell offers files
        (["fedskew", "run", "local.lr", "=", ""], []),
    ],
    ids=str,
)
def test_bash(capsys: pytest.CaptureFixture[str], typed: list[str], wanted: list[str]) -> None:
    """Kills: a word at the wrong place; a key's words that are another's; names in the place of files."""
    assert in_bash(capsys, *typed) == wanted


def test_zsh_and_fish(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: an answer in another shell's words; a whole ``key=value`` answered by its value alone; a colon that zsh
    takes for the beginning of the help."""
    zsh = {"_FEDSKEW_COMPLETE": "complete_zsh"}
    code, out = answered(capsys, **zsh, _TYPER_COMPLETE_ARGS="fedskew lis")
    about = "List what there is to choose from, with fields and their defaults."
    assert (code, out) == (0, f"""_arguments '*: :(("list":"{about}"))'\n""")
    assert answered(capsys, **zsh, _TYPER_COMPLETE_ARGS="fedskew report ")[1] == "_files\n"
    assert "SWEEP\\\\:CELL" in completion._for_zsh("x", "SWEEP:CELL")
    fish = {"_FEDSKEW_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    code, out = answered(capsys, **fish, _TYPER_COMPLETE_ARGS="fedskew run algorithm.name=fedp")
    assert out == "algorithm.name=fedprox\nalgorithm.name=fedper\nalgorithm.name=fedproto\n"
    assert answered(capsys, **fish, _TYPER_COMPLETE_ARGS="fedskew lis")[1] == f"list\t{about}\n"
    fish["_TYPER_COMPLETE_FISH_ACTION"] = "is-args"
    codes = [answered(capsys, **fish, _TYPER_COMPLETE_ARGS=text)[0] for text in ("fedskew lis", "fedskew report x")]
    assert codes == [0, 1]


def test_whatever_else_is_typers(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: a shell that is not known here and is told nothing at all."""
    assert answered(capsys, _FEDSKEW_COMPLETE="complete_powershell") == (None, "")


def test_the_words_are_todays() -> None:
    """Kills: a command, an option, a key or a name that the Tab key does not know."""
    assert FILE.read_text(encoding="utf-8") == to_text(words()), "python -m fedskew.cli.completion_words"


def test_it_is_light() -> None:
    """Kills: torch, typer or another thing that takes long in the process that answers."""
    imports = "import sys, fedskew.cli.launcher, fedskew.cli.completion"
    text = f"{imports}\nprint(*{{one.split('.')[0] for one in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "ray", "typer", "click", "rich", "numpy", "pydantic", "pyarrow"} & {*loaded}


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_in_a_real_bash(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a script for another variable or program than the one that answers; a program that runs the command."""
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", BASH))  # whatever this process was begun by
    command: Any = typer.main.get_command(app)
    with pytest.raises(SystemExit, match="0"):
        command.main(["--show-completion", "bash"], prog_name="fedskew")
    script = capsys.readouterr().out
    program = tmp_path / "fedskew"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedskew.cli.launcher "$@"\n')
    program.chmod(0o755)
    asked = "COMP_WORDS=(fedskew tune); COMP_CWORD=1; _fedskew_completion fedskew; echo ${COMPREPLY[@]}"
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    typed = [str(BASH), "--norc", "-c", f"{script}\n{asked}"]
    done = subprocess.run(typed, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "tune-executor\n"
