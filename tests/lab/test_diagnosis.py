"""A round computed again, and what is measured of its local models."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from engine.algorithm import ModelState, seeds
from engine.base.errors import ConfigError, RunError, RunFolderError
from engine.base.owned import owned
from engine.client.jobs import JobRunner
from engine.client.steps.client_round import ClientProgress
from engine.client.steps.flat_net import FlatNet
from engine.client.trainer import Trainer
from engine.data.samples.batches import Rows
from engine.experiment import Experiment
from engine.models import build_model
from engine.record.checkpoints import Checkpoints
from engine.record.run_folder import RunFolder
from engine.record.shapes import RUN
from engine.results.claims import Claim
from engine.results.loading import load
from engine.run.run import run
from engine.sweeps.definition import Sweep
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import NamedSweep
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.diagnosis import diagnosis, embedding
from fedskew.lab.diagnosis import figures as drift_figures
from fedskew.lab.diagnosis import folder as diagnosis_folder
from fedskew.lab.diagnosis.diagnosis import DiagnosisOptions, balanced_rows, correlation, diagnose, measure
from fedskew.lab.diagnosis.sweep import diagnose_sweep
from fedskew.lab.replay import LocalModels, find, local_models, until
from tests.support.folders import content
from tests.support.linear_cka import linear_cka

pytestmark = pytest.mark.slow

FEW = DiagnosisOptions(probe=40)
BASE: dict[str, Any] = {
    "name": "small",
    "rounds": 6,
    "data": {"name": "fashion_mnist_sample", "train_samples": 300, "test_samples": 100},
    "partition": {"name": "dirichlet", "clients": 6, "alpha": 0.3},
    "model": {"name": "mlp", "hidden": [12]},
    "local": {"epochs": 2, "batch_size": 16, "lr": 0.1},
    "participation": {"count": 4},
    "checkpoint": {"every": 2, "keep": 2},
    "execution": {"actors": 0, "device": "cpu"},
}
BRANCHES = [
    {"name": "warm-up", "rounds": 2},
    {"name": "one", "rounds": 2, "needs": ["warm-up"], "algorithm": {"name": "scaffold"}},
    {"name": "two", "rounds": 3, "needs": ["warm-up"], "local": {"lr": 0.05}},
]
VARIANTS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "client state": {"algorithm": {"name": "scaffold"}},
    "client state on disk": {
        "algorithm": {"name": "scaffold"},
        "execution": {"actors": 0, "device": "cpu", "state_store": "disk", "state_cache_mb": 0},
    },
    "buffers": {
        "model": {"name": "cnn", "norm": "batch"},
        "data": {"name": "fashion_mnist_sample", "train_samples": 60, "test_samples": 20},
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
    },
    "float64": {"execution": {"actors": 0, "device": "cpu", "precision": "float64"}},
    "schedule": {"schedule": [{"round": 3, "set": {"local.lr": 0.02}}, {"round": 6, "set": {"local.lr": 0.01}}]},
}


def config(**changes: Any) -> Experiment:
    return Experiment.from_mapping({**BASE, **changes})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], tuple[np.ndarray, np.ndarray]]:
    """What every training in this process ended with, by round and client: seen from outside the engine's own path."""
    seen: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(Trainer, name)

        def leave(self: Trainer, progress: ClientProgress, end: ModelState) -> Any:
            weights = end.weights.numpy().copy()
            result = original(self, progress, end)
            if result is not None:
                seen[progress.task.context.round, result.number] = weights, result.buffers.numpy().copy()
            return result

        return leave

    for name in ("_result", "_plain_result"):
        monkeypatch.setattr(Trainer, name, watched(name))
    return seen


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run(config(), folder)
    return folder


