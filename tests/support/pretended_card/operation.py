"""What there is to know of an operation of torch's, looked up once: what it writes, what it makes the host wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

NESTED = (list, tuple, dict)

# The host needs numbers of the card to go on: to return them, to make a result of that size, to check for errors.
WAITS = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "bincount", "multinomial", "histogram", "repeat_interleave.Tensor", "_linalg_check_errors",
    "_linalg_eigh", "_linalg_svd", "linalg_lstsq",
}  # fmt: skip
INDEXES = {"index", "_unsafe_index", "index_put", "_unsafe_index_put", "index_put_", "_index_put_impl_"}
ALIASES = {"detach", "alias", "lift", "lift_fresh", "_unsafe_view"}
ALLOCATES = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted"}
# One tensor of them may be the CPU's if it has no dimensions: its number goes along with the start of the operation.
TAKES_NUMBERS = {"fill", "fill_", "masked_fill", "masked_fill_", "where", "lerp", "lerp_"}
# Arguments that are written, of which their schemas say nothing.
UNTOLD = {"native_batch_norm": {"running_mean", "running_var"}}


@dataclass(frozen=True)
class Operation:
    """One overload."""

    name: str  # without namespace and overload
    is_view: bool  # shares memory with its input, and is no work
    allocates: bool  # makes memory without numbers, and is no work either
    written: tuple[tuple[int, str], ...]  # position and name of the arguments that it writes
    only_writes: bool  # it makes nothing new: what it returns, if anything, is what it has written
    returns: int  # how many results
    changes_form: bool  # an in-place operation by which a tensor gets another shape or other memory
    takes_numbers: bool
    indexes: bool
    waits: bool
    draws: bool

    def given_to_write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """The arguments that it writes, lists flattened."""
        found: list[Any] = []
        for position, name in self.written:
            value = args[position] if position < len(args) else kwargs.get(name)
            found.extend(value if isinstance(value, list | tuple) else [value])
        return [one for one in found if one is not None]

    def returned_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What it returns, if it only writes."""
        given = self.given_to_write(args, kwargs)
        return None if not self.returns else given[0] if self.returns == 1 else tuple(given)


@cache
def operation(func: Any) -> Operation:
    schema, full = func._schema, str(func).removeprefix("aten.")
    name = schema.name.partition("::")[2]
    written = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write) or argument.name in UNTOLD.get(name, ())
    )
    returned = [one.alias_info is not None and one.alias_info.is_write for one in schema.returns]
    return Operation(
        name=name,
        is_view=(func.is_view or name in ALIASES) and not written,
        allocates=name in ALLOCATES,
        written=written,
        only_writes=bool(written) and all(returned),
        returns=len(returned),
        changes_form=torch.Tag.inplace_view in func.tags or name in ("set_", "resize_"),
        takes_numbers=torch.Tag.pointwise in func.tags or name in TAKES_NUMBERS or name.startswith("_foreach_"),
        indexes=name in INDEXES,
        waits=name in WAITS or full in WAITS,
        draws=torch.Tag.nondeterministic_seeded in func.tags,
    )


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments or results of an operation, each by itself changed; they are lists of lists at most."""
    kind = type(value)
    if kind is tuple or kind is list:
        return kind([change(one) if type(one) not in NESTED else mapped(change, one) for one in value])
    if kind is dict:
        return {name: mapped(change, one) for name, one in value.items()}
    if isinstance(value, tuple | list):  # one of torch's own kinds
        return tuple(mapped(change, one) for one in value)
    return change(value)


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """All tensors among arguments or results."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(tensors(value))
    return found
