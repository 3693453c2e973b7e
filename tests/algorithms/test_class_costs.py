"""CBHMA's costs against specification 3.4 to 3.7 and the oracles of 3.12, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.cbhma import Cbhma
from algorithms.cbhma_e import CbhmaE
from algorithms.class_costs import correlation, cost_matrix, filled, imbalance, quality, row_weights
from engine.base.errors import ConfigError
from engine.data.partitions.class_sets import SETTINGS as PAPERS
from engine.models import MLP
from tests.support.bench import Bench
from tests.support.loops import each

BALANCED, WEAK_1, WEAK_9 = (PAPERS[name] for name in ("BS", "IS-1", "IS-2"))
APART = ((0, 1, 2), (3, 4))  # classes of two parts, which nobody compares
LONELY = ((0, 1, 2, 3), (4,), (1, 4))  # a teacher of one class
SETTINGS = {
    "balanced": (BALANCED, 10),
    "weak": (WEAK_1, 10),
    "weak 9": (WEAK_9, 10),
    "apart": (APART, 5),
    "lonely": (LONELY, 5),
}
EVERY = pytest.mark.parametrize("setting", SETTINGS)
MODES = pytest.mark.parametrize("mode", ["minshift", "raw", "softmax"])
FILLS = pytest.mark.parametrize("rule", ["row_mean", "off_diagonal"])


def known_of(sets: tuple[tuple[int, ...], ...], classes: int) -> Tensor:
    known = torch.zeros(len(sets), classes, dtype=torch.bool)
    for teacher, own in enumerate(sets):
        known[teacher, list(own)] = True
    return known


def answered(setting: str, per_class: int = 7, seed: int = 0, signal: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """Answers [M, N, C], classes known and labels, of teachers that are right more often than not."""
    sets, classes = SETTINGS[setting]
    known, labels = known_of(sets, classes), torch.arange(classes).repeat_interleave(per_class)
    noise = torch.randn(
        len(sets), len(labels), classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    answers = 2 * noise + signal * torch.eye(classes, dtype=torch.float64)[labels]
    return torch.where(known[:, None], answers, 0.0), known, labels


def whole(setting: str = "weak", kind: Any = Cbhma, **fields: Any) -> dict[str, Tensor]:
    return kind(**fields).class_costs(*answered(setting))


def assert_alike(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


# --- the imbalance level --------------------------------------------------------------------------------------


def test_quality_by_hand() -> None:
    """Spec 3.4. Kills: a teacher that chooses among classes it does not know, no smoothing, the wrong denominator, a
    teacher that lacks the class in the mean."""
    known, labels = known_of(((0, 1), (1, 2)), 3), torch.tensor([0, 0, 1, 1, 1, 2])
    answers = torch.tensor(
        [
            [[2.0, 1, 9], [0, 1, 9], [0, 1, 9], [0, 1, 9], [1, 0, 9], [0, 1, 9]],  # 1 of 2, and 2 of 3
            [[9.0, 0, 1], [9, 0, 1], [9, 1, 0], [9, 0, 1], [9, 0, 1], [9, 1, 3]],  # 1 of 3, and 1 of 1
        ]
    ).double()
    wanted = [(1 + 1) / (2 + 2), ((2 + 1) / (3 + 2) + (1 + 1) / (3 + 2)) / 2, (1 + 1) / (1 + 2)]
    assert_alike(quality(answers, known, labels), torch.tensor(wanted, dtype=torch.float64))


def check_separate(of: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    """Teachers that are all alike are no better for being many."""
    known, labels = known_of(WEAK_1, 10), torch.arange(10)
    right = torch.where(known[:, None], torch.eye(10, dtype=torch.float64)[labels], 0.0)
    found = of(right, known, labels)
    assert_alike(found, found[:1].expand(10))


def added_up(answers: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """A mutant: the sum over teachers, which counts F_l twice."""
    return quality(answers, known, labels) * known.sum(0)


def test_quality_does_not_count_teachers() -> None:
    """Kills: a sum over teachers in place of the mean."""
    check_separate(quality)
    with pytest.raises(AssertionError):
        check_separate(added_up)


def test_hand_numbers() -> None:
    """Oracle 3.12.5, and omega of spec 3.7, at equal quality. Kills: shares of classes in place of teachers, a missing
    sum over P, another logarithm."""
    level = imbalance(known_of(WEAK_1, 10), torch.full((10,), 0.8, dtype=torch.float64))
    assert level[1].item() == pytest.approx(5.704, abs=5e-4)
    assert level[9].item() == pytest.approx(4.094, abs=6e-4)
    assert all(level[c].item() == pytest.approx(4.605, abs=5e-4) for c in (0, 2, 3, 4, 5, 6, 7, 8))
    omega = row_weights(level)
    assert [round(omega[c].item(), 3) for c in (1, 9, 0)] == [1.223, 0.878, 0.987]


def test_balanced_classes_weigh_the_same() -> None:
    """Oracle 3.12.4: G is uniform and omega is 1. Kills: weights that do not have mean 1, or know something else."""
    level = imbalance(known_of(BALANCED, 10), torch.full((10,), 0.3, dtype=torch.float64))
    assert_alike(level, torch.full((10,), 100.0, dtype=torch.float64).log())
    for power in (0.0, 1.0, 4.0):
        assert_alike(row_weights(level, power), torch.ones(10, dtype=torch.float64))


def test_row_weights() -> None:
    """Spec 3.7. Kills: a power after the mean, a gamma of 0 that still weighs."""
    level = torch.tensor([1.0, 2, 3], dtype=torch.float64)
    assert_alike(row_weights(level, 2.0), torch.tensor([1.0, 4, 9], dtype=torch.float64) * 3 / 14)
    assert_alike(row_weights(level, 0.0), torch.ones(3, dtype=torch.float64))


# --- correlation ----------------------------------------------------------------------------------------------


def test_correlation_by_hand() -> None:
    """Spec 3.5. Kills: a minimum over classes that the teacher does not know, a mean of ratios, a shift that is not
    the range's, a teacher in the mean that knows only one of two classes."""
    known, labels = known_of(((0, 1, 2), (0, 1)), 3), torch.tensor([0, 0])
    answers = torch.tensor([[[5.0, 1, -3], [7, -1, -1]], [[1.0, 0.5, 0], [3, 1.5, 0]]]).double()  # means 6 0 -2; 2 1
    found, seen = correlation(answers, known, labels)
    one, two = (0 + 2 + 0.8) / (6 + 2 + 0.8), (0 + 0.1) / (1 + 0.1)
    assert_alike(found[0], torch.tensor([1, (one + two) / 2, 0.8 / 8.8], dtype=torch.float64))
    assert seen.tolist() == [[True, True, True], [False, True, False], [False, False, True]]
    found, _ = correlation(answers, known, labels, "raw")
    assert_alike(found[0], torch.tensor([1, (0.01 + 0.5) / 2, 0.01], dtype=torch.float64))
    found, _ = correlation(answers, known, labels, "softmax", 4.0)
    wanted = torch.tensor([0, (-1.5 + -0.25) / 2, -2], dtype=torch.float64)
    assert_alike(found[0, [0, 2]], wanted[[0, 2]].exp())
    assert_alike(found[0, 1], (torch.tensor([-1.5, -0.25]).double().exp()).mean())


