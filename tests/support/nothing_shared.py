"""Sweeps on nodes that share nothing but the network: ``python -m tests.support.nothing_shared FOLDER``.

The command's node has no CPUs, so that each trial runs on another one, in whose mount namespace FOLDER is an empty
disk of its own. One sweep is kept in object storage, whose server goes and comes back; it is moto's, on this machine.
Prints what it found as one line of JSON; see tests/ray/test_nothing_shared.py.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.cluster import NOTICE  # first: it sets what Ray reads at import

import ray  # isort: skip
from ray.cluster_utils import Cluster  # isort: skip

from moto.server import ThreadedMotoServer
from pyarrow import fs

from benchmarks.memory import descendants
from engine.base.errors import WriteError
from engine.run.run import run
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import load
from engine.sweeps.observers import SweepObserver
from engine.sweeps.options import How
from engine.sweeps.running import SweepResult, run_sweep
from fedskew.lab import run_pictures
from tests.support import small_sweeps
from tests.support.waiting import settle

RAY = Path(tempfile.gettempdir()) / "ray"
UNSHARE = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]


class Node:
    """A node that sees empty disks in the place of ``hidden`` and of Ray's folder."""

    def __init__(self, address: str, hidden: Path) -> None:
        before = len(alive())
        start = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            f"--address={address}",
            "--num-cpus=5",
        ]  # as a trial of ``pbt`` asks for
        start += [f"--object-store-memory={100 * 2**20}", "--block"]
        hide = f'mount -t tmpfs none {hidden} && mount -t tmpfs none {RAY} && exec "$@"'
        self._process = subprocess.Popen(
            [*UNSHARE, "sh", "-c", hide, "sh", *start], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        settle(lambda: len(alive()) > before, 60)

    def left(self, hidden: Path) -> list[str]:
        """What is on its disk in the place of the sweeps' folder, and of trials elsewhere."""
        root = Path(f"/proc/{self._process.pid}/root")
        found = [*(root / str(hidden)[1:]).iterdir(), *root.glob(f"{str(RAY)[1:]}/session_*/artifacts/*/*/*/*/away-*")]
        return [str(path.relative_to(root)) for path in found]

    def lose(self) -> None:
        """At once, with all that runs there."""
        for process in [*descendants(self._process.pid), self._process.pid]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self._process.wait()


def alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


class Notes(SweepObserver):
    """What a terminal would show."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def on_message(self, text: str) -> None:
        self.messages.append(text)


def swept(function: str, folder: Path, notes: Notes, *overrides: str, storage: str | None = None) -> SweepResult:
    named = load(f"{small_sweeps.__file__}:{function}", "laptop", overrides, {})
    how = How(mode="inside", concurrent=None if function == "pbt" else 2, storage=storage)
    return run_sweep(named, folder, how, observers=[notes])


def themselves(folder: Path) -> list[bool]:
    """For each trial that came to its end, whether it has the weights of its experiment run by itself."""
    sweep, found = SweepFolder(folder), []
    for record in sweep.records():
        experiment, early = sweep.experiment(record.trial)
        if early is None:
            alone = run(experiment.replace({"execution.actors": 0}), folder / "alone" / record.trial)
            found.append(alone["weights_sha256"] == sweep.run_folder(record.trial).summary()["weights_sha256"])
    return found


def described(outcome: SweepResult, notes: Notes) -> dict[str, Any]:
    return {
        "statuses": outcome.statuses,
        "rounds": [outcome.rounds_asked, outcome.rounds_computed],
        "messages": notes.messages,
        "themselves": themselves(outcome.folder),
    }


def replaced(nodes: list[Node], address: str, folder: Path) -> None:
    """Lose the node once a checkpoint of each trial has arrived, and put another in its place."""
    settle(lambda: len({path.parents[1] for path in folder.glob("trials/*/checkpoints/*.safetensors")}) == 2)
    nodes.pop().lose()
    nodes.append(Node(address, folder.parent))


class ObjectStorage:
    """A bucket and the server that has it, which keeps its objects while it does not answer."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]
        place = f"endpoint_override=127.0.0.1:{self._port}&scheme=http&region=us-east-1"
        self.uri = f"s3://bucket/sweeps?{place}"
        self._files, _ = fs.FileSystem.from_uri(f"s3://?{place}&allow_bucket_creation=true")
        self._files.create_dir("bucket")

    def stop(self) -> None:
        """Once each of two trials has a checkpoint there."""
        settle(lambda: len({name.split("/")[-3] for name in self.names() if name.endswith(".safetensors")}) == 2)
        self._server.stop()

    def back(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port)
        self._server.start()

    def names(self) -> list[str]:
        found = self._files.get_file_info(fs.FileSelector("bucket", recursive=True))
        return [info.path for info in found if info.is_file]


def kept(folder: Path) -> dict[str, Any]:
    """A sweep in object storage that does not answer for a while, and which another folder goes on with."""
    storage, notes = ObjectStorage(), Notes()
    overrides = "rounds=60", "local.lr=0.03"  # as no other sweep here, whose rounds a store may have
    thread = threading.Thread(target=storage.stop)
    thread.start()
    ended = ""
    try:
        swept("two", folder, notes, *overrides, storage=storage.uri)
    except WriteError as error:
        ended = str(error)
    thread.join()
    storage.back()
    shutil.rmtree(folder)  # what the storage has is enough
    outcome = swept("two", folder, notes, *overrides, storage=storage.uri)
    return {**described(outcome, notes), "ended": ended}


def main(root: Path) -> dict[str, Any]:
    run_pictures.RunPictures.on_end = lambda *_: None  # type: ignore  # of the trials by themselves
    shown, hidden = root / "shown", root / "hidden"
    shown.mkdir()
    hidden.mkdir()
    head = {"num_cpus": 0, "object_store_memory": 100 * 2**20, "include_dashboard": False, "_system_config": NOTICE}
    os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any")  # of the nodes, too
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    nodes = [Node(str(cluster.address), hidden)]
    found: dict[str, Any] = {}
    try:
        for function in ("two", "warmup", "asha", "proposed", "pbt"):
            notes, folder = Notes(), hidden / function
            outcome = swept(function, folder, notes)
            found[function] = described(outcome, notes)
            if function == "two":  # again, without what is lost of one: the other tells what it came to
                (folder / "trials/00001/clients.parquet").unlink()
                found["again"] = described(swept(function, folder, notes), notes)
        notes, folder = Notes(), hidden / "lost"
        found["left"] = nodes[0].left(hidden)
        thread = threading.Thread(target=replaced, args=(nodes, str(cluster.address), folder))
        thread.start()
        found["lost"] = described(swept("two", folder, notes, "rounds=60"), notes)
        thread.join()
        logs = [path.read_text() for path in folder.glob("trials/*/log.txt")]
        found["continued"] = sum("continuing after round" in log for log in logs)
        found["kept"] = kept(hidden / "kept")
    finally:
        for node in nodes:
            node.lose()
        ray.shutdown()
        cluster.shutdown()
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
