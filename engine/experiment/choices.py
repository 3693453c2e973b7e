"""Sections that are a choice by name: data, partition, model and algorithm.

In a mapping such a section is ``{"name": ..., field: value, ...}``; in an experiment it is the frozen dataclass that
the section's registry has under that name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, PlainValidator
from pydantic_core import to_jsonable_python

from algorithms import ALGORITHMS
from engine.algorithm import Algorithm
from engine.base.errors import ConfigError, require
from engine.base.evaluated import METRICS
from engine.base.registry import Registry
from engine.data import PARTITIONS, SOURCES, Partition, Source
from engine.models import MODELS, ModelSpec

CHOICES = {registry.section: registry for registry in (SOURCES, PARTITIONS, MODELS, ALGORITHMS)}
PARTS = {**CHOICES, METRICS.section: METRICS}  # that may be a user's own


def written(value: Any) -> Any:
    """Return an instance of a choice as one writes it in YAML: its name, with the fields that differ from their
    defaults. Anything else is returned as it is.
    """
    for registry in CHOICES.values():
        if isinstance(value, registry.kind):
            values = registry.dump(registry.taken(value))
            same = {one.name for one in dataclasses.fields(type(value)) if getattr(value, one.name) == one.default}
            return to_jsonable_python({name: one for name, one in values.items() if name not in same})
    return value


def _choice(registry: Registry) -> tuple[PlainValidator, PlainSerializer]:
    def build(value: Any) -> Any:
        return registry.build(value) if isinstance(value, Mapping) else registry.taken(value)

    return PlainValidator(build), PlainSerializer(registry.dump)


def _client_models(value: Any) -> list[Any]:
    """Return the models of a list in which names alone will do."""
    repair = "for example client_models=[mlp, lenet]"
    require(isinstance(value, list | tuple), "client_models", value, "must be a list of models", repair)
    return [_client_model(number, model) for number, model in enumerate(value)]


def _client_model(number: int, value: Any) -> Any:
    """Return one of ``client_models``, given by its name alone, as a name with fields, or built already."""
    if not isinstance(value, str | Mapping):
        return value
    try:
        return MODELS.build({"name": value} if isinstance(value, str) else value)
    except ConfigError as error:
        place = f"client_models.{number}."
        raise ConfigError(
            error.field.replace("model.", place, 1), error.value, error.rule, error.repair.replace("model.", place)
        ) from None


SourceChoice = Annotated[Source, *_choice(SOURCES)]
PartitionChoice = Annotated[Partition, *_choice(PARTITIONS)]
ModelChoice = Annotated[ModelSpec, *_choice(MODELS)]
ClientModels = Annotated[tuple[ModelChoice, ...], BeforeValidator(_client_models)]
AlgorithmChoice = Annotated[Algorithm, *_choice(ALGORITHMS)]
