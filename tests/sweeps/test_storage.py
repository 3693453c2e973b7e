"""Trials on nodes that do not see the sweep's folder, without Ray: a storage that is another folder."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from engine.base.errors import Busy, ConfigError, RunFolderError, StoreError, WriteError
from engine.record import wholeness
from engine.record.columns import HOW_IT_WENT
from engine.sweeps.away import Kept
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import load
from engine.sweeps.options import How
from engine.sweeps.running import run_sweep
from engine.sweeps.storage import Storage
from tests.support import small_sweeps
from tests.support.small_sweeps import Alone, base

TABLES = ("rounds", "clients", "evaluations", "failures", "exchanges")
EXPERIMENT = base(**{"execution.actors": 0, "checkpoint.every": 1})
CHANGES = 27  # that a trial makes to the storage


class Failing(fs.FileSystemHandler):
    """A local file system, all of whose changes fail from the one with number ``last`` on."""

    def __init__(self, last: float) -> None:
        self._files, self._left = fs.LocalFileSystem(), last

    def _changes(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise OSError(28, "full")

    def get_file_info(self, paths: list[str]) -> Any:
        return self._files.get_file_info(paths)

    def get_file_info_selector(self, selector: fs.FileSelector) -> Any:
        return self._files.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._files.create_dir(path, recursive=recursive)

    def delete_file(self, path: str) -> None:
        self._changes()
        self._files.delete_file(path)

    def open_input_stream(self, path: str) -> Any:
        return self._files.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._files.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        self._changes()
        return self._files.open_output_stream(path)

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return path

    delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = None  # type: ignore


def away(
    root: Path, node: str, last: float = 1e9, step: int | None = 2, storage: Storage | None = None, **fields: Any
) -> Alone:
    """A trial on a node that does not see the sweep's folder."""
    disk = root / node
    disk.mkdir(exist_ok=True)
    storage = storage or Storage(fs.PyFileSystem(Failing(last)), str(root / "sweep"), root / "command")

    class OnNode(Alone):
        logdir = str(disk)

    return OnNode(root / "nowhere", EXPERIMENT, step, storage=storage, **fields)


def through(trial: Alone) -> None:
    while not trial.step()["done"]:
        pass
    trial.cleanup()


def rows(folder: SweepFolder) -> list[Any]:
    run = folder.run_folder("00000")
    return [run.frame(table).drop(columns=HOW_IT_WENT, errors="ignore") for table in TABLES]


@pytest.fixture
def sweep(tmp_path: Path) -> SweepFolder:
    folder = SweepFolder(tmp_path / "sweep")
    folder.write(TrialRecord("00000", {}, 0))
    return folder


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> SweepFolder:
    """The same trial on a node that sees the folder."""
    folder = SweepFolder(tmp_path_factory.mktemp("there"))
    folder.write(TrialRecord("00000", {}, 0))
    through(Alone(folder.path, EXPERIMENT))
    return folder


def same(sweep: SweepFolder, there: SweepFolder) -> None:
    wholeness.check_ended(sweep.run_folder("00000"))
    assert sweep.record("00000") == there.record("00000")
    here, other = (one.run_folder("00000") for one in (sweep, there))
    assert here.summary()["weights_sha256"] == other.summary()["weights_sha256"]
    assert all(one.equals(two) for one, two in zip(rows(sweep), rows(there), strict=True))


@pytest.mark.parametrize("step", [None, 2])
def test_a_trial_away_leaves_in_the_sweeps_folder_what_one_there_leaves(
    tmp_path: Path, sweep: SweepFolder, there: SweepFolder, step: int | None
) -> None:
    """Kills: files that are not brought, or stay on the node; files of an earlier state that stay in the folder; a
    killed process's files that stay on the node."""
    (tmp_path / f"node/away-00000-{2**30}-killed").mkdir(parents=True)  # no process has so high a number
    through(away(tmp_path, "node", step=step))
    same(sweep, there)
    folders = [one.run_folder("00000").path for one in (sweep, there)]
    names = [{str(path.relative_to(one)) for path in one.rglob("*") if path.is_file()} for one in folders]
    assert names[0] == names[1] - {".lock"}
    assert list((tmp_path / "node").iterdir()) == []
    assert not (tmp_path / "nowhere").exists()


def test_what_is_computed_again_is_sent(tmp_path: Path, sweep: SweepFolder, there: SweepFolder) -> None:
    """Kills: a lost file of an ended trial that is made anew on a node, and is there alone; another process's folder of
    the same trial, taken from under it, after which its files would be deleted in the sweep's, too."""
    through(away(tmp_path, "node"))
    (sweep.run_folder("00000").path / "clients.parquet").unlink()
    other = tmp_path / f"node/away-00000-{os.getppid()}-lives"
    other.mkdir()
    through(away(tmp_path, "node", damaged=frozenset({"00000"})))
    same(sweep, there)
    assert list((tmp_path / "node").iterdir()) == [other]


