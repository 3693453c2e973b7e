"""torch's random operations, drawn from given generators: of one client, or of several whose numbers are stacked.

Draws are made on the CPU in a contiguous tensor and moved, so that they depend on neither the device nor the layout of
memory in which a network has its numbers.

Shapes: k clients; stacked tensors are [k, ...].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
Fill = Callable[[Tensor, torch.Generator], Any]  # a contiguous tensor on the CPU, in place


class NotEachClients(Exception):
    """An operation in a pass over several clients whose numbers cannot be told apart by client."""


class Draw:
    """Tensors drawn for the clients of an operation."""

    def __init__(
        self, generators: Sequence[torch.Generator], stacked: bool = False, turn: Callable[[int], int] | None = None
    ) -> None:
        """``turn``: gives the number of the next client, where an operation is called for one after the other."""
        self.generators = generators
        self.stacked = stacked
        self._turn = turn

    def filled(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str | None, fill: Fill) -> Tensor:
        """Return a tensor of ``shape`` that ``fill`` has filled, each client's part from its generator."""
        if not self.stacked:
            return _filled(shape, dtype, fill, self.generators[0]).to(device)
        self.check(shape)
        parts = [_filled(shape[1:], dtype, fill, generator) for generator in self.generators]
        return torch.stack(parts).to(device)

    def parts(self, tensor: Tensor) -> list[tuple[Tensor, torch.Generator]]:
        """Return each client's rows of a tensor whose first axis has all of them, on the CPU, with its generator."""
        tensor = tensor.detach().cpu()
        if not self.stacked:
            return [(tensor, self.generators[0])]
        if len(tensor) % len(self.generators):
            raise NotEachClients(f"in a shape {tuple(tensor.shape)} that does not part into clients")
        return list(zip(tensor.chunk(len(self.generators)), self.generators, strict=True))

    def whose(self) -> torch.Generator:
        """Return the generator of the client that an operation is for, which knows no several ones."""
        if not self.stacked:
            return self.generators[0]
        assert self._turn is not None
        return self.generators[self._turn(len(self.generators))]

    def check(self, shape: Sequence[int]) -> None:
        if not shape or shape[0] != len(self.generators):
            raise NotEachClients(f"in a shape {tuple(shape)} that is not each client's own")


def _filled(shape: Sequence[int], dtype: torch.dtype, fill: Fill, generator: torch.Generator) -> Tensor:
    tensor = torch.empty(tuple(shape), dtype=dtype, device="cpu")
    fill(tensor, generator)
    return tensor


Rule = Callable[[Draw, tuple[Any, ...], dict[str, Any]], Any]


def _in_place(func: Any) -> Rule:
    def rule(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        to, rest = args[0], args[1:]
        named = {name: value for name, value in kwargs.items() if name != "generator"}
        return to.copy_(draw.filled(to.shape, to.dtype, to.device, lambda t, g: func(t, *rest, generator=g, **named)))

    return rule


def _made(size_at: int | None, whole: bool, fill: Callable[..., Any]) -> Rule:
    """A rule of an operation that makes a tensor: of its argument ``size_at``'s size, or None like its first one.

    ``whole``: of int64 by default. ``fill``: is given the tensor, the generator and the other arguments.
    """

    def rule(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        if size_at is None:
            shape, rest, dtype, device = args[0].shape, args[1:], args[0].dtype, args[0].device
        else:
            shape, rest, device = args[size_at], args[:size_at], torch.device("cpu")
            dtype = torch.int64 if whole else torch.get_default_dtype()
        dtype, device = kwargs.get("dtype") or dtype, kwargs.get("device") or device
        return draw.filled(shape, dtype, device, lambda t, g: fill(t, g, *rest))

    return rule


def _bernoulli(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Of chances that are a tensor."""
    chances = args[0]
    return (draw.filled(chances.shape, chances.dtype, chances.device, _uniform) < chances).to(chances.dtype)


def _bernoulli_in_place(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    to, chances = args[0], args[1]
    return to.copy_(draw.filled(to.shape, chances.dtype, to.device, _uniform) < chances)


def _normal(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Of a mean or a deviation that is a tensor."""
    mean, std = args[0], args[1] if len(args) > 1 else kwargs.get("std", 1.0)
    tensors = [value for value in (mean, std) if isinstance(value, Tensor)]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    like = tensors[0]
    return draw.filled(shape, like.dtype, like.device, _standard) * std + mean


def _dropout(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The operation of CUDA, as those of the CPU do it together."""
    x, p, train = args
    if train is False:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = draw.filled(x.shape, x.dtype, x.device, lambda t, g: t.bernoulli_(1 - p, generator=g))
    return x * kept * (1 / (1 - p) if p < 1 else 0.0), kept.bool()


def _multinomial(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    chances, *rest = args
    parts = [torch.multinomial(part, *rest, **kwargs, generator=own) for part, own in draw.parts(chances)]
    return torch.cat(parts).to(chances.device)


def _permutation(draw: Draw, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    order = torch.randperm(args[0], generator=draw.whose(), dtype=kwargs.get("dtype") or torch.int64)
    return order.to(kwargs.get("device") or "cpu")


def _uniform(t: Tensor, g: torch.Generator) -> Tensor:
    return t.uniform_(generator=g)


def _standard(t: Tensor, g: torch.Generator) -> Tensor:
    return t.normal_(generator=g)


def _whole(t: Tensor, g: torch.Generator, *limits: int) -> Tensor:
    low, high = limits if len(limits) == 2 else (0, limits[0])
    return t.random_(low, high, generator=g)


RULES: dict[Any, Rule] = {
    **{
        func: _in_place(func)
        for func in (
            aten.bernoulli_.float,
            aten.uniform_.default,
            aten.normal_.default,
            aten.exponential_.default,
            aten.cauchy_.default,
            aten.log_normal_.default,
            aten.geometric_.default,
            aten.random_.default,
            aten.random_.to,
            getattr(aten.random_, "from"),
        )
    },
    aten.bernoulli_.Tensor: _bernoulli_in_place,
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _made(None, False, lambda t, g, p: t.bernoulli_(p, generator=g)),
    aten.rand.default: _made(0, False, _uniform),
    aten.rand_like.default: _made(None, False, _uniform),
    aten.randn.default: _made(0, False, _standard),
    aten.randn_like.default: _made(None, False, _standard),
    aten.normal.float_float: _made(2, False, lambda t, g, mean, std: t.normal_(mean, std, generator=g)),
    aten.normal.Tensor_float: _normal,
    aten.normal.float_Tensor: _normal,
    aten.normal.Tensor_Tensor: _normal,
    aten.randint.default: _made(1, True, _whole),
    aten.randint.low: _made(2, True, _whole),
    aten.randint_like.default: _made(None, True, _whole),
    aten.randint_like.low_dtype: _made(None, True, _whole),
    aten.native_dropout.default: _dropout,
    aten.multinomial.default: _multinomial,
    aten.randperm.default: _permutation,
}
