"""Files of strangers: a run, a checkpoint, a store, a sweep, data. None of them runs code or reaches out of its folder.

Each hostile file leaves a mark when its code runs; after each command the mark must be absent, and the command must
have ended with a sentence.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import re
import shutil
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from engine.base import parquet
from engine.base.errors import DataError, RunFolderError
from engine.base.files import refuse_links
from engine.data.sources.formats import decode_images
from engine.experiment import Experiment
from engine.record import snapshots
from engine.record.run_folder import RunFolder
from engine.record.states import MemoryStore
from engine.record.store import StageStore
from engine.run.run import Run
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import load
from tests.support.command_line import SMALL
from tests.support.house import SOURCES, name
from tests.support.report_pages import CLAIMS, TABLE, Page, check_self_contained
from tests.support.sweep_folders import MU, make_sweep
from tune_configs import SWEEPS

MODELS = [{"name": "mlp", "hidden": [8]}, {"name": "logistic"}]
Call = Callable[..., tuple[int, str, str]]


class Marking:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self._mark,)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    return tmp_path / "the code ran"


@pytest.fixture
def attack(mark: Path) -> bytes:
    """A pickle, and the proof that it would work."""
    content = pickle.dumps(Marking(mark))
    pickle.loads(content)
    assert mark.exists()
    mark.unlink()
    return content


def objects(attack: bytes, column: str) -> pa.Table:
    """A column that Ray unpickles where it is made a list; Ray Tune registers the type when it is imported."""
    labels = {"ARROW:extension:name": "ray.data.arrow_pickled_object", "ARROW:extension:metadata": ""}
    field = pa.field(column, pa.large_binary(), metadata=labels)
    return pa.Table.from_arrays([pa.array([attack] * 3, pa.large_binary())], schema=pa.schema([field]))


def written(table: pa.Table) -> bytes:
    content = pa.BufferOutputStream()
    pq.write_table(table, content)
    return content.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with clients' states that has been stopped, so that a resume reads everything."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    experiment = Experiment.from_mapping({}).override([*SMALL, "rounds=3", "algorithm.name=scaffold"])
    experiment = experiment.override(["checkpoint.every=1", "execution.device=cpu"])
    under_way = Run.open(experiment, folder)
    under_way.advance(until=2, seconds=60.0)
    under_way.close()
    return folder


@pytest.fixture
def stopped(stopped_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


def sentence(err: str) -> str:
    """The command's error: one line, no traceback."""
    assert "Traceback" not in err
    found = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(found) == 1, err
    return found[0]


# --- pickles in the place of what is read -----------------------------------------------------------------------

RUN_FILES = (
    "experiment.yaml",
    "partition.parquet",
    "rounds.parquet",
    "clients.parquet",
    "evaluations.parquet",
    "summary.json",
)


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("file", RUN_FILES)
@pytest.mark.parametrize("verb", ["resume", "report", "diagnose"])
def test_a_pickle_in_a_runs_folder(
    call: Call,
    stopped: Path,
    attack: bytes,
    mark: Path,
    file: str,
    verb: str,
) -> None:
    """Kills: pickle.load or a loader that falls back on it, of any file that a command reads."""
    (stopped / file).write_bytes(attack)
    code, _, err = call(verb, str(stopped))
    assert not mark.exists()
    assert code in (0, 2)  # 0: the command does without that file
    if code:
        sentence(err)
    assert (file, verb) == ("summary.json", "diagnose") or code == 2 or file != "experiment.yaml"


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("file", [file for file in RUN_FILES if file.endswith(".parquet")])
@pytest.mark.parametrize("verb", ["resume", "report", "diagnose"])
def test_a_column_of_pickled_objects(
    call: Call,
    stopped: Path,
    attack: bytes,
    mark: Path,
    file: str,
    verb: str,
) -> None:
    """Kills: a table read with whatever type a library has registered: Ray's runs the column's pickles."""
    import ray.tune  # noqa: F401  (registers the type)

    hostile = objects(attack, "index" if file.startswith("partition") else "stage")
    proof = pq.ParquetFile(pa.BufferReader(written(hostile))).read()
    proof[0].to_pylist()
    assert mark.exists(), "Ray no longer unpickles: this test proves nothing"
    mark.unlink()
    whole = pq.read_table(stopped / file)
    for column in whole.column_names:
        if column not in hostile.column_names:
            hostile = hostile.append_column(column, whole[column].slice(0, 1).take(pa.array([0, 0, 0])))
    hostile = hostile.replace_schema_metadata(whole.schema.metadata)
    (stopped / file).write_bytes(written(hostile))
    code, _, err = call(verb, str(stopped))
    assert not mark.exists()
    if code:
        sentence(err)
    assert (
        code == 2
        or (file, verb) in [("partition.parquet", "report"), ("evaluations.parquet", "diagnose")]
        or (file in ("rounds.parquet", "clients.parquet") and verb == "report")
    )


