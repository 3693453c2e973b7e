"""FedSER's sweeps: how many trials, the paper's figures, and what each column of a table is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from engine.sweeps.definition import Sweep
from engine.sweeps.named import PROFILES, load
from engine.sweeps.planning import Planned, plan
from tune_configs import SWEEPS, fedser

COUNTS = {  # trials of the profiles laptop and paper
    "table1": (42, 84),
    "table1_imagenet": (21, 42),
    "table1_literal": (42, 84),
    "table2": (42, 42),
    "table3": (63, 63),
    "table4": (63, 63),
    "figure2": (1, 3),
    "figure3": (30, 30),
    "protocol": (48, 48),
    "headline": (15, 9),
    "options": (66, 66),
}
every = pytest.mark.parametrize("name", COUNTS)


@cache
def sweep(name: str, profile: str) -> Sweep:
    return load(f"fedser.{name}", profile, [], SWEEPS).sweep


@cache
def trials(name: str, profile: str) -> list[Planned]:
    """Of the first seed; those of all are built, and so checked, in test_planning.py."""
    found = sweep(name, profile)
    return plan(replace(found, seeds=found.seeds[:1]))


def experiments(name: str, profile: str) -> list[dict[str, Any]]:
    return [trial.experiment.to_mapping() for trial in trials(name, profile)]


@pytest.mark.slow
def test_as_many_trials_as_meant() -> None:
    """Kills: an axis that is lost or that doubles a sweep; a sweep that is not offered; an option named twice."""
    assert set(SWEEPS["fedser"]) == set(COUNTS)
    for name, counts in COUNTS.items():
        for profile, count in zip(PROFILES, counts, strict=True):
            digests = {trial.experiment.digest for trial in trials(name, profile)}
            assert len(digests) * len(sweep(name, profile).seeds) == count, (name, profile)


@every
def test_one_base_for_all_methods(name: str) -> None:
    """Kills: methods that are compared after other rounds, on other data or on another network; no projection."""
    for profile in PROFILES:
        rest: dict[str, list[str]] = {}
        for found in experiments(name, profile):
            method = str(found.pop("algorithm"))
            assert found["model"].get("projection", True) or name == "figure2"
            assert found["local"]["nesterov"] is False or name == "protocol"
            rest.setdefault(method, []).append(str({key: value for key, value in found.items() if key != "name"}))
        assert len({str(sorted(cells)) for cells in rest.values()}) == 1


def test_the_columns_of_table_1() -> None:
    """Kills: rounds, clients or a share of another column; a network on the data of another."""
    columns = {
        (
            found["name"],
            found["data"]["name"],
            found["model"]["name"],
            found["partition"]["clients"],
            found["participation"]["fraction"],
            found["rounds"],
        )
        for found in (*experiments("table1", "paper"), *experiments("table1_imagenet", "paper"))
    }
    assert columns == {
        ("cifar10-16", "cifar10", "resnet56", 16, 1.0, 25),
        ("cifar10-64", "cifar10", "resnet56", 64, 0.25, 100),
        ("cifar100-16", "cifar100", "resnet56", 16, 1.0, 25),
        ("cifar100-32", "cifar100", "resnet56", 32, 1.0, 25),
        ("imagenet200-16", "imagenet200", "resnet18", 16, 1.0, 25),
        ("imagenet200-32", "imagenet200", "resnet18", 32, 0.125, 50),
    }
    for found in (*experiments("table1", "paper"), *experiments("table1_imagenet", "paper")):
        local = found["local"]
        assert (local["epochs"], local["batch_size"], local["lr"]) == (20, 64, 0.01)
        assert (local["momentum"], local["weight_decay"], local["optimizer"]) == (0.9, 1e-5, "sgd")
        assert (found["partition"]["name"], found["partition"]["alpha"]) == ("dirichlet_capped", 0.5)
        assert (found["partition"]["min_samples"], found["partition"]["on_small"]) == (10, "redraw")
        assert found["model"]["conv_init"] == "kaiming_normal"
        scales = found["algorithm"].get("scales")
        if found["model"]["name"] == "resnet18":
            assert scales is None or [round(224 * scale) for scale in scales] == [224, 192, 160, 128]
            assert found["model"]["stem"] == "large"  # images of 224 pixels


def test_the_literal_columns() -> None:
    """Kills: profile A's networks under profile B's name; figures that are compared with another network's."""
    found = {
        (values["name"], values["model"]["name"], values["partition"]["clients"], values["rounds"])
        for values in experiments("table1_literal", "paper")
    }
    assert found == {
        ("cifar10-16", "moon_cnn", 16, 25),
        ("cifar10-64", "moon_cnn", 64, 100),
        ("cifar100-16", "resnet50", 16, 25),
        ("cifar100-32", "resnet50", 32, 25),
    }
    dealt = [values["partition"] for values in experiments("table1_literal", "paper")]
    assert {(one["name"], one["alpha"]) for one in dealt} == {("dirichlet", 0.5)}
    figures = sweep("table1_literal", "paper").tables[0].published
    assert len(figures) == 4 * 7
    assert not any(one.same_setting for one in figures)


