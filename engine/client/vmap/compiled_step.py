"""A step as a few kernels: its operations are noted once, put together by torch's compiler, and then captured.

A captured step of a small network still runs its hundreds of kernels one by one, most of which wait for memory. So the
operations of one step are traced, whether Python, autograd or ``vmap`` made them, and compiled: what acts on each
number alone, like BatchNorm, ReLU and the optimizer, is done in the kernel that has the number at hand, and images
have their channels last in memory.

The same limits hold as for a capture, and the same memory makes them hold: see ``cuda_graph.py``. Compiling takes up to
a minute, so it is done for batches of the usual size alone, and for few numbers of clients. Nothing is chosen by time,
so that bits are those of every other process. What the compiler has made lies in its own cache on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode

from engine.base.errors import RunError
from engine.client.steps.flat_net import ALIGNED
from engine.client.steps.step_inputs import Inputs

NORMS = (
    torch.ops.aten.native_batch_norm,
    torch.ops.aten.native_batch_norm_backward,
    torch.ops.aten.cudnn_batch_norm,
    torch.ops.aten.cudnn_batch_norm_backward,
)  # that are taken apart, so that they become one with what is around them
LASTING = frozenset({"layout", "num_clients", "num_examples"})  # fields of the context that no round changes
OPTIONS: dict[str, str | int | bool] = {"deterministic": True}  # of Inductor: nothing is chosen by how long it takes


@dataclass(frozen=True)
class Usual:
    """A step that comes often, so that it is worth compiling."""

    form: Hashable  # equal for steps of one program that differ in the clients alone
    first: int
    last: int  # clients [first, last)


@dataclass(frozen=True)
class Compiled:
    """A compiled step, for any clients of a program."""

    call: Callable[..., object]
    held: Sequence[tuple[Tensor, bool]]  # what it reads and writes beside its inputs; true: of its clients the rows

    def bound(self, usual: Usual, inputs: Inputs) -> Callable[[], None]:
        """Return the step of these clients on these inputs, which are filled by then."""
        tensors = _tensors(self.held, usual, inputs)

        def step() -> None:
            with torch.no_grad():
                self.call(*tensors)

        return step


class Compiler:
    """Compiles steps; those that differ in nothing but the memory that they are done in are compiled once."""

    def __init__(self) -> None:
        self._calls: dict[Hashable, Any] = {}  # by code, and the forms of all tensors

    def compiled(
        self,
        work: Callable[[Inputs], None],
        inputs: Inputs,
        usual: Usual,
        reads: AbstractSet[str],
        of_clients: Sequence[Tensor],
    ) -> Compiled | None:
        """Return the compiled ``work(inputs)``, which is done once by this.

        ``reads``: the fields of the context that the work has read when it was done. ``of_clients``: tensors [K, ...]
        of which the work reads the rows of its clients. None is returned for work that reads what may change from
        round to round: to compile it again would take longer than the round. Raises :class:`RunError` where it cannot
        be compiled.
        """
        traced = _traced(work, inputs)
        if not reads <= LASTING:
            return None
        try:
            held = _as_arguments(traced, usual, {tensor.untyped_storage().data_ptr() for tensor in of_clients})
            tensors = _tensors(held, usual, inputs)
            forms = tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors)
            key = traced.code, forms, alignments(tensors)
            if key not in self._calls:
                options = {**OPTIONS, "force_layout_optimization": tensors[0].is_cuda}
                from torch import _inductor  # which takes a second

                with torch.no_grad(), _in_one_order():
                    self._calls[key] = _inductor.compile(traced, list(tensors), options=options)  # pyright: ignore
            return Compiled(self._calls[key], held)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = str(error).strip().partition("\n")[0]
            raise RunError(f"a step cannot be compiled: {why}; set execution.compiled=false") from error


def alignments(tensors: Sequence[Tensor], row: int | None = None) -> tuple[bool, ...]:
    """Return of tensors on a card, or of one row of each, whether they begin where a kernel may read four numbers at
    once: it is another kernel, with other bits."""
    begins = [tensor if row is None else tensor[row] for tensor in tensors if tensor.is_cuda]
    return tuple(tensor.data_ptr() % ALIGNED == 0 for tensor in begins)


@contextmanager
def _in_one_order() -> Iterator[None]:
    """Let the compiler leave additions at places that may be the same, as of an embedding's gradient, to kernels whose
    order is fixed."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _NoQuestions(TorchDispatchMode):
    """Refuses to tell the host a number: it would stay as it was when the step was compiled."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RunError("a step cannot be compiled: it asks for the value of a tensor; set execution.compiled=false")
        return func(*args, **(kwargs or {}))


def _tensors(held: Sequence[tuple[Tensor, bool]], usual: Usual, inputs: Inputs) -> list[Tensor]:
    clients = slice(usual.first, usual.last)
    return [tensor[clients] if of_clients else tensor for tensor, of_clients in held] + [*inputs.named().values()]


def _traced(work: Callable[[Inputs], None], inputs: Inputs) -> GraphModule:
    """The operations of ``work(inputs)``, which is done."""

    from torch._decomp import get_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    def run(*given: Tensor) -> None:
        tensors = iter(given)
        with _NoQuestions():
            work(inputs.mapped(lambda _: next(tensors)))

    torch.clear_autocast_cache()  # casts made before would be constants
    table: Any = get_decompositions(NORMS)
    traced = make_fx(run, decomposition_table=table)(*inputs.named().values())
    torch.clear_autocast_cache()
    return traced


def _as_arguments(traced: GraphModule, usual: Usual, of_clients: AbstractSet[int]) -> Sequence[tuple[Tensor, bool]]:
    """Make arguments, before its own, of the tensors that a traced step holds; return these, and of which the step
    reads the rows of its clients alone, so that steps of other clients have the same code.

    ``of_clients``: where the memory of tensors begins of which it may.
    """
    graph = traced.graph
    begin, given = next(iter(graph.nodes)), dict[tuple[str, bool], tuple[Node, Tensor]]()

    def argument(name: str, tensor: Tensor, of_clients: bool) -> Node:
        if (name, of_clients) not in given:
            with graph.inserting_before(begin):
                given[name, of_clients] = graph.placeholder(f"held_{len(given)}"), tensor.detach()
        return given[name, of_clients][0]

    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        name = str(node.target)
        tensor: Tensor = getattr(traced, name)
        for user in list(node.users) if tensor.untyped_storage().data_ptr() in of_clients else ():
            if user.target is torch.ops.aten.slice.Tensor and user.args[1:] == (0, usual.first, usual.last):
                user.replace_all_uses_with(argument(name, tensor, of_clients=True))
                graph.erase_node(user)
        if node.users:
            node.replace_all_uses_with(argument(name, tensor, of_clients=False))
        graph.erase_node(node)
    for name in {name for name, _ in given}:
        delattr(traced, name)
    graph.eliminate_dead_code()
    traced.recompile()
    tensors = [tensor for _, tensor in given.values() if tensor.numel()]
    if len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors):
        raise TypeError("it reads one tensor by several views")
    return [(tensor, of_clients) for (_, of_clients), (_, tensor) in given.items()]
