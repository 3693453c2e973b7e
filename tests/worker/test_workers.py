"""Several workers of one process: how many, which call goes where, and that no result shows it."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import Client, Context, Entries, Kind, LocalRun, Tensors
from engine.base.errors import ConfigError
from engine.client.messages import TrainJob
from engine.client.steps.jvp import jvp
from engine.experiment import Execution, Experiment
from engine.models import MODELS
from engine.run.run import Run
from engine.sweeps.trial import in_trial
from engine.worker import in_process
from engine.worker import thread_count as workers
from engine.worker.in_process import AHEAD, InProcessPool
from engine.worker.pool import Call
from engine.worker.thread_count import workers_of
from tests.support.tiers import six
from tests.support.tiny import BATCHNORM, CLASSES, assignment, dataset, drive, experiment, experiment_of

SIZES = [12, 20, 7, 31]


def pool_of(workers: int, work: Callable[[int, int], Any]) -> InProcessPool:
    """Their method "work" is ``work`` of the worker's number and the call's argument."""
    pool = InProcessPool(experiment(execution={"workers": workers}).resolve(), dataset(), assignment(SIZES))
    for number, worker in enumerate(pool._workers):
        worker.work = lambda job, argument, number=number: work(number, argument)  # type: ignore[attr-defined]
    return pool


def calls(*costs: float) -> list[Call]:
    return [Call(label=str(index), args=(index,), cost=cost) for index, cost in enumerate(costs)]


@pytest.mark.slow
@pytest.mark.parametrize("name", six(ALGORITHMS))
def test_bits_do_not_depend_on_workers(tmp_path: Path, name: str) -> None:
    """Kills: workers that share a network, what was received, a generator or forward mode's one level of duals; sums
    in the order in which blocks end."""
    model = BATCHNORM["model"] if name == "cbfl" else experiment_of(name).to_mapping()["model"]
    hashes = [
        {key: drive(tmp_path / str(workers), config).summary[key] for key in ("weights_sha256", "states_sha256")}
        for workers in (1, 3)
        for config in [experiment_of(name, rounds=2, model=model, execution={"workers": workers, "block": 2})]
    ]
    assert hashes[0] == hashes[1]


class Writes(FedAvg):
    """Writes in place to all that it is given, against the contract."""

    entries: ClassVar[Entries] = {**FedAvg.entries, "kept": Kind.TENSOR, "row": Kind.TENSOR}

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        return {"kept": torch.zeros(1)}

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        for tensor in (*received.values(), *state.values()):
            tensor.add_(1)
        return {"weights": run.end}, state


def test_a_worker_alters_nothing_that_others_read() -> None:
    """Kills: a broadcast, a row for one client or a state of the store that a worker's write in place changes for the
    server, for the next round and for other workers."""
    config = experiment(execution={"workers": 2}, evaluation={"client_loss": False}).resolve()
    pool = InProcessPool(config, dataset(), assignment(SIZES))
    net = pool._workers[0].net
    context = Context(1, 0.1, 4, sum(SIZES), 4, 4.0, 1.0, net.layout)
    shared = {"weights": torch.randn(net.layout.size), "buffers": torch.ones(net.layout.buffers)}
    rows, states = {"row": torch.ones(4, 3)}, [{"kept": torch.full((1,), float(client))} for client in range(4)]
    before = copy.deepcopy((shared, rows, states))
    job = TrainJob(Writes(), config.local, context, stateful=True, probe=False, test_locally=False)
    work = [
        Call("", ((client,), {"row": rows["row"][client : client + 1]}, (False,)), states=(states[client],))
        for client in range(4)
    ]
    blocks = list(pool.run("train", shared, job, work, "test"))
    pool.close()
    assert [block.states[client]["kept"].item() for client, block in enumerate(blocks)] == [1, 2, 3, 4]
    for given, old in zip((shared, rows, *states), (*before[:2], *before[2]), strict=True):
        assert all(torch.equal(tensor, old[name]) for name, tensor in given.items())


def test_calls_go_on_beside_each_other() -> None:
    """Kills: workers that wait for one another."""
    together = threading.Barrier(3)
    pool = pool_of(3, lambda number, argument: together.wait(100) >= 0)
    assert all(result for result in pool.run("work", {}, None, calls(1, 1, 1), "test"))
    pool.close()


def submissions(pool: InProcessPool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The arguments of a pool's calls in the order in which its threads are given them."""
    order = list[int]()
    submit = pool._threads.submit  # type: ignore[union-attr]

    def recorded(work: Callable[..., Any], call: Call) -> Future[Any]:
        order.append(call.args[0])
        return submit(work, call)

    monkeypatch.setattr(pool._threads, "submit", recorded)
    return order