def test_the_mean_of_logits_comes_first() -> None:
    """Spec 3.5. Kills: a mean of ratios, which explodes where a single logit is near 0."""
    known, labels = known_of(((0, 1),), 2), torch.zeros(2, dtype=torch.int64)
    found, _ = correlation(torch.tensor([[[1e-9, 1.0], [4.0, 1.0]]]).double(), known, labels, "raw")
    assert found[0, 1].item() == pytest.approx(0.5)


@EVERY
@MODES
def test_correlations_lie_between_0_and_1(setting: str, mode: Any) -> None:
    """Kills: an off-diagonal that reaches the diagonal (a teacher that mistakes one class for another), one that a mask
    says was seen of classes that nobody compares, a diagonal that is measured."""
    for signal in (3.0, 0.0, -3.0):
        given = answered(setting, signal=signal)
        known = given[1]
        found, seen = correlation(*given, mode)
        off = ~torch.eye(len(found), dtype=torch.bool)
        assert (found.diagonal() == 1).all() and seen.diagonal().all()
        assert (found[off] >= 0).all() and (found[off] <= 0.999).all()
        together = (known.T.double() @ known.double()) > 0
        assert (found[~seen] == 0).all()
        if mode != "raw":
            assert torch.equal(seen, together)
            assert (found[seen] > 0).all()
        assert not (seen & ~together).any()
        if mode == "minshift":
            assert (found[seen] >= 0.09).all()


