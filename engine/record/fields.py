"""Checks of a JSON file that the engine wrote, and that may have been damaged or edited since.

What is wrong is a ValueError in words; who reads the file says which file it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from engine.base.declared import IN_WORDS
from engine.base.opening import read_text
from engine.base.safe_yaml import whole

LARGEST = 2**63 - 1  # of a whole number: what a column of a table holds
FURTHEST = 1e150  # from 0: the square of a number is one too
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(ge=-FURTHEST, le=FURTHEST)]
Share = Annotated[float, Field(ge=-1e-9, le=1 + 1e-9)]  # from 0 to 1, but for rounding


def load(path: Path) -> dict[str, Any]:
    """Read the mapping in a JSON file; raises OSError or ValueError."""
    try:
        values = json.loads(read_text(path), parse_int=whole)
    except RecursionError:
        raise ValueError("it is too deep") from None
    if not isinstance(values, dict):
        raise ValueError("it holds no mapping")
    return values


def check(values: Mapping[str, Any], kind: TypeAdapter[Any]) -> None:
    """Raise ValueError unless ``values`` are of ``kind``, a typed mapping; what it does not name may be anything."""
    try:
        kind.validate_python(values, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, found = ".".join(map(str, first["loc"])), first["input"]
        if first["type"] == "missing":
            raise ValueError(f"it has no {name}") from None
        shown = str(found) if not isinstance(found, int) or abs(found) <= LARGEST else "a number that is too large"
        context = first.get("ctx", {})
        limits = (f"must be {words} {context[key]:g}" for key, words in IN_WORDS.items() if key in context)
        rule = next(limits, first["msg"].replace("Input should be", "must be").removeprefix("Value error, "))
        raise ValueError(f"its {name} {rule}: {shown[:60]}") from None
