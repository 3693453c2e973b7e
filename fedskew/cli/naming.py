"""The words of the command line: what a name stands for, and the arguments that several commands share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.base import own_modules
from engine.base.errors import ConfigError, nearest, require
from engine.base.files import refuse_links
from engine.data import PARTITIONS
from engine.experiment import Experiment, keys, parse_assignment
from engine.experiment.dotted_keys import assigned
from fedskew.cli.completion import assignments, experiments_and_keys, sweeps
from fedskew.cli.output import plain_console, print_json, table
from tune_configs import EXPERIMENTS, SWEEPS

if TYPE_CHECKING:
    from engine.results.simulated_time import Devices


def joined(words: list[str] | None) -> list[str] | None:
    """Return the words of a command with ``key = value``, ``key= value`` and ``key =value`` as one word each."""
    if words is None:
        return None
    found: list[str] = []
    for word in words:
        before = found[-1] if found else ""
        if (word.startswith("=") and before and "=" not in before) or (before.endswith("=") and "=" not in word):
            found[-1] += word
        else:
            found.append(word)
    return found


def _load(files: list[Path] | None) -> list[Path] | None:
    """Load a user's own files, before anything else of the command is looked at."""
    for path in files or ():
        own_modules.import_file(path, "--with")
    return files


def _closed(given: Path | list[Path]) -> Path | list[Path]:
    """Refuse folders with a link in them, before anything is read; below, a link costs the trial that it is in."""
    for folder in given if isinstance(given, list) else [given]:
        for place in (folder, folder / "trials"):
            refuse_links(place, deep=False)
    return given


def pairs(help: str) -> Any:
    """Return an argument that is key=value pairs."""
    return typer.Argument(callback=joined, autocompletion=assignments, help=help)


What = Annotated[
    list[str] | None,
    typer.Argument(
        callback=joined,
        autocompletion=experiments_and_keys,
        help="a YAML file, a name (see 'fedskew list experiments'), a sweep's cell SWEEP:CELL or a trial "
        "FOLDER:NUMBER, then key=value pairs (docs/config.md and 'fedskew schema' list the keys); without a name, the "
        "quickstart (of scale: scaling)",
    ),
]
Overrides = Annotated[list[str] | None, pairs("dotted key=value pairs, e.g. partition.alpha=0.1")]
Folder = Annotated[Path, typer.Argument(callback=_closed, help="the folder of a run or a sweep")]
Folders = Annotated[list[Path], typer.Argument(callback=_closed, help="folders of runs and sweeps")]
With = Annotated[
    list[Path] | None,
    typer.Option("--with", callback=_load, is_eager=True, help="a Python file with parts of your own; may be repeated"),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="KIND:PLACE", help="tell a tracker as it goes: mlflow:, tensorboard:, wandb:"),
]
Profile = Annotated[
    str,
    typer.Option(
        autocompletion=lambda: ["laptop", "paper"], help="of a sweep: laptop (minutes) or paper (the real one)"
    ),
]
Address = Annotated[str | None, typer.Option(help="a Ray cluster to use, e.g. auto; none: start Ray on this machine")]

Supposed = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="clients' devices that simulated time supposes: a CSV or parquet file, or lognormal, with fields as in "
        "lognormal:sigma=0.5,seed=1",
    ),
]


def devices_of(text: str | None) -> Devices | None:
    """Return the devices that were typed; raises :class:`ConfigError` for a field that they do not have."""
    from engine.results.simulated_time import DEVICES  # with pandas

    kind, _, fields = (text or "").partition(":")
    values = dict(map(parse_assignment, filter(None, fields.split(",")))) if kind == "lognormal" else {"table": text}
    return DEVICES.build({"name": "lognormal", **values}) if text is not None else None


def numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """Return the whole numbers of a list such as ``1,2,4``, each once; None where nothing was typed."""
    try:
        return None if text is None else tuple(dict.fromkeys(map(int, text.split(","))))
    except ValueError:
        raise ConfigError(option, text, "is no list of numbers", f"for example {option} 1,2,4") from None


def meant_by_option(option: str, value: str) -> str:
    """Return the repair for a key that was typed as an option, such as ``--alpha``; "" where it is none."""
    field = option.lstrip("-").replace("-", "_")
    of_defaults, of_all = (
        [key for key in known if key.endswith(f".{field}") or key == field]
        for known in (keys(Experiment().to_mapping()), keys())
    )
    assignments = [f"{key}={'...' if value.startswith('-') else value}" for key in of_defaults or of_all]
    return f"write {' or '.join(assignments)}" if assignments else ""


