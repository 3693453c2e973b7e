"""What is hashed of a stage is what computes: whole rooms and the stage's algorithm, and no word about them."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from engine.base import sources as hashing
from engine.base.sources import ALSO, ROOMS, digest_of, numeric_path
from engine.record import stage_hashes
from engine.record.numerics import numerics
from engine.record.stage_hashes import stage_hash
from tests.support.loops import each
from tests.support.tiny import experiment

ROOT = Path(__file__).parents[2]

# What modules of the hashed rooms may import from outside them, and why it need not be hashed.
OUTSIDE = {
    "engine.base.allocator": "how memory is given back; no arithmetic",
    "engine.base.declared": "ranges and meanings of fields: what is refused, and what pages say",
    "engine.base.devices": "names and sizes of cards and processors, for schedules and checks",
    "engine.base.errors": "exceptions and their sentences",
    "engine.base.evaluated": "names of figures that are only read off, and which way is better",
    "engine.base.files": "whole files and locks",
    "engine.base.opening": "opens files, and refuses what is none",
    "engine.base.own_modules": "which parts are the engine's own, and where a part from outside lies",
    "engine.base.part_calls": "watches calls of parts and refuses; what a part computes, it hands on as it is",
    "engine.base.parquet": "opens files; what was read has a fingerprint, which is hashed",
    "engine.base.registry": "classes by name; the name is in the identity, the class in a hashed room",
    "engine.base.section": "the form of a section; its values are in the identity",
    "engine.base.writable": "checks of folders",
    "engine.base.sources": "texts of parts from outside, which are hashed",
    "engine.experiment": "values, all in the experiment's identity; what is computed of them is computed in the rooms",
    "engine.record": "rows, folders and states, kept as they are given",
    "engine.worker": "where a block runs, which changes no bit",
}


def bumped(text: str) -> str:
    """With one more in the first number of the code."""
    tree = ast.parse(text)
    fields = (node.annotation for node in ast.walk(tree) if isinstance(node, ast.AnnAssign))
    in_annotations = {id(node) for field in fields for node in ast.walk(field)}  # which compute nothing
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and id(node) not in in_annotations
    ]
    first = min(found, key=lambda node: (node.lineno, node.col_offset))
    assert first.end_col_offset is not None
    lines = text.encode().split(b"\n")
    line = lines[first.lineno - 1]
    number = repr(first.value + 1).encode()  # type: ignore[operator]
    lines[first.lineno - 1] = line[: first.col_offset] + number + line[first.end_col_offset :]
    return b"\n".join(lines).decode()


def logging_more(text: str) -> str:
    """With a message in the first function that has a statement, and a logger for it."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    last = next(one.body[-1] for one in functions if isinstance(one.body[-1], ast.Return | ast.Assign))
    lines = text.split("\n")
    lines.insert(last.lineno - 1, " " * last.col_offset + 'log.warning("round %d", 1 + 1)')
    at = next(number for number, line in enumerate(lines) if line.startswith("from __future__")) + 1
    return "\n".join([*lines[:at], "import logging", 'log = logging.getLogger("other")', *lines[at:]])


def told_otherwise(text: str) -> str:
    docstring = ast.get_docstring(ast.parse(text), clean=False)
    assert docstring is not None
    return text.replace(docstring, "In other words.", 1)


def commented(text: str) -> str:
    return "# A comment.\n\n\n" + text + "\n# Another one."


digest_once = cache(digest_of)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("sources")
    for package in ("engine", "algorithms"):
        shutil.copytree(ROOT / package, copy / package, ignore=shutil.ignore_patterns("__pycache__", "*.parquet"))
    return copy