def shifted_by(constant: float, mode: Any) -> float:
    """How far the correlations move when one teacher's logits are shifted, which changes no prediction."""
    answers, known, labels = answered("weak")
    moved = answers.clone()
    moved[2][:, known[2]] += constant
    one, other = (correlation(z, known, labels, mode)[0] for z in (answers, moved))
    return (one - other).abs().max().item()


def test_a_teachers_offset_is_no_matter() -> None:
    """Oracle 3.12.10. Kills: raw ratios, the seed's, which a constant of 10 changes."""
    assert shifted_by(10, "minshift") < 1e-12
    assert shifted_by(10, "softmax") < 1e-12
    assert shifted_by(10, "raw") > 0.1


def test_a_teachers_scale_is_no_matter() -> None:
    """Kills: minshift with a shift that is not a share of the range."""
    answers, known, labels = answered("weak")
    assert_alike(correlation(30 * answers, known, labels)[0], correlation(answers, known, labels)[0])


@MODES
def test_the_order_of_teachers_is_no_matter(mode: Any) -> None:
    """Oracle 3.12.10. Kills: teachers mixed up with their class sets."""
    answers, known, labels = answered("weak")
    one, other = correlation(answers, known, labels, mode), correlation(answers.flip(0), known.flip(0), labels, mode)
    assert_alike(one, other)


# --- what nobody has seen ---------------------------------------------------------------------------------------


def check_fill(fill: Callable[[Tensor, Tensor], Tensor]) -> None:
    ratios = torch.tensor([[1, 0.2, 0.4, 0], [0.0, 1, 0, 0], [0.3, 0, 1, 0.6], [0, 0, 0, 1]], dtype=torch.float64)
    seen = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 1]], dtype=torch.bool)
    first, second = (1 + 0.2 + 0.4) / 3, (1 + 0.0) / 2  # a ratio of 0 that was seen
    third, nothing = (1 + 0.3 + 0.6) / 3, (0.2 + 0.4 + 0.0 + 0.3 + 0.6) / 5
    wanted = torch.tensor(
        [
            [1, (0.2 + 0) / 2, (0.4 + 0.3) / 2, (first + nothing) / 2],
            [(0.2 + 0) / 2, 1, (second + third) / 2, (second + nothing) / 2],
            [(0.4 + 0.3) / 2, (second + third) / 2, 1, (0.6 + nothing) / 2],
            [(first + nothing) / 2, (second + nothing) / 2, (0.6 + nothing) / 2, 1],
        ],
        dtype=torch.float64,
    )
    assert_alike(fill(ratios, seen), wanted)


def without_mask(ratios: Tensor, seen: Tensor) -> Tensor:
    """A mutant: what is 0 was not seen, as the seed writes."""
    return filled(ratios, ratios != 0)


def without_diagonal(ratios: Tensor, seen: Tensor) -> Tensor:
    """A mutant: the mean leaves the diagonal out; another rule, which has its name."""
    return filled(ratios, seen, "off_diagonal")


def without_transpose(ratios: Tensor, seen: Tensor) -> Tensor:
    """A mutant: filled in, and not made symmetric."""
    row = (ratios * seen).sum(1) / seen.sum(1)
    return torch.where(seen, ratios, row[:, None])


def test_unseen_pairs_are_filled_as_the_seed_says() -> None:
    """Spec 3.5. Kills: 0 for missing, a mean without the diagonal, a matrix that is not symmetric, a row of which
    nothing was seen with 1 or with 0."""
    check_fill(filled)
    for mutant in (without_mask, without_diagonal, without_transpose):
        with pytest.raises(AssertionError):
            check_fill(mutant)


def test_the_other_rule_leaves_the_diagonal_out() -> None:
    """Kills: two rules that are one."""
    ratios = torch.tensor([[1, 0.2, 0.4, 0], [0.2, 1, 0, 0.5], [0.4, 0, 1, 0], [0, 0.5, 0, 1]], dtype=torch.float64)
    found = filled(ratios, ratios > 0, "off_diagonal")
    assert found[0, 3].item() == pytest.approx(((0.2 + 0.4) / 2 + 0.5) / 2)
    assert found[1, 2].item() == pytest.approx(((0.2 + 0.5) / 2 + 0.4) / 2)


