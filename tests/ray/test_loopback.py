"""A Ray that fedskew starts can be reached from this machine alone: every socket that listens, of a real command."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.memory import descendants

ROOT = Path(__file__).parents[2]
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
def test_every_port_of_a_run_is_on_loopback(tmp_path: Path) -> None:
    """Kills: a raylet, a server or an actor that listens on all addresses: who reaches one of them can run code."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    words = ["rounds=100000", "execution.actors=1", "execution.device=cpu", "data.train_samples=200"]
    words += ["data.test_samples=50", "model.name=logistic", "evaluation.every=0", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "engine.cli.main", "run", *words]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as child:
        try:
            deadline = time.monotonic() + 60
            found: list[tuple[str, int, str]] = []
            while not any("ray::ClientActor" in title for _, _, title in found):
                assert child.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
                found = list(listening([child.pid, *descendants(child.pid)]))
            while not (tmp_path / "run" / "checkpoints").exists():  # it computes by now
                assert child.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
            found = list(listening([child.pid, *descendants(child.pid)]))
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(60)
    titles = " ".join(title for _, _, title in found)
    for program in ("raylet", "gcs_server", "ray::ClientActor", "ray::DriverActor"):
        assert program in titles
    assert [one for one in found if not is_loopback(one[0])] == []
