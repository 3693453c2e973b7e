"""Which Ray a run with actors uses, and whether it answers: asked without Ray, which takes minutes to give one up."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from engine.base.errors import ResourceError, one_line
from engine.base.opening import read_text

PATIENCE = 10.0  # seconds
CURRENT_CLUSTER = "ray_current_cluster"  # the file in which `ray start` leaves its address


def used(address: str | None) -> tuple[str, str]:
    """Return the address of the Ray that is used where ``address`` is asked for, and what gave it: option or variable.

    Empty where a Ray is started here.
    """
    variable = os.environ.get("RAY_ADDRESS", "")
    if variable and address in (None, "", "auto"):  # Ray, too, takes the variable before "auto"
        return ("" if variable == "local" else variable), one_line(f"RAY_ADDRESS={variable}")
    return ("" if address in (None, "local") else address), one_line(f"--address={address}")


def check_answers(address: str, given: str, patience: float = PATIENCE) -> None:
    """Raise :class:`ResourceError` where nothing listens at ``address``, which ``given`` gave, as :func:`used` says.

    Where "auto" finds nothing that ``ray start`` has left, Ray looks for itself.
    """
    there = current_cluster() if address == "auto" else address.removeprefix("ray://")
    if there is not None and not answers(there, patience):
        where = f" ({there})" if address == "auto" else ""
        raise ResourceError(f"{given}: nothing answers there{where} within {patience:g} s; {repair(given)}")


def repair(given: str) -> str:
    """Return what to do about an address that is of no use."""
    option = given.partition("=")[0]
    return f"start that Ray, or {'leave --address away' if option == '--address' else f'unset {option}'}"


def current_cluster() -> str | None:
    """Return the address of the Ray that ``ray start`` has begun on this machine, if any."""
    try:
        folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"
        return read_text(folder / CURRENT_CLUSTER).strip() or None
    except (OSError, ValueError):
        return None


def answers(address: str, patience: float) -> bool:
    """Return whether something listens at ``host:port``; the look-up of a name has no deadline but this one."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        return False
    heard = threading.Event()

    def call() -> None:
        with suppress(OSError, UnicodeError), socket.create_connection((host.strip("[]"), int(port)), patience):
            heard.set()

    caller = threading.Thread(target=call, name="call", daemon=True)
    caller.start()
    caller.join(patience)
    return heard.is_set()
