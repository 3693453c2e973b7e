"""The sweeps of the personalised methods."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from engine.results.claims import Claim
from engine.results.settings import matches
from engine.sweeps.definition import Sweep
from engine.sweeps.named import PROFILES, known, load
from engine.sweeps.planning import Planned, plan
from tests.support.loops import each
from tune_configs import SWEEPS

COUNTS = {  # trials of the profiles laptop and paper
    "pflego.table": (27, 216),
    "pflego.headline": (30, 30),
    "pflego.server_rate": (30, 30),
    "pflego.emnist": (27, 27),
    "pflego.curves": (18, 54),
    "pflego.tau": (36, 36),
    "pflego.participation": (30, 30),
    "pflego.time": (36, 72),
    "pflego.diverse": (9, 9),
    "pflego.omniglot": (9, 9),
    "pflego.errata": (24, 24),
    "pflego.cifar10_reduced": (10, 6),
    "fedper.heterogeneity": (36, 36),
    "fedper.heads": (36, 36),
    "fedrep.table1": (30, 90),
    "fedrep.table1_cifar100": (30, 60),
    "fedbabu.grid_1_epoch": (72, 72),
    "fedbabu.grid_4_epochs": (72, 72),
    "fedbabu.grid_10_epochs": (72, 72),
    "fedrecon.options": (36, 48),
}


@cache
def sweep(name: str, profile: str) -> Sweep:
    return load(name, profile, [], SWEEPS).sweep


@cache
def trials(name: str, profile: str) -> list[Planned]:
    return plan(sweep(name, profile))


def experiments(name: str, profile: str) -> list[dict[str, Any]]:
    return [trial.experiment.to_mapping() for trial in trials(name, profile)]


def test_as_many_trials_as_meant() -> None:
    """Kills: an axis that is lost, or one that doubles a sweep of hours; a sweep that is not offered."""
    modules = {name.partition(".")[0] for name in COUNTS}
    assert {name for name in known(SWEEPS) if name.partition(".")[0] in modules} == set(COUNTS)
    found = {name: tuple(len(trials(name, profile)) for profile in ("laptop", "paper")) for name in COUNTS}
    assert found == COUNTS


def sides(claim: Claim) -> list[dict[str, Any]]:
    """What each side of a claim asks for: what one alone names picks cells for both."""
    either = {**claim.better, **claim.worse}
    return [{**either, **side} for side in (claim.better, claim.worse)]


@each("name", known(SWEEPS))
def test_both_sides_of_a_claim_have_trials(name: str) -> None:
    """Kills: a claim on a value that its own sweep never runs, which the report would find undecided for ever."""
    for profile in PROFILES:
        found = sweep(name, profile)
        settings = found.settings()
        for claim in found.claims:
            for side in sides(claim):
                here = [
                    setting
                    for setting in settings
                    if all(matches(setting[axis], [value]) for axis, value in side.items())
                    and all(matches(setting[axis], wanted) for axis, wanted in claim.where.items())
                ]
                assert here, (claim.text, side)


@each("name", known(SWEEPS))
def test_published_figures_stand_in_cells(name: str) -> None:
    """Kills: a paper's figure that no cell of its table shows, for want of an axis or by a misspelt method."""
    for profile in PROFILES:
        found = sweep(name, profile)
        settings = found.settings() if any(table.published for table in found.tables) else ()
        for table in found.tables:
            for one in table.published:
                assert set(table.axes) <= set(one.setting)
                assert any(
                    all(matches(value, setting[axis]) for axis, value in one.setting.items()) for setting in settings
                ), (table.title, one.setting)


def test_the_posters_figures() -> None:
    """Kills: figures of another method, degree or data set; percent for fractions; figures that are compared with
    another data set's."""
    table, *others = sweep("pflego.table", "paper").tables
    assert table.metric == "participants_accuracy"
    assert not any(other.published for other in others)
    figures = {
        (one.setting["data.name"], one.setting["algorithm"]["name"], one.setting["partition.degree"]): one.value
        for one in table.published
    }
    assert len(figures) == len(table.published) == 2 * 3 * 3
    assert figures["cifar10", "pflego", "medium"] == pytest.approx(0.7483)
    assert figures["cifar10", "fedper", "none"] == pytest.approx(0.3788)
    assert figures["mnist", "fedavg_local", "none"] == pytest.approx(0.9312)
    assert figures["mnist", "pflego", "high"] == pytest.approx(0.9843)
    assert all(one.same_setting and "± " in one.note for one in table.published)
    laptop = sweep("pflego.table", "laptop").tables[0].published
    assert len(laptop) == 9
    assert not any(one.same_setting for one in laptop)


