"""How fast is this tree beside an older commit of it? Both in one run, in turns. About 15 minutes on two cores.

    python -m benchmarks.old_beside_new OLD                              # a git revision: 057a3e3, 75997ce^, HEAD~20
    python -m benchmarks.old_beside_new OLD --cases W1 W2-actors --cycles 16 --seconds 5
    python -m benchmarks.old_beside_new OLD --cycles 1 --seconds 0 data.name=fashion_mnist_sample    # a smoke test

The old commit's files are laid into a temporary folder, out of git's store. A case is a workload of
``benchmarks/workloads.py``, in process or on two client actors; each tree does it in a process of its own that
imports nothing but that tree and the same installed packages. Both have begun before the first turn and wait for
theirs, in which the other is idle; a turn is as many rounds for both, who begins changes from cycle to cycle, and the
first cycle is dropped. Each tree times its own turn as its ``make bench`` does: dispatch, aggregation, rows and
checkpoints count. That both have the same work is looked at: settings that both know must be equal.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import RESULTS, quartiles, save
from benchmarks.speed import busy_cores

ROOT = Path(__file__).parents[1]
CASES = {  # workload and client actors
    "W1": ("W1", 0),
    "W2": ("W2", 0),
    "W3": ("W3", 0),
    "W1-actors": ("W1", 2),
    "W2-actors": ("W2", 2),
}
WARM_UP = 2  # rounds of a turn before the first that counts, twice
OWN = "execution"  # the section in which each tree may do as it likes


class TreeFailed(Exception):
    """A tree that cannot do a case, with the last that it said."""


def serve() -> None:
    """Be one tree's process: answer each line of the input, a number of rounds, with the seconds of one of them.

    Its source is what the process of either tree runs, so that it imports here what all trees have had.
    """
    import json
    import os
    import sys
    import tempfile
    from pathlib import Path

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else is printed is no answer
    import engine
    from benchmarks.contestants import Engine
    from benchmarks.workloads import WORKLOADS

    experiment = WORKLOADS[sys.argv[1]].experiment(sys.argv[1], sys.argv[2:])
    with tempfile.TemporaryDirectory() as folder:
        contestant, done = Engine(experiment, Path(folder) / "run"), 0
        about = {"tree": str(Path(engine.__file__).parents[1]), "experiment": experiment.to_mapping()}
        print(json.dumps(about, default=str), file=answers)
        for line in sys.stdin:
            rounds = range(done + 1, done + 1 + int(line))
            print(json.dumps(contestant.turn(rounds)), file=answers)
            done = rounds[-1]
        contestant.close()


class Tree:
    """A tree's process at a case.

    with Tree(folder, "W1", ["execution.actors=0"]) as tree:
        tree.turn(4)        # seconds per round
    """

    def __init__(self, folder: Path, workload: str, overrides: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 -- it lives as long as the process
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"{inspect.getsource(serve)}\nserve()", workload, *overrides],
            cwd=folder,
            env=environment | {"PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        try:
            about = self._answer()
            if Path(about["tree"]).resolve() != folder.resolve():
                raise TreeFailed(f"it imported {about['tree']} in place of {folder}")
        except BaseException:
            self._end(kill=True)
            raise
        self.experiment: dict[str, Any] = about["experiment"]

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end(kill=kind is not None)

    def turn(self, rounds: int) -> float:
        """Seconds per round over as many rounds more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{rounds}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it says why where its answer should be
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._said.seek(0)
            said = [text for text in self._said.read().decode(errors="replace").splitlines() if text.strip()]
            raise TreeFailed(f"ended with code {code}, saying: {(said or ['nothing'])[-1].strip()[:200]}")
        return json.loads(line)

    def _end(self, kill: bool) -> None:
        if kill:
            self._process.terminate()
        self._process.communicate()  # the input ends, and with it the process
        self._said.close()


def unpack(revision: str, folder: Path) -> str:
    """Lay the files of a commit into ``folder``; the commit's hash."""
    found = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise SystemExit(f"OLD: {revision!r} names no commit of this repository; git log --oneline lists them")
    commit = found.stdout.strip()
    packed = folder.with_suffix(".tar")
    subprocess.run(["git", "archive", "--output", packed, commit], cwd=ROOT, check=True)
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    packed.unlink()
    return commit


