"""The files of a leaderboard: the page, the same as JSON, and a config for every run behind it.

The same folders give the same bytes.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.base import safe_yaml
from engine.base.errors import ConfigError
from engine.base.files import refuse_links, write_atomically
from engine.base.json_text import json_text
from engine.base.writable import check_no_results
from engine.record import parts
from engine.record.numerics import UNKNOWN
from engine.record.run_folder import BREAKS_PRIVACY
from engine.results.results import Results
from fedskew.lab.comparing.ranks import Ranks
from fedskew.lab.comparing.sides import Trial
from fedskew.lab.leaderboard.board import Board, Cell, board_of
from fedskew.lab.pages import render, text_table
from fedskew.lab.pages.tables import ranks_table
from fedskew.lab.quantities import Quantity, quantity
from fedskew.lab.wording import capitalised, counted

PAGE, DATA, CONFIGS = "leaderboard.html", "leaderboard.json", "configs"
_UNKNOWN = "the code that computed it was not written down"


def write(folders: Mapping[str, Results], out: Path, metric: str | None = None) -> Path:
    """Write the leaderboard of the folders into ``out``; the path of the page."""
    check_no_results(out, "--out")
    board = board_of(folders, metric)
    runs = [run for cell in board.cells.values() for run in cell.runs]
    files = {_config(run): safe_yaml.text_of(dict(run.facts.values)) for run in runs}
    files |= {DATA: _data(board), PAGE: _page(board, folders)}
    try:
        (out / CONFIGS).mkdir(parents=True, exist_ok=True)
        refuse_links(out)
        for name, text in files.items():
            write_atomically(out / name, text)
    except OSError as error:
        raise ConfigError("--out", out, f"cannot be written ({error.strerror})", "name another folder") from None
    return out / PAGE


def _config(run: Trial) -> str:
    return f"{CONFIGS}/{run.facts.experiment}.yaml"


def _runs(cell: Cell) -> list[dict[str, Any]]:
    """Return what JSON and page say of a cell's runs; the command is to be typed in the leaderboard's folder."""
    found = []
    for run, value in zip(cell.runs, cell.values, strict=True):
        needs = parts.needs([run.folder])
        again = shlex.join(["fedskew", "run", _config(run), *needs.words])
        about = {"seed": int(run.row["seed"]), "value": value, "source": run.source, "trial": run.name}
        about |= {"experiment": run.facts.experiment, "code": run.facts.code or UNKNOWN}
        about |= {"weights": str(run.row["weights_sha256"]), "config": _config(run), "command": again}
        found.append(about | {"needs": list(needs.others)})
    return found


def _data(board: Board) -> str:
    cells = [
        {
            "method": board.rows[row],
            "task": board.columns[column],
            "mean": cell.mean,
            "low": cell.low,
            "high": cell.high,
            "best": cell.best,
            "runs": _runs(cell),
        }
        for (row, column), cell in sorted(board.cells.items())
    ]
    return json_text({"metric": board.metric, "cells": cells, "ranks": _ranks(board.ranks)}, indent=1) + "\n"


def _ranks(ranks: Ranks | None) -> dict[str, Any] | None:
    if ranks is None:
        return None
    methods = zip(ranks.settings, ranks.average, strict=True)
    return {
        "methods": [{"method": method, "rank": rank} for method, rank in methods],
        "tasks": list(ranks.blocks),
        "critical_difference": ranks.critical,
        "p": ranks.p,
    }


def _page(board: Board, folders: Mapping[str, Results]) -> str:
    measured = quantity(board.metric)
    rows = [
        (name, [_shown(board.cells.get((row, column)), measured) for column in range(len(board.columns))])
        for row, name in enumerate(board.rows)
    ]
    runs = sum(len(cell.runs) for cell in board.cells.values())
    facts = [
        ("methods", f"{len(board.rows):,}", ""),
        ("tasks", f"{len(board.columns):,}", ""),
        ("runs", f"{runs:,}", f"of {counted(len(folders), 'folder')}"),
    ]
    sources = [[name, one.title, one.profile or "", f"{len(one.trials):,}"] for name, one in folders.items()]
    return render(
        "board.html.j2",
        kind="",
        name="leaderboard",
        title=capitalised(measured.title),
        metric=measured.title,
        facts=facts,
        head=board.columns,
        rows=rows,
        sources=text_table(("folder", "what", "profile", "trials"), sources, prose=(1,)),
        left_out=board.left_out,
        ranks=board.ranks,
        mean_ranks=ranks_table(board.ranks, "", "Mean ranks", "") if board.ranks else None,
        several=any(len(cell.runs) > 1 for cell in board.cells.values()),
    )


def _shown(cell: Cell | None, measured: Quantity) -> dict[str, Any] | None:
    """Return what the page says of a cell."""
    if cell is None:
        return None
    runs = _runs(cell)
    bounds = f"{measured.text(cell.low)} to {measured.text(cell.high)}" if math.isfinite(cell.low) else "no interval"
    return {
        "text": measured.text(cell.mean),
        "sorted": repr(cell.mean),
        "bounds": bounds,
        "seeds": counted(len(cell.runs), "seed"),
        "best": cell.best,
        "mark": BREAKS_PRIVACY if cell.breaks_privacy else "",
        "codes": ", ".join(sorted({_UNKNOWN if run["code"] == UNKNOWN else run["code"] for run in runs})),
        "runs": [run | {"value": measured.text(run["value"])} for run in runs],
    }
