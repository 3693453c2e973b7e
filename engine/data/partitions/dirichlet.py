"""Label skew by Dirichlet shares: of each class over the clients, or of each client over the classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import require
from engine.data.partitions.dealing import Alpha, check_length, deal, dirichlet_shares
from engine.data.partitions.partition import Partition
from engine.data.partitions.sizes import Sizes, check_sizes, client_sizes
from engine.data.samples.dataset import largest_remainder


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Shares q ~ Dir(alpha) over the clients for each class; client k gets the share q_k of the class.

    Yurochkin et al. 2019 and most papers since. Counts by largest remainder, so every sample is assigned.

    alpha: one number for all clients, or one for each: a client's expected share of every class is then its alpha
    by the sum of all.
    """

    alpha: Annotated[Alpha, Doc("Dirichlet concentration, small is skewed; a list has one for each client")] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self.alpha, self.clients, "clients")

    def draw(self, rng, labels, num_classes, owners):
        shares = dirichlet_shares(rng, self.alpha, self.clients, num_classes)
        totals = np.bincount(labels, minlength=num_classes)
        counts = [largest_remainder(int(n), q) for n, q in zip(totals, shares, strict=True)]
        return deal(rng, labels, np.stack(counts, axis=1))


@dataclass(frozen=True, kw_only=True)
class DirichletCapped(Partition):
    """The rule of ``dirichlet``, but a client that holds N/K samples gets no more of the classes that follow.

    MOON and NIID-Bench: shares of the others are renormalised, cut points are rounded down, and everything is
    drawn again until each client has 10 samples (the defaults of ``min_samples`` and ``on_small``).

    alpha: as of :class:`Dirichlet`.
    """

    alpha: Annotated[Alpha, Doc("Dirichlet concentration, small is skewed; a list has one for each client")] = 0.5
    min_samples: int = 10
    on_small: Literal["allow", "redraw", "repair"] = "redraw"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_length(self.alpha, self.clients, "clients")

    def draw(self, rng, labels, num_classes, owners):
        totals = np.bincount(labels, minlength=num_classes)
        counts = np.zeros((self.clients, num_classes), dtype=np.int64)
        for c, shares in enumerate(dirichlet_shares(rng, self.alpha, self.clients, num_classes)):
            if totals[c] == 0:  # also the one case in which all clients may be full
                continue
            is_open = counts.sum(axis=1) * self.clients < len(labels)
            shares = shares * is_open
            if shares.sum() < 1e-12:  # a tiny alpha may give the open clients nothing: then alike
                shares = is_open.astype(float)
            cuts = np.floor(np.cumsum(shares / shares.sum()) * totals[c] + 1e-9).astype(np.int64)
            cuts[np.flatnonzero(shares)[-1] :] = totals[c]
            counts[:, c] = np.diff(cuts, prepend=0)
        return deal(rng, labels, counts)


@dataclass(frozen=True, kw_only=True)
class DirichletClient(Partition):
    """A class prior p ~ Dir(alpha) and a fixed size for each client; labels are drawn from p without replacement.

    Hsu et al. 2019, FedDyn (Acar et al. 2021) and FedDC. A label whose class is used up is drawn again, from the rest
    of the prior (from what is left, if the prior has no rest).

    alpha: one number for all classes, or one for each.
    size_sigma: 0 gives equal sizes; above 0 sizes are lognormal with that sigma, scaled to N.
    sizes: given in place of that, as of the partition ``sizes``; None leaves it to ``size_sigma``.
    """

    alpha: Annotated[Alpha, Doc("Dirichlet concentration, small is skewed; a list has one for each class")] = 0.1
    size_sigma: Annotated[float, Ge(0), Doc("spread of the clients' sizes"), Neutral(0, "gives equal sizes")] = 0.0
    sizes: Annotated[
        Sizes | None,
        Doc(
            "training samples of each client, whose sum is N; or shares of them, whose sum is 1; or shares "
            "proportional to k, k^2, e^k for k = 1, ..., K"
        ),
        Neutral(None, "leaves it to size_sigma"),
    ] = None

    neutral: ClassVar[Mapping[str, Any]] = {"sizes": None}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes is not None:
            check_sizes(self.sizes, self.clients)
            rule = "has no effect where sizes are given"
            require(self.size_sigma == 0, "size_sigma", self.size_sigma, rule, "set size_sigma=0")

    def draw(self, rng, labels, num_classes, owners):
        check_length(self.alpha, num_classes, "classes", "partition.alpha")
        if self.sizes is None:
            sizes = largest_remainder(len(labels), rng.lognormal(0, self.size_sigma, self.clients))
        else:
            sizes = client_sizes(self.sizes, self.clients, len(labels))
        priors = dirichlet_shares(rng, self.alpha, num_classes, self.clients)
        left = np.bincount(labels, minlength=num_classes)
        slots = rng.permutation(np.repeat(np.arange(self.clients), sizes))  # whose turn it is, [N]
        is_open = left > 0
        chosen = _draw_classes(rng, priors[slots], is_open, left)
        # Each pass closes the class that is used up first and draws again those who came too late for it:
        # at most C passes, and the outcome is that of drawing one sample after the other.
        while True:
            late = _rank_in_class(chosen, num_classes) >= left[chosen]
            if not late.any():
                break
            closing = chosen[np.argmax(late)]
            is_open[closing] = False
            again = late & (chosen == closing)
            chosen[again] = _draw_classes(rng, priors[slots[again]], is_open, left)
        counts = np.zeros((self.clients, num_classes), dtype=np.int64)
        np.add.at(counts, (slots, chosen), 1)
        return deal(rng, labels, counts)


def _draw_classes(rng: np.random.Generator, priors: np.ndarray, is_open: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Draw an open class for each row of ``priors`` [n, C]; rows without an open class draw from ``left`` [C]."""
    weights = priors * is_open
    weights[weights.sum(axis=1) < 1e-12] = left * is_open
    ends = np.cumsum(weights, axis=1)
    points = rng.random(len(priors)) * ends[:, -1]
    chosen = (ends <= points[:, None]).sum(axis=1)
    # rounding may put a point on the very end: then the last class that has weight
    last = weights.shape[1] - 1 - np.argmax(weights[:, ::-1] > 0, axis=1)
    return np.minimum(chosen, last)


def _rank_in_class(classes: np.ndarray, num_classes: int) -> np.ndarray:
    """Count for each entry the earlier ones of the same class, int64 [n]."""
    order = np.argsort(classes, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(classes, minlength=num_classes))[:-1]])
    ranks = np.empty(len(classes), dtype=np.int64)
    ranks[order] = np.arange(len(classes)) - starts[classes[order]]
    return ranks
