"""FedProx as a user would write it, to be put into a file, a script or a package; equal to ours to the bit."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from benchmarks.own_parts import METHOD
from engine.base import errors, own_modules, plugins
from engine.experiment import CHOICES

# Its constant is of another file, so that what is beside a part counts as well.
HELPER = "SCALE = 1.0\n"
IMPORTS = """from __future__ import annotations
from dataclasses import dataclass
import fedskew
from fedskew import FedAvg
from own_scale import SCALE
"""
FILE = f'{IMPORTS}\n@fedskew.algorithm("ownprox"){METHOD}'


def write(folder: Path, **texts: str) -> Path:
    """Write ``own_scale.py`` and each text as NAME.py into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"own_scale": HELPER, **texts}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@cache
def _from_the_first() -> frozenset[str]:
    """Modules that were there before any test ran: to look at thousands after each one would take seconds in all."""
    return frozenset(sys.modules)


@contextmanager
def forgotten() -> Iterator[None]:
    """Put registries, modules, the path and named files back as they were."""
    _from_the_first()
    known = {section: dict(registry) for section, registry in CHOICES.items()}
    path, texts = list(sys.path), dict(own_modules._TEXTS.sources)
    own_modules._named.clear()
    errors.needed_files.clear()
    try:
        yield
    finally:
        for section, registry in CHOICES.items():
            if registry != known[section]:
                registry.clear()
                registry.update(known[section])
        if sys.path != path:
            sys.path[:] = path
            plugins.offered.cache_clear()
        own = f"{tempfile.gettempdir()}/pytest-", "/elsewhere/"
        for name in sys.modules.keys() - _from_the_first():
            file = getattr(sys.modules[name], "__file__", None)
            if isinstance(file, str) and file.startswith(own):
                del sys.modules[name]
        own_modules._named.clear()
        own_modules._TEXTS.sources.clear()
        own_modules._TEXTS.sources.update(texts)
        errors.needed_files.clear()
