"""Names with Rich's markup, and with names of emoji, are printed as they are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from engine.record.run_folder import RunFolder
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep
from engine.sweeps.observers import SweepStart
from engine.sweeps.planning import Mode
from fedskew.cli import naming, output
from fedskew.cli.output import plain_console
from fedskew.lab.run_line import summary_table
from fedskew.lab.sweeping.live import LiveTable
from tests.support.command_line import SMALL
from tests.support.house import SOURCES, name
from tests.support.small_sweeps import grid
from tests.support.sweep_folders import make_run

ODD = "v[/red] [bold]x :red_circle:"


def test_a_folder_with_such_a_name(call: Any, tmp_path: Path) -> None:
    """Kills: a path or a title that Rich reads: an error, or a name without a part of it."""
    words = ["run", *SMALL, "rounds=1", "--out", ODD]
    code, _, err = call(*words)
    assert code == 0
    assert f"{ODD}\n" in err
    for again in (words, ["resume", ODD]):
        code, _, err = call(*again)
        assert code == 0
        assert ODD in err
    (tmp_path / ODD / "experiment.yaml").write_text("{")
    code, _, err = call(*words)
    assert code == 2 and ODD in err


def test_a_sweep_with_such_names(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Kills: a sweep's name, title, folder, setting or reason that Rich reads."""
    console = plain_console(stderr=True, width=200, force_terminal=True)
    named = NamedSweep("own[bold] :red_circle:", "laptop", (), ODD, grid("laptop"))
    folder = SweepFolder(tmp_path / "v[" / "red]")
    mode = Mode("inside", 0, ({"CPU": 1.0},), 1, ODD)
    live = LiveTable(console)
    live.on_start(SweepStart(named, folder, 8, 0, 1, mode, 8))
    err = capsys.readouterr().err
    assert named.name in err and str(folder.path) in err and err.count(ODD) == 2
    live._running["00000"] = ({"mu": "[/red]:red_circle:"}, {"round": 1})
    live.on_end()
    assert "mu=[/red]:red_circle:" in capsys.readouterr().err


def test_tables_and_statuses_with_such_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: a console that reads markup in tables' cells and titles; a console of another kind."""
    from rich.table import Table

    console = plain_console(stderr=True, width=200)
    table = Table(ODD, title=ODD)
    table.add_row(ODD)
    console.print(table)
    assert capsys.readouterr().err.count(ODD) == 3
    assert output.console._markup is False and output.console._emoji is False
    assert naming.plain_console is plain_console


def test_no_text_steers_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a stranger's title, window's name, cleared screen, colour or turned writing that a table, a sentence, a
    status, an answer on a terminal shows as it is; the lines of a text lost; an answer to a program changed."""
    hostile = "a\x1b]0;b\x07\x1b[2J\x9b31m\u202ec\rd"
    console = plain_console(stderr=True, width=200)
    for shown in (output.table([hostile], [[hostile], ["x\ny"]], hostile), Text(hostile), hostile, f"{hostile}\n2"):
        console.print(shown)
    with console.status(Text(hostile)):
        pass
    output.print_result(hostile)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    output.print_result(hostile)
    out, err = capsys.readouterr()
    piped, shown = out.rstrip("\n").split("\n")
    assert piped == hostile and shown == r"a\x1b]0;b\x07\x1b[2J\x9b31m\u202ec d"
    assert all(line.isprintable() for line in err.splitlines()) and err.count("\\x1b") >= 5
    assert {"x", "y", "2"} <= {line.strip(" │┃") for line in err.splitlines()}


def test_a_notebook_reads_no_markup(tmp_path: Path) -> None:
    """Kills: a folder's or a run's name that the console of notebooks, which is Rich's own, reads."""
    folder = RunFolder(make_run(tmp_path / ODD))
    table = summary_table({**folder.summary(), "name": ODD}, folder)
    assert ODD in table._repr_mimebundle_([], [])["text/plain"]


def readers_of_markup(text: str) -> list[str]:
    """Consoles that read markup, and texts that go where Rich always reads it."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        words = {word.arg: ast.unparse(word.value) for word in node.keywords}
        constant = not node.args or isinstance(node.args[0], ast.Constant)
        as_text = node.args and isinstance(node.args[0], ast.Call) and ast.unparse(node.args[0].func) == "Text"
        if called in ("Console", "_Printable") and "quiet" not in words:
            found.append(called)
        if called == "TextColumn" and words.get("markup") != "False" and "{" in ast.unparse(node):
            found.append(ast.unparse(node))
        if called in ("status.update", "console.status") and not constant and not as_text:
            found.append(ast.unparse(node))
    return found


def test_no_text_is_read_as_markup() -> None:
    """Kills: another console, a status or a column of a progress bar that reads a name."""
    allowed = {
        "fedskew/lab/shown.py": ["_Printable"],
        "fedskew/cli/studies.py": ["console.status(f'{rounds} rounds, then the machine')"],
    }
    found = {name(path): readers_of_markup(path.read_text()) for path in SOURCES}
    assert {file: lines for file, lines in found.items() if lines} == allowed
    for wrong in ("Console()", "TextColumn('{task.fields[now]}')", "status.update(f'{x}')"):
        assert readers_of_markup(wrong)
    assert not readers_of_markup(f"status.update(Text('{Text('x').plain}'))")
