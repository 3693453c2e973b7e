"""Class moments: merged over any split they are those of all rows together; the public bugs are not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.algorithm.moments import Moments, from_message, merge, merged, moments_of, pack, to_message, unpack, words
from tests.support.loops import each

Found = dict[int, tuple[Tensor, Tensor]]  # class -> mean [d], covariance [d, d]
SPLITS = ([30, 20, 10], [3, 5, 8], [1] * 12, [2, 1, 0, 2, 1, 40], [60])


def rows(count: int, d: int = 5, seed: int = 0, far: float = 50.0) -> tuple[Tensor, Tensor]:
    """Correlated features far from zero, as those after a ReLU are, and labels of three classes."""
    rng = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=rng, dtype=torch.float64)
    labels = torch.randint(3, (count,), generator=rng)
    return far + labels[:, None] + 0.2 * torch.randn(count, d, generator=rng, dtype=torch.float64) @ mix, labels


class Ours:
    """What the engine does: messages of moments, merged."""

    dtype = torch.float64

    def client(self, z: Tensor, y: Tensor) -> dict[str, Tensor]:
        return to_message({int(c): moments_of(z[y == c]) for c in y.unique()})

    def server(self, messages: list[dict[str, Tensor]]) -> Found:
        found = from_message(reduce(merge, messages)).items()
        return {c: (m.mean, unpack(m.covariance, len(m.mean))) for c, m in found}


class Printed:
    """What the paper prints, with its errata repaired: mean and covariance of each client, weighted (spec 1.6)."""

    dtype = torch.float64

    def client(self, z: Tensor, y: Tensor) -> dict[int, tuple[float, Tensor, Tensor]]:
        return {
            c: (float(len(self.of_class(z, y, c))), *self.local(self.of_class(z, y, c).to(self.dtype)))
            for c in self.present(y)
        }

    def present(self, y: Tensor) -> list[int]:
        return y.unique().tolist()

    def of_class(self, z: Tensor, y: Tensor, c: int) -> Tensor:
        return z[y == c]

    def local(self, z: Tensor) -> tuple[Tensor, Tensor]:
        mean = z.mean(0)
        return mean, self.outer(z - mean).sum(0) / self.denominator(len(z))

    def outer(self, centred: Tensor) -> Tensor:
        return centred[:, :, None] * centred[:, None]

    def denominator(self, count: int) -> int:
        return max(count - 1, 1)

    def mean_weight(self, count: float, total: float) -> float:
        return count / total

    def server(self, messages: list[dict[int, tuple[float, Tensor, Tensor]]]) -> Found:
        found: Found = {}
        for c in sorted({c for message in messages for c in message}):
            parts = [message[c] for message in messages if c in message]
            total = sum(count for count, _, _ in parts)
            rest = max(total - 1, 1.0)  # erratum 4: a class of one row in all has no spread
            mean = torch.stack([self.mean_weight(n, total) * mu for n, mu, _ in parts]).sum(0)
            within = torch.stack([(n - 1) / rest * sigma for n, _, sigma in parts]).sum(0)
            between = torch.stack([n / rest * torch.outer(mu, mu) for n, mu, _ in parts]).sum(0)
            found[c] = mean, within + between - total / rest * torch.outer(mean, mean)
        return found


# --- bugs of public code and of the print, as spec 1.11 lists them ------------------------------------------


class SmduanKeepsOtherClasses(Printed):
    """The list of features is not emptied between classes: class c holds all classes up to c."""

    def of_class(self, z: Tensor, y: Tensor, c: int) -> Tensor:
        return z[y <= c]


class SmduanDot(Printed):
    """A dot product for the outer one: a number, added to every entry."""

    def outer(self, centred: Tensor) -> Tensor:
        return centred.square().sum(1)[:, None, None].expand(-1, centred.shape[1], centred.shape[1])


class DividedByN(Printed):
    """smduan and FL-bench: 1/N in the clients, weights for 1/(N - 1) on the server."""

    def denominator(self, count: int) -> int:
        return count


class FlearnElementwise(Printed):
    """flearn: the elementwise product for the outer one."""

    def outer(self, centred: Tensor) -> Tensor:
        return torch.diag_embed(centred.square())


class FlearnMeanForVariance(Printed):
    """flearn: the mean where the variance belongs."""

    def local(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return z.mean(0), z.mean(0).diag()


class PrintedWeight(Printed):
    """Erratum 1: N_c / N_ck as printed."""

    def mean_weight(self, count: float, total: float) -> float:
        return total / count


class OneRowDividedByZero(Printed):
    """Erratum 3: Sigma_ck of a single row by its formula, 0 / 0."""

    def denominator(self, count: int) -> int:
        return count - 1


class AbsentClassCounted(Printed):
    """Erratum 3: a class that a client lacks, with weight N_ck - 1 = -1."""

    def present(self, y: Tensor) -> list[int]:
        return [0, 1, 2]

    def local(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return super().local(z) if len(z) else (torch.zeros(z.shape[1]).to(z), torch.eye(z.shape[1]).to(z))


class SinglePrecision(Printed):
    """The printed form in float32."""

    dtype = torch.float32


BUGS = (
    SmduanKeepsOtherClasses,
    SmduanDot,
    DividedByN,
    FlearnElementwise,
    FlearnMeanForVariance,
    PrintedWeight,
    OneRowDividedByZero,
    AbsentClassCounted,
    SinglePrecision,
)


def check_pooled(pipeline: Ours | Printed, sizes: list[int], tolerance: float, seed: int = 0) -> None:
    """Oracle 1.12.1: over any split, mean and covariance are those of all rows, by numpy."""
    z, y = rows(sum(sizes), seed=seed)
    messages = [
        pipeline.client(part, labels)
        for part, labels in zip(z.split(sizes), y.split(sizes), strict=True)
        if len(part)  # a client without rows is never asked
    ]
    found = pipeline.server(messages)  # type: ignore[arg-type]
    assert set(found) == set(y.unique().tolist())
    for c, (mean, covariance) in found.items():
        mine = z[y == c].numpy()
        np.testing.assert_allclose(mean, mine.mean(0), rtol=tolerance)
        if len(mine) > 1:
            wanted = np.cov(mine, rowvar=False, ddof=1)
            np.testing.assert_allclose(covariance, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("sizes", SPLITS, ids=str)
def test_moments_of_a_split_are_those_of_the_whole(sizes: list[int]) -> None:
    """Kills: a merge that forgets the distance of means, a count; a client of 0, 1 or 2 rows that spoils the sum."""
    check_pooled(Ours(), sizes, 1e-10)


@each("seed", range(20))
def test_any_random_split(seed: int) -> None:
    """Kills: the same, on splits that nobody chose: many clients of 0, 1 and 2 rows."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 2, 3, 17], size=rng.integers(2, 30)).tolist()
    check_pooled(Ours(), [*sizes, 4], 1e-10, seed)


