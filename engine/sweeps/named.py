"""Sweeps by name: those of ``tune_configs``, and those of a user's own file as ``FILE.py:function``."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.base import own_modules
from engine.base.errors import ConfigError, FedskewError, nearest, require
from engine.experiment import parse_assignment
from engine.results.settings import label, matches
from engine.sweeps.definition import Sweep
from engine.sweeps.space import is_grid

PROFILES = ("laptop", "paper")


@dataclass(frozen=True)
class NamedSweep:
    """A sweep with the way to find it again."""

    reference: str  # "drift.fedprox_mu", or "FILE.py:function" with the whole path, to be found from anywhere
    profile: str
    overrides: tuple[str, ...]
    title: str
    sweep: Sweep
    added: tuple[int, ...] = ()  # of the sweep's seeds, those that were added until its claims are decided
    most: int | None = None  # seeds in all, where they are added until then; None: they were chosen before looking
    rank: int = 0  # of the candidate that each tuned side has: 1 is the second best

    def grown(self, added: tuple[int, ...]) -> NamedSweep:
        """Return the sweep with ``added`` behind the seeds that it begins with."""
        return replace(self, sweep=replace(self.sweep, seeds=(*self._begun, *added)), added=added)

    @property
    def _begun(self) -> tuple[int, ...]:
        return self.sweep.seeds[: len(self.sweep.seeds) - len(self.added)]

    @property
    def name(self) -> str:
        """The sweep's name for folders: letters, digits, dots, dashes."""
        return self.reference.rpartition("/")[2].replace(".py:", ".")

    @property
    def digest(self) -> str:
        """The digest of everything that decides which trials there are and what each of them computes."""
        values = self.sweep.to_mapping()
        for key in ("tables", "claims", "target_accuracy", "devices", "diagnose", "images"):  # of the analysis only
            values.pop(key, None)
        if self.sweep.partitions == "one":  # what every sweep meant before it could say so
            del values["partitions"]
        values["seeds"] = list(self._begun)
        values["base"] = self.sweep.base.identity()
        # Constants and functions of the space have no other form as data; of a searcher's space these are samples.
        values["settings"] = self.sweep.settings()
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def load(reference: str, profile: str, overrides: Iterable[str], sweeps: Mapping[str, tuple[str, ...]]) -> NamedSweep:
    """Find the sweep of that name, or of a user's own file; ``sweeps``: module -> its functions."""
    require(profile in PROFILES, "--profile", profile, "is not a profile", nearest(profile, PROFILES))
    path, name = _file_and_function(reference)
    if path is not None:
        reference = f"{path}:{name}"
    return named(reference, _function(reference, sweeps), profile, overrides)


def named(reference: str, function: Callable[[str], Any], profile: str, overrides: Iterable[str]) -> NamedSweep:
    """Return the sweep that ``function`` defines; raises :class:`ConfigError` where it defines none."""
    try:
        inspect.signature(function).bind(profile)
    except TypeError as error:
        rule = f"cannot be called with a profile ({error})"
        raise ConfigError("sweep", reference, rule, "def f(profile: str)") from None
    try:
        sweep = function(profile)
    except FedskewError:
        raise
    except (Exception, SystemExit) as error:
        file = Path(inspect.getfile(inspect.unwrap(function)))
        raise ConfigError("sweep", reference, f"raised {own_modules.told(error, file)}") from error
    require(isinstance(sweep, Sweep), "sweep", reference, f"returned a {type(sweep).__name__}", "return a Sweep")
    sweep.check_claims()
    overrides = tuple(overrides)
    sweep, rest = _own_overrides(sweep, overrides)
    sweep = replace(sweep, base=sweep.base.override(rest))
    title = (inspect.getdoc(function) or function.__name__).split("\n\n")[0].replace("\n", " ").rstrip(".")
    return NamedSweep(reference, profile, overrides, title, sweep)


