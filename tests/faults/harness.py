"""Lets a schedule happen to a real run, and holds the outcome against the undisturbed one.

What must be true: each launch ends by itself or by the fault, with no traceback and with a documented message where it
ends with an error; and the run comes to the bits and rows of the undisturbed run, at the latest when it is resumed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from engine.record.run_folder import RunFolder
from engine.run.run import run
from tests.faults import inject
from tests.faults.cluster import Nodes
from tests.faults.schedules import Damage, Fault, Schedule
from tests.faults.workloads import WORKLOADS

ACTORS = ("execution.cpus_per_actor=1", "execution.block_timeout=6", "execution.start_timeout=40")
ENOUGH = "200M"  # of a run's own disk, while it is not to be full
PATIENCE = 180.0  # seconds that a launch may take
OWN = {  # columns that say how a run went, and not what it came to
    "rounds": ["seconds", "evaluation_seconds"],
    "clients": ["seconds", "actor"],
    "evaluations": [],
    "personal": [],
    "exchanges": [],
    "failures": [],
}
DOCUMENTED = {  # what a launch may end with, by its fault; killed processes say nothing
    "interrupt": r"continue with: fedskew resume|stopped",
    "kill driver": r"error: the driver actor died .*; continue with: fedskew resume",
    "lose node": r"error: .*(client state was lost with the node that held it; resume from the last checkpoint"
    r"|could not start within .*; lower execution.actors)",
    "file limit": r"error: .* cannot be written \(File too large\)",
    # States on disk are projected before they are written.
    "small disk": r"error: .* (cannot be written \(No space left on device\)|make room, or put the run on another)",
    "fsync": re.escape(inject.MESSAGES["fsync"]),
    "replace": re.escape(inject.MESSAGES["replace"]),
    # It is raised once, so of clients in one pass it is nobody's when each is tried alone.
    "raise": rf"error: (client \d+ failed in round \d+|round .* failed together, and none of them alone): "
    rf"{inject.MESSAGES['raise']}",
    "nan": r"error: client \d+ diverged in round \d+: its weights are not finite",
}


@dataclass
class Launch:
    """How one call of the command line ended."""

    words: str
    fault: str
    happened: bool
    code: int
    seconds: float
    message: str


@dataclass
class Outcome:
    """Of a schedule."""

    seed: int
    told: str
    faults: list[str]
    launches: list[Launch] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)


def reference(workload: str, folder: Path) -> RunFolder:
    """The undisturbed run, in process; once for each workload."""
    path = folder / "undisturbed" / workload.replace(" ", "-")
    found = RunFolder(path)
    if not (found.has_experiment() and found.summary().get("status") == "finished"):
        run(WORKLOADS[workload], path)
    return found


def happen(schedule: Schedule, folder: Path, nodes: Nodes | None = None) -> Outcome:
    """A schedule's launches, in ``folder``, which also keeps the undisturbed runs; ``nodes``: where actors run."""
    began = time.monotonic()
    outcome = Outcome(schedule.seed, schedule.told(), [fault.kind for fault in schedule.faults])
    undisturbed = reference(schedule.workload, folder)
    work = folder / f"schedule-{schedule.seed}"
    work.mkdir(parents=True)
    disk = work
    if any(fault.kind == "small disk" for fault in schedule.faults):
        disk = work / "disk"
        disk.mkdir()  # stays an ordinary folder where mounting is not allowed
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ENOUGH}", "tmpfs", str(disk)]
        subprocess.run(mount, check=False, capture_output=True)
    course = _Course(schedule, work, disk / "run", nodes, outcome)
    try:
        for fault in schedule.faults:
            course.launch(fault)
        for _ in range(3):
            if course.finished:
                break
            course.launch(None)
        outcome.problems += course.problems or differences(undisturbed, RunFolder(course.run))
    finally:
        if os.path.ismount(disk):
            subprocess.run(["umount", str(disk)], check=False)
        if nodes is not None:
            nodes.repair()
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def differences(expected: RunFolder, found: RunFolder) -> list[str]:
    """Between an undisturbed run and another one, beyond what they took."""
    before, after = expected.summary(), found.summary()
    problems = [
        f"{name} is {after.get(name)}, undisturbed {before[name]}"
        for name in ("status", "weights_sha256", "states_sha256", "rounds", "accuracy")
        if after.get(name) != before[name]
    ]
    for table, columns in OWN.items():
        one, other = (pd.DataFrame(folder.frame(table)).drop(columns=columns) for folder in (expected, found))
        if not one.equals(other):
            problems.append(f"{table}.parquet differs: {len(other)} rows, undisturbed {len(one)}")
    return problems


