"""A model is a body and a head; a model specification is the recipe for one.

The split is what the algorithms work with: personal heads, calibration and feature alignment all need
``model(x) == model.head(model.features(x))`` exactly, and the body's parameters before the head's in one flat
vector.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from engine.base.declared import Doc, Neutral
from engine.base.devices import memory
from engine.base.errors import ConfigError, require
from engine.base.own_modules import name_of
from engine.base.part_calls import bits, calling, first_other
from engine.base.registry import Checked
from engine.base.section import identifying
from engine.models.heads import Head, head_layer, project

Built = TypeVar("Built", bound=nn.Module)
Init = Literal["torch", "kaiming_uniform", "kaiming_normal"]


class Model(nn.Module):
    """A feature extractor and one linear classifier.

    ``tap_names`` are the submodules whose outputs algorithms may ask for (names as in ``named_modules``):
    residual units after their last ReLU, inverted residual blocks, convolution blocks after pooling, hidden
    layers of an MLP after their ReLU.
    """

    body: nn.Module  # images [B, C, H, W] -> features [B, D]
    head: nn.Linear  # features [B, D] -> logits [B, num_classes]
    tap_names: tuple[str, ...]

    def __init__(self, body: nn.Module, head: nn.Linear, tap_names: tuple[str, ...] = ()) -> None:
        super().__init__()
        rule, repair = "is no head: one linear layer gives the scores", "put what comes before that layer into the body"
        is_layer = isinstance(getattr(head, "weight", None), Tensor) and hasattr(head, "out_features")
        require(is_layer, "model", type(head).__name__, rule, repair)
        self.body = body  # registered first: in the flat vector the head is the tail
        self.head = head
        for name in tap_names:
            self.get_submodule(name)  # AttributeError at construction, not in the first round that taps
        self.tap_names = tap_names

    def features(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to features [B, D]."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, C, H, W] to logits [B, num_classes]."""
        return self.head(self.features(x))


