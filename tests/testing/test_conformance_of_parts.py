"""The checks of models, data and partitions, and the door to all checks for tests of pytest."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import SkipTest

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from algorithms.fedprox import FedProx
from engine.base.errors import ConfigError
from engine.data import PARTITIONS, SOURCES, Assignment, Dataset, Partition, Source, Split
from engine.experiment import CHOICES
from engine.models import MODELS, Model, ModelSpec
from engine.models.splitting import check_split
from fedskew.testing.checks import CHECKS, checks_of, outcome, parametrize_with_checks, section_of


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part of this file is known meanwhile."""
    for kind in list(globals().values()):
        for registry in CHOICES.values():
            if isinstance(kind, type) and issubclass(kind, registry.kind) and kind.__module__ == __name__:
                monkeypatch.setitem(registry, kind.__name__.lower(), kind)


def found_by(name: str, part: Any) -> str:
    (check,) = [check for check in CHECKS[section_of(part)] if check.name == name]
    status, told = outcome(check, part)
    assert status != "skipped", told
    return told


# --- models -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flat(ModelSpec):
    """A network of one hidden layer, of which the faulty ones differ by one thing each."""

    layer: ClassVar[type[nn.Module]] = nn.Identity
    model: ClassVar[type[Model]] = Model

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        size = int(np.prod(shape))
        body = nn.Sequential(nn.Flatten(), nn.Linear(size, 5), self.layer())
        return self.model(body, nn.Linear(5, num_classes))


@dataclass(frozen=True)
class Dropping(Flat):
    """It keeps the rules, and draws."""

    layer: ClassVar[type[nn.Module]] = nn.Dropout