def figures_of(name: str, profile: str = "paper") -> dict[tuple[str, str], float]:
    """(method, column) -> the figure that is compared with ours."""
    first, *others = sweep(name, profile).tables
    assert first.metric == "best_accuracy"
    assert not any(one.published for one in others)
    return {
        (one.setting["algorithm"]["name"], str(one.setting[first.columns[0]])): one.value
        for one in first.published
        if one.same_setting
    }


@pytest.mark.parametrize(
    ("name", "columns"), [("table1", 4), ("table1_imagenet", 2), ("table2", 2), ("table3", 3), ("table4", 3)]
)
def test_published_figures(name: str, columns: int) -> None:
    """Kills: figures of another method or column; Mixup compared with what may be FedMix's; percent for fractions."""
    found = figures_of(name)
    assert {method for method, _ in found} == {"fedavg", "fedprox", "moon", "fedmix", "feddc", "fedser"}
    assert len(found) == 6 * columns
    assert all(0.4 < value < 0.9 for value in found.values())
    mixup = [
        one for one in sweep(name, "paper").tables[0].published if one.setting["algorithm"]["name"] == "mixup_local"
    ]
    assert len(mixup) == columns
    assert all("may be" in one.note and not one.same_setting for one in mixup)
    assert not figures_of(name, "laptop")


def test_some_figures_by_hand() -> None:
    """Kills: a table's rows in another order."""
    one, two, three, four = (figures_of(f"table{number}") for number in (1, 2, 3, 4))
    assert one["fedser", "cifar10-64"] == pytest.approx(0.838)
    assert figures_of("table1_imagenet")["feddc", "imagenet200-32"] == pytest.approx(0.466)
    assert one["fedmix", "cifar10-16"] == pytest.approx(0.803)
    assert two["moon", str({"name": "iid", "clients": 16})] == pytest.approx(0.563)
    assert three["fedprox", "0.1"] == pytest.approx(0.454)
    assert three["fedmix", "2.5"] == pytest.approx(0.567)
    assert four["feddc", "30"] == pytest.approx(0.556)
    assert four["fedser", "10"] == pytest.approx(0.535)


@every
def test_claims_ask_for_more_than_the_papers_noise(name: str) -> None:
    """Kills: a lead that is claimed within the half point by which the paper's own tables differ."""
    for profile in PROFILES:
        claims = sweep(name, profile).claims
        leads = [claim for claim in claims if claim.text.endswith("by more than half a point.")]
        assert all(claim.margin == 0.005 and claim.better["algorithm"]["name"] == "fedser" for claim in leads)
        beaten = {claim.worse["algorithm"]["name"] for claim in leads}
        if name.startswith("table"):
            assert beaten == {"fedavg", "fedprox", "moon", "fedmix", "mixup_local", "feddc"}
        assert len({claim.text for claim in claims}) == len(claims)


def test_leads_hold_of_the_papers_own_figures() -> None:
    """Kills: a claim that the source contradicts. Each lead is of every column."""
    for name in ("table1", "table1_imagenet", "table2", "table3", "table4"):
        found = figures_of(name)
        for (method, column), value in found.items():
            if method != "fedser":
                assert found["fedser", column] - value > fedser.NOISE, (name, method, column)


