"""CBHMA's misclassification costs, which make up for the weak supervision of a class (Pang et al. 2022).

Classes differ in how many teachers know them, F_l, and in how good these are, P_l: together the imbalance level G_l.
Classes also resemble each other more or less, by the logits that teachers give one on samples of another: Rbar. Both
make the cost matrix

    c_lj = (-log G_l) log(sum_k Rbar_lk / Rbar_lj)

and for a sample of class l, log c_l. is added to the student's logits. There every factor of a row appears in the
numerator and the denominator alike, so G_l cancels, and the printed loss does not depend on it. The paper's prose asks
for samples of costly classes to weigh more: that is the row weight omega_l.

All is computed in float64. The server has all of it: answers, class sets, labels of the public set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.distillation import Distillation
from engine.algorithm import Clients, Context, Entries, Kind, Tensors
from engine.base.declared import Doc, Ge, Gt, Neutral
from engine.base.errors import require

Mode = Literal["minshift", "raw", "softmax"]
Fill = Literal["row_mean", "off_diagonal"]

MOST = 0.999  # correlation of two classes: below 1, so that the right answer costs least
LEAST = {"minshift": 0.0, "raw": 0.01, "softmax": 1e-12}  # of one teacher's ratio; minshift never gets there
SHIFT = 0.1  # of the logits' range, that is added to their least one with minshift
UNSEEN = 0.5  # where no pair of classes was seen at all


def quality(answers: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """Return P [C], the mean over the teachers that know a class of their accuracy on its public samples.

    Of n samples (hits + 1) / (n + 2), so that none is 0; a teacher chooses among its own classes.
    answers: [M, N, C]; known: bool [M, C]; labels: [N]. A mean, since F accounts for how many teachers there are.
    """
    of_class = F.one_hot(labels, known.shape[1]).double()  # [N, C]
    hits = torch.where(known[:, None], answers, -torch.inf).argmax(-1) == labels  # [M, N]
    accuracy = (hits.double() @ of_class + 1) / (of_class.sum(0) + 2)  # [M, C]
    return (accuracy * known).sum(0) / known.sum(0)


def imbalance(known: Tensor, qualities: Tensor) -> Tensor:
    """Return -log G [C], with G_l = (F_l / sum F) (P_l / sum P) and F_l the number of teachers that know l."""
    quantities = known.sum(0).double()
    return -torch.log(quantities / quantities.sum() * (qualities / qualities.sum()))


def correlation(
    answers: Tensor, known: Tensor, labels: Tensor, mode: Mode = "minshift", temperature: float = 4.0
) -> tuple[Tensor, Tensor]:
    """Return R [C, C], how much of class l's logit class j gets on samples of l, and where it was seen, bool [C, C].

    Of each teacher that knows both, from its mean logits z over the samples of l, and then their mean:

        minshift  u_j / u_l with u = z - min z + 0.1 (max z - min z), over its classes
        raw       z_j / z_l as printed; the pair is not seen where z_l <= 0
        softmax   exp((z_j - z_l) / temperature)

    The mean of the logits comes first: a mean of ratios explodes where a single one is near 0. What was not seen is 0,
    which a ratio that was seen may be as well.
    """
    of_class = F.one_hot(labels, known.shape[1]).double()
    means = torch.einsum("nl,mnj->mlj", of_class, answers.double()) / of_class.sum(0).clamp(min=1)[:, None]
    both = known[:, :, None] & known[:, None] & (of_class.sum(0) > 0)[:, None]  # [M, C, C]
    own = torch.diagonal(means, dim1=1, dim2=2)[:, :, None]  # [M, C, 1] a class's logit on its own samples
    if mode == "softmax":
        ratios = torch.exp((means - own) / temperature)
    elif mode == "raw":
        ratios, both = means / own, both & (own > 0)
    else:
        low = torch.where(known[:, None], means, torch.inf).amin(-1, keepdim=True)
        span = torch.where(known[:, None], means, -torch.inf).amax(-1, keepdim=True) - low
        # Logits that are all alike have no range: each class is then as likely as any other.
        ratios = torch.where(span > 0, (means - low + SHIFT * span) / (own - low + SHIFT * span), 1.0)
    ratios = torch.where(both, ratios.clamp(LEAST[mode], MOST), 0.0)
    seen = both.sum(0)
    diagonal = torch.eye(known.shape[1], dtype=torch.bool, device=known.device)
    return (ratios.sum(0) / seen.clamp(min=1)).masked_fill(diagonal, 1.0), (seen > 0) | diagonal


def filled(ratios: Tensor, seen: Tensor, rule: Fill = "row_mean") -> Tensor:
    """Return Rbar [C, C]: R with what was not seen filled in, made symmetric.

    ``row_mean`` (the paper): the mean of what was seen of the row, its diagonal included; ``off_diagonal``: without it.
    A row of which nothing but the diagonal was seen has the mean of all that was seen off the diagonal, or 0.5.
    """
    diagonal = torch.eye(len(ratios), dtype=torch.bool, device=ratios.device)
    others = seen & ~diagonal
    anywhere = torch.where(others, ratios, 0.0).sum() / others.sum() if others.any() else ratios.new_tensor(UNSEEN)
    counted = seen if rule == "row_mean" else others
    row = torch.where(counted, ratios, 0.0).sum(1) / counted.sum(1).clamp(min=1)
    row = torch.where(others.any(1), row, anywhere)
    whole = torch.where(seen, ratios, row[:, None])
    return (whole + whole.T) / 2


def cost_matrix(levels: Tensor, correlations: Tensor) -> Tensor:
    """Return c [C, C] from -log G [C] and Rbar [C, C]."""
    return levels[:, None] * torch.log(correlations.sum(1, keepdim=True) / correlations)


def row_weights(levels: Tensor, power: float = 1.0) -> Tensor:
    """Return omega [C] from -log G [C]: its power, with mean 1."""
    weights = (levels / levels.max()) ** power  # no power of these overflows
    return weights / weights.mean()


@dataclass(frozen=True)
class ClassCosts(Distillation):
    """A method whose loss knows misclassification costs; to stand before the method in a class's bases."""

    r_mode: Annotated[
        Mode,
        Doc(
            "ratios by which classes are alike: of logits that start at a tenth of their range, of raw ones as "
            "printed, or of their exponentials"
        ),
    ] = "minshift"
    r_temperature: Annotated[float, Gt(0), Doc("T_r, of r_mode=softmax")] = 4.0
    fill: Annotated[
        Fill,
        Doc("what pairs of classes that no teacher knows both of get: the row's mean, with its diagonal or without"),
    ] = "row_mean"
    row_weight: Annotated[
        bool,
        Doc("weigh images by omega, the imbalance level of their class"),
        Neutral(False, "is the loss as printed, in which it cancels"),
    ] = True
    g_power: Annotated[
        float, Ge(0), Doc("gamma, power of that level: omega is (-log G)^gamma, of mean 1"), Neutral(0, "is no weight")
    ] = 1.0

    entries: ClassVar[Entries] = {
        **Distillation.entries,
        "cost": Kind.MATRIX,  # c
        "correlation": Kind.MATRIX,  # Rbar
        "row_weight": Kind.TENSOR,  # [C] omega
        "imbalance": Kind.TENSOR,  # [C] -log G
    }
    symbols: ClassVar[Mapping[str, str]] = {**Distillation.symbols, "T_r": "r_temperature", "gamma": "g_power"}

    def prepare(self, server: Tensors, clients: Clients, context: Context) -> Tensors:
        rule = "compares classes, and the data have one: nothing can be mistaken, so that there are no costs"
        require(context.layout.classes > 1, "algorithm.r_mode", self.r_mode, rule, "distil with uhc or skd2")
        return server

    def class_costs(self, answers: Tensor, known: Tensor, labels: Tensor) -> Tensors:
        levels = imbalance(known, quality(answers, known, labels))
        correlations = filled(*correlation(answers, known, labels, self.r_mode, self.r_temperature), self.fill)
        return {
            "cost": cost_matrix(levels, correlations),
            "correlation": correlations,
            "row_weight": row_weights(levels, self.g_power if self.row_weight else 0.0),
            "imbalance": levels,
        }
