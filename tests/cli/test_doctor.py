"""``fedskew doctor``: what it finds right, what it finds wrong, and what it leaves alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from engine.data import SOURCES
from fedskew.cli import doctor
from fedskew.cli.main import app

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Ray, without data sets, and with an empty working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray-tmp"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("engine.data.sources.mnist.DEBIAN_FASHION_MNIST", tmp_path / "debian")


@pytest.fixture
def listener() -> Iterator[str]:
    """The address of something that answers as Ray does."""

    def answer() -> None:
        with suppress(OSError):  # the test is over
            while True:
                connection, _ = server.accept()
                connection.sendall(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)))
                connection.recv(100)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def examined() -> tuple[int, list[dict[str, str]]]:
    """Exit code and findings of the command."""
    result = CliRunner().invoke(app, ["doctor", "--json"])
    told = json.loads(result.stdout)
    assert told["ok"] == (result.exit_code == 0)
    return result.exit_code, told["findings"]


def test_a_sound_machine_is_told_in_lines() -> None:
    """Kills: a check that is left out; a data set that is not named; a machine called wrong for what it lacks."""
    code, findings = examined()
    assert (code, [found for found in findings if found["mark"] == "wrong"]) == (0, [])
    assert {found["topic"] for found in findings} == {"installed", "machine", "Ray", "folders", "data sets"}
    names = [found["name"] for found in findings]
    assert {*SOURCES, "fedskew", "Python", "torch", "torchvision", "ray", "optuna", "cores", "store"} <= {*names}
    assert all("\n" not in found["text"] for found in findings)
    plain = CliRunner().invoke(app, ["doctor"])
    assert plain.exit_code == 0 and plain.stdout.splitlines()[-1] == "nothing is wrong"
    assert len(plain.stdout.splitlines()) == len(findings) + 5 + 1


def test_a_broken_installation_ends_with_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: exit code 0 where something is wrong; a missing part of the package that is a mere warning."""
    monkeypatch.setattr("engine.data.sources.mnist.EMBEDDED", tmp_path / "sample.parquet")
    code, findings = examined()
    wrong = [found for found in findings if found["mark"] == "wrong"]
    assert code == 1
    assert [found["name"] for found in wrong] == ["fashion_mnist_sample"]
    assert "install the package again" in wrong[0]["text"]
    assert CliRunner().invoke(app, ["doctor"]).stdout.splitlines()[-1] == "one thing is wrong"


def test_a_check_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a traceback for a machine that is odd in one respect."""

    def fails() -> Any:
        raise OSError("no such\nthing")

    monkeypatch.setattr(doctor, "check_machine", fails)
    code, findings = examined()
    assert code == 1
    wrong = [found["text"] for found in findings if found["mark"] == "wrong"]
    assert wrong == ["cannot be checked (OSError: no such thing)"]
    assert {found["topic"] for found in findings} >= {"installed", "Ray", "folders", "data sets"}


@pytest.mark.slow
def test_nothing_is_imported_that_takes_long() -> None:
    """Kills: a doctor, or a command line, that imports Ray or matplotlib; one that leaves files."""
    code = (
        "import sys; from fedskew.cli import doctor, main; list(doctor.examine()); "
        "print(*{'ray', 'matplotlib', 'optuna', 'sklearn', 'torchvision'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
    assert list(Path.cwd().iterdir()) == []


# --- what is installed --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "mark"),
    [
        ("2.11", "ok"),
        ("2.11.0", "ok"),
        ("2.13.1+cpu", "ok"),
        ("2.9.1", "wrong"),  # a later text, an earlier number
        ("2.14.0", "wrong"),
        ("2.14.0.dev20260101", "wrong"),
        ("3.0", "wrong"),
        (None, "wrong"),
    ],
)
def test_a_version_out_of_range_is_wrong(version: str | None, mark: str) -> None:
    """Kills: versions compared as texts; a bound that is not looked at; a missing package."""
    found = doctor.check_version("torch", version, ">=2.11,<2.14")
    assert found.mark == mark
    assert mark == "ok" or "pip install 'torch>=2.11,<2.14'" in found.text


def test_an_extra_may_be_missing_but_not_outdated() -> None:
    """Kills: an optional package that is demanded; one that is never checked."""
    assert doctor.check_version("optuna", None, ">=4", optional=True).mark == "ok"
    assert doctor.check_version("optuna", "3.6", ">=4", optional=True).mark == "wrong"


def test_torchvision_belongs_to_one_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: two wheels that each lie in their range, and crash together."""
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda _: ["numpy", "torch (==2.13.0)", "scipy ; extra == 'scipy'"]
    )
    assert doctor.check_pair("2.13.0+cpu", "0.28.0+cpu") == []
    [found] = doctor.check_pair("2.12.0", "0.28.0")
    assert found.mark == "wrong" and "torch==2.13.0, not 2.12.0" in found.text
    assert doctor.check_pair(None, "0.28.0") == []


