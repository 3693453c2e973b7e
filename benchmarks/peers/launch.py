"""Starting peers: which there are, and one run of one of them in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks.footprint import Footprint

ROOT = Path(__file__).parents[2]
PEERS = {"flower": "flwr", "pfl_research": "pfl"}  # program below benchmarks.peers -> the package that it needs


@dataclass(frozen=True)
class Ran:
    """What a peer came to."""

    seconds: list[float]  # of each timed round
    versions: dict[str, str]
    megabytes: float | None  # of all its processes together, at most; None: not weighed


class PeerFailed(Exception):
    """A peer that ended without an answer, with the last that it said."""


def pythons(given: Mapping[str, Path | None]) -> dict[str, Path]:
    """The interpreter of each peer that there is: the one given, or this one if it has the package."""
    here = {name: Path(sys.executable) for name, package in PEERS.items() if find_spec(package)}
    return here | {name: python for name, python in given.items() if python is not None}


def run(name: str, python: Path, folder: Path, limit: float, weigh: bool = False) -> Ran:
    """Let a peer do the work in ``folder``, see :class:`~benchmarks.peers.given.Given`, in at most ``limit`` seconds.

    weigh: look at its memory while it runs, which takes a little of its time.
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # Not resolved: a virtual environment's python is a link to one outside it.
    command = [str(python.absolute()), "-m", f"benchmarks.peers.{name}", str(folder)]
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(
            command, env=environment, cwd=ROOT, text=True, stdout=pipe, stderr=pipe, start_new_session=True
        ) as process,
        Footprint(process.pid, every=0.5 if weigh else None) as footprint,
    ):
        try:
            out, err = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
            raise PeerFailed(f"gave no answer in {limit:g} s") from None
    answers = [line for line in out.splitlines() if line.startswith('{"seconds"')]
    if process.returncode or not answers:
        said = [line for line in err.splitlines() if line.strip()] or ["nothing"]
        raise PeerFailed(f"ended with code {process.returncode}, saying: {said[-1].strip()[:200]}")
    answer = json.loads(answers[-1])
    return Ran(answer["seconds"], answer["versions"], footprint.peak if weigh else None)
