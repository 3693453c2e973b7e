"""Blocks on Ray actors: a pool that goes on when actors die, hang or run out of memory, with the same bits.

It offers :class:`~engine.worker.ray.pool.RayPool`, the same interface as the pool in process, and ``cluster.py``, which
finds or starts Ray. Read ``pool.py`` first, then ``resilient_calls.py``: calls sent, waited for, and sent again
after a loss.

Whoever uses Ray imports from here before ``ray`` itself, which reads the variables below when it is imported.
"""

import os

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")  # an actor without a GPU share sees no GPU
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent home
# Of a Ray that is started here: calls that its server remembers, for nobody to ask about; 100,000 take 200 MB and more.
os.environ.setdefault("RAY_task_events_max_num_task_in_gcs", "1000")
