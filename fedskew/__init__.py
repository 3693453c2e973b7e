"""What users import every day: ``from fedskew import Experiment, run``.

The rest is in two modules: :mod:`fedskew.contract`, the types for authors of algorithms, models and data, and
:mod:`fedskew.results`, for reading what was kept. A name is loaded when it is first used, so that ``import fedskew``
takes neither torch nor Ray. A part that a user writes (an algorithm, a model, a data set, a partition) comes in by a
decorator; see docs/own_parts.md.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedskew.lazy import offered, places

MODULES = ("contract", "results")  # that are loaded as attributes, too


def _check_nothing_is_hidden() -> None:
    """Refuse a package or a folder that Python finds in the place of ours: beside a script, say."""
    for name in ("engine", "algorithms", "tune_configs"):
        there = sys.modules.get(name)
        spec = find_spec(name) if there is None else there.__spec__
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        found = [Path(place) for place in places if place]
        ours = Path(__file__).resolve().parents[1] / name
        if not any(ours in (place.resolve(), *place.resolve().parents) for place in found):
            where = found[0] if found else "nothing"
            raise ImportError(f"{where} hides fedskew's own package {name!r} ({ours}); rename yours") from None


_check_nothing_is_hidden()
_load, __dir__, __all__ = offered(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return import_module(f"fedskew.{name}")
    if name not in __all__:
        for module in MODULES:
            if name in places(str(Path(__file__).with_name(f"{module}.py"))):
                # No AttributeError, in whose place "from fedskew import" would put a sentence of its own.
                raise ImportError(f"fedskew.{name} is fedskew.{module}.{name} now", name=name)
    return _load(name)
