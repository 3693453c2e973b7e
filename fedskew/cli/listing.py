"""The choices that there are: ``fedskew list``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.base.declared import declared
from engine.base.errors import nearest, require
from engine.experiment import CHOICES
from engine.record.run_folder import BREAKS_PRIVACY
from fedskew.cli.output import json_wanted, plain_console, print_json, table
from tune_configs import EXPERIMENTS, SWEEPS

if TYPE_CHECKING:
    from engine.sweeps.named import NamedSweep

REQUIRED = "required"  # in the place of a default
LISTS = {"algorithms": "algorithm", "models": "model", "datasets": "data", "partitions": "partition"}
KINDS = ["experiments", "sweeps", *LISTS]


def list_command(
    what: Annotated[
        str | None,
        typer.Argument(autocompletion=lambda: KINDS, help=f"{' | '.join(KINDS)}; none: what can be listed"),
    ] = None,
) -> None:
    """List what there is to choose from, with fields and their defaults."""
    require(what is None or what in KINDS, "list", what, "is not a list", nearest(what or "", KINDS))
    entries = _lists() if what is None else _entries(what)
    if json_wanted():
        print_json({"list": what, "entries": entries})
        return
    between = {"sweeps": ["trials"], **{name: ["fields"] for name in LISTS}}.get(what or "", [])
    head = ("name" if what else "list", *between, "what it is" if what else "what it has")
    rows = [(entry["name"], *(_cell(entry[name]) for name in between), entry["about"]) for entry in entries]
    plain_console().print(table(head, rows, box=None))


def _cell(values: Mapping[str, Any]) -> str:
    """Return the trials of both profiles, or fields with their defaults, as text."""
    if "laptop" in values:
        return f"{values['laptop']} (paper: {values['paper']})"
    return ", ".join(f"{name}={'?' if value is REQUIRED else value}" for name, value in values.items())


def _lists() -> list[dict[str, Any]]:
    """Return the lists themselves."""
    about = {"experiments": "to start from: fedskew run NAME", "sweeps": "of several runs each: fedskew sweep NAME"}
    for name, section in LISTS.items():
        about[name] = f"choices of {section}.name: {', '.join(CHOICES[section].names())}"
    return [{"name": name, "about": text} for name, text in about.items()]


def _entries(what: str) -> list[dict[str, Any]]:
    """Return the entries of a list, with ``trials`` (of sweeps) and ``fields`` (of choices)."""
    if what == "experiments":
        return [{"name": name, "about": inspect.getdoc(function)} for name, function in EXPERIMENTS.items()]
    return _sweeps() if what == "sweeps" else _choices(LISTS[what])


def _choices(section: str) -> list[dict[str, Any]]:
    found = []
    for name, cls in CHOICES[section].items():
        fields = {name: REQUIRED if one.default is MISSING else one.default for name, one in declared(cls).items()}
        mark = f" ({BREAKS_PRIVACY})" if getattr(cls, "breaks_privacy", False) else ""
        found.append({"name": name, "fields": fields, "about": said_of(cls) + mark})
    offered = CHOICES[section].offered()
    return found + [{"name": name, "fields": {}, "about": f"of the package {offered[name]}"} for name in offered]


def _sweeps() -> list[dict[str, Any]]:
    from engine.sweeps.named import PROFILES, known, load  # with Ray Tune

    found = []
    for name in known(SWEEPS):
        of_profile = {profile: load(name, profile, [], SWEEPS) for profile in PROFILES}
        trials = {profile: _trials(one) for profile, one in of_profile.items()}
        found.append({"name": name, "trials": trials, "about": of_profile["laptop"].title})
    return found


def _trials(named: NamedSweep) -> int:
    from engine.sweeps.definition import Optuna

    sweep = named.sweep
    settings = sweep.samples if isinstance(sweep.search, Optuna) else len(sweep.settings())
    return settings * len(sweep.seeds)


def said_of(choice: type) -> str:
    """Return the first paragraph on a choice: of its class, or else of its module."""
    said = choice.__doc__ or ""
    own = "" if said.startswith(f"{choice.__name__}(") else said  # dataclass makes one of the fields
    text = own or inspect.getdoc(sys.modules[choice.__module__]) or ""
    return " ".join(text.split("\n\n")[0].split())
