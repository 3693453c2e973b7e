"""FIFOs, sockets and devices in the place of files: each command ends with a sentence, or does without the file."""

from __future__ import annotations

import os
import re
import select
import shutil
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from engine.base.files import locked, write_atomically, writing
from engine.base.opening import NotAFile, check_file, read_bytes, read_text, regular
from engine.data import ClientTable
from engine.data.sources.cifar import Cifar100
from engine.data.sources.formats import read_idx
from engine.data.sources.pickled import read_pickled
from engine.record.store import StageStore
from fedskew.cli import main as cli
from fedskew.cli.output import unforeseen
from tests.support.command_line import SMALL
from tests.support.sweep_folders import MU, make_sweep

Call = Callable[..., tuple[int, str, str]]
MODELS = ["model.hidden=[8]", "algorithm.name=scaffold", "execution.device=cpu", "execution.workers=1"]
WORDS = ["run", *SMALL, *MODELS, "rounds=3", "checkpoint.every=1"]


@contextmanager
def not_hanging(fifo: Path) -> Iterator[None]:
    """Fail where somebody waits for the other end of ``fifo``, which is opened here for a moment to set them free."""
    hung, done = threading.Event(), threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            if not fifo.is_fifo():  # a damaged file is put aside and written again
                continue
            with suppress(OSError):  # nobody has opened it to read, or it has gone
                writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                if stat.S_ISFIFO(os.fstat(writer).st_mode):
                    hung.set()
                os.close(writer)
            with suppress(OSError):
                reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
                seen = select.poll()
                seen.register(reader, select.POLLIN | select.POLLHUP)
                if stat.S_ISFIFO(os.fstat(reader).st_mode) and seen.poll(2):  # somebody has opened it to write
                    hung.set()
                os.close(reader)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
        done.wait(0.05)  # one more look
    finally:
        done.set()
        watcher.join()
    assert not hung.is_set(), f"{fifo} was waited for"


def plant(path: Path, kind: str = "fifo") -> Path:
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    else:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's name has a hundred characters at most
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path.name)
        finally:
            os.chdir(here)
    return path


def check_end(code: int, err: str) -> None:
    assert "Traceback" not in err and "traceback" not in err, err
    told = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(told) == (code != 0), err
    assert code in (0, 1, 2)


# --- one file after the other ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped, a finished one, a sweep and a store; to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    with pytest.MonkeyPatch.context() as patch:
        for words in (["--until", "2", "--out", "stopped"], ["--out", "finished", "--store", "store"]):
            patch.chdir(folder)
            patch.setattr("sys.argv", ["fedskew", *WORDS, *words])
            with suppress(SystemExit):
                cli.main()
    make_sweep(folder / "sweep", axes=[MU | {"values": [0.0, 0.1]}], seeds=(0,), rounds=3)
    return folder


def files_of(folder: Path) -> list[str]:
    """One file of each name; client states, leases and tallies are named after what they hold."""
    kinds: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".png":
            place = path.relative_to(folder)
            kind = place.parent.name if place.parent.name == "states" else place.name.rstrip("0123456789")
            kinds.setdefault(kind, str(place))
    return list(kinds.values())


def every_copy(begun: Path, tmp_path: Path, name: str) -> Iterator[Path]:
    """Plant a FIFO in the place of one file of a fresh copy after the other; yields the place."""
    for file in files_of(begun / name):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        shutil.copytree(begun / name, tmp_path / name)
        yield plant(tmp_path / name / file)


def every_file(folder: Path) -> Iterator[Path]:
    """Plant a FIFO in the place of one file after the other, for commands that change none; yields the place."""
    for file in files_of(folder):
        (folder / file).rename(folder.with_name("aside"))
        yield plant(folder / file)
        folder.with_name("aside").replace(folder / file)


@pytest.mark.slow
def test_a_stopped_run_is_resumed_or_refused(call: Call, begun: Path, tmp_path: Path) -> None:
    """Kills: any reader of a resume that opens what it finds: lock, log, tables, partition, checkpoints."""
    for place in every_copy(begun, tmp_path, "stopped"):
        with not_hanging(place):
            code, _, err = call("resume", "stopped")
        check_end(code, err)


