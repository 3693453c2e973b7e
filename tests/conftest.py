"""One Ray session and one sweep with its report for all tests that need them; everything else runs in process."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Read by Ray at import: no token file in the home folder, no statistics.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")

import pytest
import torch
from xdist.scheduler import LoadScopeScheduling

from engine.run.log import Messages

# Two Rays would share the cores and see each other's actors.
WITH_RAY = (
    "test_cluster.py",
    "test_diagnosis.py",
    "test_faults.py",
    "test_loopback.py",
    "test_ray.py",
    "test_small_store.py",
    "test_sweeps.py",
    "test_two_at_once.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray first: it takes longest, and the rest fits beside it."""
    items.sort(key=lambda item: item.path.name not in WITH_RAY)


class ByFile(LoadScopeScheduling):
    """With several test processes, a file goes to one of them, and all that starts Ray to the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0].rpartition("/")[2]
        return "ray" if file in WITH_RAY else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A local cluster with room for four actors and two GPUs that exist by name only."""
    import ray

    ray.init(
        address="local",
        num_cpus=8,
        num_gpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=256 * 2**20,
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 trials, one of which failed, with their report; written once, for all tests that only read."""
    from engine.analysis.report import write
    from tests.support.report_pages import ATTACK, CLAIMS, FAILED, TABLE
    from tests.support.sweep_folders import make_sweep

    folder = make_sweep(
        tmp_path_factory.mktemp("sweeps") / "one",
        rounds=6,
        failed=[FAILED],
        title=f"FedProx {ATTACK} & $\\mu$",
        claims=CLAIMS,
        tables=[TABLE],
        client_rows=False,
    )
    write(folder)
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def messages() -> Iterator[Messages]:
    """The warnings of the engine during a test."""
    log = logging.getLogger("fedskew")
    handler = Messages()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)
