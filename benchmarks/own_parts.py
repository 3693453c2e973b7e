"""A part of one's own through each door: its built-in twin's bits on actors, in a sweep, after a kill and a resume.

FedProx is written as a user would write it, in a script, in a file with a module beside it, in an installed package and
in a sweep's file. Each is run in process and on two actors, and swept on Ray; the sweep's process group is killed when
the first checkpoint of a trial is there, and gone on with. Twin and file are run on two nodes, too, and swept by ASHA,
PBT and Optuna. ``python -m benchmarks.own_parts`` takes about a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "own_parts.json"
METHOD = '''
@dataclass(frozen=True)
class OwnProx(FedAvg):
    """FedProx (Li et al. 2020, eq. 2)."""

    mu: float = 0.01  # 0 is FedAvg

    @fedskew.idle_when(mu=0)
    def gradient(self, grad, weights, received, state, client):
        return grad + SCALE * self.mu * (weights - received["weights"])
'''
IMPORTS = """
import sys
from dataclasses import dataclass
import fedskew
from fedskew import FedAvg
from own_scale import SCALE
"""
PACKAGE = "package/own_package-1.0.dist-info"
PART = f'{IMPORTS}\n@fedskew.algorithm("ownprox"){METHOD}'
SWEEP = """
from ray import tune
from fedskew import Asha, Experiment, Optuna, Pbt, Sweep

def two(profile):
    base = Experiment(rounds=12, algorithm={"name": NAME, "mu": 0.1}, checkpoint={"every": 2}, execution={"actors": 2})
    return Sweep(base=base, space={"local.lr": tune.grid_search([0.05, 0.1])}, seeds=(0,))

def asha(profile):
    space = {"local.lr": tune.grid_search([0.01, 0.05, 0.1])}
    return Sweep(base=two(profile).base, space=space, scheduler=Asha(grace=2), step=2)

def pbt(profile):
    space = {"mu": tune.grid_search([0.01, 0.1, 1.0])}
    scheduler = Pbt(every=4, mutations={"mu": tune.loguniform(0.001, 1.0)})
    return Sweep(base=two(profile).base, space=space, scheduler=scheduler, step=4)

def optuna(profile):
    space = {"mu": tune.loguniform(0.001, 1.0)}
    return Sweep(base=two(profile).base, space=space, samples=4, search=Optuna(random=2))
"""
TWO_NODES = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""
MAIN = """
if __name__ == "__main__":
    what, out, actors = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "run":
        fedskew.run(two("laptop").base.replace({"execution.actors": actors, "local.lr": 0.1}), out)
    else:
        fedskew.sweep(two, out=out)
