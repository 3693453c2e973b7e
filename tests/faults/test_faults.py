"""Two schedules of the fault harness, and the harness itself; ``make chaos`` runs a hundred."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.base.errors import DIED
from engine.record.run_folder import RunFolder
from tests.faults import harness
from tests.faults.chaos import summed_up, table, with_table
from tests.faults.schedules import KINDS, Fault, Schedule, draw
from tests.faults.workloads import WORKLOADS

pytestmark = pytest.mark.faults
DOCS = Path(__file__).parents[2] / "docs"
NOTHING_WRONG: list[str] = []


def test_a_killed_process_whose_newest_checkpoint_is_cut(tmp_path: Path) -> None:
    """Kills: a checkpoint that is half there and believed; rows beyond it that are kept, or rows before it that are
    lost; bits that depend on where a run was begun again."""
    faults = (Fault("kill", 0.5, damage="truncate"),)
    outcome = harness.happen(Schedule(0, "in process", "scaffold on disk", faults), tmp_path)
    assert outcome.problems == NOTHING_WRONG
    assert [(launch.happened, launch.code) for launch in outcome.launches] == [(True, 137), (False, 0)]


@pytest.mark.usefixtures("ray_session")
def test_a_driver_that_is_killed(tmp_path: Path) -> None:
    """Kills: a driver's death without a way to go on; a resume that counts rounds twice. The deaths of client actors
    are in test_ray.py."""
    import ray

    nodes = SimpleNamespace(address=ray.get_runtime_context().gcs_address, cpus=1, repair=lambda: None)
    schedule = Schedule(1, "actors", "scaffold", (Fault("kill driver", 0.3),))
    outcome = harness.happen(schedule, tmp_path, nodes)  # type: ignore[arg-type]
    assert outcome.problems == NOTHING_WRONG
    assert outcome.launches[0].happened
    assert outcome.launches[0].code == DIED


def test_other_bits_and_other_rows_are_found(tmp_path: Path) -> None:
    """Kills: a harness that passes whatever comes."""
    one = harness.reference("fedavg", tmp_path / "one")
    assert harness.differences(one, one) == NOTHING_WRONG
    other = RunFolder(tmp_path / "other")
    other.path.mkdir()
    for path in one.path.glob("*.parquet"):
        (other.path / path.name).write_bytes(path.read_bytes())
    (other.path / "summary.json").write_text(json.dumps({**one.summary(), "weights_sha256": "00"}))
    other.clients.truncate({"train": 44})
    problems = harness.differences(one, other)
    assert problems[0].startswith("weights_sha256 is 00, undisturbed ")
    assert problems[1].startswith("clients.parquet differs: ")
    assert len(problems) == 2


def test_a_seed_is_a_schedule() -> None:
    """Kills: a schedule that cannot be run again; a kind of fault, a damage or a workload that is never drawn."""
    schedules = [draw(seed) for seed in range(100)]
    assert schedules == [draw(seed) for seed in range(100)]
    faults = [fault for schedule in schedules for fault in schedule.faults]
    assert {fault.kind for fault in faults} == {kind for kinds in KINDS.values() for kind in kinds}
    assert {schedule.workload for schedule in schedules} == set(WORKLOADS)
    assert len({fault.damage for fault in faults}) == 6
    assert {schedule.where for schedule in schedules} == set(KINDS)


def test_figures_of_the_page() -> None:
    """Kills: a fault that is counted though it never happened."""
    launch = harness.Launch("run", "kill", True, -9, 1.0, "")
    launches = [vars(one) for one in (launch, replace(launch, happened=False), replace(launch, fault="nan", code=0))]
    outcome = {"problems": ["other bits"], "launches": launches, "seconds": 60.0, "told": "0: ...", "commit": "abc"}
    figures = summed_up([outcome], 0)
    assert figures["faults"] == {"kill": {"ended": 1, "not reached": 1}, "nan": {"went on": 1}}
    assert (figures["failed"], figures["minutes"]) == (1, 1.0)
    page = table({"runs": figures, "sweeps": {**figures, "faults": {"lose store": {"went on": 3}}}})
    assert (
        "kill 2, nan 1; in all 3, of which 2 happened before the launch was over: 1 launches went on, 1 ended" in page
    )
    assert "lose store 3; in all 3, of which 3 happened before the launch was over: 3 launches went on, 0 ended" in page


def test_the_page_has_the_last_figures() -> None:
    """Kills: figures on the page that no run gave."""
    page = (DOCS / "reliability.md").read_text()
    assert with_table(page, json.loads((DOCS / "chaos.json").read_text())) == page
