"""Clients that fail: named, ended with or left out, and never added."""

from __future__ import annotations

import errno
import math
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from algorithms.fedavg import FedAvg
from algorithms.scaffold import Scaffold
from engine.base.errors import ClientError, MemoryShort, ResourceError, RunError
from engine.client.steps.client_round import ClientProgress, ClientTask
from engine.client.steps.entries import is_finite, not_finite
from engine.client.trainer import Trainer
from engine.experiment import Experiment, Participation
from engine.record.run_folder import RunFolder
from engine.run.log import Messages
from engine.server import federation
from engine.worker.pool import Deadline
from tests.support.tiny import SIZES, drive, experiment, open_driver

BAD = (1, 4)
CLIENTS = len(SIZES)
DROP = {"on_client_error": "drop"}


def fails(monkeypatch: pytest.MonkeyPatch, clients: Iterable[int], error: Callable[[], Exception] | None) -> None:
    """From here on these clients raise ``error`` when they begin, or begin with a weight that is no number."""
    begun = Trainer._begun

    def spoilt(trainer: Trainer, task: ClientTask) -> ClientProgress:
        ours = begun(trainer, task)
        if task.number in clients:
            if error is not None:
                raise error()
            weights = ours.start.weights.clone()
            weights[3] = torch.nan
            ours.start = ours.start._replace(weights=weights)
        return ours

    monkeypatch.setattr(Trainer, "_begun", spoilt)


def failing(executor: str = "loop", algorithm: str = "fedavg", **changes: Any) -> Experiment:
    execution = {"executor": executor, "block": 3}
    return experiment(rounds=2, algorithm={"name": algorithm}, execution=execution, **changes)


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, r"client 1 diverged in round 1: its weights are not finite from step 1 of \d+ on"),
        (lambda: ValueError("no such row"), r"client 1 failed in round 1: ValueError: no such row$"),
    ],
    ids=["diverges", "raises"],
)
def test_the_first_client_to_fail_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, error: Any, message: str
) -> None:
    """Kills: a mean with a number that is none; an error that does not name its client; a run that cannot go on."""
    undisturbed = drive(tmp_path / "undisturbed", failing(executor)).sha
    with monkeypatch.context() as patched:
        fails(patched, BAD, error)
        driver = open_driver(tmp_path / "run", failing(executor))
        with pytest.raises(ClientError, match=message) as found:
            driver.advance()
        assert (found.value.client, found.value.round, driver.round) == (1, 1, 0)
        driver.close()
    again = open_driver(tmp_path / "run", failing(executor))
    while not again.finished:
        again.advance()
    assert again.close()["weights_sha256"] == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize("error", [None, lambda: ValueError("no such row")], ids=["diverges", "raises"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_clients_that_are_left_out_were_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages, executor: str, error: Any, algorithm: str
) -> None:
    """Kills: a sum, a count, a state or a row of a client that failed; others that are left out with it; a client that
    is left out in silence. Blocks of one client are cut alike with and without those that fail."""
    config = failing(executor, algorithm, participation=DROP).replace({"execution.block": 1})
    with monkeypatch.context() as patched:
        everyone = federation.draw_cohort
        without = lambda *drawn: tuple(client for client in everyone(*drawn) if client not in BAD)  # noqa: E731
        patched.setattr(federation, "draw_cohort", without)
        expected = drive(tmp_path / "without", config)
    fails(monkeypatch, BAD, error)
    found = drive(tmp_path / "run", config)
    assert found.sha == expected.sha
    assert found.summary["states_sha256"] == expected.summary["states_sha256"]
    rounds, clients, failures = (found.folder.frame(table) for table in ("rounds", "clients", "failures"))
    assert rounds["failed"].tolist() == [2, 2]
    assert rounds["clients"].tolist() == [CLIENTS - 2] * 2
    assert not set(BAD) & set(clients["client"])
    assert failures["client"].tolist() == [*BAD, *BAD]
    assert failures["round"].tolist() == [1, 1, 2, 2]
    assert failures["step"].notna().all() == (error is None)
    assert found.summary["clients_failed"] == 4
    told = messages.drain()
    assert [text for text in told if f"round 2: 2 of {CLIENTS} clients failed and are left out" in text]


def test_who_failed_in_a_common_pass_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a block that is lost with one of its clients; others that are trained with what is left of it."""
    config = failing("block", participation=DROP)
    fails(monkeypatch, BAD, lambda: ValueError("no such row"))
    raised = drive(tmp_path / "raised", config)
    fails(monkeypatch, BAD, None)
    diverged = drive(tmp_path / "diverged", config)
    for found in (raised, diverged):
        assert found.folder.frame("failures")["client"].tolist() == [*BAD, *BAD]
        assert np.isfinite(found.driver.weights[0].numpy()).all()
    # One is trained again without the others, the other went on beside them: the same but for rounding.
    for one, other in zip(raised.driver.weights, diverged.driver.weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_too_few_that_succeed_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a model of the few that are left, or the old one, where a share was asked for."""
    share = (CLIENTS - 1) / CLIENTS
    config = failing(participation={**DROP, "min_success": share})
    fails(monkeypatch, BAD, None)
    driver = open_driver(tmp_path, config)
    before = driver.weights[0].clone()
    wanted = (
        rf"round 1: 2 of {CLIENTS} clients failed, and participation.min_success=[\d.]+ asks for {CLIENTS - 1} that"
    )
    with pytest.raises(RunError, match=f"{wanted} do not; the first: client 1 diverged in round 1"):
        driver.advance()
    assert torch.equal(driver.weights[0], before)
    assert driver.round == 0
    driver.close()


@pytest.mark.parametrize(("share", "cohort", "least"), [(1.0, 7, 7), (0.5, 7, 4), (0.29, 100, 29), (0.01, 5, 1)])
def test_the_least_number_of_clients(share: float, cohort: int, least: int) -> None:
    """Kills: a share that is rounded down, or up by what a float cannot say."""
    assert Participation(min_success=share).least(cohort) == least


def test_nobody_left_is_an_error_at_any_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: the old model kept in silence, where all clients failed."""
    fails(monkeypatch, range(CLIENTS), None)
    driver = open_driver(tmp_path, failing(participation={**DROP, "min_success": 1e-9}))
    with pytest.raises(RunError, match=f"{CLIENTS} of {CLIENTS} clients failed"):
        driver.advance()
    driver.close()


@pytest.mark.parametrize(
    ("spoilt", "name", "what"),
    [(0, "control_delta", "entry 'control_delta' of its upload"), (1, "control", "entry 'control' of its state")],
    ids=["upload", "state"],
)
def test_what_a_client_sends_and_keeps_is_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoilt: int, name: str, what: str
) -> None:
    """Kills: an upload or a state that is not finite, of weights that are."""
    original = Scaffold.upload

    def upload(*args: Any) -> Any:
        both = original(*args)
        entries = both[spoilt]
        entries[name] = entries[name] * torch.inf
        return both

    monkeypatch.setattr(Scaffold, "upload", upload)
    driver = open_driver(tmp_path, failing(algorithm="scaffold"))
    with pytest.raises(ClientError, match=rf"client 0 diverged in round 1: {what} is not finite after \d+ steps"):
        driver.advance()
    driver.close()


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
def test_each_number_is_looked_at(wrong: float) -> None:
    """Kills: infinities of one sign, or NaN, that pass."""
    assert not is_finite(torch.tensor([0.0, wrong, 1.0]))
    assert is_finite(torch.tensor([0.0, 1e38]), torch.tensor([1]), torch.zeros(0))
    assert not_finite({"a": torch.ones(2), "b": torch.tensor([wrong]), "c": torch.tensor([wrong])}) == "b"


def test_a_server_that_diverges_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a model that is not finite and is broadcast, saved and called a result."""
    aggregate = FedAvg.aggregate
    monkeypatch.setattr(
        FedAvg,
        "aggregate",
        lambda *args: {name: tensor * torch.inf for name, tensor in aggregate(*args).items()},
    )
    driver = open_driver(tmp_path, failing())
    with pytest.raises(RunError, match=r"FedAvg.aggregate made entry 'weights', which is not finite; lower the server"):
        driver.advance()
    assert torch.isfinite(driver.weights[0]).all()
    driver.close()


@pytest.mark.parametrize(
    ("error", "raised", "message"),
    [
        (lambda: MemoryError(), MemoryShort, "do not fit into a worker's memory: MemoryError; 3 clients are trained"),
        (lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryShort, "set execution.block=1"),
        (lambda: RuntimeError("CUDNN_STATUS_ALLOC_FAILED"), MemoryShort, "set execution.block=1"),
        (lambda: RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), MemoryShort, "set execution.block=1"),
        (lambda: RuntimeError("CUDA error: uncorrectable ECC error"), RunError, "a file or a device failed"),
        (lambda: OSError(errno.EIO, "disk"), RunError, "a file or a device failed"),
        (lambda: ResourceError("no card"), ResourceError, "no card"),
    ],
    ids=["memory", "torch", "cudnn", "cuda", "card", "disk", "resource"],
)
def test_the_machine_never_costs_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, raised: type[Exception], message: str
) -> None:
    """Kills: a client that is left out for what its worker lacks, so that bits depend on the machine; a want of memory
    without the block that would fit."""
    fails(monkeypatch, BAD, error)
    driver = open_driver(tmp_path, failing("block", participation=DROP))
    with pytest.raises(raised, match=message) as found:
        driver.advance()
    assert not isinstance(found.value, ClientError)
    driver.close()


