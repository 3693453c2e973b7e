"""Checks of a model: a body and a head, weights that are one vector, the same answers wherever it is asked."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from engine.algorithm import seeds
from engine.base.errors import FedskewError
from engine.client.steps.flat_net import FlatNet
from engine.experiment import CHOICES, Experiment
from engine.models import Model, ModelSpec, build_model, check_size
from engine.models.model import has_batchnorm
from fedskew.testing.algorithm_runs import ROUNDING, both_executors_agree, made_again_is_the_same
from fedskew.testing.failure import demand, telling
from fedskew.testing.small_data import CLASSES, dataset
from fedskew.testing.small_runs import experiment_of, fedavg

SHAPES = ((1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 224, 224))  # of images (C, H, W), the first that fits
ROWS = 6


@cache
def shape_for(spec: ModelSpec) -> tuple[int, int, int]:
    """Return the smallest images that a model takes; what it says of the largest is raised if it takes none."""
    for shape in SHAPES:
        try:
            with telling(f"{type(spec).__name__} takes no images of {shape}", "follow the shape that it is given"):
                check_size(spec, shape, CLASSES)
                with torch.no_grad():
                    _built(spec, shape).eval()(images_of(shape))
        except FedskewError:
            if shape == SHAPES[-1]:
                raise
        else:
            return shape
    raise AssertionError("the last shape returns or raises")


def images_of(shape: tuple[int, int, int]) -> Tensor:
    """Return a few images [B, C, H, W] that differ."""
    return torch.randn(ROWS, *shape, generator=seeds.generator(0, "images"))


def _built(spec: ModelSpec, shape: tuple[int, int, int], purpose: str = "weights") -> Model:
    return build_model(spec, shape, CLASSES, seeds.generator(0, purpose))


def _made(spec: ModelSpec, purpose: str = "weights") -> tuple[Model, Tensor]:
    """A model in eval mode and images for it."""
    shape = shape_for(spec)
    return _built(spec, shape, purpose).eval(), images_of(shape)


def _weights(model: Model) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in (*model.body.parameters(), *model.head.parameters())])


# --- body and head --------------------------------------------------------------------------------------------


def is_body_and_head(spec: ModelSpec) -> None:
    """Demand that the scores are the head's of the features, exactly, and one for each class."""
    name, (model, x) = type(spec).__name__, _made(spec)
    with torch.no_grad():
        scores, features = model(x), model.features(x)
        parts = model.head(features)
    shape = [ROWS, CLASSES]
    rule = f"{name} gives scores of shape {list(scores.shape)} for {ROWS} images of {CLASSES} classes, and must give"
    demand(list(scores.shape) == shape, f"{rule} {shape}; end it with nn.Linear(..., num_classes)")
    rule = f"{name} has features of shape {list(features.shape)}, and must have [B, D]"
    demand(features.dim() == 2, f"{rule}; pool or flatten at the body's end")
    rule = f"{name}'s scores are not its head's of its features, by up to {(scores - parts).abs().max():.1e}"
    demand(torch.equal(scores, parts), f"{rule}; let nothing come after the last linear layer")


def taps_are_there(spec: ModelSpec) -> None:
    """Demand of each name in ``tap_names`` an output for each image."""
    name, (model, x) = type(spec).__name__, _made(spec)
    net = FlatNet(model, torch.device("cpu"), torch.float32, shape_for(spec))
    with torch.no_grad():
        _, outputs = net.taps(x, model.tap_names)
    wrong = [tap for tap in model.tap_names if tap not in outputs or len(outputs[tap]) != ROWS]
    rule = f"{name}.tap_names has {', '.join(wrong)}, which gives no output for each image"
    demand(not wrong, f"{rule}; name modules that the forward pass calls once, with the batch first")


# --- weights --------------------------------------------------------------------------------------------------


def is_one_vector(spec: ModelSpec) -> None:
    """Demand that another model with the same weights and buffers gives the same scores: there is nothing else."""
    name, (first, x) = type(spec).__name__, _made(spec)
    other, shape = _made(spec, "others")[0], shape_for(spec)
    constants = {name: own for name, own in first.named_parameters() if not own.requires_grad}
    other.load_state_dict(constants, strict=False)
    one, two = (FlatNet(model, torch.device("cpu"), torch.float32, shape) for model in (first, other))
    two.load(one.weights, one.buffers)
    with torch.no_grad():
        gap = (one(x) - two(x)).abs().max()
    rule = f"{name} has numbers that are neither parameters nor floating buffers: two of equal weights differ"
    demand(
        not gap > 0,
        f"{rule} by {gap:.1e}; register them by nn.Parameter or register_buffer, and draw none in eval mode",
    )


