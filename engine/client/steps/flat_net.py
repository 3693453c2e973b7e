"""A module whose parameters are one vector and whose floating buffers are another.

A parameter that requires no gradient is in no vector: it stays as it was built, like a constant of the module, so that
nothing can move it, and it is neither sent nor averaged.

Loading a client's weights is one copy, its delta one subtraction, its share of the mean one multiply-add. The
module sees views of the vectors, so nothing in it needs to know.

Shapes: P parameters that are trained (body first, head last), Q floating buffers. Integer buffers stay in the module
and are never sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.func import functional_call

from engine.algorithm import Net, ParamLayout, Statistics, Tensors
from engine.client.steps.drawing_modules import watch
from engine.client.steps.jvp import jvp
from engine.models import Model, narrowed
from engine.models.model import other_names

# Bytes. cuDNN's BatchNorm of images with channels last reads scales, shifts and means so many at once, and fails
# ("misaligned address") where they do not begin at a multiple. Memory does; a view into a vector of weights need not.
ALIGNED = 16


def is_readable(tensor: Tensor) -> bool:
    """Return whether a tensor is not on a card, or begins at a multiple of :data:`ALIGNED` bytes."""
    # Some versions of torch say that the offset may be a symbol, which it is in a traced graph alone.
    return not tensor.is_cuda or tensor.storage_offset() * tensor.element_size() % ALIGNED == 0  # pyright: ignore


def norms_are_readable(model: nn.Module) -> bool:
    """Return whether every parameter and buffer of a model's BatchNorm layers :func:`is_readable`."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    return all(is_readable(own) for norm in norms for own in (*norm.parameters(), *norm.buffers()))


def flatten(tensors: Sequence[Tensor], out: Tensor) -> Tensor:
    """Concatenate ``tensors`` into the vector ``out``."""
    return torch.cat([tensor.reshape(-1) for tensor in tensors], out=out)


