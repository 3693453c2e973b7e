"""The outline of a model, from its specification alone: no weights are drawn, and no data have to be there.

For checks of a config, which must refuse a model before anything is trained. The network is built on the meta device,
where tensors have shapes and no values; its images and classes stand in for the data's, which nobody has read yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch.func import functional_call

from engine.base.errors import ConfigError
from engine.models.model import Model, ModelSpec, has_batchnorm, on_meta
from engine.models.narrow import narrowed

SHAPE, SMALLER, CLASSES = (3, 64, 64), (3, 48, 48), 10
WIDTH = 0.5


@dataclass(frozen=True)
class Outline:
    """The properties of a model by which a config is checked.

    What needs a forward pass is found when it is asked for: on the meta device its first operation imports torch's
    compiler, 1.6 s in each process.
    """

    model: Model  # on the meta device

    @property
    def tap_names(self) -> tuple[str, ...]:
        """As ``Net.tap_names``."""
        return self.model.tap_names

    @property
    def has_batchnorm(self) -> bool:
        """Whether the model has running statistics."""
        return has_batchnorm(self.model)

    @cached_property
    def not_narrowed(self) -> ConfigError | None:
        """Why the model has no sub-networks; None: it has."""
        return _not_narrowed(self.model)

    @cached_property
    def any_resolution(self) -> bool:
        """Whether one network takes images of several sizes."""
        return _takes(self.model, SMALLER)


@lru_cache(maxsize=64)
def outline(spec: ModelSpec) -> Outline:
    """Return the outline of a specification's network; raise :class:`ConfigError` as ``spec.build`` does."""
    return Outline(on_meta(spec, SHAPE, CLASSES))


def _not_narrowed(model: Model) -> ConfigError | None:
    try:
        part = narrowed(model, WIDTH)
    except ConfigError as error:
        return error.with_traceback(None)  # which would keep the network
    if _takes(model, SHAPE, part):
        return None
    rule = "its layers do not fit together with fewer channels, so the model has no sub-networks"
    return ConfigError("width", WIDTH, rule, "use another model, for example model.name=resnet20")


def _takes(model: Model, shape: tuple[int, int, int], tensors: dict[str, torch.Tensor] | None = None) -> bool:
    """Return whether two images of ``shape`` get through, with other tensors if some are given."""
    try:
        logits = functional_call(model, tensors or {}, (torch.empty(2, *shape, device="meta"),))
    except (RuntimeError, ValueError):  # what torch and Python say of sizes that do not fit
        return False
    return logits.shape == (2, CLASSES)
