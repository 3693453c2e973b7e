"""SKD1: each teacher's answer, padded with 0 for the classes that it lacks, is a target over all classes.

CBHMA's paper names this baseline and does not define it: the definition is ours. Its weakness
is known: a teacher tells the student that what it has never seen does not occur.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from algorithms.distillation import ByTeacher, Lesson, padded_loss


@dataclass(frozen=True)
class Skd1(ByTeacher):
    def teacher_losses(self, logits: Tensor, lesson: Lesson) -> Tensor:
        return padded_loss(logits, lesson.answers, lesson.known, self.temperature)