@pytest.mark.slow
@pytest.mark.parametrize("what", ["checkpoint", "state"])
def test_a_pickle_for_a_checkpoint(
    call: Call,
    stopped: Path,
    attack: bytes,
    mark: Path,
    what: str,
) -> None:
    """Kills: torch.load; a state that is not compared with its name. The run goes on from what is whole."""
    places = {"checkpoint": "checkpoints/*.safetensors", "state": "checkpoints/states/*.safetensors"}
    for path in stopped.glob(places[what]):
        path.write_bytes(attack)
    code, _, err = call("resume", str(stopped))
    assert not mark.exists()
    assert "Traceback" not in err and "falling back" in err
    assert code == 0


def test_a_state_that_is_named_after_its_pickle(tmp_path: Path, attack: bytes, mark: Path) -> None:
    """Kills: a digest taken for a proof of what a file is."""
    digest = hashlib.sha256(attack).hexdigest()
    (tmp_path / f"{digest}.safetensors").write_bytes(attack)
    with pytest.raises(RunFolderError, match="client state"):
        MemoryStore(tmp_path, lambda handle: handle).load(digest)
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.parametrize("file", ["manifest.json", "checkpoint.safetensors", "rounds.parquet", "snapshot.json"])
def test_a_pickle_in_a_store(
    call: Call,
    tmp_path: Path,
    attack: bytes,
    mark: Path,
    file: str,
) -> None:
    """Kills: an entry read before its manifest is compared, or trusted for it. What is wrong is computed again."""
    words = [*SMALL, "rounds=2", "execution.device=cpu", "--store", str(tmp_path / "store"), "--json"]
    code, out, _ = call("run", *words, "--out", "first")
    assert code == 0
    entries = list((tmp_path / "store").glob("??/*/[0-9]*"))
    assert entries
    for entry in entries:
        (entry / file).unlink()  # the run's own folder has links to the same files
        (entry / file).write_bytes(attack)
        if file != "manifest.json":  # as its author would write it
            content = json.loads((entry / "manifest.json").read_text())
            content["files"][file] = [len(attack), hashlib.sha256(attack).hexdigest()]
            (entry / "manifest.json").write_text(json.dumps(content))
    again = call("run", *words, "--out", "second")
    assert not mark.exists()
    assert "Traceback" not in again[2]
    if again[0]:
        sentence(again[2])
    else:
        sha = [json.loads(text.splitlines()[-1])["weights_sha256"] for text in (out, again[1])]
        assert sha[0] == sha[1]


def test_a_snapshot_with_objects(tmp_path: Path, attack: bytes, mark: Path) -> None:
    """Kills: rows of a stored stage made lists as they are typed."""
    import ray.tune  # noqa: F401

    (tmp_path / "snapshot.json").write_text("{}")
    for table in snapshots.SCHEMAS:
        (tmp_path / f"{table}.parquet").write_bytes(written(objects(attack, "stage")))
    with pytest.raises(RunFolderError, match="which may be code"):
        snapshots.read(tmp_path)
    assert not mark.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("unpainted")
@pytest.mark.parametrize("file", ["sweep.yaml", "trials/00001/trial.json", "trials/00001/evaluations.parquet"])
@pytest.mark.parametrize("verb", ["report", "resume", "run"])
def test_a_pickle_in_a_sweeps_folder(
    call: Call,
    tmp_path: Path,
    attack: bytes,
    mark: Path,
    file: str,
    verb: str,
) -> None:
    """Kills: a sweep's or a trial's record that is more than data."""
    made = make_sweep(tmp_path / "sweep", seeds=(0,), rounds=2, client_rows=False)
    (made / file).write_bytes(attack)
    code, _, err = call(verb, f"{made}:00001" if verb == "run" else str(made))
    assert not mark.exists()
    if verb == "report" and file != "sweep.yaml":  # it costs that trial alone
        assert code == 0 and "1 damaged" in err
    elif (file, verb) not in {("sweep.yaml", "run"), ("trials/00001/evaluations.parquet", "run")}:
        assert code == 2
        sentence(err)


TAGS = (
    "!!python/object/apply:os.system ['touch MARK']",
    "!!python/object/new:pathlib.Path [MARK]",
    "!!python/name:os.system",
    "{name: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path [MARK]]}",
)


@pytest.mark.slow
@pytest.mark.parametrize("text", TAGS)
@pytest.mark.parametrize("where", ["run FILE", "resume", "report", "sweep", "override"])
def test_yaml_that_asks_for_python(
    call: Call,
    stopped: Path,
    tmp_path: Path,
    mark: Path,
    text: str,
    where: str,
) -> None:
    """Kills: yaml.load with a loader that builds objects, in a file or behind an equals sign."""
    text = text.replace("MARK", f"'{mark}'" if "[MARK" in text else str(mark).replace(" ", "\\ "))
    if where == "sweep":
        stopped = make_sweep(tmp_path / "sweep", seeds=(0,), rounds=2, client_rows=False)
    (stopped / ("sweep.yaml" if where == "sweep" else "experiment.yaml")).write_text(text)
    words = {
        "run FILE": ("run", str(stopped / "experiment.yaml")),
        "override": ("run", *SMALL, f"name={text}", "--out", "nowhere"),
        "sweep": ("report", str(stopped)),
    }.get(where, (where, str(stopped)))
    code, _, err = call(*words)
    assert not mark.exists()
    assert code == 2
    sentence(err)


