"""A fuzzer over all that reads files: ``python -m tests.faults.fuzz --seconds 60 --seed 1 [--reader NAME]``.

A reader may give something back or raise a FedskewError. Another exception, a crash, more than 2 GiB of memory or more
than 5 seconds for one input is a finding; its input is kept in ``--findings``. Inputs come from atheris (the extra
``fuzz``), which watches what they reach; each reader has a process of its own, since its fuzzing never returns.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY_MB, SLOWEST = 2048, 5  # of an input
NOTES = "findings.jsonl"


@dataclass(frozen=True)
class Reader:
    """``read`` is given an empty folder and a file's content; ``seeds``: contents that it reads without an error."""

    name: str
    read: Callable[[Path, bytes], object]
    seeds: tuple[bytes, ...]


# --- the readers ------------------------------------------------------------------------------------------


def readers() -> dict[str, Reader]:
    """All of them; the engine is imported here, so that it can be watched."""
    found = [*_of_data(), *_of_text(), *_of_runs()]
    return {reader.name: reader for reader in found}


def _file(name: str, read: Callable[[Path], object]) -> Callable[[Path, bytes], object]:
    """A reader of one file by that name."""

    def on(folder: Path, content: bytes) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return on


def _of_data() -> list[Reader]:
    import numpy as np
    from PIL import Image

    from engine.data.sources.formats import decode_images, read_cifar_batches, read_idx
    from engine.data.sources.inaturalist import _Annotated, _table
    from engine.data.sources.parquet_columns import ParquetTable

    idx = b"\0\0\x08\x03" + struct.pack(">3I", 3, 4, 4) + bytes(range(48))
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}
    pictures = []
    for kind in ("png", "jpeg", "gif", "bmp", "tiff", "webp"):
        content = io.BytesIO()
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(content, kind)
        pictures.append(content.getvalue())
    annotations = {
        "images": [{"id": 1, "file_name": "a/1.jpg", "rights_holder": "x"}],
        "annotations": [{"image_id": 1, "category_id": 3}],
        "categories": [{"id": 3, "name": "a bird"}],
    }
    images = _parquet(img=[pictures[0]] * 2, label=[0, 1]), _parquet(img=[{"bytes": pictures[0]}], label=["cat"])
    columns = [("user_id",), ("image_id",)]

    def read_images(path: Path) -> object:
        table = ParquetTable.open([path])
        return table.parts("label"), table.images("img", np.arange(len(table)))

    return [
        Reader("idx", _file("x", lambda path: read_idx(path, 3)), (idx,)),
        Reader("idx_gzip", _file("x.gz", lambda path: read_idx(path, 3)), (gzip.compress(idx, mtime=0),)),
        Reader(
            "cifar_pickle",
            _file("x", lambda path: read_cifar_batches([path])),
            tuple(pickle.dumps(batch, protocol) for protocol in (0, 2, 4)),
        ),
        Reader("cifar_parquet", _file("x", read_images), images),
        Reader("image", lambda folder, content: decode_images([("x", content)], 1, 8), tuple(pictures)),
        Reader("annotations", _file("x.json", _Annotated.read), (json.dumps(annotations).encode(),)),
        Reader("users", _file("x.csv", lambda path: _table(path, columns)), (b"user_id,image_id\na,1\nb,2\n",)),
    ]


