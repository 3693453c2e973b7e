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
# With which a client of HTTP/2 begins, as gRPC's are, and the kind of frame that a server answers first: its settings.
PREFACE, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"\4"
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
    """Raise :class:`ResourceError` where no Ray answers at ``address``, which ``given`` gave, as :func:`used` says.

    So, too, for an address of Ray Client. Where "auto" finds nothing that ``ray start`` has left, Ray looks for itself.
    """
    if address.startswith("ray://"):
        raise ResourceError(
            f"{given}: ray:// is for programs outside the cluster, and fedskew runs on a node of it; start it there or "
            "by 'ray job submit', with auto for this address (docs/cluster.md)"
        )
    there = current_cluster() if address == "auto" else address
    if there is not None and not answers(there, patience):
        raise ResourceError(f"{given}: no Ray answers at {there} within {patience:g} s; {repair(given)}")


def repair(given: str) -> str:
    """Return what to do about an address that is of no use."""
    return f"start that Ray, or {'unset RAY_ADDRESS' if given.startswith('RAY_ADDRESS') else 'leave --address away'}"


def current_cluster() -> str | None:
    """Return the address of the Ray that ``ray start`` has begun on this machine, if any."""
    try:
        folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"
        return read_text(folder / CURRENT_CLUSTER).strip() or None
    except (OSError, ValueError):
        return None


def answers(address: str, patience: float) -> bool:
    """Return whether something at ``host:port`` speaks as Ray's servers do: of others Ray would ask for minutes.

    The look-up of a name has no deadline but this one.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        return False
    heard = threading.Event()

    def call() -> None:
        with suppress(OSError, ValueError), socket.create_connection((host.strip("[]"), int(port)), patience) as it:
            it.sendall(PREFACE)
            if os.environ.get("RAY_USE_TLS", "0") != "0" or it.recv(4)[3:] == SETTINGS:
                heard.set()

    caller = threading.Thread(target=call, name="call", daemon=True)
    caller.start()
    caller.join(patience)
    return heard.is_set()
