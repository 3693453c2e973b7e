"""``fedskew schema``: a JSON Schema that takes what the engine takes, and knows what each key means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from engine.base.errors import ConfigError
from engine.base.json_text import plain
from engine.experiment import CHOICES, Experiment, keys
from engine.sweeps.named import load
from fedskew.cli.schema import DIALECT, schema
from tune_configs import EXPERIMENTS, SWEEPS

ROOT = Path(__file__).parents[2]
SCHEMA = schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
Call = Callable[..., tuple[int, str, str]]
# Fields that count for one setting of another field alone, so that the engine looks at them there alone.
LOOKED_AT_SOMETIMES = {("cbfl", "fewest")}

NEEDED = {
    "class_matrix": {"matrix": [[1]]},
    "table": {"file": "a.parquet"},
    "imagefolder": {"root": "a"},
    "parquet": {"root": "a"},
}


def wrong(values: Any) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(plain(values))]


def test_it_is_a_schema(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: what no validator reads; a command that prints something else."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    monkeypatch.setattr("fedskew.cli.schema.schema", lambda: SCHEMA)
    code, out, err = call("schema")
    assert (code, err) == (0, "") and json.loads(out) == SCHEMA == json.loads(call("schema", "--json")[1])
    assert SCHEMA["$schema"] == DIALECT


def test_it_takes_every_experiment_there_is(tmp_path: Path) -> None:
    """Kills: a bound, a word or a type that is narrower than the engine's."""
    experiments = {name: function() for name, function in EXPERIMENTS.items()} | {"default": Experiment()}
    for module, functions in SWEEPS.items():
        for name in functions:
            sweep = load(f"{module}.{name}", "laptop", [], SWEEPS).sweep
            experiments[f"{module}.{name}"] = sweep.base
    assert {name: found for name, one in experiments.items() if (found := wrong(one.to_mapping()))} == {}
    for section, registry in CHOICES.items():
        for name in registry:
            assert wrong({section: {"name": name, **NEEDED.get(name, {})}}) == [], name
    written = tmp_path / "mine.yaml"
    written.write_text(Experiment(stages=[{"name": "a", "rounds": 2, "local": {"lr": 0.1}}]).to_yaml())
    assert wrong(yaml.safe_load(written.read_text())) == []
    assert wrong({"client_models": ["mlp", {"name": "cnn", "norm": "batch"}]}) == []


@pytest.mark.parametrize(
    "values",
    [
        {"rouns": 3},
        {"rounds": 0},
        {"rounds": "many"},
        {"local": {"lrr": 0.1}},
        {"local": {"lr": 0}},
        {"algorithm": {"name": "fedprx"}},
        {"algorithm": {"mu": 0.1}},
        {"algorithm": {"name": "fedavg", "mu": 0.1}},
        {"algorithm": {"name": "fedprox", "mu": -0.1}},
        {"algorithm": {"name": "scaffold", "option": "III"}},
        {"partition": {"name": "dirichlet", "alpha": 0}},
        {"partition": {"name": "dirichlet", "alpha": [0.1, -1]}},
        {"participation": {"fraction": 1.2}},
        {"client_models": ["nonsense"]},
        {"stages": [{"name": "a", "rounds": 3, "algorithm": {"name": "nonsense"}}]},
        {"stages": [{"name": "a", "rounds": 3, "local": {"lrr": 0.1}}]},
        {"execution": {"device": "tpu"}},
        {"name": "has a space"},
    ],
    ids=str,
)
def test_it_refuses_what_the_engine_refuses(values: Any) -> None:
    """Kills: a schema that takes anything; one that refuses what the engine takes, since both are asked."""
    assert wrong(values)
    with pytest.raises(ConfigError):
        Experiment.from_mapping(values)


def numbers(one: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The parts of a property that are of a number."""
    if one.get("type") in ("integer", "number"):
        yield one
    for part in one.get("anyOf", ()):
        yield from numbers(part)


def bounds() -> Iterator[tuple[str, str, str, float]]:
    """Section, choice, field and a value just beyond each bound of a choice's field."""
    beyond = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
    for section, registry in CHOICES.items():
        for name in registry:
            for field, one in SCHEMA["$defs"][f"{section}.{name}"]["properties"].items():
                for part in numbers(one) if "items" not in str(one) else ():
                    for limit in beyond.keys() & part.keys():
                        yield section, name, field, part[limit] + beyond[limit]


def test_bounds_are_the_engines() -> None:
    """Kills: a range in the schema that is narrower than the engine's; ranges that are not in it."""
    found = set(bounds())
    assert len(found) > 100
    taken = []
    for section, name, field, value in found:
        try:
            CHOICES[section].build({"name": name, field: value})
        except ConfigError:
            continue
        taken.append((name, field))
    assert set(taken) <= LOOKED_AT_SOMETIMES


def test_every_key_is_explained() -> None:
    """Kills: a key without title or meaning."""
    told = set()
    for name, one in SCHEMA["$defs"].items():
        told |= {part["title"] for part in one.get("properties", {}).values() if part.get("description")}
        assert "." not in name or "title" not in one
    told |= {part["title"] for part in SCHEMA["properties"].values() if part.get("description")}
    assert {key for key in keys() if not key.endswith(".name")} <= told
    assert SCHEMA["$defs"]["partition.dirichlet"]["properties"]["alpha"]["description"].endswith("(symbol: alpha)")
