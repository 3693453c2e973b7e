"""The section ``local`` of an experiment: how a client trains on its own rows."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, Any, Literal

import pydantic
import torch
from pydantic import AfterValidator
from torch import Tensor

from engine.base.declared import Doc, Ge, Gt, Le, Lt, Neutral, in_yaml
from engine.base.errors import require
from engine.base.section import Section, identifying


def batches_in(epochs: float, per_pass: int) -> int:
    """Return the batches that ``epochs`` passes of ``per_pass`` batches each come to: ceil(epochs * per_pass).

    The product is exact for the decimal that ``epochs`` is written as, so 0.1 of 30 batches are 3. More than no epochs
    of at least one batch are at least one batch.
    """
    if isinstance(epochs, int):
        return epochs * per_pass
    return math.ceil(Fraction(repr(epochs)) * per_pass)


def whole_as_int(number: float) -> float:
    """Make 1.0 and 1 one number, with one digest."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


LEAST = 0.01  # of the rate, at the end of a schedule that says nothing else
# Fields that came later: in no digest at their defaults.
LATER = ("lr_schedule", "lr_by", "lr_period", "lr_end", "lr_warmup", "clip_norm")


class Local(Section):
    """A client's training in one round: passes or steps, batches, the optimizer and its rate."""

    epochs: Annotated[
        float | int,
        Gt(0),
        AfterValidator(whole_as_int),
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
    optimizer: Annotated[
        Literal["sgd", "adam", "adamw", "rmsprop"],
        Doc("torch's, with its defaults beside what is named here; starts afresh at every participation"),
    ] = "sgd"
    lr: Annotated[float, Gt(0), Doc("learning rate, before the schedule")] = 0.05
    lr_schedule: Annotated[
        Literal["exponential", "step", "cosine", "linear"],
        Doc(
            "the rate by rounds or steps: lr_decay once each of them or every lr_period, or from lr down to "
            "lr * lr_end over lr_period along half a cosine or a line, and there from then on"
        ),
    ] = "exponential"
    lr_by: Annotated[
        Literal["round", "step"],
        Doc("the schedule's unit: rounds of the run, through all stages, or steps of a phase"),
    ] = "round"
    lr_decay: Annotated[
        float, Gt(0), Le(1), Doc("factor of exponential and step schedules"), Neutral(1, "is no decay")
    ] = 1.0
    lr_period: Annotated[
        int | None, Ge(1), Doc("rounds or steps, for step, cosine and linear schedules"), Neutral(None, "is none")
    ] = None
    lr_end: Annotated[
        float | None,
        Gt(0),
        Le(1),
        Doc("share of lr at the end of cosine and linear schedules; above 0, since paths are divided by rates"),
        Neutral(None, "is 0.01"),
    ] = None
    lr_warmup: Annotated[
        int, Ge(0), Doc("rounds or steps before the schedule, of rates lr/n, 2 lr/n, ... lr"), Neutral(0, "is none")
    ] = 0
    momentum: Annotated[float, Ge(0), Lt(1), Doc("of SGD and RMSprop"), Neutral(0, "is none")] = 0.0
    nesterov: Annotated[bool, Doc("Nesterov's form of SGD's momentum"), Neutral(False, "is the plain one")] = False
    weight_decay: Annotated[float, Ge(0), Doc("L2 in the gradient; adamw: beside it"), Neutral(0, "is none")] = 0.0
    clip_norm: Annotated[
        float | None,
        Gt(0),
        Doc("largest norm of a step's gradient; a longer one is shortened"),
        Neutral(None, "is none"),
    ] = None
    augment: Annotated[
        Literal["none", "flip", "crop_flip"],
        Doc("of images; crops pad by 4 pixels"),
        Neutral("none", "leaves images as they are"),
    ] = "none"

    @pydantic.model_validator(mode="after")
    def _fields_belong_together(self) -> Local:
        has_momentum = self.optimizer in ("sgd", "rmsprop")
        rule = f"is of sgd and rmsprop, not of {self.optimizer}, which has its own"
        require(has_momentum or self.momentum == 0, "momentum", self.momentum, rule, "set local.momentum=0")
        needs = "needs SGD with momentum"
        is_sgd = self.optimizer == "sgd" and self.momentum > 0
        require(not self.nesterov or is_sgd, "nesterov", True, needs, "set local.optimizer=sgd and local.momentum=0.9")
        ends, rule = self.lr_schedule in ("cosine", "linear"), f"is not of local.lr_schedule={self.lr_schedule}"
        require(not ends or self.lr_decay == 1, "lr_decay", self.lr_decay, rule, "set local.lr_end, or leave it out")
        require(ends or self.lr_end is None, "lr_end", self.lr_end, rule, "set local.lr_decay, or leave it out")
        exponential = self.lr_schedule == "exponential"
        require(not exponential or self.lr_period is None, "lr_period", self.lr_period, rule, "leave it out")
        rule, repair = f"is needed for local.lr_schedule={self.lr_schedule}", f"set it to a number of {self.lr_by}s"
        require(exponential or self.lr_period is not None, "lr_period", self.lr_period, rule, repair)
        return self

    def identity(self) -> dict[str, Any]:
        """Return the fields that a result depends on; those that came later not where they change nothing."""
        return identifying(
            self.model_dump(mode="json"), {name: type(self).model_fields[name].default for name in LATER}
        )

    def demand(self, rule: str, **values: Any) -> None:
        """Raise :class:`ConfigError` unless these fields have these values; ``rule``: why, as in "is not for x"."""
        for field, value in values.items():
            found = getattr(self, field)
            require(found == value, f"local.{field}", found, rule, f"set local.{field}={in_yaml(value)}")

    @property
    def is_plain_sgd(self) -> bool:
        """True if a step is the gradient times the round's rate, and nothing else."""
        return self.optimizer == "sgd" and not (self.momentum or self.weight_decay or self.clip_norm or self.by_step)

    def doing(self, work: float | None) -> Local:
        """Return the section of a client that does ``work`` epochs, or steps where it counts these; None: as it is."""
        return self if work is None else self.model_copy(update={"epochs" if self.steps is None else "steps": work})

    def of_phase(self, lr: float | None) -> Local:
        """Return the section for a phase with a rate ``lr`` of its own, or None: no schedule changes such a rate."""
        return self if lr is None or not self.by_step else self.model_copy(update={"lr_by": "round"})

    @property
    def by_step(self) -> bool:
        """True if the rate changes from step to step."""
        return self.lr_by == "step" and (self.lr_decay < 1 or self.lr_warmup > 0 or self.lr_period is not None)

    def lr_at(self, round: int) -> float:
        """Return the learning rate in ``round`` (from 1), before what each step makes of it."""
        if self.lr_by == "step":
            return self.lr
        if self.lr_warmup == 0 and self.lr_schedule == "exponential":
            return self.lr * self.lr_decay ** (round - 1)
        return self.lr * float(self.factor(torch.tensor(round - 1)))

    def clipped(self, gradient: Tensor) -> Tensor:
        """Return gradients [..., n], each shortened to ``clip_norm``, as torch.nn.utils.clip_grad_norm_ does."""
        if self.clip_norm is None:
            return gradient
        norm = gradient.norm(dim=-1, keepdim=True)
        return gradient * (self.clip_norm / (norm + 1e-6)).clamp_max(1)

    def factor(self, count: Tensor) -> Tensor:
        """Return the schedule's factor of the rate after ``count`` rounds or steps, float64 of its shape."""
        count = count.double()
        past = (count - self.lr_warmup).clamp_min(0)
        period = self.lr_period or 1  # not of an exponential one
        if self.lr_schedule == "exponential":
            factor = self.lr_decay**past
        elif self.lr_schedule == "step":
            factor = self.lr_decay ** past.div(period, rounding_mode="floor")
        else:
            share = (past / period).clamp_max(1)
            left = (1 + torch.cos(math.pi * share)) / 2 if self.lr_schedule == "cosine" else 1 - share
            end = LEAST if self.lr_end is None else self.lr_end
            factor = end + (1 - end) * left
        return torch.where(count < self.lr_warmup, (count + 1) / max(self.lr_warmup, 1), factor)