def _of_text() -> list[Reader]:
    from engine.base import safe_yaml
    from engine.experiment import Experiment
    from engine.record.run_folder import RunFolder
    from engine.record.sweep_files import read_plan
    from engine.sweeps.folder import SweepFolder

    experiment = Experiment().to_yaml().encode()
    stages = b"stages: [{name: a, rounds: 2}, {name: b, rounds: 1, needs: [a], local: {lr: 0.1}}]\n"
    changes = b"schedule:\n  - {round: 3, set: {local.lr: 0.05}}\n"
    sweep = {"reference": "a.b", "profile": "laptop", "digest": "0", "overrides": ["rounds=3"], "how": {"store": None}}
    record = {"trial": "00000", "setting": {"mu": 1.0}, "seed": 0, "status": "finished", "reason": None, "rounds": 3}
    plan = {"trials": [{"trial": "00000", "seed": 0, "setting": {"mu": 1.0}}]}

    def override(folder: Path, content: bytes) -> object:
        return Experiment().override(content.decode("utf-8", "surrogateescape").splitlines())

    def trial(folder: Path, content: bytes) -> object:
        (folder / "trials" / "00000").mkdir(parents=True)
        (folder / "trials" / "00000" / "trial.json").write_bytes(content)
        return SweepFolder(folder).records()

    def yaml(folder: Path, content: bytes) -> object:
        try:
            return safe_yaml.parse(content.decode("utf-8", "replace"))
        except safe_yaml.NotYaml:
            return None

    return [
        Reader(
            "yaml", yaml, (experiment, b"a: &a [1, 2]\nb: {<<: {c: *a}}\n", b"? !!set {a, b}\n: 2001-12-14t21:59:43")
        ),
        Reader("experiment", _file("experiment.yaml", Experiment.from_yaml), (experiment, stages, changes)),
        Reader("override", override, (b"local.lr=0.1", b"alpha=3\nK=5", b"algorithm={name: fedprox, mu: 1}")),
        Reader(
            "sweep", _file("sweep.yaml", lambda path: SweepFolder(path.parent).asked()), (json.dumps(sweep).encode(),)
        ),
        Reader("plan", _file("plan.json", lambda path: read_plan(path.parent, sweep)), (json.dumps(plan).encode(),)),
        Reader("trial", trial, (json.dumps(record).encode(),)),
        Reader(
            "summary",
            _file("summary.json", lambda path: RunFolder(path.parent).summary()),
            (b'{"status": "stopped", "rounds": 3, "algorithm": {"name": "fedavg"}, "rows": {"rounds": 3}}',),
        ),
    ]


