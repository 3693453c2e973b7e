"""A client's own classes: the map between local and global labels, and a head's rows for them.

A client that has K_i of the C classes counts them 0 .. K_i - 1, in increasing global order. A personal head is stored
with its K_i rows; in training it is laid into a head of C rows, whose absent rows are 0 and whose absent logits are
-inf, so that they have no gradient, and so no momentum and no decay either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.algorithm.types import ParamLayout


def own_logits(logits: Tensor, class_counts: Tensor) -> Tensor:
    """Return [..., C] logits with -inf for the classes that ``class_counts`` [C] has no rows of."""
    return logits.masked_fill(class_counts == 0, -torch.inf)


def spread(logits: Tensor, class_counts: Tensor) -> Tensor:
    """Lay logits [..., C], whose first K_i are the client's classes, in global order [..., C], -inf elsewhere."""
    return own_logits(logits[..., _numbers(class_counts).clamp(min=0)], class_counts)


def _numbers(class_counts: Tensor) -> Tensor:
    """Return [C] the local label of each of the client's classes; others have that of the class before, or -1."""
    return torch.cumsum(class_counts > 0, 0) - 1


def packed(head: Tensor, class_counts: Tensor, layout: ParamLayout) -> Tensor:
    """Return a head's [P_head] rows for the client's classes [K_i, D + 1], the last column the bias, if it has one."""
    return _rows(head, layout)[class_counts > 0]


def unpacked(rows: Tensor, class_counts: Tensor, layout: ParamLayout) -> Tensor:
    """Undo :func:`packed`; rows of other classes are 0."""
    whole = rows.new_zeros(layout.classes, rows.shape[1])
    whole[class_counts > 0] = rows
    weight, bias = whole[:, : layout.features], whole[:, layout.features :]
    return torch.cat((weight.reshape(-1), bias.reshape(-1)))


def _rows(head: Tensor, layout: ParamLayout) -> Tensor:
    """Reshape [P_head] to [C, D + 1] or, without bias, [C, D]."""
    weight, bias = head.split((layout.classes * layout.features, layout.head - layout.classes * layout.features))
    return torch.cat((weight.view(layout.classes, layout.features), bias.view(layout.classes, -1)), dim=1)
