"""Seeds that are added until claims are decided: which, how many, what is written, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from engine.base.errors import ConfigError, RunFolderError
from engine.results.claims import Claim
from engine.results.loading import load as load_results
from engine.results.results import Results
from engine.results.statistics import CONFIDENCE
from engine.sweeps.definition import Asha
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.observers import Observers, SweepObserver
from engine.sweeps.options import How
from engine.sweeps.running import SweepResult, reopened
from fedskew import resume
from fedskew.lab.comparing.intervals import fewest
from fedskew.lab.comparing.verdicts import Verdict, judge
from fedskew.lab.sweeping import deciding
from fedskew.lab.sweeping.deciding import run_until_decided, sentence
from tests.lab.test_claims import CLAIM, against, results
from tests.support import small_sweeps

CLAIMS = (Claim("a", "s", {"mu": 0.0}, {"mu": 1.0}),)


def sweep(*overrides: str, **changes: Any) -> NamedSweep:
    """Two settings, seeds 0 and 1; claims that ``Machine`` decides."""
    found = load(f"{small_sweeps.__file__}:pair", "laptop", [], {})
    found = replace(found, overrides=overrides, sweep=replace(found.sweep, seeds=(0, 1), claims=CLAIMS, **changes))
    return replace(found, most=8)


class Machine:
    """What a sweep's trials come to, without trials: differences of ``claims`` by seed, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *claims: Callable[[int], float], places: int = 2) -> None:
        self.ran: list[tuple[int, ...]] = []
        self._claims, self._places = claims, places
        self.dies_at = 0
        monkeypatch.setattr("fedskew.lab.sweeping.measuring.run_sweep", self.run)
        monkeypatch.setattr(deciding, "load", self.load)

    def run(self, named: NamedSweep, out: Path, how: How, *more: Any) -> SweepResult:
        folder = SweepFolder.for_sweep(named, out)
        folder.create(folder.with_added(named), how.to_mapping())
        self.ran.append(tuple(folder.sweep()["seeds"]))
        if len(self.ran) == self.dies_at:
            raise KeyboardInterrupt
        trials = 2 * len(self.ran[-1])
        return SweepResult(out, trials, {"finished": trials}, 0, 0, False, self._places)

    def load(self, folder: Path) -> Results:
        values = SweepFolder(folder).sweep()
        claims = [replace(CLAIM, where={"alpha": number}) for number, _ in enumerate(self._claims)]
        cells = {n: against([value(seed) for seed in values["seeds"]]) for n, value in enumerate(self._claims)}
        return replace(results(cells, claims), looks=values.get("looks", "once"))


def clear(seed: int) -> float:
    return 0.02 + 0.004 * (seed % 2)


def unclear(seed: int) -> float:
    return 0.02 * (1 if seed % 2 else -1) + 0.006


def words(verdicts: Sequence[Verdict]) -> list[str]:
    return [one.verdict for one in verdicts]


def test_seeds_are_added_until_each_claim_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one look at too few seeds; a seed twice; seeds that go on after the verdict, or beyond the most; the
    verdict of t on three seeds."""
    machine = Machine(monkeypatch, clear)
    named, _, verdicts = run_until_decided(sweep(), tmp_path / "clear", How())
    assert machine.ran == [(0, 1), (0, 1, 2, 3)]
    assert words(verdicts) == ["held"]
    assert named.sweep.seeds == (0, 1, 2, 3)
    machine = Machine(monkeypatch, clear, unclear)
    _, _, verdicts = run_until_decided(sweep(), tmp_path / "unclear", How())
    assert [len(seeds) for seeds in machine.ran] == [2, 4, 5, 6, 7, 8]
    assert machine.ran[-1] == tuple(range(8))
    assert words(verdicts) == ["held", "undecided"]
    assert sentence(1, verdicts[0], "") == "claim 1    held with 8 seeds: mu = 1 helps"
    assert "undecided after 8 seeds; about " in sentence(2, verdicts[1], "")
    assert "no number of seeds decides it (never run)" in sentence(2, verdicts[1], "never run")


def test_places_of_trials_are_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a machine of many cores that computes one seed at a time; more seeds than the most to fill it."""
    machine = Machine(monkeypatch, unclear, places=7)
    run_until_decided(sweep(), tmp_path / "many", How())
    assert machine.ran == [(0, 1), (0, 1, 2, 3, 4), tuple(range(8))]


