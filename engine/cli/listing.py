"""The choices that there are: ``fedskew list``."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from engine.base.errors import ConfigError, nearest
from engine.cli.naming import With
from engine.cli.plain import plain_console
from engine.experiment import CHOICES
from engine.record.run_folder import BREAKS_PRIVACY
from tune_configs import EXPERIMENTS, SWEEPS

if TYPE_CHECKING:
    from engine.sweeps.named import NamedSweep

LISTS = {"algorithms": "algorithm", "models": "model", "datasets": "data", "partitions": "partition"}


def list_command(
    what: Annotated[
        str | None, typer.Argument(help="experiments | sweeps | " + " | ".join(LISTS) + "; none: what can be listed")
    ] = None,
    own: With = None,
) -> None:
    """List what there is to choose from, with fields and their defaults."""
    out = plain_console()
    if what is None:
        table = Table("list", "what it has", box=None)
        table.add_row("experiments", "to start from: fedskew run NAME")
        table.add_row("sweeps", "of several runs each: fedskew sweep NAME")
        for name, section in LISTS.items():
            table.add_row(name, f"choices of {section}.name: {', '.join(CHOICES[section].names())}")
    elif what == "experiments":
        table = Table("name", "what it is", box=None)
        for name, function in EXPERIMENTS.items():
            table.add_row(name, inspect.getdoc(function))
    elif what == "sweeps":
        table = _sweeps()
    elif what in LISTS:
        table = Table("name", "fields", "what it is", box=None)
        for name, cls in CHOICES[LISTS[what]].items():
            fields = ", ".join(f"{field.name}={_default(field)}" for field in dataclasses.fields(cls))
            mark = f" ({BREAKS_PRIVACY})" if getattr(cls, "breaks_privacy", False) else ""
            table.add_row(name, fields, _first_sentence(cls) + mark)
        for name, package in CHOICES[LISTS[what]].offered().items():
            table.add_row(name, "", f"of the package {package}")
    else:
        raise ConfigError("list", what, "is not a list", nearest(what, ["experiments", "sweeps", *LISTS]))
    out.print(table)


def _sweeps() -> Table:
    from engine.sweeps.named import known, load  # with Ray Tune

    table = Table("name", "trials", "what it is", box=None)
    for name in known(SWEEPS):
        laptop, paper = (load(name, profile, [], SWEEPS) for profile in ("laptop", "paper"))
        table.add_row(name, f"{_trials(laptop)} (paper: {_trials(paper)})", laptop.title)
    return table


def _trials(named: NamedSweep) -> int:
    from engine.sweeps.definition import Optuna

    sweep = named.sweep
    settings = sweep.samples if isinstance(sweep.search, Optuna) else len(sweep.settings())
    return settings * len(sweep.seeds)


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return str(field.default)
    return str(field.default_factory()) if field.default_factory is not dataclasses.MISSING else "?"


def _first_sentence(cls: type) -> str:
    own = cls.__doc__ if cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}(") else None
    text = own or inspect.getdoc(sys.modules[cls.__module__]) or ""
    return " ".join(text.split("\n\n")[0].split())