# --- the same round -------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_local_models_are_those_of_the_run(tmp_path: Path, trained: Any, variant: str) -> None:
    """Kills: models of another round or after aggregation, states or buffers that were not taken up, a schedule
    that is forgotten; anything written into the run."""
    changes = VARIANTS[variant]
    summary = run(config(**changes), tmp_path)
    originals, before = dict(trained), content(tmp_path)
    folder = RunFolder(tmp_path)
    for number in (1, 4, 6):
        trained.clear()
        round = find(tmp_path, number)
        with local_models(round) as models:
            assert models.clients == tuple(sorted(c for r, c in originals if r == number))
            assert models.weights_sha256 == folder.frame("rounds").set_index("round")["weights_sha256"][number]
            for client in models.clients:
                weights, buffers = originals[number, client]
                np.testing.assert_array_equal(models[client]["weights"], weights)
                np.testing.assert_array_equal(models[client]["buffers"], buffers)
            assert models.began == max(saved for saved in (0, 4) if saved < number)
            assert models.compared == tuple(range(models.began + 1, number + 1))
        if number == 6:
            assert models.weights_sha256 == summary["weights_sha256"]
    assert content(tmp_path) == before
    assert not list(tmp_path.glob(".again-*"))


def test_nothing_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: clients' own models that are measured, or fine-tuned, in every round that is computed again."""
    evaluation = {"personal_every": 1, "local_every": 1, "fine_tune_steps": 1}
    run(config(algorithm={"name": "ditto"}, evaluation=evaluation), tmp_path)

    def scores(*args: Any) -> Any:
        pytest.fail("something is measured")

    monkeypatch.setattr(JobRunner, "_scores", scores)
    for number in (1, 6):
        with local_models(find(tmp_path, number)) as models:
            assert models.clients
    again = until(RunFolder(tmp_path).experiment(), "train", 6)
    assert again.evaluation.personal_every == 0 and again.evaluation.fine_tuning is None


def test_the_mean_of_the_local_models_is_the_next_global_one(finished: Path) -> None:
    """Kills: weights taken before training."""
    after = Checkpoints(finished / "checkpoints", RunFolder(finished).experiment().digest, 1, ("train",))
    with local_models(find(finished, 6)) as models:
        sizes = {client: len(models.assignment.clients[client]) for client in models.clients}
        mean = sum(models[c]["weights"].double().numpy() * n for c, n in sizes.items()) / sum(sizes.values())
    server = after.load(after.paths()[0]).server
    np.testing.assert_allclose(mean, server["weights"].numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("stage", "number"), [("warm-up", 2), ("one", 3), ("one", 4), ("two", 3), ("two", 5)])
def test_stages_that_branch(tmp_path: Path, trained: Any, stage: str, number: int) -> None:
    """Kills: a round of the other branch; states of the stage before that are lost."""
    run(config(stages=BRANCHES, checkpoint={"every": 1, "keep": 1}), tmp_path)
    trained.clear()
    round = find(tmp_path, number, stage)
    assert round.recorded[stage, number] != round.recorded.get(("two" if stage == "one" else "one", number))
    with local_models(round) as models:
        assert models.weights_sha256 == round.recorded[stage, number]
        assert len(models[models.clients[0]]["weights"])
    assert {r for r, _ in trained} <= set(range(1, number + 1))


def test_branches_do_not_overwrite_each_others_diagnosis(call: Any, tmp_path: Path) -> None:
    """Kills: one folder for a round's number, whichever stage the round is of."""
    run(config(stages=BRANCHES), tmp_path)
    for stage in ("one", "two"):
        assert call("diagnose", str(tmp_path), "--round", "3", "--stage", stage, "--probe", "40")[0] == 0
    summaries = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("diagnosis/*/summary.json")}
    assert {name: about["stage"] for name, about in summaries.items()} == {
        "round-000003-one": "one",
        "round-000003-two": "two",
    }


def test_the_stage_is_that_of_the_lineage(tmp_path: Path) -> None:
    """Kills: the first stage that has the round; a stage that is computed for nothing."""
    run(config(stages=BRANCHES), tmp_path)
    assert [(find(tmp_path, n).stage, find(tmp_path, n).number) for n in (1, 2, 3, None)] == [
        ("warm-up", 1),
        ("warm-up", 2),
        ("two", 3),
        ("two", 5),
    ]
    copy = until(find(tmp_path, 4).experiment, "two", 4)
    assert [(s.name, s.rounds) for s in copy.chain] == [("warm-up", 2), ("two", 3)]
    with pytest.raises(ConfigError, match=r"--stage=three: is no stage of this run"):
        find(tmp_path, 2, "three")
    with pytest.raises(ConfigError, match=r"--round=5: is not among the rounds 3 to 4"):
        find(tmp_path, 5, "one")


