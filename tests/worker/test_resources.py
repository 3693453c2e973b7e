"""More processes than the machines have cores or memory for."""

from __future__ import annotations

import pytest

from engine.base.errors import ConfigError
from engine.experiment import Execution
from engine.run.log import Messages
from engine.sweeps.planning import Mode, at_once
from engine.worker import thread_count
from engine.worker.ray import cluster
from engine.worker.ray.resources import PROCESS, check_actors
from tests.worker.test_workers import count

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


@pytest.mark.parametrize(("cpus", "refused"), [(2.0, False), (64.0, True)])
def test_a_clusters_own_resources_count(
    monkeypatch: pytest.MonkeyPatch, messages: Messages, cpus: float, refused: bool
) -> None:
    """Kills: this machine's cores and memory for those of a cluster; a refusal of what a cluster grows for."""
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", lambda *_, **__: None)
    monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: {"CPU": cpus, "memory": 8.0 * PROCESS})
    if refused:
        with pytest.raises(ConfigError, match="the cluster has"):
            cluster.connect(Execution(actors=64), "auto")
    else:
        cluster.connect(Execution(actors=64), "auto")
        assert "the cluster has 2" in messages.drain()[0]


def test_trials_at_a_time_have_memory() -> None:
    """Kills: a sweep with a process for each of many cores on a machine with little memory; actors left out."""
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


def test_workers_that_share_cores_are_told(monkeypatch: pytest.MonkeyPatch, messages: Messages) -> None:
    """Kills: eight threads on two cores in silence; a warning for two."""
    assert count(monkeypatch, cores=2, execution={"workers": 2}) == 2
    assert messages.drain() == []
    assert count(monkeypatch, cores=2, execution={"workers": 8}) == 8
    assert "execution.workers=8 with execution.threads=1 on 2 cores: each thread gets 1/4 of" in messages.drain()[0]
    assert thread_count.log.name == "fedskew"