def test_an_added_seed_is_on_disk_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a sweep that is killed and begins again with its first seeds, or is another sweep; its most forgotten."""
    machine = Machine(monkeypatch, clear)
    machine.dies_at = 2
    with pytest.raises(KeyboardInterrupt):
        run_until_decided(sweep(), tmp_path / "killed", How())
    folder = SweepFolder(tmp_path / "killed")
    assert folder.sweep()["seeds"] == [0, 1, 2, 3]
    monkeypatch.setattr("engine.sweeps.running.load", lambda *_: replace(sweep(), most=None))
    again, how = reopened(folder.path, {})
    assert (again.sweep.seeds, again.added, again.most, again.digest) == ((0, 1, 2, 3), (2, 3), 8, sweep().digest)
    machine = Machine(monkeypatch, clear)
    _, _, verdicts = run_until_decided(again, folder.path, how)
    assert (machine.ran, words(verdicts)) == ([(0, 1, 2, 3)], ["held"])
    machine.run(replace(sweep(), most=None), folder.path, how)  # by someone who does not ask for it
    assert (folder.sweep()["looks"], machine.ran[-1]) == ("repeatedly", (0, 1, 2, 3))
    values = folder.sweep()
    for damaged in (3, {"most": 8}, {"most": 8, "added": ["a"]}):
        (folder.path / "sweep.yaml").write_text(yaml.safe_dump({**values, "until_decided": damaged}))
        with pytest.raises(RunFolderError, match="until_decided"):
            reopened(folder.path, {})


def test_python_goes_on_as_the_command_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a resume from Python that leaves the claims where they are; one that gives seeds to a sweep that did not
    ask for them, or forgets what its claims are measured by, in a sweep of either kind."""
    begun, measured = sweep(diagnose="weights"), list[Any]()

    def diagnose(*words: Any) -> pd.DataFrame:
        measured.append(words)
        return pd.DataFrame({"trial": ["00000"]})

    machine = Machine(monkeypatch, clear)
    monkeypatch.setattr("engine.results.frames.load_results", machine.load)
    monkeypatch.setattr("fedskew.lab.diagnosis.sweep.diagnose_sweep", diagnose)
    machine.run(begun, tmp_path / "asked", How())
    monkeypatch.setattr("engine.sweeps.running.load", lambda *_: replace(begun, most=None))
    resume(tmp_path / "asked")
    assert machine.ran == [(0, 1), (0, 1), (0, 1, 2, 3)]
    assert [words[2].layers for words in measured] == ["weights"] * 2
    machine.ran.clear()
    machine.run(replace(begun, most=None), tmp_path / "plain", How())
    resume(str(tmp_path / "plain"))
    assert machine.ran == [(0, 1), (0, 1)]
    assert [words[2].layers for words in measured] == ["weights"] * 3


def test_what_seeds_cannot_decide_keeps_nothing_going(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: seeds added to the most for a claim that lacks its figure, its trials or its axis; a claim that can still
    be contradicted given up with it."""
    lost: dict[str, Any] = {"metric": "rounds_to_target", "larger_is_better": False}
    for changes, seeds in (({"where": {"beta": 1}}, 2), (lost, 2)):
        machine = Machine(monkeypatch, clear)
        whole = machine.load

        def load(folder: Path, changes: Any = changes, whole: Any = whole) -> Results:
            found = whole(folder)
            table = found.trials.assign(rounds_to_target=float("nan"))
            return replace(found, trials=table, claims=(replace(CLAIM, **changes),))

        monkeypatch.setattr(deciding, "load", load)
        _, _, verdicts = run_until_decided(sweep(), tmp_path / str(len(changes) + len(str(changes))), How())
        assert (words(verdicts), len(machine.ran[-1])) == (["undecided"], seeds)


REFUSED: list[tuple[tuple[str, ...], dict[str, Any], int, str]] = [
    ((), {"claims": ()}, 8, "has no claim to decide; leave the option away"),
    ((), {"scheduler": Asha(grace=2)}, 8, "ends or changes trials by each other's figures"),
    (("seeds=[0,1]",), {}, 8, r"--until-decided=seeds=\[0,1\]: names seeds that the option is to choose"),
    ((), {}, 3, "--most=3: is below the 4 seeds from which on a claim can be decided; set --most 20"),
    ((), {"seeds": tuple(range(5))}, 4, "--most=4: is below the 5 seeds that the sweep begins with; set --most 20"),
]


@pytest.mark.parametrize(("overrides", "changes", "most", "message"), REFUSED, ids=lambda value: str(value)[:20])
def test_what_does_not_go_together(
    tmp_path: Path, overrides: tuple[str, ...], changes: dict[str, Any], most: int, message: str
) -> None:
    """Kills: hours of trials that cannot decide anything; seeds of two masters."""
    named = sweep(*overrides)
    named = replace(named, most=most, sweep=replace(named.sweep, **changes))
    with pytest.raises(ConfigError, match=message):
        run_until_decided(named, tmp_path / "none", How())
    assert not (tmp_path / "none").exists()


def test_the_command_asks_for_as_many_as_can_decide(call: Any) -> None:
    """Kills: help that offers a number of seeds that is refused, or never decides anything."""
    code, out, _ = call("sweep", "--help")
    assert code == 0 and f"x>={fewest(CONFIDENCE)}" in out


def test_too_few_seeds_are_not_near_the_margin() -> None:
    """Kills: a trial that failed told as an effect of nearly zero, with a thousand seeds that would not do; 1 seeds."""
    (one,) = judge(replace(results({0: against([0.02])}, [CLAIM]), looks="repeatedly"))
    told = "undecided after 1 seed, since at alpha=0 one seed has finished on both sides, and two are the least"
    assert sentence(1, one, "") == f"claim 1    {told}: mu = 1 helps"
    apart = replace(one, seeds=(0, 1), cells=one.cells * 2)  # each cell has another one
    assert "undecided after 2 seeds, since at alpha=0 one seed has finished" in sentence(1, apart, "")
    (margin,) = judge(replace(results({0: against([0.02, -0.02])}, [CLAIM]), looks="repeatedly"))
    assert "undecided after 2 seeds, and so near the margin" in sentence(1, margin, "")


def test_looks_are_read_from_the_folder(tmp_path: Path) -> None:
    """Kills: a report that judges by t a sweep whose seeds were added; a word that is no number of looks."""
    SweepFolder(tmp_path).create(sweep().grown((2,)), How().to_mapping())
    assert load_results(tmp_path).looks == "repeatedly"
    values = SweepFolder(tmp_path).sweep()
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**values, "looks": "often"}))
    with pytest.raises(RunFolderError, match="is not a sweep of this version"):
        load_results(tmp_path)


def test_who_raised_once_is_told_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """Kills: an observer that has raised and is asked anew in each sweep of one command."""

    class Raises(SweepObserver):
        def on_prepare(self) -> None:
            raise RuntimeError("no terminal")

    told = Observers([Raises()])
    for _ in range(2):
        Observers(told).tell("on_prepare")
    assert caplog.text.count("and is told no more") == 1
