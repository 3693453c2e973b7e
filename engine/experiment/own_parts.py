"""Decorators by which a user's own class or function becomes a choice: ``@fedskew.algorithm("feddyn")``.

A class is taken as it is: a frozen dataclass over :class:`Algorithm`, :class:`ModelSpec`, :class:`Source` or
:class:`Partition`. Of a function a class is made: what it is given by the engine it names (``shape``, ``labels``, ...),
all its other parameters are the choice's fields.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar, get_type_hints

import numpy as np
from torch import nn

from algorithms import ALGORITHMS
from engine.base.errors import require
from engine.base.evaluated import METRICS, OwnMetric, Way
from engine.base.registry import Registry
from engine.data import PARTITIONS, SOURCES, Assignment, Dataset, Partition, Source
from engine.data.own_data import as_dataset
from engine.data.samples.assignment import Parts
from engine.models import MODELS, Model, ModelSpec
from engine.models.splitting import Cut, check_split, split_model

Own = TypeVar("Own", bound=Callable[..., Any])


def algorithm(name: str) -> Callable[[Own], Own]:
    """Register a class as ``algorithm.name=NAME``; see ``engine/algorithm/contract.py``."""
    return _decorator(ALGORITHMS, name, None)


def model(name: str) -> Callable[[Own], Own]:
    """Register a class or a function as ``model.name=NAME``.

    The function is given ``shape`` (C, H, W) and ``num_classes`` and returns an ``nn.Module`` whose last layer is
    linear, or a :class:`Model`. Its weights are those that it is built with, drawn by torch's own rules from a
    generator with the run's key.
    """
    return _decorator(MODELS, name, _OwnModel)


def dataset(name: str) -> Callable[[Own], Own]:
    """Register a class or a function as ``data.name=NAME``; what the function returns: see ``own_data.py``."""
    return _decorator(SOURCES, name, _OwnSource)


def partition(name: str) -> Callable[[Own], Own]:
    """Register a class or a function as ``partition.name=NAME``.

    The function may name ``labels`` (int64 [N]), ``num_classes``, ``owners`` (int64 [N] or None), ``rng`` (numpy's, of
    ``partition.seed``) and ``clients``; it returns for each client the rows that it holds.
    """
    return _decorator(PARTITIONS, name, _OwnPartition)


def metric(name: str, better: Way = "max") -> Callable[[Own], Own]:
    """Register a function as a metric, which ``evaluation.metrics=[NAME]`` has taken at each evaluation.

    The function may name ``confusion``, test rows by true and predicted class, numpy's int64 [C, C], and returns a
    number; or ``scores`` and ``labels``, tensors float64 [n, C] and int64 [n] of some test rows, and returns a number
    for each, of which the mean over test rows is the metric. ``better``: whether the larger or the smaller one is.
    """

    def add(own: Any) -> Any:
        require(inspect.isfunction(own), "metric.name", name, "must be a function", "put the decorator above one")
        asked, repair = {*inspect.signature(own).parameters} & {*OwnMetric.given}, "take one or the other"
        fits = asked in ({"confusion"}, {"scores", "labels"})
        require(fits, "metric.name", name, "takes neither confusion alone nor scores and labels alone", repair)
        made: Any = _decorator(METRICS, name, _OwnMetric)(own)
        made.better, made.of_rows = better, asked != {"confusion"}
        return made

    return add


def _decorator(registry: Registry, name: str, made_of_functions: type | None) -> Callable[[Own], Own]:
    def add(own: Any) -> Any:
        makes = inspect.isfunction(own) and made_of_functions is not None
        choice: Any = _class_of(own, name, made_of_functions) if makes else own
        rule = "must be a class" if made_of_functions is None else "must be a class or a function"
        require(isinstance(choice, type), f"{registry.section}.name", name, rule, "put the decorator above one")
        registry.add(name, choice)
        return choice

    return add


def _class_of(function: Any, name: str, base: Any) -> type:
    """Return a frozen dataclass over ``base`` whose fields are what ``function`` is not given by the engine."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError:  # of a name that is there for type checkers alone
        hints = {}
    fields = []
    for parameter in inspect.signature(function).parameters.values():
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        require(parameter.kind in kinds, "function", name, f"has the parameter {parameter}", "name each one")
        if parameter.name in base.given:
            continue
        inherited = {field.name: field for field in dataclasses.fields(base)}.get(parameter.name)
        kind = hints.get(parameter.name, inherited.type if inherited else Any)
        if parameter.default is not inspect.Parameter.empty:
            fields.append((parameter.name, kind, dataclasses.field(default=parameter.default, kw_only=True)))
        elif inherited is None:
            fields.append((parameter.name, kind, dataclasses.field(kw_only=True)))
    space = {"function": staticmethod(function), "own_name": name, "__doc__": inspect.getdoc(function)}
    made = dataclasses.make_dataclass(function.__name__, fields, bases=(base,), namespace=space, frozen=True)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made


class _OfFunction:
    """What the classes made of functions have in common."""

    given: ClassVar[tuple[str, ...]]  # the parameters that the engine gives
    function: ClassVar[Callable[..., Any]]
    own_name: ClassVar[str]

    def _called(self, given: Mapping[str, Any]) -> Any:
        names = inspect.signature(self.function).parameters
        return self.function(**{name: given[name] if name in given else getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True)
class _OwnMetric(_OfFunction, OwnMetric):
    def value(self, **given: Any) -> Any:
        return self._called(given)


@dataclasses.dataclass(frozen=True)
class _OwnModel(_OfFunction, ModelSpec):
    given: ClassVar[tuple[str, ...]] = ("shape", "num_classes")
    keeps_weights: ClassVar[bool] = True
    takes_tokens: ClassVar[bool | None] = None

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        network = self._called({"shape": shape, "num_classes": num_classes})
        built = split_model(network)
        check_split(built, shape, num_classes)
        if self.projection or self.head != "linear":
            for name in [name for name, module in built.body.named_modules() if isinstance(module, Cut)]:
                built.body.set_submodule(name, nn.Identity())  # what follows it is no mistake of the network's
            built = self.assemble(nn.Sequential(built.body), built.head.in_features, num_classes)
        return built


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OwnSource(_OfFunction, Source):
    given: ClassVar[tuple[str, ...]] = ()

    def read(self) -> Dataset:
        return as_dataset(self._called({}), self.own_name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _OwnPartition(_OfFunction, Partition):
    given: ClassVar[tuple[str, ...]] = ("labels", "num_classes", "owners", "rng")

    def draw(
        self, rng: np.random.Generator, labels: np.ndarray, num_classes: int, owners: np.ndarray | None
    ) -> Assignment:
        rows: Any = self._called({"rng": rng, "labels": labels, "num_classes": num_classes, "owners": owners})
        rule = f"gave a {type(rows).__name__} that is no list of rows for each client"
        listed = isinstance(rows, Iterable) and not isinstance(rows, Mapping)
        require(listed, "partition.name", self.own_name, rule, "return a list of index arrays")
        return Assignment(Parts.of(rows))
