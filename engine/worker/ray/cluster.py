"""The Ray cluster that a run uses: found or started, what it has, and the data put into its store.

Public Ray API only, but for one constant, see :func:`_loopback_alone`.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch

from engine.base.devices import cores, memory
from engine.base.errors import FedskewError, ResourceError
from engine.base.own_modules import check_hides_nothing
from engine.data import Dataset
from engine.experiment import Execution, check_share, no_gpu
from engine.worker.addresses import check_answers, repair, used
from engine.worker.ray import session_folder
from engine.worker.ray.errors import FULL, NO_ROOM, last_cause
from engine.worker.ray.resources import check_actors

log = logging.getLogger("fedskew")

# Private to Ray, read by it at import as RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER. tests/ray/test_private_api.py holds that
# the installed Ray has it.
CONSTANTS, MAY_LISTEN = "ray._private.ray_constants", "ENABLE_RAY_CLUSTER"
VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


def connect(execution: Execution, address: str | None = None, crowd: bool = True) -> None:
    """Use the Ray that is there, or start one on this machine.

    ``crowd``: with room for the actors asked for, even where they are more than the machine has cores. Raises
    :class:`ResourceError` if no Ray answers at the address, and the error of ``no_gpu`` if a GPU share is asked for on
    a machine without a GPU.
    """
    check_share(execution)
    if ray.is_initialized():
        return
    check_hides_nothing(Path.cwd())
    with _signals_kept():
        _connect(execution, address, crowd)


def _connect(execution: Execution, asked: str | None, crowd: bool) -> None:
    address, given = used(asked)
    if address:
        check_answers(address, given)
        try:
            ray.init(address=address, **QUIET)
        except Exception as error:  # whatever Ray says, after its own deadline
            raise ResourceError(_refused(error, given)) from None
        if crowd:
            _check_cluster(execution)
        return
    if execution.gpus_per_actor > 0 and not torch.cuda.is_available():
        raise no_gpu(execution)
    there = cores()
    wanted = math.ceil(execution.actors * execution.cpus_per_actor)
    if crowd:
        check_actors(execution, there, memory("cpu"), "this machine")
    cpus = max(there, wanted) if crowd else there
    for last in (False, True):
        try:
            with _loopback_alone(), session_folder.owned() as folder:
                ray.init(address="local", num_cpus=cpus, include_dashboard=False, **folder, **QUIET)
            return
        except FedskewError:
            raise
        except Exception as error:  # one of Ray's processes was not there in time, as on a busy machine
            told = f"Ray could not be started on this machine ({last_cause(error)})"
            if last:
                raise ResourceError(f"{told}, twice; 'fedskew doctor' looks for the reason") from None
            log.warning("%s, and is tried once more", told)


def _refused(error: Exception, given: str) -> str:
    """Say why the Ray that answers is of no use."""
    cause = last_cause(error.__cause__ or error)
    if "AuthenticationError" in (type(error).__name__, cause.partition(":")[0]):
        return (
            f"{given}: that Ray asks for a token, and this process has not the right one; set RAY_AUTH_MODE=token, and "
            "RAY_AUTH_TOKEN_PATH to a file with the token of its head node (docs/cluster.md)"
        )
    return f"{given}: what answers there is no Ray that can be used ({cause}); {repair(given)}"


def _check_cluster(execution: Execution) -> None:
    """As on one machine; actors for which a cluster lacks cores wait, and take no memory, until it has grown."""
    total = ray.cluster_resources()
    cpus, wanted = total.get("CPU", 0.0), execution.actors * execution.cpus_per_actor
    if wanted <= cpus:
        check_actors(execution, cpus, total.get("memory", math.inf), "the cluster")
        return
    log.warning(
        "execution.actors=%d want %g cores and the cluster has %g: more are waited for, execution.start_timeout=%g s",
        execution.actors,
        wanted,
        cpus,
        execution.start_timeout,
    )


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Leave SIGTERM to who has it: ``ray.init`` takes it, and ends the process at it without a word."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _loopback_alone() -> Iterator[None]:
    """Let what Ray starts meanwhile be reached from this machine only.

    Who reaches a port of Ray can run code. On Linux Ray takes the machine's own address even where it is asked for
    127.0.0.1, and its processes then listen on all; with this variable it does as on macOS and Windows. Its processes
    read it when they start, this one has read it at import. A Ray on several nodes is never started in here.
    """
    constants: Any = sys.modules.get(CONSTANTS, SimpleNamespace())
    before = os.environ.get(VARIABLE), getattr(constants, MAY_LISTEN, True)
    os.environ[VARIABLE] = "0"
    setattr(constants, MAY_LISTEN, False)
    try:
        yield
    finally:
        setattr(constants, MAY_LISTEN, before[1])
        if before[0] is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before[0]


def leave() -> None:
    """Leave Ray, and end one that was started here, while this process goes on: that takes a second and more."""
    threading.Thread(target=ray.shutdown, name="end of Ray").start()


def resources() -> dict[str, float]:
    """Return what the Ray that :func:`connect` found has: nodes, and CPUs and GPUs over all of them."""
    total = ray.cluster_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    return {"nodes": nodes, "cpus": total.get("CPU", 0.0), "gpus": total.get("GPU", 0.0)}


def share(dataset: Dataset) -> Any:
    """Put the data into Ray's store and return a reference to the one copy that each node will hold.

    Raises :class:`ResourceError` if there is no room for them.
    """
    try:
        return ray.put(dataset)
    except FULL:
        raise ResourceError(f"the data have no room: {NO_ROOM}") from None


def object_store_bytes() -> float:
    """Return the size of Ray's object store on this node."""
    here = ray.get_runtime_context().get_node_id()
    [resources] = [node["Resources"] for node in ray.nodes() if node["NodeID"] == here]
    return resources["object_store_memory"]


def gpu_share(share: float) -> float:
    """Return a share snapped to 1/n, by the largest number n of actors that fit on one card side by side.

    0.3 becomes 1/3 (three per card), since a share of 0.3 would leave a tenth of each card to nobody.
    """
    if share == 0:
        return 0.0
    per_card = math.floor(1 / share + 1e-6)
    return math.floor(1e4 / per_card) / 1e4  # Ray counts in ten-thousandths


def check_resources(execution: Execution) -> None:
    """Refuse a GPU share where there is no GPU; say how a share is snapped."""
    cards = ray.cluster_resources().get("GPU", 0)
    if execution.gpus_per_actor > 0 and cards == 0:
        raise no_gpu(execution)
    snapped = gpu_share(execution.gpus_per_actor)
    if abs(snapped - execution.gpus_per_actor) > 1e-3:
        log.warning(
            "execution.gpus_per_actor=%g is taken as 1/%d, so that %d actors share a card",
            execution.gpus_per_actor,
            round(1 / snapped),
            round(1 / snapped),
        )