def test_one_base_for_all_methods() -> None:
    """Kills: methods that are compared after other rounds, on other data or on other networks."""
    for name in (
        "pflego.headline",
        "pflego.emnist",
        "pflego.table",
        "pflego.curves",
        "pflego.diverse",
        "pflego.omniglot",
        "pflego.cifar10_reduced",
    ):
        for profile in PROFILES:
            rest: dict[str, list[Any]] = {}
            for found in experiments(name, profile):
                algorithm = found.pop("algorithm")
                momentum = found["local"].pop("momentum")
                assert momentum == (0.9 if (algorithm["name"], name) == ("fedbabu", "pflego.table") else 0.0)
                steps = algorithm.get("tau", found["local"]["steps"])
                assert steps == found["local"]["steps"]
                assert found["local"]["batch_size"] == "full"
                rest.setdefault(algorithm["name"], []).append(found)
            assert {"pflego", "fedper"} <= set(rest)
            assert all(one == rest["pflego"] for one in rest.values())


def test_heads_start_as_in_the_published_code() -> None:
    """Kills: heads of another start beside the poster's figures; a method whose head the code draws that is left out;
    the code's slow start on a laptop; an Adam of FedRecon's with another rate than PFLEGO's."""
    own = {"pflego", "fedper", "fedrecon", "fedrep"}
    for name in ("table", "emnist", "headline", "curves", "diverse", "omniglot", "cifar10_reduced"):
        for profile, start in (("paper", "uniform01"), ("laptop", "common")):
            for found in experiments(f"pflego.{name}", profile):
                algorithm = found["algorithm"]
                assert (algorithm["name"] in own) == (algorithm.get("head_init") == start)
                searched = name == "headline" or (name, profile) == ("cifar10_reduced", "laptop")
                if algorithm["name"] in ("pflego", "fedrecon") and name != "omniglot" and not searched:
                    assert algorithm["server_lr"] == 0.001


def test_each_side_of_the_headline_is_searched_for() -> None:
    """Kills: a method whose rate is a guess of who wrote the sweep; a head whose rate is fixed where others' is not; a
    figure that FedAvg has not, to choose by; models as they are received of methods that train them before."""
    found = sweep("pflego.headline", "laptop")
    names = [method["name"] for method in found.space["algorithm"]["grid_search"]]
    assert [side.where["algorithm.name"] for side in found.tuned] == names
    keys = {side.where["algorithm.name"]: list(side.space) for side in found.tuned}
    heads = {"pflego": "algorithm.head_lr", "fedrecon": "algorithm.recon_lr"}
    assert all(
        key == (["algorithm.server_lr", heads[name]] if name in heads else ["local.lr"]) for name, key in keys.items()
    )
    assert found.metric == "participants_accuracy"
    received = {
        claim.worse["algorithm"]["name"] for claim in found.claims if claim.metric == "personal_last10_accuracy"
    }
    assert received == {"fedper", "fedrep"}


def test_who_is_measured_is_there_in_the_last_ten_rounds() -> None:
    """Kills: a mean over the last ten rounds of which one was measured, with the ten clients of Omniglot."""
    for name in ("pflego.omniglot", "pflego.headline", "pflego.table"):
        for profile in PROFILES:
            for trial in trials(name, profile):
                evaluated = 10 // (trial.experiment.evaluation.personal_every or 1)
                assert evaluated * (trial.experiment.participation.count or 0) >= 40


def test_networks_go_with_data() -> None:
    """Kills: the network of grey images on CIFAR-10."""
    pairs = {(found["data"]["name"], found["model"]["name"]) for found in experiments("pflego.table", "paper")}
    assert pairs == {("mnist", "pflego_mlp"), ("fashion_mnist", "pflego_mlp"), ("cifar10", "pflego_cifar")}
    for name in COUNTS:
        if name.startswith("pflego."):
            assert not any(found["data"]["normalise"] for found in experiments(name, "laptop")), name


def test_reduced_cifar10_is_what_it_says() -> None:
    """Kills: another reduction than the one that figures are reported of."""
    for found in experiments("pflego.cifar10_reduced", "laptop"):
        data, partition = found["data"], found["partition"]
        assert (data["size"], data["train_samples"], data["test_samples"]) == (16, 5000, 2000)
        assert data["test_part"] in range(100, 105)  # rows of each seed's own
        assert (partition["clients"], partition["degree"], found["participation"]["count"]) == (20, "medium", 4)
        assert (found["rounds"], found["local"]["steps"], found["model"]["name"]) == (100, 10, "pflego_cifar")
    sides = sweep("pflego.cifar10_reduced", "laptop").tuned
    assert [len(side.candidates()) for side in sides] == [8, 8]  # none of them twice
    assert max(one["local.lr"] for one in sides[1].candidates()) == 0.3


