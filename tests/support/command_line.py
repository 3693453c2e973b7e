"""The command line in this process: its words, and what comes of them."""

from __future__ import annotations

import json
import sys
from functools import cache
from typing import Any

import pytest
import typer.main

from fedskew.cli import main as cli

SMALL = [
    "execution.actors=0",
    "data.train_samples=400",
    "data.test_samples=100",
    "partition.clients=5",
    "participation.count=3",
    "model.name=mlp",
    "local.epochs=1",
    "evaluation.local_every=0",
]

_made = cache(
    typer.main.get_command
)  # typer makes all commands anew at each call, which takes longer than most of them


def fedskew(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the entry point, in this process."""
    monkeypatch.setattr(sys, "argv", ["fedskew", *words])
    monkeypatch.setattr(cli.console, "width", 200, raising=False)
    monkeypatch.setattr(typer.main, "get_command", _made)
    capsys.readouterr()
    code: Any = 0
    try:
        cli.main()
    except SystemExit as exit:
        code = exit.code
    out, err = capsys.readouterr()
    return (int(code) if code is not None else 0), out, err


def weights_of(call: Any, *words: str) -> str:
    """The weights' hash that a command ends with."""
    return json.loads(call(*words, "--json")[1].splitlines()[-1])["weights_sha256"]
