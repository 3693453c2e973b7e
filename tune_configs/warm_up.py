"""Runs that begin with a warm-up, in search spaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rest:
    """The rounds that a warm-up of R_w leaves of a total, for ``sample_from``."""

    total: int

    def __call__(self, spec: Any) -> int:
        return self.total - spec.config["R_w"]