# --- data ---------------------------------------------------------------------------------------------------------


def test_pickles_for_images_and_batches(call: Call, tmp_path: Path, attack: bytes, mark: Path) -> None:
    """Kills: CIFAR's batches unpickled as they are; a loader that goes by what a file is called."""
    cifar = tmp_path / "cifar"
    cifar.mkdir()
    for number in range(1, 6):
        (cifar / f"data_batch_{number}").write_bytes(attack)
    (cifar / "test_batch").write_bytes(attack)
    hundred = tmp_path / "hundred"
    hundred.mkdir()
    for part in ("train", "test", "meta"):
        (hundred / part).write_bytes(attack)
    tree = tmp_path / "tree"
    table = tmp_path / "table"
    idx = tmp_path / "idx"
    for folder in (tree / "train/a", tree / "test/a", table, idx):
        folder.mkdir(parents=True)
    for split in ("train", "test"):
        (tree / split / "a" / "one.png").write_bytes(attack)
        (table / f"{split}.parquet").write_bytes(attack)
    for prefix in ("train", "t10k"):
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            (idx / f"{prefix}-{kind}").write_bytes(attack)
    roots = {"cifar10": cifar, "cifar100": hundred, "imagefolder": tree, "parquet": table, "mnist": idx}
    for source, root in roots.items():
        code, _, err = call("run", "execution.actors=0", f"data.name={source}", f"data.root={root}", "--out", "out")
        assert code == 2, source
        assert str(root) in sentence(err)
    assert not mark.exists()


def test_parquet_data_with_objects(call: Call, tmp_path: Path, attack: bytes, mark: Path) -> None:
    """Kills: labels or images of a type that Python defines."""
    import ray.tune  # noqa: F401

    for column, other in (("label", "image"), ("image", "label")):
        root = tmp_path / column
        root.mkdir()
        table = objects(attack, column).append_column(other, pa.array([0, 1, 2]))
        for split in ("train", "test"):
            (root / f"{split}.parquet").write_bytes(written(table))
        code, _, err = call("run", "execution.actors=0", "data.name=parquet", f"data.root={root}", "--out", "out")
        assert (code, mark.exists()) == (2, False)
        assert "which may be code" in sentence(err)


def test_types_are_looked_for_at_any_depth(tmp_path: Path) -> None:
    """Kills: objects inside a list, a struct or a dictionary; a file refused for a type of Arrow's own."""
    import ray.tune  # noqa: F401

    labels = {"ARROW:extension:name": "ray.data.arrow_pickled_object", "ARROW:extension:metadata": ""}
    inner = pa.field("inner", pa.large_binary(), metadata=labels)
    for kind in (pa.struct([inner]), pa.list_(inner), pa.list_(pa.struct([inner]))):
        path = tmp_path / "nested.parquet"
        pq.write_table(pa.table({"outer": pa.array([], kind)}), path)
        assert "ray.data.arrow_pickled_object" in str(pq.read_schema(path))
        with pytest.raises(pa.ArrowInvalid, match="'outer' holds objects of Python"):
            parquet.open_plain(path)
    plain = pa.table({"id": pa.array([b"0" * 16], pa.uuid()), "label": [1]})
    pq.write_table(plain, tmp_path / "plain.parquet")
    assert parquet.read(tmp_path / "plain.parquet", ["label"])["label"].to_pylist() == [1]


def test_notes_of_pandas_change_nothing(tmp_path: Path) -> None:
    """Kills: a stranger's notes that make a column an index, or of another type, in our tables."""
    frame = pd.DataFrame({"stage": ["train"], "round": [1]}).set_index("stage")
    frame.to_parquet(tmp_path / "noted.parquet")
    found = parquet.read(tmp_path / "noted.parquet").to_pandas()
    assert sorted(found.columns) == ["round", "stage"]


