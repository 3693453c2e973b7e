"""Entries of the four dictionaries by their kind: checked, sliced, counted, cast, and copied to and from workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor

from engine.algorithm import Algorithm, Client, Entries, Entry, Kind, ParamLayout, Tensors, labels

NOTHING_DECLARED: Entries = MappingProxyType({})
SHAPES: dict[Kind, Callable[[ParamLayout], tuple[int, ...]]] = {
    Kind.VECTOR: lambda layout: (layout.size,),
    Kind.BODY: lambda layout: (layout.body,),
    Kind.HEAD: lambda layout: (layout.head,),
    Kind.PERSONAL_HEAD: lambda layout: (layout.head,),
    Kind.BUFFERS: lambda layout: (layout.buffers,),
    Kind.SCALAR: lambda layout: (),
    Kind.MATRIX: lambda layout: (layout.classes, layout.classes),
}


def checked(algorithm: Algorithm, method: str, entries: Tensors, layout: ParamLayout) -> Tensors:
    """``entries`` as they are, or a TypeError that names the entry which breaks its declaration."""
    kinds = algorithm.kinds
    for name, tensor in entries.items():
        where = f"{type(algorithm).__name__}.{method}: entry {name!r}"
        kind = kinds.get(name)
        if kind is None:
            raise TypeError(f"{where} is not declared; add it to {type(algorithm).__name__}.entries with its kind")
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{where} is a {type(tensor).__name__}; entries are tensors")
        shape = SHAPES[kind](layout) if kind in SHAPES else tensor.shape
        if tensor.shape != shape:
            raise TypeError(f"{where} has shape {tuple(tensor.shape)}; a {kind} here has shape {shape}")
    return entries


def check_restored(algorithm: Algorithm, server: Tensors, layout: ParamLayout, required: Iterable[str]) -> None:
    """Raise ValueError where a checkpoint's entries are not those of a server with this algorithm and model."""
    lacking = sorted({"weights", "buffers", *required} - server.keys())
    if lacking:
        raise ValueError(f"it has no entry {lacking[0]!r}")
    try:
        checked(algorithm, "server", server, layout)
    except TypeError as error:
        raise ValueError(str(error)) from None
    whole = [name for name in ("weights", "buffers") if not server[name].is_floating_point()]
    if whole:
        raise ValueError(f"its {whole[0]} are of {server[whole[0]].dtype}")


def checked_upload(algorithm: Algorithm, entries: Tensors, layout: ParamLayout) -> Tensors:
    """A client's upload, :func:`checked`; a TypeError where it holds what never leaves a client."""
    kinds = algorithm.kinds
    for name in entries:
        if kinds.get(name) is Kind.PERSONAL_HEAD:
            raise TypeError(
                f"{type(algorithm).__name__}.upload: entry {name!r} is a personal head, which is never sent"
            )
    return checked(algorithm, "upload", entries, layout)


def kept(kinds: Mapping[str, Kind], state: Tensors, client: Client) -> Tensors:
    """A client's state as it is stored: personal heads by their rows for its classes, [K_i, D + 1]."""
    return _with_heads(labels.packed, kinds, state, client)


def opened(kinds: Mapping[str, Kind], stored: Tensors, client: Client) -> Tensors:
    """The inverse of :func:`kept`."""
    return _with_heads(labels.unpacked, kinds, stored, client)


def _with_heads(
    change: Callable[[Tensor, Tensor, ParamLayout], Tensor], kinds: Mapping[str, Kind], entries: Tensors, client: Client
) -> Tensors:
    """``entries`` with their personal heads changed, the others as they are."""
    layout, counts = client.context.layout, client.class_counts
    return {
        name: change(tensor, counts, layout) if kinds.get(name) is Kind.PERSONAL_HEAD else tensor
        for name, tensor in entries.items()
    }


def sliced(algorithm: Algorithm, entries: Tensors, where: slice) -> Tensors:
    """Entries of kind vector cut to ``where``, as the gradient hook gets them."""
    kinds = algorithm.kinds
    return {name: tensor[where] if kinds.get(name) is Kind.VECTOR else tensor for name, tensor in entries.items()}


def cast(algorithm: Algorithm, entries: Tensors, dtype: torch.dtype) -> Tensors:
    """Floating entries in the run's precision; moments stay in float64."""
    kinds = algorithm.kinds
    return {
        name: tensor.to(dtype) if tensor.is_floating_point() and kinds.get(name) is not Kind.MOMENTS else tensor
        for name, tensor in entries.items()
    }


def is_finite(*tensors: Tensor) -> bool:
    """Return whether no number in them is infinite or NaN."""
    return not_finite(dict(enumerate(tensors))) is None


Name = TypeVar("Name", bound=Hashable)


def not_finite(entries: Mapping[Name, Tensor]) -> Name | None:
    """Return the name of the first entry with a number that is not finite; a GPU is asked once for all of them."""
    floating = {name: tensor for name, tensor in entries.items() if tensor.numel() and tensor.is_floating_point()}
    far = [tensor for tensor in floating.values() if tensor.device.type != "cpu"]
    extremes = iter(torch.stack([_extremes(tensor).double() for tensor in far]).tolist() if far else ())
    for name, tensor in floating.items():
        low, high = torch.aminmax(tensor) if tensor.device.type == "cpu" else next(extremes)
        if not (math.isfinite(low) and math.isfinite(high)):  # not a number if anything is; cheaper than isfinite
            return name
    return None


def _extremes(tensor: Tensor) -> Tensor:
    return torch.stack(torch.aminmax(tensor))


def floats(
    entries: Mapping[str, Tensor], declared: Entries = NOTHING_DECLARED, dtype: torch.dtype = torch.float32
) -> int:
    """Count the numbers that travel; an integer is one, and an entry with ``bits`` as many of ``dtype`` as it fills."""
    total = 0
    for name, tensor in entries.items():
        entry, numbers = declared.get(name), math.prod(tensor.shape)
        bits = entry.bits if isinstance(entry, Entry) else None
        total += numbers if bits is None else math.ceil(numbers * bits / (8 * dtype.itemsize))
    return total


def copied(entries: Tensors, device: torch.device) -> Tensors:
    """Copies on a device, also where the entries are there already: a write to them reaches nobody else.

    Contiguous and without a graph, as what has come over Ray's wire is: products of other strides have other bits.
    """
    return {
        name: tensor.detach().to(device, copy=True, memory_format=torch.contiguous_format)
        for name, tensor in entries.items()
    }


def at_rest(entries: Tensors) -> Tensors:
    """Entries as they leave a worker, see :func:`to_host`."""
    return {name: to_host(tensor) for name, tensor in entries.items()}


def to_host(tensor: Tensor) -> Tensor:
    """A tensor in the host's memory, contiguous and without a graph; a slice is cloned, since it would keep all of the
    larger tensor alive."""
    tensor = tensor.detach().cpu()
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole else tensor.clone(memory_format=torch.contiguous_format)
