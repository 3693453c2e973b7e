"""Common features: the discrepancy, the space, and the student that is trained beside it (oracle 3.12.14)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.cfl_amalgam import CflAmalgam, amalgamate, one_after_the_other
from algorithms.common_features import WIDTHS, CommonSpace, mean_discrepancy
from algorithms.distillation import Lesson, train_student
from algorithms.skd2 import Skd2
from engine.algorithm import Tensors, seeds
from engine.base.errors import ConfigError
from engine.client.training_tools import FlatTrainingTools
from engine.models import MLP
from engine.models.model import fresh
from tests.support.bench import Bench
from tests.support.tiny import CLASSES

Discrepancy = Callable[[Tensor, Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- the discrepancy --------------------------------------------------------------------------------------------


def check_discrepancy(of: Discrepancy) -> None:
    """Oracle 3.12.14, and the definition pair by pair."""
    x, y = normal(7, 5), normal(7, 5, seed=1)
    for one in (x, x[:1], 1e4 * x, x.float()):
        assert of(one, one) == 0
        assert of(one, one.flip(0)) < 1e-5
    assert of(x[:1], -x[:1]).item() == pytest.approx(
        sum(2 - 2 * math.exp(-4 / (2 * width**2)) for width in WIDTHS), rel=1e-12
    )
    assert of(x, y) > 0
    torch.testing.assert_close(of(x, y), of(y, x))
    torch.testing.assert_close(of(3 * x, 0.1 * y), of(x, y))  # directions alone count
    total = 0.0
    for one, other, sign in ((x, x, 1), (y, y, 1), (x, y, -2)):
        for a in F.normalize(one):
            for b in F.normalize(other):
                total += sign * sum(math.exp(-((a - b) ** 2).sum() / (2 * w**2)) for w in WIDTHS) / 49
    assert of(x, y).item() == pytest.approx(total, rel=1e-10)
    assert of(x.float(), y.float()).item() == pytest.approx(total, abs=1e-5)


def unbiased(one: Tensor, other: Tensor) -> Tensor:
    """A mutant: a row is not compared with itself."""
    n = len(one)
    return mean_discrepancy(one, other) - 2 * len(WIDTHS) / n


def unscaled(one: Tensor, other: Tensor) -> Tensor:
    """A mutant: features of any length."""
    return mean_discrepancy(one, other) * one.square().mean()


def by_scalar_products(one: Tensor, other: Tensor) -> Tensor:
    """A mutant: |x|^2 + |y|^2 - 2 x y, which is no zero for a row and itself."""
    one, other = F.normalize(one, dim=1), F.normalize(other, dim=1)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        return torch.stack([(-squares / (2 * width**2)).exp().mean() for width in WIDTHS]).sum()

    return kernel(one, one) + kernel(other, other) - 2 * kernel(one, other)


def test_the_discrepancy() -> None:
    """Oracle 3.12.14: of a set and itself it is 0, else it is positive. Kills: an unbiased estimate, which may be
    negative; features that are not scaled; squares by scalar products, of which rounding makes discrepancies; a
    kernel too few, sigma for its square."""
    check_discrepancy(mean_discrepancy)
    for mutant in (unbiased, unscaled, by_scalar_products):
        with pytest.raises(AssertionError):
            check_discrepancy(mutant)


def test_gradients_are_numbers() -> None:
    """Kills: nan where rows coincide, or where there is one."""
    for rows in (1, 4):
        x = normal(rows, 5).requires_grad_()
        for other in (x.detach(), normal(rows, 5, seed=1), torch.zeros(rows, 5, dtype=torch.float64)):
            [gradient] = torch.autograd.grad(mean_discrepancy(x, other), x)
            assert torch.isfinite(gradient).all()


# --- the space --------------------------------------------------------------------------------------------------


def space(student: int = 40, teachers: tuple[int, ...] = (6, 3)) -> CommonSpace:
    return fresh(lambda: CommonSpace(student, teachers), torch.Generator().manual_seed(0)).double()


def test_what_is_compared_and_what_is_decoded() -> None:
    """Kills: a mean over teachers, a student that is compared with itself, decoders of the student's features."""
    common, own, theirs = space(), normal(8, 40), [normal(8, 6, seed=1), normal(8, 3, seed=2)]
    apart, lost = common(own, theirs)
    h = common.extractor(common.student(own))
    aligned = [common.extractor(align(z)) for align, z in zip(common.teachers, theirs, strict=True)]
    assert h.shape == (8, 10) and all(one.shape == h.shape for one in aligned)
    torch.testing.assert_close(apart, mean_discrepancy(h, aligned[0]) + mean_discrepancy(h, aligned[1]))
    errors = [
        (decode(one) - z).square().mean() for decode, one, z in zip(common.decoders, aligned, theirs, strict=True)
    ]
    torch.testing.assert_close(lost, errors[0] + errors[1])
    assert sum(p.numel() for p in space(3).student.parameters()) == 8 * 4  # of a narrow student no quarter


