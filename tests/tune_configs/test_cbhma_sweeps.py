"""CBHMA's sweeps: what is varied, what is shared by all methods of a seed, what each configuration stands for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.data import ClassSets
from engine.experiment import Experiment, Stage
from engine.record.run_folder import RunFolder
from engine.record.stage_hashes import stage_hash
from engine.record.store import StageStore
from engine.sweeps.definition import Sweep
from engine.sweeps.named import PROFILES, known, load
from engine.sweeps.planning import Planned, order, plan
from tests.support.tiny import dataset, drive_with_store
from tune_configs import EXPERIMENTS, SWEEPS, cbhma

COUNTS = {  # trials of the profiles laptop and paper
    "motivation": (45, 45),
    "cost": (36, 36),
    "headline": (240, 240),
    "weak_class": (120, 120),
    "per_class": (30, 30),
    "alpha": (105, 490),
    "samples": (105, 420),
    "architecture": (70, 350),
    "errata": (90, 250),
    "quality": (30, 60),
    "amalgam": (30, 30),
    "leakage": (24, 36),
}
CURVES = ("alpha", "samples", "architecture")
SHARED = {  # distinct teachers and distinct answers of one seed, on a laptop and in the paper's setting
    "motivation": ((3, 3), (3, 3)),
    "cost": ((2, 2), (2, 2)),
    "per_class": ((2, 2), (2, 2)),
    "alpha": ((1, 1), (2, 2)),
    "samples": ((1, 3), (2, 2 * 6)),
    "architecture": ((1, 1), (2, 2)),
    "errata": ((2, 2), (2, 2)),
    "quality": ((2, 2), (4, 4)),
    "amalgam": ((1, 1), (1, 1)),
    "headline": ((1, 2), (1, 2)),
    "weak_class": ((1, 3), (1, 3)),
    "leakage": ((1, 2), (1, 3)),
}
every = pytest.mark.parametrize("name", COUNTS)
ROWS = {"fashion_mnist": 6000, "cifar10": 5000}  # training images of each of ten classes


@cache
def sweep(name: str, profile: str) -> Sweep:
    return load(f"cbhma.{name}", profile, [], SWEEPS).sweep


@cache
def trials(name: str, profile: str) -> list[Planned]:
    """All of a sweep's first two seeds, every experiment of which is built: more seeds than two show no more."""
    found = sweep(name, profile)
    return plan(replace(found, seeds=found.seeds[:2]))


def stages(experiment: Experiment) -> dict[str, Stage]:
    return {stage.name: stage for stage in experiment.chain}


def of_profiles(name: str) -> Iterable[Planned]:
    return [trial for profile in PROFILES for trial in trials(name, profile)]


# --- what is varied ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_as_many_trials_as_meant() -> None:
    """Kills: an axis that is lost, or one that doubles a sweep of an hour; a sweep that is not offered, or not tested;
    a setting that is there twice under two names."""
    assert {name for name in known(SWEEPS) if name.startswith("cbhma.")} == {f"cbhma.{name}" for name in COUNTS}
    for name, counts in COUNTS.items():
        for profile, count in zip(("laptop", "paper"), counts, strict=True):
            found, seeds = trials(name, profile), sweep(name, profile).seeds
            assert len({trial.experiment.digest for trial in found}) == len(found), (name, profile)
            assert len(found) * len(seeds) == 2 * count and len({*seeds}) == len(seeds), (name, profile)


@pytest.mark.slow
@every
def test_three_stages_of_which_the_last_alone_is_a_method(name: str) -> None:
    """Kills: one architecture for all teachers; teachers that are measured on the way, which costs as much again as
    their training; clients that are left out."""
    for trial in of_profiles(name):
        experiment = trial.experiment
        assert {stage.name: stage.rounds for stage in experiment.chain} == {"teachers": 1, "answers": 0, "distil": 0}
        assert experiment.value_of("stages.teachers.algorithm.name") == "local"
        assert experiment.value_of("stages.answers.algorithm.name") == "answers"
        models = [model["name"] for model in experiment.to_mapping()["client_models"]]
        assert models == ["mlp", "lenet", "cnn3", "resnet8", "resnet20"]
        assert (experiment.evaluation.every, experiment.participation.fraction) == (0, None)


