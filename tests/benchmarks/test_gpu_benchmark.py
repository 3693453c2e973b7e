"""The measuring program of the GPU, on the processor and in small."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from rich.console import Console

from algorithms.cbfl import Cbfl
from algorithms.fedavg import FedAvg
from benchmarks import gpu
from benchmarks.gpu import Setting, executors, fastest, isolated, judged, measure, missing, thousand, went_on
from engine.experiment import Execution

TINY = [
    "model.name=logistic",
    "partition.clients=20",
    "data.train_samples=200",
    "local.epochs=1",
    "local.augment=none",
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpu.write_cifar10(tmp_path_factory.mktemp("gpu") / "cifar10", images=40)


def test_made_up_images_are_cifar10s(data: Path) -> None:
    """Kills: another shape or another number of classes, images that are all alike, classes in order."""
    made = Setting("a", "loop", 0).experiment(data, "cpu").data.load()
    assert made.train.images.shape == (200, 3, 32, 32) and made.test.images.shape == (40, 3, 32, 32)
    assert np.bincount(made.train.labels).tolist() == [20] * 10
    assert made.train.images.std() > 50
    assert (np.diff(made.train.labels) < 0).any()


def test_settings_are_the_papers() -> None:
    """Kills: another cohort or local work than that of CBFL's tables; cards that are shared by more than fit."""
    one, other = (Setting(part, "loop", 4).experiment(Path("there"), "cuda").to_mapping() for part in "ab")
    assert (one["partition"]["name"], other["partition"]["name"], other["partition"]["alpha"]) == (
        "iid",
        "dirichlet",
        0.1,
    )
    for values in (one, other):
        assert (values["data"]["name"], values["model"]["name"]) == ("cifar10", "resnet20")
        assert (values["partition"]["clients"], values["participation"]["count"]) == (100, 10)
        assert (values["local"]["epochs"], values["local"]["batch_size"]) == (5, 50)
        assert values["evaluation"]["every"] == 0
        assert (values["execution"]["gpus_per_actor"], values["execution"]["device"]) == (0.25, "cuda")
    alone = Setting("a", "loop", 0).experiment(Path("there"), "cuda").to_mapping()["execution"]
    assert (alone["actors"], alone["gpus_per_actor"]) == (0, 0.0)


def test_cbfls_rounds_are_measured() -> None:
    """Kills: a cell of another method or with a long warm-up; a typical round without the generator's training; blocks
    that leave clients of a worker's share to another pass."""
    settings = [Setting("c", "block", actors).experiment(Path("there"), "cpu") for actors in (0, 2, 8)]
    assert [stage.algorithm for stage in settings[0].chain] == [FedAvg(), Cbfl()]
    assert [stage.rounds for stage in settings[0].chain] == [1, 999]
    assert [one.execution.block for one in settings] == [10, 5, 1]
    assert gpu.typical([1.0, 1.0, 4.0, 2.0, 2.0, 5.0, 1.0, 1.0, 4.0], 3) == 2.0
    assert gpu.typical([1.0, 5.0, 2.0], 1) == 2.0