@dataclass(frozen=True)
class ModelSpec(Checked, ABC):
    """Hyper-parameters of a network; the images' shape and the number of classes come from the data."""

    linear_layers_only: ClassVar[bool] = False  # True: no convolution, so that stacked clients share one product
    keeps_weights: ClassVar[bool] = False  # True: its weights are those of build(); else initialise() draws them
    # True: its inputs are token ids [B, L, 1, 1], and below ``vocabulary``; None: whatever there is.
    takes_tokens: ClassVar[bool | None] = False

    head: Annotated[
        Head,
        Doc("classifier with bias, or without and each class's weights scaled to length 1"),
        Neutral("linear", "is the plain one"),
    ] = field(default="linear", kw_only=True)
    projection: Annotated[
        bool, Doc("MOON's two layers before the head, to 256 features"), Neutral(False, "is none")
    ] = field(default=False, kw_only=True)
    conv_init: Annotated[
        Init,
        Doc(
            "how convolutions' weights are drawn: uniform in 1/sqrt(fan_in) either side of 0; in sqrt(6/fan_in), as "
            "CBFL's authors do; normal of variance 2/fan_out, as GradAug does"
        ),
        Neutral("torch", "is torch's own"),
    ] = field(default="torch", kw_only=True)

    neutral: ClassVar[Mapping[str, Any]] = {
        "conv_init": "torch"
    }  # fields that came later: in no digest at these values

    def __post_init__(self) -> None:
        super().__post_init__()
        own = self.keeps_weights and self.conv_init != "torch"
        require(not own, "conv_init", self.conv_init, "is not for a model that draws its own weights", "leave it away")

    def identity(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return of the specification's mapping ``written`` what a result depends on."""
        return identifying(written, self.neutral)

    @abstractmethod
    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        """Build the network for images of ``shape`` (C, H, W); :func:`initialise` gives it its weights.

        Raises :class:`ConfigError` for images too small for the network.
        """

    def assemble(self, body: nn.Sequential, features: int, num_classes: int, taps: tuple[str, ...] = ()) -> Model:
        """Join ``body``, which gives ``features`` features, with the projection and the head asked for."""
        if self.projection:
            features = project(body, features)
        return Model(body, head_layer(self.head, features, num_classes), taps)


def initialise(model: nn.Module, generator: torch.Generator, init: Init = "torch") -> None:
    """Fill every parameter and buffer, in the order of ``model.named_modules()``, from ``generator`` alone.

    Convolution and linear layers: weight and bias uniform in +-1/sqrt(fan_in), which is torch's default
    (Kaiming uniform with a = sqrt(5)); norms: weight 1, bias 0, running mean 0, variance 1, counter 0; embeddings
    standard normal.

    init: of convolutions alone (He et al. 2015), whose biases are then 0. "kaiming_uniform" draws weights uniform in
    +-sqrt(6 / fan_in), of six times torch's variance, as the networks of CBFL's authors have it; "kaiming_normal"
    normal of variance 2 / fan_out, as GradAug and FedAlign have it.

    The model may come from ``to_empty``. Raises :class:`ConfigError` for a module with tensors that no rule
    here covers, because they would keep whatever was in memory.
    """
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
        with torch.no_grad():
            if isinstance(module, nn.Embedding) and "weight" in own:
                own.pop("weight").normal_(generator=generator)
            elif isinstance(module, nn.Conv2d) and init != "torch" and "weight" in own:
                _draw_kaiming(own.pop("weight"), generator, init)
                if "bias" in own:
                    own.pop("bias").zero_()
            elif isinstance(module, nn.Conv2d | nn.Linear) and "weight" in own:  # not one that is computed of others
                bound = 1 / math.sqrt(module.weight[0].numel())
                for tensor in (own.pop("weight"), own.pop("bias", None)):
                    if tensor is not None:
                        tensor.uniform_(-bound, bound, generator=generator)
            elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
                for key, value in _NORM_VALUES.items():
                    if key in own:
                        own.pop(key).fill_(value)
        if own:
            kind = type(module).__name__
            raise ConfigError(
                "model",
                kind,
                f"has {', '.join(own)} in {name or 'the network'}, which fedskew has no rule to draw",
                "write keeps_weights: ClassVar[bool] = True in the model's class, to keep those that it is built with",
            )


def _draw_kaiming(weight: Tensor, generator: torch.Generator, init: Init) -> None:
    """Fill a convolution's weight [out, in by group, h, w] by its fan: in = in by group x h x w, out = out x h x w."""
    if init == "kaiming_uniform":
        bound = math.sqrt(6 / weight[0].numel())
        weight.uniform_(-bound, bound, generator=generator)
    else:
        weight.normal_(0, math.sqrt(2 / weight[:, 0].numel()), generator=generator)


_NORM_VALUES = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1, "num_batches_tracked": 0}


def fresh(build: Callable[[], Built], generator: torch.Generator, init: Init = "torch") -> Built:
    """Return what ``build`` makes, on the CPU, in training mode, weights drawn from the CPU ``generator`` alone.

    Built on the meta device, where torch's own initialisation draws nothing: the global generator stays untouched.
    """
    with torch.device("meta"):
        module = build()
    _filled(module, torch.empty)
    initialise(module, generator, init)
    return module


def _filled(module: nn.Module, make: Callable[..., Tensor]) -> None:
    """Give a module on the meta device tensors on the CPU.

    ``to_empty`` does so too, and imports torch's decompositions on the way: a third of a second in each process.
    """
    common = other_names(module)
    module._apply(lambda tensor: make(tensor.shape, dtype=tensor.dtype, device="cpu"))
    for other, name in common.items():  # each module has a parameter of its own now
        owner, _, key = other.rpartition(".")
        setattr(module.get_submodule(owner), key, module.get_parameter(name))


def other_names(model: nn.Module) -> dict[str, str]:
    """Return the further names of parameters that several modules have in common -> the one in ``named_parameters``.

    A module that is in two places has one name: its first.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        name: names[id(parameter)]
        for path, owner in model.named_modules()
        for key, parameter in owner.named_parameters(recurse=False, remove_duplicate=False)
        if (name := f"{path}.{key}".lstrip(".")) != names[id(parameter)]
    }


def has_batchnorm(model: nn.Module) -> bool:
    """Return whether a network has layers that keep running statistics."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