def test_ranges_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a range written down a second time; an extra that is demanded, or one that no user installs."""
    needs = ["ray[tune]>=7", "torch<2,>=1", 'optuna>=99; extra == "search"', 'pytest>=99; extra == "test"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: needs if name == "fedskew" else [])
    found = {one.name: one for one in doctor.check_installed()}
    assert {*found} == {"fedskew", "Python", "ray", "torch", "optuna"}
    assert "pip install 'ray>=7'" in found["ray"].text and "optuna>=99" in found["optuna"].text


# --- what would be used -------------------------------------------------------------------------------------


def test_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a card that torch cannot use and nobody mentions; a machine without one that is warned of it; MPS."""
    (tmp_path / "driver").touch()
    monkeypatch.setattr(doctor, "cards", lambda: [("H200", 150_000_000_000)])
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    card, sharing = doctor.check_cards()
    assert card.text == "H200, 150.0 GB" and sharing.text.startswith("MPS is off")
    (tmp_path / "control").touch()
    assert doctor.check_cards()[1].text.startswith("MPS is on")
    monkeypatch.setattr(doctor, "cards", list)
    assert doctor.check_cards(tmp_path / "no driver")[0].mark == "ok"
    assert doctor.check_cards(tmp_path / "driver")[0].mark == "warn"


def test_a_processor_without_vector_instructions_is_warned_of() -> None:
    """Kills: a slow machine, with bits of its own, that goes unsaid."""
    assert doctor.check_kernels("AVX2").mark == "ok"
    assert doctor.check_kernels("DEFAULT").mark == "warn"


def test_ray_is_begun_here_unless_another_is_named(listener: str, tmp_path: Path) -> None:
    """Kills: a Ray that runs here taken for the one that is used."""
    found, session, *_ = doctor.check_ray()
    assert (session.name, session.mark, [*Path("/tmp").glob(f"fedskew-{os.getpid()}-*")]) == ("session", "ok", [])
    assert found.mark == "ok" and "starts one here" in found.text and "--address" not in found.text
    begun(tmp_path, listener)
    assert f"the one at {listener} is used with --address auto" in doctor.check_ray()[0].text
    begun(tmp_path, free_address())
    assert "--address" not in doctor.check_ray()[0].text


def begun(tmp_path: Path, address: str) -> None:
    """Leave what ``ray start`` leaves."""
    (tmp_path / "ray-tmp" / "ray").mkdir(parents=True, exist_ok=True)
    (tmp_path / "ray-tmp" / "ray" / "ray_current_cluster").write_text(f"{address}\n")


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("address", ["auto", "nonsense", "localhost:no", "127.0.0.1:99999", "free"])
def test_a_ray_address_that_nothing_answers_at_is_wrong(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: RAY_ADDRESS that is printed and not tried; a traceback for one that is no address."""
    monkeypatch.setenv("RAY_ADDRESS", address.replace("free", free_address()))
    code, findings = examined()
    assert code == 1
    [found] = [found for found in findings if found["topic"] == "Ray"]
    assert found["mark"] == "wrong" and "unset RAY_ADDRESS" in found["text"]


def test_a_ray_that_answers_is_used(listener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an address in one of its forms that is not understood."""
    begun(tmp_path, listener)
    for address in ("auto", listener):
        monkeypatch.setenv("RAY_ADDRESS", address)
        [found] = doctor.check_ray()
        assert found.mark == "ok" and "answers" in found.text


def test_shared_memory_that_is_too_small_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a container's 64 MB of shared memory that go unsaid."""
    sizes = SimpleNamespace(total=64e6)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: sizes)
    [found] = doctor.check_shared_memory(tmp_path)
    assert found.mark == "warn" and "--shm-size" in found.text
    sizes.total = 1e13
    assert doctor.check_shared_memory(tmp_path) == []
    assert doctor.check_shared_memory(tmp_path / "none") == []