def drawn_by_the_generator(spec: ModelSpec) -> None:
    """Demand the same weights of the same generator, others of another, and no draw from a global one."""
    name, shape = type(spec).__name__, shape_for(spec)
    one, two, other = (_weights(_built(spec, shape, purpose)) for purpose in ("weights", "weights", "others"))
    rule = f"{name} has other weights each time that it is built from the same generator"
    demand(torch.equal(one, two), f"{rule}; draw by torch's own functions, not by numpy's or a generator of its own")
    demand(not torch.equal(one, other), f"{name} has the same weights whatever the generator; draw those of its layers")


# --- answers --------------------------------------------------------------------------------------------------


def same_answers_twice(spec: ModelSpec) -> None:
    """Demand that eval mode is deterministic, and that a row's scores do not depend on the rows beside it."""
    name, (model, x) = type(spec).__name__, _made(spec)
    model = model.double()
    with torch.no_grad():
        first, second, alone = model(x.double()), model(x.double()), model(x[:1].double())
    rule = f"{name} gives other scores for the same images in eval mode"
    demand(torch.equal(first, second), f"{rule}; draw nothing, and change no buffer, unless self.training")
    gap = (alone - first[:1]).abs().max()
    rule = f"{name} gives an image other scores alone than in a batch, by up to {gap:.1e}, in eval mode"
    demand(gap <= ROUNDING, f"{rule}; normalise by running statistics, not by the batch")


def takes_one_row(spec: ModelSpec) -> None:
    """Demand a gradient of a batch of one row in training mode, where the model has no BatchNorm."""
    name, (model, x) = type(spec).__name__, _made(spec)
    rows = 2 if has_batchnorm(model) else 1
    weights = [weight for weight in model.train().parameters() if weight.requires_grad]
    failing = telling(f"{name} fails in training mode on a batch of {rows}", "squeeze no axis of the batch")
    with failing, torch.random.fork_rng(devices=[]):  # a model with dropout draws here, as it may in training
        loss = nn.functional.cross_entropy(model(x[:rows]), torch.zeros(rows, dtype=torch.int64))
        grads = torch.autograd.grad(loss, weights, allow_unused=True)
    finite = all(bool(torch.isfinite(grad).all()) for grad in grads if grad is not None)
    demand(finite, f"{name} has a gradient that is not finite on a batch of {rows}; divide by no spread of the batch")


def takes_float64(spec: ModelSpec) -> None:
    """Demand scores of float64 from weights and images of float64."""
    name, (model, x) = type(spec).__name__, _made(spec)
    with telling(f"{name} fails in float64", "make tensors with dtype=x.dtype"), torch.no_grad():
        scores = model.double()(x.double())
    rule = f"{name} gives scores of {scores.dtype} in a run of float64"
    demand(scores.dtype == torch.float64, f"{rule}; cast nothing, and make tensors with dtype=x.dtype")


def same_in_both_executors(spec: ModelSpec) -> None:
    """Demand the same numbers, but for rounding, of clients trained one by one and several in one pass."""
    config = _trained(spec, execution={"precision": "float64"})
    repair = "branch on no tensor's value, and write to no tensor of its own in the forward pass"
    both_executors_agree(config, type(spec).__name__, repair, dataset(shape=shape_for(spec)))


def same_twice_in_runs(spec: ModelSpec) -> None:
    """Demand equal bits of two runs, dropout and other draws of the forward pass included."""
    repair = "draw by torch's own functions alone, while self.training is True"
    made_again_is_the_same(_trained(spec), type(spec).__name__, repair, dataset(shape=shape_for(spec)))


def _trained(spec: ModelSpec, **changes: Any) -> Experiment:
    """A round of FedAvg with this model."""
    CHOICES["model"].taken(spec)
    return experiment_of(fedavg(), model=spec, rounds=1, local={"epochs": 1}, **changes)
