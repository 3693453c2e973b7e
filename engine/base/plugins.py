"""Parts of installed packages: entry points of the group ``fedskew.plugins``, as ``algorithm.feddyn = "more:FedDyn"``.

The names are read from the packages' metadata. A package is imported when one of its names is asked for.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from engine.base.errors import ConfigError

GROUP = "fedskew.plugins"


@cache
def offered(section: str) -> dict[str, EntryPoint]:
    """Return name -> entry point, for the parts of ``section`` that installed packages offer.

    Raises :class:`ConfigError` where two packages offer one name.
    """
    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        of_section, _, name = entry.name.partition(".")
        if of_section != section:
            continue
        other = found.setdefault(name, entry)
        if other.value != entry.value:
            rule = f"is offered by {told(other)} and by {told(entry)}"
            raise ConfigError(f"{section}.name", name, rule, "uninstall one of the two")
    return found


def told(entry: EntryPoint) -> str:
    """Return the name and the version of the package that an entry point is from."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown"


def load(entry: EntryPoint, field: str) -> Any:
    """Import what an entry point names; raises :class:`ConfigError`, of ``field``, where that fails."""
    try:
        return entry.load()
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        name = entry.name.partition(".")[2]
        raise ConfigError(field, name, f"of the package {told(entry)} cannot be imported ({text})") from error
