"""What fits: the arithmetic, and a trial that leaves no trace."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from algorithms import ALGORITHMS
from engine.algorithm import PostTraining
from engine.base import devices
from engine.base.errors import ResourceError
from engine.client.peak_memory import USABLE, PeakMemory
from engine.client.trainer import Trainer
from engine.experiment import Execution
from engine.models import MLP
from engine.worker import preflight
from engine.worker.in_process import InProcessPool
from engine.worker.preflight import Preflight, activations, verdict
from tests.support.bench import Bench
from tests.support.tiers import six
from tests.support.tiny import BASE, drive, experiment, experiment_of

GB = 10**9
BENCH = Bench(MLP(hidden=(12,)))  # the network of tiny.py


def on_card(share: float, actors: int = 8) -> Execution:
    return Execution(device="cuda", gpus_per_actor=share, actors=actors)


def test_what_is_said_of_a_card() -> None:
    """Kills: a share that does not fit and goes through; a refusal of one that does; a repair that would be refused."""
    peak = PeakMemory(needed=2 * GB, total=16 * GB)  # 7 fit
    assert verdict(peak, 7, on_card(1 / 7)) == (
        "a worker takes 2.0 GB of the card's 16.0 GB with its largest client, so 7 would fit on it: "
        "execution.gpus_per_actor=0.1428"
    )
    with pytest.raises(ResourceError) as error:
        verdict(peak, 8, on_card(0.125))
    assert str(error.value) == (
        "execution.gpus_per_actor=0.125: 8 workers of 2.0 GB each do not fit on a card of 16.0 GB; 7 do: set "
        "execution.gpus_per_actor=0.1428"
    )
    with pytest.raises(ResourceError, match=r"device=cuda: 1 workers .*; lower local.batch_size"):
        verdict(PeakMemory(17 * GB, 16 * GB), 1, on_card(0.0, actors=0))


def test_what_is_said_of_lanes() -> None:
    """Kills: a repair that begins another run where one lane less would do; lanes of an executor that has none."""
    lanes = Execution(device="cuda", executor="graph", lanes=4, block=8)
    with pytest.raises(ResourceError, match=r"; lower .* a smaller model, or lower execution.lanes=4, for equal bits$"):
        verdict(PeakMemory(17 * GB, 16 * GB), 1, lanes)
    config = experiment(execution=lanes.model_dump())
    preflight = Preflight(config, config.chain[0], BENCH.context, 1, 20, lanes=4)
    assert preflight.smaller(BENCH.net.layout) == (
        "4 clients are trained side by side: set execution.lanes=2, for equal bits"
    )


def test_the_share_that_is_named_is_taken_as_it_is_meant() -> None:
    """Kills: 0.0667 for 15 actors, which Ray would be given as 1/14."""
    from engine.worker.ray.cluster import gpu_share

    for fitting in range(1, 200):
        told = verdict(PeakMemory(GB, int((fitting + 0.5) * GB / USABLE)), 1, on_card(1.0, actors=1))
        share = float(told.rpartition("=")[2])
        assert int(1 / gpu_share(share) + 1e-6) == min(fitting, 99)


def test_what_is_said_of_a_machine() -> None:
    """Kills: a refusal for memory that others may free; silence."""
    peak = PeakMemory(needed=3 * GB, total=16 * GB)
    execution = Execution(device="cpu", actors=6)
    fits = "a worker takes 3.0 GB with its largest client, and this machine has 16.0 GB, enough for 5"
    assert verdict(peak, 5, execution) == fits
    assert verdict(peak, 6, execution) == f"{fits} and not for 6; lower execution.actors or local.batch_size"


def flight(held: int = 1000, side_by_side: int = 2, **changes: Any) -> Preflight:
    config = experiment(**{"execution": {"actors": 2, "device": "cpu"}, **changes})
    return Preflight(config, config.chain[0], BENCH.context, side_by_side, held)


def test_the_trial_is_two_batches() -> None:
    """Kills: a trial as long as a round; one smaller than what it is to stand for."""
    plain = flight(local={"batch_size": 32, "epochs": 5})
    assert (plain.batch, plain.rows, plain.local.epochs, plain.local.steps) == (32, 64, 1, None)
    assert flight(local={"batch_size": 32, "steps": 50}).local.steps == 2
    assert flight(local={"batch_size": 32, "steps": 1}).local.steps == 1
    assert flight(held=40, local={"batch_size": 32}).rows == 40
    assert (flight(local={"batch_size": "full"}).batch, flight(local={"batch_size": "full"}).rows) == (500, 1000)
    whole = flight(algorithm={"name": "scaffold", "option": "I"})  # one gradient of all rows
    assert (whole.batch, whole.rows) == (500, 1000)
    norms = replace(whole.context, layout=replace(whole.context.layout, has_batchnorm=True))
    assert replace(whole, context=norms).batch == 1000  # which is not cut


def test_numbers_that_a_model_puts_out() -> None:
    """Kills: containers that are counted beside what is in them, a batch for an image."""
    inner = {"Flatten": 64, "Linear": 5 + 6 + 4, "ReLU": 5 + 6}
    assert activations(MLP(hidden=(5, 6)), (1, 8, 8), 4) == sum(inner.values())


def test_a_trial_is_made_where_it_may_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: small runs that pay for it; large ones that do not; one in process, which has nobody beside it."""
    layout = BENCH.context.layout
    small = flight(local={"batch_size": 8})
    monkeypatch.setattr(devices, "memory", lambda device: 10**12)
    assert not small.due(layout)
    monkeypatch.setattr(devices, "memory", lambda device: int(small.estimate(layout) / preflight.SMALL) * 2 + 2)
    assert not small.due(layout)
    assert flight(side_by_side=3, local={"batch_size": 8}).due(layout)
    alone = flight(side_by_side=1, execution={"actors": 0, "device": "cpu"})
    monkeypatch.setattr(devices, "memory", lambda device: 1)
    assert not alone.due(layout)

    def unseen(device: str) -> int:
        raise AssertionError("the driver sees no card")

    monkeypatch.setattr(devices, "memory", unseen)
    assert flight(execution={"actors": 2, "device": "cuda", "gpus_per_actor": 0.5}).due(layout)


