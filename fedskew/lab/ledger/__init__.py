"""The ledger of claims: what each claim of each paper came to, judged anew from small tables in the repository.

It offers ``record`` (the entry of a sweep's folder) and ``confirmed``, ``write`` and ``read_all`` for the entries,
``rows_of`` (each claim with its verdict, and whether code or setting have changed since), ``counts`` and ``page`` for
docs/claims.md, and ``board_page`` for docs/board.md. Read ``entry.py`` first (what is kept of a sweep), then
``recording.py`` and ``rows.py``.
"""

from fedskew.lab.ledger.board import BoardRow, board_page, compared, rows_of_methods
from fedskew.lab.ledger.entry import Entry, file_of, read, read_all, write
from fedskew.lab.ledger.page import HEADLINES, page, with_headlines
from fedskew.lab.ledger.recording import check_machine, confirmed, largest_difference, record, seed_of
from fedskew.lab.ledger.rows import Row, SweepRows, SweepSpec, counts, rows_of, to_mappings, without_seeds

__all__ = [
    "HEADLINES",
    "BoardRow",
    "Entry",
    "Row",
    "SweepRows",
    "SweepSpec",
    "board_page",
    "check_machine",
    "compared",
    "confirmed",
    "counts",
    "file_of",
    "largest_difference",
    "page",
    "read",
    "read_all",
    "record",
    "rows_of",
    "rows_of_methods",
    "seed_of",
    "to_mappings",
    "with_headlines",
    "without_seeds",
    "write",
]
