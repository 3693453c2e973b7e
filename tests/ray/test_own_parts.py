"""Own parts on actors and in trials: the bits of their twins, whatever file those processes have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from ray import tune

from engine.base.own_modules import import_file
from engine.experiment import Experiment
from engine.record import parts
from engine.run.run import run
from engine.sweeps.definition import Optuna, Sweep
from engine.sweeps.options import How
from fedskew.running import sweep
from tests.support import own_prox

pytestmark = pytest.mark.usefixtures("ray_session")
ROOT = Path(__file__).parents[2]
SMALL = {
    "rounds": 2,
    "data": {"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
}
SCRIPT = f"""{own_prox.IMPORTS}
import sys
from typing import Literal
SHOWN = {SMALL!r}
@fedskew.algorithm("ownprox"){own_prox.METHOD}    kind: Literal["one", "other"] = "one"  # known by name here alone

asked = fedskew.Experiment(algorithm=OwnProx(mu=0.1), execution={{"actors": 1, "device": "cpu"}}, **SHOWN)
fedskew.run(asked, sys.argv[1])
"""


def config(name: str, actors: int) -> Experiment:
    execution = {"actors": actors, "device": "cpu", "start_timeout": 120}
    return Experiment(algorithm={"name": name, "mu": 0.1}, execution=execution, **SMALL)


@pytest.mark.long
def test_own_parts_have_their_twins_bits_everywhere(tmp_path: Path) -> None:
    """Kills: a part, or a module beside it, that only the driver has; a trial that knows no name of one's own, or
    one that the sweep's base does not have, on a grid or by a searcher; a script
    whose classes other processes cannot find; another hash of the same code elsewhere, which the pool would refuse."""
    import ray

    wanted = run(config("fedprox", 0), tmp_path / "twin")["weights_sha256"]
    folder = own_prox.write(tmp_path / "code", ownprox=own_prox.FILE, script=SCRIPT)
    import_file(folder / "ownprox.py", "--with")
    for name in ("ownprox", "own_scale"):  # by now only this process has them
        (folder / f"{name}.py").rename(folder / f"{name}.txt")

    def beside_ours(profile: str) -> Sweep:
        names = ("fedprox", "ownprox")
        return Sweep(config("fedprox", 1), {"algorithm": tune.grid_search([{"name": one, "mu": 0.1} for one in names])})

    def proposed(profile: str) -> Sweep:
        space = {"algorithm": tune.choice(["ownprox"]), "local.lr": tune.uniform(0.01, 0.1)}
        return Sweep(config("fedprox", 1), space, samples=2, search=Optuna(random=2))

    found = sweep(beside_ours, out=tmp_path / "sweep", how=How(mode="inside"))
    assert found.trials["weights_sha256"].tolist() == [wanted, wanted]
    found = sweep(proposed, out=tmp_path / "proposed", how=How(mode="inside"))
    assert found.trials["status"].tolist() == ["finished", "finished"]
    assert run(config("ownprox", 1), tmp_path / "actors")["weights_sha256"] == wanted

    (folder / "own_scale.txt").rename(folder / "own_scale.py")
    command = [sys.executable, str(folder / "script.py"), str(tmp_path / "script")]
    paths = os.pathsep.join([str(ROOT), os.environ["PYTHONPATH"]])
    environment = os.environ | {"PYTHONPATH": paths, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "script" / "summary.json").read_text())["weights_sha256"] == wanted
    assert parts.read(tmp_path / "script")["stages.train.algorithm"]["origin"] == "script"
