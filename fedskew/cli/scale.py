"""Rounds per second, measured and fitted: the work of ``fedskew scale``.

``studies.py`` imports it when it is asked for, since pandas and matplotlib take a second to import.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from engine.base.errors import ConfigError, require
from engine.base.writable import check_writable
from engine.experiment import Experiment
from engine.models import MODELS
from fedskew.cli.json_output import print_json
from fedskew.lab.scaling import measure as scaling_runs
from fedskew.lab.scaling import page as scaling_page
from fedskew.lab.scaling.plan import Block, Setting, Wanted, actors_for, make_plan
from fedskew.lab.scaling.study import Study

T = TypeVar("T")
MOST_TURNS = 1000  # of a setting
FEW = 2  # actors, for which the blocks that the engine cuts by itself are always enough


@dataclass(frozen=True)
class Asked:
    """The options that were typed, lists as text."""

    actors: str | None = None
    clients: str | None = None
    blocks: str | None = None
    models: str | None = None
    predict: str | None = None
    turns: int = 5
    seconds: float = 2.0


def scale(
    console: Console,
    experiment: Experiment,
    overrides: Sequence[str],
    sized: bool,
    asked: Asked,
    address: str | None,
    out: Path | None,
) -> None:
    """Measure what is not yet measured, and write the page; ``sized``: fit the experiment to the machine first."""
    require(asked.turns >= 1, "--turns", asked.turns, "must be at least 1", "5 turns give a fair interval")
    require(asked.turns <= MOST_TURNS, "--turns", asked.turns, f"must be at most {MOST_TURNS}", "lower it")
    require(asked.seconds > 0, "--seconds", asked.seconds, "must be above 0", "for example --seconds 2")
    require(asked.seconds <= 3600, "--seconds", asked.seconds, "must be at most an hour", "for example --seconds 2")
    if out is not None:
        check_writable(out, "--output")
    counts = numbers("--actors", asked.actors)
    wanted = Wanted(
        clients=numbers("--clients-per-round", asked.clients),
        blocks=listed("--blocks", asked.blocks, _block),
        models=listed("--models", asked.models, str),
        turns=asked.turns,
        seconds=asked.seconds,
    )
    for name in wanted.models or ():
        MODELS.fields(name)  # refuses an unknown one before data are read
    predict = numbers("--predict", asked.predict)
    for count in predict or ():
        require(count >= 1, "--predict", count, "must be at least 1", "the laws are of actors, not of this process")
    execution = experiment.override(overrides).execution
    with console.status("machine and data"):
        machine = scaling_runs.look_around(execution, address)
        room = scaling_runs.room_for(machine, execution)
        actors = counts or actors_for(room, in_process=scaling_runs.runs_in_process(execution))
        scaling_runs.check_room(actors, room, address)
        if sized:
            overrides = [*sizes_for(max(actors)), *overrides]
        experiment = scaling_runs.with_device(experiment.override(overrides), max(actors))
        dataset = experiment.data.load()
        cohort, holders = scaling_runs.clients_of(experiment, dataset)
        plan = make_plan(experiment, cohort, holders, actors, wanted)
        study = Study.open(plan, machine, out)
    bench = scaling_runs.EngineBench(plan, dataset, address)
    try:
        _measure(console, study, bench)
    except KeyboardInterrupt:
        again = f"what was measured is kept in {shlex.quote(str(study.folder))}; the same command goes on with it"
        console.print(again, highlight=False, soft_wrap=True, markup=False)
        raise
    most = plan.most
    page, fitted = scaling_page.write(study, predict if predict is not None else [2 * most, 4 * most] if most else [])
    for one in fitted.values():
        console.print(f"{one.sweep:<8}{scaling_page.law_text(one)}", highlight=False, markup=False)
    predictions = scaling_page.predictions_table(fitted)
    if predictions.rows:
        table = Table(*predictions.head, title="predictions", title_justify="left")
        for row in predictions.rows:
            table.add_row(*row)
        console.print(table)
    console.print(f"page    {page}", highlight=False, soft_wrap=True, markup=False)
    print_json({"folder": study.folder, "page": page, "laws": scaling_page.plain(fitted)})


def _measure(console: Console, study: Study, bench: scaling_runs.EngineBench) -> None:
    total = len(study.plan.settings) * study.plan.turns
    told = f"{len(study.plan.settings)} settings, {study.plan.turns} turns of about {study.plan.seconds:g} s each"
    done = total - study.left
    console.print(told + (f"; {done} turns are there already" if done else ""), highlight=False)
    if not study.left:
        return
    now = TextColumn("{task.fields[now]}", markup=False)
    columns = (TextColumn("turn"), BarColumn(), MofNCompleteColumn(), now)
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("turn", total=total, completed=done, now="starting")

        def tell(setting: Setting, turn: int) -> None:
            where = f"{setting.actors} actors" if setting.actors else "in process"
            bar.update(task, advance=1, now=f"{setting.model}, {setting.clients} clients, {where}")

        study.measure(bench, tell)


def sizes_for(most: int) -> list[str]:
    """Return overrides that fit the default experiment to so many actors: four clients, and two blocks, for each."""
    cohort = max(32, 4 * most)
    block = [f"execution.block={cohort // (2 * most)}"] if most > FEW else []
    return [f"participation.count={cohort}", f"partition.clients={max(200, 2 * cohort)}", *block]


def numbers(flag: str, text: str | None) -> tuple[int, ...] | None:
    """Return the whole numbers of a list such as ``1,2,4``, each once; None where nothing was typed."""
    return listed(flag, text, int)


def listed(flag: str, text: str | None, parse: Callable[[str], T]) -> tuple[T, ...] | None:
    """Return the parts of a list such as ``a,b``, each once and parsed; raises :class:`ConfigError`."""
    if text is None:
        return None
    try:
        return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))
    except ValueError:
        raise ConfigError(flag, text, "is no list of numbers", f"for example {flag} 1,2,4") from None


def _block(part: str) -> Block:
    return "auto" if part == "auto" else int(part)
