"""Which classes a client asks its generator for (CBFL, eqs. 3 to 5)."""

from __future__ import annotations

import pytest
import torch

from algorithms.cbfl import Cbfl
from algorithms.class_samplers import probabilities

COUNTS = torch.tensor(
    [[3, 1, 0, 0, 0, 0, 0, 0, 0, 0], [70, 20, 10, 0, 0, 0, 0, 0, 0, 0], [100, 0, 0, 0, 0, 0, 0, 0, 0, 0], [10] * 10]
)


@pytest.mark.parametrize(
    ("counts", "wanted"),
    [
        ((3, 1, 0, 0), (1 / 12, 1 / 4, 1 / 3, 1 / 3)),
        ((70, 20, 10, *[0] * 7), (0.3 / 9, 0.8 / 9, 0.9 / 9, *[1 / 9] * 7)),
        ((50, 50, *[0] * 8), (0.5 / 9, 0.5 / 9, *[1 / 9] * 8)),
        ((100, *[0] * 9), (0.0, *[1 / 9] * 9)),
        ((10,) * 10, (0.1,) * 10),
    ],
)
def test_balanced_by_hand(counts: tuple[int, ...], wanted: tuple[float, ...]) -> None:
    """Kills: 1/P_m, P_m itself, a division by C (O-C1)."""
    found = probabilities("balanced", torch.tensor(counts))
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "sampler", [("balanced", 0), ("uniform", 0), ("fewest", 3), ("exact", 0)], ids=lambda value: value[0]
)
def test_each_is_a_distribution_that_never_prefers_what_there_is_more_of(sampler: tuple[str, int]) -> None:
    """Kills: a sampler that is not normalised, or one that favours frequent classes (O-C1)."""
    name, fewest = sampler
    found = probabilities(name, COUNTS, fewest, rows=50, fake=70)  # type: ignore[arg-type]
    torch.testing.assert_close(found.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (found >= 0).all()
    for counts, chances in zip(COUNTS, found, strict=True):
        ascending = counts.argsort()
        if name != "fewest":  # which cuts between equals
            assert (chances[ascending].diff() <= 1e-12).all()


def test_fewest_are_the_rarest_with_ties_by_number() -> None:
    """Kills: the most frequent ones, an unstable order, shares that are not formed anew (Table 6)."""
    counts = torch.tensor([5, 0, 3, 0, 0])
    found = probabilities("fewest", counts, fewest=2)
    torch.testing.assert_close(found, torch.tensor([0, 0.5, 0, 0.5, 0], dtype=torch.float64))
    four = probabilities("fewest", counts, fewest=4)
    torch.testing.assert_close(four, torch.tensor([0, 8, 5, 8, 8], dtype=torch.float64) / 29)
    assert torch.equal(probabilities("fewest", counts, fewest=5), probabilities("balanced", counts))


def test_exact_balances_exactly_where_it_can() -> None:
    """Kills: a generated batch that ignores the client's own rows (spec 9.2: B_f >= B (C max P - 1))."""
    rows, fake = 50, 450
    own = rows * COUNTS / COUNTS.sum(1, keepdim=True)
    together = own + fake * probabilities("exact", COUNTS, rows=rows, fake=fake)
    torch.testing.assert_close(together, torch.full_like(together, 50.0))
    short = probabilities("exact", COUNTS, rows=rows, fake=70)
    assert short[2, 0] == 0  # and the others share what there is
    torch.testing.assert_close(short[2, 1:], torch.full((9,), 1 / 9, dtype=torch.float64))


def test_a_step_sees_both() -> None:
    """Kills: expected classes without the generated ones, or of images that were asked for no class (spec 9.2)."""
    counts = torch.tensor([[100, *[0] * 9]])
    found = Cbfl().step_classes(counts, 50)
    torch.testing.assert_close(found, torch.tensor([[50, *[70 / 9] * 9]], dtype=torch.float64))
    assert Cbfl(generator="gaussian_noise").step_classes(counts, 50).sum() == 50
