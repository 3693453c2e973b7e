"""The pieces that rules are made of: Dirichlet shares, and samples dealt out by counts."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from engine.base.declared import Gt, MinLen
from engine.base.errors import require
from engine.data.samples.assignment import Assignment, Parts

Concentration = Annotated[float, Gt(0)]
Alpha = (
    Concentration | Annotated[tuple[Concentration, ...], MinLen(1)]
)  # one concentration for all parts, or one for each


def check_length(alpha: Alpha, parts: int, of: str, field: str = "alpha") -> None:
    """Raise :class:`ConfigError` where ``alpha`` has another number of values than there are parts, which are ``of``
    clients or classes.
    """
    if isinstance(alpha, tuple):
        rule = f"has {len(alpha)} values for {parts} {of}"
        require(len(alpha) == parts, field, list(alpha), rule, f"give {parts} values, or one number for all")


def dirichlet_shares(rng: np.random.Generator, alpha: Alpha, parts: int, draws: int) -> np.ndarray:
    """Draw shares [draws, parts] ~ Dir(alpha, ..., alpha), or ~ Dir(alpha_1, ..., alpha_parts)."""
    return rng.dirichlet(np.full(parts, alpha), size=draws)


def deal(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> Assignment:
    """Give client k ``counts[k, c]`` samples of class c, drawn at random; what is left over is dropped."""
    clients, num_classes = counts.shape
    given, dropped, owners = [], [], []
    for c in range(num_classes):
        mine = rng.permutation(np.flatnonzero(labels == c))
        owners.append(np.repeat(np.arange(clients), counts[:, c]))
        given.append(mine[: len(owners[-1])])
        dropped.append(mine[len(owners[-1]) :])
    by_client = np.argsort(np.concatenate(owners), kind="stable")
    parts = Parts(np.concatenate(given)[by_client], np.cumsum(counts.sum(axis=1)))
    return Assignment(parts, np.concatenate(dropped))
