"""Losses that a student learns from answers by, against the oracles of specification 3.12, in float64."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.cbhma import Cbhma
from algorithms.cbhma_e import CbhmaE
from algorithms.distillation import (
    ByTeacher,
    Distillation,
    Lesson,
    class_probabilities,
    merged_logits,
    merged_loss,
    padded_loss,
    restricted_loss,
    soft_cross_entropy,
)
from algorithms.skd1 import Skd1
from algorithms.skd2 import Skd2
from algorithms.uhc import Uhc
from engine.base.errors import ConfigError

C, B = 6, 9
SETS = ((0, 1, 2, 3), (2, 3, 4), (0, 4, 5), (5,))  # one that is alone, one class of one teacher, all connected
TAU = 2.5


def known_of(sets: tuple[tuple[int, ...], ...], classes: int = C) -> Tensor:
    known = torch.zeros(len(sets), classes, dtype=torch.bool)
    for teacher, own in enumerate(sets):
        known[teacher, list(own)] = True
    return known


def normal(*shape: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lesson(
    sets: tuple[tuple[int, ...], ...] = SETS, cost: Tensor | None = None, weight: Tensor | None = None
) -> Lesson:
    """Of samples of all classes; what a teacher does not know is 0, as it comes from clients."""
    known, labels = known_of(sets), torch.arange(B) % C
    answers = torch.where(known[:, None], normal(len(sets), B, C, seed=1), 0.0)
    return Lesson(
        labels,
        answers,
        known,
        log_cost=None if cost is None else cost.log()[labels],
        weight=None if weight is None else weight[labels],
    )


def costs() -> Tensor:
    """[C, C] positive, with the diagonal the least of each row."""
    cost = 1 + normal(C, C, seed=5).abs()
    return cost - torch.diag(cost.diagonal()) + torch.diag(0.9 * torch.ones(C, dtype=torch.float64))


def loss_and_gradient(loss: Callable[[Tensor], Tensor], logits: Tensor) -> tuple[Tensor, Tensor]:
    leaf = logits.clone().requires_grad_()
    value = loss(leaf)
    [gradient] = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), gradient


def assert_alike(one: Any, other: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


METHODS: list[Distillation] = [Skd1(), Skd2(), Uhc()]
ALL = pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)


# --- the restricted softmax (oracle 8) ------------------------------------------------------------------------


Softmax = Callable[[Tensor, Tensor], Tensor]  # log q of logits [B, C] within bool [M, 1, C]


def check_restriction(log_q: Softmax) -> None:
    """The identity q_i(j) = q(j) / sum of q over L_i, rows that sum to 1, and numbers whatever the logits are."""
    known, z = known_of(SETS)[:, None], normal(B, C)
    q = z.softmax(-1)
    ratio = torch.where(known, q / (q * known).sum(-1, keepdim=True), 0.0)
    found = torch.where(known, log_q(z, known).exp(), 0.0)
    assert_alike(found, ratio, 1e-6)
    assert_alike(found.sum(-1), torch.ones(len(SETS), B, dtype=torch.float64))
    huge = z.sign() * 1e4 + z
    assert torch.isfinite(torch.where(known, log_q(huge, known), 0.0)).all()


def ours(logits: Tensor, within: Tensor) -> Tensor:
    """log q read off the loss, of one target at a time."""
    targets = torch.eye(C, dtype=torch.float64)
    return -torch.stack([soft_cross_entropy(one * within, logits, within) for one in targets], dim=-1)


def ratio_of_probabilities(logits: Tensor, within: Tensor) -> Tensor:
    """A mutant: q over its sum, and the logarithm of that."""
    q = logits.softmax(-1)
    return (q / (q * within).sum(-1, keepdim=True)).log()


def whole_softmax(logits: Tensor, within: Tensor) -> Tensor:
    """A mutant: classes that the teacher lacks are left in the denominator."""
    return logits.log_softmax(-1).expand(len(within), -1, -1)


def test_a_restricted_softmax_is_a_ratio_of_probabilities() -> None:
    """Oracle 3.12.8. Kills: other classes in the denominator; a ratio of probabilities, which is 0 / 0 of logits of
    1e4."""
    check_restriction(ours)
    for mutant in (ratio_of_probabilities, whole_softmax):
        with pytest.raises(AssertionError):
            check_restriction(mutant)


@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
def test_a_teacher_of_one_class_says_nothing(size: float) -> None:
    """Oracle 3.12.8. Kills: 0 times -inf; a loss or a gradient of exactly 1 / 2 where there is nothing to learn."""
    known = known_of(((3,),))
    answers = size * normal(1, B, C, seed=1).sign()
    value, gradient = loss_and_gradient(
        lambda z: restricted_loss(z, answers, known, TAU, costs().log()[:1]), size * normal(B, C).sign()
    )
    assert (value == 0).all() and (gradient == 0).all()


@pytest.mark.parametrize("method", [*METHODS, Skd2(centre=False)], ids=str)
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_logits_of_any_size(method: Distillation, alpha: float) -> None:
    """Kills: nan or inf of logits of +-1e4, of a teacher with one class, of a class that one teacher knows."""
    method = type(method)(**{**vars(method), "alpha": alpha})
    given = lesson(cost=costs(), weight=torch.ones(C, dtype=torch.float64))
    for signs in (normal(B, C), -normal(B, C)):
        huge = Lesson(given.labels, 1e4 * given.answers.sign(), given.known, given.log_cost, given.weight)
        for value in loss_and_gradient(lambda z, huge=huge: method.losses(z, huge), 1e4 * signs.sign()):
            assert torch.isfinite(value).all()


def test_probabilities_are_of_a_teachers_own_classes() -> None:
    """Kills: a class that a teacher lacks with the probability of a logit of 0; a missing temperature."""
    given = lesson()
    p = class_probabilities(given.answers, given.known, TAU)
    for teacher, own in enumerate(SETS):
        assert_alike(p[teacher][:, list(own)], (given.answers[teacher][:, list(own)] / TAU).softmax(-1))
        assert (p[teacher][:, ~given.known[teacher]] == 0).all()


# --- KD by hand -----------------------------------------------------------------------------------------------


def by_hand(z: Tensor, given: Lesson, cost: Tensor | None = None) -> Tensor:
    """[M, B] the specification's sum of p log q with costs, teacher by teacher, with index lists and no mask."""
    rows = []
    for teacher, own in enumerate(SETS):
        columns = list(own)
        p = (given.answers[teacher][:, columns] / TAU).softmax(-1)
        scaled = (z[:, columns] / TAU).exp()
        if cost is not None:
            scaled = scaled * cost[given.labels][:, columns]
        rows.append(-(p * (scaled / scaled.sum(-1, keepdim=True)).log()).sum(-1))
    return torch.stack(rows)