def test_the_policy_is_part_of_an_experiment_where_clients_are_dropped() -> None:
    """Kills: a run with clients left out that passes for one without; one that begins anew for a share that it has no
    use for."""
    plain = failing()
    assert plain.replace({"participation.min_success": 0.9}).digest == plain.digest
    dropped = plain.replace({"participation.on_client_error": "drop"})
    assert len({plain.digest, dropped.digest, dropped.replace({"participation.min_success": 0.9}).digest}) == 3


def test_the_error_of_a_client_crosses_processes() -> None:
    """Kills: an error that arrives without its client, round and step."""
    error = pickle.loads(pickle.dumps(ClientError("client 3 failed", 3, 7, 12)))
    assert (str(error), error.client, error.round, error.step) == ("client 3 failed", 3, 7, 12)


def test_a_round_has_a_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a round without end; a message that does not say what was waited for; a run that cannot go on after it."""
    undisturbed = drive(tmp_path / "undisturbed", failing()).sha
    config = failing().replace({"execution.round_timeout": 3600.0})
    with monkeypatch.context() as patched:
        patched.setattr(Deadline, "left", lambda deadline: -1.0)
        driver = open_driver(tmp_path / "run", config)
        message = r"round 1 took longer than execution.round_timeout=3600 s, and waited for round 1: clients 0, 1, 2; "
        with pytest.raises(RunError, match=message):
            driver.advance()
        driver.close()
    again = open_driver(tmp_path / "run", config)
    while not again.finished:
        again.advance()
    assert again.close()["weights_sha256"] == undisturbed


def test_an_older_folder_has_no_failures(tmp_path: Path) -> None:
    """Kills: a table that must be there."""
    found = drive(tmp_path, failing())
    assert not (tmp_path / "failures.parquet").exists()
    assert len(RunFolder(tmp_path).frame("failures")) == 0
    assert found.summary["clients_failed"] == 0
