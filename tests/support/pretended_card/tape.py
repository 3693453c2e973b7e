"""A captured graph: the operations of a capture, which does none of them, and what a replay does with them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from tests.support.pretended_card.host_memory import poison
from tests.support.pretended_card.lowering import above, below, results
from tests.support.pretended_card.operation import Operation, mapped
from tests.support.pretended_card.order import Order, Use
from tests.support.pretended_card.tensor import Block, OnCard, block_of, wrapped


@dataclass(frozen=True)
class Node:
    """One operation of a graph, on the storages and with the numbers of its capture."""

    func: Any
    args: Any
    kwargs: Any
    results: list[Tensor]  # where its results are put; none for one that writes what it is given


@dataclass(frozen=True)
class Held:
    """Memory from outside of the graph, which nobody may free while the graph is replayed."""

    storage: StorageWeakRef  # of the card
    use: Use
    func: str  # the first operation that has it


class Tape:
    """The operations of a capture.

    Results of a capture are NaN until it is replayed. A replay does the same operations on the same storages, with what
    is in them by then; numbers of Python's and of the CPU's are those of the capture.
    """

    def __init__(self, stream: Any) -> None:
        self.streams = {stream}
        self.main = stream
        self.order = Order()
        self.nodes: list[Node] = []
        self.draws = False  # random numbers
        self.invalid = False  # CUDA has given it up
        self.held: dict[int, Held] = {}
        self.written: dict[int, Use] = {}
        self._made: dict[int, Block] = {}  # by the storage of its numbers
        self._uses: dict[int, Use] = {}  # within the capture

    def note(self, func: Any, op: Operation, args: Any, kwargs: Any, stream: Any) -> Any:
        """Put down an operation, and return what it would; nothing is done, but for views."""
        bases: dict[int, OnCard] = {}
        given, named = (mapped(partial(below, bases), one) for one in (args, kwargs))
        if op.is_view:
            with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
                return above(op, args, kwargs, func(*given, **named), bases, self._new)
        writes = [one for one in op.given_to_write(args, kwargs) if type(one) is OnCard]
        self._look(bases, {block_of(one).key for one in writes}, stream, func, op)
        given, named = (mapped(lambda value: self._baked(value, bases), one) for one in (given, named))
        self.draws |= op.draws
        if op.only_writes:
            self.nodes.append(Node(func, given, named, []))
            return op.returned_of(args, kwargs)
        with torch._C._DisableTorchDispatch(), torch.no_grad():  # type: ignore[attr-defined]
            trial = [mapped(self._harmless, one) for one in (given, named)]
            found = func(*trial[0], **trial[1])
        for result in results(found):
            poison(result)
        if not op.allocates:
            self.nodes.append(Node(func, given, named, results(found)))
        return above(op, args, kwargs, found, bases, self._new)

    @property
    def made_uses(self) -> list[Use]:
        """Of the memory that a replay writes and that is the graph's own."""
        return [block.use for block in self._made.values()]

    def replay(self) -> None:
        """Do all of it once more."""
        with torch._C._DisableTorchDispatch(), torch.no_grad():  # type: ignore[attr-defined]
            for node in self.nodes:
                found = node.func(*node.args, **node.kwargs)
                for kept, new in zip(node.results, results(found) if node.results else (), strict=True):
                    kept.copy_(new)

    def end(self) -> None:
        """Raise RuntimeError if a stream that was drawn into the capture has not come back."""
        main = self.order.of(self.main)
        if any(main.get(stream, 0) < self.order.of(stream).get(stream, 0) for stream in self.streams):
            raise RuntimeError("CUDA error: capturing stream has unjoined work")

    # --- memory -----------------------------------------------------------------------------------------

    def _new(self, made: Tensor) -> OnCard:
        """Memory of the graph's own; nobody gets it when it is freed."""
        tensor = wrapped(made, None)
        self._made[block_of(tensor).key] = block_of(tensor)
        return tensor

    def _look(self, bases: dict[int, OnCard], writes: set[int], stream: Any, func: Any, op: Operation) -> None:
        """Note what the operation reads and writes, in the capture's order."""
        if op.allocates:
            return
        for key, base in bases.items():
            if key not in self._made:
                block = block_of(base)
                self.held.setdefault(key, Held(StorageWeakRef(base.untyped_storage()), block.use, str(func)))
                if key in writes:
                    self.written[key] = block.use
        uses = {key: self._uses.setdefault(key, Use()) for key in bases}
        self.order.act(stream, func, uses.values(), [uses[key] for key in writes])

    def _baked(self, value: Any, bases: dict[int, OnCard]) -> Any:
        """A number of the CPU's stays what it is now."""
        is_cpus = isinstance(value, Tensor) and value.untyped_storage()._cdata not in bases
        return value.clone() if is_cpus else value

    def _harmless(self, value: Any) -> Any:
        """A copy, to learn the form of results by; of what the graph makes itself zeros, which is a valid position."""
        if not isinstance(value, Tensor):
            return value
        memory = value.untyped_storage()
        copied = torch.UntypedStorage(memory.nbytes()).fill_(0) if memory._cdata in self._made else memory.clone()
        return torch.empty(0, dtype=value.dtype).set_(copied, value.storage_offset(), value.size(), value.stride())
