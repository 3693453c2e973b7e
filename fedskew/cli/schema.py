"""``fedskew schema``: the JSON Schema of an experiment, for editors and for programs that write experiments.

Types, words and defaults are those of the classes themselves; ranges and meanings of a choice's fields are those of
docs/config.md. What hangs together over several keys it cannot say: the last word is the engine's, when it reads the
experiment.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

from engine.base.registry import Registry
from engine.experiment import CHOICES, SECTIONS, Experiment
from engine.experiment.dotted_keys import SYMBOLS
from fedskew.cli import json_output, key_meanings
from fedskew.cli.json_output import Json
from fedskew.cli.naming import With

DIALECT = "https://json-schema.org/draft/2020-12/schema"
BOUND = re.compile(r"(?:int|number) (>=|>|in) ?(?:(-?[\d.]+)|([\[(])([\d.]+), ([\d.]+)([\])]))")
# 0 stands for "as many as there are" in some choices of a partition.
UNBOUNDED = ("partition.clients",)


def schema_command(as_json: Json = False, own: With = None) -> None:
    """Print the JSON Schema of an experiment, by which an editor completes and checks its YAML file."""
    if as_json:
        json_output.print_json(schema())
    else:
        print(json.dumps(schema(), indent=2, ensure_ascii=False))


def schema() -> dict[str, Any]:
    """Return the schema of an experiment as a mapping, with all choices that are known in this process."""
    whole = Experiment.model_json_schema()
    defaults = Experiment().to_mapping()
    definitions = {name: _without_titles(one) for name, one in whole["$defs"].items()}
    properties = {name: _without_titles(one) for name, one in whole["properties"].items()}
    for section, registry in CHOICES.items():
        names = [f"{section}.{name}" for name in registry.names()]
        either = [{"$ref": f"#/$defs/{name}"} for name in names]  # told apart by the constant ``name``
        definitions[section] = {"type": "object", "required": ["name"], "oneOf": either}
        definitions |= dict(_choices(section, registry))
        properties[section] = {"$ref": f"#/$defs/{section}", "default": defaults[section]}
    names = CHOICES["model"].names()
    properties["client_models"]["items"] = {"anyOf": [{"enum": names}, {"$ref": "#/$defs/model"}]}
    stage = definitions["WrittenStage"]["properties"]
    stage["algorithm"] = {"anyOf": [{"$ref": "#/$defs/algorithm"}, {"type": "null"}], "default": None}
    stage["local"] = {"$ref": "#/$defs/Local"}
    for section, model in SECTIONS.items():
        _explain(definitions[model.__name__]["properties"], f"{section}.")
    _explain(properties, "")
    return {
        "$schema": DIALECT,
        "title": "fedskew experiment",
        "description": "All that determines a run; what is left out has its default.",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "$defs": definitions,
    }


def _choices(section: str, registry: Registry) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the definition of each choice, by ``section.name``."""
    for name, choice in registry.items():
        made = pydantic.TypeAdapter(choice).json_schema()
        definition = _without_titles({key: value for key, value in made.items() if key != "$defs"})
        fields = {field.name for field in dataclasses.fields(choice)}
        properties = {key: value for key, value in definition["properties"].items() if key in fields}
        for field, one in properties.items():
            _bound(one, f"{section}.{field}")
        _explain(properties, f"{section}.")
        definition["properties"] = {"name": {"const": name}, **properties}
        definition["required"] = ["name", *definition.get("required", [])]
        definition["additionalProperties"] = False
        yield f"{section}.{name}", definition
    for name, package in registry.offered().items():
        about = f"of the package {package}, whose fields are known once it has been asked for"
        yield f"{section}.{name}", {"description": about, "properties": {"name": {"const": name}}, "required": ["name"]}


def _explain(properties: Mapping[str, dict[str, Any]], prefix: str) -> None:
    """Give each property its dotted key as title and its meaning, with the papers' symbol where it has one."""
    symbols = {key: symbol for symbol, key in SYMBOLS.items()}
    for name, one in properties.items():
        key = f"{prefix}{name}"
        _, meaning = key_meanings.known().get(key, ("", ""))
        one["title"] = key
        if meaning:
            one["description"] = meaning + (f" (symbol: {symbols[key]})" if key in symbols else "")


def _bound(one: dict[str, Any], key: str) -> None:
    """Put the range of a choice's field, as the table of keys words it, to the numbers of its schema."""
    kind, _ = key_meanings.known().get(key, ("", ""))
    found = BOUND.search(kind)
    if found is None or key in UNBOUNDED:
        return
    how, least, opens, low, high, closes = found.groups()
    limits: dict[str, float] = {}
    if how == "in":
        limits["minimum" if opens == "[" else "exclusiveMinimum"] = _number(low)
        limits["maximum" if closes == "]" else "exclusiveMaximum"] = _number(high)
    else:
        limits["minimum" if how == ">=" else "exclusiveMinimum"] = _number(least)
    for branch in _numbers(one):
        branch |= limits


def _number(text: str) -> float:
    return int(text) if text.isdigit() else float(text)


def _numbers(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a schema that are of a number, those in lists included."""
    if one.get("type") in ("integer", "number"):
        yield one
    for part in [*one.get("anyOf", ()), *([one["items"]] if isinstance(one.get("items"), dict) else [])]:
        yield from _numbers(part)


def _without_titles(value: Any) -> Any:
    """Return a schema without the titles that pydantic makes of names, and without lines in its descriptions."""
    if isinstance(value, list):
        return [_without_titles(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {key: _without_titles(one) for key, one in value.items() if key != "title" or isinstance(one, dict)}
    if isinstance(kept.get("description"), str):
        kept["description"] = " ".join(kept["description"].split("\n\n")[0].split())
    return kept