def test_the_longest_call_starts_first_and_results_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: calls as they come; results as they end; two calls on one worker at once."""
    busy = set[int]()

    def work(number: int, argument: int) -> tuple[int, int]:
        assert number not in busy
        busy.add(number)
        busy.discard(number)
        return number, argument

    pool = pool_of(2, work)
    order = submissions(pool, monkeypatch)
    results = list(pool.run("work", {}, None, calls(1, 5, 2, 4, 3), "test"))
    assert [result[1] for result in results] == [0, 1, 2, 3, 4]
    assert order == [1, 3, 4, 2, 0]
    pool.close()


def test_one_worker_is_the_callers_thread() -> None:
    """Kills: a thread behind the debugger's back; a call that is made before its result is asked for."""
    threads = list[int]()
    pool = pool_of(1, lambda number, argument: threads.append(threading.get_ident()))
    results = pool.run("work", {}, None, calls(1, 2), "test")
    next(results)
    assert threads == [threading.get_ident()]


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set when a pool has cancelled what has not begun, and waits for the rest."""
    event = threading.Event()
    monkeypatch.setattr(in_process, "wait", lambda futures: (event.set(), wait(futures)))
    yield event
    event.set()  # whatever has failed, no worker waits for ever


def test_after_an_error_nothing_goes_on(cancelled: threading.Event) -> None:
    """Kills: an error that is lost; calls that train on while the run is being closed."""
    begun, ended = list[int](), list[int]()

    def work(number: int, argument: int) -> None:
        begun.append(argument)
        if argument == 0:
            raise ValueError("this one")
        cancelled.wait()
        ended.append(argument)

    pool = pool_of(2, work)
    with pytest.raises(ValueError, match="this one"):
        list(pool.run("work", {}, None, calls(9, 8, 1, 1, 1, 1, 1, 1), "test"))
    assert set(begun) <= {0, 1, 2}  # the failed one's worker has taken another call, or has not
    assert sorted(ended) == sorted(set(begun) - {0})
    before = len(begun)
    pool.close()
    assert len(begun) == before
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("worker")]


def test_an_interrupt_waits_for_what_is_under_way_alone(
    monkeypatch: pytest.MonkeyPatch, cancelled: threading.Event
) -> None:
    """Kills: an interrupted run whose clients train on, the one that was waited for among them."""
    begun, ended = list[int](), list[int]()
    under_way = threading.Barrier(3)  # two workers and the one who waits for them

    def work(number: int, argument: int) -> None:
        begun.append(argument)
        under_way.wait(100)
        cancelled.wait()
        ended.append(argument)

    pool = pool_of(2, work)
    submit = pool._threads.submit  # type: ignore[union-attr]

    def interrupted(work: Callable[..., Any], call: Call) -> Future[Any]:
        future = submit(work, call)

        def result() -> None:
            under_way.wait(100)
            raise KeyboardInterrupt

        future.result = result  # type: ignore[assignment,method-assign]
        return future

    monkeypatch.setattr(pool._threads, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(pool.run("work", {}, None, calls(*[1] * 8), "test"))
    assert sorted(begun) == sorted(ended) == [0, 1]
    pool.close()


def test_results_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: all uploads of a large cohort in memory, where the driver is slower than its workers."""
    pool = pool_of(2, lambda number, argument: None)
    order = submissions(pool, monkeypatch)
    results = pool.run("work", {}, None, calls(*range(3 * AHEAD)), "test")
    for taken in (1, 2, 3):
        next(results)
        assert sorted(order) == list(range(AHEAD + taken))
    results.close()  # type: ignore[attr-defined]
    pool.close()


def test_forward_mode_is_one_threads_at_a_time(switching: None) -> None:
    """Kills: two levels of duals at once, of which torch has one."""
    inside = threading.Lock()

    def net(x: torch.Tensor) -> torch.Tensor:
        assert inside.acquire(blocking=False), "another thread is in forward mode"
        for _ in range(1000):  # time enough for another thread to come in
            pass
        inside.release()
        return x * x

    def derivative(start: int) -> bool:
        x = torch.arange(start, start + 3.0)
        return torch.equal(jvp(net, x, torch.ones(3))[1], 2 * x)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(derivative, range(40)))


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


