"""The ledger of claims: what each claim of each paper came to, judged anew from small tables in the repository.

It offers ``record`` (the entry of a sweep's folder), ``write`` and ``read_all`` for the entries, ``rows_of`` (each
claim with its verdict, and whether code or setting have changed since), ``counts`` and ``page`` for docs/claims.md.
Read ``entry.py`` first (what is kept of a sweep), then ``versions.py``, ``confirming.py``, ``rows.py`` and
``counting.py``.
"""

from fedskew.lab.ledger.confirming import confirmed, seed_of
from fedskew.lab.ledger.counting import counts, to_mappings
from fedskew.lab.ledger.entry import Entry, file_of, read, read_all, write
from fedskew.lab.ledger.headline import with_headlines
from fedskew.lab.ledger.page import page
from fedskew.lab.ledger.recording import record
from fedskew.lab.ledger.rows import Row, SweepRows, rows_of, without_seeds
from fedskew.lab.ledger.stated import Stated

__all__ = [
    "Entry",
    "Row",
    "Stated",
    "SweepRows",
    "confirmed",
    "counts",
    "file_of",
    "page",
    "read",
    "read_all",
    "record",
    "rows_of",
    "seed_of",
    "to_mappings",
    "with_headlines",
    "without_seeds",
    "write",
]
