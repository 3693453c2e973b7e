"""The program ``fedskew``, a parent that has the last word whatever becomes of the command."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedskew.cli import child, launcher
from fedskew.cli.launcher import SAME
from tests.support.command_line import SMALL, fedskew
from tests.support.waiting import settle

HEAD = """
import atexit, os, select, signal, subprocess, sys
from engine.base.errors import resume_command
from fedskew.cli import child
from fedskew.cli.launcher import guarded
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests may run under nohup
signal.signal(signal.SIGINT, signal.default_int_handler)  # or in the background of a shell, which ignores it
def until_all(*numbers):
    arrived, arriving = os.pipe()
    for number in numbers:
        signal.signal(number, lambda number, frame: os.write(arriving, bytes([number])))
    print("there", flush=True)
    got = set()
    while got != {*numbers}:
        if select.select([arrived], [], [], 1)[0]:
            got.add(os.read(arrived, 1)[0])
    print(*sorted(got), flush=True)
def command():
"""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def started(body: str, *words: str, **options: object) -> subprocess.Popen[str]:
    """A parent whose command has this body."""
    text = HEAD + "".join(f"    {line}\n" for line in body.splitlines()) + "sys.exit(guarded(command))\n"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    return subprocess.Popen([sys.executable, "-c", text, *words], **{**pipes, **options})  # type: ignore[call-overload]


def ends(body: str, *words: str) -> tuple[int, str, str]:
    with started(body, *words) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("pass", 0),
        ("sys.exit(2)", 2),
        ("sys.exit(None)", 0),
        ("sys.exit(143)", 143),
        ("raise KeyboardInterrupt", 130),
        ("for n in (10, 14): signal.signal(n, lambda *_: None), os.kill(os.getpid(), n)\nsys.exit(2)", 2),
    ],
)
def test_a_command_that_ends_has_its_own_exit_code(body: str, code: int) -> None:
    """Kills: another exit code, and a sentence where the command has said its own; signals of the command's own, of
    which one is the number of a line break, read as what it tells."""
    assert ends(body) == (code, "", "")


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        ("os._exit(1)", 3, "the command's process died, as it does when Ray's server (GCS), raylet or agent has died"),
        ("os.kill(os.getpid(), signal.SIGABRT)", 3, "as it does when Ray's server"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 3, "the command's process died by SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "the command was stopped by SIGTERM; "),
        ("os.kill(os.getpid(), signal.SIGUSR1)", 138, "the command was stopped by SIGUSR1; "),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed, perhaps for want of memory"),
    ],
)
def test_a_process_that_dies_has_a_sentence(body: str, code: int, told: str) -> None:
    """Kills: an end without a word, one without the way to go on, Ray's exit code in the place of ours."""
    found, out, err = ends(f"child.again(resume_command('a b'))\n{body}")
    assert (found, out) == (code, "")
    assert err.startswith("\nerror: ") and err.count("\n") == 2
    assert told in err and err.endswith("; continue with: fedskew resume 'a b'\n")


def test_a_process_that_dies_in_the_middle_of_a_line() -> None:
    """Kills: a sentence at the end of a progress bar's line, where neither a reader nor a script finds it."""
    _, _, err = ends("print('round 3', end='', file=sys.stderr, flush=True)\nos._exit(1)")
    assert [line.partition(":")[0] for line in err.splitlines()] == ["round 3", "error"]


def test_a_process_that_dies_at_once_is_called_again() -> None:
    """Kills: a way to go on with what has not begun."""
    assert ends("os._exit(1)")[2].endswith("; give the command again\n")


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_a_command_whose_work_is_saved_has_finished(number: str) -> None:
    """Kills: "stopped" for a signal that comes when all is saved and Ray, which takes handlers with it, is leaving."""
    body = f"child.finished('a b is finished; x')\nsignal.signal(signal.{number}, signal.SIG_DFL)\n"
    assert ends(f"{body}os.kill(os.getpid(), signal.{number})") == (0, "", "\na b is finished; x\n")
    assert (
        ends("child.finished('a')\nos.kill(os.getpid(), signal.SIGKILL)")[0] == 137
    )  # nobody knows what it had not said


def test_closed_streams_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an AttributeError where Python has no stream; a pipe or a file of ours that gets a stream's number, and
    what is printed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    body = f"print('lost'), print('lost', file=sys.stderr), open({str(tmp_path)!r} + '/ran', 'w').close()"

    def close_all() -> None:
        for number in range(3):
            os.close(number)

    with started(body, stdin=None, stdout=None, stderr=None, preexec_fn=close_all) as process:
        assert process.wait(timeout=60) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["ran"]


