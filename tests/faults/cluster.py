"""Ray's own stand-ins for nodes: each has its raylet, its object store and its workers, all on this machine."""

from __future__ import annotations

from typing import Any, Protocol

import engine.worker.ray as _first  # noqa: F401 (it sets what Ray reads at import)

from ray.cluster_utils import Cluster  # isort: skip

NOTICE = {  # a lost node is given up after two seconds, not after a quarter of a minute
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 500,
    "health_check_failure_threshold": 3,
}
SMALL: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 100 * 2**20}


class Nodes(Protocol):
    """Where actors run."""

    address: str
    cpus: int  # that there are now

    def lose(self) -> None:
        """A node at once, with all that is on it."""

    def repair(self) -> None:
        """Have as many nodes as before."""


class TwoNodes:
    """One that runs are started on, and one that can be lost."""

    def __init__(self) -> None:
        head = {**SMALL, "include_dashboard": False, "_system_config": NOTICE}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self._second = self._cluster.add_node(**SMALL)
        self._lost = False
        self.cpus = 4
        self.address: str = str(self._cluster.address)

    def lose(self) -> None:
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._lost, self.cpus = True, 2

    def repair(self) -> None:
        if self._lost:
            self._second = self._cluster.add_node(**SMALL)
            self._lost, self.cpus = False, 4

    def close(self) -> None:
        self._cluster.shutdown()
