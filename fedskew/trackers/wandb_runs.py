"""Weights & Biases: runs of its offline mode, which ``wandb sync`` uploads, unless ``WANDB_MODE`` says otherwise.

What is there already is read by W&B's own reader, ``wandb leet inspect``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from fedskew.trackers.records import End, Point, Record, lacking

END = "fedskew.end"
# Where the user has said nothing else: nothing leaves the machine, and nothing is printed.
QUIET = {"WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}


class WandB:
    """A folder of W&B runs: ``wandb/offline-run-DATE-ID/`` in it."""

    def __init__(self, place: str) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        self._place = Path(place).resolve()
        self._place.mkdir(parents=True, exist_ok=True)
        self._open: dict[str, Any] = {}
        self._rows: dict[str, int] = {}  # of history, that a run has
        self._ends: dict[str, str] = {}

    def begin(self, record: Record, points: Sequence[Point]) -> Sequence[Point]:
        known = set[tuple[str, int]]()
        self._rows[record.key], self._ends[record.key] = 0, ""
        for path in sorted((self._place / "wandb").glob(f"*run-*-{id_of(record)}/run-*.wandb")):
            for kind, values in read(path):
                if kind == "history":
                    step = int(values.get("round", 0))
                    known |= {(key, step) for key in values if not key.startswith("_") and key != "round"}
                    self._rows[record.key] += 1
                elif END in values:
                    self._ends[record.key] = str(values[END])
        return lacking(points, known)

    def log(self, record: Record, points: Sequence[Point]) -> None:
        run = self._run(record)
        # Stages come one after the other, and in each of them rounds do.
        rows = sorted(points, key=lambda one: (one.time, one.step))
        for (step, time), some in groupby(rows, key=lambda one: (one.step, one.time)):
            values: dict[str, Any] = {one.key: one.value for one in some}
            run.log({**values, "round": step, "_timestamp": time}, step=self._rows[record.key])
            self._rows[record.key] += 1

    def end(self, record: Record, end: End) -> None:
        if self._ends[record.key] != end.digest:
            run = self._run(record)
            run.summary.update({**end.figures, **end.tags, "fedskew.status": end.status})
            for path in end.artifacts:
                copy = Path(run.dir) / path.name
                shutil.copyfile(path, copy)
                run.save(str(copy), base_path=run.dir, policy="now")
            run.summary[END] = end.digest
            self._ends[record.key] = end.digest
        if record.key in self._open:
            self._open.pop(record.key).finish(exit_code=1 if end.status == "failed" else 0)

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].finish()

    def _run(self, record: Record) -> Any:
        """Return the run, open: it is opened when there is something to tell, so that no empty one is left."""
        if record.key not in self._open:
            import wandb

            settings = wandb.Settings(
                root_dir=str(self._place), console="off", silent=True, disable_git=True, save_code=False,
                x_disable_stats=True, x_disable_meta=True,
            )  # fmt: skip
            self._open[record.key] = run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "fedskew"),
                id=id_of(record),
                name=record.name,
                group=record.group or (record.name if record.tags.get("fedskew.kind") == "sweep" else None),
                job_type=record.tags.get("fedskew.kind"),
                config={**record.params, **record.tags, "fedskew.key": record.key},
                resume="allow",
                reinit="create_new",
                settings=settings,
            )
            run.define_metric("round")
            run.define_metric("*", step_metric="round")
        return self._open[record.key]


def id_of(record: Record) -> str:
    """Return the id of a run, in W&B's letters."""
    return hashlib.sha256(record.key.encode()).hexdigest()[:16]


def read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return what a ``.wandb`` file says, in order: ("history", a row) and ("summary", what was set)."""
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    told = subprocess.run(words, capture_output=True, text=True, check=False)
    if told.returncode:
        raise OSError(f"{path} cannot be read by wandb ({' '.join(told.stderr.split())[:300]})")
    found = list[tuple[str, dict[str, Any]]]()
    for line in told.stdout.splitlines():
        record = json.loads(line)
        if record.get("type") == "history":
            found.append(("history", record["history"]["item"]))
        elif record.get("type") == "summary":
            found.append(("summary", record["summary"].get("update", {})))
    return found
