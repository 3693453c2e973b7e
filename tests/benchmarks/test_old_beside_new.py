"""Two trees in turns: each from its own files, the same rounds, and ratios of turns beside each other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any, cast

import pytest

from benchmarks import old_beside_new
from benchmarks.common import quartiles
from benchmarks.old_beside_new import ROOT, Tree, TreeFailed, entry, in_turns, main, unlike

SMALL = [
    "data.name=fashion_mnist_sample",
    "data.train_samples=400",
    "data.test_samples=20",
    "partition.clients=40",
    "participation.count=4",
]
CONTESTANTS = """
    class Engine:
        def __init__(self, experiment, folder):
            print("not an answer")
            self.pace, self.done = experiment.pace, 0

        def turn(self, rounds):
            assert rounds.start == self.done + 1
            if rounds[-1] > 50:
                raise ValueError("no more than 50 rounds")
            self.done = rounds[-1]
            return self.pace * len(rounds)

        def close(self):
            pass
"""
WORKLOADS = """
    class Experiment:
        def __init__(self, words):
            self.pace, self.words = {pace}, words

        def to_mapping(self):
            return {{"local": {{"lr": {pace}, "epochs": 1}}, "execution": {{"actors": {pace}}}, "words": self.words}}

    class Workload:
        def experiment(self, name, overrides):
            return Experiment([name, *overrides])

    WORKLOADS = dict.fromkeys(["W1", "W2"], Workload())
"""


def fake(folder: Path, pace: float) -> Path:
    """A tree with what is asked of one: each round of a turn takes ``pace`` times the turn's rounds."""
    for name, text in {
        "engine/__init__.py": "",
        "benchmarks/__init__.py": "",
        "benchmarks/contestants.py": CONTESTANTS,
        "benchmarks/workloads.py": WORKLOADS.format(pace=pace),
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return folder


@pytest.mark.long
def test_a_tree_answers_for_itself(tmp_path: Path) -> None:
    """Kills: a process that imports this tree, or the installed one; what a tree prints taken for its answer; turns
    over the same rounds again; a failure that is not told, or waited for without end."""
    with Tree(fake(tmp_path / "old", 0.5), "W1", ["a=1"]) as tree:
        assert tree.experiment == {
            "local": {"lr": 0.5, "epochs": 1},
            "execution": {"actors": 0.5},
            "words": ["W1", "a=1"],
        }
        assert [tree.turn(2), tree.turn(4)] == [1.0, 2.0]
        with pytest.raises(TreeFailed, match="ended with code 1, saying: ValueError: no more than 50 rounds"):
            tree.turn(45)
    with pytest.raises(TreeFailed, match="ended with code 1, saying: KeyError: 'W9'"):
        Tree(tmp_path / "old", "W9", [])
    (tmp_path / "old" / "engine" / "__init__.py").unlink()
    (tmp_path / "old" / "engine").rename(tmp_path / "gone")
    with pytest.raises(TreeFailed, match=r"it imported .* in place of .*/old"):
        Tree(tmp_path / "old", "W1", [])


class Paced:
    """A tree whose turns take what they are told, one after the other."""

    def __init__(self, name: str, asked: list[tuple[str, int]], *turns: float) -> None:
        self._name, self._asked, self._turns = name, asked, list(turns)

    def turn(self, rounds: int) -> float:
        self._asked.append((self._name, rounds))
        return self._turns.pop(0)


def test_turns() -> None:
    """Kills: other rounds for one of them, the same one first in each cycle; a first cycle that counts; turns as long
    as the first, cold rounds say, or as the newer's."""
    asked: list[tuple[str, int]] = []
    old = Paced("old", asked, 9.0, 0.5, 7.0, 1.0, 2.0, 3.0)
    new = Paced("new", asked, 8.0, 0.1, 6.0, 2.0, 2.0, 2.0)
    turns, count = in_turns(cast(Tree, old), cast(Tree, new), cycles=3, seconds=2.0)
    assert count == 4
    assert turns == {"old": [1.0, 2.0, 3.0], "new": [2.0, 2.0, 2.0]}
    assert [name for name, rounds in asked if rounds == 4] == ["new", "old", "old", "new"] * 2
    assert len(asked) == 12


def test_medians_and_quartiles() -> None:
    """Kills: a ratio of medians where turns are paired, one upside down; quartiles beyond what was measured."""
    found = entry({"old": [1.0, 4.0, 3.0], "new": [1.0, 2.0, 9.0]})
    assert (found["ratio"], found["ratio_quartiles"]) == (1.0, [0.75, 2.0])
    assert (found["old"]["seconds_per_round"], found["new"]["seconds_per_round"]) == (3.0, 2.0)
    assert found["new"]["quartiles"] == [1.5, 5.5]
    assert quartiles([3.0]) == [3.0, 3.0]


def test_work_that_is_not_the_same() -> None:
    """Kills: a setting that one tree alone knows taken for a difference, how a tree runs it, too; a difference within
    a section not seen."""
    one = {"seed": 0, "local": {"lr": 0.1, "epochs": 1}, "execution": {"actors": 0}}
    other = {"seed": 1, "local": {"lr": 0.2, "epochs": 1, "clip": None}, "execution": {"actors": 2}, "later": 3}
    assert unlike(one, other) == ["local.lr", "seed"]
    assert unlike(one, one | {"execution": {"actors": 2}, "later": 3}) == []


def test_other_work_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a ratio of unlike work; a case that failed and an exit code of 0."""

    def unpack(revision: str, folder: Path) -> str:
        fake(folder, 0.5)
        return "0" * 40

    monkeypatch.setattr(old_beside_new, "unpack", unpack)
    monkeypatch.setattr(old_beside_new, "here", dict)
    monkeypatch.setattr(old_beside_new, "ROOT", fake(tmp_path / "new", 0.25))
    assert main(["HEAD", "--cases", "W1", "W2-actors", "--results", str(tmp_path)]) == 1
    cases = json.loads((tmp_path / "old_beside_new.json").read_text(encoding="utf-8"))["cases"]
    failed = {"failed": "the trees have other work, by local.lr"}
    assert cases == {"W1": failed, "W2-actors": failed}


def test_a_revision_that_is_none() -> None:
    """Kills: a trace in place of a sentence; a word that git takes for an option."""
    for word in ("no-such-revision", "--all"):
        with pytest.raises(SystemExit, match=f"OLD: '{word}' names no commit of this repository"):
            old_beside_new.unpack(word, Path("nowhere"))


@pytest.mark.long
def test_a_commit_beside_this_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: a child that asks a tree for what it has not; a table or a file without one of the two."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if head.returncode:
        pytest.skip("this tree is no clone")
    assert main(["HEAD", "--cases", "W2", "--cycles", "1", "--seconds", "0", "--results", str(tmp_path), *SMALL]) == 0
    found: dict[str, Any] = json.loads((tmp_path / "old_beside_new.json").read_text(encoding="utf-8"))
    assert found["old"] == {"revision": "HEAD", "commit": head.stdout.strip()}
    assert found["new"]["commit"] == head.stdout.strip()
    [case] = found["cases"].values()
    assert case["rounds_per_turn"] == 1 and len(case["old"]["turns"]) == len(case["new"]["turns"]) == 1
    assert case["ratio"] == pytest.approx(case["new"]["turns"][0] / case["old"]["turns"][0])
    row = capsys.readouterr().out.splitlines()[-2]
    assert row.count("to") == 3 and f"{case['ratio']:.3f}" in row