def test_the_restricted_loss_by_hand() -> None:
    """Kills: costs that are divided by the temperature, of another row, or of the transposed matrix; classes mixed
    up (equation of L_uhc, and of L_cb)."""
    given, z, cost = lesson(), normal(B, C), costs()
    assert_alike(restricted_loss(z, given.answers, given.known, TAU), by_hand(z, given))
    found = restricted_loss(z, given.answers, given.known, TAU, cost.log()[given.labels])
    assert_alike(found, by_hand(z, given, cost))
    transposed = restricted_loss(z, given.answers, given.known, TAU, cost.T.log()[given.labels])
    divided = restricted_loss(z, given.answers, given.known, TAU, cost.log()[given.labels] / TAU)
    for mutant in (transposed, divided):
        assert (mutant - by_hand(z, given, cost)).abs().max() > 1e-3


def test_the_padded_loss_by_hand() -> None:
    """Kills: a softmax over a teacher's classes where it should be over all."""
    given, z = lesson(), normal(B, C)
    p = class_probabilities(given.answers, given.known, TAU)
    wanted = -(p * (z / TAU).log_softmax(-1)).sum(-1)
    assert_alike(padded_loss(z, given.answers, given.known, TAU), wanted)
    assert (wanted > by_hand(z, given) + 1e-6).all()  # the student is told of what a teacher lacks as well


def test_merged_logits_by_hand() -> None:
    """Kills: a mean over all teachers, a mean over all classes in centring, a class nobody knows with a logit of 0."""
    known = known_of(((0, 1), (1, 2)), 4)
    answers = torch.tensor([[[1.0, 3.0, 9.0, 9.0]], [[9.0, 5.0, 11.0, 9.0]]]).double()
    assert merged_logits(answers, known, centre=False).tolist() == [[1, 4, 11, -torch.inf]]
    assert merged_logits(answers, known, centre=True).tolist() == [[-1, -1, 3, -torch.inf]]
    value, gradient = loss_and_gradient(lambda z: merged_loss(z, answers, known, TAU, True), normal(1, 4))
    assert torch.isfinite(value).all() and torch.isfinite(gradient).all()


