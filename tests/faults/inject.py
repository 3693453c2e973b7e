"""Faults that are raised inside a process: a write that fails, a client that raises, diverges or does not come back.

:func:`install` reads which from the environment, so that it can be called in this process and, as Ray's setup hook, in
each worker process. A fault happens once over all processes of a run: whoever gets it first takes its file away.
"""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

VARIABLE = "FEDSKEW_TEST_FAULT"
Kind = Literal["raise", "nan", "fsync", "replace"]
MESSAGES: dict[Kind, str] = {  # a piece of what the user is told
    "raise": "RuntimeError: a row that does not exist",
    "nan": "diverged in round",
    "fsync": "cannot be written (No space left on device)",
    "replace": "cannot be written (Input/output error)",
}


@dataclass(frozen=True)
class Fault:
    """The ``at``-th event of a kind, from 1, that this process sees."""

    kind: Kind
    at: int
    token: str  # a file that is there until the fault has happened

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}

    def happens(self) -> bool:
        try:
            os.unlink(self.token)
        except FileNotFoundError:
            return False
        return True


def install() -> None:
    """Let this process have the fault of the environment, if there is one."""
    if VARIABLE not in os.environ:
        return
    fault = Fault(**json.loads(os.environ[VARIABLE]))
    if fault.kind in ("fsync", "replace"):
        _spoil_writes(fault)
    else:
        _spoil_clients(fault)


def _spoil_writes(fault: Fault) -> None:
    original, seen = getattr(os, fault.kind), 0
    code = errno.ENOSPC if fault.kind == "fsync" else errno.EIO

    def spoilt(*args: Any, **named: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen >= fault.at and fault.happens():
            raise OSError(code, os.strerror(code))
        return original(*args, **named)

    setattr(os, fault.kind, spoilt)


def _spoil_clients(fault: Fault) -> None:
    import torch

    from engine.client.client_round import ClientRound
    from engine.client.trainer import Trainer

    original, seen = Trainer._begun, 0

    def spoilt(trainer: Trainer, task: ClientRound) -> ClientRound:
        nonlocal seen
        seen += 1
        ours = original(trainer, task)
        if seen >= fault.at and fault.happens():
            if fault.kind == "raise":
                raise RuntimeError("a row that does not exist")
            ours.start = ours.start._replace(weights=ours.start.weights * torch.nan)
        return ours

    Trainer._begun = spoilt  # type: ignore[method-assign]


def planted(kind: Kind, at: int, folder: Path) -> Fault:
    """A fault that is still to happen."""
    token = folder / "fault"
    token.touch()
    return Fault(kind, at, str(token))
