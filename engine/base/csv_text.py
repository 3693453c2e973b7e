"""CSV files that a spreadsheet shows and never runs: one way in which all of them are written.

A spreadsheet takes a cell that begins with =, +, - or @ for a formula, and so what follows a tab or a line's end at
its beginning. A name, a reason or a hyper-parameter may be a stranger's text, so a text that begins so is written with
an apostrophe in front. A text that begins with an apostrophe gets another one, so that every text is what stands
behind the apostrophe in front, if there is one. Numbers stay numbers.
"""

from __future__ import annotations

import csv
import json
from typing import Any

import numpy as np
import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # what a text that may be run begins with
MARK = "'"


def csv_text(frame: pd.DataFrame) -> str:
    """Write ``frame`` as the text of a CSV file; lists, arrays and mappings become JSON."""
    plain = frame.copy()
    for name in plain.columns:
        if not pd.api.types.is_numeric_dtype(plain[name].dtype):
            plain[name] = pd.Series([_cell(value) for value in plain[name].tolist()], index=plain.index, dtype=object)
    plain.columns = [guarded(str(name)) for name in plain.columns]
    # Python quotes a cell with a line's end in it, but for this one, at which a spreadsheet begins a new cell too.
    broken = any(isinstance(value, str) and "\r" in value for name in plain.columns for value in plain[name].tolist())
    quoting = csv.QUOTE_NONNUMERIC if broken else csv.QUOTE_MINIMAL
    return plain.to_csv(index=False, lineterminator="\n", quoting=quoting)


def guarded(text: str) -> str:
    """Return ``text`` with an apostrophe in front if a spreadsheet could take it for a formula."""
    return MARK + text if text.startswith((*FORMULA, MARK)) else text


def _cell(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple | dict):
        value = json.dumps(value, sort_keys=True, default=str)
    return guarded(value) if isinstance(value, str) else value
