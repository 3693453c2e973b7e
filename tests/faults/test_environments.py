"""The demo where people run it: containers, batch systems, shells that close what others leave open.

Each environment is a namespace of its own, made by ``unshare``: nothing of this machine is changed. With an actor all
that can be together is together, since a start of Ray takes many seconds.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import SMALL

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "fedskew.cli.launcher", "run", *SMALL[1:], "execution.device=cpu", "rounds=1", "--json"]
AS_ROOT = "unshare --user --map-root-user --mount --uts"
NOBODY = "unshare --user --map-user=12345 --map-group=12345"  # of whom no passwd file knows
LONG = "x" * 100  # with it a socket's path has more than 107 bytes


def has_namespaces() -> str:
    """Why there are none; empty if there are."""
    try:
        words = shlex.split(f"{AS_ROOT} {NOBODY} true")
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip()


@pytest.fixture(scope="module")
def namespaces() -> None:
    if reason := has_namespaces():
        pytest.skip(f"no namespaces here: {reason}")


def demo(folder: Path, script: str, variables: dict[str, str], actors: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the demo in a folder, with these variables and no others; ``script``: of sh, with {DEMO} in it."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0", **variables}
    words = shlex.join([*DEMO, f"execution.actors={actors}", "--out", str(folder / "run")])
    script = script.replace("{DEMO}", words).replace("{FOLDER}", str(folder))
    return subprocess.run(
        ["sh", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def weights(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    assert not [word for word in ("Traceback", "Error", "Warning", "atplotlib") if word in done.stderr], done.stderr
    return json.loads(done.stdout)["weights_sha256"]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("usual")
    return weights(demo(folder, "exec {DEMO}", {"HOME": str(folder)}))


ENVIRONMENTS: dict[str, tuple[str, dict[str, str]]] = {
    "no home": (f"exec {NOBODY} {{DEMO}}", {}),
    "a home that is not ours": (f"exec {NOBODY} {{DEMO}}", {"HOME": "/"}),
    "a home that cannot be written": ("exec {DEMO}", {"HOME": "/proc"}),
    "a long temporary folder": ("exec {DEMO}", {"TMPDIR": f"{{FOLDER}}/{LONG}"}),
    "the POSIX locale": ("exec {DEMO}", {"LC_ALL": "C"}),
    "ASCII": (
        "exec {DEMO}",
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"},
    ),
    "a name that is not found": (f"exec {AS_ROOT} sh -c 'hostname nowhere-to-be-found; exec {{DEMO}}'", {}),
    "one core": ("exec taskset -c $(taskset -pc $$ | sed 's/.*[ ,-]//') {DEMO}", {}),
    "no standard input": ("exec {DEMO} <&-", {}),
    "a full standard error": ("exec {DEMO} 2>/dev/full", {}),
    "an address that is dead": ("exec {DEMO}", {"RAY_ADDRESS": "127.0.0.1:1"}),  # and not asked
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_demo_in_process(namespaces: None, usual: str, tmp_path: Path, name: str) -> None:
    """Kills: whatever takes a home, a passwd entry, a locale, a resolver or a stream for granted."""
    script, variables = ENVIRONMENTS[name]
    (tmp_path / LONG).mkdir()
    variables = {key: value.replace("{FOLDER}", str(tmp_path)) for key, value in variables.items()}
    assert weights(demo(tmp_path, script, variables)) == usual
    assert [*(tmp_path / LONG).iterdir()] == []


def test_the_demo_with_closed_streams(usual: str, tmp_path: Path) -> None:
    """Kills: an AttributeError where Python has no streams."""
    done = demo(tmp_path, "exec {DEMO} <&- >&- 2>&-", {})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["weights_sha256"] == usual


def test_the_demo_where_no_temporary_folder_is(namespaces: None, tmp_path: Path) -> None:
    """Kills: a traceback before the first word."""
    mounts = "; ".join(f"mount -t tmpfs -o ro none {folder}" for folder in ("/var/tmp", "/tmp"))
    done = demo(tmp_path, f"exec {AS_ROOT} sh -c 'cd /proc; {mounts}; exec {{DEMO}}'", {"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no temporary folder can be written (") and done.stderr.count("\n") == 1


@pytest.mark.ray
def test_the_demo_with_an_actor(namespaces: None, usual: str, tmp_path: Path) -> None:
    """A home that is not there, an unknown user, 64 MB of shared memory, a name that is not found, a long temporary
    folder, the POSIX locale, no standard input. Kills: Ray's token in a home folder; sockets with paths too long."""
    (tmp_path / LONG).mkdir()
    machine = "mount -t tmpfs -o size=64m,mode=1777 none /dev/shm; hostname nowhere-to-be-found"
    script = f"exec {AS_ROOT} sh -c '{machine}; exec {NOBODY} {{DEMO}}' <&-"
    variables = {"TMPDIR": str(tmp_path / LONG), "LC_ALL": "C"}
    assert weights(demo(tmp_path, script, variables, actors=1)) == usual
    assert [*(tmp_path / LONG).iterdir()] == []


def test_an_actor_at_a_dead_address(tmp_path: Path) -> None:
    """Kills: five silent minutes; a message that does not name the variable."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    done = demo(tmp_path, "exec {DEMO} 2>&1 >/dev/null", {"RAY_ADDRESS": address}, actors=1)
    told = (
        f"error: RAY_ADDRESS={address}: no Ray answers at {address} within 10 s; start that Ray, or unset RAY_ADDRESS\n"
    )
    assert (done.returncode, done.stdout) == (2, told)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_the_first_round(tmp_path: Path, number: signal.Signals) -> None:
    """While it waits for a Ray. Kills: a signal that waits for a round which never comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        environment: dict[str, Any] = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(ROOT)}
        command = [*DEMO, "execution.actors=1", "--out", str(tmp_path / "run")]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
            asked, _ = server.accept()  # whether a Ray is there: it is kept waiting
            process.send_signal(number)
            out, err = process.communicate()
            asked.close()
    assert process.returncode == 128 + number and err.endswith("stopped; give the command again\n")
    assert json.loads(out)["error"]["message"] == "stopped; give the command again"
