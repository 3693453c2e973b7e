"""What makes a sweep's verdicts fair, for all sweeps that state it: who chose what, on which rows, by which seeds.

Candidates are compared on a tenth of the training rows and on seeds of their own: no test image has a say. Verdicts are
of seeds that nobody had looked at when the setting was fixed, and each of five tests on its own fifth of the test rows,
so that an interval over seeds holds seeds, partitions and test images (docs/deciding.md).
"""

from __future__ import annotations

from typing import Any

from engine.sweeps.tuned import Tuned

SEEDS = (100, 101, 102, 103, 104)
TUNING_ROWS = 0.1
OF_FEW = 0.2  # of 5,000 rows, where a tenth cannot tell rates apart: 500 predictions are known to two points
UNTUNED: dict[str, Any] = {"seeds": (0, 1, 2)}  # in the place of what tuned() returns, in a paper's own setting
OWN_TEST_ROWS = {"data.test_samples": 2_000, "data.test_part": 0}  # of 10,000: five parts


def tuned(*sides: Tuned, rows: float = TUNING_ROWS) -> dict[str, Any]:
    """Return the fields of a sweep each of whose sides is chosen so, by one seed and a share of the training rows."""
    return {"seeds": SEEDS, "tuned": sides, "tuning_seeds": (1000,), "tuning_rows": rows}
