"""Results belong to the code and the machine that made them: nothing goes on, or is shown, as another's in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.base.errors import ResourceError
from engine.experiment import Experiment
from engine.record.checkpoints import Checkpoint, Checkpoints
from engine.record.run_folder import RunFolder
from engine.run.log import Messages
from engine.run.run import Run, run
from fedskew.lab.replay import find, local_models
from tests.support.tiny import experiment, open_driver

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50},
    "partition": {"name": "iid", "clients": 4},
    "checkpoint": {"every": 1},
}
WORDS = [
    *("rounds=1", "data.train_samples=200", "data.test_samples=50", "execution.actors=0", "execution.workers=1"),
    *("--out", "run"),
]


def stopped(folder: Path, config: Experiment) -> None:
    """A run of which one round is done."""
    driver = open_driver(folder, config)
    driver.advance(until=1)
    driver.close()


def changed(monkeypatch: pytest.MonkeyPatch, **others: str) -> None:
    """From now on this process computes with other things: ``code="..."``, ``canary="..."``."""
    if "code" in others:
        monkeypatch.setattr("engine.record.numerics.code_of", lambda *_: others["code"])
    if "canary" in others:
        monkeypatch.setattr("engine.record.numerics.canary", lambda _: others["canary"])


def test_kernels_that_have_changed_are_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """Kills: a resume under MKL_CBWR or another oneDNN that goes on with other bits."""
    config = experiment(**SMALL)
    stopped(tmp_path, config)
    changed(monkeypatch, canary="feedfeedfeedfeed")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    told = (
        r"^execution.mixed_hardware=False: the run began with canary \w{16} and would go on with feedfeedfeedfeed, and "
        r"with settings none and would go on with MKL_CBWR=COMPATIBLE, so bits may differ from here on; go on where it "
        r"began, or set execution.mixed_hardware=true, which marks the result$"
    )
    with pytest.raises(ResourceError, match=told):
        open_driver(tmp_path, config)
    driver = open_driver(tmp_path, config.replace({"execution.mixed_hardware": True}))
    driver.advance(until=2)
    versions = driver.close()["versions"]
    assert versions["settings"] == "MKL_CBWR=COMPATIBLE | none" and " | feedfeed" in f" | {versions['canary']}"
    assert len(messages.drain()) == 2


def test_code_that_has_changed_is_refused_or_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: rounds of two versions of a method in one curve."""
    config = experiment(**SMALL)
    stopped(tmp_path, config)
    changed(monkeypatch, code="other")
    with pytest.raises(ResourceError, match=r"began with code \w{16} and would go on with other, .*--overwrite, or in"):
        open_driver(tmp_path, config)
    driver = open_driver(tmp_path, config.replace({"execution.mixed_hardware": True}))
    driver.advance(until=2)
    assert " | " in driver.close()["versions"]["code"]


def test_a_checkpoint_of_an_earlier_version_says_so(tmp_path: Path) -> None:
    """Kills: a run of before these names were written down, taken for one of this machine and this code."""
    config = experiment(**SMALL)
    stopped(tmp_path, config)
    checkpoints = Checkpoints(tmp_path / "checkpoints", config.digest, 3, ("train",))
    for path in checkpoints.paths():
        found = checkpoints.load(path)
        old = {name: found.numerics[name] for name in ("torch", "numpy", "device", "hardware")}
        checkpoints.save(Checkpoint(found.position, found.server, found.states, old))
    with pytest.raises(ResourceError, match=r"with canary unknown and would go on with \w{16}, and with code unknown"):
        open_driver(tmp_path, config)
    driver = open_driver(tmp_path, config.replace({"execution.mixed_hardware": True}))
    assert driver.lineage.numerics["canary"].endswith(" | unknown")
    driver.close()


def test_a_second_run_after_the_code_has_changed(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the accuracy of the method as it was, shown as that of the method as it is."""
    assert call("run", *WORDS)[0] == 0
    assert "is finished already" in call("run", *WORDS)[2]
    changed(monkeypatch, code="other")
    told = "holds the result of other code"
    for words in (("run", *WORDS), ("resume", "run")):
        code, _, err = call(*words)
        sentence = " ".join(err.split())
        assert code == 2 and told in sentence and "--overwrite, or name another folder with --out" in sentence
    with pytest.raises(ResourceError, match="began with code"):  # from Python
        run(RunFolder(tmp_path / "run").experiment(), tmp_path / "run")
    assert call("report", "run")[0] == 0
    assert call("run", *WORDS, "--overwrite")[0] == 0
    assert RunFolder(tmp_path / "run").summary()["versions"]["code"] == "other"
    assert "is finished already" in call("run", *WORDS)[2]


def test_a_round_is_computed_again_by_other_code_that_agrees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a diagnosis that a word in the engine forbids, where the weights' hashes tell whether it is right."""
    run(experiment(**SMALL), tmp_path / "run")
    changed(monkeypatch, code="other", canary="feedfeedfeedfeed")
    with local_models(find(tmp_path / "run", 2)) as models:
        assert models.began == 1 and len(models.clients) == 4


def test_workers_report_the_code_and_the_canary(tmp_path: Path) -> None:
    """Kills: a canary of the driver alone, or one that a checkpoint does not keep."""
    opened = Run.open(experiment(**SMALL), tmp_path / "run")
    opened.advance()
    opened.close()
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", opened.experiment.digest, 3, ("train",))
    [newest, *_] = checkpoints.paths()
    kept = checkpoints.load(newest).numerics
    assert {"processor", "settings", "canary", "code"} <= set(kept)
    versions = opened.folder.summary()["versions"]
    assert {name: versions[name] for name in kept} == kept
