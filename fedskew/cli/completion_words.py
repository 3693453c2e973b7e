"""The words that the Tab key is answered with, gathered from the commands and the registries into a file.

``python -m fedskew.cli.completion_words`` writes the file anew; a test holds it equal to the code.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import typer.main

from engine.experiment import CHOICES, Experiment, keys
from fedskew.cli.completion import FILE
from fedskew.cli.listing import LISTS
from fedskew.cli.main import app
from fedskew.cli.schema import schema
from fedskew.testing.templates import KINDS
from tune_configs import EXPERIMENTS, SWEEPS

OF_RUN = ("run", "floor", "tune-executor", "scale")  # take an experiment, a sweep's cell and keys
VALUES = {"--profile": ["laptop", "paper"], "--mode": ["auto", "inside", "nested"], "--method": ["pca", "tsne"]}
WITH_KEYS = (*OF_RUN, "sweep", "resume", "diagnose")


def words() -> dict[str, Any]:
    """Return commands and their options with a line on each, names by command, keys with the words they may have."""
    commands: Any = typer.main.get_command(app)
    named = {name: command for name, command in commands.commands.items() if not command.hidden}
    sweeps = {f"{module}.{function}": "" for module, functions in SWEEPS.items() for function in functions}
    experiments = {name: _line(inspect.getdoc(function)) for name, function in EXPERIMENTS.items()}
    names = dict.fromkeys(OF_RUN, experiments | sweeps)
    names |= {"sweep": sweeps, "claims": {**dict.fromkeys(SWEEPS, ""), **sweeps}, "new": dict.fromkeys(KINDS, "")}
    names["list"] = dict.fromkeys(["experiments", "sweeps", *LISTS], "")
    names["check"] = {name: "" for registry in CHOICES.values() for name in registry}
    return {
        "commands": {name: _line(command.help) for name, command in named.items()},
        "options": {name: _options(command) for name, command in named.items()},
        "names": names,
        "values": VALUES,
        "takes_keys": list(WITH_KEYS),
        "keys": _keys(),
    }


def _options(command: Any) -> dict[str, str]:
    found = {}
    for one in command.params:
        for text in [*one.opts, *one.secondary_opts]:
            if text.startswith("--") and not getattr(one, "hidden", False):
                found[text] = _line(one.help)
    return {**found, "--help": "Show this message and exit."}


def _keys() -> dict[str, list[str]]:
    """Return each dotted key with the words that it may be set to, [] where it takes numbers or any text."""
    whole = schema()
    found: dict[str, list[str]] = {key: [] for key in keys()}
    for section, registry in CHOICES.items():
        found[f"{section}.name"] = list(registry)
        for name in registry:
            for field, one in whole["$defs"][f"{section}.{name}"]["properties"].items():
                key = f"{section}.{field}"
                found[key] = list(dict.fromkeys([*found[key], *_texts(one)]))
    for section, default in Experiment().to_mapping().items():
        model = whole["properties"][section].get("$ref", "").rpartition("/")[2]
        for field, one in whole["$defs"].get(model, {}).get("properties", {}).items() if section not in CHOICES else ():
            found[f"{section}.{field}"] = _texts(one) if isinstance(default, dict) else []
    return found


def _texts(one: dict[str, Any]) -> list[str]:
    if one.get("type") == "boolean":
        return ["true", "false"]
    texts = [one["const"]] if "const" in one else one.get("enum", [])
    texts = [*texts, *(text for part in one.get("anyOf", ()) for text in _texts(part))]
    return [text for text in texts if isinstance(text, str)]


def _line(text: str | None) -> str:
    return " ".join((text or "").split())


def to_text(found: dict[str, Any]) -> str:
    """Return the file's content."""
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(to_text(words()), encoding="utf-8")
