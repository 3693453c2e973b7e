"""More processes than the machines have cores or memory for."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray.exceptions

from engine.base import devices
from engine.base.errors import ConfigError, ResourceError
from engine.experiment import Execution
from engine.run.log import Messages
from engine.sweeps.planning import Mode, at_once
from engine.worker import addresses, thread_count
from engine.worker.ray import cluster
from engine.worker.ray.resources import PROCESS, check_actors
from tests.worker.test_workers import count

OF_THE_SERVER = """Failed to connect to GCS. Last connection error: Traceback (most recent call last):
  File "ray/_private/node.py", line 996, in _init_gcs_client
    client = GcsClient(
             ^^^^^^^^^^
  File "python/ray/includes/common.pxi", line 119, in ray._raylet.check_status
ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing or incorrect. Note: ...
"""
PLENTY = 1000 * PROCESS


def told(messages: Messages, execution: Execution, cpus: float, memory: float = PLENTY) -> list[str]:
    check_actors(execution, cpus, memory, "this machine")
    return messages.drain()


def test_actors_that_share_cores_are_told_with_the_arithmetic(messages: Messages) -> None:
    """Kills: 64 actors on two cores in silence; a warning for as many as there are cores; shares left out."""
    assert told(messages, Execution(actors=2), 2) == []
    [text] = told(messages, Execution(actors=64), 2)
    assert "execution.actors=64 want 64 cores and this machine has 2: each gets 1/32 of" in text
    assert "13.4 GB of memory; execution.actors=2 is faster, with the same bits" in text
    assert told(messages, Execution(actors=8, cpus_per_actor=2), 16) == []
    [text] = told(messages, Execution(actors=3, cpus_per_actor=4), 8)
    assert "want 12 cores" in text and "execution.actors=2 is faster" in text


def test_actors_beyond_memory_are_refused(messages: Messages) -> None:
    """Kills: actors that the kernel would kill one after the other; a repair that does not fit."""
    assert told(messages, Execution(actors=4), 4, 4 * PROCESS) == []
    with pytest.raises(
        ConfigError, match=r"execution\.actors=5: .* together 1\.0 GB, and this machine has 839 MB"
    ) as no:
        told(messages, Execution(actors=5), 8, 4 * PROCESS)
    assert no.value.repair == "set execution.actors=4"


def test_a_run_is_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a check that comes after Ray, or one that a run does not make; SIGTERM that is left to Ray."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    monkeypatch.setattr(cluster, "memory", lambda device: 10 * PROCESS)
    with pytest.raises(ConfigError, match=r"execution\.actors=64"):
        cluster.connect(Execution(actors=64))
    with pytest.raises(ConfigError, match="would keep a GPU from others"):
        cluster.connect(Execution(actors=1, device="cpu", gpus_per_actor=0.5), crowd=False)


@pytest.mark.parametrize(("cpus", "refused"), [(0.0, False), (2.0, False), (64.0, True)])
def test_a_clusters_own_resources_count(
    monkeypatch: pytest.MonkeyPatch, messages: Messages, cpus: float, refused: bool
) -> None:
    """Kills: this machine's cores and memory for those of a cluster; what it grows for, refused or divided by."""
    monkeypatch.setattr(cluster, "check_answers", lambda *_: None)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: {"CPU": cpus, "memory": 8.0 * PROCESS})
    if refused:
        with pytest.raises(ConfigError, match="the cluster has"):
            cluster.connect(Execution(actors=64), "auto")
    else:
        cluster.connect(Execution(actors=64), "auto")
        assert f"the cluster has {cpus:g}: more are waited for" in messages.drain()[0]


def test_trials_at_a_time_have_memory(messages: Messages) -> None:
    """Kills: a sweep with a process for each of many cores on a machine with little memory; actors left out; trials
    that wait for nodes in silence."""
    inside = Mode("inside", 0, ({"CPU": 1.0},), 64, "")
    nested = Mode("nested", 3, ({}, *[{"CPU": 1.0}] * 3), 16, "")
    little = [{"CPU": 32.0, "memory": 8.0 * PROCESS}, {"CPU": 32.0, "memory": 8.5 * PROCESS}]
    assert at_once(inside, [{"CPU": 64.0}], None) == 64
    assert at_once(inside, [{"CPU": 64.0}], 5) == 5
    assert at_once(inside, little, None) == 16
    assert at_once(nested, little, None) == 4
    assert at_once(inside, little, 16) == 16
    with pytest.raises(ConfigError, match=r"--concurrent=17: .*set --concurrent 16"):
        at_once(inside, little, 17)
    assert messages.drain() == []
    assert at_once(inside, [{"CPU": 64.0}], 200) == 64
    assert messages.drain() == ["--concurrent=200: 64 trials have places now, the others wait for some"]


