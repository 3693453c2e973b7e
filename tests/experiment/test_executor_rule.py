"""What ``execution.executor=auto`` stands for, and where it is resolved: before anything is hashed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.experiment import Execution, Experiment
from engine.experiment.executor_policy import default_executor
from engine.models import MODELS
from engine.record.run_folder import RunFolder
from engine.run.run import run
from engine.sweeps.folder import SweepFolder, TrialRecord
from tests.support.loops import each
from tests.support.small_sweeps import Alone

DENSE = [name for name in MODELS if MODELS.build({"name": name}).linear_layers_only]
SMALL: dict[str, Any] = {
    "rounds": 1,
    "data": {"name": "fashion_mnist_sample", "train_samples": 120, "test_samples": 40},
    "partition": {"name": "iid", "clients": 4},
    "execution": {"actors": 0, "device": "cpu"},
}


@each("name", list(MODELS))
@each("device", ["cpu", "cuda"])
def test_the_rule(name: str, device: str) -> None:
    """Kills: a rule that looks at anything but models, batches and the kind of device."""
    model = MODELS.build({"name": name})
    wanted = "graph" if device == "cuda" else "block" if name in DENSE else "loop"
    assert default_executor([model], [32], device) == wanted
    assert default_executor([model, model], [32, 8], device) == wanted
    assert default_executor([model], [32, "full"], device) == "loop"


def test_networks_of_linear_layers_are_stacked() -> None:
    """Kills: a rule that always says the same."""
    assert {"logistic", "mlp"} <= set(DENSE)
    assert not {"cnn", "lenet", "resnet20", "mobilenetv2"} & set(DENSE)


def test_clients_of_different_models_go_alone() -> None:
    """Kills: a stack of weights of two lengths."""
    mlp, wider = (MODELS.build({"name": "mlp", "hidden": [units]}) for units in (8, 9))
    assert default_executor([mlp, wider], [32], "cpu") == default_executor([mlp, wider], [32], "cuda") == "loop"


def test_on_a_gpu_small_networks_have_lanes() -> None:
    """Kills: a default by the executor that is the slowest there; lanes whose memory a large network has not; a block
    or an executor of the user's that is overruled; lanes without a block to fill them."""

    def resolved(model: str, **execution: Any) -> Execution:
        spec = MODELS.build({"name": model})
        return Execution(**{"device": "cuda", **execution}).resolve([spec], [32])

    for model in ("mlp", "cnn", "resnet20"):
        found = resolved(model)
        assert (found.executor, found.lanes, found.block) == ("graph", 8, 8)
    for model in ("resnet18", "resnet50"):
        found = resolved(model)
        assert (found.executor, found.lanes, found.block) == ("graph", 1, "auto")
    assert resolved("cnn", block=3).lanes == resolved("cnn", actors=2, gpus_per_actor=0.5).lanes == 1
    assert resolved("cnn", executor="graph").lanes == 1


AUTO: list[tuple[dict[str, Any], str]] = [
    ({"model.name": "mlp"}, "block"),
    ({"model.name": "cnn"}, "loop"),
    ({"model.name": "mlp", "local.batch_size": "full"}, "loop"),
    ({"model.name": "mlp", "execution.executor": "loop"}, "loop"),
    ({"model.name": "cnn", "execution.executor": "block"}, "block"),
]


@pytest.mark.parametrize(("changes", "wanted"), AUTO)
def test_auto_is_resolved_before_it_is_hashed(changes: dict[str, Any], wanted: str) -> None:
    """Kills: a choice of the user's that is overruled; two digests of one result, one digest of two."""
    experiment = Experiment(**SMALL).replace(changes).resolve()
    assert experiment.execution.executor == wanted
    assert experiment.resolve() == experiment
    told = experiment.replace({"execution.executor": wanted})
    assert told.digest == experiment.digest
    other = experiment.replace({"execution.executor": "loop" if wanted == "block" else "block"})
    assert other.digest != experiment.digest


def test_a_stage_with_full_batches_counts() -> None:
    """Kills: a rule that reads the experiment's batch size alone, which no stage may have."""
    stages = [{"name": "a", "rounds": 1}, {"name": "b", "rounds": 1, "needs": ["a"], "local": {"batch_size": "full"}}]
    assert Experiment(**SMALL, stages=stages, model={"name": "mlp"}).resolve().execution.executor == "loop"
    assert Experiment(**SMALL, stages=stages[:1], model={"name": "mlp"}).resolve().execution.executor == "block"


@pytest.mark.slow
@pytest.mark.parametrize(("model", "wanted"), [("logistic", "block"), ("cnn3", "loop")])
def test_the_folder_says_what_was_used(tmp_path: Path, model: str, wanted: str) -> None:
    """Kills: ``auto`` in the file that a run is continued from, or in a trial's, which would then be another result."""
    experiment = Experiment(**SMALL, model={"name": model})
    assert experiment.execution.executor == "auto"
    summary = run(experiment, tmp_path / "run")
    assert RunFolder(tmp_path / "run").experiment().execution.executor == wanted
    SweepFolder(tmp_path / "sweep").write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path / "sweep", experiment)
    trial.step()
    written = RunFolder(tmp_path / "sweep/trials/00000")
    assert written.experiment() == RunFolder(tmp_path / "run").experiment().replace({"execution.workers": 1})
    assert written.frame("rounds")["weights_sha256"].iloc[-1] == summary["weights_sha256"]