CALIBRATED = [
    {"name": "train", "rounds": 2},
    {"name": "calibrate", "rounds": 0, "needs": ["train"], "algorithm": {"name": "ccvr", "samples_per_class": 10}},
]


def test_a_calibrated_run_is_diagnosed_in_its_last_trained_round(call: Any, tmp_path: Path) -> None:
    """Kills: the row of the stage that trains nobody in the place of the training's, with a cohort of none."""
    run(config(stages=CALIBRATED), tmp_path)
    round = find(tmp_path)
    assert (round.stage, round.number, len(round.clients)) == ("train", 2, 4)
    assert find(tmp_path, 2, "train") == round
    diagnose(tmp_path, options=FEW)
    code, _, err = call("diagnose", str(tmp_path), "--stage", "calibrate")
    assert code == 2
    assert "--stage=calibrate: trains nobody; diagnose the stage it comes from: --stage train" in " ".join(err.split())


@pytest.mark.parametrize("number", [3, 4])
def test_a_round_after_a_calibration(tmp_path: Path, number: int) -> None:
    """Kills: a copy that stops at a stage without rounds where its checkpoint is not there."""
    more = {"name": "more", "rounds": 2, "needs": ["calibrate"], "algorithm": {"name": "fedavg"}}
    run(config(stages=[*CALIBRATED, more]), tmp_path)
    for path in (tmp_path / "checkpoints").glob("0[12]-*"):
        path.unlink()
    with local_models(find(tmp_path, number)) as models:
        assert models.weights_sha256 == find(tmp_path, number).recorded["more", number]
        assert len(models[models.clients[0]]["weights"])


def test_a_damaged_checkpoint_or_state_is_gone_around(tmp_path: Path) -> None:
    """Kills: a diagnosis that gives up, or repairs the run's files."""
    run(config(algorithm={"name": "scaffold"}), tmp_path)
    newest = sorted((tmp_path / "checkpoints").glob("*.safetensors"))[-2]
    newest.write_bytes(newest.read_bytes()[:-3])
    before = content(tmp_path)
    with local_models(find(tmp_path, 6)) as models:
        assert models.began == 0
    assert content(tmp_path) == before
    for state in (tmp_path / "checkpoints" / "states").iterdir():
        state.write_bytes(b"no state")
    before = content(tmp_path)
    with local_models(find(tmp_path, 6)) as models:
        assert models.began == 0
    assert content(tmp_path) == before


def test_other_weights_than_recorded_are_an_error(tmp_path: Path) -> None:
    """Kills: a hash that is computed and not compared."""
    run(config(), tmp_path)
    table = pq.read_table(tmp_path / "rounds.parquet")
    rows = table.to_pylist()
    rows[4]["weights_sha256"] = "0" * 64
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), tmp_path / "rounds.parquet")
    for number in (5, 6):
        with pytest.raises(RunError, match=r"round 5 computed again has other weights .*\(0{12}\)"):
            diagnose(tmp_path, number, FEW)
    assert diagnose(tmp_path, 4, FEW).facts["round"] == 4
    assert not list(tmp_path.glob(".again-*"))
    pq.write_table(table.drop_columns(["weights_sha256"]), tmp_path / "rounds.parquet")
    with pytest.raises(RunFolderError, match="an older version wrote it"):
        find(tmp_path)


@pytest.mark.long
def test_actors_give_the_same_models(finished: Path, ray_session: None) -> None:
    """Kills: models that come back in another order, or not at all, from actors."""
    with local_models(find(finished, 6)) as models:
        expected = {client: models[client]["weights"] for client in models.clients}
    with local_models(find(finished, 6, overrides=["execution.actors=2"])) as models:
        for client in models.clients:
            np.testing.assert_array_equal(models[client]["weights"], expected[client])


# --- what is measured -------------------------------------------------------------------------------------