COPIES = 4  # of the weights, that a run holds at least: the server's, a client's, its gradients, a sum


def check_size(spec: ModelSpec, shape: tuple[int, int, int], num_classes: int) -> None:
    """Raise :class:`ConfigError` where the network does not fit the images or the memory, or counts batches."""
    try:
        model = on_meta(spec, shape, num_classes)
        weights = sum(parameter.numel() for parameter in model.parameters())
    except RuntimeError:  # torch counts bytes in 64 bits
        weights = 2**61
    needed, there = 4 * COPIES * weights, memory("cpu")
    rule = f"needs {needed / 1e9:,.0f} GB for {COPIES} copies of its weights, and this machine has {there / 1e9:,.0f}"
    require(needed <= there, "model", spec, rule, "take fewer units")


HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks")  # of parameters and of modules


def _check_tensors(model: Model) -> None:
    """Refuse parameters that do not go into one vector, body first, or would do something else there.

    And BatchNorm layers whose running statistics depend on how many batches they have seen: that number is in no
    message. It would be the worker's, of all clients that it has trained, and so would the result.
    """
    kind = type(model.body).__name__
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        require(not is_lazy(own), "model", kind, f"has {name} without a shape", "call the network once in build")
        require(not own.is_complex(), "model", kind, f"has complex {name}, and weights are real", "keep two real ones")
    first_names = dict[int, str]()
    for path, module in model.named_modules():
        for name, own in module.named_buffers(path, recurse=False, remove_duplicate=False):
            told = f"has one buffer as {first_names.setdefault(id(own), name)} and as {name}"
            require(first_names[id(own)] == name, "model", kind, told, "give each its own")
    first = next((name for name, _ in model.head.named_parameters()), "none")
    told = f"has a head whose first parameter is {first}, and methods take a head for its weight and then its bias"
    require(first == "weight", "model", kind, told, "parametrize layers before the last one alone")
    body = {id(parameter) for parameter in model.body.parameters()}
    for name, own in model.head.named_parameters():
        told = "is in its body, too" if id(own) in body else "requires no gradient"
        told = f"has a head whose {name} {told}, and methods train, keep and draw heads apart from bodies"
        repair = "end with a layer of its own that trains; a head that stays as it was drawn has algorithm.name=fedbabu"
        require(own.requires_grad and id(own) not in body, "model", kind, told, repair)
    for name, own in (*model.named_parameters(), *model.named_modules()):
        told = f"has a hook on gradients of {name}, which steps of several clients do not call"
        hooked = any(getattr(own, hooks, None) for hooks in HOOKS)
        require(not hooked, "model", kind, told, "change gradients in the algorithm's gradient")
    for name, module in model.named_modules():
        norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
        counts = norm and module.momentum is None and module.num_batches_tracked is not None
        told = f"has {type(module).__name__} {name} with momentum=None, which averages over all batches of a worker"
        require(not counts, "model", kind, told, "give it a momentum, for example momentum=0.1")


def check_inputs(spec: ModelSpec, name: str, vocabulary: int | None) -> None:
    """Raise :class:`ConfigError` where the model ``name`` does not take what the data's rows are made of.

    vocabulary: one more than the highest token id of the data; None where they are pixels or features.
    """
    if spec.takes_tokens is None:
        return
    if not spec.takes_tokens:
        rule = "takes pixels or features, and the data are token ids"
        require(vocabulary is None, "model.name", name, rule, "set model.name=dan")
        return
    rule = "takes token ids, and the data are pixels or features"
    require(vocabulary is not None, "model.name", name, rule, "for example model.name=mlp")
    limit, needed = getattr(spec, "vocabulary", 0), vocabulary or 0
    rule = f"is not above {needed - 1}, the highest token id of the data"
    require(needed <= limit, "model.vocabulary", limit, rule, f"set model.vocabulary={needed} or more")


