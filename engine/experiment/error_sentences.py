"""Errors of pydantic as one sentence each, with keys that can be typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pydantic
from pydantic import BaseModel

from engine.base.declared import Declared, declared
from engine.base.errors import ConfigError, nearest
from engine.base.registry import config_error


def one_sentence(
    error: pydantic.ValidationError,
    owners: Mapping[str, type[BaseModel]],
    otherwise: type[BaseModel],
    section: str = "",
) -> ConfigError:
    """Return the first of pydantic's errors.

    owners: the dotted path of a section ("" for the experiment) -> its class, for defaults that a repair may name and
    for the field that was meant by one that is not known; ``otherwise`` is the class at all other paths. section: the
    path of what was validated, where that is no experiment.
    """
    fields: dict[str, Declared] = {}
    for name, model in owners.items():
        fields |= {f"{name}.{field}".removeprefix("."): found for field, found in declared(model).items()}
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in (*([section] if section else []), *first["loc"]))
    if first["type"] == "extra_forbidden":
        owner, _, field = path.rpartition(".")
        known = owners.get(owner, otherwise).model_fields
        return ConfigError(path, first["input"], f"is not a field of {owner or 'an experiment'}", nearest(field, known))
    return config_error(error, section, fields)


def with_stage_names(error: ConfigError, stages: Any) -> ConfigError:
    """Return the error with the key that can be typed, in which a stage goes by its name.

    That is ``stages.distil.algorithm.alpha`` for ``stages.2.algorithm.algorithm.alpha``. stages: as they were given to
    the experiment, so anything at all.
    """
    first, number, *rest = [*error.field.split("."), "", ""]
    if first != "stages" or not number.isdecimal() or not isinstance(stages, list | tuple):
        return error
    stage = stages[int(number)]
    name = stage.get("name") if isinstance(stage, Mapping) else getattr(stage, "name", None)
    if not name:
        return error
    field = f"stages.{name}." + ".".join(filter(None, rest)).replace("algorithm.algorithm.", "algorithm.", 1)
    repair = re.sub(r"\b(algorithm|local)\.", rf"stages.{name}.\1.", error.repair)
    return ConfigError(field, error.value, error.rule.replace(f"stages.{number}", f"stages.{name}"), repair)