def test_the_printed_form_agrees() -> None:
    """Kills: a repair of the errata under which the paper's identity would not hold (and a wrong base for the bugs)."""
    for sizes in SPLITS:
        check_pooled(Printed(), sizes, 1e-8)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_public_bugs_are_caught(bug: type[Printed]) -> None:
    """Each of them fails oracle 1.12.1 on some split, by far more than rounding."""
    with pytest.raises(AssertionError):
        for sizes in SPLITS:
            check_pooled(bug(), sizes, 1e-6)


def test_a_mean_that_is_squared_first_loses_digits() -> None:
    """Kills: sum z z^T - n m m^T in place of the pairwise update (spec 1.6); seen in float32."""
    z, _ = rows(1000, d=8)
    halves = [moments_of(part) for part in z.split(500)]
    single = [Moments(m.count.float(), m.mean.float(), m.scatter.float()) for m in halves]
    wanted = torch.cov(z.T)
    ours = (unpack(merged(*single).covariance, 8) - wanted).abs().max() / wanted.abs().max()
    z32 = z.float()
    squared_first = (z32.T @ z32 - 1000 * torch.outer(z32.mean(0), z32.mean(0))) / 999
    assert ours < 1e-5
    assert (squared_first - wanted).abs().max() / wanted.abs().max() > 1e-4


def close(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-10, atol=1e-10)


def test_merging_knows_no_order() -> None:
    """Oracle 1.12.2. Kills: a merge that takes one side's mean for both, or depends on who comes first."""
    z, y = rows(40, seed=3)
    one, two, three = (Ours().client(z[part], y[part]) for part in torch.arange(40).split([3, 30, 7]))
    close(merge(merge(one, two), three), merge(one, merge(two, three)))
    close(merge(one, two), merge(two, one))
    close(reduce(merge, (three, one, two)), reduce(merge, (one, two, three)))


def test_no_rows_change_nothing() -> None:
    """Oracle 1.12.2, the identity; to the bit. Kills: 0 / 0 where both are empty."""
    z, y = rows(9)
    some, none = moments_of(z), moments_of(z[:0])
    for both in (merged(some, none), merged(none, some)):
        for part in ("count", "mean", "scatter"):
            assert torch.equal(getattr(both, part), getattr(some, part))
    empty = merged(none, none)
    assert not any(getattr(empty, part).any() for part in ("count", "mean", "scatter"))
    message = Ours().client(z, y)
    assert merge(message, {}) == merge({}, message) == message


def test_one_client_is_itself() -> None:
    """Oracle 1.12.3: Sigma_c = Sigma_c1 to the bit."""
    z, y = rows(25)
    message = Ours().client(z, y)
    for c, (mean, covariance) in Ours().server([message]).items():
        own = moments_of(z[y == c])
        assert torch.equal(mean, own.mean)
        assert torch.equal(covariance, unpack(own.covariance, 5))


def test_one_row_is_its_feature_without_spread() -> None:
    """Erratum 3, N_ck = 1: Sigma_ck is 0, not 0 / 0."""
    z, _ = rows(1)
    own = moments_of(z)
    assert (own.count, own.scatter.abs().max()) == (1, 0)
    assert torch.equal(own.mean, z[0])


@pytest.mark.parametrize("d", [1, 2, 7])
def test_a_packed_matrix_is_unpacked_as_it_was(d: int) -> None:
    """Kills: a row-wise triangle read column-wise; a count of words that is not that of the message."""
    full = torch.randn(d, d, dtype=torch.float64)
    full = full + full.T
    assert torch.equal(unpack(pack(full), d), full)
    assert len(pack(full)) == words(d) == d * (d + 1) // 2
    assert torch.equal(unpack(full.diagonal(), d), full.diagonal().diag())
    assert words(d, diagonal=True) == d


def test_diagonal_moments_are_the_diagonal() -> None:
    """Kills: an outer product added to variances."""
    z, _ = rows(30)
    parts = z.split([1, 9, 20])
    full = reduce(merged, (moments_of(part) for part in parts))
    diagonal = reduce(merged, (moments_of(part, diagonal=True) for part in parts))
    torch.testing.assert_close(diagonal.covariance, unpack(full.covariance, 5).diagonal(), rtol=1e-12, atol=0)
