"""Marks, the order of files, and one thread for torch; fixtures are in ``tests/support/fixtures.py``."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

# Read by Ray at import: no token file in the home folder, no statistics.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "1")
# Ray gives its workers a low priority: beside a second test process on two cores they would get next to nothing.
os.environ.setdefault("RAY_worker_niceness", "0")

import pytest
import torch

from tests.support.tiers import is_long

# What was written outlives a process that is killed, synced or not, and no test takes the power away; a tenth of the
# suite's time would be spent waiting for the disk. Tests of failing syncs put their own in its place.
os.fsync = lambda descriptor: None

# What is compiled is kept, also where PYTHONDONTWRITEBYTECODE forbids it: each test process would rewrite 300 files of
# tests, and each process that tests start compile the engine.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["tests.support.fixtures"]
STARTUP = Path(__file__).parent / "support" / "startup"

LONGEST_FIRST = ("ray", "faults", "slow")  # so that what is short fills the time of the last process


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite-sentences", action="store_true", help="write tests/bad_input/sentences.json anew")


def pytest_configure(config: pytest.Config) -> None:
    """Let processes that tests begin start as ``support/startup`` says.

    Not those of pytest-xdist itself, in which tests run: so its first process, which starts them, leaves it away.
    """
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", 0):
        paths = [str(STARTUP), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what the short tier has no test of, before it is imported."""
    return True if "not long" in config.option.markexpr and is_long(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for the Ray session or is of the long tier, and sort files: with Ray first, then with slow tests.

    With several test processes a whole file goes to one of them (``--dist=loadfile``), in this order.
    """
    ranks: dict[str, int] = {}
    for item in items:
        if "ray_session" in getattr(item, "fixturenames", ()):
            item.add_marker("ray")
        if is_long(item.path):
            item.add_marker("long")
        marks = {mark.name for mark in item.iter_markers()}
        rank = next((n for n, mark in enumerate(LONGEST_FIRST) if mark in marks), len(LONGEST_FIRST))
        ranks[str(item.path)] = min(rank, ranks.get(str(item.path), rank))
    items.sort(key=lambda item: ranks[str(item.path)])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show how tests failed that then passed (``--reruns``): they fail nothing, and are to be looked at."""
    again = {report.nodeid: report for report in terminalreporter.getreports("rerun")}
    flaky = sorted(again.keys() & {report.nodeid for report in terminalreporter.getreports("passed")})
    if flaky:
        terminalreporter.section(f"flaky: {len(flaky)} passed when they were run again")
        for test in flaky:
            terminalreporter.line(test)
            terminalreporter.line(again[test].longreprtext)


def pytest_collection_finish() -> None:
    """Keep what was imported out of the garbage collector's sight: looking at it was a twelfth of the suite's time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