def _of_runs() -> list[Reader]:
    import safetensors
    import safetensors.torch
    import torch

    from engine.data import ClientTable
    from engine.data.samples.assignment import Assignment
    from engine.experiment import Experiment
    from engine.record import checkpoints, matrices, snapshots
    from engine.record.checkpoints import Checkpoint, Position, decode, encode
    from engine.record.columns import SCHEMAS
    from engine.record.states import MemoryStore
    from engine.record.store import StageStore
    from engine.record.tables import Table
    from engine.record.tensor_files import decoded
    from engine.results.trials import columns_of, read_experiment

    found = Checkpoint(
        Position(0, 2), {"weights": torch.arange(6.0), "buffers": torch.zeros(0)}, {1: "ab" * 32}, {"torch": "2"}
    )
    state = safetensors.torch.save({"control": torch.arange(3.0)})
    rows = [{"stage": "a", "round": 1, "lr": 0.1, "clients": 2, "scalars": {"x": 1.0}, "reused": False}]
    table = _parquet(SCHEMAS["rounds"], rows)

    def checkpoint(folder: Path, content: bytes) -> object:
        path = folder / "00-a-000002.safetensors"
        path.write_bytes(_signed(content))
        return decode(path, "owner")

    def _signed(content: bytes) -> bytes:
        """With a checksum that is right, where that can be, so that more than the checksum is reached."""
        try:
            tensors, about = decoded(content)
            about.pop("sha256", None)
            about = {str(name): str(text) for name, text in about.items()}
            return safetensors.torch.save(tensors, about | {"sha256": checkpoints._sha256(tensors, about)})
        except Exception:  # as it is then
            return content

    def a_state(folder: Path, content: bytes) -> object:
        digest = hashlib.sha256(content).hexdigest()
        (folder / f"{digest}.safetensors").write_bytes(content)
        return MemoryStore(folder, lambda handle: handle).load(digest)

    def a_table(path: Path) -> object:
        one = Table(path, SCHEMAS["rounds"])
        one.read("a", 1)
        one.truncate({"a": 5})
        return one.frame(), columns_of(path, ["stage", "round"])

    def snapshot(folder: Path, content: bytes) -> object:
        """The first byte says which file of a snapshot it is."""
        empty = {name: [] for name in SCHEMAS}
        snapshots.write(folder / "x", "a", True, replaced(found), folder, {**empty, "rounds": rows})
        names = ("snapshot.json", "rounds.parquet", "checkpoint.safetensors")
        (folder / "x" / names[content[0] % 3 if content else 0]).write_bytes(content[1:])
        return snapshots.read(folder / "x")

    def replaced(one: Checkpoint) -> Checkpoint:
        return Checkpoint(one.position, one.server, {}, one.numerics)

    def entry(folder: Path, content: bytes) -> object:
        """A store's manifest, and a lease."""
        place = folder / "ke" / "key" / "000003"
        place.mkdir(parents=True)
        (folder / "fedskew-store.json").touch()
        (place / "manifest.json").write_bytes(content)
        (place.parent / "lease-000001").write_bytes(content)
        store = StageStore(folder)
        return store.holder("key"), store.rounds("key"), store.open("key", 3)

    with tempfile.TemporaryDirectory() as place:
        Assignment(([0, 1], [2])).save(Path(place) / "x")  # type: ignore[arg-type]
        partition = (Path(place) / "x").read_bytes()
    split = _parquet(row=[0, 1, 2], client=["a", "b", "b"], split=["train", "train", "test"])
    costs = _parquet(matrices.SCHEMA, matrices_rows(matrices.SCHEMA.names))
    about = json.dumps({"stage": "a", "round": 2, "ended": True}).encode()
    lease = json.dumps({"note": "x", "round": 3, "released": False}).encode()
    return [
        Reader("checkpoint", checkpoint, (encode(found, "owner"),)),
        Reader("state", a_state, (state,)),
        Reader("table", _file("rounds.parquet", a_table), (table,)),
        Reader("partition", _file("partition.parquet", Assignment.load), (partition,)),
        Reader("split", _file("split.parquet", lambda path: ClientTable(file=str(path))), (split,)),
        Reader("matrices", _file("matrices.parquet", lambda path: matrices.load(path.parent)), (costs,)),
        Reader("snapshot", snapshot, (b"\0" + about, b"\1" + table, b"\2" + encode(replaced(found), snapshots.OWNER))),
        Reader("store", entry, (lease, b'{"key": "key", "round": 3, "files": {}}')),
        Reader("experiment_of_a_trial", _file("x.yaml", read_experiment), (Experiment().to_yaml().encode(),)),
    ]


def matrices_rows(names: list[str]) -> list[dict[str, Any]]:
    stage, name, row, column, value = names
    return [{stage: "a", name: "cost", row: place, column: 1 - place, value: 0.5} for place in range(2)]


def _parquet(schema: Any = None, rows: Any = None, **columns: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema) if schema else pa.table(columns), content)
    return content.getvalue()


def tried(reader: Reader, content: bytes) -> str:
    """What an input comes to: "" or the FedskewError's name; another exception goes through."""
    from engine.base.errors import FedskewError

    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        try:
            reader.read(Path(folder), content)
        except FedskewError as error:
            return type(error).__name__
    return ""


# --- inputs without atheris -----------------------------------------------------------------------------------


def mutated(seeds: tuple[bytes, ...], rng: random.Random) -> bytes:
    """One of the seeds cut, with bytes changed, or with a part of one put into another."""
    content = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.choice(("cut", "flip", "set", "splice", "double")), rng.randrange(len(content) + 1)
        if kind == "cut":
            del content[at:]
        elif kind == "flip" and at < len(content):
            content[at] ^= 1 << rng.randrange(8)
        elif kind == "set" and at < len(content):
            content[at : at + 4] = rng.choice(
                (b"\xff", b"\0", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"9", b"{", b"[")
            )
        elif kind == "splice":
            other = rng.choice(seeds)
            start = rng.randrange(len(other))
            content[at:at] = other[start : start + rng.randint(1, 40)]
        elif kind == "double":
            content[at:at] = content[at : at + rng.randint(1, 40)]
    return bytes(content)


