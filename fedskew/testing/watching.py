"""Looking on while the engine calls an algorithm's methods, without the algorithm or the engine noticing."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import Tensor

from engine.algorithm import Algorithm, Client, Context

METHODS = (
    *("init_server", "prepare", "before_round", "broadcast", "broadcast_to", "aggregate", "aggregate_with", "finish"),
    "predict",
    *("init_state", "client_setup", "start", "phases", "phase_start"),
    *("step_randomness", "step_constants", "loss", "perturbation", "gradient"),
    *("upload", "weight", "personal_model", "personalise_phases", "personal_after", "predict_own"),
)


@dataclass(frozen=True)
class Called:
    """A method that the engine has called, with what it was given, by the names of its parameters."""

    algorithm: Algorithm
    method: str
    given: dict[str, Any]

    @property
    def where(self) -> str:
        """The method, and the client or the round that it was called for."""
        name = f"{type(self.algorithm).__name__}.{self.method}"
        client = self.client
        context = client.context if client is not None else self.given.get("context")
        words = [] if client is None else [f"a client of {client.num_examples} rows"]
        words += [f"round {context.round}"] if isinstance(context, Context) else []
        return f"{name} ({', '.join(words)})" if words else name

    @property
    def client(self) -> Client | None:
        """The client that it was called for, if that was said."""
        for value in self.given.values():
            found = value if isinstance(value, Client) else getattr(value, "client", None)
            if isinstance(found, Client):
                return found
        return None


Look = Callable[[Called, Callable[[], Any]], Any]  # calls the method, which the second argument does, and returns it


@contextmanager
def watched(kind: type[Algorithm], look: Look) -> Iterator[None]:
    """Show ``look`` each call of a method that ``kind`` has of its own, or of a class that is not the contract's.

    What such a method calls in turn (that of the class above, say) is not shown. Each method
    is replaced where it is defined, so that what a class overrides, and what is idle, stay what they are.
    """
    replaced: list[tuple[type, str, Any]] = []
    under_way: list[str] = []
    for owner in kind.__mro__:
        if owner is object or owner.__module__.startswith("engine.algorithm"):
            continue
        for name in METHODS:
            method = vars(owner).get(name)
            if inspect.isfunction(method):
                replaced.append((owner, name, method))
                setattr(owner, name, _shown(method, look, under_way))
    try:
        yield
    finally:
        for owner, name, method in replaced:
            setattr(owner, name, method)


def _shown(method: Callable[..., Any], look: Look, under_way: list[str]) -> Callable[..., Any]:
    parameters = inspect.signature(method)

    @wraps(method)
    def shown(self: Algorithm, *args: Any, **kwargs: Any) -> Any:
        if under_way:
            return method(self, *args, **kwargs)
        try:
            given = dict(parameters.bind(self, *args, **kwargs).arguments)
        except TypeError:  # the call itself says it better
            return method(self, *args, **kwargs)
        given.pop(next(iter(given)))
        under_way.append(method.__name__)
        try:
            return look(Called(self, method.__name__, given), lambda: method(self, *args, **kwargs))
        finally:
            under_way.pop()

    return shown


def tensors_in(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a value with the way to each: ``received['weights']``, ``run.end``."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from tensors_in(one, f"{name}[{key!r}]")
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        for field, one in value._asdict().items():  # pyright: ignore[reportAttributeAccessIssue] (a NamedTuple's)
            yield from tensors_in(one, f"{name}.{field}")
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from tensors_in(one, f"{name}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type | Algorithm):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name), f"{name}.{field.name}")
