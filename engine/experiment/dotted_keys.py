"""Dotted keys, the papers' symbols for them, and the values that are set by either.

The functions work on an experiment as plain data (``Experiment.to_mapping``): the key ``local.lr`` is
``values["local"]["lr"]``, and ``stages.NAME.local.lr`` is that of the stage with this name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from algorithms import ALGORITHMS
from engine.algorithm import Local
from engine.base import safe_yaml
from engine.base.errors import ConfigError, nearest, require
from engine.base.registry import Registry
from engine.experiment.choices import CHOICES
from engine.experiment.sections import SECTIONS

# The papers' symbols; an algorithm's own fields and symbols come on top (Algorithm.symbols).
SYMBOLS = {
    "R": "rounds",
    "K": "partition.clients",
    "alpha": "partition.alpha",
    "C": "participation.fraction",
    "E": "local.epochs",
    "B": "local.batch_size",
    "eta": "local.lr",
}


def key_of(values: Mapping[str, Any], symbol: str, value: Any) -> str:
    """Return the dotted key that ``symbol`` stands for; itself where it is no symbol.

    Raises :class:`~engine.base.errors.ConfigError`, which names ``value``, if it stands for more than one.
    """
    if "." in symbol or symbol in values:
        return symbol
    if symbol == "R_w" and len(values["stages"]) > 1:  # warm-up rounds
        return f"stages.{values['stages'][0]['name']}.rounds"
    found = [key for key in [SYMBOLS.get(symbol)] if key in keys(values)]
    chosen = {"algorithm": values["algorithm"]["name"]} if not _all_named(values) else {}
    chosen |= {
        f"stages.{stage['name']}.algorithm": stage["algorithm"]["name"]
        for stage in values["stages"]
        if stage["algorithm"]
    }
    for section, name in chosen.items():
        field = ALGORITHMS[name].symbols.get(symbol, symbol)
        if field in ALGORITHMS.fields(name):
            found.append(f"{section}.{field}")
    if len(found) > 1:
        raise ConfigError(symbol, value, "stands for more than one key", "write " + " or ".join(found))
    return found[0] if found else symbol


def _all_named(values: Mapping[str, Any]) -> bool:
    """Return whether every stage has an algorithm of its own, so that the experiment's is nobody's."""
    return bool(values["stages"]) and all(stage["algorithm"] for stage in values["stages"])


def keys(values: Mapping[str, Any] | None = None) -> list[str]:
    """Return all dotted keys, with the fields of the choices made in ``values`` (of all choices if None)."""
    found = ["name", "seed", "rounds", "client_models"]
    for section, registry in CHOICES.items():
        names = [values[section]["name"]] if values else list(registry)
        fields = {field for name in names for field in registry.fields(name)}
        found += [f"{section}.name", *(f"{section}.{field}" for field in sorted(fields))]
    for section, model in SECTIONS.items():
        found += [f"{section}.{field}" for field in model.model_fields]
    for stage in values["stages"] if values else ():
        prefix = f"stages.{stage['name']}"
        name = (stage["algorithm"] or values["algorithm"])["name"] if values else ""
        found += [f"{prefix}.rounds", f"{prefix}.algorithm", f"{prefix}.algorithm.name"]
        found += [f"{prefix}.algorithm.{field}" for field in sorted(ALGORITHMS.fields(name))]
        found += [f"{prefix}.local.{field}" for field in Local.model_fields]
    return found


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """Split ``key=value`` into the key and its value, which is read as YAML; what is no YAML is text."""
    key, equals, text = assignment.partition("=")
    require(bool(equals and key), "override", assignment, "must be key=value", "for example local.lr=0.1")
    try:
        return key.strip(), safe_yaml.parse(text) if text else None
    except safe_yaml.KeyTwice as error:
        raise ConfigError(key.strip(), text, f"cannot be read: {error}", "keep one of them") from None
    except safe_yaml.NotYaml:
        return key.strip(), text


def assigned(values: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys, or symbols for them, in ``values``, and return these."""
    typed = set()
    # A choice is made before its fields are set, whatever the order in which they were typed.
    for name, value in sorted(changes.items(), key=lambda pair: not pair[0].endswith(".name")):
        key = key_of(values, name, value)
        _assign(values, key, value)
        typed.add(key)
    for mine, other in (("count", "fraction"), ("fraction", "count")):  # a new one replaces the file's other one
        if f"participation.{mine}" in typed and f"participation.{other}" not in typed:
            values["participation"][other] = None
    if "partition.file" in typed and "partition.sha256" not in typed:  # it was of the file before
        values["partition"]["sha256"] = None
    return values