READ_BY = {"experiment.yaml": "run", "summary.json": "run", "partition.parquet": "diagnose"}


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
def test_a_finished_run_is_read_or_refused(call: Call, begun: Path, tmp_path: Path) -> None:
    """Kills: a reader of ``report``, ``run`` or ``diagnose`` that waits."""
    shutil.copytree(begun / "finished", tmp_path / "finished")
    for place in every_file(tmp_path / "finished"):
        verb = READ_BY.get(place.name, "diagnose" if place.suffix == ".safetensors" else "report")
        with not_hanging(place):
            code, _, err = call(*([*WORDS, "--out"] if verb == "run" else [verb]), "finished")
        check_end(code, err)


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("verb", ["report", "resume"])
def test_a_sweep_is_read_or_refused(call: Call, begun: Path, tmp_path: Path, verb: str) -> None:
    """Kills: a reader of a sweep's folder that waits: ``trial.json``, ``summary.json``, ``sweep.yaml``."""
    shutil.copytree(begun / "sweep", tmp_path / "sweep")
    for place in every_file(tmp_path / "sweep"):
        with not_hanging(place):
            code, _, err = call(verb, "sweep")
        check_end(code, err)


@pytest.mark.slow
def test_a_store_is_used_or_refused(call: Call, begun: Path, tmp_path: Path) -> None:
    """Kills: a manifest, a lease, a tally or an entry's file that is waited for."""
    for place in every_copy(begun, tmp_path, "store"):
        shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
        with not_hanging(place):
            code, _, err = call(*WORDS, "--out", "fresh", "--store", "store")
        check_end(code, err)


# --- one reader after the other ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "socket"])
@pytest.mark.parametrize(
    "reads", [read_bytes, read_text, check_file, lambda path: os.close(regular(path, os.O_APPEND))]
)
def test_what_is_no_file_is_named(tmp_path: Path, kind: str, reads: Callable[[Path], object]) -> None:
    """Kills: an open that waits for a FIFO's other end, a sentence that does not say what lies there."""
    place = plant(tmp_path / "one", kind)
    with not_hanging(place), pytest.raises(NotAFile, match=f"it is a {kind}, not a file".replace("fifo", "FIFO")):
        reads(place)


def test_a_device_is_none_either() -> None:
    """Kills: a device that is read, which has no end."""
    with pytest.raises(NotAFile, match="it is a device, not a file"):
        read_bytes(Path("/dev/zero"))


def test_files_folders_and_nothing_are_told_as_ever(tmp_path: Path) -> None:
    """Kills: a file that is refused or emptied; a new one that cannot be made; other errors for what is not there."""
    (tmp_path / "file").write_text("a")
    with open(tmp_path / "file", "a", opener=regular) as file:
        file.write("b")
    assert read_text(tmp_path / "file") == "ab"
    with open(tmp_path / "new", "x", opener=regular):
        pass
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "nothing")
    with pytest.raises(IsADirectoryError):
        read_bytes(tmp_path)


def test_what_is_written_to_is_no_fifo(tmp_path: Path) -> None:
    """Kills: a lock, a log or a half-written file in whose place a FIFO lies."""
    fifo = plant(tmp_path / ".lock")
    with not_hanging(fifo), pytest.raises(Exception, match="it is a FIFO"), locked(fifo):
        pass
    fifo = plant(tmp_path / "log.txt")
    with not_hanging(fifo):
        told = str(unforeseen(ValueError("v"), fifo))
    Path(re.findall(r"at the end of (\S+)\)", told)[0]).unlink()  # a file of its own
    fifo = plant(tmp_path / f".table.{os.getpid()}.tmp")
    with not_hanging(fifo), pytest.raises(Exception, match="it is a FIFO"), writing(tmp_path):
        write_atomically(tmp_path / "table", "")


@pytest.mark.parametrize(
    "read",
    [
        lambda path: read_idx(path, 1),
        lambda path: read_idx(path.rename(path.with_suffix(".gz")), 1),
        read_pickled,
        lambda path: Cifar100(root=str(path.parent)).read(),
        lambda path: ClientTable(file=str(path)),
    ],
    ids=["idx", "idx.gz", "pickle", "archive", "split"],
)
def test_data_are_no_fifo(tmp_path: Path, read: Callable[[Path], object]) -> None:
    """Kills: a data set's file that is opened past ``engine/base/opening.py``."""
    fifo = plant(tmp_path / "cifar-100-python.tar.gz")
    with not_hanging(fifo), pytest.raises(Exception, match=r"it is a FIFO|has no cifar100"):
        read(fifo)


def test_a_lease_is_no_fifo(tmp_path: Path) -> None:
    """Kills: a store whose lease is waited for."""
    store = StageStore(tmp_path / "store")
    lease = store.lease("ab")
    assert lease is not None
    lease.release()
    [place] = (tmp_path / "store").rglob("lease-*")
    plant(place)
    with not_hanging(place), pytest.raises(Exception, match="it is a FIFO"):
        store.lease("ab")