def test_a_session_that_has_no_place_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a place that is named and not tried."""
    monkeypatch.setattr("engine.worker.ray.session_folder.LONGEST", 60)
    found = doctor.check_session()
    assert found.mark == "wrong" and found.text.endswith("set RAY_TMPDIR to one")


def test_a_home_that_is_not_there_is_told_of_what_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: folders and data sets that cannot be checked, since one of them would lie in a home folder."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda _: {}["no such user"])
    found = {one.name: one for one in [*doctor.check_folders(), *doctor.check_data_sets()]}
    assert found["runs"].mark == found["synthetic"].mark == found["fashion_mnist_sample"].mark == "ok"
    assert found["downloads"].mark == "warn" and found["downloads"].text.startswith("XDG_CACHE_HOME=~/.cache: names no")


def test_a_folder_without_locks_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a file system called fit for runs on which none can begin."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    found = {one.name: one for one in doctor.check_folders()}
    assert found["runs"].mark == "wrong" and "cannot be locked (No locks available)" in found["runs"].text
    assert found["store"].mark != "wrong"


# --- where files go, and where data are ---------------------------------------------------------------------


def test_a_store_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    """Kills: a place that is named and not tried; a check that leaves something behind."""
    assert {found.mark for found in doctor.check_folders()} <= {"ok", "warn"}
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "store").touch()
    marks = {found.name: found for found in doctor.check_folders()}
    assert (marks["runs"].mark, marks["store"].mark) == ("ok", "wrong")
    assert "is not a folder" in marks["store"].text
    assert examined()[0] == 1


def test_a_disk_that_is_nearly_full_is_warned_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a store's limit that is not compared with the room for it; bytes taken for GB."""
    total, used, _ = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(total=total, used=used, free=5e9))
    marks = {found.name: found.mark for found in doctor.check_folders()}
    assert marks == {"runs": "ok", "store": "warn", "downloads": "ok", "temporary": "ok"}


def test_data_sets_are_looked_for_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a missing data set called found; a download, or a decoded file, while looking."""

    def downloaded(folder: Path) -> None:
        raise AssertionError(f"a download into {folder}")

    monkeypatch.setattr("engine.data.sources.cifar._download_cifar10", downloaded)
    monkeypatch.setattr("engine.data.sources.mnist._download_fashion_mnist", downloaded)
    found = {one.name: one for one in doctor.check_data_sets()}
    assert [*found] == [*SOURCES]
    assert found["cifar10"].mark == found["fashion_mnist"].mark == "ok"
    assert "not here yet" in found["cifar10"].text
    assert found["synthetic"].text == "drawn, without files"
    assert {one.mark for one in found.values()} == {"ok"}  # nobody has asked for one
    assert "data.name=parquet" in found["cifar10"].text
    assert "https://ossci-datasets.s3.amazonaws.com/mnist/" in found["mnist"].text
    folder = tmp_path / "cache" / "fedskew" / "mnist" / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").write_bytes(b"nothing that can be read")
    here = doctor.check_data_set("mnist", SOURCES["mnist"])
    assert (here.mark, here.text) == ("ok", str(folder))
    batches = tmp_path / "cache" / "fedskew" / "cifar-10-batches-py"
    batches.mkdir()
    for name in ("data_batch_1", "test_batch"):
        (batches / name).touch()
    assert "not here" not in doctor.check_data_set("cifar10", SOURCES["cifar10"]).text


def test_half_of_a_data_set_is_missing(tmp_path: Path) -> None:
    """Kills: images called found whose tables are missing."""
    (tmp_path / "cache" / "fedskew" / "inaturalist_user_120k" / "train_val_images").mkdir(parents=True)
    found = doctor.check_data_set("inaturalist_user_120k", SOURCES["inaturalist_user_120k"])
    assert found.mark == "ok" and "federated_train_user_120k.csv was not found" in found.text