def by_hand(models: LocalModels, client: int, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Activations of one local model, without the engine's loops."""
    shape, classes = models.dataset.shape, len(models.dataset.classes)
    model = build_model(models.experiment.model, shape, classes, seeds.generator(0, "any"))
    net = FlatNet(model, torch.device("cpu"), torch.float32)
    net.load(models[client]["weights"], models[client]["buffers"])
    net.train(False)
    data = Rows(models.dataset, models.dataset.test, torch.device("cpu"), torch.float32)
    x, _ = data.batch(torch.from_numpy(rows))
    with torch.no_grad():
        logits, taps = net.taps(x, net.tap_names)
        found = {name.removeprefix("body."): tap for name, tap in taps.items()}
        found |= {"features": net.features(x), "logits": logits}
    return {name: tensor.flatten(1).double().numpy() for name, tensor in found.items()}


@pytest.mark.parametrize("small_memory", [False, True])
def test_matrices_and_norms_are_those_of_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_memory: bool
) -> None:
    """Kills: activations in training mode or of other rows, layers mixed up, groups that change a figure,
    counts beside the norms of another client."""
    if small_memory:
        monkeypatch.setattr(diagnosis, "MEMORY", 1)
        monkeypatch.setattr(diagnosis, "CHUNK", 7)
    run(config(**{**VARIANTS["buffers"], "data": BASE["data"]}, rounds=1), tmp_path)
    with local_models(find(tmp_path, 1)) as models:
        found = measure(models, FEW)
        rows = balanced_rows(models.dataset.test.labels, 40)
        clients = models.clients
        acts = {client: by_hand(models, client, rows) for client in clients}
        assert list(found.matrices) == ["block1", "block2", "features", "logits"]
        for layer, matrices in found.matrices.items():
            for estimator in ("biased", "unbiased"):
                table = matrices.of(estimator)
                np.testing.assert_array_equal(table, table.T)
                np.testing.assert_allclose(np.diag(table), 1, atol=1e-12)
                hand = [[linear_cka(acts[a][layer], acts[b][layer], estimator) for b in clients] for a in clients]
                np.testing.assert_allclose(table, hand, atol=1e-6)
        counts = models.assignment.class_counts(models.dataset.train.labels, 10)
        for client, part in found.norms.groupby("client"):
            head = models[client]["weights"][-(512 * 10 + 10) : -10].reshape(10, 512).double().numpy()
            np.testing.assert_allclose(part["norm"], np.linalg.norm(head, axis=1), rtol=1e-12)
            np.testing.assert_array_equal(part["samples"], counts[client])
            own = found.heads.set_index("client")["correlation"][client]
            assert own == pytest.approx(np.corrcoef(part["samples"], part["norm"])[0, 1])
    layers, pairs = found.layers.set_index("layer"), found.pairs
    assert len(pairs) == 4 * 6 and (pairs["client_a"] < pairs["client_b"]).all()
    for layer, part in pairs.groupby("layer"):
        assert layers["cka"][layer] == pytest.approx(part["unbiased"].mean())
        assert layers["biased"][layer] == pytest.approx(part["biased"].mean())
        assert (layers["low"][layer], layers["high"][layer]) == (part["unbiased"].min(), part["unbiased"].max())
    figures = found.figures
    assert figures["cka_lowest_other"] == layers["cka"].drop("logits").min()
    assert figures["cka_logits_margin"] == pytest.approx(figures["cka_lowest_other"] - layers["cka"]["logits"])


@pytest.mark.parametrize("name", ["fedrep", "fedavg_local"])
def test_heads_that_know_their_own_classes(tmp_path: Path, name: str) -> None:
    """Kills: rows of absent classes, which are 0 by construction, beside their zero samples; the k-th row taken for
    class k where it is the client's k-th class; a picture that cannot be drawn with gaps."""
    run(config(algorithm={"name": name}, rounds=1), tmp_path)
    with local_models(find(tmp_path)) as models:
        found = measure(models, FEW)
        counts = models.assignment.class_counts(models.dataset.train.labels, 10)
        assert (counts[list(models.clients)] == 0).any()
        for client, part in found.norms.groupby("client"):
            own = np.flatnonzero(counts[client])
            head = models[client]["weights"][-(12 * 10 + 10) : -10].reshape(10, 12).double().numpy()
            wanted = np.full(10, np.nan)
            wanted[own] = np.linalg.norm(head[own if name == "fedrep" else range(len(own))], axis=1)
            np.testing.assert_allclose(part["norm"], wanted, rtol=1e-12)
            told = found.heads.set_index("client")["correlation"][client]
            by_hand = correlation(counts[client][own], wanted[own])
            np.testing.assert_allclose(told, by_hand)
    assert drift_figures.norms(found).png.startswith(b"\x89PNG")


