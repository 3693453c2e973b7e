"""The records of rounds and of a whole run: rows of the tables, and ``summary.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from engine import __version__
from engine.algorithm import Context, Kind, Tensors
from engine.base.files import writing
from engine.client.messages import TrainResult
from engine.data import Assignment, Dataset
from engine.experiment import Stage
from engine.record import matrices
from engine.record.metrics import EVALUATED
from engine.record.run_folder import Row, RunFolder
from engine.record.stage_hashes import stage_hash
from engine.run.lineage import Lineage
from engine.server.class_balance import label_entropies, skew
from engine.server.cohort import expected_cohort
from engine.server.federation import Federation


def weights_sha256(weights: Tensor, buffers: Tensor) -> str:
    """Return the SHA-256 of the float32 vector and the float32 buffers, little-endian."""
    digest = hashlib.sha256()
    for vector in (weights, buffers):
        digest.update(vector.detach().cpu().float().contiguous().numpy().astype("<f4", copy=False).data)
    return digest.hexdigest()


class Recorder:
    """Writes down a run."""

    def __init__(self, federation: Federation, folder: RunFolder, dataset: Dataset, assignment: Assignment) -> None:
        self.data = dataset.fingerprint
        self.divided = f"{dataset.fingerprint} {assignment.digest}"  # all that a stage takes from data and partition
        self._federation = federation
        self._folder = folder
        self._dropped = len(assignment.dropped)

    def round(self, stage: Stage, context: Context, trained: TrainResult, server: Tensors, update_norm: float) -> Row:
        """Add the round's rows of ``clients.parquet`` and ``failures.parquet``; its row of ``rounds.parquet`` but for
        its times.

        server: the entries after the round.
        """
        number, rows = context.round, list[Row]()
        for report in trained.reports:
            row = dict(vars(report))
            row["samples"] = row.pop("num_examples")
            row |= {"stage": stage.name, "round": number, "floats_down": trained.floats_down}
            rows.append(row)
            self._folder.clients.add(row)
        for failure in trained.failures:
            self._folder.failures.add({"stage": stage.name, "round": number, **vars(failure)})
        for client in trained.dropped:
            left_out = {"client": client, "step": None, "reason": "a straggler, dropped by work.cut=drop"}
            self._folder.failures.add({"stage": stage.name, "round": number, **left_out})
        samples = [row["samples"] for row in rows]
        kinds = stage.algorithm.kinds
        return {
            "stage": stage.name,
            "round": number,
            "lr": context.lr,
            "clients": len(rows),
            "failed": len(trained.failures),
            "samples": sum(samples),
            "steps": sum(row["steps"] for row in rows),
            "loss_before": _mean([row["loss_before"] for row in rows], samples),
            "loss_after": _mean([row["loss_after"] for row in rows], samples),
            "local_accuracy": _mean([row["local_accuracy"] for row in rows], [1] * len(rows)),
            "update_norm": update_norm,
            "weights_sha256": weights_sha256(server["weights"], server["buffers"]),
            "floats_up": sum(row["floats_up"] for row in rows),
            "floats_down": sum(row["floats_down"] for row in rows),
            "scalars": [(name, float(tensor)) for name, tensor in server.items() if kinds.get(name) is Kind.SCALAR],
        }

    def summary(self, lineage: Lineage) -> dict[str, Any]:
        """Write ``summary.json``, and the matrices that the server has; the summary as far as the run has come."""
        with writing(self._folder.path):
            return self._summarised(lineage)

    def _summarised(self, lineage: Lineage) -> dict[str, Any]:
        federation, stage, server = self._federation, lineage.stage, lineage.server
        self._folder.fold()
        files = lineage.state_files()
        states = json.dumps(sorted(files.items()))
        matrices.save(self._folder.path, stage.name, stage.algorithm.kinds, server)
        sizes, experiment = federation.population.sizes, federation.experiment
        counts = federation.population.class_counts()[federation.population.drawn_from]
        ended = lineage.stopping.ended
        clients = len(federation.population.clients)
        drawn = expected_cohort(clients, experiment.participation) / clients  # availability is taken as public
        return self._folder.summarise(
            experiment,
            {
                "status": "finished" if lineage.finished else "stopped",
                "stopped_by": ended.rule if ended else None,
                "stopped_after": ended.round if ended else None,
                "weights_sha256": weights_sha256(server["weights"], server["buffers"]),
                "states_sha256": hashlib.sha256(states.encode()).hexdigest() if files else None,
                "parameters": federation.model_layout.size,
                "clients": len(sizes),
                "empty_clients": int((sizes == 0).sum()),
                "held_out_clients": len(federation.population.held_out),
                "dropped_samples": self._dropped,
                **label_entropies(experiment, counts),
                **skew(counts),
                "epsilon": experiment.privacy.epsilon(drawn, federation.ends[-1]),  # whether or not it ended early
                "data_sha256": self.data,
                "stages": {
                    one.name: stage_hash(experiment, one, lineage.numerics, self.divided) for one in lineage.chain
                },
                "versions": {"fedskew": __version__, **lineage.numerics},
            },
        )


def with_headline(row: Row, evaluation: Mapping[str, Any]) -> Row:
    """A round's row for display, with its headline, if it has one."""
    return {**row, **{name: evaluation.get(name) for name in ("scope", *EVALUATED, "class_accuracy", "own")}}


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """The weighted mean of the values that are there."""
    present = [(value, weight) for value, weight in zip(values, weights, strict=True) if value is not None]
    total = sum(weight for _, weight in present)
    return sum(value * weight for value, weight in present) / total if total else None
