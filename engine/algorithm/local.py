"""The section ``local`` of an experiment: how a client trains on its own rows."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator, Field

from engine.base.errors import require
from engine.base.section import Section


def batches_in(epochs: float, per_pass: int) -> int:
    """Return the batches that ``epochs`` passes of ``per_pass`` batches each come to: ceil(epochs * per_pass).

    The product is exact for the decimal that ``epochs`` is written as, so 0.1 of 30 batches are 3. More than no epochs
    of at least one batch are at least one batch.
    """
    if isinstance(epochs, int):
        return epochs * per_pass
    return math.ceil(Fraction(repr(epochs)) * per_pass)


def _whole_as_int(number: float) -> float:
    """Make 1.0 and 1 one number, with one digest."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


class Local(Section):
    """A client's training in one round: passes or steps, batches, the optimizer and its rate."""

    # passes over the rows; of a pass that is begun and not ended its first batches, see batches_in
    epochs: Annotated[float | int, AfterValidator(_whole_as_int)] = Field(default=1, gt=0)
    steps: int | None = Field(default=None, ge=1)  # optimizer steps instead of epochs
    batch_size: Literal["full"] | Annotated[int, Field(ge=1)] = 32  # full: the exact gradient over all rows
    last_batch: Literal["keep", "drop", "wrap"] = "keep"  # a short batch | none | filled from the front
    optimizer: Literal["sgd", "adam"] = "sgd"  # starts afresh at every participation
    lr: float = Field(default=0.05, gt=0)
    lr_decay: float = Field(default=1.0, gt=0, le=1)  # per round; 1 is no decay
    momentum: float = Field(default=0.0, ge=0, lt=1)  # 0 is none
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)  # 0 is none
    augment: Literal["none", "flip", "crop_flip"] = "none"  # crop pads by 4

    @pydantic.model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Local:
        require(
            not self.nesterov or self.momentum > 0,
            "nesterov",
            True,
            "needs momentum",
            "set local.momentum=0.9",
        )
        return self

    @property
    def is_plain_sgd(self) -> bool:
        """True if a step is the gradient times the rate, and nothing else."""
        return self.optimizer == "sgd" and self.momentum == 0 and self.weight_decay == 0

    def lr_at(self, round: int) -> float:
        """Return the learning rate in ``round`` (from 1): lr * lr_decay^(round - 1)."""
        return self.lr * self.lr_decay ** (round - 1)
