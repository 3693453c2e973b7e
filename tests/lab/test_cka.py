"""Linear CKA against its exact properties (spec of CCVR, 1.2 and oracle 10 of 1.12)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from engine.base.errors import ConfigError
from fedskew.lab.diagnosis.cka import chance, pairwise, profile
from tests.support.linear_cka import linear_cka

BOTH = pytest.mark.parametrize("estimator", ["biased", "unbiased"])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def plain(x: np.ndarray, y: np.ndarray) -> float:
    """The definition, with nothing saved."""
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def hsic_1(x: np.ndarray, y: np.ndarray) -> float:
    """Song et al. 2012, eq. 5, as it is printed."""
    n, ones = len(x), np.ones(len(x))
    k, l = x @ x.T, y @ y.T  # noqa: E741 (the paper's letters)
    np.fill_diagonal(k, 0)
    np.fill_diagonal(l, 0)
    trace = np.trace(k @ l) + (ones @ k @ ones) * (ones @ l @ ones) / ((n - 1) * (n - 2))
    return float((trace - 2 / (n - 2) * (ones @ k @ l @ ones)) / (n * (n - 3)))


@pytest.mark.parametrize(("p", "q"), [(3, 5), (5, 40), (40, 7), (40, 60)])
def test_both_estimators_are_their_definitions(p: int, q: int) -> None:
    """Kills: a norm for its square, a wrong factor in HSIC_1, activations that are not centred, a Gram matrix that is
    centred on one side only."""
    x, y = 3 + normal(20, p), normal(20, q, seed=1) - 7
    y[:, 0] += x[:, 0]
    assert linear_cka(x, y, "biased") == pytest.approx(plain(x, y), abs=1e-12)
    expected = hsic_1(x, y) / math.sqrt(hsic_1(x, x) * hsic_1(y, y))
    assert linear_cka(x, y, "unbiased") == pytest.approx(expected, abs=1e-9)


@BOTH
@pytest.mark.parametrize("n", [12, 60])
def test_invariances(estimator: Any, n: int) -> None:
    """Kills: activations neither centred nor normalised; a sign that matters."""
    x, y = normal(n, 20), normal(n, 8, seed=1)
    rotation, _ = np.linalg.qr(normal(20, 20, seed=2))
    assert linear_cka(x, x, estimator) == pytest.approx(1, abs=1e-9)
    assert linear_cka(x, x @ rotation, estimator) == pytest.approx(1, abs=1e-9)
    for factor in (-0.3, 1e-3, 40.0):
        assert linear_cka(x, factor * x + normal(20, seed=3), estimator) == pytest.approx(1, abs=1e-9)
    assert linear_cka(x, y, estimator) == pytest.approx(linear_cka(y, x, estimator), abs=1e-12)
    assert linear_cka(x @ rotation, y, estimator) == pytest.approx(linear_cka(x, y, estimator), abs=1e-9)


@BOTH
def test_a_general_linear_map_is_seen(estimator: Any) -> None:
    """Kills: CCA or a regression score in the place of CKA."""
    x = normal(200, 10)
    assert linear_cka(x, x @ np.diag(np.logspace(0, 4, 10)), estimator) < 0.99


@pytest.mark.parametrize("seed", range(5))
def test_bounds(seed: int) -> None:
    """Kills: a denominator that is not that of Cauchy and Schwarz."""
    n, p, q = np.random.default_rng(seed).integers(4, 30, 3)
    x, y = normal(n, p, seed=seed), normal(n, q, seed=seed + 100)
    assert 0 <= linear_cka(x, y) <= 1 + 1e-12
    assert abs(linear_cka(x, y, "unbiased")) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("n", "p", "q", "expected"),
    [(2000, 64, 64, 0.031), (256, 64, 64, 0.2), (256, 256, 256, 0.5), (100, 500, 300, 0.792)],
)
def test_unrelated_activations(n: int, p: int, q: int, expected: float) -> None:
    """The biased estimator is about sqrt(pq / ((n-1+p)(n-1+q))), the unbiased one about 0.

    Kills: an "unbiased" estimator that keeps the diagonal.
    """
    x, y = normal(n, p), normal(n, q, seed=1)
    assert chance(n, p, q) == pytest.approx(expected, abs=1.5e-3)
    assert linear_cka(x, y) == pytest.approx(expected, rel=0.05)
    assert abs(linear_cka(x, y, "unbiased")) < 0.03


@BOTH
def test_constant_activations_have_no_similarity(estimator: Any) -> None:
    """Kills: a 1 or a 0 where there is nothing to compare."""
    x = normal(20, 4)
    for constant in (np.zeros((20, 3)), np.full((20, 3), 1e3), np.full((20, 30), 0.1)):
        assert math.isnan(linear_cka(x, constant, estimator))
        assert math.isnan(linear_cka(constant, constant, estimator))
    assert math.isnan(linear_cka(np.eye(9), np.eye(9), "unbiased"))  # all distances equal: nothing but the diagonal


def test_float32_and_feature_maps() -> None:
    """Kills: sums in float32; channels taken for rows."""
    maps = torch.from_numpy(normal(30, 4, 5, 5)).float() + 100
    assert profile(maps).matrix.dtype == torch.float64
    flat = maps.double().numpy().reshape(30, -1)
    other = normal(30, 3, seed=1)
    assert linear_cka(maps, other) == pytest.approx(plain(flat, other), abs=1e-9)


def test_too_few_rows_are_refused() -> None:
    """Kills: a division by zero at n = 3."""
    with pytest.raises(ConfigError, match="n=3: must be at least 4"):
        linear_cka(normal(3, 2), normal(3, 2))


def test_pairwise_is_each_pair() -> None:
    """Kills: a pair that is missed, or filled from the wrong networks."""
    for width in (30, 3):
        networks = [normal(12, width, seed=k) for k in range(7)]
        networks[4][:] = 1.0
        found = pairwise([profile(x) for x in networks])
        for estimator in ("biased", "unbiased"):
            expected = [[linear_cka(a, b, estimator) for b in networks] for a in networks]
            np.testing.assert_allclose(found.of(estimator), expected, atol=1e-9)
            np.testing.assert_array_equal(found.of(estimator), found.of(estimator).T)
        assert (found.rows, found.width) == (12, width)
        assert np.isnan(found.pairs("biased")).sum() == 6
        np.testing.assert_array_equal(np.delete(np.diag(found.biased), 4), np.ones(6))


def check(cka: Any) -> None:
    """The oracles that any linear CKA must pass."""
    x, y = 5 + normal(60, 30), 5 + normal(60, 30, seed=1)
    np.testing.assert_allclose(cka(x, x), 1, atol=1e-9)
    np.testing.assert_allclose(cka(x, 3 - 2 * x), 1, atol=1e-9)
    np.testing.assert_allclose(cka(x, y), chance(60, 30, 30), rtol=0.15)
    assert cka(x, x @ np.diag(np.logspace(0, 4, 30))) < 0.9
    assert math.isnan(cka(x, np.ones((60, 3))))


def without_centring(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def without_squares(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(0), y - y.mean(0)
    return float(np.linalg.norm(y.T @ x) / math.sqrt(np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def one_for_constants(x: np.ndarray, y: np.ndarray) -> float:
    found = linear_cka(x, y)
    return 1.0 if math.isnan(found) else found


def regression(x: np.ndarray, y: np.ndarray) -> float:
    """R^2 of Y from X: invariant to any invertible map."""
    x, y = x - x.mean(0), y - y.mean(0)
    basis, _ = np.linalg.qr(x)
    return float(np.linalg.norm(basis.T @ y) ** 2 / max(np.linalg.norm(y) ** 2, 1e-300))


@pytest.mark.parametrize("mutant", [without_centring, without_squares, one_for_constants, regression])
def test_mutants_are_killed(mutant: Any) -> None:
    """The checks that the real one passes are failed by each usual mistake."""
    check(linear_cka)
    with pytest.raises(AssertionError):
        check(mutant)
