"""The tables of results as files: one CSV or parquet file for each, written anew at every export."""

from __future__ import annotations

import io
from pathlib import Path

from engine.base.files import write_atomically, writing


def write(folder: Path, kind: str, out: Path) -> list[Path]:
    """Write the tables of ``fedskew.load_results(folder)`` to ``out``, as ``kind`` (csv or parquet); their paths.

    A second export writes the same bytes. Raises :class:`FedskewError` for a folder that cannot be read, and
    :class:`WriteError` where the disk fails.
    """
    import pyarrow.parquet as pq

    from engine.base.csv_text import csv_text
    from engine.results.frames import load_results
    from engine.results.frames.columns import TABLES

    frames, paths = load_results(folder), list[Path]()
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name in TABLES:
            path = out / f"{name}.{kind}"
            if kind == "csv":
                write_atomically(path, csv_text(getattr(frames, name)))
            else:
                content = io.BytesIO()
                pq.write_table(frames.arrow(name), content, compression="zstd")
                write_atomically(path, content.getvalue())
            paths.append(path)
    return paths
