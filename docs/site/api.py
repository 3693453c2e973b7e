"""The pages of names: what ``fedskew`` and its two modules offer, by what a reader is doing, from their docstrings."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import fedskew
from fedskew.lazy import places

FACES = {face.__name__: places(str(face.__file__)) for face in (fedskew, fedskew.contract, fedskew.results)}
# Where names come from, the first that fits -> the page, its title and its first sentence.
GROUPS: Mapping[tuple[str, ...], tuple[str, str, str]] = {
    ("engine.results",): ("results", "Results and claims", "What a finished run or sweep came to, as tables."),
    ("engine.sweeps", "fedskew.lab.sweeping"): (
        "sweeps",
        "Sweeps",
        "Many runs over axes and seeds, with the claims that they test.",
    ),
    ("engine.algorithm", "algorithms"): (
        "algorithms",
        "Writing an algorithm",
        "The base classes and the values that their methods speak of; [the contract](../contract.md) explains them.",
    ),
    ("engine.data", "engine.models", "engine.experiment.own_parts"): (
        "parts",
        "Models, data, partitions",
        "Decorators that make a part of your own known, and the types behind them: [own parts](../own_parts.md).",
    ),
    ("engine.base",): ("errors", "Errors", "What fedskew raises, and how a part of your own refuses a value."),
    ("engine", "fedskew"): ("runs", "Experiments and runs", "Write an experiment down, run it, go on with it."),
}
ORDER = ("runs", "sweeps", "results", "parts", "algorithms", "errors")
LEFT_OUT = {"__version__"}  # a text


def pages() -> dict[str, tuple[str, str]]:
    """Return page -> title and Markdown, in the order in which they are read; every name is on one of them."""
    names: dict[str, dict[str, str]] = {page: {} for page in ORDER}
    about = {page: (title, said) for page, title, said in GROUPS.values()}
    for face, place_of in FACES.items():
        for name in place_of.keys() - LEFT_OUT:
            names[_page_of(place_of[name])].setdefault(name, face)
    return {page: (about[page][0], _text(*about[page], names[page])) for page in ORDER}


def _page_of(place: str) -> str:
    for prefixes, (page, _, _) in GROUPS.items():
        if any(place == prefix or place.startswith(f"{prefix}.") for prefix in prefixes):
            return page
    raise KeyError(f"{place} belongs to no page of the Python reference: name it in GROUPS")


def _text(title: str, said: str, names: Mapping[str, str]) -> str:
    """Write a page; ``names``: name -> the module that offers it."""
    ordered = sorted(names, key=lambda name: (name[0].islower(), name))
    imports = [
        f"from {face} import " + ", ".join(some[:4])
        for face in FACES
        if (some := [name for name in ordered if names[name] == face])
    ]
    parts = [f"# {title}", said, "```python\n" + "\n".join(imports) + "\n```"]
    return "\n\n".join([*parts, *(f"::: {_identifier(name, names[name])}" for name in ordered)]) + "\n"


def _identifier(name: str, face: str) -> str:
    """Return where the name is defined, for the reader of docstrings, which imports nothing."""
    value = getattr(import_module(face), name)
    if getattr(value, "__qualname__", None) == name:
        return f"{value.__module__}.{name}"
    return f"{FACES[face][name]}.{name}"
