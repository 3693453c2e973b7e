"""The base class of everything that is a group of settings with types and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen group of settings; pydantic refuses unknown fields, wrong types, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)


def identifying(written: Mapping[str, Any], neutral: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a choice without those that are at a value by which they change nothing."""
    return {name: value for name, value in written.items() if name not in neutral or value != neutral[name]}