@FILLS
def test_where_nothing_was_seen_it_is_one_half(rule: Any) -> None:
    """Spec 3.5, "none at all: 0.5". Kills: 0 / 0 of a row without a pair that can be used."""
    found = filled(torch.eye(3, dtype=torch.float64), torch.eye(3, dtype=torch.bool), rule)
    assert_alike(found, 0.5 + 0.5 * torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize("rule", ["row_mean", "off_diagonal"])
@pytest.mark.parametrize("weak", [False, True])
def test_pairs_that_no_teacher_of_a_setting_compares(rule: Any, weak: bool) -> None:
    """Spec 3.9: none in BS; class 1 with 2, 3, 4, 5 in IS-1. Kills: pairs seen by two teachers, one class each."""
    setting = "weak" if weak else "balanced"
    ratios, seen = correlation(*answered(setting))
    unseen = {(int(row), int(column)) for row, column in (~seen).nonzero()}
    assert unseen == ({pair for c in (2, 3, 4, 5) for pair in ((1, c), (c, 1))} if weak else set())
    assert (filled(ratios, seen, rule) > 0).all()


# --- the cost matrix --------------------------------------------------------------------------------------------


@each("setting", SETTINGS)
@each("mode", ["minshift", "raw", "softmax"])
@each("rule", ["row_mean", "off_diagonal"])
@each("signal", [3.0, 0.0, -3.0])
def test_costs_are_positive_and_least_on_the_diagonal(setting: str, mode: Any, rule: Any, signal: float) -> None:
    """Oracle 3.12.3, on every kind of correlation. Kills: a minus too many, costs of which the right answer is not the
    cheapest."""
    given = answered(setting, signal=signal)
    made = Cbhma(r_mode=mode, fill=rule).class_costs(*given)
    cost, off = made["cost"], ~torch.eye(given[1].shape[1], dtype=torch.bool)
    assert torch.isfinite(cost).all() and (cost > 0).all()
    assert (cost.diagonal()[:, None] < cost)[off].all()
    assert_alike(made["correlation"], made["correlation"].T)


def check_costs(cost: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Oracle 3.12.3, and spec 3.6 by hand."""
    level = torch.tensor([2.0, 3, 5], dtype=torch.float64)
    alike = torch.tensor([[1, 0.5, 0.2], [0.5, 1, 0.1], [0.2, 0.1, 1]], dtype=torch.float64)
    found = cost(level, alike)
    assert found[0, 2].item() == pytest.approx(2 * torch.tensor(1.7 / 0.2).log().item())
    assert found[2, 0].item() == pytest.approx(5 * torch.tensor(1.3 / 0.2).log().item())
    assert (found[0].argsort().tolist(), found[1].argsort().tolist()) == ([0, 1, 2], [1, 0, 2])  # larger R is cheaper
    weaker = cost(level * torch.tensor([1, 1.5, 1]).double(), alike)  # a lower G_1
    assert (weaker[1] > found[1]).all() and torch.equal(weaker[[0, 2]], found[[0, 2]])
    order = torch.tensor([2, 0, 1])
    assert_alike(cost(level[order], alike[order][:, order]), found[order][:, order])


def transposed(levels: Tensor, alike: Tensor) -> Tensor:
    """A mutant: the level of the class that is taken for l."""
    return cost_matrix(levels, alike).T


def by_column(levels: Tensor, alike: Tensor) -> Tensor:
    """A mutant: the sum of the other class's row."""
    return levels[:, None] * torch.log(alike.sum(0) / alike)


def without_logarithm(levels: Tensor, alike: Tensor) -> Tensor:
    """A mutant."""
    return levels[:, None] * alike.sum(1, keepdim=True) / alike


def test_the_cost_matrix() -> None:
    """Oracle 3.12.3. Kills: a transposed matrix, a sum over the wrong axis, ratios without their logarithm."""
    check_costs(cost_matrix)
    for mutant in (transposed, by_column, without_logarithm):
        with pytest.raises(AssertionError):
            check_costs(mutant)


@pytest.mark.parametrize(("r", "own", "other"), [(0.1, 0.64, 2.94), (0.3, 1.31, 2.51), (0.6, 1.86, 2.37)])
def test_typical_sizes(r: float, own: float, other: float) -> None:
    """Spec 3.6, ten classes that are all alike by r. Kills: another base of the logarithm."""
    alike = torch.full((10, 10), r, dtype=torch.float64).fill_diagonal_(1)
    found = cost_matrix(torch.ones(10, dtype=torch.float64), alike)
    assert found[0, 0].item() == pytest.approx(own, abs=6e-3)
    assert found[3, 8].item() == pytest.approx(other, abs=6e-3)


def test_a_class_of_fewer_or_worse_teachers_costs_more() -> None:
    """Oracle 3.12.3. Kills: a level by which well-taught classes cost more."""
    known, alike = known_of(WEAK_1, 10), torch.full((10, 10), 0.3, dtype=torch.float64).fill_diagonal_(1)
    even = torch.full((10,), 0.8, dtype=torch.float64)
    costs = cost_matrix(imbalance(known, even), alike)
    assert (costs[1] > costs[0].roll(1)).all() and (costs[0].roll(9) > costs[9]).all()
    worse = even.clone()
    worse[4] = 0.5
    lower = cost_matrix(imbalance(known, worse), alike)
    assert (lower[4] > costs[4]).all()
    assert (lower[5] < costs[5]).all()  # a share of the sum


def losses(method: Any, answers: Tensor, known: Tensor, labels: Tensor) -> Tensor:
    """[N] of a student with some logits."""
    lesson, _ = method.lesson(answers, known, labels)
    rng = torch.Generator().manual_seed(5)
    return method.losses(2 * torch.randn(len(labels), known.shape[1], generator=rng, dtype=torch.float64), lesson)


@pytest.mark.parametrize("kind", [Cbhma, CbhmaE])
@pytest.mark.parametrize("setting", ["weak", "weak 9", "lonely"])
def test_whole_methods_know_no_offsets_and_no_order(kind: Any, setting: str) -> None:
    """Oracle 3.12.10. Kills: costs or losses that an offset of one teacher's logits changes (raw correlations are
    such), or the order in which teachers come."""
    answers, known, labels = answered(setting)
    shifted = torch.where(known[:, None], answers + torch.arange(len(known))[:, None, None] * 7.0, 0.0)
    turned = torch.arange(len(known) - 1, -1, -1)
    for mode in ("minshift", "softmax"):
        plain = losses(kind(r_mode=mode), answers, known, labels)
        assert_alike(losses(kind(r_mode=mode), shifted, known, labels), plain, 1e-9)
        assert_alike(losses(kind(r_mode=mode), answers[turned], known[turned], labels), plain, 1e-9)
    raw = losses(kind(r_mode="raw"), answers, known, labels)
    assert (losses(kind(r_mode="raw"), shifted, known, labels) - raw).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [Cbhma, CbhmaE])
def test_in_a_balanced_setting_weights_change_no_loss(kind: Any) -> None:
    """Oracle 3.12.4. Kills: weights that are not 1 where every class has as many and as good teachers."""
    _, known, labels = answered("balanced")
    right = torch.where(known[:, None], torch.eye(10, dtype=torch.float64)[labels] * 5.0, 0.0)  # all equally good
    assert_alike(losses(kind(), right, known, labels), losses(kind(row_weight=False), right, known, labels))
    _, known, _ = answered("weak")
    right = torch.where(known[:, None], torch.eye(10, dtype=torch.float64)[labels] * 5.0, 0.0)
    weighed, plain = (losses(kind(row_weight=weigh), right, known, labels) for weigh in (True, False))
    assert ((weighed - plain).abs() > 1e-3).any()


def test_no_power_is_too_large() -> None:
    """Kills: weights that overflow, and a student that diverges by no fault of its learning rate."""
    weights = row_weights(imbalance(answered("weak")[1], torch.full((10,), 0.7, dtype=torch.float64)), 500.0)
    assert torch.isfinite(weights).all() and weights.argmax() == 1
    assert_alike(weights.mean(), torch.tensor(1.0, dtype=torch.float64))


def test_relabelling_classes_relabels_costs() -> None:
    """Oracle 3.12.3. Kills: a class whose number matters."""
    answers, known, labels = answered("weak")
    order = torch.randperm(10, generator=torch.Generator().manual_seed(1))
    one = Cbhma().class_costs(answers, known, labels)
    other = Cbhma().class_costs(answers[..., order], known[:, order], order.argsort()[labels])
    for name in ("cost", "correlation"):
        assert_alike(other[name], one[name][order][:, order])
    for name in ("row_weight", "imbalance"):
        assert_alike(other[name], one[name][order])


# --- as a method has them -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Cbhma, CbhmaE])
def test_what_the_server_keeps(kind: Any) -> None:
    """Kills: a field that is read nowhere, or a matrix under another's name."""
    answers, known, labels = answered("weak")
    made = whole("weak", kind)
    level = imbalance(known, quality(answers, known, labels))
    assert_alike(made["imbalance"], level)
    assert_alike(made["correlation"], filled(*correlation(answers, known, labels)))
    assert_alike(made["cost"], cost_matrix(level, made["correlation"]))
    assert_alike(made["row_weight"], level / level.mean())
    for fields in ({"row_weight": False}, {"g_power": 0.0}):
        assert_alike(whole("weak", kind, **fields)["row_weight"], torch.ones(10, dtype=torch.float64))
        assert_alike(whole("weak", kind, **fields)["cost"], made["cost"])
    assert_alike(whole("weak", kind, g_power=4.0)["row_weight"], level**4 / (level**4).mean())
    others = [
        whole("weak", kind, **fields)["cost"]
        for fields in (
            {},
            {"r_mode": "raw"},
            {"r_mode": "softmax"},
            {"r_mode": "softmax", "r_temperature": 1.0},
            {"fill": "off_diagonal"},
        )
    ]
    assert len({tuple(cost.reshape(-1).tolist()) for cost in others}) == len(others)


@EVERY
@MODES
def test_logits_of_any_size(setting: str, mode: Any) -> None:
    """Kills: an exponential that underflows to a correlation of 0 and a cost of inf; a range lost in rounding; 0 / 0
    of logits that are all alike, or all negative."""
    answers, known, labels = answered(setting)
    inside = known[:, None]
    for extreme in (
        1e4 * answers.sign(),
        torch.where(inside, -1e4, 0.0).double().expand_as(answers),
        torch.zeros_like(answers),
        torch.where(inside, 1e4 + 1e-12 * answers, 0.0),
        torch.where(inside, answers - 1e4, 0.0),
        (1e4 * answers.sign()).float(),
    ):
        made = Cbhma(r_mode=mode).class_costs(extreme, known, labels)
        assert all(torch.isfinite(tensor).all() for tensor in made.values())
        assert (made["cost"] > 0).all()
        kept = made["cost"].float()  # as the server keeps it
        assert torch.isfinite(kept.log()).all()


def test_costs_are_computed_in_float64() -> None:
    """Kills: float32 answers that make float32 costs."""
    answers, known, labels = answered("weak")
    rough = Cbhma().class_costs(answers.float(), known, labels)
    assert all(tensor.dtype == torch.float64 for tensor in rough.values())
    given, made = Cbhma().lesson(answers.float(), known, labels)
    assert given.log_cost is not None and given.log_cost.dtype == torch.float32
    assert_alike(given.log_cost, made["cost"].log()[labels].float(), 0.0)


def test_one_class_has_no_costs() -> None:
    """Kills: log 1 = 0 as the only cost, and its logarithm."""
    bench = Bench(MLP(hidden=(4,)))
    context = replace(bench.context, layout=replace(bench.context.layout, classes=1))
    for kind in (Cbhma, CbhmaE):
        with pytest.raises(ConfigError, match=r"^algorithm.r_mode=minshift: compares classes, .*; distil with uhc or"):
            kind().prepare({}, None, context)
        assert kind().prepare(bench.start, None, bench.context) == bench.start


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("r_temperature", 0, "r_temperature=0: must be greater than 0; for example r_temperature=4.0"),
        ("g_power", -1, "g_power=-1: must be at least 0; 0 is no weight"),
        ("alpha", 2, "alpha=2: must be at least 0 and at most 1; 0 is labels alone"),
    ],
)
def test_what_a_field_cannot_be(field: str, value: Any, sentence: str) -> None:
    """Kills: a value out of range that is found out in mid-run, or never."""
    for kind in (Cbhma, CbhmaE):
        with pytest.raises(ConfigError) as caught:
            kind(**{field: value})
        assert str(caught.value) == sentence
