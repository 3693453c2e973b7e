"""The section ``local`` of an experiment: how a client trains on its own rows."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Literal

import pydantic
from pydantic import AfterValidator

from engine.base.declared import Doc, Ge, Gt, Le, Lt, Neutral
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

    epochs: Annotated[
        float | int,
        Gt(0),
        AfterValidator(_whole_as_int),
        Doc(
            "passes over a client's rows in a round; of a share of one its first batches: 0.5 and 1.5 of 3 batches "
            "are 2 and 5 steps (epochs times batches, rounded up)"
        ),
    ] = 1
    steps: Annotated[
        int | None, Ge(1), Doc("optimizer steps, in place of epochs"), Neutral(None, "leaves it to epochs")
    ] = None
    batch_size: Annotated[
        Literal["full"] | Annotated[int, Ge(1)],
        Doc("rows of a step; full: the exact gradient over all of a client's; not for perfedavg"),
    ] = 32
    last_batch: Annotated[
        Literal["keep", "drop", "wrap"], Doc("a short last batch: kept, dropped, or filled from the front")
    ] = "keep"
    optimizer: Annotated[Literal["sgd", "adam"], Doc("starts afresh at every participation")] = "sgd"
    lr: Annotated[float, Gt(0), Doc("learning rate of the first round")] = 0.05
    lr_decay: Annotated[float, Gt(0), Le(1), Doc("factor of the rate per round"), Neutral(1, "is no decay")] = 1.0
    momentum: Annotated[float, Ge(0), Lt(1), Doc("of SGD"), Neutral(0, "is none")] = 0.0
    nesterov: Annotated[bool, Doc("Nesterov's form of the momentum"), Neutral(False, "is the plain one")] = False
    weight_decay: Annotated[float, Ge(0), Doc("L2 in the gradient"), Neutral(0, "is none")] = 0.0
    augment: Annotated[
        Literal["none", "flip", "crop_flip"],
        Doc("of images; crops pad by 4 pixels"),
        Neutral("none", "leaves images as they are"),
    ] = "none"

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