def numbers(value: Any, key: str = "") -> Iterator[tuple[str, int | float]]:
    """Yield all numbers in an experiment as data, with their dotted keys."""
    if isinstance(value, int | float):
        yield key, value
    elif isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in parts:
            yield from numbers(part, f"{key}.{name}" if key else str(name))


def _stage_with(values: Mapping[str, Any], field: str) -> str:
    """Return the first stage whose algorithm has the field, or the first of all."""
    stages = values["stages"]
    found = [one for one in stages if one["algorithm"] and field in ALGORITHMS.fields(one["algorithm"]["name"])]
    return (found or stages)[0]["name"]


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    section, dot, field = key.partition(".")
    if (key == "rounds" and values["stages"]) or (section == "algorithm" and _all_named(values)):
        own = f"stages.{_stage_with(values, field)}.{key}"
        raise ConfigError(key, value, "is set by each stage of this experiment", f"for example {own}={value}")
    if section == "stages" and field:
        _assign_to_stage(values, key, value)
        return
    if section in CHOICES and not dot:  # a choice as a whole, or by its name alone
        if isinstance(value, Mapping):
            values[section] = dict(value)
            return
        field = "name"
    if section in CHOICES and field == "name":
        values[section] = _chosen(CHOICES[section], values[section], value)
        return
    known = keys(values)
    if key not in known:
        elsewhere = [other for other in dict.fromkeys(keys()) if other.rpartition(".")[2] == (field or section)]
        if not dot and elsewhere:
            here = [other for other in elsewhere if other in known]
            repair = "did you mean " + " or ".join(here or elsewhere) + "?"
            if not here:  # a field of other choices than those made
                having = [CHOICES[other.partition(".")[0]].having(key) for other in elsewhere]
                repair += f" {'; '.join(having)}"
            raise ConfigError(key, value, "is not a key: keys are dotted", repair)
        if key in elsewhere:
            raise CHOICES[section].no_such_field(values[section]["name"], field, value)
        raise ConfigError(key, value, "is not a known key", nearest(key, known))
    if not dot:
        values[section] = value
        return
    values[section][field] = value


def _assign_to_stage(values: dict[str, Any], key: str, value: Any) -> None:
    known = [other for other in keys(values) if other.startswith("stages.")]
    start, _, last = key.rpartition(".")
    if key not in known and f"{start}.name" in known and ALGORITHMS.having(last):
        stage = next(stage for stage in values["stages"] if start == f"stages.{stage['name']}.algorithm")
        chosen = (stage["algorithm"] or values["algorithm"])["name"]
        raise ALGORITHMS.no_such_field(chosen, last, value).under(f"stages.{stage['name']}")
    require(key in known, key, value, "is not a known key", nearest(key, known))
    _, name, section, *field = key.split(".")
    stage = next(stage for stage in values["stages"] if stage["name"] == name)
    if section == "rounds":
        stage["rounds"] = value
    elif section == "local":
        stage["local"][field[0]] = value
    elif not field and isinstance(value, Mapping):  # the choice as a whole
        stage["algorithm"] = dict(value)
    else:
        field = field or ["name"]
        own = stage["algorithm"] or dict(values["algorithm"])
        stage["algorithm"] = _chosen(ALGORITHMS, own, value) if field == ["name"] else {**own, field[0]: value}


def _chosen(registry: Registry, before: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the choice ``name`` as data, with those fields of the choice before that mean the same in it.

    Equal defaults are taken to say that they do.
    """
    new, old = registry.fields(name), registry.fields(before["name"])  # raises for an unknown name
    same = {field for field in new if field in old and new[field].default == old[field].default}
    return {"name": name} | {field: before[field] for field in same}
