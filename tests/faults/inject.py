"""Faults that happen inside a process, at an event of its own: a file that is flushed, or a client that begins.

Events are counted over all processes of a schedule's launches, so that the moment of a fault can be drawn from what an
undisturbed run comes to (:func:`counting`), and is reached on any machine. At its event a process raises, or it waits
at a gate while the harness does something to it, to another process or to files, and goes on if it can.

:func:`install` reads from the environment what is to happen. ``startup/sitecustomize.py`` calls it in each process of a
launch, and in the workers that it asks of a Ray that was there before.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

VARIABLE = "FEDSKEW_TEST_FAULT"
ROOT = Path(__file__).parents[2]
STARTUP = Path(__file__).parent / "startup"
PATIENCE = 60.0  # seconds at a gate that nobody opens

Deed = Literal["nothing", "wait", "raise", "nan", "fsync", "replace"]
Event = Literal["begun", "fsync", "replace"]  # a client's round; a file or folder that is flushed; one put in its place
Role = Literal["command", "worker"]
EVENTS: tuple[Event, ...] = ("begun", "fsync", "replace")
MESSAGES: dict[str, str] = {  # a piece of what the user is told
    "raise": "RuntimeError: a row that does not exist",
    "nan": "diverged in round",
    "fsync": "cannot be written (No space left on device)",
    "replace": "cannot be written (Input/output error)",
}
_replace = os.replace  # files of the harness's own are no events


@dataclass(frozen=True)
class Fault:
    """Something that happens once, at the ``at``-th event (from 1) of those processes, to whichever comes first."""

    deed: Deed
    event: Event
    at: int
    folder: str  # where events are counted; "armed" is there until the fault has happened
    role: Role | None = None  # whose events; none: of all
    heartbeat: float = 0.0  # seconds of a store's leases, which are given up after five beats; 0: as they are

    def environment(self) -> dict[str, str]:
        path = [str(STARTUP), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": os.pathsep.join(path)}

    def arm(self) -> None:
        Path(self.folder).mkdir(exist_ok=True)
        (Path(self.folder) / "waiting").unlink(missing_ok=True)
        (Path(self.folder) / "armed").touch()

    @property
    def has_happened(self) -> bool:
        return not (Path(self.folder) / "armed").exists()

    @property
    def waiting(self) -> int | None:
        """The process that waits at the gate."""
        path = Path(self.folder) / "waiting"
        return int(path.read_text()) if path.exists() else None

    def let_go(self) -> None:
        (Path(self.folder) / "waiting").unlink(missing_ok=True)


def order(folder: Path) -> list[str]:
    """All events of launches without a fault, as they came: ``worker-fsync``, ..."""
    return (folder / "order").read_text().split()


def counts(folder: Path) -> dict[str, int]:
    """Events so far, by role and event: ``worker-fsync``."""
    return {path.name: path.stat().st_size for path in folder.glob("*-*") if path.name.split("-")[1] in EVENTS}


@contextmanager
def counting(folder: Path) -> Iterator[None]:
    """Count the events of this process, as those of a command."""
    folder.mkdir(parents=True)
    process = _Process(Fault("nothing", "begun", 0, str(folder)), "command")
    from engine.client.trainer import Trainer

    before = os.fsync, os.replace, Trainer._begun
    try:
        process.watch_files()
        process.watch_clients(sys.modules["engine.client.trainer"])
        yield
    finally:
        os.fsync, os.replace, Trainer._begun = before  # type: ignore[method-assign]


# --- in the process that is disturbed -------------------------------------------------------------------------


def install() -> None:
    """Let this process count its events and have the fault of the environment, if there is one."""
    role = _role()
    if VARIABLE not in os.environ or role is None:
        return
    process = _Process(Fault(**json.loads(os.environ[VARIABLE])), role)
    process.watch_files()
    process.watch_clock()
    _after_import("engine.client.trainer", process.watch_clients)
    if role == "command":
        _after_import("ray", process.tell_workers)
        _after_import("engine.record.store.stage_store", process.hurry)


def _role() -> Role | None:
    words = " ".join(sys.orig_argv)
    if "default_worker.py" in words:
        return "worker"
    return "command" if "fedskew.cli" in words else None


class _Process:
    """What is changed in one process."""

    def __init__(self, fault: Fault, role: Role) -> None:
        self._fault = fault
        self._role = role
        self._folder = Path(fault.folder)

    def event(self, event: Event) -> bool:
        """Count an event; wait at the gate if it is the one. True: it is to go wrong."""
        fault = self._fault
        mine = fault.event == event and fault.role in (None, self._role) and fault.deed != "nothing"
        if fault.deed == "nothing":
            with open(self._folder / "order", "ab", buffering=0) as file:
                file.write(f"{self._role}-{event}\n".encode())
        with open(self._folder / f"{self._role}-{event}", "ab", buffering=0) as file:
            file.write(b".")
            seen = os.fstat(file.fileno()).st_size
        if not mine:
            return False
        if fault.role is None:
            seen = sum(number for name, number in counts(self._folder).items() if name.endswith(event))
        if seen < fault.at or not self._takes():
            return False
        if fault.deed != "wait":
            return True
        gate = self._folder / "waiting"
        gate.with_name("told").write_text(str(os.getpid()))
        _replace(gate.with_name("told"), gate)
        deadline = time.monotonic() + PATIENCE
        while gate.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        return False

    def _takes(self) -> bool:
        """The fault is this process's, and nobody else's."""
        try:
            os.unlink(self._folder / "armed")
        except FileNotFoundError:
            return False
        return True

    def watch_files(self) -> None:
        for name, code in (("fsync", errno.ENOSPC), ("replace", errno.EIO)):
            setattr(os, name, self._watched(getattr(os, name), name, code))  # type: ignore[arg-type]

    def _watched(self, original: Callable[..., Any], event: Event, code: int) -> Callable[..., Any]:
        def watched(*args: Any, **named: Any) -> Any:
            if self.event(event):
                raise OSError(code, os.strerror(code))
            return original(*args, **named)

        return watched

    def watch_clients(self, module: ModuleType) -> None:
        import torch

        original, fault = module.Trainer._begun, self._fault

        def watched(trainer: Any, task: Any) -> Any:
            ours = original(trainer, task)
            if self.event("begun"):
                if fault.deed == "raise":
                    raise RuntimeError("a row that does not exist")
                ours.start = ours.start._replace(weights=ours.start.weights * torch.nan)
            return ours

        module.Trainer._begun = watched

    def watch_clock(self) -> None:
        """Let the wall clock be as many seconds off as the file ``clock`` says, from when it is there."""
        original, path = time.time, str(self._folder / "clock")

        def off() -> float:
            try:
                with open(path) as file:
                    return original() + float(file.read() or 0)
            except OSError:
                return original()

        time.time = off

    def tell_workers(self, module: Any) -> None:
        """Workers of a Ray that is there already do not have the environment of this process."""
        original, fault = module.init, self._fault

        def init(address: str | None = None, **named: Any) -> Any:
            if address != "local":
                named["runtime_env"] = {"env_vars": fault.environment()}
            return original(address, **named)

        module.init = init

    def hurry(self, module: ModuleType) -> None:
        """Give silent holders of leases up soon."""
        original, beat = module.StageStore.__init__, self._fault.heartbeat

        def init(store: Any, *args: Any, **named: Any) -> None:
            original(store, *args, **{"heartbeat": beat, "patience": 5 * beat, **named})

        if beat:
            module.StageStore.__init__ = init


def _after_import(name: str, patch: Callable[[ModuleType], None]) -> None:
    if name in sys.modules:
        patch(sys.modules[name])
    else:
        sys.meta_path.insert(0, _AfterImport(name, patch))


class _AfterImport(MetaPathFinder):
    """Changes a module once it has been executed."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._patch = patch

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        original, patch = spec.loader.exec_module, self._patch

        def exec_module(module: ModuleType) -> None:
            original(module)
            patch(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def limit_files(pid: int, size: int) -> None:
    """Let no file that a process writes become longer."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, size))
