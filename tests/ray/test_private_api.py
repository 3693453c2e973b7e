"""What the engine sets of Ray beyond its public API, in the Ray that is installed; no Ray is started here."""

from __future__ import annotations

from importlib.util import find_spec, module_from_spec
from ipaddress import ip_address
from pathlib import Path
from types import ModuleType

import pytest

from engine import sweeps
from engine.worker.ray import cluster

import ray  # isort: skip

PRESTART = "prestart_worker_first_driver"


def constants() -> ModuleType:
    """Ray's constants as a process finds them that starts now."""
    spec = find_spec(cluster.CONSTANTS)
    assert spec is not None and spec.loader is not None, f"Ray {ray.__version__} has no {cluster.CONSTANTS} any more"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("value", ["0", "1"])
def test_the_installed_ray_reads_where_it_may_listen(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Kills: a release of Ray without the constant, or with another variable, on which every port is open to all."""
    monkeypatch.setenv(cluster.VARIABLE, value)
    found = getattr(constants(), cluster.MAY_LISTEN, None)
    assert found is (value == "1"), (
        f"Ray {ray.__version__}: {cluster.CONSTANTS}.{cluster.MAY_LISTEN} no longer follows {cluster.VARIABLE}, by "
        "which engine/worker/ray/cluster.py keeps a Ray that it starts on loopback; find what has taken its place"
    )


def test_this_process_takes_loopback_while_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a release of Ray that has the constant and does not ask for it; a constant that stays as it was set."""
    from ray._private import ray_constants, services, worker

    monkeypatch.setattr(worker, "_global_node", None)  # of a Ray that other tests share
    before = getattr(ray_constants, cluster.MAY_LISTEN)
    with cluster._loopback_alone():
        address = services.get_node_ip_address()
    assert ip_address(address).is_loopback, f"Ray {ray.__version__} no longer heeds {cluster.MAY_LISTEN} in addresses"
    assert getattr(ray_constants, cluster.MAY_LISTEN) == before


def test_the_installed_ray_can_do_without_workers_of_its_own() -> None:
    """Kills: a release of Ray without the setting, in which every sweep starts processes that no trial takes."""
    text = (Path(sweeps.__file__)).read_text()
    assert f'"RAY_{PRESTART}", "0"' in text
    binary = Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet"
    assert PRESTART.encode() in binary.read_bytes(), f"Ray {ray.__version__} has another name for {PRESTART}"