def png(width: int, height: int) -> bytes:
    """A PNG of that size that has no pixels: what it asks for is in its header."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    chunks = [struct.pack(">I", len(c)) + kind + c + struct.pack(">I", zlib.crc32(kind + c)) for kind, c in parts]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize("side", [10_000, 20_000])  # Pillow warns at the first, and refuses the second
def test_images_that_unpack_to_gigabytes(call: Call, tmp_path: Path, side: int) -> None:
    """Kills: a warning that nobody sees before the memory is gone; a traceback."""
    for split in ("train", "test"):
        (tmp_path / "data" / split / "a").mkdir(parents=True)
        (tmp_path / "data" / split / "a" / "bomb.png").write_bytes(png(side, side))
    words = ("execution.actors=0", "data.name=imagefolder", f"data.root={tmp_path / 'data'}", "data.size=8")
    code, _, err = call("run", *words, "--out", "out")
    assert code == 2
    assert "bomb.png: not a readable image" in sentence(err)
    assert "decompression bomb" in err


def test_an_image_is_never_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: PostScript under an image's name, which Pillow gives to Ghostscript."""
    asked: list[Any] = []
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *words, **_: asked.append(words))
    Image.new("L", (4, 4)).save(tmp_path / "one.eps")
    with pytest.raises(DataError, match="not a readable image"):
        decode_images([("one.png", (tmp_path / "one.eps").read_bytes())], 1, size=4)
    assert not asked


# --- out of the folder --------------------------------------------------------------------------------------------


def test_a_trials_name_stays_in_its_folder(tmp_path: Path) -> None:
    """Kills: a record written where another record says."""
    made = make_sweep(tmp_path / "sweep", seeds=(0,), rounds=2, client_rows=False)
    path = made / "trials/00001/trial.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"trial": "../../../elsewhere"}))
    with pytest.raises(RunFolderError, match=r"is of trial \.\./\.\./\.\./elsewhere"):
        SweepFolder(made).records()
    assert not (tmp_path / "elsewhere").exists()


def test_digests_of_a_checkpoint_are_no_paths(stopped: Path) -> None:
    """Kills: a checkpoint that names files itself: what it holds of a state are 32 bytes."""
    from engine.record.checkpoints import decode

    owner = RunFolder(stopped).experiment().digest
    (path, *_) = sorted((stopped / "checkpoints").glob("*.safetensors"))
    for digest in decode(path, owner).states.values():
        assert re.fullmatch("[0-9a-f]{64}", digest)


@pytest.mark.parametrize("key", ["../x", "a/b", "", ".", "..", "a\0b"])
def test_keys_of_a_store_are_no_paths(tmp_path: Path, key: str) -> None:
    """Kills: a key that is put into a path as it is."""
    with pytest.raises(ValueError, match="letters, digits"):
        StageStore(tmp_path).want(key, 1)


@pytest.mark.parametrize("field", ["name", "stage"])
def test_names_of_an_experiment_are_no_paths(call: Call, tmp_path: Path, field: str) -> None:
    """Kills: a folder or a checkpoint named as a stranger likes."""
    for wrong in ("../x", "a/b", "<script>", "a\nb", "x" * 65, "a\n"):
        values: dict[str, Any] = {"name": wrong} if field == "name" else {"stages": [{"name": wrong, "rounds": 1}]}
        (tmp_path / "e.yaml").write_text(yaml.safe_dump(values))
        code, _, err = call("run", str(tmp_path / "e.yaml"))
        assert code == 2, wrong
        assert "name=" in err and "Traceback" not in err


LINKS = ("checkpoints/states", "checkpoints", ".lock", "log.txt", "curves.png", "report", "rows", "experiment.yaml")


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("verb", ["resume", "report"])
def test_links_in_a_runs_folder(call: Call, stopped: Path, tmp_path: Path, link: str, verb: str) -> None:
    """Kills: a log, a lock, a picture or a cleared folder that is another place: files there were changed, or gone."""
    place = stopped / link
    (tmp_path / "mine").mkdir()
    target = tmp_path / "mine" / "precious"
    if place.is_dir() or link in ("report", "rows"):
        target.mkdir()
        (target / "letter.txt").write_text("dear")
        shutil.rmtree(place, ignore_errors=True)
    else:
        target.write_text("dear")
        place.unlink(missing_ok=True)
    place.symlink_to(target)
    before = {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()}
    code, _, err = call(verb, str(stopped))
    assert {path: path.read_bytes() for path in (tmp_path / "mine").rglob("*") if path.is_file()} == before
    assert code == 2
    assert "symbolic link" in sentence(err) or link == "experiment.yaml"


def test_a_run_whose_folder_is_a_link_goes_on(call: Call, stopped: Path, tmp_path: Path) -> None:
    """Kills: runs kept on another disk, refused."""
    (tmp_path / "link").symlink_to(stopped)
    code, _, _ = call("resume", str(tmp_path / "link"))
    assert code == 0
    refuse_links(tmp_path / "link")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["sweep/mine.py", "sweep/trials/00000/mine.py", "relative", "elsewhere.py"])