def test_leads_grow_in_the_papers_own_figures() -> None:
    """Kills: a lead that is claimed to grow where the paper's shrinks, or the other way; a method left out of it."""
    for name, others in (("table2", 6), ("table3", 4)):
        found, claims = figures_of(name), [claim for claim in sweep(name, "paper").claims if claim.than]
        assert len({claim.text for claim in claims}) == others
        for claim in claims:
            [(at, than)] = [(str(claim.where[axis]), str(claim.than[axis])) for axis in claim.than]
            method = claim.worse["algorithm"]["name"].replace("mixup_local", "fedmix")
            leads = [found["fedser", place] - found[method, place] for place in (at, than)]
            assert leads[0] - leads[1] > claim.margin, claim.text


def test_figure_2_is_a_partition_and_hardly_a_run() -> None:
    """Kills: hours of training for a picture of the partition; images of 224 pixels for a linear model."""
    for profile in PROFILES:
        for found in experiments("figure2", profile):
            assert (found["rounds"], found["local"]["steps"], found["model"]["name"]) == (1, 1, "logistic")
            assert (found["partition"]["clients"], found["partition"]["alpha"]) == (10, 0.5)
            assert found["data"].get("size", 32) <= 32


def test_the_headline_is_long_enough() -> None:
    """Kills: a claim on the beginning of a training; a network without BatchNorm, or one for another size of image;
    crops of half of one; a rate chosen by its luckiest round; a method that is given less than another; arms that are
    told apart by more than n."""
    found = sweep("headline", "laptop")
    assert [len(side.candidates()) for side in found.tuned] == [4] * len(found.settings())
    assert found.metric == "last10_accuracy"
    for setting, side in zip(found.settings(), found.tuned, strict=True):
        assert side.picks(found.base.replace(setting), setting)
        for candidate in side.candidates():
            trial = found.experiment({**setting, **candidate}, 0)
            assert (trial.rounds, trial.local.epochs, trial.local.augment) == (20, 10, "flip")
            assert (trial.local.lr, trial.schedule) == (candidate["local.lr"], ())
            assert (trial.value_of("model.name"), trial.value_of("data.size")) == ("resnet8", 16)
    names = [setting["algorithm"]["name"] for setting in found.settings()]
    assert names == ["fedavg", "fedser", "fedser"]
    arms = [trial.experiment.algorithm for trial in trials("headline", "laptop")[-2:]]
    assert [(arm.subnets, arm.mu, arm.transform) for arm in arms] == [(2, 1.75, "resize"), (1, 1.75, "resize")]


def test_the_papers_headline_is_the_papers() -> None:
    """Kills: a rate, a network or arms of the laptop's in the paper's setting."""
    found = sweep("headline", "paper")
    assert not found.tuned
    assert found.base == fedser.base("paper")
    assert [setting["algorithm"]["name"] for setting in found.settings()][-1] == "fedser"
    said = [claim.text for claim in found.claims]
    assert said == [claim.text for claim in sweep("headline", "laptop").claims][: len(said)]
    assert len(said) == 5


def test_the_protocol_has_both_readings() -> None:
    """Kills: one reading of the partition, the decay or the momentum."""
    found = {
        (one["partition"]["name"], one["local"]["weight_decay"], one["local"]["nesterov"])
        for one in experiments("protocol", "paper")
    }
    assert found == {
        (name, decay, nesterov)
        for name in ("dirichlet", "dirichlet_capped")
        for decay in (1e-5, 1e-4)
        for nesterov in (False, True)
    }


def test_options_differ_from_the_defaults_by_what_they_say() -> None:
    """Kills: an option that is the default under another name; one that the issue wants and nobody runs."""
    found = [values["algorithm"] for values in experiments("options", "laptop")]
    fields = {key: {str(one[key]) for one in found if one["name"] == "fedser"} for key in found[-1]}
    assert fields["subnets"] == {"1", "2", "3", "4"}
    assert fields["normalise_by_n"] == {"True", "False"}
    assert fields["width_sampling"] == {"uniform", "sandwich"}
    assert fields["width_divisor"] == {"1", "8"}
    assert fields["subnet_bn"] == {"batch", "running"}
    assert fields["min_width"] == {"0.25", "0.5", "0.8", "0.9"}
    assert fields["mu"] == {"0.5", "1.0", "1.75", "2.5"}
    assert fields["transform"] == {"resize", "resize_back", "rotate", "crop", "none"}
    assert len({str(sorted(one.items())) for one in found}) == len(found)
