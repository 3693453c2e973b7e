"""Memory in proportion to a round's cohort: what a round takes and what is kept, whatever the number of clients."""

from __future__ import annotations

import gc
import json
import os
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_round
from benchmarks.first_round import few
from benchmarks.many_clients import judged
from benchmarks.memory import descendants, heap, processor_seconds, tree
from engine.client.messages import TrainResult
from engine.data import Replacement
from engine.experiment import Experiment
from engine.run.driver import Driver
from tests.support.tiny import CLASSES, dataset, experiment, open_driver

pytestmark = pytest.mark.slow

COHORT = 8


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def many(folder: Path, clients: int, **changes: Any) -> Driver:
    """A driver of clients that share 120 samples, 6 each."""
    settings = experiment(
        rounds=8,
        local={"epochs": 1},
        participation={"count": COHORT},
        evaluation={"every": 0},
        checkpoint={"every": 100},
        **changes,
    )
    data = dataset()
    partition = Replacement(clients=clients, samples=6)
    parts = partition.share_tests(partition.assign(data.train.labels, CLASSES), data)
    return open_driver(folder, settings, data, parts)


def test_a_round_takes_no_more_with_more_clients(tmp_path: Path, traced: None) -> None:
    """Kills: a Python object for each client in a round, a list of all of them, states of all that is opened."""
    taken = []
    for clients in (200, 20_000):
        driver = many(tmp_path / str(clients), clients)
        driver.advance()  # caches are filled
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        driver.advance()
        taken.append(tracemalloc.get_traced_memory()[1] - before)
    assert taken[1] - taken[0] < 2 * (20_000 - 200)  # a list of them would be 8 bytes each, without the numbers


def test_an_assignment_weighs_what_its_rows_do(traced: None) -> None:
    """Kills: an array object for each client, which weighs more than the six rows in it."""
    labels = dataset().train.labels
    before, _ = tracemalloc.get_traced_memory()
    parts = Replacement(clients=20_000, samples=6).assign(labels, CLASSES)
    kept = tracemalloc.get_traced_memory()[0] - before
    rows = 8 * sum(map(len, parts.clients))
    assert rows < kept < 1.5 * rows


@pytest.mark.parametrize("store", ["disk", "memory"])
def test_states_on_disk_are_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """Those in memory show that this tells. Kills: a store on disk that keeps what it has written, a cache beyond its
    bound, a round's states that outlive it, a file for each client whether it took part or not."""
    execution = {"actors": 0, "device": "cpu", "state_store": store, "state_cache_mb": 0}
    driver = many(tmp_path, 500, algorithm={"name": "scaffold"}, execution=execution)
    made, run = [], driver.pool.run

    def watched(*args: Any, **kwargs: Any) -> Iterator[Any]:
        for result in run(*args, **kwargs):
            states = result.states if isinstance(result, TrainResult) else {}
            made.extend(weakref.ref(tensor) for state in states.values() for tensor in state.values())
            yield result

    monkeypatch.setattr(driver.pool, "run", watched)
    while not driver.finished:
        driver.advance()
    gc.collect()
    touched = len(driver.lineage.states.joined)
    alive = sum(tensor() is not None for tensor in made)
    assert len(made) == 8 * COHORT and touched > 5 * COHORT
    assert alive == (1 if store == "disk" else touched)  # the last one, however small the bound
    assert len(driver.lineage.states.store.files) == touched
    files = list((tmp_path / "checkpoints" / "states").iterdir())
    assert len(files) == touched
    assert max(path.stat().st_size for path in files) < 4 * driver.layout.size + 200


def test_the_benchmark_judges_what_was_weighed() -> None:
    """Kills: an idle Ray taken off in process or not taken off on actors, clients compared across methods or cohorts,
    megabytes for bytes."""
    about = {"method": "fedavg", "cohort": 1000}
    cases = {
        "few": {**about, "actors": 0, "clients": 10_000, "megabytes": 300.0},
        "many": {**about, "actors": 0, "clients": 110_000, "megabytes": 500.0},
        "small cohort": {**about, "cohort": 100, "actors": 0, "clients": 110_000, "megabytes": 1001.0},
        "few on Ray": {**about, "actors": 2, "clients": 10_000, "megabytes": 1590.0},
        "many on Ray": {**about, "actors": 2, "clients": 110_000, "megabytes": 1690.0},
    }
    assert judged(cases, idle=600.0) == [
        ("few: 300 MB, limit 1000", True),
        ("many: 500 MB, limit 1000", True),
        ("small cohort: 1001 MB, limit 1000", False),
        ("few on Ray: 990 MB beside an idle Ray, limit 1000", True),
        ("many on Ray: 1090 MB beside an idle Ray, limit 1000", False),
        ("many: 2097 bytes for each client more than 10,000, limit 2000", False),
        ("many on Ray: 1049 bytes for each client more than 10,000, limit 2000", True),
    ]