class Shifted(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = np.random.Generator(np.random.PCG64()).uniform(1, 2)

    def forward(self, z: Tensor) -> Tensor:
        return z * self.scale


class OfTheBatch(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z - z.mean(0)


class Noisy(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z + torch.randn_like(z)


class Casting(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.float()


class Branching(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z / 2 if z.sum() > 0 else z


class Squeezing(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z.squeeze(0) if self.training else z


class NumpyNoise(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return z * np.random.normal() if self.training else z  # noqa: NPY002 (the fault)


@dataclass(frozen=True)
class AddsOne(Flat):
    model: ClassVar[type[Model]] = Shifted


@dataclass(frozen=True)
class HasHidden(Flat):
    layer: ClassVar[type[nn.Module]] = Hidden


@dataclass(frozen=True)
class HasBatch(Flat):
    layer: ClassVar[type[nn.Module]] = OfTheBatch


@dataclass(frozen=True)
class HasNoise(Flat):
    layer: ClassVar[type[nn.Module]] = Noisy


@dataclass(frozen=True)
class HasCast(Flat):
    layer: ClassVar[type[nn.Module]] = Casting


@dataclass(frozen=True)
class HasBranch(Flat):
    layer: ClassVar[type[nn.Module]] = Branching


@dataclass(frozen=True)
class SameWeights(Flat):
    keeps_weights: ClassVar[bool] = True

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        built = super().build(shape, num_classes)
        for weights in built.parameters():
            nn.init.constant_(weights, 0.1)
        return built


@dataclass(frozen=True)
class Drawn(Flat):
    keeps_weights: ClassVar[bool] = True

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        built = super().build(shape, num_classes)
        nn.init.constant_(built.head.bias, np.random.normal())  # noqa: NPY002 (the fault)
        return built


@dataclass(frozen=True)
class HasSqueeze(Flat):
    layer: ClassVar[type[nn.Module]] = Squeezing


@dataclass(frozen=True)
class HasNumpy(Flat):
    layer: ClassVar[type[nn.Module]] = NumpyNoise


@dataclass(frozen=True)
class BadTap(Flat):
    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        model = super().build(shape, num_classes)
        model.unused = nn.Identity()
        model.tap_names = ("unused",)
        return model


MODEL_FAULTS = [
    (AddsOne(), "is_body_and_head", r"AddsOne's scores are not its head's of its features, by up to 1.0e\+00; let"),
    (BadTap(), "taps_are_there", r"BadTap.tap_names has unused, which gives no output for each image"),
    (HasHidden(), "is_one_vector", r"HasHidden has numbers that are neither parameters nor floating buffers"),
    (HasNoise(), "same_answers_twice", r"HasNoise gives other scores for the same images in eval mode; draw nothing"),
    (HasBatch(), "same_answers_twice", r"HasBatch gives an image other scores alone than in a batch, by up to"),
    (HasCast(), "takes_float64", r"HasCast (fails in float64|gives scores of torch.float32 in a run of float64)"),
    (HasBranch(), "same_in_both_executors", r"HasBranch fails where several clients are trained in one pass"),
    (HasSqueeze(), "takes_one_row", r"HasSqueeze fails in training mode on a batch of 1: .*; squeeze no axis"),
    (HasNumpy(), "same_twice_in_runs", r"HasNumpy fails when it is trained: .* draws from numpy's global generator"),
    (SameWeights(), "drawn_by_the_generator", r"SameWeights has the same weights whatever the generator"),
    (Drawn(), "drawn_by_the_generator", r"model.name=Drawn: draws from numpy's global generator"),
]


@pytest.mark.parametrize(("part", "check", "sentence"), MODEL_FAULTS, ids=lambda value: str(value)[:20])
def test_a_fault_of_a_model_is_found(part: ModelSpec, check: str, sentence: str) -> None:
    """Kills: a check that passes whatever the model does, or fails for another reason."""
    assert re.search(sentence, found_by(check, part)), found_by(check, part)


@parametrize_with_checks(
    [Flat(), Dropping(), *(MODELS.build({"name": name}) for name in ("logistic", "mlp", "cnn", "resnet8", "dan"))]
)
def test_models(part: ModelSpec, check: Any) -> None:
    """Kills: a check that fails whatever the model is; one of ours that no executor takes."""
    check(part)


@dataclass(frozen=True)
class FixedSize(Flat):
    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        model = super().build((1, 5, 5), num_classes)
        check_split(model, shape, num_classes)
        return model


def test_a_model_that_takes_nothing_is_told_of_images_once() -> None:
    """Kills: token ids, which are tried last, in place of the largest images; two repairs for one fault."""
    told = found_by("is_body_and_head", FixedSize())
    assert told.startswith("FixedSize takes no images of (3, 224, 224)") and told.count("follow the shape") == 1


# --- data ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Points(Source):
    """Thirty points of three classes, of which the faulty ones differ by one thing each."""

    def features(self) -> np.ndarray:
        return np.arange(30, dtype=np.float32)

    def labels(self) -> np.ndarray:
        return np.arange(30, dtype=np.int64) % 3

    def read(self) -> Dataset:
        split = Split(self.features().reshape(30, 1, 1, 1), self.labels())
        return Dataset("points", ("a", "b", "c"), split, split, (0.0,), (1.0,))


@dataclass(frozen=True, kw_only=True)
class WithNan(Points):
    def features(self) -> np.ndarray:
        return np.where(np.arange(30) == 7, np.nan, 1).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Unkeyed(Points):
    def features(self) -> np.ndarray:
        return np.random.default_rng().normal(size=30).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Global(Points):
    def features(self) -> np.ndarray:
        return np.random.normal(size=30).astype(np.float32)  # noqa: NPY002 (the fault)


@dataclass(frozen=True, kw_only=True)
class FromOne(Points):
    def labels(self) -> np.ndarray:
        return super().labels() + 1


@dataclass(frozen=True, kw_only=True)
class BelowZero(Points):
    def labels(self) -> np.ndarray:
        return super().labels() - 1


@dataclass(frozen=True, kw_only=True)
class Absent(Points):
    def labels(self) -> np.ndarray:
        return super().labels() // 2


@dataclass(frozen=True, kw_only=True)
class Whole(Points):
    def load(self) -> Dataset:
        return self.read()


DATA_FAULTS = [
    (WithNan(), "is_finite", "WithNan has 1 values in train that are NaN or infinite"),
    (Unkeyed(), "same_each_time", "data.name=Unkeyed: gives other data when it is read again; draw from generators"),
    (Global(), "same_each_time", "data.name=Global: draws from numpy's global generator, which has no key; draw from"),
    (FromOne(), "labels_in_range", "FromOne cannot be loaded: points: a train label is 3, but there are 3 classes"),
    (BelowZero(), "labels_in_range", "BelowZero cannot be loaded: labels must not be negative, but one is -1"),
    (Absent(), "splits_fit", "Absent has no training sample of class c"),
    (Whole(), "can_be_reduced", r"Whole has \(30, 30\) samples where \(15, 15\) were asked for"),
]


@pytest.mark.parametrize(("part", "check", "sentence"), DATA_FAULTS, ids=lambda value: str(value)[:20])
def test_a_fault_of_data_is_found(part: Source, check: str, sentence: str) -> None:
    """Kills: a check that passes whatever is loaded, or fails for another reason."""
    assert re.search(sentence, found_by(check, part)), found_by(check, part)


@parametrize_with_checks([Points(), *(SOURCES.build({"name": name}) for name in ("fashion_mnist_sample", "synthetic"))])
def test_data(part: Source, check: Any) -> None:
    """Kills: a check that fails whatever the data are."""
    check(part)


# --- partitions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Cut(Partition):
    """Equal runs of shuffled rows, of which the faulty ones differ by one thing each."""

    clients: int = 5

    def order(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return rng.permutation(rows)

    def draw(
        self, rng: np.random.Generator, labels: np.ndarray, num_classes: int, owners: np.ndarray | None
    ) -> Assignment:
        return Assignment(tuple(np.array_split(self.order(rng, len(labels)), self.clients)))


@dataclass(frozen=True, kw_only=True)
class Twice(Cut):
    def order(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.concatenate([[0], super().order(rng, rows)])


@dataclass(frozen=True, kw_only=True)
class Seedless(Cut):
    def order(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.arange(rows)


@dataclass(frozen=True, kw_only=True)
class Keyless(Cut):
    def order(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.random.default_rng().permutation(rows)


@dataclass(frozen=True, kw_only=True)
class Shared(Cut):
    def order(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        return np.random.permutation(rows)  # noqa: NPY002 (the fault)


@dataclass(frozen=True, kw_only=True)
class OneMore(Cut):
    def draw(self, rng: Any, labels: Any, num_classes: int, owners: Any) -> Assignment:
        return Assignment((*super().draw(rng, labels, num_classes, owners).clients, np.empty(0, np.int64)))


@dataclass(frozen=True, kw_only=True)
class TwoClasses(Cut):
    def draw(self, rng: Any, labels: Any, num_classes: int, owners: Any) -> Assignment:
        rng.choice(num_classes, 2, replace=False)
        return super().draw(rng, labels, num_classes, owners)


@dataclass(frozen=True, kw_only=True)
class Unchecked(Cut):
    def _check_feasible(self, labels: np.ndarray) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Untested(Cut):
    def share_tests(self, assignment: Assignment, dataset: Dataset) -> Assignment:
        return assignment


PARTITION_FAULTS = [
    (
        Twice(),
        "every_row_at_most_once",
        "partition.name=Twice: gave a row twice; give each row to one client",
    ),
    (Seedless(), "another_for_another_seed", "Seedless divides alike with seed=0 and seed=1; draw from rng"),
    (Keyless(), "same_for_a_seed", "partition.name=Keyless: gives other rows when it is drawn again; draw from rng"),
    (Shared(), "same_for_a_seed", "partition.name=Shared: draws from numpy's global generator, which has no key"),
    (
        OneMore(),
        "makes_the_clients_asked_for",
        "partition.clients=5: is not what OneMore gives, which is 6; give",
    ),
    (
        TwoClasses(),
        "takes_one_class",
        "TwoClasses fails on labels of one class: .* raised ValueError: .*; refuse it",
    ),
    (Unchecked(), "refuses_too_few", "Unchecked divides 4 samples among 5 clients; leave Partition._check_feasible"),
    (Untested(), "shares_out_test_rows", "Untested gives no client a test row"),
]


@pytest.mark.parametrize(("part", "check", "sentence"), PARTITION_FAULTS, ids=lambda value: str(value)[:20])
def test_a_fault_of_a_partition_is_found(part: Partition, check: str, sentence: str) -> None:
    """Kills: a check that passes whatever is divided, or fails for another reason."""
    assert re.search(sentence, found_by(check, part)), found_by(check, part)


# Not those that need owners, a table or a matrix, or that give a row to several clients.
SOUND = [name for name in PARTITIONS if name not in ("natural", "replacement", "owner_groups", "class_matrix", "table")]


@parametrize_with_checks([Cut(), *(PARTITIONS.build({"name": name}) for name in SOUND)])
def test_partitions(part: Partition, check: Any) -> None:
    """Kills: a check that fails whatever the partition is; one of ours that breaks a rule."""
    check(part)


@parametrize_with_checks(
    [PARTITIONS.build({"name": "natural"})],
    expected_failures={"another_for_another_seed": "the owners of the data are the clients, whatever the seed"},
)
def test_the_natural_partition(part: Partition, check: Any) -> None:
    """Kills: a natural partition that draws."""
    check(part)


@parametrize_with_checks(
    [PARTITIONS.build({"name": "replacement"})],
    expected_failures={
        "every_row_at_most_once": "it draws with replacement",
        "refuses_too_few": "a sample may be drawn for several clients",
    },
)
def test_the_partition_with_replacement(part: Partition, check: Any) -> None:
    """Kills: draws without replacement after all."""
    check(part)


# --- the door for pytest ------------------------------------------------------------------------------


def params(decorator: Any) -> list[Any]:
    """What a decorator parametrises a test by."""
    return list(decorator.mark.args[1])


def test_there_is_a_test_for_each_part_and_check() -> None:
    """Kills: a part or a check that is left out; names of tests that do not say which it is."""
    parts = [FedProx(mu=0.1), FedProx(mu=1.0), Cut()]
    made = params(parametrize_with_checks(parts))
    assert [(one.values[0], one.values[1]) for one in made] == [(p, c) for p in parts for c in checks_of(p)]
    assert made[0].id == "FedProx-is_a_frozen_value" and made[-1].id == "Cut-shares_out_test_rows"
    chosen = params(parametrize_with_checks([Cut()], checks=["same_for_a_seed"]))
    assert [one.values[1].name for one in chosen] == ["same_for_a_seed"]
    full = params(parametrize_with_checks([FedProx()], full=True))
    assert len(full) == len(CHECKS["algorithm"]) > len(params(parametrize_with_checks([FedProx()])))


def test_an_expected_failure_is_strict_and_says_why() -> None:
    """Kills: an expected failure that may pass in silence; a misspelt name that expects nothing."""
    (marked,) = [one for one in params(parametrize_with_checks([Cut()], {"takes_one_class": "why"})) if one.marks]
    assert marked.id == "Cut-takes_one_class"
    assert marked.marks[0].name == "xfail" and marked.marks[0].kwargs == {"strict": True, "reason": "why"}
    sentence = "check=nonsense: is not the name of a check; known: every_row_at_most"
    with pytest.raises(ConfigError, match=sentence):
        parametrize_with_checks([Cut()], expected_failures={"nonsense": "why"})
    with pytest.raises(ConfigError, match=sentence):
        parametrize_with_checks([Cut()], checks=["nonsense"])


def test_a_check_without_a_meaning_skips_the_test() -> None:
    """Kills: a skipped check that counts as passed."""
    (check,) = [check for check in CHECKS["algorithm"] if check.name == "neutral_is_fedavg"]
    with pytest.raises(SkipTest, match="it declares no neutral value"):  # which pytest counts as skipped
        check(CHOICES["algorithm"].build({"name": "scaffold"}))


def test_the_public_door_has_them() -> None:
    """Kills: a name of fedskew.testing that is not there."""
    import fedskew.testing

    assert fedskew.testing.parametrize_with_checks is parametrize_with_checks
    assert all(hasattr(fedskew.testing, name) for name in fedskew.testing.__all__)