def check_drift(found: diagnosis.Diagnosis) -> None:
    """What skewed clients must show after training: heads that differ, and not more alike than the first layer."""
    means = found.layers.set_index("layer")["cka"]
    assert means["logits"] < 0.999
    assert found.norms.groupby("class")["norm"].std().max() > 1e-4


class AfterAggregation(LocalModels):
    """A mutant: every client's model is the mean."""

    def __getitem__(self, client: int) -> Any:
        each = [LocalModels.__getitem__(self, one) for one in self.clients]
        return {part: torch.stack([model[part] for model in each]).mean(0) for part in each[0]}


class BeforeTraining(LocalModels):
    """A mutant: every client's model is the one that it received."""

    def __getitem__(self, client: int) -> Any:
        folder, digest = self.round.folder / "checkpoints", self.round.experiment.digest
        kept = Checkpoints(folder, digest, 1, ("train",))
        server = kept.load(kept.paths()[0]).server
        return {name: server[name] for name in ("weights", "buffers")}


@pytest.mark.parametrize("mutant", [AfterAggregation, BeforeTraining])
def test_models_at_the_wrong_moment_are_found_out(finished: Path, mutant: type[LocalModels]) -> None:
    """The two ways to take weights at the wrong time give CKA 1 at every layer, which the real ones must not."""
    with local_models(find(finished, 5)) as models:
        check_drift(measure(models, FEW))
        fields = {field.name: getattr(models, field.name) for field in dataclasses.fields(models)}
        wrong = measure(mutant(**fields), FEW)
    np.testing.assert_allclose(wrong.layers["cka"], 1, atol=1e-9)
    with pytest.raises(AssertionError):
        check_drift(wrong)


def test_every_weight_layer_of_moon_cnn(tmp_path: Path) -> None:
    """The paper's seven layers. Kills: a layer twice, as its own name and as the features."""
    run(config(model={"name": "moon_cnn"}, rounds=1, local={"batch_size": 50}), tmp_path)
    found = diagnose(tmp_path, 1, DiagnosisOptions(probe=20, layers="weights", clients=find(tmp_path, 1).clients[:2]))
    assert list(found.matrices) == ["block1.conv", "block2.conv", "fc1", "fc2", "project1", "features", "logits"]
    assert found.layers["width"].tolist() == [6 * 24 * 24, 16 * 8 * 8, 120, 84, 84, 256, 10]


def test_the_probe_is_balanced_and_the_same() -> None:
    """Kills: the first rows of each class of a sorted set; a probe that depends on the run."""
    labels = np.repeat(np.arange(4), [50, 40, 3, 60])
    rows = balanced_rows(labels, 40)
    assert np.bincount(labels[rows]).tolist() == [10, 10, 3, 10]
    assert (np.diff(rows) > 0).all() and rows[:10].max() > 20
    np.testing.assert_array_equal(rows, balanced_rows(labels, 40))
    with pytest.raises(ConfigError, match="--probe=3: must be at least 4, one image for each class"):
        balanced_rows(labels, 3)


def test_correlation() -> None:
    """Kills: a covariance; a number where one side does not vary."""
    a, b = np.random.default_rng(0).normal(size=(2, 9))
    assert correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert np.isnan(correlation(a, np.ones(9)))


