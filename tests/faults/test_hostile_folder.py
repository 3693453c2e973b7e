"""All commands over a folder that a stranger has made: links, pipes, escapes, huge numbers, names that are no UTF-8.

Whatever lies there, a command ends with 0, or with a sentence and 2; nothing of a file outside is shown, sent on or
changed, no character steers the terminal, and nobody waits. What SECURITY.md says of files from strangers is this walk.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedskew.cli.main import COMMANDS
from tests.support.report_pages import CLAIMS, TABLE
from tests.support.sweep_folders import MU, make_run, make_sweep

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.usefixtures("unpainted")]
Call = Callable[..., tuple[int, str, str]]

# The commands that are given a folder of results, each with the words behind it; FOLDER is that of a run or a sweep,
# OTHER a whole one, RUN and SWEEP what the name says.
WALKED: dict[str, tuple[str, ...]] = {
    "run": ("run", "RUN/experiment.yaml", "rounds=0"),
    "run a trial": ("run", "SWEEP:00001", "rounds=0"),
    "resume": ("resume", "FOLDER", "rounds=0"),
    "report": ("report", "FOLDER"),
    "cite": ("cite", "FOLDER"),
    "export to csv": ("export", "FOLDER", "--to", "csv:out/csv"),
    "export to parquet": ("export", "FOLDER", "--to", "parquet:out/parquet"),
    "export to tensorboard": ("export", "FOLDER", "--to", "tensorboard:out/tensorboard"),
    "export to mlflow": ("export", "FOLDER", "--to", "mlflow:out/mlflow"),
    "claims": ("claims", "--record", "SWEEP", "--root", "checkout"),
    "query": ("query", "FOLDER", "select * from trials, rounds"),
    "query for programs": ("query", "FOLDER", "select * from trials", "--json"),
    "compare": ("compare", "FOLDER", "OTHER"),
    "merge": ("merge", "out/merged", "SWEEP", "OTHER"),
    "leaderboard": ("leaderboard", "FOLDER", "OTHER", "--out", "out/board"),
    "diagnose": ("diagnose", "FOLDER", "--round", "0"),
    "embed": ("embed", "RUN"),
    "images": ("images", "FOLDER"),
}
# These read none.
NO_FOLDER = {"sweep", "board", "new", "check", "list", "schema", "doctor", "floor", "tune-executor", "scale"}
HUSH = "hush-hush"  # of a file that lies outside
ESCAPE = "\x1b]0;hush\x07\x1b[2J\x9b31m\u202e\r"
HUGE = ("1e308", "5e-324", f"1{'0' * 400}", ".nan", "-1")
READERS = ("resume", "report", "cite", "export to csv", "query", "query for programs", "compare", "leaderboard")


def test_every_command_is_walked_or_reads_no_folder() -> None:
    """Kills: a new command that is given a folder, over which nobody has walked; one that SECURITY.md leaves out."""
    names = {name for group in COMMANDS.values() for name, _, _ in group}
    assert {words[0] for words in WALKED.values()} == names - NO_FOLDER
    promised = (ROOT / "SECURITY.md").read_text().split("Opening is to give one to ")[1].split("`tests/")[0]
    assert {*re.findall(r"`([a-z-]+)`", promised)} == names - NO_FOLDER


def run_of(place: Path) -> Path:
    folder = make_run(place, rounds=2, client_rows=False)
    (folder / "z.png").write_bytes(b"")
    (folder / "log.txt").write_text("")
    (folder / "parts.json").write_text("{}")
    return folder


def sweep_of(place: Path) -> Path:
    folder = make_sweep(
        place, axes=[{**MU, "values": [0.0, 0.1]}], seeds=(0, 1), rounds=2, client_rows=False, failed=[3],
        claims=CLAIMS[:1], tables=[TABLE | {"columns": [], "published": []}],
    )  # fmt: skip
    shutil.move(run_of(place.with_name("made")) / "z.png", folder / "trials" / "00001" / "z.png")
    return folder


def into_links(folder: Path, name: str, secret: Path) -> None:
    _away(folder / name).symlink_to(secret)


def into_pipes(folder: Path, name: str, secret: Path) -> None:
    os.mkfifo(_away(folder / name))


def _away(place: Path) -> Path:
    place.parent.mkdir(exist_ok=True)
    shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    return place


OF_RUN = ("experiment.yaml", "summary.json", "z.png", "report", "checkpoints", "rounds.parquet")
OF_SWEEP = ("sweep.yaml", "plan.json", "trials", "trials/00001", "report/report.html", "tuning")
PLACES = (*OF_RUN, *OF_SWEEP, *(f"trials/00001/{name}" for name in ("trial.json", "z.png", "rounds.parquet")))


def check_walk(
    call: Call, tmp_path: Path, folder: Path, is_sweep: bool, commands: Iterable[str] = WALKED
) -> dict[str, int]:
    """Give the folder to all commands; returns their exit codes."""
    other = sweep_of(tmp_path / "other") if is_sweep else run_of(tmp_path / "other")
    (tmp_path / "checkout" / "docs" / "claims").mkdir(parents=True)
    (tmp_path / "checkout" / "README.md").write_text("")
    before = {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*")}
    places = {"FOLDER": folder, "OTHER": other, "SWEEP": folder, "RUN": folder}
    codes = {}
    for name in commands:
        words = WALKED[name]
        said = [re.sub("FOLDER|OTHER|SWEEP|RUN", lambda found: str(places[found[0]]), word) for word in words]
        code, out, err = call(*said)
        codes[name] = code
        told = f"{name}: {code}\n{out}\n{err}"
        assert code in (0, 2), told
        assert "Traceback" not in err and "traceback" not in err, told
        assert code == 0 or len([line for line in err.splitlines() if line.startswith("error: ")]) == 1, told
        assert HUSH not in told
        assert "query" in name or all(text.isprintable() for text in (out + err).splitlines()), told
    assert {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*")} == before
    for path in tmp_path.rglob("*"):  # neither copied nor uploaded
        if path.is_file() and not path.is_symlink() and tmp_path / "outside" not in path.parents:
            assert HUSH.encode() not in path.read_bytes(), path
    return codes


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    place = tmp_path / "outside" / "secret"
    place.write_text(f"name: {HUSH}\n")
    return place


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("change", [into_links, into_pipes])
def test_links_and_pipes(
    call: Call, tmp_path: Path, secret: Path, name: str, change: Callable[[Path, str, Path], None]
) -> None:
    """Kills: a file of a stranger's folder opened past the look at what it is: a secret that is printed, copied into a
    page or a table or sent to a tracker; a wait for a pipe that nobody writes to."""
    is_sweep = name in OF_SWEEP or name.startswith("trials/")
    folder = (sweep_of if is_sweep else run_of)(tmp_path / "folder")
    change(folder, name, secret)
    codes = check_walk(call, tmp_path, folder, is_sweep)
    if change is into_links:
        shown = {command for command, code in codes.items() if code == 0}
        of_others = {"query", "query for programs", "compare", "leaderboard", "cite"}  # trials
        assert shown <= (of_others if "/" in name else set()), codes


def put(values: Any, keys: tuple[Any, ...], value: Any) -> None:
    for key in keys[:-1]:
        values = values[key]
    values[keys[-1]] = value


NUMBERS: dict[str, tuple[tuple[Any, ...], ...]] = {  # file -> where a number stands in it
    "sweep.yaml": (("axes", 0, "values", 1), ("seeds", 0), ("target_accuracy",), ("base", "rounds")),
    "plan.json": (("trials", 1, "seed"), ("trials", 1, "setting", "mu")),
    "trials/00001/trial.json": (("setting", "mu"), ("seed",), ("rounds",), ("schedule", 0, "first_round")),
    "trials/00001/summary.json": (("last10_accuracy",), ("seconds",), ("rounds",)),
    "trials/00001/experiment.yaml": (("algorithm", "mu"), ("seed",), ("rounds",), ("partition", "alpha")),
}


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("file", NUMBERS)
def test_huge_numbers(call: Call, tmp_path: Path, file: str, value: str) -> None:
    """Kills: a picture, a table or a sentence that dies of a number that has no place in it."""
    for number, keys in enumerate(NUMBERS[file]):
        place = tmp_path / f"{number}"
        place.mkdir()
        folder = sweep_of(place / "folder")
        values = yaml.safe_load((folder / file).read_text())
        put(values, keys, "VALUE")
        text = yaml.safe_dump(values) if file.endswith(".yaml") else json.dumps(values)
        spelled = {".inf": "Infinity", ".nan": "NaN"}.get(value, value) if file.endswith(".json") else value
        (folder / file).write_text(re.sub("\"VALUE\"|'VALUE'|VALUE", spelled, text))
        check_walk(call, place, folder, True, READERS)


TEXTS: dict[str, tuple[tuple[Any, ...], ...]] = {  # file -> where a text stands in it
    "sweep.yaml": (("name",), ("title",), ("profile",), ("axes", 0, "name"), ("axes", 0, "values"), ("digest",)),
    "plan.json": (("trials", 1, "trial"), ("trials", 1, "setting", "mu")),
    "trials/00001/trial.json": (("setting", "mu"), ("reason",), ("status",), ("schedule",)),
    "trials/00001/summary.json": (("weights_sha256",), ("algorithm", "name"), ("status",), ("name",)),
    "trials/00001/experiment.yaml": (("name",), ("algorithm", "name"), ("data", "name"), ("data", "root")),
}


@pytest.mark.parametrize("file", TEXTS)
def test_escapes(call: Call, tmp_path: Path, file: str) -> None:
    """Kills: a name, a reason or a value that reaches the terminal as it is, or of which a picture dies."""
    for number, keys in enumerate(TEXTS[file]):
        place = tmp_path / f"{number}"
        place.mkdir()
        folder = sweep_of(place / "folder")
        values = yaml.safe_load((folder / file).read_text())
        put(values, keys, ESCAPE if keys[-1] != "values" else [ESCAPE, f"{ESCAPE}$\\frac$"])
        (folder / file).write_text(yaml.safe_dump(values) if file.endswith(".yaml") else json.dumps(values))
        check_walk(call, place, folder, True, READERS)


@pytest.mark.parametrize("of", ["run", "sweep", "trial", "file"])
def test_names_that_are_no_text(call: Call, tmp_path: Path, of: str) -> None:
    """Kills: a folder's name that is no UTF-8, or has escapes, of which a table, a page or a picture dies."""
    for number, name in enumerate((b"\xff\xfe", ESCAPE.encode(), b"a\nb", b"-x", b"x" * 200)):
        place = tmp_path / f"{number}"
        place.mkdir()
        folder = run_of(place / "folder") if of == "run" else sweep_of(place / "folder")
        odd = os.fsdecode(name)
        if of in ("run", "sweep"):
            folder = folder.rename(place / odd)
        elif of == "trial":
            (folder / "trials" / "00001").rename(folder / "trials" / odd)
            record = folder / "trials" / odd / "trial.json"
            record.write_text(json.dumps(json.loads(record.read_text()) | {"trial": odd}))
        else:
            (folder / "trials" / "00001" / f"{odd}.png").write_bytes(b"")
        check_walk(call, place, folder, is_sweep=of != "run")