def test_a_sweep_does_not_bring_its_code(call: Call, tmp_path: Path, mark: Path, place: str) -> None:
    """Kills: a resume that runs a file out of the folder it was given, or one that is found from where one stands, or
    any that the folder names and the user did not."""
    made = make_sweep(tmp_path / "sweep", seeds=(0,), rounds=2, client_rows=False)
    file = tmp_path / "mine.py" if place == "relative" else tmp_path / place
    file.write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\ndef f(profile):\n    pass\n")
    values = yaml.safe_load((made / "sweep.yaml").read_text())
    values |= {"reference": f"{'mine.py' if place == 'relative' else file}:f", "overrides": [], "how": {}}
    (made / "sweep.yaml").write_text(yaml.safe_dump(values))
    for verb in ("resume", "report"):
        code, _, err = call(verb, str(made))
        assert not mark.exists()
        assert code == (2 if verb == "resume" else 0)
        assert verb == "report" or "is a sweep of code of your own" in sentence(err)


# Names of parts, as a stranger would write them; FILE is one that leaves a mark where it is imported, as is "marking".
NAMES_OF_CODE = {
    "a path": {"algorithm": {"name": "FILE"}},
    "a class of a path": {"algorithm": {"name": "FILE:Mine"}},
    "a module": {"algorithm": {"name": "marking"}},
    "a class of a module": {"algorithm": {"name": "marking:Mine"}},
    "a dotted class": {"algorithm": {"name": "marking.Mine"}},
    "a target": {"algorithm": {"_target_": "marking.Mine", "name": "fedavg"}},
    "a model": {"model": {"name": "marking:Mine"}},
    "data": {"data": {"name": "marking:Mine"}},
    "a partition": {"partition": {"name": "marking:Mine"}},
    "a stage": {"stages": [{"name": "a", "rounds": 1, "algorithm": {"name": "marking:Mine"}}]},
    "clients' models": {"client_models": ["marking:Mine"]},
    "another key": {"with": ["FILE"]},
}


@pytest.mark.parametrize("case", NAMES_OF_CODE)
def test_no_name_is_imported(call: Call, tmp_path: Path, mark: Path, case: str) -> None:
    """Kills: a part by its import path; a file that a config, a run's folder or its ``parts.json`` names, imported."""
    file = tmp_path / "marking.py"
    file.write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\nclass Mine:\n    pass\n")
    values = json.loads(json.dumps({"rounds": 1, **NAMES_OF_CODE[case]}).replace("FILE", str(file)))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "experiment.yaml").write_text(yaml.safe_dump(values))
    part = {"name": "marking:Mine", "origin": "file", "place": str(file), "version": None, "code": "0" * 16}
    sections = ("data", "partition", "model", "client_models.0", "stages.a.algorithm")
    (folder / "parts.json").write_text(json.dumps(dict.fromkeys(sections, part)))
    for words in (["run", str(folder / "experiment.yaml")], ["resume", str(folder)], ["images", str(folder)]):
        code, _, err = call(*words)
        assert not mark.exists() and "marking" not in sys.modules
        assert code == 2, err
        assert sentence(err)
    code, _, err = call("report", str(folder))
    assert not mark.exists() and code in (0, 2)


@pytest.mark.parametrize("thing", ["Documents", "v1/images", "temporary", "ab/abcdef", "link"])
def test_a_store_is_a_folder_of_its_own(tmp_path: Path, thing: str) -> None:
    """Kills: a store that is told to be somebody's home, where it would clear away what is old."""
    if thing == "link":
        (tmp_path / "home").mkdir()
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "ab").symlink_to(tmp_path / "home")
    else:
        (tmp_path / "store" / thing).mkdir(parents=True)
    with pytest.raises(RunFolderError, match=r"holds something else.*--store"):
        StageStore(tmp_path / "store")


@pytest.mark.parametrize("marker", ["folder", "link", "newer"])
def test_a_marker_of_something_else_makes_no_store(tmp_path: Path, marker: str) -> None:
    """Kills: anything of that name taken for the marker; a store of another version that is written to."""
    place = tmp_path / "store" / "fedskew-store.json"
    place.parent.mkdir()
    (tmp_path / "there").touch()
    made = {"folder": place.mkdir, "link": lambda: place.symlink_to(tmp_path / "there")}
    made.get(marker, lambda: place.write_text('{"format": 2}'))()
    with pytest.raises(RunFolderError, match=r"holds something else|is of another version"):
        StageStore(tmp_path / "store")


def test_a_folder_that_was_filled_since_it_was_named_is_no_store(tmp_path: Path) -> None:
    """Kills: a look at the folder when a store is named, and none when it is first written to."""
    store = StageStore(tmp_path / "store")
    (tmp_path / "store" / "v1").mkdir(parents=True)
    for write in (lambda: store.want("abcdef", 1), lambda: store.lease("abcdef")):
        with pytest.raises(RunFolderError, match="holds something else"):
            write()
    assert os.listdir(tmp_path / "store") == ["v1"]


