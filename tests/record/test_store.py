"""The stage store: entries that are whole or not there, leases that outlive nobody, a size that stays in its limit."""

from __future__ import annotations

import errno
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from engine.base.errors import RunFolderError
from engine.record.store import Holder, Lease, StageStore, Watch
from engine.record.store import leases as leases_module
from engine.record.store import size as size_module
from engine.record.store.folder import StoreFolder
from engine.record.store.manifest import MANIFEST, Manifest
from engine.record.store.size import SizeLimit
from engine.run.log import Messages
from tests.support.stores import DAY, KEY, age, lease_file, publish, writer
from tests.support.waiting import settle

BEAT, PATIENCE = 0.05, 1000.0  # no test waits for a holder to be silent for so long: clocks are put forward


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "store", heartbeat=BEAT, patience=PATIENCE)


def entry(store: StageStore, key: str = KEY, round: int = 30) -> Path:
    return store.path / key[:2] / key / f"{round:06d}"


# --- entries ------------------------------------------------------------------------------------------


def test_what_was_published_is_fetched(store: StageStore, tmp_path: Path) -> None:
    """Kills: a file left out or below the wrong folder, the manifest among the files, a store made by asking it."""
    assert store.rounds(KEY) == [] and store.longest(KEY, 0, 99) is None and store.open(KEY, 30) is None
    assert not store.fetch(KEY, 30, tmp_path / "copy") and store.wanted(KEY) == frozenset() and store.size() == 0
    assert store.holder(KEY) is None and store.watch(KEY).expired()
    store.discard(KEY, 30)
    assert not store.path.exists() and not (tmp_path / "copy").exists()

    assert store.publish(KEY, 30, writer())
    assert store.fetch(KEY, 30, tmp_path / "copy")
    files = {str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()}
    assert files == {"weights", "states/one"}
    assert (tmp_path / "copy" / "weights").read_text() == "x" * 1000
    assert (tmp_path / "copy" / "states" / "one").read_text() == "state of client one"
    assert (tmp_path / "copy" / "weights").stat().st_nlink == 2
    assert sorted(os.listdir(tmp_path)) == ["copy", "store"] and os.listdir(store.path / "temporary") == []
    opened = store.open(KEY, 30)
    assert opened is not None and (opened / "weights").exists()

    store.discard(KEY, 30)
    assert store.rounds(KEY) == [] and not store.fetch(KEY, 30, tmp_path / "again")
    assert (tmp_path / "copy" / "weights").read_text() == "x" * 1000


