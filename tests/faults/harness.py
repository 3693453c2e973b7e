"""Lets a schedule happen to a real run, and holds the outcome against the undisturbed one.

What must be true: each launch ends by itself or by the fault, with no traceback and with a documented message where it
ends with an error; and the run comes to the bits and rows of the undisturbed run, at the latest when it is resumed.
"""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from engine.record.columns import HOW_IT_WENT
from engine.record.run_folder import RunFolder
from engine.run.run import run
from tests.faults import inject
from tests.faults.cluster import Nodes
from tests.faults.launching import Ended, Launch, Outcome, Process, command_of, launch, message_of, send
from tests.faults.schedules import Damage, Fault, Schedule
from tests.faults.workloads import WORKLOADS

ACTORS = ("execution.cpus_per_actor=1", "execution.block_timeout=6", "execution.start_timeout=40")
ENOUGH = "200M"  # of a run's own disk, while it is not to be full
PATIENCE = 300.0  # seconds that a launch may take
OWN = {  # columns that say how a run went, and not what it came to
    "rounds": [name for name in HOW_IT_WENT if name != "actor"],
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


def reference(workload: str, folder: Path) -> RunFolder:
    """The undisturbed run, in process; once for each workload."""
    path = folder / "undisturbed" / workload.replace(" ", "-")
    found = RunFolder(path)
    if not (found.has_experiment() and found.summary().get("status") == "finished"):
        with inject.counting(events_of(found)):
            run(WORKLOADS[workload], path)
    return found


def events_of(undisturbed: RunFolder) -> Path:
    """Where the events of an undisturbed run were counted."""
    return undisturbed.path.with_name(f"{undisturbed.path.name}-events")


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
    events = inject.counts(events_of(undisturbed))
    course = _Course(schedule, work, disk / "run", nodes, events, outcome)
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
    def __init__(
        self, schedule: Schedule, work: Path, run: Path, nodes: Nodes | None, events: dict[str, int], outcome: Outcome
    ) -> None:
        self.run = run
        self.problems: list[str] = []
        self._schedule = schedule
        self._work = work
        self._nodes = nodes
        self._undisturbed = events
        self._outcome = outcome
        self._rng = random.Random(f"course {schedule.seed}")
        self._config = work / "experiment.yaml"
        self._config.write_text(WORKLOADS[schedule.workload].to_yaml())

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
        words = [str(self._config), "--out", str(self.run)]
        words = ["resume", str(self.run)] if RunFolder(self.run).has_experiment() else ["run", *words]
        if self._nodes is not None:
            words += [f"execution.actors={min(3, self._nodes.cpus)}", *ACTORS, "--address", self._nodes.address]
        inside = fault is not None and fault.kind in inject.MESSAGES
        deed = None if fault is None or inside else lambda process, waiting: self._happens(fault, process, waiting)
        delay = -fault.moment / 10 if fault is not None and fault.moment < 0 else 0.0
        ended = launch(words, self._work / "said.txt", self._planted(fault), deed, delay, patience=PATIENCE)
        self._resize(ENOUGH)
        kind = fault.kind if fault else ""
        happened = ended.happened
        if kind in ("file limit", "small disk"):
            happened = "make room" in ended.text
        told = message_of(ended.text)
        self._outcome.launches.append(Launch(words[0], kind, happened, ended.code, ended.seconds, told))
        self._judge(fault, ended)
        if fault is not None and not self.finished:
            self._damage(fault.damage)

    def _planted(self, fault: Fault | None) -> inject.Fault | None:
        """A fault's moment as an event: the same part of those of the undisturbed run."""
        if fault is None:
            return None
        role: inject.Role | None = None  # where clients are, and who writes, depends on where the run is
        if fault.kind in ("kill client", "hang client", "kill driver"):
            role = "worker"
        at = max(1, math.ceil(fault.moment * self._undisturbed[f"command-{fault.event}"]))
        deed: Any = fault.kind if fault.kind in inject.MESSAGES else "nothing" if fault.moment < 0 else "wait"
        return inject.Fault(deed, fault.event, at, str(self._work / "events"), role)

    def _judge(self, fault: Fault | None, ended: Ended) -> None:
        """Whether a launch ended as it is documented."""
        kind = fault.kind if fault else ""
        flat = " ".join(ended.text.split())
        if not ended.in_time:
            self.problems.append(f"did not end within {PATIENCE:g} s after {kind or 'nothing'}: {flat[-300:]}")
        elif "Traceback" in ended.text:
            self.problems.append(f"a traceback after {kind or 'nothing'}: {flat[-300:]}")
        elif ended.code == 0 or (kind == "kill" and ended.code in (-signal.SIGKILL, 128 + signal.SIGKILL)):
            return
        elif kind not in DOCUMENTED or not re.search(DOCUMENTED[kind], flat):
            self.problems.append(f"exit {ended.code} after {kind or 'nothing'}: {flat[-300:]}")

    # --- faults from outside --------------------------------------------------------------------------

    def _happens(self, fault: Fault, process: Process, waiting: int | None) -> bool:
        """Do what is to be done, while the process ``waiting`` stands still, if it is not the start."""
        there = [] if waiting is None else [waiting]
        if fault.kind == "kill":
            return send([command_of(process)], signal.SIGKILL)
        if fault.kind == "interrupt":
            process.send_signal(signal.SIGINT)
        elif fault.kind in ("kill client", "kill driver"):
            return send(there, signal.SIGKILL)
        elif fault.kind == "hang client":
            return send(there, signal.SIGSTOP)
        elif fault.kind == "file limit":
            for pid in there:
                inject.limit_files(pid, fault.number * 40)
        elif fault.kind == "small disk":
            self._resize(f"{self._used() + fault.number * 2}k")
        elif fault.kind == "lose node":
            assert self._nodes is not None
            self._nodes.lose()
        return True

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
