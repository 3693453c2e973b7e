"""Lets a schedule happen to a real sweep, and holds the outcome against the undisturbed one.

What must be true: each launch ends with a documented exit code, one sentence where that is not 0, and no traceback;
nothing that it started stays behind; and the sweep comes to its planned trials, at the latest when it is resumed.

* A grid, and ASHA with one trial at a time, come to the tables, weights and states of the undisturbed sweep.
* A population copies at random (Ray Tune draws without a seed), and a searcher that is begun anew after a resume draws
  other settings than one that was not. Of these each trial is held against the same trial run by itself, as its record
  has it (``fedskew run SWEEP:NNNNN``), and each copy against the weights it is said to go on from.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd

from engine.record.columns import HOW_IT_WENT
from engine.record.run_folder import RunFolder
from engine.results import load as load_results
from engine.run.local_driver import LocalDriver
from engine.run.recording import weights_sha256
from engine.run.run import Run
from engine.sweeps.folder import SweepFolder, TrialRecord
from tests.faults import inject, launching, sweep_workloads
from tests.faults.launching import (
    Launch,
    Outcome,
    Process,
    bad_end,
    command_of,
    gone,
    launch,
    message_of,
    processes_of,
    send,
)
from tests.faults.sweep_schedules import Fault, Schedule

FILE = Path(sweep_workloads.__file__)
TRIALS = {"grid": 4, "asha": 5, "pbt": 4, "optuna": 5}
HEARTBEAT = 0.4  # seconds of the store's leases
STOP = 4.0  # seconds that a process stands still: twice what a lease lasts
SLACK = 60.0  # seconds after which nothing of a launch may be there any more
PATIENCE = 600.0  # seconds that a launch may take
ENOUGH = "400M"  # of a sweep's own disk, while it is not to be full
OWN_ROWS = [*HOW_IT_WENT, "reused"]  # columns of how a trial went, not of what it came to
OWN_TRIALS = ["seconds", "folder", "rounds_computed"]
RAY = {
    "kill raylet": "raylet/raylet ",
    "stop raylet": "raylet/raylet ",
    "kill gcs": "gcs/gcs_server ",
    "stop gcs": "gcs/gcs_server ",
    "kill agent": "ray::RuntimeEnvAgent",
}


def happen(schedule: Schedule, folder: Path, events: list[str] | None = None) -> Outcome:
    """A schedule's launches, in ``folder``, which also keeps the undisturbed sweeps.

    ``events``: of the undisturbed sweep, in order; then it is not computed, and each trial is compared with the same
    run by itself.
    """
    began = time.monotonic()
    undisturbed = None
    if events is None:
        undisturbed = reference(schedule.workload, folder)
        events = inject.order(undisturbed / "events")
    outcome = Outcome(schedule.seed, schedule.told(), [fault.kind for fault in schedule.faults])
    work = folder / f"sweep-schedule-{schedule.seed}"
    _clear(work)
    work.mkdir(parents=True)
    with _disk(work / "disk", any(fault.kind == "small disk" for fault in schedule.faults)) as disk:
        course = _Course(schedule, work, disk, events, outcome)
        try:
            for fault in [*schedule.faults, None, None, None]:
                if not course.finished:
                    course.launch(fault)
            outcome.problems += _compared(schedule.workload, undisturbed, disk / "sweep", work)
        except Exception as error:  # of reading what is left
            outcome.problems.append(f"{type(error).__name__}: {' '.join(str(error).split())}"[:400])
        finally:
            gone(course.events, 0.0)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def _clear(work: Path) -> None:
    """Remove what a schedule left that was interrupted."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in mounted:
        if Path(place).is_relative_to(work):
            subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(work, ignore_errors=True)


def reference(workload: str, folder: Path) -> Path:
    """The folder of the undisturbed sweep and its events; computed once."""
    place = folder / "undisturbed" / f"sweep-{workload}"
    if not (place / "ended").exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        counted = inject.Fault("nothing", "begun", 0, str(place / "events"), heartbeat=HEARTBEAT)
        words = _words(workload, place / "sweep", 1 if workload == "asha" else 2)
        ended = launch(words, place / "said.txt", counted, lambda process, pid: False, patience=PATIENCE)
        if ended.code:
            raise RuntimeError(f"the undisturbed sweep ended with {ended.code}: {ended.text[-400:]}")
        (place / "ended").touch()
    return place


