"""An object store that is too small: Ray spills and the bits are the same, or the run ends with a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.base.errors import ResourceError, RunError
from engine.experiment import Experiment
from engine.run.run import run

ROOT = Path(__file__).parents[2]
STORE = 80 * 10**6  # bytes: about the least that Ray takes
TOO_SMALL = """
import json, logging, sys
from pathlib import Path
import engine.worker.ray
import ray
from engine.experiment import Experiment
from engine.run.run import run
quiet = dict(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
ray.init(address="local", num_cpus=2, object_store_memory=int(sys.argv[3]), **quiet)
summary = run(Experiment.from_yaml(sys.argv[1]), Path(sys.argv[2]))
print(json.dumps({key: summary[key] for key in ("weights_sha256", "states_sha256")}))
"""


def large(actors: int) -> Experiment:
    """Clients whose states, 4.5 MB each, are together larger than the store."""
    return Experiment(
        name="large",
        rounds=1,
        data={"name": "fashion_mnist_sample", "train_samples": 160, "test_samples": 20},
        partition={"name": "iid", "clients": 20},
        model={"name": "mlp", "hidden": [1400]},
        algorithm={"name": "scaffold"},
        local={"batch_size": 8, "epochs": 1, "lr": 0.05},
        execution={"actors": actors, "device": "cpu", "start_timeout": 120, "block_timeout": 60},
    )


@pytest.mark.ray
def test_what_has_no_room_is_spilled(tmp_path: Path) -> None:
    """Kills: a run that waits for room that never comes, or one that loses what was spilled."""
    (tmp_path / "large.yaml").write_text(large(1).to_yaml())
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["RAY_local_fs_capacity_threshold"] = "1.0"  # Ray spills nothing where a disk is 95 % full
    command = [sys.executable, "-c", TOO_SMALL, str(tmp_path / "large.yaml"), str(tmp_path / "run"), str(STORE)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    alone = run(large(0), tmp_path / "alone")
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {key: alone[key] for key in found}
    written = (tmp_path / "run" / "checkpoints" / "states").iterdir()
    assert sum(path.stat().st_size for path in written) > STORE


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("kind", ["ObjectStoreFullError", "OutOfDiskError"])
def test_no_room_anywhere_is_a_sentence(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: Ray's own traceback where neither the store nor the disk has room, at the start or in an actor."""
    import ray

    from engine.worker.ray import cluster
    from engine.worker.ray.errors import cause_of

    def full(value: object = None) -> None:
        raise getattr(ray.exceptions, kind)("full")

    with pytest.raises(ray.exceptions.RayTaskError) as raised:
        ray.get(ray.remote(full).remote())
    cause = cause_of(raised.value)
    assert isinstance(cause, RunError)
    assert "object store is full" in str(cause) and "resume from the last checkpoint" in str(cause)
    monkeypatch.setattr(cluster.ray, "put", full)
    with pytest.raises(ResourceError, match="the data have no room"):
        cluster.share(object())
