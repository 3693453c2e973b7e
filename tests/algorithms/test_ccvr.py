"""CCVR and its oracle as stages after FedAvg: the oracles of spec 1.12, its errata, what is sent, what is kept.

Most run on Gaussian classes with a logistic model: its features are the pixels, so everything can be computed by hand.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms import calibration, ccvr
from algorithms.ccvr import Ccvr, class_moments, draw_features, square_root, tukey
from algorithms.iid_calibration import IidCalibration
from engine.algorithm import Tensors, seeds
from engine.algorithm.moments import from_message, merge, unpack
from engine.base.errors import ConfigError, RunError
from engine.client.messages import MapJob
from engine.client.tree import whole
from engine.data import Assignment, Dataset, Split
from engine.experiment import settings_of
from engine.record.columns import HOW_IT_WENT
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run.driver import Driver
from engine.run.recording import weights_sha256
from engine.server.client_map import EveryClient, ServerSide
from tests.support.tiny import (
    TINY_NORM,
    Driven,
    assignment,
    context_of,
    drive,
    drive_with_store,
    every_client,
    experiment,
    experiment_of,
    open_driver,
)

D, C = 16, 4
SHAPE = (1, 4, 4)


class Bench:
    """A workbench for what only draws."""

    def rng(self, purpose: str) -> torch.Generator:
        return seeds.generator(0, purpose, 7)


BENCH: Any = Bench()


def gaussian(count: int, seed: int, positive: bool = False) -> Split:
    """Classes of equal covariance around means that are not far apart."""
    fixed = np.random.default_rng(5)
    means, mix = fixed.normal(size=(C, D)) * 0.45, fixed.normal(size=(D, D)) * 0.15 + np.eye(D)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, C, count)
    x = means[labels] + rng.normal(size=(count, D)) @ mix
    return Split((np.abs(x) if positive else x).reshape(-1, *SHAPE).astype(np.float32), labels.astype(np.int64))


def gaussian_data(train: int = 600, test: int = 4000, **kind: Any) -> Dataset:
    return Dataset("gaussian", tuple("abcd"), gaussian(train, 1, **kind), gaussian(test, 2, **kind), (0.0,), (1.0,))


def parts_of(sizes: list[int]) -> Assignment:
    return assignment(sizes)


SPLIT = [1, 2, 0, 2, 1, 150, 200, 44, 200]
SETTING: dict[str, Any] = {
    "model": {"name": "logistic"},
    "rounds": 2,
    "local": {"epochs": 1, "batch_size": 50, "lr": 0.001},
    "execution": {"actors": 0, "device": "cpu", "precision": "float64"},
}


def gaussian_run(
    folder: Path, name: str = "ccvr", fields: dict[str, Any] | None = None, data: Dataset | None = None
) -> Driven:
    return drive(folder, experiment_of(name, fields, **SETTING), data or gaussian_data(), parts_of(SPLIT))


def at_calibration(folder: Path, fields: dict[str, Any] | None = None, data: Dataset | None = None) -> Driver:
    """A driver that has trained and not calibrated."""
    driver = open_driver(folder, experiment_of("ccvr", fields, **SETTING), data or gaussian_data(), parts_of(SPLIT))
    while driver.round < 2:
        driver.next()
    return driver


def virtual(driver: Driver, algorithm: Ccvr) -> dict[int, Tensor]:
    """By class."""
    context = context_of(driver, driver.round)
    work = every_client(driver, context, "finish"), ServerSide(driver.pool, context), context
    features, labels = algorithm.virtual_features(driver.lineage.server, *work)
    return {int(c): features[labels == c] for c in labels.unique()}


def moments(driver: Driver, algorithm: Ccvr) -> dict[int, Any]:
    context, found = context_of(driver, driver.round), {}
    for part in algorithm.moments(driver.lineage.server, every_client(driver, context, "finish"), driver.layout):
        found |= part
    return found


def real_features(driver: Driver, split: Split) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(split.images).double()
    net = driver.pool._workers[0].net  # type: ignore[attr-defined]
    net.load(*driver.weights)
    net.train(False)
    with torch.no_grad():
        return net.features(x), torch.from_numpy(split.labels)


# --- moments through the engine -----------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 2**30])
def test_moments_of_clients_are_those_of_all_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Oracle 1.12.1 on the engine's path, class by class and all at once. Kills: a client, a class or a batch that is
    left out or counted twice; features in training mode; a group of classes that reaches into the next."""
    monkeypatch.setattr(ccvr, "CHUNK_BYTES", chunk)
    driver = at_calibration(tmp_path)
    z, y = real_features(driver, gaussian_data().train)
    found = moments(driver, Ccvr())
    assert list(found) == list(range(C))
    for c, got in found.items():
        mine = z[y == c].numpy()
        assert got.count == len(mine)
        np.testing.assert_allclose(got.mean, mine.mean(0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(unpack(got.covariance, D), np.cov(mine, rowvar=False), rtol=1e-10, atol=1e-12)


def test_who_holds_what_is_no_matter(tmp_path: Path) -> None:
    """Oracle 1.12.4: two clients that swap their rows, another split, the same calibrated head."""
    parts = parts_of(SPLIT).clients
    swapped = Assignment((parts[5], *parts[1:5], parts[0], *parts[6:]))
    everything = Assignment((np.sort(np.concatenate(parts)),))
    found = []
    for number, one in enumerate((Assignment(parts), swapped, everything)):
        driver = open_driver(tmp_path / str(number), experiment_of("ccvr", **SETTING), gaussian_data(), one)
        found.append(virtual(driver, Ccvr()))
    for other in found[1:]:
        for c in found[0]:
            torch.testing.assert_close(other[c], found[0][c], rtol=0, atol=1e-9)


def test_a_client_sends_its_present_classes_and_nothing_else(tmp_path: Path) -> None:
    """Spec 0.2: 1 + d + d (d + 1) / 2 words of each present class. Kills: a dense matrix, a class id, absent classes;
    a class that should be kept back."""
    driver = at_calibration(tmp_path)
    worker, labels = driver.pool._workers[0], gaussian_data().train.labels  # type: ignore[attr-defined]
    ids = tuple(driver.federation.population.clients)
    for least, diagonal, words in ((1, False, 1 + D + D * (D + 1) // 2), (3, False, 153), (1, True, 1 + 2 * D)):
        ask = partial(class_moments, classes=range(C), least=least, diagonal=diagonal, power=1.0)
        job = MapJob(ask, context_of(driver, 2), merge)
        mapped = worker.map(job, ids, 0, *(None for _ in ids))
        counts = [np.bincount(labels[parts_of(SPLIT).clients[client]], minlength=C) for client in ids]
        assert mapped.floats_up == [int((count >= least).sum()) * words for count in counts]
        merged = whole(mapped.results, merge)
        assert merged is not None and len(mapped.results) == len(ids).bit_count()  # as far as the tree goes
        wanted = {c: sum(int(count[c]) for count in counts if count[c] >= least) for c in range(C)}
        assert {c: int(m.count) for c, m in from_message(merged).items()} == wanted


def test_messages_are_counted_as_they_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spec 0.2, in ``exchanges.parquet``: the model goes down once, however many passes the classes take; the oracle's
    images go up. Kills: a model that is counted with every group of classes; a merge that hides what was merged."""
    sent = {}
    for name, chunk in (("all", 2**30), ("one", 1)):
        monkeypatch.setattr(ccvr, "CHUNK_BYTES", chunk)
        run = gaussian_run(tmp_path / name)
        exchanges = run.folder.frame("exchanges")
        assert set(exchanges["stage"]) == {"end"}
        assert exchanges["exchange"].max() == (1 if name == "all" else C)
        sent[name] = exchanges.groupby("client")[["floats_up", "floats_down"]].sum()
    assert sent["all"].equals(sent["one"])
    labels, parts = gaussian_data().train.labels, parts_of(SPLIT).clients
    present = [len(set(labels[parts[client]].tolist())) for client in sent["all"].index]
    assert sent["all"]["floats_up"].tolist() == [classes * 153 for classes in present]
    assert set(sent["all"]["floats_down"]) == {run.driver.layout.size}
    oracle = gaussian_run(tmp_path / "oracle", "iid_calibration", {"fraction": 0.1}).folder.frame("exchanges")
    assert oracle["floats_down"].sum() == 0
    keys, rows = oracle.groupby("exchange")["floats_up"].sum()
    assert rows == 60 * (D + 1)
    assert 60 <= keys < 180


# --- virtual features ---------------------------------------------------------------------------------------


def covariance(rank: int, d: int = 8) -> Tensor:
    factor = torch.randn(d, rank, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
    return factor @ factor.T


def drawn(sigma: Tensor, size: int, mean: Tensor | None = None, **how: Any) -> Tensor:
    d = len(sigma)
    mean = torch.linspace(1, 2, d, dtype=torch.float64) if mean is None else mean
    packed = sigma[tuple(torch.triu_indices(d, d))]
    shared = {"0/mean": mean, "0/covariance": packed, "weights": torch.zeros(0, dtype=torch.float64)}
    return draw_features(BENCH, shared, {0: size}, d, **{"shrink": 0.0, "clip": False, **how})["0"]


def check_sampler(draw: Any) -> None:
    """Oracle 1.12.5: M = 200,000, d = 8, mean within 5 sigma / sqrt(M), covariance within 3 %."""
    sigma, mean, size = covariance(8), torch.linspace(1, 2, 8, dtype=torch.float64), 200_000
    z = draw(mean, sigma, size)
    assert ((z.mean(0) - mean).abs() < 5 * sigma.diagonal().sqrt() / size**0.5).all()
    assert torch.linalg.matrix_norm(torch.cov(z.T) - sigma) < 0.03 * torch.linalg.matrix_norm(sigma)


def test_virtual_features_have_the_moments_they_were_drawn_from() -> None:
    """Kills: V Lambda for V sqrt(Lambda), a transposed root, a mean that is forgotten."""
    check_sampler(lambda mean, sigma, size: drawn(sigma, size, mean))


def flearn(mean: Tensor, sigma: Tensor, size: int) -> Tensor:
    """flearn hands a variance to a function that takes a standard deviation, feature by feature."""
    rng = torch.Generator().manual_seed(1)
    noise = torch.randn(size, len(mean), generator=rng, dtype=torch.float64)
    return mean + sigma.diagonal() * noise


def transposed(mean: Tensor, sigma: Tensor, size: int) -> Tensor:
    """(V sqrt(Lambda))^T in the place of V sqrt(Lambda)."""
    values, vectors = torch.linalg.eigh(sigma)
    noise = torch.randn(size, len(mean), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return mean + noise @ (vectors * values.clamp(min=0).sqrt())


@pytest.mark.parametrize("bug", [flearn, transposed])
def test_a_wrong_sampler_is_caught(bug: Any) -> None:
    """Each of these fails oracle 1.12.5."""
    with pytest.raises(AssertionError):
        check_sampler(bug)


def test_a_covariance_of_rank_one_gives_a_line() -> None:
    """Oracle 1.12.5. Kills: Cholesky, which has no factor here; noise in the directions without spread."""
    sigma = covariance(1)
    z = drawn(sigma, 500)
    with pytest.raises(torch.linalg.LinAlgError):
        torch.linalg.cholesky(sigma)
    direction = F.normalize(sigma[0], dim=0)
    centred = z - torch.linspace(1, 2, 8, dtype=torch.float64)
    off = centred - (centred @ direction)[:, None] * direction
    assert off.abs().max() < 1e-12
    assert centred.abs().max() > 0.1


def test_no_covariance_is_refused() -> None:
    """Kills: a negative eigenvalue that is clipped whatever its size: it would hide a bug upstream."""
    sigma = covariance(8)
    worst = torch.linalg.eigvalsh(sigma)[-1]
    square_root(covariance(3) - 1e-9 * worst * torch.eye(8, dtype=torch.float64))
    with pytest.raises(RunError, match="a class's covariance has eigenvalues from"):
        square_root(covariance(3) - 1e-4 * worst * torch.eye(8, dtype=torch.float64))
    with pytest.raises((RunError, RuntimeError)):
        square_root(sigma * torch.nan)


def test_a_class_is_drawn_alike_whoever_is_drawn_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one stream for all classes of a group, so that the memory budget decides what is drawn."""
    driver = at_calibration(tmp_path)
    together = virtual(driver, Ccvr())
    monkeypatch.setattr(ccvr, "CHUNK_BYTES", 1)
    alone = virtual(driver, Ccvr())
    assert all(torch.equal(together[c], alone[c]) for c in range(C))
    noise = (alone[0] - alone[0].mean(0), alone[1] - alone[1].mean(0))
    assert not torch.allclose(*(F.normalize(part, dim=1) for part in noise), atol=0.5)


def test_shrinkage_and_clipping() -> None:
    """Kills: a trace that is not divided by d; clipping where it is off."""
    sigma, eye = covariance(8), torch.eye(8, dtype=torch.float64)
    for shrink in (0.3, 1.0):
        wanted = (1 - shrink) * sigma + shrink * sigma.trace() / 8 * eye
        expected = drawn(wanted, 50)
        torch.testing.assert_close(drawn(sigma, 50, shrink=shrink), expected, rtol=0, atol=1e-12)
    free = drawn(sigma, 400)
    assert (free < 0).any()
    assert torch.equal(drawn(sigma, 400, clip=True), free.clamp(min=0))


def test_kinds_of_covariance(tmp_path: Path) -> None:
    """Kills: an option that is read nowhere; a pooled covariance about the common mean in place of the classes'."""
    driver = at_calibration(tmp_path)
    z, y = real_features(driver, gaussian_data().train)
    size = 20_000
    for kind in ("diag", "shared"):
        found = virtual(driver, Ccvr(cov=kind, samples_per_class=size))
        for c in range(C):
            centred = z[y == c] - z[y == c].mean(0)
            wanted = centred.square().sum(0).diag() / (len(centred) - 1)
            if kind == "shared":
                scatters = [torch.cov(z[y == k].T) * ((y == k).sum() - 1) for k in range(C)]
                wanted = torch.stack(scatters).sum(0) / (len(y) - C)
            got = torch.cov(found[c].T)
            assert torch.linalg.matrix_norm(got - wanted) < 0.05 * torch.linalg.matrix_norm(wanted), (kind, c)
            assert (found[c].mean(0) - z[y == c].mean(0)).abs().max() < 0.05


def test_how_many_are_drawn(tmp_path: Path) -> None:
    """Errata 5 and 6: M of each class, or C M N_c / |D|, and at least one."""
    driver = at_calibration(tmp_path)
    counts = np.bincount(gaussian_data().train.labels, minlength=C)
    assert [len(z) for z in virtual(driver, Ccvr(samples_per_class=30)).values()] == [30] * C
    found = virtual(driver, Ccvr(samples_per_class=30, allocation="proportional"))
    assert [len(z) for z in found.values()] == [round(C * 30 * count / 600) for count in counts]
    few = virtual(driver, Ccvr(samples_per_class=1, allocation="proportional", min_upload_count=3))
    assert all(len(z) == 1 for z in few.values())


# --- classes with few rows or none ----------------------------------------------------------------------------


def few_rows(counts: list[int]) -> Dataset:
    """Training data with so many rows of each class."""
    split = gaussian(2000, 1)
    rows = np.concatenate([np.flatnonzero(split.labels == c)[:count] for c, count in enumerate(counts)])
    return Dataset("few", tuple("abcd"), Split(split.images[rows], split.labels[rows]), gaussian(50, 2), (0.0,), (1.0,))


def few_driver(folder: Path, counts: list[int]) -> Driver:
    total = sum(counts)
    parts = assignment([total // 2, total - total // 2])
    return open_driver(folder, experiment_of("ccvr", **SETTING), few_rows(counts), parts)


def test_a_class_of_one_row_has_the_spread_of_the_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Erratum 4: N_c = 1 is 0/0. Kills: a covariance of nan; one that is 0 though others know better; no word of it."""
    driver = few_driver(tmp_path, [1, 40, 40, 0])
    with caplog.at_level(logging.WARNING, logger="fedskew"):
        found = virtual(driver, Ccvr(samples_per_class=20_000))
    assert list(found) == [0, 1, 2]
    z, y = real_features(driver, few_rows([1, 40, 40, 0]).train)
    wanted = (39 * torch.cov(z[y == 1].T) + 39 * torch.cov(z[y == 2].T)) / 78
    assert torch.linalg.matrix_norm(torch.cov(found[0].T) - wanted) < 0.05 * torch.linalg.matrix_norm(wanted)
    assert (found[0].mean(0) - z[y == 0][0]).abs().max() < 0.05
    assert "classes 0 have fewer than 2 rows" in caplog.text
    assert "no client sent classes 3" in caplog.text


def test_min_cov_count(tmp_path: Path) -> None:
    """Kills: a threshold that is read nowhere, or off by one."""
    driver = few_driver(tmp_path, [9, 10, 40, 0])
    own, pooled = virtual(driver, Ccvr()), virtual(driver, Ccvr(min_cov_count=10))
    assert [torch.equal(own[c], pooled[c]) for c in (0, 1, 2)] == [False, True, True]
    assert all(
        torch.equal(a, b) for a, b in zip(own.values(), virtual(driver, Ccvr(min_cov_count=9)).values(), strict=True)
    )


def test_where_no_class_has_two_rows_there_is_no_spread(tmp_path: Path) -> None:
    """Erratum 4, the last resort. Kills: a division by no degrees of freedom."""
    driver = few_driver(tmp_path, [1, 1, 1, 0])
    z, y = real_features(driver, few_rows([1, 1, 1, 0]).train)
    for c, features in virtual(driver, Ccvr(samples_per_class=3)).items():
        torch.testing.assert_close(features, z[y == c].expand(3, -1), rtol=0, atol=1e-14)


def test_min_upload_count_keeps_small_classes_back(tmp_path: Path) -> None:
    """Erratum 13. Kills: a feature of a single row that leaves its client; a threshold on the sum over clients."""
    driver = at_calibration(tmp_path)
    labels, parts = gaussian_data().train.labels, parts_of(SPLIT).clients
    counts = np.array([np.bincount(labels[part], minlength=C) for part in parts])
    found = moments(driver, Ccvr(min_upload_count=12))
    assert {c: int(m.count) for c, m in found.items()} == dict(enumerate(np.where(counts >= 12, counts, 0).sum(0)))
    with pytest.raises(ConfigError, match="min_upload_count=1000: leaves no class to be sent; lower it"):
        virtual(driver, Ccvr(min_upload_count=1000))


# --- what it comes to -------------------------------------------------------------------------------------------


def bayes(data: Dataset) -> float:
    """Test accuracy of linear discriminant analysis with the training data's pooled covariance."""
    x, y = data.train.images.reshape(-1, D).astype(float), data.train.labels
    means = np.stack([x[y == c].mean(0) for c in range(C)])
    pooled = sum((np.cov(x[y == c], rowvar=False) * ((y == c).sum() - 1) for c in range(C)), np.zeros((D, D)))
    w = np.linalg.solve(pooled / (len(y) - C), means.T)
    scores = data.test.images.reshape(-1, D) @ w - 0.5 * (means.T * w).sum(0)
    return float((scores.argmax(1) == data.test.labels).mean())


LONG = {"samples_per_class": 2000, "epochs": 30, "lr": 0.02}


@pytest.mark.slow
def test_the_calibrated_head_is_close_to_the_best_linear_one(tmp_path: Path) -> None:
    """Oracle 1.12.9. Kills: labels that do not go with their features; a head that was trained and not kept."""
    run = gaussian_run(tmp_path, fields=LONG)
    best = bayes(gaussian_data())
    assert run.summary["accuracy"] > best - 0.01
    assert run.summary["stage_accuracy"]["train"] < best - 0.1  # two rounds with a tiny rate: there was much to gain


@pytest.mark.slow
def test_on_real_features_nothing_beats_the_oracle(tmp_path: Path) -> None:
    """Oracle 1.12.11: trained to convergence on all rows, its loss on them is at most CCVR's. Kills: a sample that is
    not the data, images without their labels."""
    split, losses = gaussian_data().train, {}
    plain = {"weight_decay": 0.0, "batch_size": 10_000, "lr": 0.3}
    for name, fields in (
        ("iid_calibration", {"fraction": 1.0, "epochs": 1500}),
        ("ccvr", {"epochs": 300, "samples_per_class": 2000}),
    ):
        run = gaussian_run(tmp_path / name, name, {**plain, **fields})
        weights = run.server["weights"]
        logits = (
            torch.from_numpy(split.images).reshape(-1, D).double() @ weights[: C * D].view(C, D).T + weights[C * D :]
        )
        losses[name] = float(F.cross_entropy(logits, torch.from_numpy(split.labels)))
    assert losses["iid_calibration"] <= losses["ccvr"]
    assert losses["ccvr"] < 1.05 * losses["iid_calibration"]  # and CCVR comes close


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ccvr", "iid_calibration"])
@pytest.mark.usefixtures("tiny_norm")
def test_only_the_head_changes(tmp_path: Path, name: str) -> None:
    """Oracle 1.12.6, with BatchNorm. Kills: a body in training mode, momentum or decay on it, new statistics."""
    none = drive(tmp_path / "none", experiment_of(name, {"epochs": 0}, **TINY_NORM))
    some = drive(tmp_path / "some", experiment_of(name, {"weight_decay": 0.1}, **TINY_NORM))
    fresh = drive(tmp_path / "fresh", experiment_of(name, {"init": "random", "epochs": 0}, **TINY_NORM))
    body, empty = none.driver.layout.body, torch.zeros(0)
    hashes = {weights_sha256(run.server["weights"][:body], run.server["buffers"]) for run in (none, some, fresh)}
    assert len(hashes) == 1
    heads = {weights_sha256(run.server["weights"][body:], empty) for run in (none, some, fresh)}
    assert len(heads) == 3
    bound = 1 / none.driver.layout.features**0.5
    assert fresh.server["weights"][body:].abs().max() <= bound


def test_without_epochs_nobody_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle 1.12.6: zero epochs are the identity, and cost nothing."""

    def nobody(*args: Any) -> Tensors:
        raise AssertionError("clients were asked")

    monkeypatch.setattr(EveryClient, "map", nobody)
    for number, (name, fields) in enumerate([("ccvr", {}), ("iid_calibration", {}), ("ccvr", {"tukey_lambda": 0.5})]):
        summary = drive(tmp_path / str(number), experiment_of(name, {"epochs": 0, **fields})).summary
        assert summary["stage_accuracy"]["end"] == summary["stage_accuracy"]["train"]
        evaluations = RunFolder(tmp_path / str(number)).frame("evaluations").set_index("stage")
        assert evaluations["loss"]["end"] == evaluations["loss"].loc["train"].iloc[-1]


@pytest.mark.usefixtures("tiny_norm")
def test_the_head_sees_every_feature_once_an_epoch(tmp_path: Path) -> None:
    """Kills: a last row that is dropped where the model has BatchNorm, which a frozen body does not mind."""
    driver = open_driver(tmp_path, experiment_of("ccvr", **TINY_NORM))
    seen: list[int] = []
    layout, weights, buffers = driver.layout, *driver.weights

    def watched(bench: Any, shared: Tensors) -> Tensors:
        def loss(net: Any, rows: Tensor) -> Tensor:
            seen.extend(rows.tolist())
            return net.head(shared["features"][rows]).square().mean()

        return bench.fit(loss, 9, 2, 4, 0.1, trainable="head")

    compute = ServerSide(driver.pool, context_of(driver, 0))
    compute(watched, {"weights": weights, "buffers": buffers, "features": torch.ones(9, layout.features)})
    assert sorted(seen) == sorted([*range(9)] * 2)


def test_divergence_is_one_sentence(tmp_path: Path) -> None:
    """Kills: weights that are not finite in a checkpoint."""
    config = experiment_of("ccvr", {"lr": 1e30}, **SETTING)
    with pytest.raises(
        RunError, match=r"the head's calibration diverged with lr=1e\+30: lower the stage's algorithm.lr"
    ):
        drive(tmp_path, config, gaussian_data(), parts_of(SPLIT))


@pytest.mark.slow
def test_tukeys_power_reaches_virtual_and_test_features_alike(tmp_path: Path) -> None:
    """Kills: a power in training only, under which the head meets features it has never seen."""
    assert tukey(torch.tensor([-4.0, 0.0, 9.0]), 0.5).tolist() == [-2.0, 0.0, 3.0]
    data = gaussian_data(positive=True)
    run = gaussian_run(tmp_path, fields={**LONG, "tukey_lambda": 0.5}, data=data)
    weights = run.server["weights"]
    x = torch.from_numpy(data.test.images).reshape(-1, D).double()
    head, bias = weights[: C * D].view(C, D), weights[C * D :]
    accuracies = [float(((z @ head.T + bias).argmax(1).numpy() == data.test.labels).mean()) for z in (x.sqrt(), x)]
    assert run.summary["accuracy"] == pytest.approx(accuracies[0], abs=1e-12)
    assert accuracies[0] != accuracies[1]  # the power is felt


# --- the oracle's sample ------------------------------------------------------------------------------------------


def sample(folder: Path, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    config = experiment_of("iid_calibration", seed=seed, **SETTING)
    driver = open_driver(folder, config, gaussian_data(), parts_of(SPLIT))
    context = context_of(driver, 2)
    clients, compute = every_client(driver, context, "finish"), ServerSide(driver.pool, context)
    parts = list(IidCalibration(fraction=fraction).real_features(driver.lineage.server, clients, compute, context))
    return tuple(np.concatenate([part[name].numpy() for part in parts]) for name in ("features", "labels"))  # type: ignore[return-value]


@pytest.mark.parametrize("chunk", [1, 2**30])
def test_the_sample_is_so_many_different_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    """Kills: rows drawn twice or of one client alone, a label of another row, a number that is only about right, a row
    lost between two groups."""
    import algorithms.iid_calibration as module

    monkeypatch.setattr(module, "CHUNK_BYTES", max(chunk, 8 * D * 7))  # seven rows at a time
    split = gaussian_data().train
    row_of = {row.astype(float).tobytes(): number for number, row in enumerate(split.images.reshape(-1, D))}
    for fraction, wanted in ((1.0, 600), (0.1, 60), (1 / 512, 1)):
        features, labels = sample(tmp_path / str(wanted), fraction)
        rows = [row_of[feature.tobytes()] for feature in features]
        assert len(rows) == len(set(rows)) == wanted
        assert (split.labels[rows] == labels).all()
    assert not np.array_equal(sample(tmp_path / "other", 0.1, seed=1)[1], sample(tmp_path / "one", 0.1)[1])


def test_the_sample_is_uniform_over_rows_not_clients(tmp_path: Path) -> None:
    """Kills: a share for each client, under which the many clients of one row weigh as much as those of 200."""
    split, parts = gaussian_data().train, parts_of(SPLIT).clients
    owner = {row.astype(float).tobytes(): client for client, part in enumerate(parts)
             for row in split.images.reshape(-1, D)[part]}  # fmt: skip
    counts = np.zeros(len(parts))
    for seed in range(12):
        for feature in sample(tmp_path / str(seed), 0.2, seed)[0]:
            counts[owner[feature.tobytes()]] += 1
    expected = 12 * 120 * np.array(SPLIT) / 600
    assert (np.abs(counts - expected) <= 4 * np.sqrt(expected * 0.8) + 1e-9).all()


# --- stages: the store, a crash, refusals ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("every", [0, 2])
def test_many_calibrations_share_one_training(tmp_path: Path, every: int) -> None:
    """Kills: a FedAvg stage that is computed again for each calibration; a stage without rounds that the store takes
    for its parent, or gives back without its row and evaluation."""
    store = StageStore(tmp_path / "store", heartbeat=0.05, patience=0.5)
    cells: dict[str, tuple[str, dict[str, Any]]] = {
        "a": ("ccvr", {}),
        "b": ("ccvr", {"samples_per_class": 7}),
        "c": ("iid_calibration", {}),
        "again": ("ccvr", {}),
    }
    summaries = {}
    for number, (cell, (name, fields)) in enumerate(cells.items()):
        config = experiment_of(name, fields, evaluation={"every": every})
        summaries[cell] = drive_with_store(tmp_path / cell, config, store)
        plain = drive(tmp_path / f"{cell}-plain", config)
        assert summaries[cell]["rounds_computed"] == (0 if number else 3)
        for key in ("weights_sha256", "accuracy", "last10_accuracy", "stage_accuracy", "rounds_asked", "stages"):
            assert summaries[cell][key] == plain.summary[key], (cell, key)
        for table in ("rounds", "clients", "evaluations"):
            frames = [RunFolder(tmp_path / f).frame(table) for f in (cell, f"{cell}-plain")]
            mine, its = (f.drop(columns=[*HOW_IT_WENT, "reused"], errors="ignore") for f in frames)
            assert mine.astype(str).equals(its.astype(str)), (cell, table)
    assert len({summary["weights_sha256"] for summary in summaries.values()}) == 3
    assert RunFolder(tmp_path / "again").frame("rounds")["reused"].all()
    assert not RunFolder(tmp_path / "b").frame("rounds")["reused"].iloc[-1]


def test_a_crash_in_the_calibration_costs_the_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a checkpoint of a stage that has begun and not ended, from which the run would go on as if it had."""
    config = experiment_of("ccvr")
    straight = drive(tmp_path / "straight", config)
    driver = open_driver(tmp_path / "crash", config)
    with monkeypatch.context() as patch:
        patch.setattr(calibration, "fit_head", None)  # not callable
        with pytest.raises(TypeError):
            while not driver.finished:
                driver.advance()
        with pytest.raises(RunError, match="open the run again"):
            driver.advance()
        driver.close()
    resumed = open_driver(tmp_path / "crash", config)
    assert (resumed.round, resumed.stage.name, resumed.finished) == (3, "train", False)
    rows = resumed.advance()
    assert [(row["stage"], row["round"]) for row in rows] == [("end", 3)]
    assert rows[0]["accuracy"] == straight.summary["accuracy"]
    assert resumed.close()["weights_sha256"] == straight.sha


@pytest.mark.parametrize("name", ["ccvr", "iid_calibration"])
def test_there_must_be_a_head_to_go_on_from(name: str) -> None:
    """Kills: the head that the server began with, taken for a global model's; a refusal of one that is drawn anew."""

    def after(first: str, **fields: Any) -> Any:
        end = {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": name, **fields}}
        return experiment(stages=[{"name": "train", "rounds": 1, "algorithm": {"name": first}}, end])

    told = (
        rf"^stages.end.algorithm={name}: goes on from a global model's head, and fedper has none; "
        r"train with a method that has a global model, or set stages.end.algorithm.init=random$"
    )
    for fields in ({}, {"epochs": 0}):
        with pytest.raises(ConfigError, match=told):
            after("fedper", **fields)
    assert after("fedper", init="random") and after("fedbabu")


def test_the_row_of_a_calibration_is_of_the_calibrated_model(tmp_path: Path) -> None:
    """Kills: the hash of the model before the calibration."""
    run = drive(tmp_path, experiment_of("ccvr"))
    hashes = run.folder.frame("rounds")["weights_sha256"].tolist()
    assert hashes[-1] == run.sha != hashes[-2]


def test_until_the_last_round_includes_what_follows_it(tmp_path: Path) -> None:
    """Kills: a scheduler that stops a trial at its last round, and never sees it calibrated."""
    driver = open_driver(tmp_path, experiment_of("ccvr"))
    driver.advance(until=2, seconds=60)
    assert (driver.stage.name, driver.finished) == ("train", False)
    rows = driver.advance(until=3, seconds=60)
    assert [row["stage"] for row in rows] == ["train", "end"]
    assert driver.finished
    driver.close()


def test_calibrations_beside_and_after_each_other(tmp_path: Path) -> None:
    """Kills: a stage without rounds that moves the round, or that takes the stage before it for the one it needs."""
    names = {"a": ("ccvr", "train"), "b": ("iid_calibration", "train"), "c": ("ccvr", "b")}
    chain = [{"name": "train", "rounds": 3}] + [
        {"name": stage, "rounds": 0, "needs": [need], "algorithm": {"name": name}}
        for stage, (name, need) in names.items()
    ]
    more = {"name": "more", "rounds": 2, "needs": ["c"], "algorithm": {"name": "fedavg"}}
    config = experiment_of("fedavg", stages=[*chain, more])
    run = drive(tmp_path, config)
    rounds = run.folder.frame("rounds")
    wanted = [("train", 1), ("train", 2), ("train", 3), ("a", 3), ("b", 3), ("c", 3), ("more", 4), ("more", 5)]
    assert list(zip(rounds["stage"], rounds["round"], strict=True)) == wanted
    assert list(run.summary["stage_accuracy"]) == ["train", "b", "c", "more"]
    assert (run.summary["rounds"], run.summary["rounds_asked"], run.summary["breaks_privacy"]) == (5, 5, True)
    alone = drive(tmp_path / "alone", experiment_of("ccvr"))
    accuracy = run.folder.frame("evaluations").set_index("stage")["accuracy"]
    assert accuracy["a"] == alone.summary["accuracy"]


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("ccvr", {"samples_per_class": 0}, "samples_per_class=0: must be at least 1; for example"),
    ("ccvr", {"shrink": -0.1}, "shrink=-0.1: must be at least 0 and at most 1; 0 is none"),
    ("ccvr", {"tukey_lambda": 0.0}, "tukey_lambda=0.0: must be greater than 0; 1 leaves features"),
    ("ccvr", {"min_upload_count": 0}, "min_upload_count=0: must be at least 1; 1 keeps"),
    ("ccvr", {"min_cov_count": 1}, "min_cov_count=1: must be at least 2; 2 pools none"),
    (
        "ccvr",
        {"cov": "half"},
        "cov=half: must be 'full', 'diag' or 'shared'; for example stages.end.algorithm.cov=full",
    ),
    ("ccvr", {"lr": 0.0}, "lr=0.0: must be greater than 0; "),
    ("ccvr", {"epochs": -1}, "epochs=-1: must be at least 0; 0 leaves"),
    ("iid_calibration", {"momentum": 1.0}, "momentum=1.0: must be at least 0 and below 1; 0 is none"),
    ("iid_calibration", {"batch_size": 0}, "batch_size=0: must be at least 1; "),
    ("iid_calibration", {"fraction": 0.0}, "fraction=0.0: must be greater than 0 and at most 1; for example"),
    ("iid_calibration", {"fraction": 1.5}, "fraction=1.5: must be greater than 0 and at most 1; for example"),
]


@pytest.mark.parametrize(("name", "fields", "message"), BAD, ids=lambda value: str(value)[:30])
def test_bad_values_are_one_sentence(name: str, fields: dict[str, Any], message: str) -> None:
    """Kills: a value that passes, or a message without its field, value, rule and repair."""
    with pytest.raises(ConfigError) as error:
        experiment_of(name, fields)
    assert f"algorithm.{message}" in str(error.value)


def test_a_head_that_is_not_linear_is_refused() -> None:
    """Kills: a calibration that trains a head it does not know."""
    config = experiment_of("ccvr")

    @dataclasses.dataclass(frozen=True)
    class Normalised:
        head: str = "normalised"

    setting = settings_of(config.chain, config.model)[-1]
    with pytest.raises(
        ConfigError, match=r"model.head=normalised: is not the linear head that is trained anew; set it"
    ):
        Ccvr().check(dataclasses.replace(setting, model=Normalised()))


def test_clipping_is_for_features_that_are_not_negative() -> None:
    """Kills: half of a projection's features cut off in silence; a refusal of the networks that end in a ReLU."""
    for name, fields in (("moon_cnn", {}), ("mlp", {"projection": True})):
        with pytest.raises(
            ConfigError, match=r"clip_nonneg=True: cuts off half of .*; set model.projection=false or clip_nonneg=false"
        ):
            experiment_of("ccvr", {"clip_nonneg": True}, model={"name": name, **fields})
        assert experiment_of("ccvr", {}, model={"name": name, **fields})
    assert experiment_of("ccvr", {"clip_nonneg": True}, model={"name": "moon_cnn", "projection": False})


@pytest.mark.parametrize("name", ["ccvr", "iid_calibration"])
def test_a_head_that_another_stage_needs_cannot_be_calibrated(name: str) -> None:
    """Kills: two refusals of which each one's repair is the other."""

    stages = [
        {"name": "train", "rounds": 2, "algorithm": {"name": "clsnorm"}},
        {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": name}},
    ]
    with pytest.raises(ConfigError, match=r"model.head=normalised: is what stage train needs.*; they cannot be comb"):
        experiment_of("fedavg", stages=stages, model={"name": "mlp", "head": "normalised"})


# --- memory -------------------------------------------------------------------------------------------------------

MEMORY = """
import resource
import sys
import numpy as np
import torch
from pathlib import Path
from algorithms import ccvr
from algorithms.ccvr import Ccvr
from engine.data import Assignment, Dataset, Split
from tests.support.tiny import context_of, every_client, experiment_of, open_driver

D, C, K = 1280, int(sys.argv[1]), 3
rng = np.random.default_rng(0)
labels = np.tile(np.arange(C), K)
split = Split(rng.integers(0, 256, (C * K, 1, 4, 4)).astype(np.uint8), labels.astype(np.int64))
data = Dataset("wide", tuple(map(str, range(C))), split, split, (0.5,), (0.5,))
parts = Assignment(tuple(np.arange(k * C, (k + 1) * C) for k in range(K)))
config = experiment_of("ccvr", model={"name": "mlp", "hidden": [D]})
driver = open_driver(Path("."), config, data, parts)
clients = every_client(driver, context_of(driver, 1), "finish")

sizes = []
def draw(bench, shared, sizes, **how):  # instead of eigendecompositions, which take a minute
    return {str(c): shared[f"{c}/mean"].float().repeat(size, 1) for c, size in sizes.items()}
ccvr.draw_features = draw
def compute(fn, shared):
    sizes.append(sum(t.numel() for name, t in shared.items() if "covariance" in name))
    return fn(None, shared)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
features, labels = Ccvr().virtual_features(driver.lineage.server, clients, compute, context_of(driver, 1))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert labels.tolist() == [c for c in range(C) for _ in range(100)]
assert torch.isfinite(features).all()
assert sizes == [D * (D + 1) // 2] * C, sizes[:3]
print(after - before)
"""


@pytest.mark.slow
@pytest.mark.long
def test_memory_does_not_grow_with_the_number_of_classes(tmp_path: Path) -> None:
    """d = 1280, C = 40, every class at each of three clients: 249 MB more of each client's messages than with two
    classes. But for the virtual features themselves a tenth of that must do, whatever a process needs for its first
    matrices. Kills: all classes in one message, covariances that are kept after their use."""
    peaks = []
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    for classes in (2, 40):
        command = [sys.executable, "-c", MEMORY, str(classes)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks.append(1024 * int(done.stdout.split()[-1]))
    features = 38 * 101 * 1280 * 4
    assert peaks[1] - peaks[0] - features < 38 * 1280 * 1281 / 2 * 8 / 10, peaks