def build_model(spec: ModelSpec, shape: tuple[int, int, int], num_classes: int, generator: torch.Generator) -> Model:
    """Return the network of ``spec`` for images of ``shape`` (C, H, W), its weights drawn as :func:`fresh` does.

    A specification that ``keeps_weights`` draws them itself, from torch's global generator, which is in the state of
    ``generator`` meanwhile.
    """
    with calling(spec, "model.name", DRAWING):
        if not spec.keeps_weights:
            return fresh(lambda: spec.build(shape, num_classes), generator, spec.conv_init)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.set_state(generator.get_state())
            return spec.build(shape, num_classes).train()


DRAWING = "draw by torch's own functions, with keeps_weights = True"


def built_alike(spec: ModelSpec, shape: tuple[int, int, int], num_classes: int) -> Model:
    """Return a network from outside; raise :class:`ConfigError` where it is another one when it is built again.

    Each worker builds its own, from the same generator.
    """
    models = [build_model(spec, shape, num_classes, torch.Generator().manual_seed(0)) for _ in range(2)]
    other = first_other(*map(_bits_of, models))
    rule = f"has another {other} when it is built again from the same generator, as each worker does it"
    require(other is None, "model.name", name_of(spec), rule, DRAWING)
    _check_values(name_of(spec), models[0])
    return models[0]


def _check_values(kind: str, model: Model) -> None:
    """Refuse tensors that lie in each other's memory, where each has a place of its own in the vector of all weights,
    and those that begin with infinite numbers, which have no mean.
    """
    ends = list[tuple[int, int, str]]()
    for name, own in (*model.named_parameters(), *model.named_buffers()):
        rule, repair = f"begins with {name} that is not finite", "for a mask, take booleans, or -1e9 in place of -inf"
        require(not own.is_floating_point() or bool(own.isfinite().all()), "model.name", kind, rule, repair)
        last = sum((size - 1) * stride for size, stride in zip(own.shape, own.stride(), strict=True))
        if own.numel():
            ends.append((own.data_ptr(), own.data_ptr() + (last + 1) * own.element_size(), name))
    for (_, end, name), (begin, _, other) in pairwise(sorted(ends)):
        repair = "give two modules one parameter (b.weight = a.weight), or each a clone()"
        require(
            end <= begin, "model.name", kind, f"has {other} in the memory of {name}, and each is kept apart", repair
        )


def _bits_of(model: Model) -> dict[str, object]:
    """The bits of a network's parameters, buffers and whatever else is made of numbers in its modules, by name."""
    held = dict[str, Any]((*model.named_parameters(), *model.named_buffers()))
    for path, module in model.named_modules():
        others = {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")}
        held |= {f"{path}.{name}".strip("."): value for name, value in others.items() if _is_numbers(value)}
    return {name: bits(value) for name, value in held.items()}


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list | tuple | dict):
        return all(map(_is_numbers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int | float | Tensor) or (isinstance(value, np.ndarray) and value.dtype != object)


def on_meta(spec: ModelSpec, shape: tuple[int, int, int], num_classes: int) -> Model:
    """Return the network of ``spec`` on the meta device, where tensors have shapes and no values.

    One that ``keeps_weights`` is built in full before, since what it does for its weights may need values.
    Raises :class:`ConfigError` for one that cannot be trained.
    """
    if spec.keeps_weights:
        model = build_model(spec, shape, num_classes, torch.Generator())
    else:
        with calling(spec, "model.name", DRAWING), torch.device("meta"):
            model = spec.build(shape, num_classes)
    _check_tensors(model)
    return model.to("meta")


def hollow(spec: ModelSpec, shape: tuple[int, int, int], num_classes: int) -> Model:
    """Return the network of ``spec`` on the CPU with zeros for weights, which take no memory before they are written.

    For a forward pass that is made for its shapes. On the meta device such a pass computes nothing, but its first
    operation imports torch's compiler, 1.6 s in each process.
    """
    model = on_meta(spec, shape, num_classes)
    _filled(model, torch.zeros)
    return model