def test_what_happens_after_the_last_word_changes_nothing() -> None:
    """Kills: an exit code of Ray's, which ends its processes when Python ends."""
    assert ends("atexit.register(os._exit, 7)\nsys.exit(2)") == (2, "", "")


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["process", "group"])
def test_a_signal_reaches_the_command(send: Callable[[int, int], None]) -> None:
    """Kills: a signal that the command never gets, because its parent has it, or that ends its parent."""
    with started(f"until_all{tuple(map(int, SIGNALS))}") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        for number in SIGNALS:
            send(process.pid, number)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "1 2 15\n")


class Told:
    """What becomes of a launcher's parent on a clock of its own, which goes as far as ``select`` is told to wait.

    ``script``: at which second the parent or its child gets which signal, in order. The child ends 100 seconds later.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, script: list[tuple[float, str, int]]) -> None:
        self.sent: list[tuple[float, int]] = []
        self._script = list(script)
        self._now = self._start = 1000.0
        self._got: Callable[[int, None], object] = lambda *_: None  # what the parent does with a signal
        told, _ = os.pipe()
        signals, self._signalling = os.pipe()
        monkeypatch.setattr(launcher, "select", SimpleNamespace(select=self._select))
        monkeypatch.setattr(launcher, "time", SimpleNamespace(monotonic=lambda: self._now))
        monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)
        monkeypatch.setattr(signal, "signal", lambda _, handler: setattr(self, "_got", handler))
        monkeypatch.setattr(os, "waitpid", lambda *_: (int(self._now >= self._start + 100), 0))
        monkeypatch.setattr(os, "kill", self._kill)
        with monkeypatch.context() as patch:
            patch.setattr(signal, "pthread_sigmask", lambda *_: None)
            launcher._until_ended(1, told, signals, [])

    def _select(self, reads: object, writes: object, errors: object, seconds: float) -> None:
        until = self._now + seconds
        if self._script and self._start + self._script[0][0] <= until:
            second, who, number = self._script.pop(0)
            self._now = max(self._now, self._start + second)
            if who == "parent":
                self._got(number, None)
            else:
                os.write(self._signalling, bytes([number]))
        else:
            self._now = until

    def _kill(self, pid: int, number: int) -> None:
        self.sent.append((round(self._now - self._start, 3), number))
        os.write(self._signalling, bytes([number]))  # the child has got it


@pytest.mark.parametrize(
    ("script", "sent"),
    [
        ([(0, "parent", n) for n in SIGNALS], [(SAME, n) for n in SIGNALS]),
        ([(0, "child", 2), (0, "parent", 2)], []),
        ([(0, "parent", 2), (0.9 * SAME, "child", 2)], []),
        ([(0, "child", 2), (0.9 * SAME, "parent", 2)], []),
        ([(0, "child", 2), (0, "parent", 15)], [(SAME, 15)]),
        ([(0, "parent", 2), (0.5 * SAME, "parent", 2)], [(round(1.5 * SAME, 3), 2)]),
        ([(0, "parent", 2), (50, "parent", 2)], [(SAME, 2), (50 + SAME, 2)]),
        ([(0, "child", 2), (0, "parent", 2), (50, "parent", 2)], [(50 + SAME, 2)]),
    ],
    ids=["process", "group", "child later", "child earlier", "another", "at once", "twice", "group, then process"],
)
def test_a_signal_comes_once(
    monkeypatch: pytest.MonkeyPatch, script: list[tuple[float, str, int]], sent: list[tuple[float, int]]
) -> None:
    """Kills: a signal that is not handed on, and Ctrl-C that counts twice, which gives a round up."""
    assert Told(monkeypatch, script).sent == sent


def test_what_a_shell_leaves_to_the_program() -> None:
    """Kills: a wait without end where SIGCHLD was ignored; a ``tee`` of ``exec fedskew run > >(tee log)`` that is ended
    with lines in it."""
    before = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\nother = subprocess.Popen(['sleep', '60'])\n"
    after = "code = guarded(command)\nprint(code, other.poll())\nother.kill()\n"
    command = [sys.executable, "-c", f"{HEAD}    sys.exit(2)\n{before}{after}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout == "2 None\n"


def test_a_command_whose_parent_is_killed_ends() -> None:
    """Kills: a command that goes on behind the back of who has ended it."""
    with started("until_all(signal.SIGTERM)") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.kill()
        assert process.stdout.readline() == "15\n"


@pytest.mark.skipif(sys.platform != "linux", reason="orphans come to nobody")
@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(1)"])
def test_nothing_is_left_running(end: str) -> None:
    """Kills: agents of Ray that outlive it."""
    agent = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=2, start_new_session=True).pid)"
    body = f'print(subprocess.check_output([sys.executable, "-c", "{agent}"]).decode(), flush=True)'
    with started(f"{body}\n{end}", stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        agent_pid = int(process.stdout.readline())
        process.communicate(timeout=60)
    assert not Path(f"/proc/{agent_pid}").exists()


def test_the_parent_is_light() -> None:
    """Kills: torch, Ray or typer in the parent, which would take a second and a quarter of a gigabyte more."""
    text = "import sys, fedskew.cli.launcher\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "ray", "typer", "rich", "numpy", "pyarrow", "asyncio"} & {*loaded}


def test_the_session_of_a_command_that_dies_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: sessions of Ray that pile up; the session of another process that goes with them."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "fedskew-1-abcdefgh").mkdir()
    ends(f"os.makedirs({str(tmp_path)!r} + f'/fedskew-{{os.getpid()}}-abcdefgh/r')\nos._exit(1)")
    assert [path.name for path in tmp_path.iterdir()] == ["fedskew-1-abcdefgh"]


def test_what_libraries_write_is_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: Ray's lines in the middle of ours, on standard output too, and a file of them that stays behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    body = "os.write(1, b'ray\\n'), os.write(2, b'ray\\n')\nprint('{}'), print('ours', file=sys.stderr)\n"
    assert ends(body) == (0, "{}\n", "ours\n")
    assert list(tmp_path.iterdir()) == []
    code, out, err = ends(f"{body}os._exit(1)")
    assert (code, out) == (3, "{}\n")
    ours, _, sentence = err.splitlines()
    said = Path(re.findall(r"what was said last: (\S+)\)", sentence)[0])
    assert (ours, said.read_text(), [*tmp_path.iterdir()]) == ("ours", "ray\nray\n", [said])
    assert ends("os._exit(1)")[2].endswith("died; give the command again\n") and [*tmp_path.iterdir()] == [said]


def test_a_terminal_that_is_gone_is_written_to_no_more() -> None:
    """Kills: a closed window that makes an error of each line, and exit code 1 in place of 129."""
    window, terminal = os.openpty()
    os.close(window)
    for name in ("stdout", "stderr"):
        stream = child._Stream(os.dup(terminal), "w")
        stream.is_of_results = name == "stdout"
        assert stream.write(b"stopped") == 7
        stream.close()
    with pytest.raises(OSError, match="Input/output error"):
        os.write(terminal, b"stopped")
    os.close(terminal)


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (EOFError("cut off"), 1, "error: EOFError: cut off"),
        (KeyboardInterrupt(), 130, "stopped; give the command again"),
    ],
)
def test_a_sentence_is_ours_and_not_typers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int, told: str
) -> None:
    """Kills: "Aborted!" for a file that ends too early, and for a command that was stopped nothing at all."""

    def raises(*_: object) -> None:
        raise raised

    monkeypatch.setattr("fedskew.cli.listing.plain_console", raises)
    found, _, err = fedskew(monkeypatch, capsys, "list")
    assert found == code and err.startswith(told) and "Abort" not in err


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["doctor"], ["query", "--columns"]])
def test_standard_output_that_is_full_is_told(words: list[str]) -> None:
    """Kills: OSError with a traceback's place; the traceback of an error that cannot be printed as JSON either."""
    command = [sys.executable, "-m", "fedskew.cli.launcher", *words]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: standard output cannot be written (No space left on device)\n")