class _Course:
    def __init__(self, schedule: Schedule, work: Path, run: Path, nodes: Nodes | None, outcome: Outcome) -> None:
        self.run = run
        self.problems: list[str] = []
        self._schedule = schedule
        self._work = work
        self._nodes = nodes
        self._outcome = outcome
        self._rng = random.Random(f"course {schedule.seed}")
        self._config = work / "experiment.yaml"
        self._config.write_text(WORKLOADS[schedule.workload].to_yaml())
        self._logged = 0  # characters of the log that are of launches before
        self._rounds = sum(stage.rounds for stage in WORKLOADS[schedule.workload].chain)

    @property
    def finished(self) -> bool:
        folder = RunFolder(self.run)
        with suppress(Exception):
            return folder.has_experiment() and folder.summary().get("status") == "finished"
        return False

    def launch(self, fault: Fault | None) -> None:
        """Run or resume, with a fault or to the end."""
        if self.finished:
            return
        on_actors = [f"execution.actors={min(3, self._nodes.cpus)}", *ACTORS] if self._nodes is not None else []
        if RunFolder(self.run).has_experiment():
            words = ["resume", str(self.run), *on_actors]
        else:
            words = ["run", str(self._config), "--out", str(self.run), *on_actors]
        limit, environment = 0, dict(os.environ)
        token: Path | None = None
        if fault is not None and fault.kind == "file limit":
            limit = fault.number * 1000
        if fault is not None and fault.kind == "small disk":
            self._resize(f"{self._used() + fault.number * 8}k")
        if fault is not None and fault.kind in inject.MESSAGES:
            planted = inject.planted(fault.kind, fault.number, self._work)  # type: ignore[arg-type]
            environment |= planted.environment()
            token = Path(planted.token)
        address = "-" if self._nodes is None else self._nodes.address
        if self._nodes is not None and token is None:
            words += ["--address", address]
        self._logged = 0
        self._logged = len(self._log())
        command = [sys.executable, "-m", "tests.faults.child", str(limit), address if token else "-", *words]
        began = time.monotonic()
        with open(self._work / "said.txt", "w+") as said:
            process = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
            try:
                happened = self._disturb(process, fault)
                code = process.wait(max(1.0, began + PATIENCE - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code, happened = process.wait(), True
                self.problems.append(f"{' '.join(words[:1])} did not end within {PATIENCE:g} s")
            said.seek(0)
            text = said.read()
        self._resize(ENOUGH)
        if token is not None:
            happened = not token.exists()
            token.unlink(missing_ok=True)
        if fault is not None and fault.kind in ("file limit", "small disk"):
            happened = "cannot be written" in text
        message = next((line for line in text.splitlines() if "error:" in line), "")
        kind = fault.kind if fault else ""
        seconds = round(time.monotonic() - began, 1)
        self._outcome.launches.append(Launch(words[0], kind, happened, code, seconds, message[:300]))
        self._judge(fault, code, text)
        if fault is not None and not self.finished:
            self._damage(fault.damage)

    def _judge(self, fault: Fault | None, code: int, text: str) -> None:
        """Whether a launch ended as it is documented."""
        kind = fault.kind if fault else ""
        flat = " ".join(text.split())
        if "Traceback" in text:
            self.problems.append(f"a traceback after {kind or 'nothing'}: {flat[-300:]}")
        elif code == 0 or (kind == "kill" and code == -signal.SIGKILL):
            return
        elif kind not in DOCUMENTED or not re.search(DOCUMENTED[kind], flat):
            self.problems.append(f"exit {code} after {kind or 'nothing'}: {flat[-300:]}")

    # --- faults from outside --------------------------------------------------------------------------

    def _disturb(self, process: subprocess.Popen[bytes], fault: Fault | None) -> bool:
        """Do what is to be done to a process, at its moment."""
        if fault is None or not self._await(process, fault.moment):
            return False
        if fault.kind in ("kill", "interrupt"):
            process.send_signal(signal.SIGKILL if fault.kind == "kill" else signal.SIGINT)
        elif fault.kind in ("kill client", "hang client"):
            number = signal.SIGKILL if fault.kind == "kill client" else signal.SIGSTOP
            return self._kill(self._victims(process, r"actor \d+: process (\d+)"), fault.number, number)
        elif fault.kind == "kill driver":
            return self._kill(self._victims(process, r"driver: process (\d+)"), 0, signal.SIGKILL)
        elif fault.kind == "lose node":
            assert self._nodes is not None
            self._nodes.lose()
        else:
            return False
        return True

    def _await(self, process: subprocess.Popen[bytes], moment: float) -> bool:
        """Until a part of the rounds is checkpointed; False if the process has ended before."""
        if moment < 0:
            time.sleep(-moment * 10)
            return process.poll() is None
        while process.poll() is None:
            newest = max((int(path.stem.rpartition("-")[2]) for path in self._checkpoints()), default=0)
            if newest >= moment * self._rounds:
                time.sleep(self._rng.uniform(0, 0.1))
                return process.poll() is None
            time.sleep(0.01)
        return False

    def _victims(self, process: subprocess.Popen[bytes], pattern: str) -> list[str]:
        """Processes that the log of this launch names, as soon as it names one."""
        while process.poll() is None:
            if found := re.findall(pattern, self._log()):
                return found
            time.sleep(0.05)
        return []

    @staticmethod
    def _kill(pids: list[str], which: int, number: signal.Signals) -> bool:
        """Send a signal to one of these processes, if there is one that lives."""
        if not pids:
            return False
        with suppress(ProcessLookupError):
            os.kill(int(pids[which % len(pids)]), number)
            return True
        return False

    def _log(self) -> str:
        """Of this launch."""
        path = self.run / "log.txt"
        return path.read_text()[self._logged :] if path.exists() else ""

    def _resize(self, size: str) -> None:
        """Of the run's own disk, if it has one."""
        folder = self.run.parent
        if os.path.ismount(folder):
            subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)

    def _used(self) -> int:
        """Kilobytes of the disk."""
        return shutil.disk_usage(self.run.parent).used // 1024

    # --- damage --------------------------------------------------------------------------------------

    def _checkpoints(self) -> list[Path]:
        return sorted((self.run / "checkpoints").glob("[0-9]*.safetensors"))

    def _damage(self, damage: Damage) -> None:
        """To the newest checkpoint, or beside it."""
        checkpoints = self._checkpoints()
        states = sorted((self.run / "checkpoints" / "states").glob("[0-9a-f]*.safetensors"))
        if damage == "leftovers" and self.run.exists():
            (self.run / ".rounds.parquet.1.tmp").write_bytes(b"half a table")
            (self.run / "checkpoints").mkdir(exist_ok=True)
            (self.run / "checkpoints" / ".00-train-000099.safetensors.1.tmp").write_bytes(b"half a checkpoint")
        if damage == "lose state" and states:
            self._rng.choice(states).unlink()
        if not checkpoints or damage not in ("truncate", "flip", "empty"):
            return
        content = bytearray(checkpoints[-1].read_bytes())
        if damage == "flip":
            for _ in range(3):
                content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
        kept = {"truncate": self._rng.randrange(len(content) or 1), "empty": 0}.get(damage, len(content))
        checkpoints[-1].write_bytes(content[:kept])