@pytest.fixture
def key(sources: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """The hash of a stage of FedProx, as it is with the sources in ``sources``."""
    config = experiment(algorithm={"name": "fedprox", "mu": 0.1})

    def file_of(module: str) -> Path:
        path = sources / module.replace(".", "/")
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def key() -> str:
        numeric_path.cache_clear()
        return stage_hash(config, config.chain[0], numerics(config, "a CPU"), "data")

    monkeypatch.setattr(hashing, "file_of", file_of)
    for place in (stage_hashes, hashing):
        monkeypatch.setattr(place, "source_digest", lambda module: digest_once(file_of(module).read_text()))
    yield key
    numeric_path.cache_clear()


def longest(room: Path) -> Path:
    return max(room.rglob("*.py"), key=lambda path: path.stat().st_size)


def keys_after(file: Path, key: Callable[[], str], *edits: Callable[[str], str]) -> list[str]:
    """The key after each edit of a file, which is then what it was."""
    text, keys = file.read_text(), list[str]()
    try:
        for edit in edits:
            file.write_text(edit(text))
            keys.append(key())
    finally:
        file.write_text(text)
    return keys


@pytest.mark.parametrize("place", [*(room.replace(".", "/") for room in ROOMS), "algorithms/fedprox.py"])
def test_what_computes_is_hashed_and_words_are_not(sources: Path, key: Callable[[], str], place: str) -> None:
    """Kills: a room that is left out; a store that a comment, a docstring or a log message makes worthless."""
    file = longest(sources / place) if (sources / place).is_dir() else sources / place
    before = key()
    *words, code = keys_after(file, key, commented, told_otherwise, bumped)
    assert words == [before, before]
    assert code != before
    assert key() == before


@pytest.mark.parametrize("place", ["engine/server", "engine/client", "engine/run", "engine/algorithm"])
def test_a_log_message_is_no_new_key(sources: Path, key: Callable[[], str], place: str) -> None:
    """Kills: all stored rounds lost to a word in the driver."""
    before = key()
    assert keys_after(longest(sources / place), key, logging_more) == [before]


@pytest.mark.parametrize("place", ["base", "experiment", "record", "worker", "run", "sweeps", "results"])
def test_what_computes_nothing_is_not_hashed(sources: Path, key: Callable[[], str], place: str) -> None:
    """Kills: a room more than need be, whose every edit would throw stored rounds away."""
    before = key()
    assert keys_after(longest(sources / "engine" / place), key, bumped) == [before]


def test_a_module_that_is_added_to_a_room_is_hashed(sources: Path, key: Callable[[], str]) -> None:
    """Kills: a list of modules that somebody forgets to lengthen."""
    before, added = key(), sources / "engine" / "client" / "vmap" / "added.py"
    added.write_text("RATE = 1\n")
    try:
        assert key() != before
    finally:
        added.unlink()


@pytest.mark.parametrize(
    ("code", "same"),
    [
        ("x = 1\nlog.info('at %d', x)", True),
        ("x = 1\nif x:\n    pass\nelse:\n    log.error('at %d', x)", False),  # the branch is code
        ("x = 1\nlog.info('at %d', x := 2)", False),  # a message that computes
        ("x = 1\nlog.add(x)", False),
        ("x = 1\nblog.info(x)", False),
        ("import logging\nlog = logging.getLogger('a')\nx = 1", True),
        ("import logging, math\nx = 1", False),
        ("x = 1\n'a text'", False),
    ],
)
def test_what_only_logs(code: str, same: bool) -> None:
    """Kills: more than messages left out of the hash."""
    assert (digest_of(code) == digest_of("x = 1")) == same


def test_the_numeric_path_is_whole_rooms() -> None:
    """Kills: a folder that the walk does not enter."""
    files = {path for room in ROOMS for path in (ROOT / room.replace(".", "/")).rglob("*.py")} | {hashing.file_of(ALSO)}
    assert {hashing.file_of(module) for module in numeric_path()} == files
    assert len(numeric_path()) == len(files) and list(numeric_path()) == sorted(numeric_path())


@each("module", numeric_path())
def test_bits_go_through_the_rooms_alone(module: str) -> None:
    """Kills: arithmetic that a hashed room takes from one that is not hashed."""
    found = set[str]()
    for node in ast.walk(ast.parse(hashing.file_of(module).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    engine = {name for name in found if name.split(".")[0] in ("engine", "algorithms", "tune_configs")}
    known = tuple(f"{name}." for name in (*ROOMS, *OUTSIDE))
    assert not {name for name in engine if not f"{name}.".startswith(known)}


@each("path", sorted((ROOT / "engine" / "run").glob("*.py")))
def test_a_run_carries_tensors_and_computes_with_none(path: Path) -> None:
    """Kills: sums, draws or weights that the loop of a run makes itself, where no hash covers them."""
    may = {  # and why
        "preparing": {"torch", "numpy"},  # looks for a card, and counts rows
        "replay": {"numpy"},  # lays arrays out as files want them
    }.get(path.stem, set[str]())
    tree = ast.parse(path.read_text())
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert not found & {"torch", "numpy"} - may
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module is not None]
    names = {alias.name for node in taken if str(node.module).startswith(("torch", "numpy")) for alias in node.names}
    assert names <= {"Tensor"}
