"""Folders of runs and sweeps in which something is damaged, forged, or of another version."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
import yaml

from engine.experiment import Experiment
from engine.record import checkpoints
from engine.record.checkpoints import Checkpoint, Position, decode, encode
from engine.record.tensor_files import decoded
from tests.bad_input.case import Case
from tests.bad_input.experiments import BOMB

# The run that is resumed: stopped after the second of three rounds, with states of clients.
BEGUN = (
    "run",
    "data.name=synthetic",
    "data.users=4",
    "partition.name=natural",
    "participation.count=2",
    "model.name=logistic",
    "algorithm.name=scaffold",
    "rounds=3",
    "checkpoint.every=1",
    "checkpoint.keep=1",
    "execution.actors=0",
    "execution.device=cpu",
    "execution.gpus_per_actor=0",
)


def on_run(name: str, make: Callable[[Path], object], *words: str, loads: bool = False, verb: str = "resume") -> Case:
    """A verb on ``run``, which ``make`` has damaged."""
    return Case(name, (verb, "run", *words), make=lambda at: make(at / "run"), begun="run", loads=loads)


def file(name: str, content: str | bytes) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return make


def a_folder(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return make


def gone(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def cut(name: str, bytes: int = 20) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-bytes])


def edited(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """A YAML or JSON file with a change to its mapping."""

    def make(folder: Path) -> None:
        values = yaml.safe_load((folder / name).read_text())
        change(values)
        text = (
            json.dumps(values)
            if name.endswith(".json")
            else yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        )
        (folder / name).write_text(text)

    return make


def table(name: str, change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        found = change(pq.read_table(folder / name))
        pq.write_table(found, folder / name)

    return make


def column(name: str, values: Callable[[pa.ChunkedArray], Any]) -> Callable[[pa.Table], pa.Table]:
    def change(found: pa.Table) -> pa.Table:
        return found.set_column(found.column_names.index(name), name, pa.array(values(found[name])))

    return change


def metadata(**changes: str) -> Callable[[pa.Table], pa.Table]:
    return lambda found: found.replace_schema_metadata(
        {**(found.schema.metadata or {}), **{key.encode(): text for key, text in changes.items()}}
    )


def checkpoint(change: Callable[[Checkpoint], Checkpoint]) -> Callable[[Path], object]:
    """Another one in the place of the newest, with a checksum that is right."""

    def make(folder: Path) -> None:
        [path] = (folder / "checkpoints").glob("*.safetensors")
        owner = Experiment.from_yaml(folder / "experiment.yaml").digest
        path.write_bytes(encode(change(decode(path, owner)), owner))

    return make


def server(**entries: torch.Tensor) -> Callable[[Path], object]:
    return checkpoint(lambda found: replace(found, server={**found.server, **entries}))


def without(entry: str) -> Callable[[Path], object]:
    return checkpoint(lambda found: replace(found, server={k: v for k, v in found.server.items() if k != entry}))


def parts(change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]) -> Callable[[Path], object]:
    """The tensors and the metadata of the newest checkpoint changed, its checksum made right."""

    def make(folder: Path) -> None:
        [path] = (folder / "checkpoints").glob("*.safetensors")
        content = path.read_bytes()
        tensors, about = decoded(content)
        del about["sha256"]
        change(tensors, about)
        about["sha256"] = checkpoints._sha256(tensors, about)
        path.write_bytes(safetensors.torch.save(tensors, about))

    return make


def _forged_state(folder: Path) -> None:
    """A state that is no safetensors file, under the name of its content."""
    garbage = b"no tensors"
    digest = hashlib.sha256(garbage).hexdigest()
    (folder / "checkpoints" / "states" / f"{digest}.safetensors").write_bytes(garbage)
    checkpoint(lambda found: replace(found, states=dict.fromkeys(found.states, digest)))(folder)


def _nothing(folder: Path) -> None:
    pass


EXPERIMENT = [
    on_run(f"experiment {name}", make)
    for name, make in (
        ("empty", file("experiment.yaml", "")),
        ("of a list", file("experiment.yaml", "- a")),
        ("cut off", cut("experiment.yaml", 300)),
        ("a bomb", file("experiment.yaml", BOMB)),
        ("binary", file("experiment.yaml", bytes(range(256)))),
        ("a folder", a_folder("experiment.yaml")),
        ("of another version", edited("experiment.yaml", lambda v: v.update(optimiser="sgd"))),
        ("without a value", edited("experiment.yaml", lambda v: v.update(rounds=None))),
    )
]

PARTITION = [
    on_run("partition gone", gone("partition.parquet")),
    *(
        on_run(name, make)
        for name, make in (
            ("partition cut off", cut("partition.parquet")),
            ("partition empty", file("partition.parquet", b"")),
            ("partition without a column", table("partition.parquet", lambda t: t.drop(["index"]))),
            ("partition of texts", table("partition.parquet", column("index", lambda c: ["x"] * len(c)))),
            ("partition of fractions", table("partition.parquet", column("index", lambda c: [0.5] * len(c)))),
            ("partition with nulls", table("partition.parquet", column("client", lambda c: [None] * len(c)))),
            (
                "partition of a client too many",
                table("partition.parquet", column("client", lambda c: [9] * len(c))),
            ),
            (
                "partition of negative rows",
                table("partition.parquet", column("index", lambda c: [-1] * len(c))),
            ),
            ("partition without its numbers", table("partition.parquet", lambda t: t.replace_schema_metadata({}))),
            ("partition of clients in words", table("partition.parquet", metadata(clients="many"))),
            ("partition of 10^15 clients", table("partition.parquet", metadata(clients=str(10**15)))),
        )
    ),
    on_run(
        "partition of rows beyond the data",
        table("partition.parquet", column("index", lambda c: [10**9] * len(c))),
        loads=True,
    ),
    on_run("partition of other data", table("partition.parquet", metadata(data="0" * 64)), loads=True),
]

CHECKPOINT = [
    on_run(
        "another experiment's checkpoint",
        edited("experiment.yaml", lambda v: v.update(seed=5)),
        loads=True,
    ),
    *(
        on_run(name, make, loads=True)
        for name, make in (
            ("weights of another model", server(weights=torch.zeros(7))),
            ("weights of whole numbers", server(weights=torch.zeros(610, dtype=torch.int64))),
            ("weights in a matrix", server(weights=torch.zeros(61, 10))),
            ("no weights", without("weights")),
            ("no buffers", without("buffers")),
            ("an entry that is not the algorithm's", without("control")),
            ("a position beyond the last round", checkpoint(lambda c: replace(c, position=Position(0, 9)))),
            ("a position before the first", checkpoint(lambda c: replace(c, position=Position(0, -4)))),
            ("a stage that is none", checkpoint(lambda c: replace(c, position=Position(7, 2)))),
            ("a negative stage", checkpoint(lambda c: replace(c, position=Position(-1, 2)))),
            (
                "states of clients that are none",
                checkpoint(lambda c: replace(c, states={k + 90: v for k, v in c.states.items()})),
            ),
            ("no names of states", parts(lambda t, m: t.pop("states/ids"))),
            (
                "half of the names of states",
                parts(lambda t, m: t.update({"states/digests": t["states/digests"][:-1]})),
            ),
            ("no stage", parts(lambda t, m: m.pop("stage"))),
            ("a stage in words", parts(lambda t, m: m.update(stage="first"))),
            ("no owner", parts(lambda t, m: m.pop("experiment"))),
            ("numerics that are no JSON", parts(lambda t, m: m.update(numerics="{"))),
            ("numerics that are a list", parts(lambda t, m: m.update(numerics="[1]"))),
            (
                "numerics of something unknown",
                parts(lambda t, m: m.update(numerics='{"moon": "full"}')),
            ),
        )
    ),
    on_run(
        "a checkpoint that is a folder",
        lambda at: (
            gone("checkpoints/00-train-000002.safetensors")(at),
            (at / "checkpoints" / "00-train-000002.safetensors").mkdir(),
        ),
        loads=True,
    ),
    on_run("a state that is no safetensors", _forged_state, loads=True),
    on_run("checkpoints that are a file", file("checkpoints", b""), loads=True),
    on_run("a lock that is a folder", a_folder(".lock"), loads=True),
]

TABLES = [
    on_run("rounds cut off", cut("rounds.parquet"), loads=True),
    on_run("clients empty", file("clients.parquet", b""), loads=True),
    on_run(
        "rounds without their stage",
        table("rounds.parquet", lambda t: t.drop(["stage"])),
        loads=True,
    ),
    on_run(
        "rounds in words",
        table("rounds.parquet", column("round", lambda c: ["one"] * len(c))),
        loads=True,
    ),
    on_run(
        "evaluations of another shape",
        table("evaluations.parquet", column("accuracy", lambda c: [[1]] * len(c))),
        loads=True,
    ),
    on_run("summary that is no JSON", file("summary.json", "{")),
    on_run("summary that is a list", file("summary.json", "[]")),
    on_run("summary 100,000 deep", file("summary.json", "[" * 100_000)),
    on_run("summary of nothing", file("summary.json", '{"status": "finished"}')),
]

OTHERS = [
    on_run("an override that changes bits", _nothing, "local.lr=0.9"),
    on_run("an override of nothing", _nothing, "local.lrr=1"),
    on_run("a cluster for a run of this process", _nothing, "--address", "auto"),
    Case(
        "a run under another experiment",
        ("run", *BEGUN[1:], "seed=7", "--out", "run"),
        begun="run",
    ),
    Case("resume of a file", ("resume", "file"), {"file": b""}),
    Case("resume of nothing", ("resume", "gone")),
    Case("resume of a name of 300 letters", ("resume", "a" * 300)),
    Case("report of nothing", ("report", "gone")),
    on_run(
        "report of a damaged experiment",
        file("experiment.yaml", "{"),
        verb="report",
    ),
    on_run(
        "report of an experiment without its sections",
        file("experiment.yaml", "a: 1"),
        verb="report",
    ),
    on_run(
        "report of damaged evaluations",
        cut("evaluations.parquet"),
        verb="report",
    ),
    on_run(
        "report of evaluations without a column",
        table("evaluations.parquet", lambda t: t.drop(["stage"])),
        verb="report",
    ),
    on_run("report of an unknown figure", _nothing, "--metric", "beauty", verb="report", loads=True),
    on_run("diagnosis of a round that was not", _nothing, "--round", "9", verb="diagnose"),
    on_run("diagnosis of a stage that is none", _nothing, "--stage", "x", verb="diagnose"),
    on_run("diagnosis by an unknown estimator", _nothing, "--estimator", "x", verb="diagnose"),
    on_run(
        "diagnosis of clients in words",
        _nothing,
        "--clients",
        "a",
        verb="diagnose",
    ),
    on_run("features of a damaged experiment", file("experiment.yaml", "["), verb="embed"),
    on_run("a drawing of an unknown kind", _nothing, "--method", "x", verb="embed"),
    on_run("images of a run without a generator", _nothing, verb="images"),
    Case("actors in words", ("scale", "--actors", "x")),
    Case("no turn", ("scale", "--turns", "0")),
    Case("turns without end", ("scale", "--turns", "1000000000000000")),
    Case("a turn without end", ("scale", "--seconds", "inf")),
    Case("a study where nothing can be", ("scale", "--out", "/proc/nowhere")),
    Case("a plan of no nodes", ("scale", "--plan", "nodes=0")),
    Case("a plan of a folder that is no run", ("scale", "--plan", "measured=nowhere")),
    Case("no round of an executor", ("tune-executor", "--rounds", "0")),
    Case("an executor's file where nothing can be", ("tune-executor", "--out", "/proc/nowhere/x.yaml")),
    Case("a list that is none", ("list", "colours")),
]


def on_sweep(name: str, make: Callable[[Path], object], *words: str, loads: bool = False) -> Case:
    """Words about ``sweep``, which ``make`` has damaged."""
    return Case(name, words, make=lambda at: make(at / "sweep"), begun="sweep", loads=loads)


REPORT, RESUME = ("report", "sweep"), ("resume", "sweep")
TRIAL = "trials/00000/"

SWEEP = [
    on_sweep("sweep cut off", file("sweep.yaml", "base: ["), *REPORT),
    on_sweep("sweep of a list", file("sweep.yaml", "- 1"), *REPORT),
    on_sweep("sweep without its parts", file("sweep.yaml", "a: 1"), *REPORT),
    on_sweep("sweep with axes in words", edited("sweep.yaml", lambda v: v.update(axes="all")), *REPORT),
    on_sweep("sweep of claims in words", edited("sweep.yaml", lambda v: v.update(claims="x")), *REPORT),
    on_sweep(
        "sweep by an unknown figure",
        edited("sweep.yaml", lambda v: v.update(metric="x")),
        *REPORT,
        loads=True,
    ),
    on_sweep("resume of a sweep cut off", file("sweep.yaml", "["), *RESUME),
    on_sweep("resume of a sweep of a list", file("sweep.yaml", "- 1"), *RESUME),
    on_sweep("resume of a sweep without its parts", file("sweep.yaml", "a: 1"), *RESUME),
    on_sweep(
        "resume of a sweep that nobody knows",
        edited("sweep.yaml", lambda v: v.update(reference="x.y", overrides=[], how={})),
        *RESUME,
    ),
    on_sweep(
        "resume of another sweep",
        edited("sweep.yaml", lambda v: v.update(reference="drift.fedprox_mu", overrides=[], how={})),
        *RESUME,
    ),
    on_sweep(
        "resume of a sweep in words",
        edited("sweep.yaml", lambda v: v.update(reference=3, overrides="x", how="y")),
        *RESUME,
    ),
    on_sweep("resume with overrides", lambda at: None, *RESUME, "rounds=3"),
    on_sweep("a trial that is none", lambda at: None, "run", "sweep:00099"),
    on_sweep(
        "a trial that leads out",
        lambda at: shutil.copytree(at / "trials" / "00000", at.parent / "x"),
        "run",
        "sweep:../../x",
    ),
    on_sweep("a trial without a name", lambda at: None, "run", "sweep:"),
    on_sweep("a trial whose record is cut off", cut(f"{TRIAL}trial.json"), "run", "sweep:00000"),
    on_sweep("a trial whose experiment is gone", gone(f"{TRIAL}experiment.yaml"), "run", "sweep:00000"),
    on_sweep(
        "a trial in words",
        edited(f"{TRIAL}trial.json", lambda v: v.update(rounds="x")),
        "run",
        "sweep:00000",
    ),
]

CASES = [*EXPERIMENT, *PARTITION, *CHECKPOINT, *TABLES, *OTHERS, *SWEEP]