def here() -> dict[str, Any]:
    """This tree's commit, and whether files of it were changed since."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain"], check=True, capture_output=True, text=True).stdout
    return {"commit": head, "changed": bool(changed.strip())}


def unlike(one: Mapping[str, Any], other: Mapping[str, Any], within: str = "") -> list[str]:
    """Return the keys of both that have unlike values."""
    found = []
    for key in one.keys() & other.keys() - {OWN}:
        mine, others = one[key], other[key]
        if isinstance(mine, Mapping) and isinstance(others, Mapping):
            found += unlike(mine, others, f"{within}{key}.")
        elif mine != others:
            found.append(f"{within}{key}")
    return sorted(found)


def in_turns(old: Tree, new: Tree, cycles: int, seconds: float) -> tuple[dict[str, list[float]], int]:
    """Seconds per round of both, turn by turn, and the rounds of a turn: as many as take the older some ``seconds``."""
    trees, turns = {"old": old, "new": new}, {"old": list[float](), "new": list[float]()}
    pace = [{name: tree.turn(WARM_UP) for name, tree in trees.items()} for _ in range(2)][-1]["old"]
    count = max(1, round(seconds / pace))
    for cycle in range(cycles + 1):
        took = {name: trees[name].turn(count) for name in (("old", "new") if cycle % 2 else ("new", "old"))}
        if cycle:
            for name, one in took.items():
                turns[name].append(one)
    return turns, count


def entry(turns: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """For the file: medians and quartiles of either's turns, and of the ratio of those beside each other."""
    ratios = [new / old for old, new in zip(turns["old"], turns["new"], strict=True)]
    found: dict[str, Any] = {
        name: {"seconds_per_round": statistics.median(taken), "quartiles": quartiles(taken), "turns": list(taken)}
        for name, taken in turns.items()
    }
    return {**found, "ratio": statistics.median(ratios), "ratio_quartiles": quartiles(ratios)}


def measured(name: str, folders: Mapping[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """All of one case."""
    workload, actors = CASES[name]
    overrides = [f"execution.actors={actors}", *options.overrides]
    with ExitStack() as stack:
        trees = dict[str, Tree]()
        for which, folder in folders.items():
            try:
                trees[which] = stack.enter_context(Tree(folder, workload, overrides))
            except TreeFailed as error:
                return {"failed": f"{which}: {error}"}
        keys = unlike(trees["old"].experiment, trees["new"].experiment)
        if keys:
            return {"failed": f"the trees have other work, by {', '.join(keys)}"}
        try:
            turns, count = in_turns(trees["old"], trees["new"], options.cycles, options.seconds)
        except TreeFailed as error:
            return {"failed": str(error)}
        return {**entry(turns), "rounds_per_turn": count, "busy_cores_while_both_wait": busy_cores(2.0)}


def show(cases: Mapping[str, Mapping[str, Any]], console: Console) -> None:
    def words(middle: float, ends: Sequence[float], form: str) -> str:
        return f"{middle:{form}} ({ends[0]:{form}} to {ends[1]:{form}})"

    table = Table("", "old, ms per round", "new, ms per round", "new by old", title="median (quartiles) of turns")
    for name, case in cases.items():
        if "failed" in case:
            table.add_row(name, case["failed"], "", "")
            continue
        milliseconds = (
            words(1e3 * one["seconds_per_round"], [1e3 * end for end in one["quartiles"]], ".1f")
            for one in (case["old"], case["new"])
        )
        table.add_row(name, *milliseconds, words(case["ratio"], case["ratio_quartiles"], ".3f"))
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD", help="a git revision, whose files are timed beside those that are here")
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting, of both")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--cycles", type=int, default=8, help="turns of each, after one to warm up")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn of the older; at least one round")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for old_beside_new.json")
    options = parser.parse_intermixed_args(arguments)
    console, cases = Console(width=110), dict[str, dict[str, Any]]()
    with tempfile.TemporaryDirectory() as temporary:
        old = Path(temporary) / "old"
        results = {
            "old": {"revision": options.old, "commit": unpack(options.old, old)},
            "new": here(),
            "setting": {"cycles": options.cycles, "seconds": options.seconds, "overrides": options.overrides},
            "cases": cases,
        }
        for name in options.cases:
            print(f"{name}: {options.cycles + 1} cycles, turns of about {options.seconds:g} s", flush=True)
            cases[name] = measured(name, {"old": old, "new": ROOT}, options)
            save("old_beside_new", results, options.results)
    show(cases, console)
    return 1 if any("failed" in case for case in cases.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
