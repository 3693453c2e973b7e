"""Tables of a study on disk."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa

from engine.base import parquet
from engine.base.csv_text import csv_text
from engine.base.files import write_atomically


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """``path``.parquet and ``path``.csv."""
    parquet.write(path.with_suffix(".parquet"), pa.Table.from_pandas(frame, preserve_index=False))
    write_atomically(path.with_suffix(".csv"), csv_text(frame))
