"""Room for processes on the machines: cores that they share, and memory that they cannot share."""

from __future__ import annotations

import logging
import math

from engine.base.errors import ConfigError
from engine.base.sizes import size_text
from engine.experiment import Execution

log = logging.getLogger("fedskew")

# Bytes that a process with Python, Ray and torch takes for itself alone: measured on Linux as anonymous pages, 204 MiB
# for a client actor that had just started and 216 to 227 MiB for a driver actor under a run of ``mlp`` on the CPU, with
# Ray 2.60. Rounded down, so that what is refused could never have run: models and batches come on top, and Ray's store
# holds the data once for all.
PROCESS = 200 * 2**20

SOME = 2**50  # bytes, more than any machine has


def check_actors(execution: Execution, cpus: float, memory: float, where: str) -> None:
    """Warn of actors that share cores; raise :class:`ConfigError` for more than memory carries.

    cpus, memory: cores and bytes of ``where``, the machine or the cluster.
    """
    actors, wanted = execution.actors, execution.actors * execution.cpus_per_actor
    room = groups_in_memory(1, memory)
    if actors > room:
        raise ConfigError(
            "execution.actors",
            actors,
            f"each takes {size_text(PROCESS)} at the least, together {size_text(actors * PROCESS)}, and {where} has "
            f"{size_text(memory)}",
            f"set execution.actors={max(1, min(room, math.floor(cpus / execution.cpus_per_actor)))}",
        )
    if wanted > cpus:
        fitting = max(1, math.floor(cpus / execution.cpus_per_actor))
        log.warning(
            "execution.actors=%d want %g cores and %s has %g: each gets 1/%.3g of what it asks for, and together they "
            "take %s of memory; execution.actors=%d is faster, with the same bits",
            actors,
            wanted,
            where,
            cpus,
            wanted / cpus,
            size_text(actors * PROCESS),
            fitting,
        )


def groups_in_memory(processes: int, memory: float) -> int:
    """Return how many groups of so many processes each have room in so many bytes, at least 1."""
    return max(1, math.floor(min(memory, SOME) / (PROCESS * processes)))
