"""The Tab key: what a shell is answered for commands, options, names, keys and their words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from fedskew.cli.main import app
from fedskew.testing import templates

ROOT = Path(__file__).parents[2]
BASH = shutil.which("bash")


def answered(**environment: str) -> str:
    """What a shell is answered that asks by these variables."""
    answer = CliRunner().invoke(app, [], env=environment, prog_name="fedskew")
    assert answer.exit_code == 0
    return answer.stdout


def in_bash(*typed: str) -> list[str]:
    """What bash is answered where the last word is typed; bash makes three words of key=value."""
    asked = {"COMP_WORDS": "\n".join(typed), "COMP_CWORD": str(len(typed) - 1)}
    return answered(_FEDSKEW_COMPLETE="complete_bash", **asked).split()


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
def test_bash(typed: list[str], wanted: list[str]) -> None:
    """Kills: a word at the wrong place; a key's words that are another's; names in the place of files."""
    assert in_bash(*typed) == wanted


def test_other_shells() -> None:
    """Kills: a whole ``key=value`` answered by its value alone; a text on a name that fish takes for more words."""
    fish = {"_FEDSKEW_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found = answered(**fish, _TYPER_COMPLETE_ARGS="fedskew run algorithm.name=fedp").split()
    assert found == ["algorithm.name=fedprox", "algorithm.name=fedper", "algorithm.name=fedproto"]
    (line,) = answered(**fish, _TYPER_COMPLETE_ARGS="fedskew run qui").splitlines()
    assert line.startswith("quickstart\t")


def test_own_parts_are_completed(tmp_path: Path) -> None:
    """Kills: a file of ``--with`` that is not looked at before its names are asked for."""
    path, _ = templates.write("partition", "tab_part", tmp_path)
    assert in_bash("fedskew", "run", "--with", str(path), "partition.name", "=", "tab_") == ["tab_part"]


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
