"""The card: every operation of torch goes through it, those on the card with the CPU's numbers, checked and counted."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.pretended_card.backend import is_card
from tests.support.pretended_card.counts import Counts, line
from tests.support.pretended_card.generators import Generators
from tests.support.pretended_card.host_memory import HostMemory
from tests.support.pretended_card.lowering import above, below
from tests.support.pretended_card.operation import Operation, mapped, operation, tensors
from tests.support.pretended_card.order import Clock, Order
from tests.support.pretended_card.rules import check_alignment, check_devices
from tests.support.pretended_card.streams import Stream, Streams
from tests.support.pretended_card.tape import Tape
from tests.support.pretended_card.tensor import OnCard, block_of, wrapped

# Zeros that are known as such and have no memory, which forward-mode derivatives are made with: here they have some, so
# that operations with them, which a card need not do, are counted.
INSTEAD = {torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default}

IN_CAPTURE = "CUDA error: operation not permitted when stream is capturing"


class Card(TorchDispatchMode):
    """A card, while it is on torch's stack of modes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()
        self.order = Order()
        self._order_reference = weakref.ref(self.order)
        self.streams = Streams()
        self.generators = Generators()
        self.host = HostMemory()
        self.tape: Tape | None = None  # of the capture that is underway
        self.counts_lines = False  # of launches, which takes time

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch would import its compiler, and ask it at each operation

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = tensors((*args, *kwargs.values()) if kwargs else args)
        on_card = [tensor for tensor in given if type(tensor) is OnCard]
        op, device = operation(func), kwargs.get("device")
        to_card = is_card(device) and op.name != "is_pinned" and op.name != "_pin_memory"
        if not on_card and not to_card:
            return self._on_host(func, op, args, kwargs)
        if device is not None and not to_card and op.name != "_to_copy":  # made like one on the card, on the CPU
            return self._done(func, op, args, kwargs, stays_down=True)
        func = INSTEAD.get(func, func)
        if op.changes_form:
            raise RuntimeError(f"the pretended card cannot do {func}, by which a tensor changes its form")
        if len(on_card) < len(given):
            check_devices(func, op, given, args)
        check_alignment(op, args)
        has_generator = op.draws and self.generators.given(func, args, kwargs)
        crossing = self._crossing(op, on_card, args, kwargs)
        waits = self._waits(op, crossing, args, kwargs)
        if (waits or crossing) and self.tape is not None:
            raise RuntimeError(f"{IN_CAPTURE}: {[*waits, crossing][0]} at {line()}")
        capturing = self.tape is not None and self.streams.current in self.tape.streams
        if not (capturing or op.is_view or op.allocates):
            self._count(op)
        if capturing:
            assert self.tape is not None
            return self.tape.note(func, op, args, kwargs, self.streams.current)
        self._in_order(func, op, on_card, args, kwargs)
        with self.generators.drawing() if op.draws and not has_generator else nullcontext():
            found = self._done(func, op, args, kwargs, stays_down=crossing == "download")
        if crossing:
            self._copied(op, crossing, found, args, bool(waits))
        for what in waits:
            self.host_waits(what, self.streams.current)
        return found

    # --- doing ------------------------------------------------------------------------------------------

    def _done(self, func: Any, op: Operation, args: Any, kwargs: Any, stays_down: bool) -> Any:
        """Do it with the CPU's numbers. What is made is on the card, unless it ``stays_down``."""
        bases: dict[int, OnCard] = {}  # by the CPU's storage
        lower = partial(below, bases)
        given = mapped(lower, args), mapped(lower, kwargs) if kwargs else kwargs
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            found = func(*given[0], **given[1])
        if stays_down:
            return found
        stream = self.streams.current
        return above(op, args, kwargs, found, bases, lambda made: self._used(made, stream))

    def _used(self, made: Tensor, stream: Stream) -> OnCard:
        tensor = wrapped(made, None)
        use = block_of(tensor).use
        use.home, use.order = stream, self._order_reference
        use.written = stream, self.order.of(stream).get(stream, 0)
        return tensor

    def _in_order(self, func: Any, op: Operation, on_card: list[OnCard], args: Any, kwargs: Any) -> None:
        if op.is_view or op.allocates:
            return
        written = [block_of(one).use for one in op.given_to_write(args, kwargs) if type(one) is OnCard]
        reads = [block_of(one).use for one in on_card]
        self.order.act(self.streams.current, func, reads, written)

    def _on_host(self, func: Any, op: Operation, args: Any, kwargs: Any) -> Any:
        if op.name == "is_pinned":
            return self.host.is_pinned(args[0])
        if op.name == "_pin_memory":
            return self.host.pinned(args[0])
        if kwargs.get("pin_memory"):
            return self.host.pinned(func(*args, **{**kwargs, "pin_memory": False}))
        return func(*args, **kwargs)

    # --- crossings and waits ----------------------------------------------------------------------------

    def _crossing(self, op: Operation, on_card: list[OnCard], args: Any, kwargs: Any) -> str:
        if op.name == "_to_copy":
            goes_down = bool(on_card) and kwargs.get("device") is not None and not is_card(kwargs["device"])
            return "download" if goes_down else "" if on_card else "upload"
        if op.name == "copy_" and type(args[0]) is not type(args[1]) and len(on_card) == 1:
            return "upload" if type(args[0]) is OnCard else "download"
        return ""

    def _copied(self, op: Operation, crossing: str, found: Any, args: Any, waits: bool) -> None:
        """Count a copy from one device to the other that was started; go on beside it unless the host waits."""
        where, stream = line(), self.streams.current
        if crossing == "upload":
            self.counts.uploads[op.name, where] += 1
            if not waits:
                self.host.upload(self.order, stream, args[0] if op.name == "_to_copy" else args[1], where)
        elif not waits:
            self.host.download(self.order, stream, found, where)

    def _waits(self, op: Operation, crossing: str, args: Any, kwargs: Any) -> list[str]:
        """What the host waits for with this operation."""
        found = [op.name] if op.waits else []
        if crossing:
            runs_on = _non_blocking(args, kwargs)
            if crossing == "upload":  # what is not pinned is copied before the call comes back
                runs_on = runs_on and self.host.is_pinned(args[0] if op.name == "_to_copy" else args[1])
            found += [] if runs_on else [crossing]
        if op.indexes:
            positions = [one for one in args[1] if one is not None]
            if any(one.dtype in (torch.bool, torch.uint8) for one in positions):
                found.append(f"{op.name} by a mask")
            if type(args[0]) is OnCard and any(type(one) is not OnCard and one.dim() for one in positions):
                self.counts.uploads[op.name, line()] += 1
                found.append("upload")
        return found

    def host_waits(self, what: str, until: Stream | Clock | None) -> None:
        """Let the host wait until a stream has done its work, or what a clock says; None: until all have."""
        where = line()
        if self.tape is not None:
            raise RuntimeError(f"{IN_CAPTURE}: {what} at {where}")
        self.counts.waits[what, where] += 1
        if until is None:
            self.order.host_waits_for_all()
        else:
            self.order.host_waits(dict(self.order.of(until)) if isinstance(until, Stream) else until)
        self.host.settle(self.order)

    def _count(self, op: Operation) -> None:
        self.counts.launches += 1
        if self.counts_lines:
            self.counts.operations[op.name, line()] += 1

    # --- streams ----------------------------------------------------------------------------------------

    def order_of(self, stream: Stream) -> Order:
        """The order in which a stream's next work stands: the capture's, if it is captured."""
        return self.tape.order if self.tape is not None and stream in self.tape.streams else self.order

    def joins_capture(self, waiting: Stream, other: Stream) -> None:
        """``waiting`` has been told to wait for ``other``: it is captured from here on, if that is."""
        if self.tape is None or (waiting in self.tape.streams) == (other in self.tape.streams):
            return
        if waiting in self.tape.streams:
            raise RuntimeError("CUDA error: dependency created on uncaptured work in another stream")
        self.tape.streams.add(waiting)

    def end(self) -> None:
        """The card goes. Raises :class:`Race` for what nobody has asked for since."""
        self.order.host_waits_for_all()
        self.host.settle(self.order)
        self.order.check_freed()


def _non_blocking(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("non_blocking", len(args) > 2 and args[2]))