def test_the_estimate_is_of_a_batch_and_the_weights() -> None:
    """Kills: an estimate that forgets the precision, the batch or the weights."""
    layout, base = BENCH.context.layout, flight(local={"batch_size": 8})
    outputs = activations(base.experiment.model, layout.image, layout.classes)
    assert base.estimate(layout) == 4 * (12 * layout.size + 4 * 8 * outputs)
    double = {"actors": 2, "device": "cpu", "precision": "float64"}
    assert flight(local={"batch_size": 8}, execution=double).estimate(layout) == 2 * base.estimate(layout)


class Crowded(InProcessPool):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.side_by_side = 10**6


FLOWN = [name for name, kind in ALGORITHMS.items() if not issubclass(kind, PostTraining)]


@pytest.mark.slow
@pytest.mark.parametrize("name", six(FLOWN))
def test_a_trial_changes_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every algorithm, two on a model with BatchNorm. Kills: draws that the trial takes from the round's, a state
    that is kept of it, a trial in each round, one that an algorithm cannot do."""
    model = {"name": "resnet8"} if name in ("fedavg", "scaffold") else BASE["model"]
    config = experiment_of(name, rounds=2, model=model, local={"epochs": 1, "batch_size": 8})
    plain = drive(tmp_path / "plain", config)
    monkeypatch.setattr("fedskew.testing.small_runs.InProcessPool", Crowded)
    crowded = config.replace({"execution.actors": 2})  # as on Ray
    with caplog.at_level(logging.INFO, "fedskew"):
        tried = drive(tmp_path / "tried", crowded)
    assert tried.shas == plain.shas
    said = [record.getMessage() for record in caplog.records if "a worker takes" in record.getMessage()]
    assert len(said) == 1
    assert "not for 1000000; lower execution.actors" in said[0]


def test_a_trial_is_made_once_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the client with most rows. Kills: the first client; one trial for algorithms that differ."""
    stages = [{"name": "one", "rounds": 2, "algorithm": {"name": "fedavg"}}]
    stages.append({"name": "two", "rounds": 2, "needs": ["one"], "algorithm": {"name": "scaffold"}})
    monkeypatch.setattr("fedskew.testing.small_runs.InProcessPool", Crowded)
    calls: list[tuple[str, tuple[Any, ...]]] = []
    run = InProcessPool.run

    def spy(self: InProcessPool, method: str, shared: Any, job: Any, work: Any, what: str) -> Any:
        calls.extend((type(job.algorithm).__name__, call.args) for call in work if method == "peak")
        return run(self, method, shared, job, work, what)

    monkeypatch.setattr(InProcessPool, "run", spy)
    drive(tmp_path, experiment(stages=stages, execution={"actors": 2, "device": "cpu"}))
    assert [name for name, _ in calls] == ["FedAvg", "Scaffold"]
    assert all(ids == (3,) and rows == 16 and clients == 1 for _, (ids, _, rows, clients) in calls)


def test_a_trial_is_of_as_many_clients_as_a_pass_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one client's memory taken for a stack's; the loop's trial of clients that are stacked."""
    monkeypatch.setattr("fedskew.testing.small_runs.InProcessPool", Crowded)
    sizes: list[list[int]] = []
    together = Trainer.train_together

    def spy(self: Trainer, visits: Any, probe: bool = False) -> Any:
        sizes.append([len(visit.indices) for visit in visits])
        return together(self, visits, probe)

    monkeypatch.setattr(Trainer, "train_together", spy)
    drive(tmp_path, experiment(rounds=1, execution={"actors": 2, "device": "cpu", "executor": "block"}))
    assert sizes[0] == [16] * 4  # then the round's two blocks
    assert sorted(map(len, sizes[1:])) == [4, 4]
