"""Snapshots of a stage: the folders that another run goes on from.

    checkpoint.safetensors                              server entries and the names of the clients' states
    states/                                             those states
    rounds.parquet  clients.parquet  ...                the stage's rows up to there, of every table
    snapshot.json                                       what the folder is

The stage store and Ray Tune's checkpoints hold such folders.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from engine.base import parquet
from engine.base.errors import RunFolderError
from engine.base.files import link_or_copy, write_atomically
from engine.base.opening import read_text
from engine.record.checkpoints import Checkpoint, decode, encode
from engine.record.columns import SCHEMAS, Row

OWNER = "snapshot"  # in the place of an experiment's digest: a snapshot belongs to whoever may use it


@dataclass(frozen=True)
class Snapshot:
    """A stage after some round, without the tensors of its clients' states, which stay in their files."""

    folder: Path
    stage: str
    round: int  # global
    ended: bool  # whether the algorithm's ``finish`` has been through it
    checkpoint: Checkpoint
    rows: dict[str, list[Row]]

    @property
    def states(self) -> Path:
        return self.folder / "states"


def write(
    folder: Path, stage: str, ended: bool, checkpoint: Checkpoint, states: Path, rows: Mapping[str, list[Row]]
) -> None:
    """Write a snapshot into an empty folder; the states are linked from ``states`` where that is possible."""
    (folder / "states").mkdir(parents=True)
    for digest in sorted(set(checkpoint.states.values())):
        link_or_copy(states / f"{digest}.safetensors", folder / "states" / f"{digest}.safetensors")
    for name, schema in SCHEMAS.items():
        table = pa.Table.from_pylist(rows[name], schema=schema)
        pq.write_table(table, folder / f"{name}.parquet", compression="zstd")
    (folder / "checkpoint.safetensors").write_bytes(encode(checkpoint, OWNER))
    about = {"stage": stage, "round": checkpoint.position.round, "ended": ended}
    write_atomically(folder / "snapshot.json", json.dumps(about))


def read(folder: Path) -> Snapshot:
    """Read a snapshot; :class:`RunFolderError` for a folder that is no whole one."""
    try:
        about: dict[str, Any] = json.loads(read_text(folder / "snapshot.json"))
        rows = {name: parquet.read(folder / f"{name}.parquet").to_pylist() for name in SCHEMAS}
        return Snapshot(
            folder=folder,
            stage=about["stage"],
            round=about["round"],
            ended=about["ended"],
            checkpoint=decode(folder / "checkpoint.safetensors", OWNER),
            rows=rows,
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException) as error:
        raise RunFolderError(f"{folder} holds no whole snapshot of a stage ({error})") from None