def test_every_executor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an executor that is left out or made up; actors where there is no Ray; lanes that no block fills, or
    that are taken for one."""
    assert set(executors()) == set(get_args(Execution.model_fields["executor"].annotation)) - {"auto"}
    wanted = gpu.settings("ab", ["loop", "block"], [0, 2])
    assert [setting.key for setting in wanted] == [
        f"{part}, {executor}, actors={actors}" for actors in (0, 2) for part in "ab" for executor in ("loop", "block")
    ]
    assert all(Setting.of(setting.key) == setting for setting in wanted)
    lanes = gpu.settings("a", ["graph", "block_graph"], [0, 2])
    assert [(one.executor, one.actors, one.lanes) for one in lanes if one.lanes > 1] == [
        ("graph", actors, count) for actors, counts in ((0, (2, 4, 8)), (2, (2, 4))) for count in counts
    ]
    assert len(lanes) == 2 * 2 + 5 and len({one.key for one in lanes}) == len(lanes)
    assert all(Setting.of(one.key) == one for one in lanes)
    assert lanes[1].experiment(Path("there"), "cuda").execution.lanes == 2
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    assert {setting.actors for setting in gpu.settings("ab", ["loop"], [0, 2])} == {0}


def test_what_is_measured_is_not_measured_again() -> None:
    """Kills: a setting that is done twice, a failed one that is never tried again, the slowest for the fastest; one
    with overrides taken for the same without."""
    wanted = gpu.settings("ab", ["loop", "block"], [0])
    results: dict[str, Any] = {
        "settings": {
            "a, loop, actors=0": {"seconds_per_round": 2.0},
            "a, block, actors=0": {"seconds_per_round": 1.0},
            "b, loop, actors=0": {"failed": "OutOfMemoryError"},
        }
    }
    assert [setting.key for setting in missing(wanted, results)] == ["b, loop, actors=0", "b, block, actors=0"]
    assert fastest(results, "a") == Setting("a", "block", 0)
    overrides = ("local.epochs=1", "model.hidden=[5, 5]")
    (other,) = gpu.settings("a", ["block"], [0], overrides)
    assert missing([other], results) == [other] and Setting.of(other.key) == other
    results["settings"][other.key] = {"seconds_per_round": 0.5}
    assert fastest(results, "a") == Setting("a", "block", 0)
    assert fastest(results, "a", overrides) == other
    with pytest.raises(SystemExit, match="part b: nothing is measured yet"):
        fastest(results, "b")


@pytest.mark.slow
def test_rounds_are_timed_after_the_warm_up(data: Path) -> None:
    """Kills: fewer rounds than asked for, warm-up among them, a median that is none; timings that are lost where the
    floor is refused."""
    found = measure(Setting("b", "loop", 0, tuple(TINY)).experiment(data, "cpu"), seconds=0.0)
    assert len(found["rounds"]) == gpu.LEAST
    assert found["seconds_per_round"] == sorted(found["rounds"])[1] > 0
    other = ["execution.autocast=bfloat16"]
    without = measure(Setting("b", "loop", 0, tuple(TINY)).experiment(data, "cpu", other), seconds=0.0)
    assert without["seconds_per_round"] > 0 and without["no_floor"].startswith("execution.autocast=bfloat16: is ")
    gpu.show({"card": "none", "settings": {"b, loop, actors=0": without}}, Console(quiet=True))


def test_a_thousand_rounds_go_on(data: Path, tmp_path: Path) -> None:
    """Kills: a chunk that begins anew, seconds of earlier chunks that are lost, a limit held before the end."""
    setting = Setting("a", "loop", 0)
    experiment = setting.experiment(data, "cpu", [*TINY, "rounds=7", "evaluation.every=100"])
    first = thousand(experiment, tmp_path / "run", seconds=0.0)
    assert (first["rounds"], first["finished"]) == ([0, 1], False)
    begun = went_on(None, setting, first)
    assert judged({"thousand": begun}) == []
    second = thousand(experiment, tmp_path / "run", seconds=60.0)
    assert (second["rounds"], second["finished"]) == ([1, 7], True)
    done = went_on(begun, setting, second)
    assert done["seconds"] == first["seconds"] + second["seconds"]
    assert [met for _, met in judged({"thousand": done})] == [True]
    assert [met for _, met in judged({"thousand": {**done, "seconds": 601.0}})] == [False]
    assert went_on(done, setting, thousand(experiment, tmp_path / "run", seconds=0.0)) == done
    assert went_on(done, setting, first)["chunks"] == [first]  # another folder, from its beginning


@pytest.mark.slow
def test_a_setting_that_fails_ends_nothing() -> None:
    """Kills: an error of one setting that ends the program, or a limit on its time that nobody keeps."""
    assert isolated(60.0, measure, "no experiment", 0.0)["failed"].startswith("AttributeError: 'str' object has no")
    assert isolated(0.0, measure, "no experiment", 0.0) == {"failed": "took longer than 0 s"}