# --- what is refused, written and shown -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--round", "7"], "--round=7: is not among the rounds 1 to 6 that the run has done"),
        (["--round", "0"], "--round=0: is not among the rounds 1 to 6"),
        (["--clients", "99,98"], "--clients=98, 99: took no part in round 6; its clients are"),
        (["--clients", "CLIENT"], "has one client, and two are the least to compare"),
        (["--clients", "a"], "--clients=a: is no list of numbers"),
        (["--probe", "9"], "--probe=9: must be at least 10"),
        (["--estimator", "best"], "--estimator=best: is none; known: biased, unbiased"),
        (["--layers", "all"], "--layers=all: is none"),
        (["--stage", "other"], "--stage=other: is no stage of this run; known: train"),
        (["local.lr=1"], "would change the run"),
    ],
)
def test_what_is_refused(call: Any, finished: Path, words: list[str], said: str) -> None:
    """One sentence and exit code 2. Kills: a traceback."""
    words = [str(find(finished).clients[0]) if word == "CLIENT" else word for word in words]
    code, _, err = call("diagnose", str(finished), *words)
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_no_run_and_one_client(call: Any, tmp_path: Path) -> None:
    """Kills: a matrix of one client; a folder that is made where there was none."""
    code, _, err = call("diagnose", str(tmp_path / "none"))
    assert code == 2 and "is not a run folder" in err and not (tmp_path / "none").exists()
    run(config(participation={"count": 1}, rounds=1), tmp_path / "lonely")
    code, _, err = call("diagnose", str(tmp_path / "lonely"))
    assert code == 2 and "--round=1: has one client, and two are the least" in " ".join(err.split())


def test_the_command_writes_everything_twice_the_same(call: Any, finished: Path) -> None:
    """Kills: a file that is promised and not written; bytes that depend on when."""
    before = content(finished)
    code, _, err = call("diagnose", str(finished), "--round", "5", "--probe", "40")
    assert code == 0, err
    assert "computed again round 5 (from the checkpoint after round 4)" in err
    assert "features" in err and "Cell(" not in err
    folder = diagnosis_folder.folder_of(find(finished, 5))
    tables = {f"{name}.{kind}" for name in ("layers", "pairs", "norms") for kind in ("csv", "parquet")}
    pictures = {f"{name}.png" for name in ("cka", "norms")}
    assert {path.name for path in folder.iterdir()} == tables | pictures | {"summary.json"}
    assert set(folder.iterdir()) <= set(owned(finished, RUN))  # and go with the run when it is overwritten
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert call("diagnose", str(finished), "--round", "5", "--probe", "40")[0] == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["round"] == 5 and summary["weights_sha256"] == find(finished, 5).recorded["train", 5]
    frame = pd.read_parquet(folder / "layers.parquet")
    assert summary["cka_logits"] == frame.set_index("layer")["cka"]["logits"]
    assert content(finished) == before


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two settings, two seeds, one trial that failed."""
    from ray import tune

    folder = SweepFolder(tmp_path_factory.mktemp("sweep") / "it")
    base = config(rounds=2, checkpoint={"every": 1}, partition={"name": "dirichlet", "clients": 5, "alpha": 1.0})
    claims = (Claim("lowest at the logits", "", {"alpha": 0.05}, metric="cka_logits_margin", kind="above"),)
    definition = Sweep(
        base=base.replace({"participation.count": 3}),
        space={"alpha": tune.grid_search([0.05, 100.0])},
        seeds=(0, 1),
        claims=claims,
    )
    folder.create(NamedSweep("mine.it", "laptop", (), "A sweep", definition), {})
    number = 0
    for setting in definition.settings():
        for seed in definition.seeds:
            trial = f"{number:05d}"
            folder.write(TrialRecord(trial, setting, seed, "finished", None, 2, 2, 2))
            run(definition.experiment(setting, seed), folder.run_folder(trial).path)
            number += 1
    folder.write(TrialRecord("00004", {"alpha": 0.05}, 7, "failed", "no reason", 0, 2, 0))
    return folder.path


def test_a_sweep_is_diagnosed_and_judged(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: figures of another trial; trials computed again for nothing; a claim that cannot be made of them."""
    columns = list(load(sweep).trials)
    assert "cka_logits" not in columns
    with pytest.raises(ConfigError, match="metric=cka_logits"):
        load(sweep, "cka_logits")
    frame = diagnose_sweep(sweep, options=FEW)
    assert frame["trial"].nunique() == 4 and len(frame) == 4 * 2
    results = load(sweep, "cka_logits")
    trials = results.trials.set_index("trial")
    logits = frame[frame["layer"] == "logits"].set_index("trial")["cka"]
    for trial, value in logits.items():
        assert trials["cka_logits"][trial] == value
        assert trials["cka_of_logits"][trial] == value
        assert trials["cka_logits_margin"][trial] == pytest.approx(trials["cka_lowest_other"][trial] - value)
    for layer in frame["layer"].unique():
        one = frame[frame["layer"] == layer].set_index("trial")["cka"]
        assert trials[f"cka_of_{layer}"].drop("00004").equals(one.rename(f"cka_of_{layer}"))
    assert np.isnan(trials["cka_logits"]["00004"]) and np.isnan(trials["cka_of_logits"]["00004"])
    [verdict] = judge(results)
    skewed = trials[(trials["alpha"] == 0.05) & (trials["status"] == "finished")]["cka_logits_margin"]
    assert verdict.effect == pytest.approx(skewed.mean())
    assert verdict.seeds == (0, 1)
    monkeypatch.setattr("fedskew.lab.diagnosis.sweep.diagnose", None)  # so that nothing can be computed again
    pd.testing.assert_frame_equal(diagnose_sweep(sweep, options=FEW), frame)


