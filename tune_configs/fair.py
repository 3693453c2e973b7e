"""What makes a sweep's verdicts fair, for all sweeps that state it: who chose what, on which rows, by which seeds.

Candidates are compared on a tenth of the training rows and on seeds of their own: no test image has a say. Verdicts are
of seeds that nobody had looked at when the setting was fixed, and each of five tests on its own fifth of the test rows,
so that an interval over seeds holds seeds, partitions and test images (docs/deciding.md).
"""

from __future__ import annotations

SEEDS = (100, 101, 102, 103, 104)
TUNING_ROWS = 0.1
OWN_TEST_ROWS = {"data.test_samples": 2_000, "data.test_part": 0}  # of 10,000: five parts
