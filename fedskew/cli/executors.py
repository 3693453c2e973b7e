"""Executors measured, and the fastest written down: the work of ``fedskew tune-executor``."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from engine.base.errors import require
from engine.base.files import write_atomically
from engine.base.writable import check_writable
from engine.experiment import Experiment
from fedskew.cli.json_output import print_json
from fedskew.lab.executors import chosen, study


def tune(console: Console, experiment: Experiment, rounds: int, output: Path) -> None:
    """Time each executor, and write the experiment to ``output`` with the fastest one."""
    require(rounds >= 1, "--rounds", rounds, "must be at least 1", "for example --rounds 10")
    require(not output.is_dir(), "--out", output, "is a folder", "name a file in it")
    check_writable(output.parent, "--out")
    with console.status("") as status:
        found = study(experiment, rounds, status.update)
    default = experiment.override(["execution.executor=auto"]).resolve().execution.executor
    best = chosen(found, default)
    table = Table("executor", "seconds per round", "least to most", "by that of auto")
    usual = next(one for one in found if one.executor == default)
    for one in found:
        name = f"{one.executor} (auto)" if one is usual else one.executor
        spread = f"{min(one.rounds):.4g} to {max(one.rounds):.4g}"
        table.add_row(name, f"{one.median:.4g}", spread, f"{one.median / usual.median:.2f}")
    console.print(table)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(output, experiment.override([f"execution.executor={best.executor}"]).to_yaml())
    why = "the fastest" if best is not usual else "that of auto, and none is clearly faster"
    text = f"{output}: execution.executor={best.executor}, {why} here"
    console.print(text, highlight=False, soft_wrap=True, markup=False)
    timed = [{"executor": one.executor, "median": one.median, "rounds": one.rounds} for one in found]
    print_json({"file": output, "executor": best.executor, "auto": default, "executors": timed})
