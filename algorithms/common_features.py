"""A space in which features of several networks can be compared (Luo et al. 2019, IJCAI: common feature learning).

Layers and constants are those of KamalEngine's block for features without a spatial shape. Of each network a layer of
its own brings features to one width, one extractor for all of them gives what is compared, and for each teacher a
decoder must be able to give its features back, so that the extractor cannot throw away what teachers know.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

LEAST = 8
WIDTHS = (0.001, 0.01, 0.05, 0.1, 0.2, 1.0, 2.0)  # sigma of the kernels, on features of length 1


class CommonSpace(nn.Module):
    """The common space of a student with ``student`` features and teachers with ``teachers`` features each.

    A quarter as wide as the student, and no less than ``LEAST``: of very few units all may be dead from the start.
    """

    def __init__(self, student: int, teachers: Sequence[int]) -> None:
        super().__init__()
        width = max(student // 4, LEAST)
        self.student = nn.Sequential(nn.Linear(student, width), nn.ReLU())
        self.teachers = nn.ModuleList(nn.Sequential(nn.Linear(size, width), nn.ReLU()) for size in teachers)
        self.extractor = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.decoders = nn.ModuleList(
            nn.Sequential(nn.Linear(width, size), nn.ReLU(), nn.Linear(size, size)) for size in teachers
        )

    def forward(self, student: Tensor, teachers: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return [] and [], sums over teachers: the discrepancy to the student, the mean squared error of decoding.

        student: [B, D] features; teachers: [B, D_i] each.
        """
        common = self.extractor(self.student(student))
        apart, lost = student.new_zeros(()), student.new_zeros(())
        for align, decode, features in zip(self.teachers, self.decoders, teachers, strict=True):
            theirs = self.extractor(align(features))
            apart = apart + mean_discrepancy(common, theirs)
            lost = lost + F.mse_loss(decode(theirs), features)
        return apart, lost


def mean_discrepancy(one: Tensor, other: Tensor) -> Tensor:
    """Return [] the squared maximum mean discrepancy of rows [B, d] and [B', d], scaled to length 1, at least 0.

    Sum over Gaussian kernels exp(-|x - y|^2 / (2 sigma^2)) of all pairs of rows, a row and itself included: the biased
    estimate (Gretton et al. 2012, eq. 5). Rounding alone could take it below 0.
    """
    one, other = F.normalize(one, dim=1), F.normalize(other, dim=1)
    return (_kernel(one, one) + _kernel(other, other) - 2 * _kernel(one, other)).clamp(min=0)


def _kernel(one: Tensor, other: Tensor) -> Tensor:
    """Return [] the mean over pairs of rows. |x|^2 + |y|^2 - 2 x y would be wrong by more than the least sigma."""
    squares = (one[:, None] - other).square().sum(-1)
    return sum(((-squares / (2 * width**2)).exp() for width in WIDTHS), squares.new_zeros(())).mean()
