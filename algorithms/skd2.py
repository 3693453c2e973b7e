"""SKD2: one target over all classes, the softmax of the teachers' logits averaged class by class.

CBHMA's paper names this baseline and does not define it: the definition is ours. For class sets
that do not meet, and with ``centre=False``, it is distillation from concatenated logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from torch import Tensor

from algorithms.distillation import Distillation, Lesson, merged_loss
from engine.base.declared import Doc, Neutral


@dataclass(frozen=True)
class Skd2(Distillation):
    centre: Annotated[
        bool,
        Doc("merge each teacher's logits less their mean over its classes"),
        Neutral(False, "merges them as they are"),
    ] = True

    def answers_loss(self, logits: Tensor, lesson: Lesson) -> Tensor:
        return merged_loss(logits, lesson.answers, lesson.known, self.temperature, self.centre, lesson.log_cost)
