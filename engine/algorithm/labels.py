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
    """[..., C] logits with -inf for the classes that ``class_counts`` [C] has no rows of."""
    return logits.masked_fill(class_counts == 0, -torch.inf)


def to_local(labels: Tensor, class_counts: Tensor) -> Tensor:
    """[B] global labels of the client's classes -> [B] local ones."""
    return _numbers(class_counts)[labels]


def to_global(labels: Tensor, class_counts: Tensor) -> Tensor:
    """[B] local labels -> [B] global ones; the inverse of :func:`to_local`."""
    return torch.searchsorted(_numbers(class_counts), labels)  # the first class with that number has rows


def spread(logits: Tensor, class_counts: Tensor) -> Tensor:
    """Logits [..., C] of which the first K_i are the client's classes -> [..., C] in global order, -inf elsewhere."""
    return own_logits(logits[..., _numbers(class_counts).clamp(min=0)], class_counts)


def _numbers(class_counts: Tensor) -> Tensor:
    """[C] the local label of each of the client's classes; another class has that of the one before it, or -1."""
    return torch.cumsum(class_counts > 0, 0) - 1


def packed(head: Tensor, class_counts: Tensor, layout: ParamLayout) -> Tensor:
    """A head [P_head] -> its rows for the client's classes [K_i, D + 1], the last column the bias, if it has one."""
    return _rows(head, layout)[class_counts > 0]


def unpacked(rows: Tensor, class_counts: Tensor, layout: ParamLayout) -> Tensor:
    """The inverse of :func:`packed`; rows of other classes are 0."""
    whole = rows.new_zeros(layout.classes, rows.shape[1])
    whole[class_counts > 0] = rows
    weight, bias = whole[:, : layout.features], whole[:, layout.features :]
    return torch.cat((weight.reshape(-1), bias.reshape(-1)))


def _rows(head: Tensor, layout: ParamLayout) -> Tensor:
    """[P_head] -> [C, D + 1] or, without bias, [C, D]."""
    weight, bias = head.split((layout.classes * layout.features, layout.head - layout.classes * layout.features))
    return torch.cat((weight.view(layout.classes, layout.features), bias.view(layout.classes, -1)), dim=1)