def test_a_sweep_of_calibrations_is_diagnosed(tmp_path: Path) -> None:
    """Kills: trials that are left out because their last stage trains nobody."""
    folder, settings = SweepFolder(tmp_path / "it"), {"alpha": 1.0}
    definition = Sweep(base=config(stages=CALIBRATED), space={"alpha": 1.0})
    folder.create(NamedSweep("mine.it", "laptop", (), "A sweep", definition), {})
    folder.write(TrialRecord("00000", settings, 0, "finished", None, 2, 2, 2))
    run(definition.experiment(settings, 0), folder.run_folder("00000").path)
    frame = diagnose_sweep(folder.path, options=FEW)
    assert set(zip(frame["stage"], frame["round"], strict=True)) == {("train", 2)}


def test_the_report_of_a_sweep_shows_it(sweep: Path) -> None:
    """Kills: a table that nobody draws."""
    from fedskew.lab.report import write

    diagnose_sweep(sweep, options=FEW)
    page = write(sweep).read_text()
    assert 'id="drift"' in page and (sweep / "report" / "drift.png").exists()


def test_a_claim_of_one_setting() -> None:
    """Kills: a side that is ignored without a word."""
    with pytest.raises(ConfigError, match=r"worse=.*: must be empty with kind=above"):
        Claim("t", "s", {"a": 1}, {"a": 2}, kind="above")


# --- embedding ----------------------------------------------------------------------------------------------


def test_the_embedding_shows_both_heads_on_the_same_features(call: Any, tmp_path: Path) -> None:
    """Kills: features of another body; decisions of one head for both; a picture of two different bodies."""
    stages = [{"name": "train", "rounds": 3}, {"name": "calibrated", "rounds": 1, "needs": ["train"]}]
    run(config(stages=stages), tmp_path)
    assert embedding.embed(tmp_path, probe=40).stages == ("calibrated",)  # which trained the body too
    kept = Checkpoints(tmp_path / "checkpoints", RunFolder(tmp_path).experiment().digest, 1, ("train", "calibrated"))
    before, after = (kept.load(path) for path in sorted(kept.paths())[-2:])
    head = 12 * 10 + 10  # as if the last stage had changed the head alone: its biases say class 3
    weights = before.server["weights"].clone()
    weights[-10 + 3] += 1e3
    kept.save(
        dataclasses.replace(after, server={**after.server, "weights": weights, "buffers": before.server["buffers"]})
    )
    found = embedding.embed(tmp_path, probe=40)
    frame = found.frame
    assert found.stages == ("train", "calibrated") and len(weights) > head
    assert (frame["calibrated"] == 3).all() and frame["train"].nunique() > 1
    assert np.bincount(frame["label"]).tolist() == [4] * 10
    drawn = embedding.draw(found)
    assert drawn.png.startswith(b"\x89PNG")
    assert [sum(len(marks.get_offsets()) for marks in axes.collections) for axes in drawn.figure.axes] == [40, 40, 40]  # type: ignore[arg-type]
    assert call("embed", str(tmp_path), "--probe", "40", "--method", "tsne")[0] == 0
    assert (tmp_path / "diagnosis" / "embedding" / "embedding.png").exists()
    code, _, err = call("embed", str(tmp_path), "--method", "umap")
    assert code == 2 and "--method=umap: is none" in err


