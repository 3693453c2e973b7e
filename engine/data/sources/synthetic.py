"""Data drawn from a model, with a natural owner for each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from engine.algorithm.seeds import numpy_generator
from engine.base.declared import Doc, Ge, Le, Neutral
from engine.base.errors import require
from engine.data.samples.dataset import AS_IS, Dataset, Source, Split, assembled
from engine.data.sources.formats import memory_for_images

MOST_SPREAD = 1e9  # beyond it features overflow float32
BYTES_OF_A_USER = 450 * 60 * 4  # on average: exp(4 + 2) samples, and 50


@dataclass(frozen=True, kw_only=True)
class Synthetic(Source):
    """Synthetic(a, b) of FedProx (Li et al. 2020, section 5.1): 60 features, 10 classes, one model per user.

    User k has W_k, c_k ~ N(u_k, 1) with u_k ~ N(0, a), features x ~ N(v_k, S) with v_k ~ N(B_k, 1),
    B_k ~ N(0, b), S diagonal with S_jj = j^-1.2, and labels argmax(W_k x + c_k). As in the authors' code a
    and b are standard deviations. A user has 50 + lognormal(4, 2) samples (rounded down), nine tenths for
    training. Images are float32 [N, 60, 1, 1].

    a: how much the users' models differ. b: how much their features differ. seed: draws the whole data set;
    apart from the seed of the run.
    """

    a: Annotated[
        float, Ge(0), Le(MOST_SPREAD), Doc("how much the users' models differ"), Neutral(0, "is not at all")
    ] = 1.0
    b: Annotated[
        float, Ge(0), Le(MOST_SPREAD), Doc("how much the users' features differ"), Neutral(0, "is not at all")
    ] = 1.0
    users: Annotated[int, Ge(1), Doc("number of users")] = 30
    seed: Annotated[int, Doc("draws the data set")] = 0

    def read(self) -> Dataset:
        needed, limit = self.users * BYTES_OF_A_USER, memory_for_images()
        rule = f"makes {needed / 1e9:,.0f} GB of features, more than half of this machine's memory"
        require(needed <= limit, "data.users", self.users, rule, f"set it to {limit // BYTES_OF_A_USER} or less")
        parts: tuple[list[np.ndarray], ...] = ([], [], [], [])
        for user in range(self.users):
            x, y = self._user(user)
            cut = int(0.9 * len(y))
            for part, values in zip(parts, (x[:cut], x[cut:], y[:cut], y[cut:]), strict=True):
                part.append(values)
        splits = []
        for images, labels in (parts[0::2], parts[1::2]):
            owners = np.repeat(np.arange(self.users, dtype=np.int64), [len(y) for y in labels])
            splits.append(Split(np.concatenate(images)[:, :, None, None], np.concatenate(labels), owners))
        return assembled("synthetic", tuple(map(str, range(10))), splits, AS_IS)

    def _user(self, user: int) -> tuple[np.ndarray, np.ndarray]:
        """Features float32 [n, 60] and labels int64 [n] of one user."""
        rng = numpy_generator(self.seed, "synthetic", client=user)
        samples = int(rng.lognormal(4, 2)) + 50
        model_mean, feature_mean = rng.normal(0, self.a), rng.normal(0, self.b)
        weights, offsets = rng.normal(model_mean, 1, (10, 60)), rng.normal(model_mean, 1, 10)
        spread = np.arange(1, 61) ** -0.6  # the square root of the variances j^-1.2
        x = rng.normal(feature_mean, 1, 60) + spread * rng.standard_normal((samples, 60))
        scores = np.tile(offsets, (samples, 1))
        for feature in range(x.shape[1]):  # one after the other: a BLAS would add in an order of its own
            scores += x[:, feature, None] * weights[:, feature]
        return x.astype(np.float32), np.argmax(scores, axis=1).astype(np.int64)
