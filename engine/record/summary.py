"""A run in a dozen figures: ``summary.json``, written from the tables and read back.

Its accuracies, counts of rounds and costs are those of :mod:`engine.record.metrics`, which says what each of them is.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from engine.base.errors import RunFolderError
from engine.base.files import write_atomically
from engine.client import precision
from engine.experiment import CHOICES, Experiment
from engine.record import communication, fields, metrics, personal_metrics
from engine.record.columns import Row, finite
from engine.record.last_rounds import comparable, local_of_last_rounds, of_last_rounds

if TYPE_CHECKING:
    import pandas as pd

FILE = "summary.json"
# What a finished run's summary has at the least, for whoever shows it.
SHOWN = ("name", "algorithm", "accuracy", "best_accuracy", "best_round", "last10_accuracy", "rounds")
SHOWN += ("seconds_per_round", "floats_up", "floats_down", "weights_sha256")


def _figure(metric: metrics.Metric) -> Any:
    """Return the type of a metric's value, which is null where a run has none."""
    if metric.name == "local_gap":  # a difference of shares, below 0 where local models are the better ones
        return fields.Number | None
    return (fields.Whole if metric.whole else fields.Share if metric.unit == "%" else fields.Number) | None


_COUNTS = ("rounds", "rounds_asked", "rounds_computed", "clients_failed", "floats_up", "floats_down")
_COUNTS += ("exchange_floats_up", "exchange_floats_down", "parameters", "clients", "empty_clients", "dropped_samples")
_COUNTS += ("held_out_clients",)
_TYPES: dict[str, Any] = {
    **{name: _figure(metrics.METRICS[name]) for name in metrics.names("summary.json")},
    **dict.fromkeys(_COUNTS, fields.Whole),
    **dict.fromkeys(("name", "experiment", "precision", "weights_sha256", "data_sha256"), str),
    **dict.fromkeys(("scope", "best_stage", "states_sha256"), str | None),
    **dict.fromkeys(("seconds", "seconds_per_round"), fields.Number | None),
    "status": Literal["finished", "stopped"],
    "stopped_by": Literal["accuracy", "patience"] | None,
    "stopped_after": fields.Whole | None,
    "algorithm": dict[str, Any],
    "breaks_privacy": bool,
    "stage_accuracy": dict[str, fields.Share | None],
    "stages": dict[str, str],
    "versions": dict[str, str],
    "rows": dict[str, fields.Whole],
}
KIND = TypeAdapter(TypedDict("Summary", _TYPES, total=False))  # pyright: ignore[reportArgumentType]


def read(folder: Path) -> dict[str, Any]:
    """Read a run folder's summary, {} where there is none yet.

    Raises :class:`RunFolderError` if it is damaged, or if a value is not of its type.
    """
    path = folder / FILE
    if not os.path.lexists(path):
        return {}
    try:
        summary = fields.load(path)
        fields.check(summary, KIND)
        lacking = [name for name in SHOWN if name not in summary]
        if summary.get("status") == "finished" and lacking:
            raise ValueError(f"it has no {lacking[0]}")
        if "name" not in summary.get("algorithm", {"name": ""}):
            raise ValueError("its algorithm has no name")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error}); move it away and resume") from None
    return summary


