"""JSON in one way, for files and for what commands print: no NaN, for which JSON has no word."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import to_jsonable_python


def json_text(value: Any, indent: int | None = None) -> str:
    """Write ``value`` as JSON in ASCII, see :func:`plain`."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it: paths and whatever else JSON lacks as text (bytes in base64), NaN as None."""
    return to_jsonable_python(value, inf_nan_mode="null", bytes_mode="base64", fallback=_number_or_text)


def _number_or_text(value: Any) -> Any:
    return value.item() if callable(getattr(value, "item", None)) else str(value)  # a number of numpy's or torch's
