"""Ray's memory monitor over actors that take more than there is: ``python -m tests.faults.out_of_memory``.

Twice a run on three actors of which each takes some gigabytes while it trains, on a node that may use only so much
more than it uses now: with room for one of them the run comes to the bits of an undisturbed one, with room for none it
ends and names a smaller block. Prints what came of it; exit code 1 if it is something else.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine.worker.ray import pool as _first  # noqa: F401 (it sets what Ray reads at import)

import ray  # isort: skip
import numpy as np

from engine.base.errors import MemoryShort
from engine.run.run import run
from tests.faults.workloads import WORKLOADS

VARIABLE = "FEDSKEW_TEST_GIGABYTES"
ACTORS = 3


def take_memory() -> None:
    """In each worker process: training takes as much as the environment says, for a moment."""
    from engine.client.jobs import JobRunner

    train = JobRunner.train

    def hungry(*args: Any, **named: Any) -> Any:
        taken = np.ones(int(float(os.environ[VARIABLE]) * 2**27))
        time.sleep(0.7)  # several looks of the monitor
        result = train(*args, **named)
        del taken
        return result

    JobRunner.train = hungry  # type: ignore[method-assign]


def share_of(more: float) -> float:
    """Of the machine's memory, what is used now and ``more`` gigabytes."""
    found = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(found[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return (total - free + more * 2**20) / total


def outcome(room: float, taken: float, folder: Path) -> str:
    """What a run comes to on actors that take ``taken`` gigabytes each where there is ``room``: weights, or why not."""
    os.environ.update({"RAY_memory_usage_threshold": f"{share_of(room):.4f}", "RAY_memory_monitor_refresh_ms": "100"})
    environment = {"worker_process_setup_hook": take_memory, "env_vars": {VARIABLE: str(taken)}}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
    ray.init(address="local", num_cpus=ACTORS, object_store_memory=200 * 2**20, runtime_env=environment, **quiet)
    try:
        experiment = WORKLOADS["fedavg"].override(["rounds=3", f"execution.actors={ACTORS}"])
        return run(experiment, folder)["weights_sha256"]
    except MemoryShort as error:
        return str(error)
    finally:
        ray.shutdown()


def main() -> int:
    logging.basicConfig(level=logging.WARNING)
    folder = Path(tempfile.mkdtemp())
    undisturbed = run(WORKLOADS["fedavg"].override(["rounds=3"]), folder / "undisturbed")["weights_sha256"]
    some, none = outcome(6, 3, folder / "one"), outcome(3, 5, folder / "none")
    print(f"room for one of three: {'the bits of an undisturbed run' if some == undisturbed else some}")
    print(f"room for none: {none}")
    return 0 if some == undisturbed and "set execution.block=1" in none else 1


if __name__ == "__main__":
    sys.exit(main())