@pytest.mark.slow
@every
def test_the_data_have_enough_rows(name: str) -> None:
    """Kills: more rows for devices than the data have beside the public set; a public set that is smaller than n_c."""
    partitions = {(trial.experiment.partition, trial.experiment.value_of("data.name")) for trial in of_profiles(name)}
    for partition, data in partitions:
        labels = np.repeat(np.arange(10), ROWS[data])
        assert len(partition.assign(labels, 10).public) == 10 * partition.public_per_class
    for trial in of_profiles(name):
        experiment = trial.experiment
        n_c = experiment.value_of("stages.answers.algorithm.per_class")
        assert n_c <= experiment.value_of("partition.public_per_class")
        assert n_c == trial.setting.get("n_c", 100)


def test_rows_differ_in_the_method_alone() -> None:
    """Kills: methods that are compared by other teachers, students, public sets or epochs."""
    for name in ("per_class", *CURVES, "errata", "quality", "leakage"):
        for profile in PROFILES:
            axes = [axis["name"] for axis in sweep(name, profile).axes() if axis["name"] != cbhma.METHOD]
            cells: dict[str, list[Any]] = {}
            for trial in trials(name, profile):
                values = trial.experiment.to_mapping()
                distil = values["stages"][2].pop("algorithm")
                shared = (distil["alpha"], distil["epochs"], distil["batch_size"])
                cells.setdefault(str([trial.setting[axis] for axis in axes] + [trial.seed]), []).append(
                    (values, shared)
                )
            for found in cells.values():
                assert len(found) == len(sweep(name, profile).space[cbhma.METHOD]["grid_search"])
                assert all(one == found[0] for one in found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cost", "per_class", *CURVES])
def test_what_the_configurations_stand_for(name: str) -> None:
    """Kills: C2's student in C1; the epochs of one configuration for both; the same class sets in both."""
    expected = {
        ("paper", "C1"): ("fashion_mnist", "resnet20", 20),
        ("paper", "C2"): ("cifar10", "resnet56", 50),
        ("laptop", "C1"): ("fashion_mnist", "resnet8", 20),
        ("laptop", "C2"): ("fashion_mnist", "lenet", 50),
    }
    for profile in PROFILES:
        sets = {}
        for trial in trials(name, profile):
            experiment, config = trial.experiment, trial.setting.get("name", "C1")
            data, student, epochs = expected[profile, config]
            assert experiment.value_of("data.name") == data
            assert experiment.value_of("model.name") == trial.setting.get("model.name", student)
            assert experiment.value_of("stages.distil.algorithm.epochs") == epochs
            partition = experiment.partition
            assert isinstance(partition, ClassSets) and partition.sets == "random"
            sets[config] = partition.class_sets(10)
        assert len(set(sets.values())) == len(sets) == (1 if profile == "laptop" and name in CURVES else 2)


def test_settings_of_figure_2() -> None:
    """Kills: random sets where the paper has its three; another method than UHC."""
    for trial in [*of_profiles("motivation"), *of_profiles("errata")]:
        partition = trial.experiment.partition
        assert isinstance(partition, ClassSets) and partition.sets == trial.setting["partition.sets"]
    assert {trial.experiment.value_of("stages.distil.algorithm.name") for trial in of_profiles("motivation")} == {"uhc"}
    assert {trial.experiment.value_of("partition.sets") for trial in of_profiles("quality")} == {"BS"}


def test_the_headline_has_a_weak_class_with_room() -> None:
    """Kills: another class than shirts that one device knows, or than coats that all do; students of one method that
    have more steps than another's; a row of labels that sees answers, or of answers that sees labels."""
    for profile in PROFILES:
        for trial in trials("headline", profile):
            partition = trial.experiment.partition
            assert isinstance(partition, ClassSets)
            held = [sum(number in one for one in partition.class_sets(10)) for number in range(10)]
            assert held == [3, 3, 3, 3, 5, 3, 1, 3, 3, 3]
            distil = trial.experiment.to_mapping()["stages"][2]["algorithm"]
            steps = distil["epochs"] * -(-10 * trial.setting["n_c"] // distil["batch_size"])
            assert (steps, distil["lr"]) == (400, 0.05)
    alphas = [method["alpha"] for method in sweep("headline", "laptop").space[cbhma.METHOD]["grid_search"]]
    assert alphas[:2] == [0.0, 1.0] and set(alphas[2:]) == {0.5, 0.9}
    assert {claim.source for claim in sweep("headline", "laptop").claims} == {cbhma.CURVES.format("alpha"), cbhma.OURS}
    assert {claim.metric for claim in sweep("headline", "laptop").claims} == {cbhma.ACCURACY}


def test_readings_are_what_they_say() -> None:
    """Kills: a combination that is lost, or that is another one under a second name: without weights of samples their
    power is no matter."""
    fields, default = ("row_weight", "g_power", "r_mode", "fill"), (True, 1.0, "minshift", "row_mean")
    modes, fills = ("minshift", "raw", "softmax"), ("row_mean", "off_diagonal")
    weights = ((True, 1.0), (True, 2.0), (True, 4.0), (False, 1.0))
    expected = {
        "paper": {(*weight, mode, fill) for weight in weights for mode in modes for fill in fills},
        "laptop": {
            default,
            *((*weight, *default[2:]) for weight in weights),
            *((*default[:2], mode, "row_mean") for mode in modes),
            (*default[:3], "off_diagonal"),
            (False, 1.0, "raw", "row_mean"),
        },
    }
    for profile in PROFILES:
        methods = [trial.experiment.to_mapping()["stages"][2]["algorithm"] for trial in trials("errata", profile)]
        found = {tuple(method[field] for field in fields) for method in methods if method["name"] == "cbhma"}
        assert found == expected[profile]
        assert {method["name"] for method in methods} == {"cbhma", "uhc"}


def test_the_source_does_not_rank_cfl() -> None:
    """Kills: a lead over CFL that nobody claims; a curve without one of the two forms or three baselines; a statement
    about training without answers, which is the same for all three baselines."""
    for name in CURVES:
        for profile in PROFILES:
            found = sweep(name, profile)
            leads = [claim for claim in found.claims if claim.source.startswith("CBHMA") and claim.kind == "greater"]
            pairs = {(claim.better[cbhma.METHOD]["name"], claim.worse[cbhma.METHOD]["name"]) for claim in leads}
            assert pairs == {(mine, other) for mine in ("cbhma", "cbhma_e") for other in ("skd1", "skd2", "uhc")}
            assert all(claim.every and claim.margin == 0 for claim in leads)
            assert all(0.0 not in claim.where["alpha"] for claim in leads if name == "alpha")
            assert "cfl_amalgam" in {choice["name"] for choice in found.space[cbhma.METHOD]["grid_search"]}


def test_the_weights_that_nobody_sends() -> None:
    """Kills: a number in the text that is of other teachers."""
    with torch.device("meta"):
        teachers = [model.build((1, 28, 28), 10) for model in cbhma.base("laptop").client_models]
    weights = sum(parameter.numel() for teacher in teachers for parameter in teacher.parameters())
    assert f"{weights / 1e6:.2f} million" in (cbhma.leakage.__doc__ or "")


def test_the_named_experiment_is_the_laptops() -> None:
    """Kills: a demonstration of another setting than the one that sweeps measure."""
    small, found = EXPERIMENTS["cbhma"](), cbhma.base("laptop")
    for section in ("model", "client_models", "local", "evaluation", "participation"):
        assert getattr(small, section) == getattr(found, section)
    assert [stage.algorithm for stage in small.chain] == [stage.algorithm for stage in found.chain]
    assert small.value_of("stages.distil.algorithm.name") == "cbhma"
    assert small.value_of("partition.sets") == "IS-1"


# --- what is shared ---------------------------------------------------------------------------------------


def distinct(planned: Iterable[Planned], stage: str) -> dict[int, int]:
    """By seed, how many different results of a stage there are."""
    found: dict[int, set[str]] = {}
    for trial in planned:
        result = stage_hash(trial.experiment, stages(trial.experiment)[stage], {}, "")
        found.setdefault(trial.seed, set()).add(result)
    return {seed: len(hashes) for seed, hashes in found.items()}


@pytest.mark.slow
@every
def test_teachers_are_trained_once_and_answer_once(name: str) -> None:
    """Kills: a student, a method or an n_c in the teachers' hash; a student or a method in that of their answers;
    seeds that share teachers."""
    for profile, (teachers, answers) in zip(("laptop", "paper"), SHARED[name], strict=True):
        found, seeds = trials(name, profile), sweep(name, profile).seeds[:2]
        assert distinct(found, "teachers") == dict.fromkeys(seeds, teachers)
        assert distinct(found, "answers") == dict.fromkeys(seeds, answers)
        assert sum(distinct(found, "distil").values()) == len(found)
        _, needs = order(found)
        computed = sum(trial.trial not in needs for trial in found)  # one round of teachers; the others wait for it
        assert computed == teachers * len(seeds)
    few = found[:10]
    apart = [trial.experiment.replace({"stages.teachers.local.lr": 0.1 + n}) for n, trial in enumerate(few)]
    separate = [Planned(t.trial, t.setting, t.seed, e) for t, e in zip(few, apart, strict=True)]
    assert sum(distinct(separate, "teachers").values()) == len(few)  # the count can fail


TINY = {
    "model": {"name": "mlp", "hidden": [6]},
    "client_models": [{"name": "logistic"}, {"name": "mlp", "hidden": [5]}],
    "partition": {
        "name": "class_sets",
        "clients": 3,
        "sets": [[0, 1], [1, 2, 3], [0, 2, 3]],
        "per_class": 5,
        "public_per_class": 6,
    },
    "stages.teachers.local.epochs": 1,
    "stages.distil.algorithm.epochs": 1,
    "stages.distil.algorithm.batch_size": 8,
    "execution.actors": 0,
    "execution.device": "cpu",
}


@pytest.mark.slow
def test_teachers_and_answers_are_taken_over_in_real_runs(tmp_path: Path) -> None:
    """All methods of two seeds with two public sets. Kills: teachers that are trained or asked again, of which as many
    are trained as there are (architecture, class set, seed); answers on another public set; a student that is another
    method's."""
    sizes = {20: 3, 200: 6}
    chosen = [trial for trial in trials("samples", "laptop") if trial.seed in (0, 1) and trial.setting["n_c"] in sizes]
    assert len(chosen) == 28
    store, data, weights = StageStore(tmp_path / "store"), dataset(200), set()
    computed, trained, teachers = {"teachers": 0, "answers": 0}, 0, set()
    for trial in order(chosen)[0]:
        experiment = trial.experiment.replace({**TINY, "n_c": sizes[trial.setting["n_c"]]})
        parts = experiment.partition.assign(data.train.labels, 4)
        summary = drive_with_store(tmp_path / trial.trial, experiment, store, data=data, parts=parts)
        rounds = RunFolder(tmp_path / trial.trial).frame("rounds")
        for row in rounds.to_dict("records"):
            if row["stage"] in computed:
                computed[row["stage"]] += not row["reused"]
        clients, held = RunFolder(tmp_path / trial.trial).frame("clients"), parts.class_counts(data.train.labels, 4) > 0
        trained += int((~clients["reused"].astype(bool)).sum())
        for client in clients["client"]:
            model = experiment.client_models[client % len(experiment.client_models)]
            teachers.add((model, tuple(np.flatnonzero(held[client]).tolist()), trial.seed))
        weights.add(summary["weights_sha256"])
        sent = RunFolder(tmp_path / trial.trial).frame("exchanges").query("stage == 'answers'")["floats_up"].sum()
        assert sent == 4 * experiment.value_of("stages.answers.algorithm.per_class") * 8 + 3 * 4
    assert computed == {"teachers": 2, "answers": 4}
    assert trained == len(teachers)
    assert len(weights) == 28