def process(proc: Path, pid: int, parent: int, name: str, ticks: tuple[int, int], sizes: dict[str, int]) -> None:
    """A process as Linux tells of it: what it may have in its name, processor time, and kB of its memory."""
    (proc / str(pid)).mkdir()
    user, kernel = ticks
    # see proc(5): state, parent, group, session, terminal, its group, flags, four counts of faults, then times
    stat = f"{pid} ({name}) S {parent} 7 7 0 -1 4194304 11 22 33 44 {user} {kernel} 55 66 20 0 1 0 77 88 99\n"
    (proc / str(pid) / "stat").write_text(stat)
    lines = ["55d0c0a00000-7ffd1c9f2000 ---p 00000000 00:00 0                          [rollup]"]
    lines += [f"{kind + ':':<16}{size:>8} kB" for kind, size in sizes.items()]
    (proc / str(pid) / "smaps_rollup").write_text("\n".join(lines) + "\n")


def test_a_tree_of_processes_is_weighed_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a process without those it has started, or with its parent and others; a page counted for each process
    that shares it; a size or a time of another column; a name with spaces and brackets; an end in mid-look."""
    monkeypatch.setattr("benchmarks.memory.PROC", tmp_path)
    sizes = {"Rss": 90112, "Pss": 51200, "Pss_Dirty": 40, "Pss_Anon": 30720, "Pss_File": 80}
    process(tmp_path, 10, 1, "python", (100, 20), sizes)
    process(tmp_path, 12, 10, "ray::Actor.f() 1 2 3", (30, 4), {**sizes, "Pss": 1024, "Pss_Anon": 512})
    process(tmp_path, 9, 12, "below, with a lower number", (5, 6), {**sizes, "Pss": 2048, "Pss_Anon": 256})
    process(tmp_path, 13, 1, "somebody else's", (1000, 1000), sizes)
    process(tmp_path, 14, 10, "has just ended", (0, 1), sizes)
    (tmp_path / "14" / "smaps_rollup").unlink()
    process(tmp_path, 15, 10, "has told too little", (0, 0), {"Rss": 1})
    (tmp_path / "16").mkdir()  # ended before it was looked at
    (tmp_path / "uptime").write_text("1 2")
    assert descendants(10) == [9, 12, 14, 15]
    assert tree(10) == {10: 50.0, 12: 1.0, 9: 2.0}
    assert tree(10, "Pss_Anon") == {10: 30.0, 12: 0.5, 9: 0.25}
    assert tree(12) == {12: 1.0, 9: 2.0}
    assert heap(10) == 30.0 and heap(14) is heap(16) is None
    assert processor_seconds(10) == (120 + 34 + 11 + 1) / os.sysconf("SC_CLK_TCK")
    assert processor_seconds(9) == 11 / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell")
def test_a_process_that_lives_is_weighed_and_timed() -> None:
    """Kills: files that no system has."""
    assert tree(os.getpid())[os.getpid()] > 1
    assert processor_seconds(os.getpid()) > 0


def test_stages_are_what_lies_between_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: times since the command in place of the stage's own; an experiment that is not the one asked for."""
    marks = [["imports", 2.0, 1.5], ["data", 2.5, 1.75], ["first round", 4.0, 2.0]]

    def ran(command: list[str], env: dict[str, str], **_: Any) -> None:
        assert command[3] == "run" and Experiment.from_yaml(Path(command[4])) == few()
        Path(env[first_round.WATCHED]).write_text(json.dumps(marks))

    monkeypatch.setattr(first_round.subprocess, "run", ran)
    assert [tuple(stage.values()) for stage in first_round.stages(few())] == [
        ("imports", 2.0, 1.5),
        ("data", 0.5, 0.25),
        ("first round", 1.5, 0.25),
    ]


def test_the_page_tells_what_was_measured() -> None:
    """Kills: figures of an earlier measurement, a case that is left out."""
    root = Path(__file__).parents[2]
    page = "".join((root / "docs" / name).read_text(encoding="utf-8") for name in ("performance.md", "many_clients.md"))
    measured = {
        name: json.loads((root / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("first_round", "many_clients")
    }
    first, many = (measured[name]["cases"] for name in ("first_round", "many_clients"))
    ends = {name: first.pop(name) for name in [*first] if "to_end" in first[name]}
    assert f"| {' | '.join(first)} |" in page
    assert " | ".join(f"**{case['median']:.1f}**" for case in first.values()) in page
    for name, case in ends.items():
        assert f"{name}: **{case['median']:.1f}** seconds from the last row to the end" in page
    idle = measured["many_clients"]["idle_ray_mb"]
    for name, case in many.items():
        beside = case["megabytes"] - (idle if case["actors"] else 0)
        assert f"| {name} | {beside:.0f} |" in page