def test_a_run_sends_each_checkpoint_that_it_comes_to(
    tmp_path: Path, sweep: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a trial whose reports follow the clock, and which is lost with its node as a whole."""
    monkeypatch.setattr("engine.sweeps.trial.REPORT_SECONDS", 0.0)
    trial = away(tmp_path, "node", step=None)
    trial.step()
    trial.step()
    found = (sweep.run_folder("00000").path / "checkpoints").glob("*.safetensors")
    assert max(path.name for path in found) == "00-train-000002.safetensors"
    trial.cleanup()


def test_a_trial_away_goes_on_from_a_checkpoint_of_its_own(
    tmp_path: Path, sweep: SweepFolder, there: SweepFolder
) -> None:
    """Kills: a population's trial that is taken for a copy of another one, since its node has nothing of it."""
    trial = away(tmp_path, "node", mutable=("local.lr",))
    trial.step()
    (saved := tmp_path / "saved").mkdir()
    trial.save_checkpoint(str(saved))
    trial.reset_config({"local.lr": EXPERIMENT.local.lr})
    trial.load_checkpoint(saved)
    through(trial)
    same(sweep, there)
    assert list((tmp_path / "node").iterdir()) == []


@pytest.mark.parametrize(
    "changes", [one if one % 5 == 3 else pytest.param(one, marks=pytest.mark.long) for one in range(CHANGES)]
)
def test_a_trial_goes_on_elsewhere_from_whatever_part_was_brought(
    tmp_path: Path, sweep: SweepFolder, there: SweepFolder, caplog: pytest.LogCaptureFixture, changes: int
) -> None:
    """Kills: a checkpoint that is brought before the rows that it vouches for, or after the one before is deleted; a
    record that says more than there is. What is lost last, old checkpoints that are to be deleted, stays."""
    lost, reports = away(tmp_path, "lost", changes), list[int]()
    with pytest.raises(WriteError, match=r"No space left on device.*fedskew resume .*/command"):
        while True:
            reports.append(lost.step()["round"])
    went_on = away(tmp_path, "other")
    assert went_on.step()["round"] == 2
    through(went_on)
    same(sweep, there)
    assert "anew" not in caplog.text
    continued = re.findall("continuing after round ([0-9]+)", caplog.text)
    assert max(map(int, continued), default=0) >= max(reports, default=0)


def test_what_cannot_pass_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: four processes for a folder that cannot be read each time; a failure without its cause; a disk of a store
    that counts as the trial's own failure, or a process that is about to end and has the run's lock."""
    folder = SweepFolder(tmp_path)
    folder.write(TrialRecord("00000", {}, 0))

    def opened(error: Exception) -> dict[str, Any]:
        def prepare(*_: object) -> None:
            raise error

        monkeypatch.setattr("engine.sweeps.trial.prepare", prepare)
        return Alone(tmp_path, EXPERIMENT).step()

    monkeypatch.setattr("engine.sweeps.trial.LOCK_SECONDS", 0.0)
    with folder.run_folder("00000").locked(), pytest.raises(Busy):
        Alone(tmp_path, EXPERIMENT).step()
    with pytest.raises(StoreError):
        opened(StoreError("the store is full"))
    report, record = opened(RunFolderError("it cannot be read")), folder.begun("00000")
    assert (report["done"], report["failed"], record.status) == (True, True, "failed")
    assert report["reason"] == record.reason == "it cannot be read"


def test_a_copy_and_what_it_is_a_copy_of_become_alike(tmp_path: Path, there: SweepFolder) -> None:
    """Kills: a sweep that another node cannot go on with; one that was begun without a storage, whose trials are not
    found there; a trial that has ended here and is fetched once more."""
    shutil.copytree(there.path / "trials", tmp_path / "begun/trials")
    storage = Storage.at(f"file://{tmp_path}/storage", Path("sweep"))
    Kept(tmp_path / "begun", storage).bring_all()
    other = Kept(tmp_path / "other", storage)
    other.bring_all()
    same(other, there)
    running = replace(there.begun("00000"), status="running")
    SweepFolder(other.path).write(running)
    other.bring_all()
    same(other, there)
    other.write(running)
    shutil.rmtree(tmp_path / "begun")
    Kept(tmp_path / "begun", storage).bring_all()
    assert SweepFolder(tmp_path / "begun").record("00000") == running


def test_a_copy_that_breaks_off_costs_nothing(tmp_path: Path) -> None:
    """Kills: progress here that gives way to the part of it that an earlier start has sent; an end that never comes to
    the storage; a failure here that hides what became of the trial elsewhere."""
    begun = SweepFolder(tmp_path / "begun")
    begun.write(TrialRecord("00000", {}, 0))
    trial = Alone(begun.path, EXPERIMENT)
    trial.step()
    trial.cleanup()
    files = {path: path.read_bytes() for path in begun.path.rglob("*") if path.is_file()}
    kept = SweepFolder(tmp_path / "storage")

    def start(last: float = 1e9) -> None:
        Kept(begun.path, Storage(fs.PyFileSystem(Failing(last)), str(kept.path), begun.path)).bring_all()

    with pytest.raises(WriteError):
        start(1)
    assert sum(path.is_file() for path in kept.path.rglob("*")) == 1
    start()
    assert {path: path.read_bytes() for path in begun.path.rglob("*") if path.is_file()} == files
    running = begun.begun("00000")
    assert kept.begun("00000") == running
    for here, there in (("stopped", "stopped"), ("failed", "running")):
        kept.write(running)
        begun.write(replace(running, status=here))
        start()
        assert kept.begun("00000") == begun.begun("00000") == replace(running, status=there)


def test_another_sweep_in_the_storage_is_refused_before_anything_is_copied(tmp_path: Path) -> None:
    """Kills: two sweeps whose trials are mixed, here or there."""
    one, other = (load(f"{small_sweeps.__file__}:{name}", "laptop", (), {}) for name in ("grid", "pair"))
    how = How(storage=f"file://{tmp_path}/storage")
    for named, path, trial in ((one, tmp_path / "storage/sweep", "00000"), (other, tmp_path / "sweep", "00001")):
        folder = SweepFolder.for_sweep(named, path)
        folder.create(named, how.to_mapping())
        folder.write(TrialRecord(trial, {}, 0))
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(
        ConfigError, match=rf"holds another sweep in .*/sweep \({one.digest}, this one is {other.digest}"
    ):
        run_sweep(other, tmp_path / "sweep", how)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def test_a_place_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    """Kills: a traceback of Arrow's; a sweep that begins, and whose trials then fail one by one."""
    (tmp_path / "file").touch()
    for uri in ("nowhere://x", "relative/folder", f"file://{tmp_path}/file"):
        with pytest.raises(ConfigError, match=r"--storage=.*cannot be used.*name a folder that can be written"):
            Storage.at(uri, Path("sweep"))


@pytest.mark.parametrize(
    ("uri", "refused"),
    [
        ("s3://me:secret@bucket/x", "holds a name or a password"),
        ("s3://me@bucket", "holds a name or a password"),
        ("abfss://account/x?region=r&sig=secret", "has sig behind its [?]"),
        ("s3://bucket?access_key=a&%73ecret_key=secret", "has access_key, secret_key behind its [?]"),
        ("gs://anonymous@bucket/x", None),
        ("s3://bucket/me@home?region=r&scheme=http&endpoint_override=h:1&allow_bucket_creation=true", None),
    ],
)
def test_what_may_be_a_secret_is_refused_in_a_storage_and_not_shown(uri: str, refused: str | None) -> None:
    """Kills: a key or a signature in sweep.yaml, or in the sentence that refuses it; places that no key opens."""
    if refused is None:
        assert How(storage=uri).storage == uri
        return
    with pytest.raises(ConfigError, match=refused) as error:
        How(storage=uri)
    assert "=secret" not in str(error.value) and "secret@" not in str(error.value)


@pytest.mark.long
def test_a_sweep_is_kept_in_object_storage(tmp_path: Path, there: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: folders and files that a bucket has not as a disk has them. The server is moto's, on this machine."""
    from moto.server import ThreadedMotoServer  # which takes a second, of this test alone

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            monkeypatch.setenv(f"AWS_{name}", "any")
        place = f"endpoint_override=127.0.0.1:{server.get_host_and_port()[1]}&scheme=http&region=us-east-1"
        fs.FileSystem.from_uri(f"s3://?{place}&allow_bucket_creation=true")[0].create_dir("bucket")
        storage = Storage.at(f"s3://bucket/sweeps?{place}", Path("sweep"))
        storage.forget("tune")
        command = Kept(tmp_path / "command", storage)
        command.write(TrialRecord("00000", {}, 0))
        through(away(tmp_path, "node", storage=storage))
        command.bring("00000")
        same(command, there)
        assert storage.trials() == ["00000"]
        assert command.digest_there() is None
        other = Kept(tmp_path / "other", storage)
        other.bring_all()
        same(other, there)
    finally:
        server.stop()
