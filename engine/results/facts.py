"""Facts about a trial that are no figures: its lineage, its experiment as data, hashes, names of its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.record.numerics import UNKNOWN
from engine.record.stage_hashes import CODE


@dataclass(frozen=True)
class Facts:
    """What a trial's experiment and summary say of it; None where they say nothing."""

    lineage: frozenset[str]  # names of stages
    experiment: str | None  # 12 hex digits; None until the trial has ended
    code: str | None  # 16 hex digits; likewise
    names: Mapping[str, str | None]  # of the parts, as ``data_name``; the algorithm is that of the last stage
    values: Mapping[str, Any] = field(repr=False)  # the experiment as data
    versions: Mapping[str, str] = field(repr=False)  # of libraries, machine and code; {} until the trial has ended


def facts_of(experiment: Mapping[str, Any], summary: Mapping[str, Any], lineage: set[str]) -> Facts:
    """Gather the facts of a trial; ``summary``: {} of one that has not ended."""
    last = (experiment["stages"] or [{}])[-1]
    parts = {**experiment, "algorithm": last.get("algorithm") or experiment.get("algorithm")}
    code = summary.get("versions", {}).get(CODE, UNKNOWN)
    return Facts(
        lineage=frozenset(lineage),
        experiment=summary.get("experiment"),
        code=None if code == UNKNOWN else code,
        names={f"{part}_name": _name(parts.get(part)) for part in ("data", "partition", "model", "algorithm")},
        values=experiment,
        versions=summary.get("versions", {}),
    )


def _name(section: Any) -> str | None:
    name = section.get("name") if isinstance(section, Mapping) else None
    return name if isinstance(name, str) else None