def is_name(word: str) -> bool:
    """Return whether the first word is no key=value pair; a cell's name has such pairs behind its colon."""
    return ":" in word.partition("=")[0] or "=" not in word


def overridden(what: list[str] | None, profile: str) -> Experiment:
    """Return what was typed as one experiment."""
    experiment, words, _ = named(what or [], profile)
    return experiment.override(words)


def named(what: list[str], profile: str) -> tuple[Experiment, list[str], int | None]:
    """Return the experiment that was typed, the key=value pairs behind it, and the round of :func:`find_experiment`."""
    if profile != "laptop":
        from engine.sweeps.named import PROFILES  # with Ray Tune

        require(profile in PROFILES, "--profile", profile, "is not a profile", nearest(profile, PROFILES))
    has_name = bool(what) and is_name(what[0])
    name, words = (what[0], what[1:]) if has_name else ("quickstart", what)
    experiment, stopped = find_experiment(name, profile, words)
    if name in EXPERIMENTS:
        words = [*words, *_cohort_of(experiment, words)]
    return experiment, words, stopped


def _cohort_of(experiment: Experiment, words: Sequence[str]) -> list[str]:
    """Return the word by which every client takes part, where ``words`` leave fewer clients than a round is to have.

    For experiments whose cohort is ours; one that the user has typed is refused if it is too large.
    """
    changes = dict(map(parse_assignment, words))
    values = assigned(experiment.to_mapping(), changes)
    partition, count = values["partition"], values["participation"]["count"]
    clients = partition.get("clients", PARTITIONS.fields(partition["name"])["clients"].default)
    fits = not isinstance(clients, int) or clients == 0 or count is None or count <= clients
    return [] if fits or "participation.count" in changes else ["participation.count=null"]


def find_experiment(name: str, profile: str, overrides: Sequence[str] = ()) -> tuple[Experiment, int | None]:
    """Return the experiment that a name stands for, and the round after which it was stopped, if it is such a trial.

    Of a sweep that is named without a cell the cells are printed, and the command ends; ``overrides``, which mean
    nothing there, are otherwise the caller's. Raises :class:`ConfigError` for an unknown name.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name](), None
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or os.path.exists(path):
        return Experiment.from_yaml(path), None
    reference = name.partition(":")[0]
    if ":" in name or reference.partition(".")[0] in SWEEPS:
        return trial(name) or (cell(name, profile, overrides), None)
    raise ConfigError(
        "experiment", name, "is neither a file nor a known name", nearest(name, [*EXPERIMENTS, *sweeps()])
    )


def cell(name: str, profile: str, overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment of ``SWEEP:CELL``, without ``overrides``; where no cell is named, print all of them and
    end the command.
    """
    from engine.sweeps.definition import Optuna  # with Ray Tune
    from engine.sweeps.named import load

    # The cell is behind the last colon, but for that of FILE.py:function.
    file, is_file, words = name.partition(".py:")
    reference, _, cell = words.partition(":") if is_file else name.partition(":")
    reference = file + is_file + reference if is_file else reference
    named = load(reference, profile, [], SWEEPS)
    if isinstance(named.sweep.search, Optuna):
        raise ConfigError("cell", name, "belongs to a searcher, which has no cells before it runs", "run the sweep")
    cells = {named.sweep.label(setting): setting for setting in named.sweep.settings()}
    if not cell:
        known_as = f"name one as {reference}:{next(iter(cells))}"
        names = [f"{reference}:{text}" for text in cells]
        require(not overrides, "overrides", " ".join(overrides), "are for one cell", known_as)
        title = f"{named.title}; seeds {list(named.sweep.seeds)}"
        plain_console().print(table(["cell"], [[text] for text in names], title, box=None))
        print_json({"sweep": reference, "title": named.title, "seeds": named.sweep.seeds, "cells": names})
        raise typer.Exit
    if cell not in cells:
        raise ConfigError("cell", cell, f"is not in {reference}", nearest(cell, cells))
    return named.sweep.experiment(cells[cell], named.sweep.seeds[0])


def trial(name: str) -> tuple[Experiment, int | None] | None:
    """Return ``FOLDER:TRIAL`` as (its experiment with its schedule, the round after which it was stopped); None if
    the name is of another kind.
    """
    from engine.sweeps.folder import SweepFolder  # with Ray Tune

    path, colon, number = name.rpartition(":")
    if not colon or not SweepFolder(Path(path)).is_sweep():
        folder_meant = "/" in path and ".py" not in path
        require(not folder_meant, "folder", path, "is not a sweep's folder", "name a trial as FOLDER:NUMBER")
        return None
    refuse_links(Path(path))
    return SweepFolder(Path(path)).experiment(number)