# --- how many -------------------------------------------------------------------------------------------


def count(monkeypatch: pytest.MonkeyPatch, cores: int = 2, **changes: Any) -> int:
    monkeypatch.setattr(workers, "cores", lambda: cores)
    changes.setdefault("model", {"name": "mlp", "hidden": [10]})  # (64 + 4) 10 multiply-adds a row
    changes["execution"] = {"workers": "auto", **changes.get("execution", {})}
    return workers_of(experiment(**changes).resolve(), (1, 8, 8), CLASSES, assignment(SIZES))


def test_networks_that_draw_from_the_process_are_built_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: weights that depend on which of two threads drew first, or a draw of one that the other is blamed for."""
    models = [{"name": "mlp", "hidden": [10]}, {"name": "mlp", "hidden": [12]}]
    two: dict[str, Any] = {"client_models": models, "execution": {"workers": 4}, "algorithm": {"name": "local"}}
    two["evaluation"] = {"every": 0}
    assert count(monkeypatch, **two) == 4
    monkeypatch.setattr(MODELS["mlp"], "keeps_weights", True)
    assert count(monkeypatch, **two) == 1


def test_workers_where_operations_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: threads that wait for the interpreter; rows or layers left out; a worker without a core."""
    rows = -(-workers.LONG // 680)
    assert [count(monkeypatch, local={"batch_size": size}) for size in (8, rows - 1, rows, 4 * rows)] == [1, 1, 2, 2]
    long = {"local": {"batch_size": rows}}
    assert [count(monkeypatch, cores=cores, **long) for cores in (1, 3, 4, 64)] == [1, 3, 4, 4]
    assert count(monkeypatch, cores=8, execution={"threads": 3}, **long) == 2
    assert count(monkeypatch, cores=1, execution={"threads": 3}, **long) == 1
    assert [count(monkeypatch, execution={"workers": number}) for number in (1, 3)] == [1, 3]
    assert count(monkeypatch, execution={"autocast": "bfloat16"}, **long) == 1


def test_a_full_batch_is_a_mean_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a word for a number; a full batch taken for a long one."""
    monkeypatch.setattr(workers, "LONG", 17 * 680)
    assert count(monkeypatch, local={"batch_size": "full"}) == 2  # 70 rows of four clients: 17.5
    monkeypatch.setattr(workers, "LONG", 19 * 680)
    assert count(monkeypatch, local={"batch_size": "full"}) == 1


def test_the_cheapest_of_models_and_stages_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one stage's long operations for all; the dearest of clients' models."""
    monkeypatch.setattr(workers, "LONG", 10_000)
    stages = [
        {"name": "first", "rounds": 1, "local": {"batch_size": 64}},
        {"name": "second", "rounds": 1, "needs": ["first"], "local": {"batch_size": 8}},
    ]
    assert count(monkeypatch, local={"batch_size": 64}) == 2
    assert count(monkeypatch, stages=stages) == 1
    models = [{"name": "mlp", "hidden": [10]}, {"name": "logistic"}]
    local = {"local": {"batch_size": 20}, "algorithm": {"name": "local"}}
    assert [count(monkeypatch, client_models=models[:number], **local) for number in (1, 2)] == [2, 1]


def test_what_takes_turns_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: threads on a GPU that device=auto has found, or that share what autocast has cast; an address that is not
    used."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    with pytest.raises(ConfigError, match=r"execution\.workers=2: is threads of one process, which take turns"):
        Experiment(execution={"workers": 2}).resolve()
    with pytest.raises(ConfigError, match=r"execution\.workers=2: .* share what execution\.autocast=bfloat16 has cast"):
        Experiment(execution={"workers": 2, "autocast": "bfloat16"})
    with pytest.raises(ConfigError, match=r"--address=auto: is of a Ray cluster, and execution\.actors=0"):
        Run.open(Experiment(execution={"device": "cpu"}), address="auto")


def test_a_trial_has_one_worker_and_actors_with_their_threads() -> None:
    """Kills: workers beyond what a trial reserves; a folder whose experiment nobody can read back."""
    execution = Execution(threads=4)
    assert (in_trial(execution, 0).workers, in_trial(execution, 0).cpus_per_actor) == (1, 1.0)
    nested = in_trial(execution, 2)
    assert (nested.actors, nested.cpus_per_actor) == (2, 4.0)
    assert Execution(**nested.model_dump()) == nested