def write(
    folder: Path, experiment: Experiment, tables: Mapping[str, pd.DataFrame], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a run folder's summary from its tables and from ``facts``, and return it.

    Accuracies are fractions of the test set. They and rounds are those of the last stage and of the stages it comes
    from; costs are those of all, and floats those of rounds and of the exchanges outside them, which are also given by
    themselves. The best accuracy and the mean and standard deviation (n - 1) of the last ten rounds are over
    evaluations of the same scope as the last one. The metrics of personal models are there if the run has them.

    tables: rounds, evaluations, personal and exchanges, by name.
    """
    lineage = experiment.lineage
    rounds: list[Row] = tables["rounds"].to_dict("records")
    summary = {
        "name": experiment.name,
        "experiment": experiment.digest,
        "precision": precision.told(experiment.execution),
        "algorithm": CHOICES["algorithm"].dump(experiment.chain[-1].algorithm),
        **_accuracies(experiment, tables, [row for row in rounds if row["stage"] in lineage]),
        "breaks_privacy": any(s.algorithm.breaks_privacy for s in experiment.chain if s.name in lineage),
        **_rounds(experiment, rounds),
        **_costs(experiment, tables, rounds),
        **facts,
    }
    write_atomically(folder / FILE, json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return summary


def _evaluations(experiment: Experiment, tables: Mapping[str, pd.DataFrame]) -> list[Row]:
    lineage = experiment.lineage
    return [row for row in tables["evaluations"].to_dict("records") if row["stage"] in lineage]


def _best(evaluations: Sequence[Row]) -> Mapping[str, Any]:
    same_scope = comparable(evaluations)
    return max(same_scope, key=lambda row: row["accuracy"]) if same_scope else {}


def _last_round(rounds: Sequence[Row]) -> int:
    return rounds[-1]["round"] if rounds else 0


def _accuracies(experiment: Experiment, tables: Mapping[str, pd.DataFrame], rounds: Sequence[Row]) -> dict[str, Any]:
    """Summarise the lineage's evaluations; ``rounds``: those of the lineage."""
    evaluations, without_rounds = _evaluations(experiment, tables), experiment.without_rounds
    last_round = _last_round(rounds)
    final, best = evaluations[-1] if evaluations else {}, _best(evaluations)
    last10 = of_last_rounds(comparable(evaluations), last_round, without_rounds)
    local10 = local_of_last_rounds(rounds, last_round)
    clients = personal_metrics.of_stages(tables["personal"], experiment.lineage)
    of_clients = personal_metrics.figures(clients, last_round, without_rounds)
    return {
        "scope": final.get("scope"),
        **{name: finite(final.get(name)) for name in metrics.EVALUATED},
        "best_accuracy": best.get("accuracy"),
        "best_round": best.get("round"),
        "best_stage": best.get("stage"),
        "last10_accuracy": statistics.fmean(last10) if last10 else None,
        "last10_std": statistics.stdev(last10) if len(last10) > 1 else None,
        "local_last10_accuracy": statistics.fmean(local10) if local10 else None,
        "local_gap": statistics.fmean(last10) - statistics.fmean(local10) if last10 and local10 else None,
        "stage_accuracy": {row["stage"]: row["accuracy"] for row in evaluations},  # after each stage's last round
        **{name: value for name, value in of_clients.items() if value is not None},
    }


def _rounds(experiment: Experiment, rounds: Sequence[Row]) -> dict[str, Any]:
    """Count the rounds; ``rounds``: those of all stages."""
    lineage, trained = experiment.lineage, _trained(experiment, rounds)
    return {
        "rounds": _last_round([row for row in rounds if row["stage"] in lineage]),
        "rounds_asked": len(trained),
        # Over rounds; who and why: failures.parquet.
        "clients_failed": sum(int(count) for row in rounds if (count := row.get("failed", 0)) > 0),
        "rounds_computed": sum(not row["reused"] for row in trained),
    }


def _costs(experiment: Experiment, tables: Mapping[str, pd.DataFrame], rounds: Sequence[Row]) -> dict[str, Any]:
    """Add up time and floats; ``rounds``: those of all stages."""
    exchanged = {name: int(column.sum()) for name, column in tables["exchanges"][communication.BOTH_WAYS].items()}
    lineage = experiment.lineage
    per_round = [row["seconds"] for row in _trained(experiment, rounds) if row["stage"] in lineage]
    return {
        "seconds_per_round": statistics.median(per_round) if per_round else None,
        "seconds": sum(row["seconds"] + row["evaluation_seconds"] for row in rounds),
        "floats_up": sum(row["floats_up"] for row in rounds) + exchanged["floats_up"],
        "floats_down": sum(row["floats_down"] for row in rounds) + exchanged["floats_down"],
        "exchange_floats_up": exchanged["floats_up"],
        "exchange_floats_down": exchanged["floats_down"],
        "client_floats_to_best": _client_floats_to_best(experiment, tables),
    }


def _client_floats_to_best(experiment: Experiment, tables: Mapping[str, pd.DataFrame]) -> float | None:
    best = _best(_evaluations(experiment, tables))
    if not best:
        return None
    lineage = experiment.lineage
    order = {stage.name: number for number, stage in enumerate(experiment.chain) if stage.name in lineage}
    rounds, exchanges = (
        communication.until(tables[name], order, best["stage"], best["round"]) for name in ("rounds", "exchanges")
    )
    return communication.of_one_client(rounds, exchanges)


def _trained(experiment: Experiment, rounds: Sequence[Row]) -> list[Row]:
    without_rounds = experiment.without_rounds
    return [row for row in rounds if row["stage"] not in without_rounds]
