"""The parts that are to be checked: those that a file registers while it is loaded, or those of a name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.base import own_modules
from engine.base.errors import ConfigError, nearest
from engine.experiment import CHOICES


@dataclass(frozen=True)
class Registered:
    """A part as the registry of its section has it."""

    section: str
    name: str
    kind: type


def of_file(path: Path, field: str) -> list[Registered]:
    """Load a file and list the parts that it registers, or that modules do which it imports.

    Raises :class:`ConfigError`, of ``field``, for a file that cannot be loaded, or registers nothing.
    """
    before = {(section, name): kind for section, registry in CHOICES.items() for name, kind in registry.items()}
    module = own_modules.import_file(path, field).__name__
    found = [
        Registered(section, name, kind)
        for section, registry in CHOICES.items()
        for name, kind in registry.items()
        if before.get((section, name)) is not kind or kind.__module__ == module
    ]
    if not found:
        decorators = "fedskew.algorithm, fedskew.model, fedskew.dataset or fedskew.partition"
        raise ConfigError(field, path, "registers no part", f"write a decorator, {decorators}, above one")
    return found


def of_name(name: str, field: str) -> list[Registered]:
    """List the parts that have a name, of whatever section; raises :class:`ConfigError` if there is none."""
    found = [
        Registered(section, name, registry.find(name))
        for section, registry in CHOICES.items()
        if name in registry.names()
    ]
    if not found:
        known = [one for registry in CHOICES.values() for one in registry.names()]
        raise ConfigError(field, name, "is neither a Python file nor a known part", nearest(name, known))
    return found
