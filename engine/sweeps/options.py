"""Choices of how a sweep runs: its store, how many trials at a time, where each computes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from engine.base.errors import require
from engine.record.store import check_store

MODES = ("auto", "inside", "nested")
OPTIONS = {"region", "scheme", "endpoint_override", "allow_bucket_creation"}  # of a storage; none is a secret


@dataclass(frozen=True)
class How:
    """Choices of how a sweep runs; none of them changes a result."""

    store: Path | None = None  # of stages; none: "store" beside the sweep's folder
    reuse: bool = True
    mode: str = "auto"
    concurrent: int | None = None  # trials at a time, at most
    limit_gb: float = 20.0  # of the store
    storage: str | None = None  # URI of the folder in which the sweep's folder is kept; None: it is here alone

    def __post_init__(self) -> None:
        require(self.mode in MODES, "--mode", self.mode, "is not a mode", "use auto, inside or nested")
        require(self.concurrent is None or self.concurrent >= 1, "--concurrent", self.concurrent, "must be at least 1")
        require(0 < self.limit_gb < math.inf, "--store-limit", self.limit_gb, "must be above 0 GB", "for example 20")
        place, _, query = (self.storage or "").partition("?")
        user, at, _ = place.partition("://")[2].partition("/")[0].rpartition("@")
        secrets = "give keys by variables or files"
        rule = "holds a name or a password, which sweep.yaml would show"
        require(not at or user == "anonymous", "--storage", "...", rule, secrets)
        others = sorted({name for name, _ in parse_qsl(query, keep_blank_values=True)} - OPTIONS)
        rule = f"has {', '.join(others)} behind its ?, and sweep.yaml shows what is there"
        require(not others, "--storage", "...", rule, f"keep {', '.join(sorted(OPTIONS))} and {secrets}")
        if self.store is not None and self.reuse:
            check_store(self.store)

    def to_mapping(self) -> dict[str, Any]:
        store = str(self.store.resolve()) if self.store else None
        return {"store": store, "reuse": self.reuse, "mode": self.mode, "concurrent": self.concurrent,
                "limit_gb": self.limit_gb, "storage": self.storage}  # fmt: skip

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> How:
        store = values["store"]
        return cls(**{**values, "store": Path(store) if store else None})