def test_the_embedding_decides_as_the_run_does(tmp_path: Path) -> None:
    """Kills: decisions of a head that is given features without the power it was trained for."""
    power = {"name": "ccvr", "samples_per_class": 10, "tukey_lambda": 0.3, "lr": 0.1}
    summary = run(config(stages=[CALIBRATED[0], {**CALIBRATED[1], "algorithm": power}]), tmp_path)
    frame = embedding.embed(tmp_path, probe=100).frame  # the whole test set
    for stage, accuracy in summary["stage_accuracy"].items():
        assert (frame[stage] == frame["label"]).mean() == pytest.approx(accuracy, abs=1e-12)


def test_the_embedding_is_of_global_models(call: Any, tmp_path: Path) -> None:
    """Kills: decisions of a head that nobody has trained, or that is one client's."""
    random = {**CALIBRATED[1]["algorithm"], "init": "random"}
    stages = [{**CALIBRATED[0], "algorithm": {"name": "fedper"}}, {**CALIBRATED[1], "algorithm": random}]
    run(config(stages=stages), tmp_path)
    first, last = (stage["name"] for stage in stages)
    code, _, err = call("embed", str(tmp_path), "--probe", "40", "--after", first)
    assert code == 2
    assert f"--after={first}: has no global model, only those of single clients; name a stage" in err
    assert embedding.embed(tmp_path, after=last, probe=40).stages == (last,)
    assert embedding.embed(tmp_path, probe=40).stages == (last,)  # there is nothing before it to be shown


def test_places_in_the_plane() -> None:
    """Kills: features that are not centred; t-SNE that differs from run to run."""
    x = np.random.default_rng(0).normal(size=(30, 6)) * [5, 3, 1, 1, 1, 1] + 7
    plane = embedding.in_the_plane(x, "pca")
    values = np.linalg.svd(x - x.mean(0), compute_uv=False)
    np.testing.assert_allclose(np.linalg.norm(plane, axis=0), values[:2])
    np.testing.assert_array_equal(embedding.in_the_plane(x, "tsne"), embedding.in_the_plane(x, "tsne"))


@pytest.mark.parametrize("wanted", [False, True])
def test_a_sweep_that_asks_for_it_is_diagnosed_before_its_report(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """Kills: a report without the figures that its claims are about, a sweep from Python without them, or of trials
    that all failed with them; a flag that makes another sweep of it."""

    from engine.sweeps.options import How
    from engine.sweeps.running import SweepResult
    from fedskew.cli import sweep as cli_sweep
    from fedskew.lab.diagnosis import sweep as diagnosed
    from fedskew.lab.sweeping import measuring

    order = list[str]()

    def diagnose_sweep(folder: Path, number: Any, options: DiagnosisOptions, *others: Any) -> pd.DataFrame:
        assert (folder, number, options) == (sweep, None, DiagnosisOptions(layers="taps"))
        order.append("diagnosis")
        return pd.DataFrame({"trial": ["00000"]})

    monkeypatch.setattr(diagnosed, "diagnose_sweep", diagnose_sweep)
    monkeypatch.setattr(cli_sweep, "report", lambda *words: order.append("report"))
    plain = NamedSweep("mine.it", "laptop", (), "A sweep", Sweep(base=config(), space={}))
    named = dataclasses.replace(plain, sweep=dataclasses.replace(plain.sweep, diagnose=wanted))
    assert named.digest == plain.digest
    done = SweepResult(sweep, 4, {"finished": 4}, 8, 8, interrupted=False)
    monkeypatch.setattr(measuring, "run_sweep", lambda *_: done)
    assert cli_sweep._run(named, sweep, How(), None, ()) == 0
    assert order == (["diagnosis", "report"] if wanted else ["report"])
    failed = dataclasses.replace(done, statuses={"failed": 4})
    for outcome, measured in ((done, wanted), (dataclasses.replace(done, interrupted=True), False), (failed, False)):
        order.clear()
        monkeypatch.setattr(measuring, "run_sweep", lambda *words, outcome=outcome: outcome)
        assert measuring.run_and_measure(named, sweep, How(), None) is outcome
        assert order == ["diagnosis"] * measured