# --- atheris --------------------------------------------------------------------------------------------------


def fuzz(reader: str, seconds: float, seed: int, findings: Path) -> dict[str, Any]:
    """Fuzz one reader in a process of its own; what came of it."""
    place = findings / reader
    place.mkdir(parents=True, exist_ok=True)
    (place / NOTES).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="corpus-") as corpus:
        for number, content in enumerate(readers()[reader].seeds):
            (Path(corpus) / f"seed{number}").write_bytes(content)
        options = [
            f"-max_total_time={max(1, round(seconds))}",
            f"-seed={seed}",
            f"-timeout={SLOWEST}",
            f"-rss_limit_mb={MEMORY_MB}",
            f"-artifact_prefix={place}/",
            "-print_final_stats=1",
            "-max_len=20000",
        ]
        command = [sys.executable, "-m", "tests.faults.fuzz", "--child", reader, "--findings", str(findings)]
        done = subprocess.run(
            [*command, "--", corpus, *options], capture_output=True, text=True, errors="replace", check=False
        )
    told = re.findall(r"number_of_executed_units:\s*(\d+)|^#(\d+)", done.stderr, re.MULTILINE)
    notes = (place / NOTES).read_text().splitlines() if (place / NOTES).exists() else []
    found = [json.loads(line) for line in notes]
    if done.returncode:  # a crash, too much memory, too long: libFuzzer has kept the input
        kept = sorted(path.name for path in place.iterdir() if re.match(r"(crash|oom|timeout|slow-unit)-", path.name))
        last = next((line for line in done.stderr.splitlines() if "ERROR" in line), f"exit code {done.returncode}")
        found.append({"error": last, "inputs": kept})
    executions = max((int(one or other) for one, other in told), default=0)
    return {"reader": reader, "executions": executions, "seconds": seconds, "findings": found}


def _child(name: str, findings: Path, options: list[str]) -> None:
    """Never returns: atheris ends the process."""
    import atheris

    with atheris.instrument_imports(include=["engine", "yaml"]):
        reader = readers()[name]
    seen: set[str] = set()

    def one_input(content: bytes) -> None:
        try:
            tried(reader, content)
        except Exception as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/engine/" in frame.filename]
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the reader"
            told = f"{type(error).__name__} at {where}"
            if told not in seen:
                seen.add(told)
                kept = findings / name / f"input-{hashlib.sha256(content).hexdigest()[:12]}"
                kept.write_bytes(content)
                with open(findings / name / NOTES, "a") as notes:
                    notes.write(json.dumps({"error": f"{told}: {error}"[:500], "inputs": [kept.name]}) + "\n")

    atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers of files.")
    parser.add_argument("--seconds", type=float, default=60.0, help="in all, shared by the readers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", help="one of them; none: all")
    parser.add_argument("--findings", type=Path, help="a folder for inputs; none: a temporary one")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs="*", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed: pip install 'fedskew[fuzz]'", file=sys.stderr)
        return 2
    findings = asked.findings or Path(tempfile.mkdtemp(prefix="findings-"))
    if asked.child:
        _child(asked.child, findings, asked.options)
    known = readers()
    unknown = [name for name in asked.reader or () if name not in known]
    if unknown:
        print(f"--reader={unknown[0]}: is none; known: {', '.join(known)}", file=sys.stderr)
        return 2
    chosen = asked.reader or list(known)
    results = []
    for name in chosen:
        result = fuzz(name, asked.seconds / len(chosen), asked.seed, findings)
        results.append(result)
        print(f"{name:<24}{result['executions']:>10,} inputs  {len(result['findings'])} findings", flush=True)
        for finding in result["findings"]:
            inputs = ", ".join(str(findings / name / one) for one in finding["inputs"])
            print(f"    {finding['error']} ({inputs})", flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({"seed": asked.seed, "readers": results}, indent=2) + os.linesep)
    return 1 if any(result["findings"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