def test_steps_are_told_to_each_method_in_its_own_way() -> None:
    """Kills: times of PFLEGO with its default of 50 whatever the axis says; evaluations that are timed as well."""
    for profile in PROFILES:
        for found in experiments("pflego.time", profile):
            algorithm, steps = found["algorithm"], found["local"]["steps"]
            assert algorithm["name"] == "fedper" or algorithm["tau"] == steps
            assert (found["evaluation"]["every"], found["evaluation"]["personal_every"]) == (0, 0)
        assert {found["local"]["steps"] for found in experiments("pflego.time", profile)} == {1, 5, 10, 20, 50, 100}


def test_the_servers_rate_goes_with_its_optimizer() -> None:
    """Kills: Adam with SGD's rate, beside which the errata would look harmless."""
    rates = {
        (found["algorithm"]["server_optimizer"], found["algorithm"]["server_lr"])
        for found in experiments("pflego.errata", "laptop")
    }
    assert rates == {("adam", 0.001), ("sgd", 0.1)}


@pytest.mark.parametrize(("name", "epochs"), [("1_epoch", 1), ("4_epochs", 4), ("10_epochs", 10)])
def test_as_many_epochs_whatever_the_rounds(name: str, epochs: int) -> None:
    """Kills: ways that differ in work; a rate that falls at other rounds than after a half and three quarters; a plain
    mean over test rows for the unweighted one."""
    for profile, total, rate in (("paper", 320, 0.1), ("laptop", 40, 0.01)):
        found = sweep(f"fedbabu.grid_{name}", profile)
        rounds = total // epochs
        for trial in trials(f"fedbabu.grid_{name}", profile):
            experiment = trial.experiment
            assert (experiment.rounds, experiment.local.epochs) == (rounds, epochs)
            stage = experiment.chain[0]
            rates = [stage.at(round).local.lr for round in range(1, rounds + 1)]
            assert rates[: rounds // 2] == [rate] * (rounds // 2)
            assert rates[rounds // 2 : 3 * rounds // 4] == [rate / 10] * (3 * rounds // 4 - rounds // 2)
            assert rates[3 * rounds // 4 :] == [rate / 100] * (rounds - 3 * rounds // 4)
            algorithm = experiment.to_mapping()["algorithm"]
            assert experiment.local.momentum == (0.5 if algorithm["name"] == "fedrep" else 0.9)
            if algorithm["name"] == "fedrep":
                assert (algorithm["head_epochs"], algorithm["body_epochs"]) == (epochs, 1)
        assert {claim.metric for claim in found.claims} == {"fine_tuned_client_accuracy"}


def test_epochs_of_fedreps_scripts() -> None:
    """Kills: one epoch of the body where the script of a setting has five; FedAvg's five with 1000 users for all."""
    for name, settings in (
        ("fedrep.table1", {(100, 2): (1, 1), (100, 5): (5, 1), (1000, 2): (5, 5)}),
        ("fedrep.table1_cifar100", {(100, 5): (5, 1), (100, 20): (5, 1)}),
    ):
        found: dict[tuple[int, int], set[int]] = {}
        for one in experiments(name, "paper"):
            users = one["partition"]["clients"], one["partition"]["classes"]
            epochs = settings[users][1]
            assert one["local"]["epochs"] == epochs
            if one["algorithm"]["name"] == "fedrep":
                assert one["algorithm"]["head_epochs"] == 10
                found.setdefault(users, set()).add(one["algorithm"]["body_epochs"])
        assert found == {users: {body} for users, (body, _) in settings.items()}


def test_what_a_figure_needs_is_evaluated() -> None:
    """Kills: a table of fine-tuned or personal accuracies in a sweep that never measures them, of any method."""
    for name in COUNTS:
        for profile in PROFILES:
            found = sweep(name, profile)
            figures = {found.metric, *(one.metric for one in (*found.tables, *found.claims))}
            for trial in trials(name, profile):
                evaluation = trial.experiment.evaluation
                if any(figure.startswith(("personal_", "participants_", "fine_tuned_")) for figure in figures):
                    assert evaluation.personal_every
                if any(figure.startswith("fine_tuned_") for figure in figures):
                    assert evaluation.fine_tuning is not None
                if any(figure.startswith("participants_") for figure in figures):
                    assert trial.experiment.rounds % (evaluation.personal_every or 1) == 0