@pytest.mark.parametrize("verb", ["run", "sweep", "resume"])
def test_pictures_in_the_place_of_a_store_stay(call: Call, tmp_path: Path, verb: str) -> None:
    """Kills: a folder of photos evicted as a store's entries, since its name has two letters; named by the user or by a
    stranger's sweep."""
    picture = tmp_path / "photos" / "v1" / "images" / "a.jpg"
    picture.parent.mkdir(parents=True)
    picture.write_bytes(b"a picture")
    for path in (picture, *picture.parents[:2]):
        os.utime(path, (0, 0))
    words = [*SMALL, "rounds=2", "--out", str(tmp_path / "run")]
    if verb == "sweep":
        words = ["drift.fedprox_mu", "--out", str(tmp_path / "run")]
    if verb == "resume":
        how = {"store": str(tmp_path / "photos"), "reuse": True, "mode": "auto", "concurrent": None, "limit_gb": 1e-9}
        values = {"reference": "drift.fedprox_mu", "profile": "laptop", "overrides": [], "how": how}
        values["partitions"] = "anew"
        named = load("drift.fedprox_mu", "laptop", [], SWEEPS)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "sweep.yaml").write_text(yaml.safe_dump({**values, "digest": named.digest}))
        words = [str(tmp_path / "run")]
    code, _, err = call(verb, *words, *([] if verb == "resume" else ["--store", str(tmp_path / "photos")]))
    assert picture.read_bytes() == b"a picture"
    assert code == 2 and "holds something else (v1)" in sentence(err) and "--store" in err
    assert not (tmp_path / "run" / "trials").exists() and not (tmp_path / "run" / "experiment.yaml").exists()


def test_a_store_that_was_used_opens_again(tmp_path: Path) -> None:
    """Kills: a store that takes its own folders for somebody else's."""
    store = StageStore(tmp_path)
    store.publish("abcdef", 3, lambda folder: (folder / "file").write_text("x") and None)
    store.want("q", 1)
    assert StageStore(tmp_path).rounds("abcdef") == [3]