@pytest.mark.parametrize("only_relevant", [False, True])
@pytest.mark.parametrize("kd_reduce", ["sum", "mean"])
@pytest.mark.parametrize("tau_squared", [False, True])
def test_what_the_options_say(kd_reduce: Any, only_relevant: bool, tau_squared: bool) -> None:
    """Kills: an option that is read nowhere, a mean over teachers that were left out, tau for its square, an alpha that
    does not reach the label's term (equation of L_uhc)."""
    given, z = lesson(), normal(B, C)
    method = Uhc(0.3, TAU, tau_squared, kd_reduce=kd_reduce, only_relevant=only_relevant)
    terms, wanted = by_hand(z, given), []
    for row, label in enumerate(given.labels.tolist()):
        asked = [i for i in range(len(SETS)) if not only_relevant or label in SETS[i]]
        kd = sum(terms[i, row] for i in asked) / (len(asked) if kd_reduce == "mean" else 1)
        wanted.append(0.3 * kd * (TAU**2 if tau_squared else 1) - 0.7 * z[row].log_softmax(0)[label])
    assert_alike(method.losses(z, given), torch.stack(wanted))


@pytest.mark.parametrize(
    ("tau_squared", "kd_reduce", "teachers", "warned"),
    [(True, "sum", 5, True), (False, "sum", 5, False), (True, "mean", 5, False), (True, "sum", 1, False)],
)
def test_a_scale_that_may_diverge_is_told(
    tau_squared: bool, kd_reduce: Any, teachers: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Kills: tau^2 over a sum of teachers without a word; a warning where there is nothing to warn of."""
    method: Any = Uhc(temperature=3.0, tau_squared=tau_squared, kd_reduce=kd_reduce)
    nobody: Any = None
    student: Any = {"weights": torch.zeros(1)}
    with caplog.at_level(logging.WARNING, logger="fedskew"):
        method.finish({"known": torch.ones(teachers, C, dtype=torch.bool)}, nobody, lambda *_: student, nobody)
    assert ("by 45: the student may diverge with lr=0.05" in caplog.text) == warned == bool(caplog.text)


def test_a_lesson_of_some_samples() -> None:
    """Kills: answers, costs or weights of other samples than the labels'."""
    given = lesson(cost=costs(), weight=torch.arange(1.0, C + 1, dtype=torch.float64))
    z, rows = normal(B, C), torch.tensor([7, 0, 4])
    for method in (Cbhma(), CbhmaE()):
        assert_alike(method.losses(z[rows], given.of(rows)), method.losses(z, given)[rows], 0.0)


# --- oracles of the methods -----------------------------------------------------------------------------------


def bracket(method: Distillation, given: Lesson, z: Tensor) -> tuple[Tensor, Tensor]:
    return loss_and_gradient(lambda leaf: method.losses(leaf, given), z)


COSTED = pytest.mark.parametrize("pair", [(Uhc, Cbhma), (Skd2, CbhmaE)], ids=["cbhma", "cbhma_e"])


@COSTED
def test_costs_that_are_constant_in_a_row_are_none(pair: tuple[Any, Any]) -> None:
    """Oracle 3.12.1. Kills: costs on one side of the fraction alone, in one of the two terms alone, by column."""
    plain, costed = pair
    constant = torch.arange(1.0, C + 1, dtype=torch.float64)[:, None].expand(C, C)
    z = normal(B, C)
    for one, other in zip(bracket(plain(), lesson(), z), bracket(costed(), lesson(cost=constant), z), strict=True):
        assert_alike(other, one, 1e-6)
    by_column = bracket(costed(), lesson(cost=constant.T), z)
    assert (by_column[0] - bracket(plain(), lesson(), z)[0]).abs().max() > 1e-3


@COSTED
def test_a_factor_of_a_row_cancels_in_the_printed_loss(pair: tuple[Any, Any]) -> None:
    """Oracle 3.12.2, the main finding: C -> diag(s) C, and so any imbalance level, changes neither loss nor gradient;
    the row weight does. Kills: a printed loss in which G has an effect, a row weight that has none."""
    _, costed = pair
    cost, z = costs(), normal(B, C)
    scale = torch.tensor([0.2, 5, 1, 3, 17, 0.01], dtype=torch.float64)
    literal = bracket(costed(), lesson(cost=cost), z)
    scaled = bracket(costed(), lesson(cost=scale[:, None] * cost), z)
    for one, other in zip(literal, scaled, strict=True):
        assert_alike(other, one, 1e-6)
    weighted = bracket(costed(), lesson(cost=scale[:, None] * cost, weight=scale), z)
    assert_alike(weighted[0], scale[lesson().labels] * literal[0], 1e-6)
    assert (weighted[1] - literal[1]).abs().max() > 1e-3
    transposed = bracket(costed(), lesson(cost=(scale[:, None] * cost).T), z)
    assert (transposed[0] - bracket(costed(), lesson(cost=cost.T), z)[0]).abs().max() > 1e-3


def test_costs_only_add_to_the_labels_loss() -> None:
    """Oracle 3.12.6: the diagonal is the least of its row. Kills: costs that are subtracted, which lower the loss."""
    z, given = normal(B, C), lesson(cost=costs())
    plain = F.cross_entropy(z, given.labels, reduction="none")
    assert (Cbhma(alpha=0).losses(z, given) >= plain).all()
    assert given.log_cost is not None
    subtracted = Lesson(given.labels, given.answers, given.known, -given.log_cost)
    assert not (Cbhma(alpha=0).losses(z, subtracted) >= plain).all()


def test_where_the_students_answer_is_the_teachers() -> None:
    """Oracle 3.12.7: KD's gradient is 0 at z = tau (log p - log c). Kills: log c beside z in place of z / tau, a
    student without temperature."""
    given = lesson((tuple(range(C)),), cost=costs())
    assert given.log_cost is not None
    p = class_probabilities(given.answers, given.known, TAU)[0]
    method = Cbhma(alpha=1, temperature=TAU)
    _, gradient = bracket(method, given, TAU * (p.log() - given.log_cost) + 7)
    assert gradient.abs().max() < 1e-6
    _, elsewhere = bracket(method, given, TAU * p.log() - given.log_cost)
    assert elsewhere.abs().max() > 1e-3


CONNECTED = ((0, 1, 2), (2, 3), (3, 4, 5))
TWO_PARTS = ((0, 1, 2), (1, 2), (3, 4, 5))


def conditionals(sets: tuple[tuple[int, ...], ...], q: Tensor) -> tuple[Tensor, Tensor]:
    """Answers [M, 1, C] of teachers whose p_i is q restricted to their classes, and these classes."""
    known = known_of(sets)
    return torch.where(known, q.log(), 0.0)[:, None], known


def test_uhc_recovers_what_the_teachers_are_parts_of() -> None:
    """Oracle 3.12.9: with p_i = q* | L_i and a connected graph of classes the best student is q*. Kills: a softmax
    over all classes (SKD1's), which puts the best student elsewhere."""
    q = normal(C).softmax(0)
    answers, known = conditionals(CONNECTED, q)

    def best(loss: Callable[..., Tensor]) -> Tensor:
        z = torch.zeros(1, C, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS([z], max_iter=500, tolerance_grad=1e-13, tolerance_change=1e-16, history_size=20)

        def step() -> Tensor:
            optimizer.zero_grad()
            value = loss(z, answers, known, 1.0).sum()
            value.backward()
            return value

        optimizer.step(step)
        return z.detach()[0].softmax(0)

    assert_alike(best(restricted_loss), q, 1e-6)
    assert (best(padded_loss) - q).abs().max() > 1e-2


def test_parts_that_no_teacher_connects_are_not_compared() -> None:
    """Oracle 3.12.9: along a shift of one part's logits UHC has no gradient, and labels have. Kills: teachers that say
    something about classes they lack; a loss that is undefined where the graph of classes falls apart."""
    answers, known = conditionals(TWO_PARTS, normal(C).softmax(0))
    part, z = torch.tensor([1.0, 1, 1, 0, 0, 0]).double(), normal(1, C, seed=3)
    _, gradient = loss_and_gradient(lambda leaf: restricted_loss(leaf, answers, known, 1.0), z)
    assert (gradient @ part).abs() < 1e-12
    assert gradient.abs().max() > 1e-3
    _, padded = loss_and_gradient(lambda leaf: padded_loss(leaf, answers, known, 1.0), z)
    assert (padded @ part).abs() > 1e-3
    given = Lesson(torch.tensor([0]), answers, known)
    _, labelled = bracket(Uhc(), given, z)
    assert (labelled @ part).abs() > 1e-3


@ALL
def test_offsets_and_the_order_of_teachers_are_no_matter(method: Distillation) -> None:
    """Oracle 3.12.10: a constant on all logits of a teacher changes none of its predictions. Kills: raw logits that
    are merged without centring (a mutant: 10 changes it), classes that belong to a place."""
    z, given = normal(B, C), lesson()
    shifted = Lesson(given.labels, given.answers.clone(), given.known)
    shifted.answers[1][:, given.known[1]] += 10
    for one, other in zip(bracket(method, given, z), bracket(method, shifted, z), strict=True):
        assert_alike(other, one)
    turned = Lesson(given.labels, given.answers.flip(0), given.known.flip(0))
    for one, other in zip(bracket(method, given, z), bracket(method, turned, z), strict=True):
        assert_alike(other, one)
    mutant = Skd2(centre=False)
    assert (mutant.losses(z, shifted) - mutant.losses(z, given)).abs().max() > 1e-2


def test_one_teacher_of_all_classes_is_hintons() -> None:
    """Oracle 3.12.11. Kills: tau^2 that is always there, a KD that is not Hinton's where all of them must be."""
    given, z = lesson((tuple(range(C)),)), normal(B, C)
    soft = -((given.answers[0] / TAU).softmax(-1) * (z / TAU).log_softmax(-1)).sum(-1)
    wanted = 0.5 * F.cross_entropy(z, given.labels, reduction="none") + 0.5 * soft
    for method in (Uhc, Skd1, Skd2):
        assert_alike(method(temperature=TAU).losses(z, given), wanted)
    assert_alike(Skd2(temperature=TAU, centre=False).losses(z, given), wanted)


def test_of_sets_that_do_not_meet_it_is_concatenation() -> None:
    """Oracle 3.12.11, as in MUKI and KamalEngine. Kills: a division by the number of all teachers."""
    given, z = lesson(((3, 4), (0, 1, 2, 5))), normal(B, C)
    concatenated = torch.cat((given.answers[1][:, [0, 1, 2]], given.answers[0][:, [3, 4]], given.answers[1][:, [5]]), 1)
    wanted = -((concatenated / TAU).softmax(-1) * (z / TAU).log_softmax(-1)).sum(-1)
    assert_alike(Skd2(alpha=1, temperature=TAU, centre=False).losses(z, given), wanted)
    assert (Skd2(alpha=1, temperature=TAU).losses(z, given) - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [Skd1, Skd2, Uhc, Cbhma, CbhmaE])
def test_without_weight_answers_are_not_read(kind: Any) -> None:
    """Oracle 3.12.12. Kills: a term that does not vanish at alpha = 0, even of answers that are no numbers."""
    given, z = lesson(), normal(B, C)
    nonsense = Lesson(given.labels, torch.full_like(given.answers, torch.nan), given.known)
    found, gradient = bracket(kind(alpha=0), nonsense, z)
    assert torch.equal(found, F.cross_entropy(z, given.labels, reduction="none"))
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("alpha", 1.5, "alpha=1.5: must be at least 0 and at most 1; 0 is labels alone"),
        ("temperature", 0, "temperature=0: must be greater than 0; for example temperature=3.0"),
        ("lr", 0, "lr=0: must be greater than 0; for example lr=0.05"),
        ("momentum", 1, "momentum=1: must be at least 0 and below 1; 0 is none"),
        ("weight_decay", -1, "weight_decay=-1: must be at least 0; 0 is none"),
        ("batch_size", 0, "batch_size=0: must be at least 1; for example batch_size=64"),
        ("epochs", -1, "epochs=-1: must be at least 0; 0 leaves the student as it is"),
    ],
)
def test_what_a_field_cannot_be(field: str, value: Any, sentence: str) -> None:
    """Kills: a value out of range that is found out in mid-run, or never."""
    for kind in (Skd1, Skd2, Uhc, Cbhma, CbhmaE):
        with pytest.raises(ConfigError) as caught:
            kind(**{field: value})
        assert str(caught.value) == sentence


def test_fields_belong_to_those_that_read_them() -> None:
    """Kills: an option of terms by teacher on a method that has one target."""
    assert not issubclass(Skd2, ByTeacher)
    with pytest.raises(TypeError):
        Skd2(kd_reduce="mean")  # type: ignore[call-arg]
