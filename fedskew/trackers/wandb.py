"""Weights & Biases: runs of its offline mode, which ``wandb sync`` uploads, unless ``WANDB_MODE`` says otherwise."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from engine.base.files import write_atomically
from engine.base.opening import read_bytes, read_text
from fedskew.trackers.records import End, Point, Progress, Record


class WandB:
    """A folder of W&B runs: ``wandb/offline-run-DATE-ID/`` in it, and ``fedskew/ID.json``: how much of each is told."""

    def __init__(self, place: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # nothing leaves the machine unasked
        self._place = Path(place).resolve()
        (self._place / "fedskew").mkdir(parents=True, exist_ok=True)
        self._runs: dict[str, Any] = {}

    def begin(self, record: Record) -> Progress:
        path = self._progress(record)
        return Progress.from_json(read_text(path)) if path.exists() else Progress()

    def log(self, record: Record, points: Sequence[Point], progress: Progress) -> None:
        run = self._run(record)
        for step, some in groupby(sorted(points, key=lambda one: one.step), key=lambda one: one.step):
            run.log({"round": step, **{one.key: one.value for one in some}})
        write_atomically(self._progress(record), progress.to_json())

    def end(self, record: Record, end: End, progress: Progress) -> None:
        run = self._run(record)
        run.summary.update({**end.figures, **end.tags, "fedskew.status": end.status})
        for path in end.files:
            copy = Path(run.dir) / path.name
            copy.write_bytes(read_bytes(path))
            run.save(str(copy), base_path=run.dir, policy="now")
        self._runs.pop(record.key).finish(exit_code=1 if end.status == "failed" else 0)
        write_atomically(self._progress(record), progress.to_json())

    def close(self) -> None:
        while self._runs:
            self._runs.popitem()[1].finish()

    def _progress(self, record: Record) -> Path:
        return self._place / "fedskew" / f"{id_of(record)}.json"

    def _run(self, record: Record) -> Any:
        """Return the run, open: it is opened when there is something to tell, so that no empty one is left."""
        if record.key not in self._runs:
            import wandb

            kind = record.tags["fedskew.kind"]
            mode: Any = os.environ.get("WANDB_MODE", "offline")
            settings = wandb.Settings(
                root_dir=str(self._place), console="off", silent=True, disable_git=True, save_code=False,
                x_disable_stats=True, x_disable_meta=True, mode=mode,
            )  # fmt: skip
            self._runs[record.key] = run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "fedskew"),
                id=id_of(record),
                name=record.name,
                group=record.parent.name if record.parent else record.name if kind == "sweep" else None,
                job_type=kind,
                config={**record.params, **record.tags, "fedskew.key": record.key},
                resume="allow",
                reinit="create_new",
                settings=settings,
            )
            run.define_metric("round")
            run.define_metric("*", step_metric="round")
        return self._runs[record.key]


def id_of(record: Record) -> str:
    """Return the id of a run, in W&B's letters."""
    return hashlib.sha256(record.key.encode()).hexdigest()[:16]
