"""``fedskew schema``: the JSON Schema of an experiment, for editors and for programs that write experiments.

Types, words, ranges, meanings and defaults are those of the fields' annotations. What hangs together over several keys
it cannot say: the last word is the engine's, when it reads the experiment.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any

import pydantic

from engine.base.declared import Declared, declared
from engine.base.json_text import plain
from engine.base.registry import Registry
from engine.experiment import CHOICES, SECTIONS, Experiment
from engine.experiment.dotted_keys import SYMBOLS
from fedskew.cli.listing import said_of
from fedskew.cli.output import json_wanted, print_json

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_command() -> None:
    """Print the JSON Schema of an experiment, by which an editor completes and checks its YAML file."""
    if json_wanted():
        print_json(schema())
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
        _explain(definitions[model.__name__]["properties"], declared(model), f"{section}.")
    _explain(properties, declared(Experiment), "")
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
        fields = declared(choice)
        properties = {field.name: _property(field) for field in fields.values()}
        _explain(properties, fields, f"{section}.")
        yield (
            f"{section}.{name}",
            {
                "type": "object",
                "description": said_of(choice),
                "properties": {"name": {"const": name}, **properties},
                "required": ["name", *(field.name for field in fields.values() if field.default is MISSING)],
                "additionalProperties": False,
            },
        )
    for name, package in registry.offered().items():
        about = f"of the package {package}, whose fields are known once it has been asked for"
        yield f"{section}.{name}", {"description": about, "properties": {"name": {"const": name}}, "required": ["name"]}


def _property(field: Declared) -> dict[str, Any]:
    """Return the schema of a choice's field."""
    made = _without_titles(pydantic.TypeAdapter(field.hint).json_schema())
    return made if field.default is MISSING else {**made, "default": plain(field.default)}


def _explain(properties: Mapping[str, dict[str, Any]], fields: Mapping[str, Declared], prefix: str) -> None:
    """Give each property its dotted key as title and its meaning, with the papers' symbol where it has one."""
    symbols = {key: symbol for symbol, key in SYMBOLS.items()}
    for name, one in properties.items():
        key, field = f"{prefix}{name}", fields[name]
        one["title"] = key
        if field.meaning:
            neutral = "" if field.neutral is None else f"; {field.neutral}"
            one["description"] = field.meaning + neutral + (f" (symbol: {symbols[key]})" if key in symbols else "")


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