def test_a_link_in_a_store_is_no_file_of_an_entry(tmp_path: Path) -> None:
    """Kills: an entry that hands on another file than it holds."""
    (tmp_path / "secret").write_text("x")
    store = StageStore(tmp_path / "store")
    store.publish("abcdef", 3, lambda folder: (folder / "file").write_text("x") and None)
    entry = store.open("abcdef", 3)
    assert entry is not None
    (entry / "file").unlink()
    (entry / "file").symlink_to(tmp_path / "secret")
    assert not store.fetch("abcdef", 3, tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_what_tune_left_is_not_read(tmp_path: Path) -> None:
    """Kills: a resume through Ray Tune's own state, which is pickles: a sweep's earlier ``tune/`` goes unread."""
    sweeps = Path(__file__).parents[1] / "engine/sweeps"
    source = (sweeps / "running.py").read_text()
    trees = [ast.parse((sweeps / name).read_text()) for name in ("running.py", "tuner.py")]
    called = {ast.unparse(node.func) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not {name for name in called if "restore" in name}
    gone, begun = source.index("remove(folder.tune"), source.index("_tuner(sweep, job")
    assert gone < begun


# --- pages --------------------------------------------------------------------------------------------------------

MARKUP = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>`[x](javascript:alert(1))$\\frac$"


def hostile(value: Any) -> Any:
    """The same data with markup in every word that is free."""
    if isinstance(value, dict):
        return {key: hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return f"{value} {MARKUP}" if isinstance(value, str) else value


def check_harmless(folder: Path, least: int) -> None:
    """No page of a folder, nor its twin in Markdown, has an element or an attribute that came with a name."""
    pages = list(folder.rglob("*.html"))
    assert pages
    for path in pages:
        page = Page(path)  # fails on elements that do not match
        check_self_contained(page)
        of_images = {name: value for tag, name, value in page.attributes if tag == "img"}
        assert of_images.keys() <= {"src", "alt", "style"}
        sources = [value for tag, name, value in page.attributes if (tag, name) == ("img", "src")]
        assert all(source.startswith("data:image/png;base64,") for source in sources)
        assert page.source.count("<script") == 1
        assert page.source.count("&lt;script&gt;alert(1)") >= least
        policy = next(value for tag, name, value in page.attributes if name == "content" and "default-src" in value)
        assert policy.startswith("default-src 'none'") and "'sha256-" in policy
    for path in folder.rglob("*.md"):
        assert "<" not in path.read_text()
        assert not re.search(r"(?<!\\)\[x\]\(javascript", path.read_text())


@pytest.mark.slow
def test_every_word_of_a_sweep_is_text(call: Call, tmp_path: Path) -> None:
    """Kills: a name, title, claim, source, note, reason, trial, status or setting that becomes part of a page."""
    claim = {**CLAIMS[0], "better": {"mu": 0.1}, "worse": {"mu": 0.0}}
    made = make_sweep(
        tmp_path / "sweep <script>alert(1)<",
        axes=(MU, {"name": "model", "key": "model", "kind": "grid", "values": MODELS, "log": False}),
        seeds=(0,),
        rounds=2,
        client_rows=False,
        failed=(1,),
        claims=[claim | {"text": MARKUP, "source": MARKUP, "where": {}}],
        tables=[TABLE | {"title": MARKUP, "source": MARKUP, "columns": ["model"], "published": [
            {"setting": {"mu": 0.1}, "value": 0.7, "same_setting": False, "note": MARKUP}]}],
        **dict.fromkeys(("name", "profile", "title", "digest"), MARKUP),
        search={"name": MARKUP},
        scheduler={"name": MARKUP},
    )  # fmt: skip
    for path in made.glob("trials/*/trial.json"):
        record = json.loads(path.read_text())
        record["setting"]["model"] = hostile(record["setting"]["model"])
        free = {"trial": hostile(record["trial"]), "reason": MARKUP}
        path.write_text(json.dumps(record | free))
    code, _, err = call("report", str(made))
    assert code == 0, err
    check_harmless(made, least=20)


@pytest.mark.pictures
@pytest.mark.slow
def test_names_of_classes_and_folders_are_text(call: Call, tmp_path: Path) -> None:
    """Kills: a class that is named after a folder and becomes part of a page; one with dollar signs that ends a run,
    since a picture takes it for a formula."""
    root, run = tmp_path / "data", tmp_path / "run <script>alert(1)<"
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 4)):
        for number, word in enumerate(("<script>alert(1)<", "$\\frac$", "a&b\"'><b>")):
            (root / split / word).mkdir(parents=True)
            for image in range(count):
                pixels = rng.integers(0, 80, (8, 8), dtype=np.uint8) + np.uint8(80 * number)
                Image.fromarray(pixels).save(root / split / word / f"{image}.png")
    words = ["data.name=imagefolder", f"data.root={root}", "partition.clients=3", "participation.count=2", "rounds=2"]
    words += ["model.name=mlp", "model.hidden=[8]", "execution.actors=0", "execution.device=cpu", "checkpoint.every=1"]
    assert call("run", *words, "--out", str(run))[0] == 0
    assert (run / "partition.png").stat().st_size > 1000
    for verb in ("report", "diagnose"):
        assert call(verb, str(run))[0] == 0
    check_harmless(run, least=1)


# --- the house ----------------------------------------------------------------------------------------------------

LOADS = re.compile(
    r"(^|\.)(c?pickle|cloudpickle|dill|joblib|marshal|shelve)\.(load|loads|open|Unpickler)$"
    r"|^torch\.load$|^torch\.jit\.load$|^yaml\.(unsafe_|full_)?load(_all)?$|^np\.load$|^numpy\.load$"
    r"|^pd\.read_(pickle|parquet|hdf)$|^pq\.(ParquetFile|ParquetDataset|read_table|read_pandas)$"
    r"|^(eval|exec|compile|__import__)$|^os\.(system|popen)$|(^|\.)read_pickle$|loader\.exec_module$"
)
ALLOWED = {
    ("engine/data/sources/pickled.py", "pickle.Unpickler"),  # restricted: see there
    ("engine/base/parquet.py", "pq.ParquetFile"),
    ("fedskew/testing/algorithm_values.py", "pickle.loads"),  # of what it has just pickled
    ("engine/base/safe_yaml.py", "yaml.load"),  # with the safe loader, see below
}


def loads(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        used = node.func if isinstance(node, ast.Call) else node if isinstance(node, ast.Attribute) else None
        text = ast.unparse(used) if used is not None else ""
        if LOADS.search(text) and (isinstance(node, ast.Call) or not text.startswith("pq.")):  # types have that name
            yield text
        if isinstance(node, ast.Call):
            for word in node.keywords:
                value = word.value.value if isinstance(word.value, ast.Constant) else True
                if word.arg in ("allow_pickle", "weights_only", "shell") and value is (word.arg != "weights_only"):
                    yield f"{text}({word.arg})"


OPENS = re.compile(
    r"^(open|os\.open|io\.open|gzip\.open|bz2\.open|lzma\.open|tarfile\.open|zipfile\.ZipFile|safetensors\.safe_open)$"
    r"|\.(read_bytes|read_text|load_file)$|^Image\.open$|^pq\.ParquetFile$"
    r"|^shutil\.(copy2?|copyfile|copytree|copyfileobj)$|(^|\.)(imread|log_artifacts?)$"
)
ITS_OWN = {  # opened otherwise, each with its reason
    ("engine/base/opening.py", "os.open"),
    ("engine/base/parquet.py", "pq.ParquetFile"),  # by its name, after a look at what it is
    ("engine/base/devices.py", "cpuinfo.read_text"),  # of /proc
    ("engine/base/devices.py", "Path('/proc/self/statm').read_text"),
    ("engine/base/devices.py", "(group / limit).read_text"),  # of /sys
    ("engine/base/devices.py", "OWN_GROUPS.read_text"),
    ("fedskew/cli/launcher.py", "status.read_text"),  # of /proc
    ("fedskew/cli/launcher.py", "os.open"),  # os.devnull
    ("fedskew/cli/child.py", "open"),  # os.devnull
    ("fedskew/cli/output.py", "open"),  # a descriptor
    ("fedskew/lab/paper/citations.py", "bibliography.read_text"),  # this code
    ("fedskew/lab/ledger/page.py", "folder.joinpath(name).read_text"),  # this code
    ("fedskew/lab/pages/__init__.py", "resources.files('fedskew.lab.pages').joinpath(name).read_text"),  # this code
    ("fedskew/testing/templates/__init__.py", "resources.files(__name__).joinpath(template).read_text"),  # this code
    ("fedskew/lazy.py", "Path(file).with_suffix('.pyi').read_text"),  # this code
    ("engine/data/sources/formats.py", "Image.open"),  # of bytes
    ("fedskew/trackers/tensorboard.py", "imread"),  # of bytes
    ("engine/data/sources/formats.py", "gzip.open"),  # of a file that is open
    ("engine/data/sources/cifar.py", "tarfile.open"),  # of a file that is open
    ("engine/base/files.py", "shutil.copyfile"),  # of the store, between file systems; refuses what is no file
    ("engine/sweeps/trial.py", "shutil.copytree"),  # of a checkpoint that Tune has made
    ("fedskew/lab/sweeping/merging.py", "shutil.copytree"),  # of folders without links
    ("fedskew/lab/sweeping/merging.py", "shutil.copy2"),
    ("fedskew/trackers/mlflow.py", "self._client.log_artifact"),  # of folders without links, once its bytes were read
}


def opens(path: Path) -> Iterator[str]:
    """Calls that may wait for what lies there; ``open`` with the opener that does not is none."""
    source = path.read_text()
    for node in (
        ast.walk(ast.parse(source)) if re.search(r"open\(|read|load_file|ParquetFile|copy|artifact", source) else ()
    ):
        if isinstance(node, ast.Call):
            text = ast.unparse(node.func)
            modes = [word.value for word in node.args if isinstance(word, ast.Constant)]
            method = (
                text.endswith(".open") and len(node.args) == 1 and not {*modes}.isdisjoint(("r", "rb", "w", "wb", "a"))
            )
            safe = any(word.arg == "opener" and ast.unparse(word.value) == "regular" for word in node.keywords)
            if (OPENS.search(text) or method) and not safe:
                yield text


def test_no_file_is_opened_that_may_be_none() -> None:
    """Kills: a file opened past ``engine/base/opening.py``, in whose place a FIFO would be waited for."""
    found = {
        (name(path), text) for path in SOURCES for text in opens(path) if name(path).startswith(("engine/", "fedskew/"))
    }
    assert found == ITS_OWN


def test_the_rule_finds_what_may_wait(tmp_path: Path) -> None:
    """Kills: a rule that never matches."""
    for line in (
        "open(p)",
        "p.open('rb')",
        "p.read_text()",
        "gzip.open(p)",
        "safetensors.torch.load_file(p)",
        "shutil.copy(p, q)",
        "imread(p)",
    ):
        (tmp_path / "one.py").write_text(line)
        assert list(opens(tmp_path / "one.py")), line
    for line in ("open(p, opener=regular)", "read_text(p)", "Run.open(experiment)", "store.open('ab', 3)"):
        (tmp_path / "one.py").write_text(line)
        assert not list(opens(tmp_path / "one.py")), line


def test_nothing_is_read_that_can_be_code() -> None:
    """Kills: any new reader that runs what it reads, and a parquet file opened past ``engine/base/parquet.py``."""
    assert {(name(path), text) for path in SOURCES for text in loads(path)} - ALLOWED == set()


def test_the_rule_finds_what_it_forbids(tmp_path: Path) -> None:
    """Kills: a rule that never matches."""
    wrong = (
        "pickle.load(f)", "pickle.loads(b)", "cloudpickle.load(f)", "ray.cloudpickle.loads(b)", "torch.load(p)",
        "joblib.load(p)", "np.load(p, allow_pickle=True)", "yaml.load(t, L)", "yaml.unsafe_load(t)", "eval(t)",
        "exec(t)", "pd.read_pickle(p)", "pd.read_parquet(p)", "pq.read_table(p)", "f = pickle.load",
        "g(allow_pickle=True)", "subprocess.run(c, shell=True)",
    )  # fmt: skip
    for line in wrong:
        (tmp_path / "one.py").write_text(line)
        assert list(loads(tmp_path / "one.py")), line
    for line in ("pickle.dumps(x)", "json.loads(t)", "yaml.safe_load(t)", "model.eval()", "re.compile(t)"):
        (tmp_path / "one.py").write_text(line)
        assert not list(loads(tmp_path / "one.py")), line


def test_the_fast_loader_is_a_safe_one() -> None:
    """Kills: yaml.load with a loader that builds objects."""
    from engine.base import safe_yaml

    assert safe_yaml._Loader in (yaml.SafeLoader, getattr(yaml, "CSafeLoader", None))