def test_workers_that_share_cores_are_told(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    """Kills: eight threads on two cores in silence; a warning for two."""
    assert count(monkeypatch, cores=2, execution={"workers": 2}) == 2
    assert messages.drain() == []
    assert count(monkeypatch, cores=2, execution={"workers": 8}) == 8
    assert "execution.workers=8 with execution.threads=1 on 2 cores: each thread gets 1/4 of" in messages.drain()[0]
    assert thread_count.log.name == "fedskew"


def test_a_containers_share_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: 64 threads in a container that has the time of two cores; a part of a core rounded to none; a machine of
    its own taken for a container; the limit of a group above the process's own, where batch systems set it."""
    own = tmp_path / "job/step"
    own.mkdir(parents=True)
    monkeypatch.setattr(devices, "CONTROL_GROUP", tmp_path)
    monkeypatch.setattr(devices, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: set(range(64)))
    assert devices.cores() == 64 and devices.memory("cpu") > 0
    for limit, cores in {"max 100000": 64, "200000 100000": 2, "250000 100000": 3, "5000 100000": 1}.items():
        (tmp_path / "cpu.max").write_text(f"{limit}\n")
        assert devices.cores() == cores
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: {0, 5})
    (tmp_path / "cpu.max").write_text("1600000 100000\n")
    assert devices.cores() == 2
    (tmp_path / "memory.max").write_text("1048576\n")
    assert devices.memory("cpu") == 1048576
    (tmp_path / "cgroup").write_text("4:memory:/other\n0::/job/step\n")
    (own / "memory.max").write_text("max\n")
    (own.parent / "memory.max").write_text("4096\n")
    (own.parent / "cpu.max").write_text("100000 100000\n")
    assert (devices.memory("cpu"), devices.cores()) == (4096, 1)


# --- the address of a cluster ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "variable", "used", "given"),
    [
        (None, "", "", "--address=None"),
        ("local", "", "", "--address=local"),
        (None, "local", "", "RAY_ADDRESS=local"),
        ("auto", "local", "", "RAY_ADDRESS=local"),
        (None, "a:1", "a:1", "RAY_ADDRESS=a:1"),
        ("auto", "a:1", "a:1", "RAY_ADDRESS=a:1"),
        ("b:2", "a:1", "b:2", "--address=b:2"),
        ("auto", "", "auto", "--address=auto"),
    ],
)
def test_the_address_that_ray_would_use(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, variable: str, used: str, given: str
) -> None:
    """Kills: the option named where Ray takes the variable; "local" for a cluster, whose ports would be open to all."""
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert addresses.used(asked) == (used, given)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (None, "RAY_ADDRESS={0}: no Ray answers at {0} within 10 s; start that Ray, or unset RAY_ADDRESS"),
        ("{}", "--address={0}: no Ray answers at {0} within 10 s; start that Ray, or leave --address away"),
        (
            "ray://{}",
            "--address=ray://{0}: ray:// is for programs outside the cluster, and fedskew runs on a node of it; start "
            "it there or by 'ray job submit', with auto for this address (docs/cluster.md)",
        ),
    ],
)
def test_a_dead_address_is_told_before_ray_tries_it(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, told: str
) -> None:
    """Kills: five minutes of Ray's own tries; a message that does not say which variable or option to mend."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        dead = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", dead)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", lambda *_, **__: pytest.fail("Ray was asked"))
    with pytest.raises(ResourceError) as error:
        cluster.connect(Execution(actors=1), asked and asked.format(dead))
    assert str(error.value) == told.format(dead)


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
def test_what_answers_and_is_no_ray(says: bytes) -> None:
    """Kills: minutes of Ray's own tries, in which no signal is seen, where another server is at the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(says)
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        assert not addresses.answers(f"127.0.0.1:{server.getsockname()[1]}", 60.0)


def test_a_name_that_is_not_found_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a look-up of a name that nobody bounds, in which no signal is seen."""
    over = threading.Event()
    monkeypatch.setattr(
        addresses.socket,
        "create_connection",
        lambda *_: over.wait() and nullcontext(SimpleNamespace(sendall=len, recv=bytes)),
    )
    assert not addresses.answers("nowhere.example:6379", patience=0.05)
    over.set()


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            ray.exceptions.AuthenticationError("no token"),
            "that Ray asks for a token, and this process has not the right",
        ),
        (RuntimeError(OF_THE_SERVER), "that Ray asks for a token"),
        (
            ConnectionError("\x1b[31mver\nsion"),
            "what answers there is no Ray that can be used (ConnectionError: ver sion)",
        ),
        (Exception("odd"), "what answers there is no Ray that can be used (Exception: odd); start that Ray, or leave"),
    ],
)
def test_a_cluster_that_refuses_is_told_as_one(monkeypatch: pytest.MonkeyPatch, raised: Exception, told: str) -> None:
    """Kills: "no Ray answers" for a token that is not the cluster's; raw errors of Ray's."""

    def refuses(**_: object) -> None:
        if isinstance(raised, ray.exceptions.RayError):
            raise raised
        raise ConnectionError("Failed to connect to Ray cluster at 192.0.2.2:1") from raised

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "check_answers", lambda *_: None)
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", refuses)
    with pytest.raises(ResourceError, match=rf"^--address=a:1: {re.escape(told)}"):
        cluster.connect(Execution(actors=1), "a:1")
