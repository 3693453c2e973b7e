"""UHC: the student's answer, restricted to a teacher's classes, must match that teacher's (Vongkulbhisal et al. 2019).

The relation p_i(l) = q(l) / sum over L_i of q(k) as a cross entropy trained end to end, with the labels' term that
CBHMA's paper adds; UHC's paper has no labels (``alpha=1``). Its solver by matrix factorisation is not implemented.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from algorithms.distillation import ByTeacher, Lesson, restricted_loss


@dataclass(frozen=True)
class Uhc(ByTeacher):
    def teacher_losses(self, logits: Tensor, lesson: Lesson) -> Tensor:
        return restricted_loss(logits, lesson.answers, lesson.known, self.temperature, lesson.log_cost)