def _words(workload: str, sweep: Path, concurrent: int) -> list[str]:
    return ["sweep", f"{FILE}:{workload}", "--out", str(sweep), "--mode", "inside"] + (
        [] if workload == "pbt" else ["--concurrent", str(concurrent)]
    )


@contextmanager
def _disk(path: Path, small: bool) -> Iterator[Path]:
    """A folder, on a file system of its own if it is to get full."""
    path.mkdir()
    if small:  # stays an ordinary folder where mounting is not allowed
        mount = ["mount", "-t", "tmpfs", "-o", f"size={ENOUGH}", "tmpfs", str(path)]
        subprocess.run(mount, check=False, capture_output=True)
    try:
        yield path
    finally:
        if os.path.ismount(path):
            subprocess.run(["umount", "--lazy", str(path)], check=False)


class _Course:
    def __init__(self, schedule: Schedule, work: Path, disk: Path, events: list[str], outcome: Outcome) -> None:
        self.events = work / "events"
        self._schedule = schedule
        self._work = work
        self._disk = disk
        self._sweep = disk / "sweep"
        self._store = disk / "store"
        self._undisturbed = events
        self._outcome = outcome
        self._read_only: Path | None = None

    @property
    def finished(self) -> bool:
        """Every trial has ended, and the last launch said so, with a report."""
        records, launches = self._records(), self._outcome.launches
        if not launches or launches[-1].code != 0 or not (self._sweep / "report" / "report.html").exists():
            return False
        return len(records) == TRIALS[self._schedule.workload] and all(
            record.status in ("finished", "stopped") for record in records
        )

    def _records(self) -> list[TrialRecord]:
        with suppress(Exception):
            return SweepFolder(self._sweep).records()
        return []

    def launch(self, fault: Fault | None) -> None:
        """Begin the sweep or go on with it, with a fault or to the end."""
        number, schedule = len(self._outcome.launches), self._schedule
        cores = schedule.cores[min(number, len(schedule.cores) - 1)]
        said = self._work / f"said-{number}.txt"
        planted = self._planted(fault)
        delay = -fault.moment / 10 if fault and fault.moment < 0 else 0.0
        inside = fault is not None and planted.deed != "wait" and not delay
        deed = None if inside else lambda process, pid: fault is not None and self._happens(fault, process, pid)
        words, *rest = self._next(number)
        try:
            ended = launch([words, *rest], said, planted, deed, delay, cores, PATIENCE)
        finally:
            self._repair()
        kind = fault.kind if fault else ""
        self._outcome.launches.append(
            Launch(words, kind, ended.happened, ended.code, ended.seconds, message_of(ended.text))
        )
        wrong = bad_end(ended, killed=kind == "kill" and ended.happened)
        if fault is None and ended.code and not self._schedule.at_once:  # then somebody may still write there
            wrong = wrong or f"exit {ended.code}: {message_of(ended.text)}"
        if wrong:
            self._outcome.problems.append(f"{words} after {kind or 'nothing'}: {wrong}")
        self._leave(kind)

    def _next(self, number: int) -> list[str]:
        """The words of the next launch: again as it was called, or a resume."""
        schedule = self._schedule
        failed = any(record.status == "failed" for record in self._records())
        if (self._sweep / "sweep.yaml").exists() and (failed or schedule.at_once or schedule.workload == "pbt"):
            return ["resume", str(self._sweep), "--with", str(FILE), *(["--retry-failed"] if failed else [])]
        return _words(schedule.workload, self._sweep, schedule.concurrent[min(number, len(schedule.concurrent) - 1)])

    def _planted(self, fault: Fault | None) -> inject.Fault:
        """A fault's moment as an event: the next of its kind after that part of the undisturbed sweep's."""
        if fault is None or fault.moment < 0:
            return inject.Fault("nothing", "begun", 0, str(self.events), heartbeat=HEARTBEAT)
        deed: Any = fault.kind if fault.kind in ("fsync", "replace", "raise") else "wait"
        name, before = f"{fault.role}-{fault.event}", int(fault.moment * len(self._undisturbed))
        at = min(self._undisturbed[:before].count(name) + 1, self._undisturbed.count(name))
        return inject.Fault(deed, fault.event, at, str(self.events), fault.role, HEARTBEAT)

    def _leave(self, kind: str) -> None:
        """See that nothing of the launch stays behind; one that is resumed at once has it seen to in the next."""
        if self._schedule.at_once and kind == "kill":
            return
        left = gone(self.events, SLACK)
        if left:
            named = ", ".join(sorted({" ".join(words.split()[-12:])[-120:] for words in left.values()}))
            self._outcome.problems.append(f"{SLACK:g} s after {kind or 'nothing'} there still were: {named}")

    # --- deeds ----------------------------------------------------------------------------------------------

    def _happens(self, fault: Fault, process: Process, waiting: int | None) -> bool:
        """Do what is to be done; False if its victim is not there."""
        signals = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
        groups = {"ctrl-c": signal.SIGINT, "hang up": signal.SIGHUP}
        there = [] if waiting is None else [waiting]
        if fault.kind == "kill":  # with its parent, or that would see to it that nothing stays behind
            parents = [process.pid] if self._schedule.at_once else []
            return send([*parents, command_of(process)], signal.SIGKILL)
        if fault.kind in signals:
            process.send_signal(signals[fault.kind])
            return True
        if fault.kind in groups:
            os.killpg(process.pid, groups[fault.kind])
            return True
        if fault.kind in RAY:
            found = [pid for pid, words in processes_of(self.events).items() if RAY[fault.kind] in words]
            if fault.kind.startswith("stop"):
                return launching.stopped(found, STOP)
            return send(found, signal.SIGKILL)
        if fault.kind == "kill trial":
            return send(there, signal.SIGKILL)
        if fault.kind == "stop trial":
            return launching.stopped(there, STOP)
        if fault.kind == "stop command":
            return launching.stopped([pid for pid, w in processes_of(self.events).items() if "fedskew.cli" in w], STOP)
        return self._happens_to_files(fault, waiting)

    def _happens_to_files(self, fault: Fault, waiting: int | None) -> bool:
        rng = random.Random(fault.number)
        if fault.kind == "file limit" and waiting is not None:
            inject.limit_files(waiting, 100 * rng.randrange(1, 30))
            return True
        if fault.kind == "small disk" and os.path.ismount(self._disk):
            used = shutil.disk_usage(self._disk).used // 1024
            self._remount(self._disk, f"size={used + 4 * rng.randrange(20)}k")
            return True
        if fault.kind == "read-only":
            choice = {"store": self._store, "sweep": self._sweep}.get(
                target := rng.choice(("store", "sweep", "trials"))
            )
            self._read_only = choice or self._sweep / target
            if not self._read_only.exists():
                self._read_only = None
                return False
            subprocess.run(["mount", "--bind", str(self._read_only), str(self._read_only)], check=True)
            self._remount(self._read_only, "bind,ro")
            return True
        if fault.kind == "lose store":
            there = self._store.exists()
            for _ in range(5):  # somebody is writing there
                shutil.rmtree(self._store, ignore_errors=True)
            return there
        if fault.kind == "damage store":
            return damage(self._store, rng)
        if fault.kind == "clock jump":
            return self._jump(rng.choice((-1, 1)) * rng.choice((60.0, 3600.0, 2 * 86400.0)))
        return False

    def _jump(self, seconds: float) -> bool:
        """Let the clock be off, and what was written before be as much older or younger."""
        (self.events / "clock").write_text(str(seconds))
        for path in [*self._store.rglob("*")]:
            with suppress(OSError):
                at = path.stat().st_mtime - seconds
                os.utime(path, (at, at))
        return True

    def _remount(self, path: Path, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", str(path)], check=True)

    def _repair(self) -> None:
        """Let files be written again."""
        if self._read_only is not None:
            subprocess.run(["umount", "--lazy", str(self._read_only)], check=True)
            self._read_only = None
        if os.path.ismount(self._disk):
            self._remount(self._disk, f"size={ENOUGH}")


def damage(store: Path, rng: random.Random) -> bool:
    """Damage half of the entries of a store: a file cut or with other bits, or the manifest gone; False without any.

    Entries share files with the folders of trials: some are damaged there, too, others are not.
    """
    entries = sorted(path.parent for path in store.glob("??/*/*/manifest.json"))
    for entry in rng.sample(entries, (len(entries) + 1) // 2):
        with suppress(FileNotFoundError):  # discarded meanwhile
            what = rng.choice(("truncate", "flip", "manifest"))
            if what == "manifest":
                (entry / "manifest.json").unlink()
                continue
            path = rng.choice(sorted(path for path in entry.rglob("*") if path.is_file()))
            content = bytearray(path.read_bytes())
            if rng.random() < 0.5:
                path.unlink()
            if what == "flip":
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content[: rng.randrange(len(content)) if what == "truncate" else len(content)])
    return bool(entries)


# --- what it came to --------------------------------------------------------------------------------------------


def _compared(workload: str, undisturbed: Path | None, found: Path, work: Path) -> list[str]:
    records = SweepFolder(found).records()
    problems = [
        f"trial {record.trial} is {record.status} ({record.reason})"
        for record in records
        if record.status not in ("finished", "stopped")
    ]
    if len(records) != TRIALS[workload]:
        problems.append(f"{len(records)} trials, planned {TRIALS[workload]}")
    if problems:
        return problems
    if undisturbed is not None and workload in ("grid", "asha"):
        return differences(undisturbed / "sweep", found)
    settings = {json.dumps(record.setting, sort_keys=True) for record in records}
    problems += [] if len(settings) == len(records) else ["settings were drawn twice"]
    return problems + [problem for record in records for problem in alone(found, record, work / "alone")]


def differences(expected: Path, found: Path) -> list[str]:
    """Between an undisturbed sweep and another one, beyond what they took."""
    before, after = SweepFolder(expected), SweepFolder(found)
    problems = []
    for record, other in zip(before.records(), after.records(), strict=True):
        for name in ("trial", "setting", "seed", "status", "reason", "rounds", "rounds_asked"):
            if getattr(record, name) != getattr(other, name):
                problems.append(
                    f"trial {record.trial}: {name} is {getattr(other, name)}, undisturbed {getattr(record, name)}"
                )
        problems += _unequal(before.run_folder(record.trial), after.run_folder(record.trial), record.trial)
    one, other = (load_results(path).trials.drop(columns=OWN_TRIALS) for path in (expected, found))
    return problems + ([] if one.equals(other) else ["the tables of trials differ"])


def _unequal(before: Any, after: Any, trial: str) -> list[str]:
    """What differs between the folders of two runs: weights, states, rows."""
    one, other = before.summary(), after.summary()
    problems = [
        f"trial {trial}: {name} is {other.get(name)}, should be {one[name]}"
        for name in ("weights_sha256", "states_sha256", "rounds", "accuracy")
        if other.get(name) != one[name]
    ]
    for table in before.tables:
        rows, others = (
            pd.DataFrame(folder.frame(table.name)).drop(columns=OWN_ROWS, errors="ignore") for folder in (before, after)
        )
        if not rows.equals(others):
            problems.append(f"trial {trial}: {table.name}.parquet has {len(others)} rows that differ from {len(rows)}")
    return problems


def alone(sweep: Path, record: TrialRecord, work: Path) -> list[str]:
    """What differs between a trial and the same run by itself, as its record has it."""
    folder = SweepFolder(sweep)
    experiment, stopped = folder.experiment(record.trial)
    copied = {entry["first_round"] - 1: entry["parent"] for entry in record.schedule if entry["parent"]}
    problems = []
    shutil.rmtree(work, ignore_errors=True)
    run = Run.open(experiment.replace({"execution.actors": 0}), work)
    assert isinstance(run.driver, LocalDriver)
    for until in [*sorted(copied), stopped]:
        while not run.finished and (until is None or run.round < until):
            run.advance(60.0, until)
        if until in copied and weights_sha256(*run.driver.driver.weights) != copied[until]:
            problems.append(f"trial {record.trial}: after round {until} it goes on from other weights than it says")
    run.close()
    return problems + _unequal(RunFolder(work), folder.run_folder(record.trial), record.trial)
