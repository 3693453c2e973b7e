"""Clusters: a sweep over two nodes of which one is lost, and the files of docs/cluster as far as can be checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest
import yaml

from fedskew.cli import child
from tune_configs import SWEEPS

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted((DOCS / "cluster").iterdir())


def test_a_command_leaves_ray_while_it_draws_and_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a notebook whose Ray ends with its first sweep; a command that waits for Ray's end before it draws."""
    drawn, ended = threading.Event(), threading.Event()
    monkeypatch.setattr("ray.shutdown", lambda: drawn.wait(60) and ended.set())

    def leaving() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "end of Ray"]

    child.leave_ray()
    assert leaving() == []
    monkeypatch.setattr(child, "_telling", 1)
    child.leave_ray()
    [thread] = leaving()
    drawn.set()
    thread.join(60)
    assert ended.is_set()


@pytest.mark.ray
def test_a_lost_node_changes_nothing(tmp_path: Path) -> None:
    """Kills: trials that die with their node or begin anew, data loaded for each trial, rows lost on the way."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-m", "tests.support.two_nodes", str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=DOCS.parent, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["nodes"] == 2
    assert found["alive"] == 1
    sweep = found["disturbed"]
    assert sweep["statuses"] == {"finished": 4}
    assert sweep["clients"] == [200]
    assert sweep["loads"] == 1  # for the whole sweep
    assert sweep["puts"] == 1
    assert sweep["copies"] == [1, 1]  # one on each node
    assert sweep["private"] == 0  # no trial holds a copy of its own
    assert found["lost"]["elsewhere"]
    assert found["lost"]["from"] > 0  # from its checkpoint, not anew
    assert found["weights"] == 4
    assert found["themselves"] == [True] * 4


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_named_by_the_page(path: Path) -> None:
    """Kills: a file nobody is told of; a link to one that is gone."""
    page = (DOCS / "cluster.md").read_text()
    assert f"(cluster/{path.name})" in page
    assert set(re.findall(r"\(cluster/([^)]+)\)", page)) == {file.name for file in FILES}


@pytest.mark.parametrize("name", ["job.sh", "slurm.sbatch"])
def test_shell_files_parse(name: str) -> None:
    """Kills: an open quote or loop."""
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n", str(DOCS / "cluster" / name)], check=True)


class Strict(pydantic.BaseModel, extra="forbid", strict=True):
    """A part of KubeRay's resources, with the fields that the files use: after its API reference, of version 1.7."""


class Container(Strict):
    name: str
    image: str
    resources: dict[Literal["requests", "limits"], dict[str, str]]
    volumeMounts: list[dict[Literal["name", "mountPath"], str]]


class Pod(Strict):
    containers: list[Container]
    volumes: list[dict[str, Any]]


class Template(Strict):
    spec: Pod


class Head(Strict):
    rayStartParams: dict[str, str]
    template: Template


class Workers(Head):
    groupName: str
    replicas: int
    minReplicas: int
    maxReplicas: int


class Cluster(Strict):
    rayVersion: str
    authOptions: dict[Literal["mode"], Literal["token", "disabled"]]
    enableInTreeAutoscaling: bool
    autoscalerOptions: dict[Literal["idleTimeoutSeconds"], int]
    headGroupSpec: Head
    workerGroupSpecs: list[Workers]


class Job(Strict):
    entrypoint: str
    backoffLimit: int
    shutdownAfterJobFinishes: bool
    ttlSecondsAfterFinished: int
    runtimeEnvYAML: str
    rayClusterSpec: Cluster


class Resource(Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob", "RayCluster"]
    metadata: dict[Literal["name"], str]
    spec: Job | Cluster


def resource(name: str, old: str = "", new: str = "") -> Resource:
    """The resource that a file has, and nothing beside it; ``old``: a text in it, in whose place ``new`` is read."""
    text = (DOCS / "cluster" / name).read_text()
    assert old in text
    return Resource.model_validate(yaml.safe_load(text.replace(old, new)))


def test_the_ray_job_and_the_ray_cluster_are_such() -> None:
    """Kills: a resource of another kind; fields or values that KubeRay does not know; two clusters that differ; a Ray
    open to all, one that does not grow and shrink, or with places on the head; a version that is not the image's."""
    job, cluster = resource("kuberay-rayjob.yaml").spec, resource("kuberay-raycluster.yaml").spec
    assert isinstance(job, Job) and isinstance(cluster, Cluster)
    (workers,), (standing,) = job.rayClusterSpec.workerGroupSpecs, cluster.workerGroupSpecs
    for one in (workers, standing):
        assert 1 <= one.minReplicas <= one.replicas <= one.maxReplicas and one.minReplicas < one.maxReplicas
    assert workers.replicas == workers.maxReplicas  # a sweep takes the places that it begins with
    standing.replicas = workers.replicas
    assert cluster == job.rayClusterSpec
    assert cluster.enableInTreeAutoscaling and cluster.authOptions == {"mode": "token"}
    assert cluster.headGroupSpec.rayStartParams["num-cpus"] == "0"
    recipe = (DOCS / "cluster/Dockerfile").read_text()
    assert f"FROM rayproject/ray:{cluster.rayVersion}-" in recipe
    for group in (cluster.headGroupSpec, standing):
        assert [f"--tag {one.image} " in recipe for one in group.template.spec.containers] == [True]
    environment = yaml.safe_load((DOCS / "cluster/runtime_env.yaml").read_text())
    assert yaml.safe_load(job.runtimeEnvYAML) == environment


@pytest.mark.parametrize(
    "change",
    [
        ("maxReplicas", "maxReplica"),
        ('num-cpus: "0"', "num-cpus: 0"),
        ("kind: RayJob", "kind: Job"),
        ("mode: token", "mode: on"),
        ("enableInTree", "enableIntree"),
        ('cpu: "16"', "cpu: 16.5"),
    ],
    ids=lambda change: change[1],
)
def test_a_slip_in_the_ray_job_is_found(change: tuple[str, str]) -> None:
    """Kills: a model that takes everything."""
    with pytest.raises(pydantic.ValidationError):
        resource("kuberay-rayjob.yaml", *change)


def test_deleting_the_ray_job_keeps_the_shared_folder() -> None:
    """Kills: a volume claim in the job's file, which `kubectl delete -f` would delete with all runs; a claim of another
    name than the pods mount, or one that a single node can write to."""
    (job,) = yaml.safe_load_all((DOCS / "cluster/kuberay-rayjob.yaml").read_text())
    (claim,) = yaml.safe_load_all((DOCS / "cluster/kuberay-shared.yaml").read_text())
    assert (job["kind"], claim["kind"]) == ("RayJob", "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    cluster = job["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (volume,) = pod["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        paths = {
            mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == volume["name"]
        }
        assert all(path in job["spec"]["entrypoint"] for path in paths)


def test_sweeps_that_are_named_exist() -> None:
    """Kills: a command for a sweep that is called otherwise."""
    names = {f"{module}.{function}" for module, functions in SWEEPS.items() for function in functions}
    for path in [*FILES, DOCS / "cluster.md"]:
        assert set(re.findall(r"fedskew sweep ([a-z]\w*\.\w+)", path.read_text())) <= names, path.name