# --- Ray -----------------------------------------------------------------------------------------------------------


def descendants(root: int) -> Iterator[tuple[int, str]]:
    """Every process below one, with its command."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents.setdefault(int(status.read_text().rpartition(")")[2].split()[1]), []).append(
                int(status.parent.name)
            )
        except OSError:
            continue
    left = [root]
    while left:
        for below in parents.get(left.pop(), []):
            left.append(below)
            try:
                yield below, Path(f"/proc/{below}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
@pytest.mark.parametrize("victim", ["gcs_server", "raylet/raylet"])
def test_a_part_of_ray_that_dies(tmp_path: Path, victim: str) -> None:
    """Kills: an end without a sentence, or with Ray's lines, an undocumented exit code, agents left."""
    words = [*SMALL[1:], "execution.actors=1", "execution.device=cpu", "rounds=100000", "checkpoint.every=5"]
    environment = {**os.environ, "COLUMNS": "200", "RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
    command = [sys.executable, "-m", "fedskew.cli.launcher", "run", *words, "--out", "run", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as process:  # type: ignore[call-overload]
        try:
            written = lambda: list((tmp_path / "run").glob("checkpoints/*.safetensors"))  # noqa: E731
            assert settle(lambda: process.poll() is not None or written())
            assert process.poll() is None, process.communicate()
            family = dict(descendants(process.pid))
            named = [pid for pid, command in family.items() if command.partition(" ")[0].endswith(victim)]
            os.kill(named[0], signal.SIGKILL)
            out, err = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 3
    for answer in map(json.loads, out.splitlines()):  # none where Ray has ended the process
        assert (answer["error"]["exit_code"], answer["error"]["kind"]) == (3, "ProcessDied")
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [err.splitlines()[-1]]
    assert err.endswith("continue with: fedskew resume run\n")
    assert "Traceback" not in err and "raylet)" not in err and "rpc_client" not in err
    for said in re.findall(r"what was said last: (\S+)\)", err):
        Path(said).unlink()
    assert [pid for pid in family if Path(f"/proc/{pid}").exists()] == []