def known(sweeps: Mapping[str, tuple[str, ...]]) -> dict[str, Callable[[str], Sweep]]:
    """Return the functions of all sweeps by their names."""
    return {
        f"{module}.{name}": getattr(importlib.import_module(f"tune_configs.{module}"), name)
        for module, names in sweeps.items()
        for name in names
    }


def papers(sweeps: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return what the modules of sweeps say of themselves first: the paper, and what is made of it; by their names."""
    modules = {name: importlib.import_module(f"tune_configs.{name}") for name in sorted(sweeps)}
    return {name: (inspect.getdoc(module) or name).split("\n\n")[0] for name, module in modules.items()}


def _file_and_function(reference: str) -> tuple[Path | None, str]:
    """``FILE.py:function`` as (the whole path, the function); (None, the reference) for a name."""
    path, colon, name = reference.rpartition(":")
    return (Path(path).resolve(), name) if colon and path.endswith(".py") else (None, reference)


def _function(reference: str, sweeps: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    path, name = _file_and_function(reference)
    if path is not None:
        require(path.is_file(), "sweep", path, "is not a file", "name one as FILE.py:function")
        module = own_modules.import_file(path, "sweep")
        functions = {key: value for key, value in vars(module).items() if inspect.isfunction(value)}
        require(name in functions, "sweep", reference, f"has no function {name!r}", nearest(name, functions))
        return functions[name]
    module, _, name = reference.partition(".")
    if name in sweeps.get(module, ()):
        return getattr(importlib.import_module(f"tune_configs.{module}"), name)
    names = [f"{module}.{name}" for module, functions in sweeps.items() for name in functions]
    raise ConfigError("sweep", reference, "is not a known sweep", nearest(reference, names))


def _own_overrides(sweep: Sweep, overrides: Iterable[str]) -> tuple[Sweep, list[str]]:
    """``seeds=[0,1]``, ``samples=5`` and some values of a grid are the sweep's own; all others are its base's."""
    own: dict[str, Any] = {}
    space = dict(sweep.space)
    rest = []
    for text in overrides:
        key, value = parse_assignment(text)
        if key == "seeds":
            own[key] = tuple(value) if isinstance(value, list) else (value,)
        elif key == "samples":
            own[key] = value
        else:
            varied = {sweep.base.key_of(name): name for name in sweep.space}
            same = varied.get(sweep.base.key_of(key))
            if same is None:
                rest.append(text)
            else:
                space[same] = _narrowed(sweep, same, key, value)
    return replace(sweep, space=space, **own), rest


def _narrowed(sweep: Sweep, name: str, typed: str, wanted: Any) -> dict[str, Any]:
    """Return the grid of an axis with the values that are ``wanted`` alone: one, or a list of them.

    An algorithm, or whatever else is a mapping, may be named by its name or its label.
    """
    grid = sweep.space[name]["grid_search"] if is_grid(sweep.space[name]) else []
    repair = f"name values of its grid ({', '.join(map(label, grid))})" if grid else "change the sweep"
    if sweep.tuned:  # what a side was given depends on all of its cells
        grid, repair = [], "what tuned sides are given depends on all values; divide this sweep by seeds"
    found = [{number for number, one in enumerate(grid) if _is_meant(one, each)} for each in _each(grid, wanted)]
    if not found or not all(found):
        raise ConfigError(typed, wanted, "is varied by this sweep", repair)
    return {"grid_search": [grid[number] for number in sorted(set[int]().union(*found))]}


def _each(grid: Sequence[Any], wanted: Any) -> list[Any]:
    """Return the values that are named: ``wanted`` itself, if it is one, although it may be a list."""
    whole = any(_is_meant(one, wanted) for one in grid) or not isinstance(wanted, list)
    return [wanted] if whole else wanted


def _is_meant(value: Any, wanted: Any) -> bool:
    return matches(value, [wanted]) or (value is not None and wanted == label(value))
