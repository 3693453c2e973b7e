"""Tables of a study on disk."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from engine.base.csv_text import csv_text
from engine.base.files import write_atomically


def write_frame(frame: pd.DataFrame, path: Path) -> None:
    """``path``.parquet and ``path``.csv."""
    content = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), content, compression="zstd")
    write_atomically(path.with_suffix(".parquet"), content.getvalue().to_pybytes())
    write_atomically(path.with_suffix(".csv"), csv_text(frame))
