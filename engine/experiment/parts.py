"""The parts of an experiment that are a user's own, on their way to other processes; and where each part came from.

A part of an installed package is imported where it is needed. One of a file travels as the sources of all modules
behind it, and is imported from those. One of a script or a notebook travels by value, as Ray's pickles have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from engine.base import own_modules
from engine.base.definitions import SCRIPT, Reached, arrived, reached
from engine.base.errors import RunError
from engine.base.evaluated import METRICS
from engine.base.own_modules import OURS, Source, is_ours
from engine.base.sources import behind, is_installed, version_of
from engine.experiment.choices import PARTS


def choices_of(experiment: Any, stages: Iterable[Any]) -> set[type]:
    """Return the classes that are chosen by name for ``stages`` of an experiment."""
    chosen = (experiment.data, experiment.partition, experiment.model, *experiment.client_models)
    return {type(choice) for choice in (*chosen, *(stage.algorithm for stage in stages))}


def all_choices(experiment: Any) -> set[type]:
    """Return the classes that are chosen by name anywhere in an experiment as it was written."""
    written = [stage for stage in experiment.stages if stage.algorithm is not None]
    return choices_of(experiment, [experiment, *written]) | metrics_of(experiment)


def metrics_of(experiment: Any) -> set[type]:
    """Return the classes of the metrics of the user's own that an experiment evaluates."""
    return {METRICS.find(one) for one in experiment.evaluation.metrics}


# --- on the way -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Carried:
    """What a process needs before own parts can be unpickled; unpickling it makes them importable."""

    sources: Mapping[str, Source]
    packages: Mapping[str, str]  # installed ones that parts are from -> version

    def __reduce__(self) -> Any:
        return _opened, (self.sources, self.packages)


def _opened(sources: Mapping[str, Source], packages: Mapping[str, str]) -> Carried:
    for package, version in packages.items():
        here = version_of(package)
        if here != version:
            raise RunError(f"package {package} is {version} where the run was started, and {here} on this node")
    own_modules.install(sources)
    return Carried(sources, packages)


Arrival = tuple[str, str, type, Reached]  # section, name, class, what it reaches in the script that it is from


@dataclass(frozen=True)
class Own:
    """Parts that are a user's own; unpickling it makes them known by their names, for who builds experiments there."""

    choices: frozenset[type]

    def __reduce__(self) -> Any:
        return _brought, (_carried(self.choices), _arrivals(self.choices))


def own_parts(choices: Iterable[type]) -> Own:
    """Return those of the parts that do not ship with us."""
    return Own(frozenset(choice for choice in choices if not is_ours(choice)))


def _brought(_: Carried, arrivals: list[Arrival]) -> Own:
    for section, name, choice, found in arrivals:
        if choice.__module__ == SCRIPT:
            arrived(choice, found)
        if PARTS[section].get(name) is not choice:
            PARTS[section][name] = choice
    return Own(frozenset(choice for _, _, choice, _ in arrivals))


def restored(_: Own, kind: type, state: Any) -> Any:
    """Return the experiment of pydantic's ``state``; its own parts, unpickled before it, are known by their names."""
    experiment: Any = object.__new__(kind)
    experiment.__setstate__(state)
    return experiment


@cache  # one object for all experiments of a sweep, so that a pickle has it once
def _carried(own: frozenset[type]) -> Carried:
    packages = {_top(choice) for choice in own if is_installed(_top(choice))}
    modules = {
        module
        for choice in own
        for module in behind(choice)
        if module.partition(".")[0] not in OURS and not is_installed(module.partition(".")[0])
    }
    return Carried(own_modules.sendable(modules), {package: version_of(package) for package in packages})


def _arrivals(own: frozenset[type]) -> list[Arrival]:
    return [
        (section, name, choice, reached(choice))
        for section, registry in PARTS.items()
        for name, choice in registry.items()
        if choice in own
    ]


def _top(choice: type) -> str:
    return choice.__module__.partition(".")[0]
