"""Sweeps on nodes that share nothing but the network: Linux namespaces stand for machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.nothing_shared import UNSHARE

MAY = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not MAY, reason="this process may make no mount namespace"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-m", "tests.support.nothing_shared", str(tmp_path_factory.mktemp("nodes"))]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("sweep", "statuses"),
    [
        ("two", {"finished": 2}),
        ("again", {"finished": 2}),
        ("warmup", {"finished": 6}),
        ("proposed", {"finished": 8}),
        ("pbt", {"finished": 2}),
        ("lost", {"finished": 2}),
    ],
)
def test_trials_on_a_node_that_shares_nothing_end_in_the_sweeps_folder(
    found: dict[str, Any], sweep: str, statuses: dict[str, int]
) -> None:
    """Kills: trials that fail one by one where the folder is not; a population whose copies are not found; a lost
    node's trials that do not run again; bits that depend on where a trial wrote."""
    assert found[sweep]["statuses"] == statuses
    assert set(found[sweep]["themselves"]) == {True}
    first = found[sweep]["messages"][0]
    assert first.startswith("1 of 1 other nodes, ")
    assert first.endswith(": trials there write to their own disk, and it is brought here as they go")


def test_a_scheduler_stops_trials_on_a_node_that_shares_nothing(found: dict[str, Any]) -> None:
    """Kills: reports that do not reach the scheduler; a trial that it stopped, and whose files stay away."""
    assert set(found["asha"]["statuses"]) == {"finished", "stopped"}
    assert sum(found["asha"]["statuses"].values()) == 6
    assert set(found["asha"]["themselves"]) == {True}


def test_a_sweep_goes_on_once_its_object_storage_answers_again(found: dict[str, Any]) -> None:
    """Kills: trials that count as failed where the storage is away; a start from its beginning; a sweep that needs the
    folder in which it was begun."""
    assert "cannot be written (" in found["kept"]["ended"] and "NETWORK_CONNECTION" in found["kept"]["ended"]
    assert found["kept"]["statuses"] == {"finished": 2}
    assert found["kept"]["rounds"][1] < found["kept"]["rounds"][0]
    assert set(found["kept"]["themselves"]) == {True}


def test_a_node_keeps_nothing_and_loses_nothing(found: dict[str, Any]) -> None:
    """Kills: disks that fill up; rounds that no store shares; a trial that begins anew after its node was lost."""
    assert found["left"] == []
    assert found["warmup"]["rounds"] == [42, 19]
    assert found["continued"] >= 1  # the other one may have come to its end before
