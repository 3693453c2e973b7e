"""The similarity of two networks at a layer, by what a diagnosis makes its matrices of."""

from __future__ import annotations

from typing import Any

from fedskew.lab.diagnosis.cka import Estimator, pairwise, profile


def linear_cka(x: Any, y: Any, estimator: Estimator = "biased") -> float:
    """The linear CKA of activations [n, p] and [n, q] of the same inputs."""
    return float(pairwise([profile(x), profile(y)]).of(estimator)[0, 1])