def test_an_entry_is_on_the_disk_before_it_is_seen(store: StageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an entry of empty files after a power cut."""
    synced: set[int] = set()
    fsync, rename = os.fsync, os.rename

    def recorded(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def seen(source: Path, target: Path) -> None:
        if target == entry(store):
            inodes = {path.stat().st_ino for path in [source, *source.rglob("*")]}
            assert len(inodes) == 5 and inodes <= synced
        rename(source, target)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(os, "rename", seen)
    assert store.publish(KEY, 30, writer())
    assert entry(store).parent.stat().st_ino in synced


def test_files_are_copied_where_they_cannot_be_linked(
    store: StageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a store on another file system that cannot be used."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    store.publish(KEY, 30, writer())
    assert store.fetch(KEY, 30, tmp_path / "copy")
    assert (tmp_path / "copy" / "states" / "one").stat().st_nlink == 1


def test_longest_is_within_its_bounds(store: StageStore) -> None:
    """Kills: a bound on the wrong side, rounds compared as text."""
    for round in (50, 0, 30, 70, 1_000_000):
        publish(store, KEY, round)
    publish(store, "ab12", 40)
    assert store.rounds(KEY) == [0, 30, 50, 70, 1_000_000]
    assert store.longest(KEY, 30, 70) == 70
    assert store.longest(KEY, 30, 69) == 50
    assert store.longest(KEY, 30, 50) == 50
    assert store.longest(KEY, 50, 69) is None
    assert store.longest(KEY, -1, 29) == 0
    assert store.longest(KEY, 0, 2_000_000) == 1_000_000


def test_the_first_entry_wins(store: StageStore, tmp_path: Path) -> None:
    """Kills: an entry overwritten while another run reads it, work done for nothing, leftovers of the slower one."""

    def overtaken(folder: Path) -> None:
        assert store.publish(KEY, 30, writer(text="first"))
        writer(text="second")(folder)

    assert not store.publish(KEY, 30, overtaken)
    assert not store.publish(KEY, 30, lambda _: pytest.fail("there is one already"))
    assert store.fetch(KEY, 30, tmp_path / "copy")
    assert (tmp_path / "copy" / "weights").read_text().startswith("first")
    assert os.listdir(store.path / "temporary") == []


def test_a_write_that_fails_leaves_nothing(store: StageStore) -> None:
    """Kills: half an entry after an error, an error that is kept quiet."""

    def fail(folder: Path) -> None:
        writer()(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.publish(KEY, 30, fail)
    assert store.rounds(KEY) == [] and os.listdir(store.path / "temporary") == []


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def half_a_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 40)


def truncated(folder: Path) -> None:
    os.truncate(folder / "weights", 500)


def flipped(folder: Path) -> None:
    content = bytearray((folder / "weights").read_bytes())
    content[500] ^= 1
    (folder / "weights").write_bytes(content)


def missing_file(folder: Path) -> None:
    (folder / "states" / "one").unlink()


def foreign_file(folder: Path) -> None:
    (folder / "states" / "two").write_text("a state that nobody stored")


def of_another_round(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "round": 29}))


@pytest.mark.parametrize(
    "damage", [no_manifest, half_a_manifest, truncated, flipped, missing_file, foreign_file, of_another_round]
)
@pytest.mark.parametrize("by", ["open", "fetch"])
def test_a_damaged_entry_is_never_used(
    store: StageStore, tmp_path: Path, messages: Messages, damage: Callable[[Path], None], by: str
) -> None:
    """Kills: a check of names or sizes only, a damaged entry that stays in the way, a repair that nobody hears of."""
    store.publish(KEY, 30, writer())
    damage(entry(store))
    got = store.open(KEY, 30) if by == "open" else store.fetch(KEY, 30, tmp_path / "copy")
    assert not got
    (message,) = messages.drain()
    assert "round 30 of" in message and "damaged" in message
    assert os.listdir(tmp_path) == ["store"]
    assert store.rounds(KEY) == [] and not entry(store).exists()
    assert store.publish(KEY, 30, writer())
    assert store.fetch(KEY, 30, tmp_path / "copy")


def test_an_entry_without_manifest_does_not_block_its_place(store: StageStore) -> None:
    """Kills: a folder that is neither used nor replaced."""
    store.publish(KEY, 30, writer())
    no_manifest(entry(store))
    assert store.rounds(KEY) == []
    assert store.publish(KEY, 30, writer())
    assert store.open(KEY, 30) is not None


def test_an_entry_evicted_while_it_is_fetched_is_not_there(
    store: StageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """Kills: half a copy, an error or a false alarm when another process evicts."""
    store.publish(KEY, 30, writer())
    link = os.link

    def evicted(source: Any, target: Any) -> None:
        link(source, target)
        StageStore(store.path).discard(KEY, 30)

    monkeypatch.setattr(os, "link", evicted)
    assert not store.fetch(KEY, 30, tmp_path / "copy")
    assert os.listdir(tmp_path) == ["store"]
    assert messages.drain() == []


def test_wants_are_seen_by_others(store: StageStore) -> None:
    """Kills: a want that only its own process knows, or of another key; a want taken for an entry."""
    store.want(KEY, 30)
    store.want(KEY, 30)
    store.want(KEY, 50)
    store.want("ab", 7)
    assert StageStore(store.path).wanted(KEY) == {30, 50}
    assert store.rounds(KEY) == [] and store.holder(KEY) is None


def test_a_store_travels_to_other_processes(store: StageStore) -> None:
    """Kills: a store that holds a lock, a thread or an open file; settings that are lost on the way."""
    publish(store, KEY, 30)
    copy = pickle.loads(pickle.dumps(store))
    assert (copy.path, copy.limit_bytes, copy.heartbeat, copy.patience) == (store.path, 20 * 2**30, BEAT, PATIENCE)
    assert copy.rounds(KEY) == [30]


@pytest.mark.parametrize("key", ["", "a/b", "../up", "a.b", "ab\n", "é", "a" * 300])
def test_a_key_stays_a_name(store: StageStore, key: str) -> None:
    """Kills: a key that leads out of the store or that no file system takes."""
    calls: list[Callable[[], object]] = [
        lambda: store.rounds(key),
        lambda: store.publish(key, 1, writer()),
        lambda: store.want(key, 1),
        lambda: store.lease(key),
        lambda: store.watch(key),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="key="):
            call()
    assert not store.path.exists()


def test_an_unusable_store_says_what_to_do(store: StageStore, tmp_path: Path) -> None:
    """Kills: a traceback when the disk is full or the path is no folder; an error that does not say which store."""

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "weights")

    with pytest.raises(RunFolderError, match=r"store.*No space left on device.*--store.*--no-reuse") as caught:
        store.publish(KEY, 30, full)
    assert str(store.path) in str(caught.value)
    (tmp_path / "file").touch()
    blocked = StageStore(tmp_path / "file" / "store")
    for call in (lambda: blocked.publish(KEY, 1, writer()), lambda: blocked.want(KEY, 1), lambda: blocked.lease(KEY)):
        with pytest.raises(RunFolderError, match="--no-reuse"):
            call()


# --- leases -------------------------------------------------------------------------------------------


def test_a_lease_is_held_by_one_of_many_threads(store: StageStore) -> None:
    """Kills: a lease that two get, a key's lease that blocks another key, one that nobody gets after a release."""
    for _ in range(5):
        barrier = threading.Barrier(12)
        leases: list[Lease | None] = []

        def ask(barrier: threading.Barrier = barrier, leases: list[Lease | None] = leases) -> None:
            barrier.wait()
            leases.append(store.lease(KEY))

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (lease,) = [lease for lease in leases if lease is not None]
        assert store.lease(KEY) is None
        with store.lease("another") or pytest.fail("another key's lease was refused"):
            pass
        lease.release()
        lease.release()
        assert not lease.lost


def test_a_holder_tells_how_far_it_is(store: StageStore) -> None:
    """Kills: a round that is never written; a beat that leaves the rest of a longer one behind it."""
    with store.lease(KEY, "note with\nä line") or pytest.fail("refused") as lease:
        lease.reached(1_000_000)
        assert settle(lambda: store.holder(KEY) == Holder("note with\nä line", 1_000_000))
        lease.reached(7)
        assert settle(lambda: store.holder(KEY) == Holder("note with\nä line", 7))


class Clock:
    """In the place of the waiter's own clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Beats:
    """In the place of the event that a holder waits for between two beats: a test says when one is due."""

    def __init__(self) -> None:
        self._due = SimpleQueue[bool]()
        self._over = False
        self.waits = 0

    def is_set(self) -> bool:
        return self._over

    def set(self) -> None:
        self._over = True
        self._due.put(True)

    def wait(self, timeout: float) -> bool:
        self.waits += 1
        return self._due.get()

    def beat(self, lease: Lease) -> None:
        """Let the holder beat once; it has, or it has given up, when this returns."""
        assert settle(lambda: self.waits > 0)
        before = self.waits
        self._due.put(False)
        assert settle(lambda: self.waits > before or not lease._thread.is_alive())


def beat(lease: Lease) -> None:
    lease._stop.beat(lease)  # type: ignore[attr-defined]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The waiters' clock, which stands still; holders are silent but for what ``beat`` lets them say."""
    clock = Clock()
    monkeypatch.setattr(leases_module, "time", clock)
    monkeypatch.setattr(leases_module, "threading", SimpleNamespace(Event=Beats, Thread=threading.Thread))
    return clock


def held(store: StageStore, note: str = "the other") -> Lease:
    return store.lease(KEY, note) or pytest.fail("refused")


def test_patience_is_counted_by_the_waiters_clock_since_the_last_beat(store: StageStore, clock: Clock) -> None:
    """Kills: ages taken from a file's date, patience that beats do not renew, a lease expired before its time."""
    holder = held(store)
    age(lease_file(store), 10 * DAY)
    watch = store.watch(KEY)
    clock.now += 0.9 * PATIENCE
    assert not watch.expired() and watch.take_over() is None
    beat(holder)
    clock.now += 0.9 * PATIENCE
    assert not watch.expired()
    clock.now += 0.9 * PATIENCE
    assert not watch.expired()  # the last beat may have come after the look before
    late = store.watch(KEY)
    clock.now += 0.9 * PATIENCE
    assert watch.expired() and not late.expired()
    holder.release()


def test_a_holder_that_is_silent_is_replaced(store: StageStore, clock: Clock) -> None:
    """Kills: a lease for ever; a holder that wakes up and removes or overwrites its successor's lease, or any after."""
    holder, watch = held(store), store.watch(KEY)
    assert store.lease(KEY) is None
    clock.now += 1.1 * PATIENCE
    assert watch.expired()
    lease = watch.take_over("successor")
    assert lease is not None
    assert watch.take_over() is None and store.lease(KEY) is None
    beat(holder)
    assert holder.lost
    holder.release()
    beat(lease)
    assert store.holder(KEY) == Holder("successor", 0) and not lease.lost
    assert lease_file(store).name == "lease-000002"
    lease.release()
    assert not lease.lost and store.holder(KEY) is None


def test_a_holder_that_wakes_up_to_release_removes_nobodys_lease(store: StageStore, clock: Clock) -> None:
    """Kills: a release without a look at whose lease it is."""
    holder, watch = held(store), store.watch(KEY)
    clock.now += 1.1 * PATIENCE
    with watch.take_over("successor") or pytest.fail("not taken over") as lease:
        holder.release()
        assert store.holder(KEY) == Holder("successor", 0)
        assert StageStore(store.path).lease(KEY) is None
        lease.reached(3)
        beat(lease)
        assert store.holder(KEY) == Holder("successor", 3)


def test_one_of_many_waiters_takes_over(store: StageStore, clock: Clock) -> None:
    """Kills: two successors; none."""
    holder = held(store)
    watches = [store.watch(KEY) for _ in range(8)]
    clock.now += 1.1 * PATIENCE
    together = threading.Barrier(len(watches))

    def take_over(watch: Watch) -> Lease | None:
        together.wait(100)
        return watch.take_over("thread")

    with ThreadPoolExecutor(len(watches)) as threads:
        [lease] = [lease for lease in threads.map(take_over, watches) if lease is not None]
    assert store.lease(KEY) is None and store.holder(KEY) == Holder("thread", 0)
    lease.release()
    holder.release()


def test_a_waiter_that_was_stopped_before_it_took_over_is_too_late(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a takeover of whatever lease is there now, in the place of the one that was seen to expire."""
    first = store.lease(KEY, "first")
    assert first is not None
    watches = [store.watch(KEY), store.watch(KEY)]
    first.release()
    assert all(watch.expired() for watch in watches)
    for watch in watches:
        monkeypatch.setattr(watch, "expired", lambda: True)  # it was, when they last looked
    second = store.lease(KEY, "second")
    assert second is not None
    assert watches[0].take_over() is None  # the next one is there
    second.release()
    with store.lease(KEY, "third") or pytest.fail("refused") as third:
        assert watches[1].take_over() is None  # the next one has come and gone
        assert store.holder(KEY) == Holder("third", 0)
        assert lease_file(store).name == "lease-000003"
        third.reached(5)
        assert settle(lambda: store.holder(KEY) == Holder("third", 5))
        assert not third.lost


def test_a_holder_whose_store_was_deleted_says_so(store: StageStore) -> None:
    """Kills: a beat that ends in a traceback, or that makes a new lease in a store that is gone."""
    with store.lease(KEY) or pytest.fail("refused") as lease:
        shutil.rmtree(store.path)
        assert settle(lambda: lease.lost)
    assert not store.path.exists()


def test_a_lease_killed_at_its_creation_expires(store: StageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an empty lease taken for a released one, or that can never be taken over."""
    store.want(KEY, 1)
    (store.path / KEY[:2] / KEY / "lease-000001").touch()
    assert store.lease(KEY) is None and store.holder(KEY) == Holder("", 0)
    clock = Clock()
    monkeypatch.setattr(leases_module, "time", clock)
    watch = store.watch(KEY)
    assert not watch.expired()
    clock.now += 2 * PATIENCE
    with watch.take_over("mine") or pytest.fail("not taken over"):
        assert store.holder(KEY) == Holder("mine", 0)


# --- size ---------------------------------------------------------------------------------------------


def filled(tmp_path: Path, entries: int) -> StageStore:
    """A store with room for ``entries`` of 10 kB, each with a little manifest, and for a tenth of them more."""
    return StageStore(tmp_path / "store", limit_bytes=int(entries * 10_000 / 0.9) + 300 * entries, patience=PATIENCE)


def used(store: StageStore, key: str, order: int, round: int = 1) -> None:
    """Make an entry look as if it had been used an hour ago, and before one of a higher ``order``."""
    manifest = entry(store, key, round) / MANIFEST
    now = time.time() - 3600 + order
    os.utime(manifest, (now, now))


def kept(store: StageStore) -> set[str]:
    return {key for key in "abcdefgh" if store.rounds(key)}


def test_the_least_recently_used_are_evicted(tmp_path: Path) -> None:
    """Kills: eviction in the order of names or of publishing, more than is needed, none at all; half an entry left."""
    store = filled(tmp_path, 4)
    for order, key in enumerate("dcba"):
        publish(store, key, 1, 10_000)
        used(store, key, order)
    assert kept(store) == set("abcd")
    assert store.open("d", 1) is not None
    assert store.fetch("c", 1, tmp_path / "copy")
    publish(store, "e", 1, 10_000)
    assert kept(store) == set("acde")
    publish(store, "f", 1, 10_000)
    assert kept(store) == set("cdef")
    assert not entry(store, "a", 1).exists() and os.listdir(store.path / "temporary") == []
    assert store.size() <= store.limit_bytes


def test_what_is_leased_or_wanted_is_evicted_last(tmp_path: Path) -> None:
    """Kills: a prefix evicted under the eyes of those who wait for it; a limit that is given up for it."""
    store = filled(tmp_path, 4)
    with store.lease("a") or pytest.fail("refused"):
        store.want("b", 1)
        store.want("c", 2)  # another round of it
        for order, key in enumerate("abcdef"):
            publish(store, key, 1, 10_000)
            used(store, key, order)
        assert kept(store) == set("abef")
        store.want("e", 1)
        store.want("f", 1)
        publish(store, "g", 1, 10_000)  # nothing else but the new one, which is in its limit
        assert {"a", "b"} & kept(store) and len(kept(store)) == 4 and store.size() <= store.limit_bytes
    publish(store, "h", 1, 10_000)
    assert "a" not in kept(store)  # released


def test_what_is_in_use_is_evicted_when_nothing_else_is_left(tmp_path: Path) -> None:
    """Kills: a limit that live leases may break; more of theirs evicted than the limit asks for."""
    store = StageStore(tmp_path / "store", limit_bytes=50_000)
    with store.lease(KEY) or pytest.fail("refused"):
        for round in range(1, 6):
            publish(store, KEY, round, 9_800)
            used(store, KEY, round, round)
        assert store.rounds(KEY) == [1, 2, 3, 4, 5]
        publish(store, KEY, 6, 9_800)
        assert store.rounds(KEY) == [2, 3, 4, 5, 6]


def test_neither_the_dead_nor_old_wants_keep_entries(tmp_path: Path) -> None:
    """Kills: entries that a killed run or an old sweep keeps for ever."""
    store = filled(tmp_path, 3)
    store.want("b", 1)
    (store.path / "a" / "a").mkdir(parents=True)
    (store.path / "a" / "a" / "lease-000001").touch()
    for order, key in enumerate("abc"):
        publish(store, key, 1, 10_000)
        used(store, key, order)
    age(store.path / "a" / "a" / "lease-000001", 3 * PATIENCE)
    age(store.path / "b" / "b" / "wanted-000001", 2 * DAY)
    publish(store, "d", 1, 10_000)
    assert kept(store) == set("bcd")
    publish(store, "e", 1, 10_000)
    assert kept(store) == set("cde")


def test_an_entry_larger_than_the_room_an_eviction_leaves_is_kept(tmp_path: Path) -> None:
    """Kills: an entry that is evicted by its own publication although it fits."""
    store = StageStore(tmp_path / "store", limit_bytes=10_000)
    for key in "ab":
        publish(store, key, 1, 9_700)
        assert kept(store) == {key}
    publish(store, "c", 1, 20_000)
    assert kept(store) == set() and store.size() == 0


def test_files_linked_into_several_entries_count_once(tmp_path: Path) -> None:
    """Kills: a size that counts links; an eviction that believes it has freed what another entry still holds."""
    (tmp_path / "state").write_bytes(bytes(10_000))
    store = StageStore(tmp_path / "store", limit_bytes=25_000)

    def write(folder: Path) -> None:
        os.link(tmp_path / "state", folder / "state")

    for key in "abcd":
        assert store.publish(key, 1, write)
    assert kept(store) == set("abcd")
    assert 10_000 < store.size() < 12_000
    publish(store, "e", 1, 14_000)
    assert kept(store) == {"e"}


def test_many_publish_at_once_within_the_limit(tmp_path: Path) -> None:
    """Kills: totals that overwrite each other; the last of several who publish at once going uncounted."""
    store = StageStore(tmp_path / "store", limit_bytes=120_000)
    code = """
import sys
from pathlib import Path
from engine.record.store import StageStore
store = StageStore(Path(sys.argv[1]), 120_000)
print("ready", flush=True)
sys.stdin.readline()
for number in range(20):
    assert store.publish(f"{sys.argv[2]}{number % 5}", number, lambda folder: (folder / "w").write_bytes(bytes(5000)))
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(store.path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in "abcd"
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate() and process.returncode for process in processes] == [0] * 4
    assert 60_000 < store.size() <= 120_000
    assert os.listdir(store.path / "tally") == ["total"] and os.listdir(store.path / "temporary") == []
    assert int((store.path / "tally" / "total").read_text()) >= store.size()
    keys = [f"{name}{number}" for name in "abcd" for number in range(5)]
    assert all(store.open(key, round) is not None for key in keys for round in store.rounds(key))


def test_publishing_looks_at_all_entries_rarely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a cost that grows with the square of the trials, below the limit or at it."""
    visits = itertools.count()
    entries = SizeLimit.entries

    def counted(store: SizeLimit, now: float) -> Iterator[Any]:
        for each in entries(store, now):
            next(visits)
            yield each

    monkeypatch.setattr(SizeLimit, "entries", counted)
    for number in range(60):
        publish(StageStore(tmp_path / "store", 40 * 1300), f"key{number % 7}", number)
        if number == 30:
            assert next(visits) <= 2  # in the first, to begin with
    assert next(visits) < 10 * 60
    assert StageStore(tmp_path / "store").size() <= 40 * 1300


def test_a_total_taken_by_a_process_that_was_killed_is_measured_again(store: StageStore) -> None:
    """Kills: one death after which nothing is evicted any more; a wait for it; half a change taken for the total."""
    publish(store, "a", 1)
    tally = store.path / "tally"
    dead = tally / f"held-{'d' * 32}"
    os.rename(tally / "total", dead)
    dead.write_text("1")
    publish(store, "b", 1)
    assert len(os.listdir(tally)) == 2
    age(dead, 11 * PATIENCE)
    publish(store, "c", 1)
    assert os.listdir(tally) == ["total"]
    assert int((tally / "total").read_text()) == store.size()


def test_an_entry_that_comes_while_another_process_has_the_total_is_counted_by_it(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: entries that nobody counts when publishing ends; a total that looks abandoned as soon as it is taken."""
    publish(store, "a", 1)
    tally = store.path / "tally"
    age(tally / "total", 100 * PATIENCE)
    marks = size_module.marks_in

    def overtaken(folder: Path) -> list[str]:
        found = marks(folder)
        monkeypatch.setattr(size_module, "marks_in", marks)
        publish(StageStore(store.path, patience=PATIENCE), "b", 1)
        assert len(marks(tally)) == 2  # left to us
        return found

    monkeypatch.setattr(size_module, "marks_in", overtaken)
    publish(store, "c", 1)
    assert os.listdir(tally) == ["total"]
    assert int((tally / "total").read_text()) == store.size()


def test_a_process_that_was_only_stopped_does_not_put_its_old_total_back(
    store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a total of long ago over the present one, an error in the process that wakes up."""
    tally = store.path / "tally"
    make_room = SizeLimit.make_room

    def stopped(self: SizeLimit, now: float) -> int:
        monkeypatch.setattr(SizeLimit, "make_room", make_room)
        (held,) = tally.glob("held-*")
        age(held, 11 * PATIENCE)
        publish(StageStore(store.path, patience=PATIENCE), "b", 1)
        return 1

    monkeypatch.setattr(SizeLimit, "make_room", stopped)
    publish(store, "a", 1)
    assert os.listdir(tally) == ["total"]
    assert int((tally / "total").read_text()) == store.size()


def test_keys_without_entries_are_forgotten(tmp_path: Path) -> None:
    """Kills: a folder for every key there ever was; a key forgotten with its entries, or while somebody computes it."""
    store = filled(tmp_path, 2)
    for order, key in enumerate("ab"):
        with store.lease(key) or pytest.fail("refused"):
            publish(store, key, 1, 10_000)
        used(store, key, order)
    publish(store, "c", 1, 10_000)
    assert kept(store) == set("bc") and (store.path / "a" / "a").exists()
    age(store.path / "a" / "a", 2 * DAY)
    age(store.path / "c" / "c", 2 * DAY)  # but it has an entry
    store.discard("b", 1)
    with store.lease("b") or pytest.fail("refused"):
        (store.path / "tally" / "total").write_text("unknown")
        publish(store, "d", 1, 10_000)
        assert not (store.path / "a" / "a").exists()
        assert (store.path / "b" / "b").exists() and store.lease("b") is None
        assert kept(store) == set("cd")


@pytest.mark.parametrize("what", ["publish", "want", "lease"])
def test_a_key_may_be_forgotten_at_the_moment_it_is_used(
    store: StageStore, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Kills: a run that fails because another one has just removed the empty folder it was about to use."""
    mkdir = Path.mkdir

    def swept(path: Path, *args: Any, **options: Any) -> None:
        mkdir(path, *args, **options)
        if path.name == KEY:
            monkeypatch.setattr(Path, "mkdir", mkdir)
            path.rmdir()

    store.want(f"{KEY[:2]}-other", 1)
    monkeypatch.setattr(Path, "mkdir", swept)
    if what == "publish":
        publish(store, KEY, 1)
        assert store.rounds(KEY) == [1]
    if what == "want":
        store.want(KEY, 1)
        assert store.wanted(KEY) == {1}
    if what == "lease":
        with store.lease(KEY) or pytest.fail("refused"):
            assert store.holder(KEY) is not None


def test_a_size_in_the_middle_of_an_eviction(store: StageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an error when an entry goes while sizes are added up."""
    for key in "abc":
        publish(store, key, 1)
    manifest = StoreFolder.manifest

    def evicted(self: StoreFolder, folder: Path) -> Manifest | None:
        found = manifest(self, folder)
        if folder == entry(store, "b", 1):
            monkeypatch.setattr(StoreFolder, "manifest", manifest)
            StageStore(store.path).discard("b", 1)
        return found

    monkeypatch.setattr(StoreFolder, "manifest", evicted)
    assert 2000 < store.size() < 3000
