"""Leases of the stage store between processes that are stopped, killed, and wake up again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.record.store import Holder, Lease, StageStore, Watch
from tests.support.stores import DAY, KEY, age, lease_file, publish, writer
from tests.support.waiting import settle

BEAT, PATIENCE = 0.1, 0.6
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "store", heartbeat=BEAT, patience=PATIENCE)


@pytest.fixture
def start(store: StageStore) -> Iterator[Start]:
    """Run code, which knows ``store`` and ``args``, in another process; returns when it has said its first line."""
    processes: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object) -> subprocess.Popen[str]:
        head = (
            "import sys, time\nfrom pathlib import Path\n"
            "from engine.record.store import StageStore\nargs = sys.argv[1:]\n"
            f"store = StageStore(Path({str(store.path)!r}), {store.limit_bytes}, {store.heartbeat}, {store.patience})\n"
        )
        command = [sys.executable, "-c", head + code, *map(str, args)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[str], word: str = "go") -> str:
    """Tell a process something; its answer."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


HOLD = f"""
lease = store.lease({KEY!r}, "the other")
print("ready" if lease else "refused", flush=True)
for line in sys.stdin:
    if line.strip() == "lost":
        print(lease.lost, flush=True)
    if line.strip() == "release":
        lease.release()
        print("released", flush=True)
"""


def test_a_writer_that_was_killed_leaves_no_entry(store: StageStore, start: Start, tmp_path: Path) -> None:
    """Kills: an entry that is visible before it is whole; a half-written one that stays for ever, or goes too early."""
    process = start(
        f"""
def write(folder):
    (folder / "weights").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
store.publish({KEY!r}, 30, write)
"""
    )
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert store.rounds(KEY) == [] and store.open(KEY, 30) is None and not store.fetch(KEY, 30, tmp_path / "copy")
    (half,) = (store.path / "temporary").iterdir()

    assert StageStore(store.path).publish(KEY, 30, writer())
    assert half.exists()
    age(half, 2 * DAY)
    (half / "weights").touch()
    publish(StageStore(store.path), KEY, 31)
    assert half.exists()
    age(half / "weights", 2 * DAY)
    publish(StageStore(store.path), KEY, 32)
    assert not half.exists()
    assert store.rounds(KEY) == [30, 31, 32]


def test_a_lease_is_held_by_one_of_two_processes(store: StageStore, start: Start) -> None:
    """Kills: a lease that only threads respect; a release that others do not see at once."""
    process = start(HOLD)
    watch = store.watch(KEY)
    assert store.lease(KEY) is None and watch.take_over() is None
    assert store.holder(KEY) == Holder("the other", 0)
    assert say(process, "release") == "released"
    assert store.holder(KEY) is None and watch.expired()
    with store.lease(KEY, "mine") or pytest.fail("refused"):
        assert store.holder(KEY) == Holder("mine", 0)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_holder_that_is_gone_is_replaced(store: StageStore, start: Start, how: signal.Signals) -> None:
    """Kills: a lease for ever; a holder that wakes up and removes or overwrites its successor's lease, or any after."""
    process = start(HOLD)
    watch = store.watch(KEY)
    os.kill(process.pid, how)
    assert store.lease(KEY) is None
    assert settle(watch.expired)
    lease = watch.take_over("successor")
    assert lease is not None
    assert watch.take_over() is None and store.lease(KEY) is None
    if how == signal.SIGSTOP:
        os.kill(process.pid, signal.SIGCONT)
        assert settle(lambda: say(process, "lost") == "True")
        assert say(process, "release") == "released"
    threading.Event().wait(2 * BEAT)
    assert store.holder(KEY) == Holder("successor", 0) and not lease.lost
    assert lease_file(store).name == "lease-000002"
    lease.release()
    assert not lease.lost and store.holder(KEY) is None


def test_a_holder_that_was_killed_here_is_not_waited_for(store: StageStore, start: Start) -> None:
    """Kills: half a minute's wait for a process that this machine knows to be over, killed and not reaped, or gone; the
    number of a process on another machine, or in another container, taken for one here."""
    watch = StageStore(store.path, patience=1000.0).watch(KEY)
    process = start(HOLD)
    assert not watch.expired()
    os.kill(process.pid, signal.SIGKILL)
    assert settle(watch.expired)
    process.wait()
    assert watch.expired()
    state = json.loads(lease_file(store).read_text())
    boot, *inside = state["process"].split(" ")
    for elsewhere in (["another", *inside], [boot, "pid:[1]", *inside[1:]], []):
        lease_file(store).write_text(json.dumps(state | {"process": " ".join(elsewhere)}))
        assert not watch.expired()


def test_a_holder_that_wakes_up_to_release_removes_nobodys_lease(store: StageStore, start: Start) -> None:
    """Kills: a release without a look at whose lease it is."""
    process = start(HOLD)
    os.kill(process.pid, signal.SIGSTOP)
    watch = store.watch(KEY)
    assert process.stdin is not None
    process.stdin.write("release\n")
    process.stdin.flush()
    assert settle(watch.expired)
    with watch.take_over("successor") or pytest.fail("not taken over") as lease:
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout is not None and process.stdout.readline() == "released\n"
        assert store.holder(KEY) == Holder("successor", 0)
        assert StageStore(store.path).lease(KEY) is None
        lease.reached(3)
        assert settle(lambda: store.holder(KEY) == Holder("successor", 3))


def test_one_of_many_waiters_takes_over(store: StageStore, start: Start) -> None:
    """Kills: two successors, in one process or in several; none."""
    process = start(HOLD)
    waiting = f"""
watch = store.watch({KEY!r})
print("ready", flush=True)
sys.stdin.readline()
while not watch.expired() and store.holder({KEY!r}).note == "the other":
    time.sleep(0.01)
lease = watch.take_over("process")
print(lease is not None, flush=True)
sys.stdin.readline()
"""
    others = [start(waiting) for _ in range(3)]
    watches = [store.watch(KEY) for _ in range(8)]
    os.kill(process.pid, signal.SIGKILL)
    taken: list[Lease | None] = []

    def wait(watch: Watch) -> None:
        assert settle(lambda: watch.expired() or store.holder(KEY) != Holder("the other", 0))
        taken.append(watch.take_over("thread"))

    threads = [threading.Thread(target=wait, args=(watch,)) for watch in watches]
    for other in others:
        assert other.stdin is not None
        other.stdin.write("go\n")
        other.stdin.flush()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [other.stdout.readline().strip() for other in others if other.stdout is not None]
    leases = [lease for lease in taken if lease is not None]
    assert len(taken) == 8 and len(leases) + answers.count("True") == 1
    assert store.lease(KEY) is None
    for lease in leases:
        lease.release()