def _without_counters(model: nn.Module) -> None:
    """Let BatchNorm layers not count their batches, which none with a momentum reads: a tenth of a step."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None


class FlatNet:
    """The :class:`~engine.algorithm.Net` that is trained, over ``weights`` [P] and ``buffers`` [Q]."""

    def __init__(
        self, model: Model, device: torch.device, dtype: torch.dtype, image: tuple[int, int, int] = (0, 0, 0)
    ) -> None:
        self.model = model.to(device=device, dtype=dtype)
        body = [own for own in self.model.body.parameters() if own.requires_grad]
        head = list(self.model.head.parameters())
        self.parameters: list[nn.Parameter] = body + head
        self.draws = watch(self.model)  # whether a module of it may draw random numbers
        self.tap_names = self.model.tap_names
        self.norm_names = tuple(
            name for name, m in self.model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
        )
        _without_counters(self.model)
        names = {id(p): name for name, p in self.model.named_parameters()}
        self.names = [names[id(p)] for p in self.parameters]
        ends = list(accumulate((p.numel() for p in self.parameters), initial=0))
        of_norms = {id(p) for name in self.norm_names for p in self.model.get_submodule(name).parameters()}
        self.layout = ParamLayout(
            body=sum(p.numel() for p in body),
            head=sum(p.numel() for p in head),
            buffers=sum(b.numel() for b in self.model.buffers() if b.is_floating_point()),
            classes=self.model.head.out_features,
            features=self.model.head.in_features,
            image=image,
            has_batchnorm=bool(self.norm_names),
            parameters=tuple(zip(self.names, ends, ends[1:], strict=False)),
            norms=tuple(names[id(p)] for p in self.parameters if id(p) in of_norms),
            units=self._unit_ends(body),
        )
        # Gradients of a slice are computed for the parameters that lie in it.
        self.slices = {
            "all": (slice(0, self.layout.size), self.parameters),
            "body": (slice(0, self.layout.body), body),
            "head": (slice(self.layout.body, self.layout.size), head),
        }
        self.weights = torch.cat([p.detach().reshape(-1) for p in self.parameters])
        self.grad = torch.zeros_like(self.weights)
        self.other_names = other_names(self.model)
        self.constants = {name: own.detach() for name, own in self.model.named_parameters() if not own.requires_grad}
        for parameter, view in zip(self.parameters, self.parameter_pieces(self.weights), strict=True):
            parameter.data = view
        self.buffers = torch.empty(self.layout.buffers, device=device, dtype=dtype)
        self.buffer_names: list[str] = []
        for path, owner, name, view in self._buffer_views(self.buffers):
            view.copy_(getattr(owner, name))
            setattr(owner, name, view)
            self.buffer_names.append(f"{path}.{name}")
        convolves = any(isinstance(module, nn.Conv2d) for module in self.model.body.modules())
        self._channels_last = convolves and norms_are_readable(self.model)

    # --- vectors in and out ---------------------------------------------------------------------------

    def load(self, weights: Tensor, buffers: Tensor) -> None:
        """Copy [P] and [Q] in. A copy, always: what arrives may be shared memory of a whole node."""
        self.weights.copy_(weights)
        self.buffers.copy_(buffers)

    def backward(self, loss: Tensor, part: str = "all") -> Tensor:
        """The gradient of ``loss`` [] with respect to one part, as a view of :attr:`grad`."""
        return self.gradients(loss, part)[0]

    def gradients(
        self, loss: Tensor, part: str = "all", beside: Sequence[Tensor] = ()
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """:meth:`backward`, and the gradients with respect to leaves ``beside`` the network."""
        where, parameters = self.slices[part]
        if not parameters and not beside:
            return self.grad[where], ()
        grads = torch.autograd.grad(loss, [*parameters, *beside], allow_unused=True, materialize_grads=True)
        if parameters:
            flatten(list(grads[: len(parameters)]), out=self.grad[where])
        return self.grad[where], grads[len(parameters) :]

    def descend(self, loss: Tensor, part: str, lr: float) -> None:
        """One step of plain SGD on one part: the bits of ``weights -= lr * backward(loss)``.

        The gradient is never put together to a vector, which for a small batch takes as long as the step.
        """
        parameters = self.slices[part][1]
        self.descend_along(torch.autograd.grad(loss, parameters, allow_unused=True) if parameters else (), part, lr)

    @torch.no_grad()
    def descend_along(self, grads: Sequence[Tensor | None], part: str, lr: float) -> None:
        """One step of plain SGD by the gradients of one part's parameters; None is none."""
        for parameter, grad in zip(self.slices[part][1], grads, strict=True):
            if grad is not None:
                parameter.add_(grad, alpha=-lr)

    def train(self, mode: bool = True, head: bool | None = None) -> None:
        """Training or eval mode, of the ``head`` another one if it is said."""
        head = mode if head is None else head
        model = self.model
        if (model.training, model.body.training, model.head.training) != (mode, mode, head):  # it walks all modules
            model.train(mode)
            model.head.train(head)

    def laid_out(self, x: Tensor) -> Tensor:
        """Images [B, C, H, W] as the network takes them fastest: in float32 with channels last in memory.

        On a CPU convolutions and pooling then take a tenth to a third less of a training step, and half of an
        evaluation; a GPU's tensor cores take them so, but not where :func:`norms_are_readable` says no. A
        clone also where there is one channel: its strides alone say which layout is meant.
        """
        if self._channels_last and x.dim() == 4 and x.dtype == torch.float32:
            return x.clone(memory_format=torch.channels_last)
        return x

    # --- the contract's Net ---------------------------------------------------------------------------

    def __call__(self, x: Tensor) -> Tensor:
        return self.model(self.laid_out(x))

    def features(self, x: Tensor) -> Tensor:
        return self.model.features(self.laid_out(x))

    def head(self, z: Tensor) -> Tensor:
        return self.model.head(z)

    def taps(self, x: Tensor, names: tuple[str, ...], inputs: bool = False) -> tuple[Tensor, Tensors]:
        with _recording(self.model, names, inputs) as outputs:
            logits = self(x)
        return logits, outputs

    def jvp(self, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        return jvp(self, x, direction)

    def stepped(self, loss: Tensor, lr: float, first_order: bool = False) -> Net:
        return NetAt(self, {}, train=self.model.training, frozen=False).stepped(loss, lr, first_order)

    def at(self, weights: Tensor, buffers: Tensor, train: bool = False, mapped: bool = False) -> Net:
        tensors: dict[str, Tensor] = dict(self.model.named_buffers())  # integer counters stay the module's
        tensors.update(zip(self.names, self.parameter_pieces(weights.detach()), strict=True))
        # A clone, because a forward pass in train mode updates running statistics in place.
        for path, _, name, view in self._buffer_views(buffers.detach().clone()):
            tensors[f"{path}.{name}"] = view
        return NetAt(self, tensors, train=train, frozen=True, mapped=mapped)

    def narrow(self, width: float, divisor: int = 1, statistics: Statistics = "batch") -> Net:
        train = self.model.training and statistics == "batch"
        return NetAt(self, narrowed(self.model, width, divisor=divisor), train=train, frozen=False)

    # --- layout ---------------------------------------------------------------------------------------

    def _unit_ends(self, body: list[nn.Parameter]) -> tuple[int, ...]:
        """See :attr:`ParamLayout.units`: a unit ends with the last of its modules, in the order in which they come."""
        sizes, total, ends = {id(p): p.numel() for p in body}, 0, dict[str, int]()
        for path, module in self.model.named_modules():
            total += sum(sizes.pop(id(p), 0) for p in module.parameters(recurse=False))
            ends[path] = total
        return tuple(
            max(end for path, end in ends.items() if f"{path}.".startswith(f"{name}.")) for name in self.tap_names
        )

    def parameter_pieces(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector [P], one for each of :attr:`parameters`, in their shapes."""
        pieces = vector.split([p.numel() for p in self.parameters])
        return [piece.view(p.shape) for p, piece in zip(self.parameters, pieces, strict=True)]

    def buffer_pieces(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector [Q], one for each of :attr:`buffer_names`."""
        return [view for *_, view in self._buffer_views(vector)]

    def _buffer_views(self, vector: Tensor) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
        """For each floating buffer the path of its module, the module, its name there, and its piece."""
        offset = 0
        for path, owner in self.model.named_modules():
            for name, buffer in owner.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    yield path, owner, name, vector[offset : offset + buffer.numel()].view(buffer.shape)
                    offset += buffer.numel()


class NetAt:
    """The same modules at other tensors, by ``functional_call``."""

    def __init__(
        self, base: FlatNet, tensors: Mapping[str, Tensor], train: bool, frozen: bool, mapped: bool = False
    ) -> None:
        """``mapped``: called by ``vmap``, which knows one layout of images alone."""
        self._base = base
        self._mapped = mapped
        # By all names, and not tied by torch, which would leave the tensors in a module that is in two places.
        others = {other: tensors[name] for other, name in base.other_names.items() if name in tensors}
        self._tensors = {**tensors, **others}
        self._train = train
        self._frozen = frozen
        self.tap_names = base.tap_names
        self.norm_names = base.norm_names

    def __call__(self, x: Tensor) -> Tensor:
        return self._call(self._base.model, x)

    def features(self, x: Tensor) -> Tensor:
        return self._call(_Features(self._base.model), x, prefix="model.")

    def head(self, z: Tensor) -> Tensor:
        return self._call(_Head(self._base.model), z, prefix="model.")

    def taps(self, x: Tensor, names: tuple[str, ...], inputs: bool = False) -> tuple[Tensor, Tensors]:
        with _recording(self._base.model, names, inputs) as outputs:
            logits = self(x)
        return logits, outputs

    def jvp(self, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        return jvp(self, x, direction)

    def stepped(self, loss: Tensor, lr: float, first_order: bool = False) -> Net:
        base = self._base
        parameters = [self._tensors.get(name, p) for name, p in zip(base.names, base.parameters, strict=True)]
        grads = torch.autograd.grad(
            loss, parameters, create_graph=not first_order, allow_unused=True, materialize_grads=True
        )
        moved = {name: p - lr * g for name, p, g in zip(base.names, parameters, grads, strict=True)}
        return NetAt(base, {**self._tensors, **moved}, self._train, frozen=False, mapped=self._mapped)

    def at(self, weights: Tensor, buffers: Tensor, train: bool = False) -> Net:
        return self._base.at(weights, buffers, train, self._mapped)

    def narrow(self, width: float, divisor: int = 1, statistics: Statistics = "batch") -> Net:
        part = narrowed(self._base.model, width, self._tensors, divisor)
        return NetAt(self._base, part, self._train and statistics == "batch", self._frozen, self._mapped)

    def _call(self, module: nn.Module, x: Tensor, prefix: str = "") -> Tensor:
        tensors = {prefix + name: tensor for name, tensor in self._tensors.items()}
        x = x if self._mapped else self._base.laid_out(x)
        training = self._base.model.training
        self._base.model.train(self._train)
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self._frozen):
                return functional_call(module, tensors, (x,), tie_weights=False)
        finally:
            self._base.model.train(training)


class _Features(nn.Module):
    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model.features(x)


class _Head(_Features):
    def forward(self, x: Tensor) -> Tensor:
        return self.model.head(x)


@contextmanager
def _recording(model: nn.Module, names: tuple[str, ...], inputs: bool) -> Iterator[Tensors]:
    """Collect the outputs, or the inputs, of the named inner modules during the block."""
    outputs: Tensors = {}

    def hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            outputs[name] = args[0] if inputs else output

        return record

    handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in names]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
