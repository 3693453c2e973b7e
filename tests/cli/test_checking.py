"""``fedskew check`` and ``fedskew new``: lines, exit codes, sentences, and files that pass as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedskew.testing.checks import CHECKS, cause_of
from fedskew.testing.templates import KINDS

ROOT = Path(__file__).parents[2]
Call = Callable[..., tuple[int, str, str]]


SOUND = """
import numpy, fedskew

@fedskew.partition("{name}")
def {name}(labels, rng, clients: int = 4):
    return numpy.array_split(rng.permutation(len(labels)), clients)
"""


def test_each_check_has_a_line(call: Call, tmp_path: Path) -> None:
    """Kills: a check that is not made, or not told of; an exit code of 1 where all is well."""
    (tmp_path / "sound_one.py").write_text(SOUND.format(name="sound_one"))
    code, out, _ = call("check", "sound_one.py")
    names = [check.name for check in CHECKS["partition"]]
    wanted = ["partition sound_one", *(f"  ok       {name}" for name in names), "7 ok, 0 failed, 0 skipped"]
    assert (code, out.splitlines()) == (0, wanted)


def test_a_failed_check_is_told_and_ends_with_1(call: Call, tmp_path: Path) -> None:
    """Kills: an exit code of 0 after a failure; checks after it that are not made; a part that is forgotten."""
    text = SOUND.format(name="two_parts") + (
        "\n@fedskew.partition('unfair')\n"
        "def unfair(labels, clients: int = 4):\n"
        "    return numpy.array_split(numpy.random.permutation(len(labels)), clients)\n"
    )
    (tmp_path / "two_parts.py").write_text(text)
    code, out, _ = call("check", "two_parts.py")
    lines = out.splitlines()
    assert code == 1
    assert [line for line in lines if not line.startswith("  ")] == [
        "partition two_parts",
        "partition unfair",
        "9 ok, 4 failed, 1 skipped",
    ]
    failed = "partition.name=unfair: draws from numpy's global generator, which has no key; draw from rng"
    first = next(line for line in lines if line.startswith("  FAILED"))
    assert first.startswith("  FAILED   every_row_at_most_once: ") and failed in first
    assert lines.index("  skipped  another_for_another_seed: it is a function that does not ask for rng") > 8


def test_a_partition_is_told_where_its_keys_are_given(call: Call) -> None:
    """Two clients of 2,750 rows: of 1,000, 1,000 and 750 of three classes, and of the rest. Kills: rows that are cut
    and count all the same; a partition that nobody asked for; a measure that is left out."""
    words = ["data.imbalance=10", "data.imbalance_kind=step", "partition.name=shards", "partition.clients=2"]
    words.append("partition.shards_per_client=1")
    code, out, _ = call("check", *words)
    line = out.splitlines()[-1]
    rows = "least_rows 2750, most_rows 2750, dropped_rows 4500, public_rows 0"
    assert code == 0 and line.startswith(f"partition name shards, clients 2, {rows}, label_hellinger 0.")
    found = json.loads(call("check", *words, "--json")[1])["partition"]
    assert found["label_total_variation"] == pytest.approx(5 / 11) and found["effective_classes"] > 3
    code, out, _ = call("check", words[0])
    assert code == 0 and "partition name" not in out


def test_one_mistake_is_told_once(call: Call, tmp_path: Path) -> None:
    """Kills: a sentence repeated for every check that meets the same mistake; a check that is not named, not counted,
    or left out of the JSON; another mistake that is taken for the first one."""
    text = SOUND.format(name="one_wrong").replace("return numpy", "return None and numpy")
    (tmp_path / "one_wrong.py").write_text(text)
    code, out, _ = call("check", "one_wrong.py")
    lines = out.splitlines()
    assert code == 1 and sum(line.startswith("  FAILED") for line in lines) == 1
    others = "makes_the_clients_asked_for, same_for_a_seed, another_for_another_seed, shares_out_test_rows"
    assert f"           4 more checks fail for the same reason as every_row_at_most_once: {others}" in lines
    assert lines[-1] == "2 ok, 5 failed, 0 skipped"
    (part,) = json.loads(call("check", "one_wrong.py", "--json")[1])["parts"]
    failed = [check for check in part["checks"] if check["status"] == "FAILED"]
    assert len(failed) == 5 and all("gave a NoneType" in check["told"] for check in failed)
    assert [check["same_as"] for check in failed] == [None, *["every_row_at_most_once"] * 4]
    met = "Mine fails in a small run: client 0 failed in round 1: KeyError: 'a'; see docs"
    again = "Mine fails with a model with BatchNorm: client 3 failed in round 2: KeyError: 'a'; divide by no 0"
    assert cause_of(met) == cause_of(again) == "KeyError: 'a'" != cause_of(met.replace("'a'", "'b'"))


def test_a_part_without_defaults_is_told_how_to_be_checked(call: Call, tmp_path: Path) -> None:
    """Kills: a traceback where a part cannot be made; a part that is passed over in silence."""
    (tmp_path / "bare_one.py").write_text(SOUND.format(name="bare_one").replace("clients:", "share: float, clients:"))
    code, out, _ = call("check", "bare_one.py")
    told = "partition.share=None: is required; give partition.share a value; give each field a default"
    assert code == 1 and f"  FAILED   has_defaults: {told}" in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("empty_one.py",), "registers no part; write a decorator, fedskew.algorithm, fedskew.model, fedskew.dataset"),
        (("nowhere_one.py",), "FILE="),
        (("fedprx",), "NAME=fedprx: is neither a Python file nor a known part; did you mean 'fedprox'?"),
    ],
)
def test_what_cannot_be_checked_is_refused(call: Call, tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    """Kills: a file without parts that counts as sound; an unknown name without a suggestion."""
    (tmp_path / "empty_one.py").write_text("RATE = 0.1\n")
    code, out, err = call("check", *words)
    assert (code, out) == (2, "") and sentence in err


def test_a_known_name_is_checked(call: Call) -> None:
    """Kills: names that only files stand for; a skipped check without its reason."""
    code, out, _ = call("check", "shards")
    assert code == 0 and out.startswith("partition shards\n")


# --- new ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_begun_passes_as_it_is(call: Call, tmp_path: Path, kind: str) -> None:
    """Kills: a template that breaks a rule, a command that is not the next one."""
    code, out, err = call("new", kind, f"begun_{kind}", "--out", "own folder")
    assert code == 0 and "wrote own folder/" in err
    section = f"{kind}.name=begun_{kind}"
    file, test = f"own folder/begun_{kind}.py", f"own folder/test_begun_{kind}.py"
    assert [line.strip() for line in out.splitlines()] == [
        f"fedskew check '{file}'",
        f"pytest '{test}'",
        f"fedskew run --with '{file}' {section}",
    ]
    code, out, err = call("check", file)
    assert code == 0 and " 0 failed, 0 skipped" in out, out
    text = (tmp_path / file).read_text()
    assert "import fedskew\n" in text and "import engine" not in text and "from engine" not in text
    code, out, err = call("run", "--with", file, section, "rounds=1", "execution.actors=0")
    assert code == 0, err


@pytest.mark.long
@pytest.mark.slow
def test_the_tests_that_are_begun_pass(call: Call, tmp_path: Path) -> None:
    """Kills: a test beside a template that fails, or tries fewer checks than there are."""
    for kind in KINDS:
        assert call("new", kind, f"begun_{kind}", "--out", "own folder")[0] == 0
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "own folder"]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout
    tried = sum(len(CHECKS[kind]) + 1 for kind in KINDS) - 2  # --full and a card: of algorithms
    assert f"{tried} passed" in ended.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("network", "mine"), "KIND=network: is nothing to begin; known: algorithm, model, data, partition"),
        (("algorithm", "fedprox"), "NAME=fedprox: is the name of a known algorithm; for example NAME=my_fedprox"),
        (("algorithm", "json"), "NAME=json: is the name of another Python module; for example NAME=my_json"),
        (("model", "My-Net"), "NAME=My-Net: must be a name in Python: letters a-z, digits and '_', beginning with"),
        (("model", "class"), "NAME=class: must be a name in Python"),
        (("data", "there"), "test_there.py: is there already; take another name, or another folder"),
    ],
)
def test_a_name_that_will_not_do_is_refused(call: Call, tmp_path: Path, words: tuple[str, ...], sentence: str) -> None:
    """Kills: a file that hides a module, one that is written over, one that no part can be registered from."""
    (tmp_path / "test_there.py").write_text("mine\n")
    code, _, err = call("new", *words)
    assert code == 2 and sentence in " ".join(err.split())
    assert {path.name for path in tmp_path.iterdir()} == {"test_there.py"}
    assert (tmp_path / "test_there.py").read_text() == "mine\n"
