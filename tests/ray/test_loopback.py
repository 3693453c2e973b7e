"""A real command that starts its own Ray: every socket that listens is on loopback; Ctrl-C, and what comes after it."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.memory import descendants
from engine.record.run_folder import RunFolder
from tests.support.command_line import weights_of

LISTENS = "0A"  # Linux's number of that state of a TCP socket


def listening(pids: list[int]) -> Iterator[tuple[str, int, str]]:
    """Address, port and command of each TCP socket on which one of these processes listens."""
    owners = {}
    for pid in pids:
        try:
            links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # it has just ended
        owners |= {link[8:-1]: title for link in links if link.startswith("socket:[")}
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, = fields = line.split()  # fmt: skip
            if state == LISTENS and fields[9] in owners:
                address, port = local.split(":")
                words = [int(address[start : start + 8], 16) for start in range(0, len(address), 8)]
                packed = b"".join(struct.pack("=I", word) for word in words)
                yield socket.inet_ntop(family, packed), int(port, 16), owners[fields[9]]


def is_loopback(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def test_addresses_are_told_apart() -> None:
    """Kills: a test that takes every address for loopback, or none."""
    assert all(map(is_loopback, ("127.0.0.1", "::1", "::ffff:127.0.0.1")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.7", "::ffff:192.0.2.7")))


@pytest.mark.ray
def test_a_command_that_starts_its_own_ray(call: Any, tmp_path: Path) -> None:
    """Kills: a raylet, a server or an actor that listens on all addresses (who reaches one of them can run code); the
    way a newcomer takes: a command that starts Ray, runs, answers Ctrl-C and is resumed; a folder of Ray that others
    may enter, or that stays behind."""
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # sockets' names must be short
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["RAY_TMPDIR"] = str(temporary)
    words = ["data.train_samples=400", "data.test_samples=100", "rounds=80", "execution.actors=1", "checkpoint.every=2"]
    words.append("execution.device=cpu")
    child = subprocess.Popen(
        [sys.executable, "-m", "fedskew.cli.main", "run", *words, "--out", "run"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while not (tmp_path / "run" / "checkpoints").exists():  # it computes from then on
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        found = list(listening([child.pid, *descendants(child.pid)]))
        [own] = temporary.iterdir()
        mode = stat.S_IMODE(own.stat().st_mode)
        sockets = list(own.glob("*/session_*/sockets/*"))
    finally:
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does, to the whole group
        _, err = child.communicate(timeout=90)
    titles = " ".join(title for _, _, title in found)
    for program in ("raylet", "gcs_server", "ray::ClientActor", "ray::DriverActor"):
        assert program in titles
    assert [one for one in found if not is_loopback(one[0])] == []
    assert child.returncode == 130, err
    assert "continue with: fedskew resume run" in err
    assert "Traceback" not in err
    assert 0 < RunFolder(tmp_path / "run").summary()["rounds"] < 80
    assert (mode, {path.name for path in sockets} >= {"raylet", "plasma_store"}) == (0o700, True)
    temporary.rmdir()  # which is empty again
    alone = "execution.actors=0"
    assert weights_of(call, "resume", "run", alone) == weights_of(call, "run", *words, alone, "--out", "straight")