"""


def code(folder: Path) -> None:
    """Write the doors' files, and a package as it lies on the path once it is installed."""
    twin, own = SWEEP.replace("NAME", '"fedprox"'), SWEEP.replace("NAME", '"ownprox"')
    files = {
        "own_scale.py": "SCALE = 1.0\n",
        "ownprox.py": PART,
        "script.py": PART + own + MAIN,
        "grid.py": own,
        "twin.py": twin,
        "whole.py": PART + own,
        "package/own_scale.py": "SCALE = 1.0\n",
        "package/own_package.py": PART,
        f"{PACKAGE}/METADATA": "Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n",
        f"{PACKAGE}/entry_points.txt": "[fedskew.plugins]\nalgorithm.ownprox = own_package:OwnProx\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


class Door:
    """The commands of one way in."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name

    def environment(self) -> dict[str, str]:
        """Return the variables of its commands: where the package is, as if it were installed."""
        package = [str(self.folder / "package")] if self.name == "package" else []
        return os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *package])}

    def run(self, out: Path, actors: int) -> list[str]:
        """Return the command of a run."""
        if self.name == "script":
            return [sys.executable, "script.py", "run", str(out), str(actors)]
        own = {"file": ["--with", "ownprox.py"], "sweep file": ["--with", "whole.py"]}.get(self.name, [])
        algorithm = "fedprox" if self.name == "twin" else "ownprox"
        words = ["rounds=12", f"algorithm.name={algorithm}", "algorithm.mu=0.1", "checkpoint.every=2", "local.lr=0.1"]
        plain = self.folder / "plain.yaml"
        plain.write_text("{}\n")
        return [*CLI, "run", str(plain), *words, f"execution.actors={actors}", "--out", str(out), *own]

    def sweep(self, out: Path, kind: str = "two") -> list[str]:
        """Return the command of a sweep; trials one at a time where they are of a kind that decides by what it sees."""
        if self.name == "script":
            return [sys.executable, "script.py", "sweep", str(out), "2"]
        file = {"sweep file": "whole.py", "twin": "twin.py"}.get(self.name, "grid.py")
        own = ["--with", "ownprox.py"] if self.name == "file" else []
        how = [] if kind in ("two", "pbt") else ["--concurrent", "1"]
        return [*CLI, "sweep", f"{file}:{kind}", "--out", str(out), "--no-reuse", "--mode", "inside", *how, *own]

    def resume(self, out: Path) -> list[str]:
        """Return the command that goes on with the sweep."""
        if self.name == "script":
            return self.sweep(out)
        files = {"sweep file": ["whole.py"], "twin": ["twin.py"], "file": ["grid.py", "ownprox.py"]}
        given = [word for file in files.get(self.name, ["grid.py"]) for word in ("--with", file)]
        return [*CLI, "resume", str(out), *given]


CLI = [sys.executable, "-m", "fedskew.cli.launcher"]


def ended(command: Sequence[str], door: Door) -> None:
    """Call a command, which must succeed."""
    done = subprocess.run(command, cwd=door.folder, env=door.environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )


def killed(command: Sequence[str], door: Door, out: Path) -> int:
    """Kill a sweep's processes, Ray's included, when a trial has a checkpoint; how many trials had ended."""
    child = subprocess.Popen(
        command,
        cwd=door.folder,
        env=door.environment(),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not list(out.glob("trials/*/checkpoints/*.safetensors")):
        if child.poll() is not None:
            raise SystemExit(f"{door.name}: the sweep ended before it could be killed")
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    time.sleep(2.0)  # until the workers of a Ray that is gone have noticed
    return sum(json.loads(path.read_text())["status"] == "finished" for path in out.glob("trials/*/trial.json"))


def trials(folder: Path) -> list[str]:
    """Return what the trials of a sweep ended with, and how far each came."""
    found = [summary(path) for path in sorted((folder / "trials").iterdir())]
    return [f"{one['weights_sha256'][:16]} after {one['rounds']}" for one in found]


def on_their_schedules(door: Door, folder: Path) -> tuple[str, int]:
    """Run the twin on the schedule of each trial of a population; return what came of it and how many were changed.

    Which trial is changed, when, and to what, Tune draws anew in each sweep, so two sweeps are not compared.
    """
    equal, changed, paths = 0, 0, sorted((folder / "trials").iterdir())
    for path in paths:
        written = (path / "experiment.yaml").read_text()
        alone = folder / f"{path.name}.yaml"
        alone.write_text(written.replace("name: ownprox", "name: fedprox"))
        out = folder.with_name(f"{folder.name}-{path.name}")
        ended([*CLI, "run", str(alone), "execution.actors=0", "--out", str(out)], door)
        equal += summary(out)["weights_sha256"] == summary(path)["weights_sha256"]
        changed += bool(yaml.safe_load(written)["schedule"])
    return f"{equal} of {len(paths)} trials are the twin's run of their schedules", changed


def on_two_nodes(door: Door, out: Path) -> str:
    """Run on two nodes with one core each, Ray's stand-ins on this machine, and so with an actor on each."""
    with subprocess.Popen(
        [sys.executable, "-c", TWO_NODES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as nodes:
        assert nodes.stdin is not None and nodes.stdout is not None
        address = nodes.stdout.readline().strip()
        try:
            ended([*door.run(out, 2), "--address", address], door)
        finally:
            nodes.stdin.close()
    return summary(out)["weights_sha256"][:16]


def summary(folder: Path) -> Mapping[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    rows: dict[str, dict[str, Any]] = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        code(folder)
        for name in ("twin", "script", "file", "package", "sweep file"):
            if name in rows:  # of an earlier process of this command
                continue
            door, place = Door(folder, name), folder / name.replace(" ", "-")
            found: dict[str, Any] = {}
            for actors in (0, 2):
                out = place / f"run-{actors}"
                ended(door.run(out, actors), door)
                found[f"{actors} actors"] = summary(out)["weights_sha256"][:16]
                found["origin"] = json.loads((out / "parts.json").read_text())["stages.train.algorithm"]["origin"]
            out = place / "sweep"
            found["trials that had ended at the kill"] = killed(door.sweep(out), door, out)
            ended(door.resume(out), door)
            found["sweep"] = trials(out)
            if name in ("twin", "file"):
                found["two nodes"] = on_two_nodes(door, place / "nodes")
                for kind in ("asha", "optuna"):
                    ended(door.sweep(place / kind, kind), door)
                    found[kind] = trials(place / kind)
                ended(door.sweep(place / "pbt", "pbt"), door)
                found["pbt"], found["trials that PBT changed"] = on_their_schedules(door, place / "pbt")
            rows[name] = found
            print(name, found, flush=True)
            asked.out.write_text(json.dumps(rows, indent=1) + "\n")
    about = ("origin", "trials that had ended at the kill", "trials that PBT changed")
    twin = rows["twin"]
    same = all(twin[key] == value for row in rows.values() for key, value in row.items() if key not in about)
    print("equal to the twin" if same else "NOT equal to the twin")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