def test_both_terms_can_be_learned() -> None:
    """Kills: a layer that has no gradient, a sign error."""
    common, theirs = space(teachers=(6, 9)), [normal(8, 6, seed=1), normal(8, 9, seed=2)]
    own = normal(8, 40).requires_grad_()
    parameters = [own, *common.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    found = []
    for _ in range(150):
        apart, lost = common(own, theirs)
        found.append((apart.item(), lost.item()))
        grads = torch.autograd.grad(apart + lost, parameters)
        assert len(found) > 1 or all((grad != 0).any() for grad in grads)
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    assert found[-1][1] < 0.5 * found[0][1]
    assert found[-1][0] < found[0][0]


def test_features_of_different_widths_keep_their_order() -> None:
    """Kills: a merge that depends on how clients were grouped, or that mixes up teachers."""
    single: list[Tensors] = [{"0": torch.full((2, width), float(width))} for width in (3, 5, 2, 4)]
    merge = one_after_the_other
    left = merge(merge(merge(single[0], single[1]), single[2]), single[3])
    right = merge(single[0], merge(merge(single[1], {}), merge(single[2], single[3])))
    for merged in (left, right):
        assert {name: tensor.shape[1] for name, tensor in merged.items()} == {"0": 3, "1": 5, "2": 2, "3": 4}


# --- the student ------------------------------------------------------------------------------------------------


def public() -> tuple[FlatTrainingTools, Tensors]:
    """A workbench with public images, and answers of two teachers whose classes do not meet, with their features."""
    bench = Bench(MLP(hidden=(40,)))
    labels = torch.arange(CLASSES).repeat_interleave(3)
    x = normal(len(labels), 1, 8, 8)
    known = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    answers = torch.where(known[:, None], normal(2, len(labels), CLASSES, seed=1), 0.0)
    features = {"0": normal(len(labels), 6, seed=2), "1": normal(len(labels), 3, seed=3)}
    bench.net.load(bench.start["weights"], bench.start["buffers"])
    place = FlatTrainingTools(bench.net, partial(seeds.generator, 0, round=1), lambda per_class: (x, labels))
    return place, {**bench.start, "answers": answers, "known": known, **features}


def student(method: CflAmalgam) -> Tensor:
    place, shared = public()
    return amalgamate(place, shared, method=method, width=40, teachers=2)["weights"]


def test_without_its_terms_it_is_skd2() -> None:
    """Oracle 3.12.14: with w2 = w3 = 0 it is SKD2(centre=False), tau = 1, alpha = 1, for sets that do not meet. Kills:
    terms that do not vanish at weight 0, a KD of something else, a space that changes the student's draws."""
    common = {"alpha": 1.0, "temperature": 1.0, "centre": False, "optimizer": "adam", "lr": 0.001, "epochs": 3}
    place, shared = public()
    merged = train_student(place, shared, method=Skd2(**common, weight_decay=1e-4))["weights"]  # type: ignore[arg-type]
    ours = student(CflAmalgam(alpha=1.0, epochs=3, feature_weight=0.0, decoder_weight=0.0))
    torch.testing.assert_close(ours, merged, rtol=0, atol=1e-12)
    assert (student(CflAmalgam(alpha=1.0, epochs=3)) - merged).abs().max() > 1e-4
    decoded = student(CflAmalgam(alpha=1.0, epochs=3, feature_weight=0.0))  # decoders are the teachers' affair
    torch.testing.assert_close(decoded, merged, rtol=0, atol=1e-12)


def test_the_loss_by_hand() -> None:
    """Kills: weights of other terms, alpha on the logits alone, a second forward pass that differs."""
    method = CflAmalgam(alpha=0.3, answer_weight=0.7, feature_weight=2.0, decoder_weight=3.0)
    place, shared = public()
    taken: list[Callable[..., Tensor]] = []

    class Spy:
        def __getattr__(self, name: str) -> object:
            return getattr(place, name)

        def fit(self, loss: Callable[..., Tensor], *args: object, **how: object) -> Tensors:
            taken.append(loss)
            return {}

    amalgamate(Spy(), shared, method=method, width=40, teachers=2)  # type: ignore[arg-type]
    x, labels = place.public(3)
    rows = torch.tensor([11, 0, 4, 5])
    common = fresh(lambda: CommonSpace(40, (6, 3)), seeds.generator(0, "common space", 1)).double()
    logits = place.net(x[rows])
    apart, lost = common(place.net.features(x[rows]), [shared["0"][rows], shared["1"][rows]])
    target = shared["answers"].sum(0)[rows].softmax(-1)  # concatenated
    kd = -(target * logits.log_softmax(-1)).sum(-1).mean()
    wanted = 0.7 * F.cross_entropy(logits, labels[rows]) + 0.3 * (0.7 * kd + 2.0 * apart + 3.0 * lost)
    torch.testing.assert_close(taken[0](place.net, rows), wanted)


def test_what_is_trained_beside() -> None:
    """Kills: a common space that stays as it was drawn, so that teachers' features are projected at random."""
    learned = student(CflAmalgam(epochs=30, lr=0.01))
    original = FlatTrainingTools.fit

    def alone(self: FlatTrainingTools, *args: object, **how: object) -> Tensors:
        return original(self, *args, **{**how, "beside": ()})  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FlatTrainingTools, "fit", alone)
        still = student(CflAmalgam(epochs=30, lr=0.01))
    assert (learned - still).abs().max() > 1e-3


def test_its_answers_weigh_what_they_should() -> None:
    """Kills: a weight that is read nowhere, or that reaches the labels too."""
    given = Lesson(torch.zeros(2, dtype=torch.int64), normal(1, 2, 3), torch.ones(1, 3, dtype=torch.bool))
    z = normal(2, 3, seed=4)
    whole = CflAmalgam().answers_loss(z, given)
    torch.testing.assert_close(CflAmalgam(answer_weight=0.25).answers_loss(z, given), 0.25 * whole)


@pytest.mark.parametrize("field", ["answer_weight", "feature_weight", "decoder_weight"])
def test_what_a_field_cannot_be(field: str) -> None:
    """Kills: a student that is driven away from its teachers."""
    neutral = "0 is none, and asks for no features" if field == "feature_weight" else "0 is none"
    with pytest.raises(ConfigError, match=rf"^{field}=-1: must be at least 0; {neutral}$"):
        CflAmalgam(**{field: -1})
