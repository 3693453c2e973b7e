"""The ledger of claims: small tables that are recorded, judged anew, and known for an earlier version's."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from engine.base.digests import digest_of, portable_digest_of
from engine.base.errors import ConfigError, RunError, RunFolderError
from engine.experiment import Experiment
from engine.record.numerics import UNKNOWN, hardware_of, processor
from engine.results.claims import Claim
from engine.results.loading import load
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.diagnosis.diagnosis import DiagnosisOptions
from fedskew.lab.images.sweep import look_at_sweep
from fedskew.lab.ledger import (
    Entry,
    SweepRows,
    SweepSpec,
    check_machine,
    confirmed,
    counts,
    file_of,
    largest_difference,
    page,
    read,
    read_all,
    record,
    rows_of,
    seed_of,
    to_mappings,
    with_headlines,
    write,
)
from fedskew.lab.ledger.entry import Confirmation
from fedskew.lab.ledger.page import BEGIN, END, anchor, local_steps
from fedskew.lab.ledger.rows import EARLIER, NOT_RUN
from fedskew.lab.report.facts import ledger_note
from fedskew.lab.tuned_sides import Candidate, TunedSide, second_best
from fedskew.lab.tuned_sides import write as write_choices
from tests.support.sweep_folders import ALPHA, BASE, MU, make_sweep

CODE, SOURCES = "c" * 16, "s" * 16
NAME = "made.headline"
SETTING = "fashion_mnist_sample; mlp; 20 clients; 3 rounds"
PAPERS = {"made": "MADE, a method that was made up (Nobody 2026): its tables."}


def claim(text: str, better: float, worse: float, **more: Any) -> dict[str, Any]:
    return Claim(text, "table 1", {"mu": better}, {"mu": worse}, **more).to_mapping()


CLAIMS = [
    claim("mu = 0.1 helps", 0.1, 0.0),
    claim("mu = 0.1 helps on average", 0.1, 0.0, every=False),
    claim("mu = 0 is better", 0.0, 0.1),
    claim("mu = 0.1 gains thirty points", 0.1, 0.0, margin=0.3, where={"alpha": 0.5}),
    claim("mu = 0.1 is sooner at 82 %", 0.1, 0.0, metric="rounds_to_target", larger_is_better=False),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of twelve trials, as a real one leaves them."""
    folder = make_sweep(
        tmp_path_factory.mktemp("ledger") / "sweep",
        axes=({**MU, "values": [0.0, 0.1]}, ALPHA),
        rounds=3,
        client_rows=False,
        claims=CLAIMS,
        reference=NAME,
        name=NAME,
        overrides=[],
        target_accuracy=0.82,
    )
    for path in folder.glob("trials/*/summary.json"):
        summary = json.loads(path.read_text())
        versions = {"fedskew": "1", "torch": "2", "device": "cpu", "processor": "A B C", "code": CODE}
        path.write_text(json.dumps(summary | {"versions": versions}))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "sweep"))


def stated_of(folder: Path, **changes: Any) -> SweepSpec:
    """The sweep of a folder as it would be stated now, with ``changes``."""
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    settings = [json.loads(path.read_text())["setting"] for path in folder.glob("trials/*/trial.json")]
    known: dict[str, Any] = {
        "name": NAME,
        "profile": "laptop",
        "title": "A sweep",
        "claims": tuple(map(Claim.from_mapping, values["claims"])),
        "definition": values,
        "identity": Experiment.from_mapping(values["base"]).identity,
        "settings": lambda: settings,
        "sources": lambda: SOURCES,
        "codes": lambda: frozenset({CODE}),
    }
    return SweepSpec(**known | changes)


def judged(entry: Entry, stated: SweepSpec | None) -> SweepRows:
    (found,) = rows_of([] if stated is None else [stated], [entry], lambda _: stated)
    return found


def words(rows: SweepRows) -> list[str]:
    return [row.word for row in rows.rows]


def test_an_entry_gives_the_verdicts_of_the_folder(folder: Path, tmp_path: Path) -> None:
    """Kills: a figure that is rounded on its way; a verdict that is kept; cells or seeds that are lost, for a claim in
    every cell, on average, of one cell, of a metric that few trials have."""
    expected = judge(load(folder))
    write(tmp_path / "ledger", record(folder, stated_of(folder)))
    (entry,) = read_all(tmp_path / "ledger")
    rows = judged(entry, stated_of(folder))
    assert [repr(row.verdict) for row in rows.rows] == [repr(one) for one in expected]
    assert {"held", "not held", "undecided"} == set(words(rows))
    assert "undecided" not in file_of(tmp_path / "ledger", NAME, "laptop").read_text()
    assert counts([rows]) == {word: words(rows).count(word) for word in counts([])}


def test_what_is_recorded(folder: Path) -> None:
    """Kills: the folder of one machine in the ledger; rounds that another trial computed counted as this one's."""
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    values["overrides"] = ["data.root=/somewhere", "rounds=3"]
    values["base"]["data"] = {"name": "fashion_mnist", "root": "/somewhere"}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values))
    entry = record(folder, stated_of(folder))
    assert entry.overrides == ("data.root=FOLDER", "rounds=3")
    assert "/somewhere" not in repr(entry)
    assert entry.seconds == pytest.approx(12 * 3 * 0.25)
    assert entry.machine == {}  # another processor than the one that computed it
    rows = judged(entry, stated_of(folder))
    assert rows.command == "fedskew sweep made.headline data.root=FOLDER rounds=3"
    assert "(with rounds=3)" in page([rows], PAPERS)


def test_seeds_that_were_added_are_judged_by_their_own_interval(folder: Path, tmp_path: Path) -> None:
    """Kills: an entry judged as if its seeds had been looked at once; a command that would judge it so."""
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    values |= {"looks": "repeatedly", "until_decided": {"most": 12, "added": [2]}}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values))
    (entry,) = (read(write(tmp_path, record(folder, stated_of(folder)))),)
    rows = judged(entry, stated_of(folder))
    assert set(words(rows)) == {"undecided"}  # three seeds decide nothing then
    assert rows.command == "fedskew sweep made.headline --until-decided --most 12"


def test_the_second_best_stands_beside_the_best(folder: Path, tmp_path: Path) -> None:
    """Kills: the sensitivity of a sweep in the place of the sweep, counted with it, or among the headlines; choices
    that nobody is told of; a setting that is tuned otherwise and passes for the same."""
    side = TunedSide({"mu": 0.1}, (Candidate({"lr": 0.1}, 0.9), Candidate({"lr": 0.2}, 0.8)), (1000,), "accuracy")
    for choices in ([side], second_best([side])):
        write_choices(folder, choices)
        write(tmp_path / "ledger", record(folder, stated_of(folder)))
    second, best = sorted(read_all(tmp_path / "ledger"), key=lambda entry: entry.choice, reverse=True)
    stated = stated_of(folder)
    found = rows_of([stated], [second, best], lambda _: stated)
    assert [rows.choice for rows in found] == ["", "second-best"]
    assert counts(found) == counts(found[:1])
    told = page(found, PAPERS)
    assert "with the second best setting of each side" in told
    assert "Tuned: mu=0.1 has lr=0.1, the best of 2 by accuracy on seeds 1000" in told
    other = stated_of(folder, definition={**stated.definition, "tuned": [{"where": {}}]})
    assert set(words(judged(best, other))) == {EARLIER}


def test_a_verdict_that_hangs_on_the_choice_is_named(folder: Path) -> None:
    """Kills: a verdict under the second best settings beside another claim's; one that stays called another; an entry
    of an earlier version taken for another verdict, or a sweep of another setting for the same; a headline without it,
    or with that of the best."""
    best = judged(record(folder, stated_of(folder)), stated_of(folder))
    assert "## With the second best settings" not in page([best], PAPERS)
    third = best.rows[2]  # not held; the others are in another order
    assert third.verdict is not None and third.word == "not held"
    turned = replace(third, verdict=replace(third.verdict, verdict="held", effect=0.5))
    second = replace(best, choice="second-best", rows=(turned, *best.rows[:2], *best.rows[3:]))
    told = page([best, second], PAPERS)
    assert "| made.headline | 5 | 4 | 3: not held, then held | 0 |" in told
    assert "| made.headline | 5 | 5 | none | 0 |" in page([best, replace(best, choice="second-best")], PAPERS)
    stale = replace(second, rows=tuple(replace(row, earlier=("the code has changed",)) for row in second.rows))
    assert "| made.headline | 5 | 0 | none | 5 |" in page([best, stale], PAPERS)
    assert best.entry is not None
    shorter = replace(second, entry=replace(best.entry, overrides=("rounds=2",)))
    for unlike in ([shorter, best], [second, replace(best, entry=None)]):
        assert "## With the second best settings" not in page(unlike, PAPERS)
    ccvr = [replace(one, name="ccvr.headline", rows=one.rows[::-1]) for one in (best, second)]
    ccvr[0] = replace(ccvr[0], rows=best.rows[2:])
    (line,) = (line for line in with_headlines(f"{BEGIN}{END}", ccvr, {}).splitlines() if line.startswith("| CCVR"))
    assert "[not held]" in line and line.endswith(f"| held, {turned.effect} |")
    tuned = replace(best.entry, definition={**best.entry.definition, "tuned": [{}]})
    for entry, said in ((best.entry, "nothing tuned"), (tuned, NOT_RUN)):
        text = with_headlines(f"{BEGIN}{END}", [replace(ccvr[0], entry=entry)], {})
        assert f"| {said} |" in text


def test_a_headline_says_how_little_was_trained(folder: Path) -> None:
    """Kills: steps of all clients, of a whole data set, of one stage alone; a share of more than all; the span of
    claims of another kind or metric."""
    base = Experiment.from_mapping(BASE).to_mapping()  # 3 of 12 rounds; 500 rows a client, 4 of 20 in a round
    epochs, batches = base["local"]["epochs"], math.ceil(500 / base["local"]["batch_size"])
    assert local_steps(base) == pytest.approx(0.2 * 12 * epochs * batches)
    assert local_steps({**base, "participation": {"fraction": 0.5}}) == pytest.approx(0.5 * 12 * epochs * batches)
    for unlike in ({"data": {"name": "emnist"}}, {"partition": {**base["partition"], "name": "class_sets"}}):
        assert math.isnan(local_steps({**base, **unlike}))
    own = {**base["data"], "name": "parquet", "train_samples": 2_000}
    assert local_steps({**base, "data": own}) == local_steps({**base, "data": {**base["data"], "train_samples": 2_000}})
    stages = [{"rounds": 3, "local": {"epochs": 4}}, {"rounds": 5, "local": {"steps": 7}}, {"rounds": 0}]
    assert local_steps({**base, "stages": stages}) == pytest.approx(0.2 * (3 * 4 * batches + 5 * 7))
    assert local_steps({**base, "local": {**base["local"], "batch_size": "full"}}) == pytest.approx(0.2 * 12 * epochs)
    found = [replace(judged(record(folder, stated_of(folder)), stated_of(folder)), name="ccvr.headline")]
    text = with_headlines(f"{BEGIN}{END}", found, {"ccvr.headline": {**base, "rounds": 24}})
    assert "3 rounds; 12 % of the paper's local steps |" in text
    effects = sorted(row.verdict.effect * 100 for row in found[0].rows[:3] if row.verdict)  # the fourth has a margin
    assert f"| {effects[0]:+.1f} to {effects[-1]:+.1f} in 3 claims |".replace("-", "−") in text
    assert "local steps" not in with_headlines(f"{BEGIN}{END}", found, {"ccvr.headline": {**base, "rounds": 3}})


def test_an_entry_keeps_what_was_searched_and_how_long(folder: Path, tmp_path: Path) -> None:
    """Kills: minutes without those of the search; candidates that only a folder has; a second best whose command needs
    a folder that nobody has; sides that nobody tuned and of which nothing is said; a choice that other code made."""
    plain = read(write(tmp_path / "ledger", record(folder, stated_of(folder))))
    assert (plain.search_seconds, plain.searched) == (None, ())
    assert "- Nothing was tuned: " in page([judged(plain, stated_of(folder))], PAPERS)
    shutil.copytree(folder, folder / "tuning" / "0")
    shutil.rmtree(sorted((folder / "tuning" / "0").glob("trials/*"))[0])
    side = TunedSide({"mu": 0.1}, (Candidate({"lr": 0.1}, 0.9), Candidate({"lr": 0.2}, None)), (1000,), "accuracy")
    write_choices(folder, second_best([side]))
    tuned = read(write(tmp_path / "ledger", record(folder, stated_of(folder))))
    assert tuned.searched == second_best([side])
    assert tuned.search_seconds == pytest.approx(11 * 3 * 0.25)
    assert tuned.seconds == pytest.approx(23 * 3 * 0.25)
    _, rows = rows_of([stated_of(folder)], [tuned], lambda _: stated_of(folder))
    assert to_mappings([rows])[0]["search_minutes"] == 0.14
    told = page([rows], PAPERS)
    assert ", of which search 0.1 (" in told
    assert "Nothing was tuned" not in told
    assert rows.command.endswith(" --second-best docs/claims/made.headline.laptop.second-best.yaml")
    assert EARLIER not in words(rows)
    summary = sorted((folder / "tuning" / "0").glob("trials/*/summary.json"))[0]
    summary.write_text(re.sub(r'"code": "\w+"', '"code": "0123456789abcdef"', summary.read_text()))
    searched = record(folder, stated_of(folder))
    assert searched.codes["0123456789abcdef"] == ""
    _, rows = rows_of([stated_of(folder)], [searched], lambda _: stated_of(folder))
    assert set(words(rows)) == {EARLIER}


def test_a_headline_that_is_not_held_says_what_was_tried(folder: Path) -> None:
    """Kills: a negative outcome of which nobody learns what was tried, with which seeds; claims that are held, or other
    sweeps, told of as well."""
    rows = judged(record(folder, stated_of(folder)), stated_of(folder))
    assert [number for number, word in enumerate(words(rows), start=1) if word == "not held"] == [3, 4]
    said = "- Not held: 3, 4. Tried on seeds 0–2: mu: 0, 0.1; alpha: "
    assert said in page([rows], PAPERS)
    assert "Tried on" not in page([replace(rows, name="made.table1")], PAPERS)
    held = replace(rows, rows=tuple(row for row in rows.rows if row.word == "held"))
    assert "Tried on" not in page([held], PAPERS)


def edited(before: str, after: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert before in text
        return text.replace(before, after, 1)

    return edit


def sealed(before: str, after: str) -> Callable[[str], str]:
    """An edit whose hash is of the new text."""

    def edit(text: str) -> str:
        below = edited(before, after)(text).partition("\n")[2]
        return f"sha256: {hashlib.sha256(below.encode()).hexdigest()}\n{below}"

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (edited("finished,0", "finished,1"), "not what was recorded"),
        (edited("sha256: ", "sha256: 0"), "not what was recorded"),
        (edited("margin: 0.3", "margin: 0.1"), "not what was recorded"),
        (edited("settings: ", "settings: 0"), "not what was recorded"),
        (edited("trials: |", "trials: |-"), "not what was recorded"),
        (sealed("digest:", "digests:"), "digest: Field required"),
        (sealed("sweep: made.headline", "sweep: made.other"), "is of made.other"),
        (sealed("  mode: max\n", ""), "has no 'mode'"),
        (sealed("  mode: max\n", "  mode: max\n  looks: twice\n"), "looked at 'twice'"),
        (sealed("  mode: max\n", "  mode: max\n  until_decided: [1]\n"), r"until_decided is \[1\]"),
        (sealed("  mode: max\n", "  mode: max\n  searched: [{where: {}}]\n"), "candidates: Field required"),
        (
            sealed("definition:\n", "search_seconds: long\ndefinition:\n"),
            "search_seconds: Input should be",
        ),
        (lambda text: "just a text", "not what was recorded"),
        (lambda text: text[: len(text) // 2], "cannot be read as an entry"),
    ],
)
def test_a_tampered_entry(folder: Path, tmp_path: Path, edit: Callable[[str], str], said: str) -> None:
    """Kills: a trial, a claim's margin or a setting that was edited and counts; a traceback in the place of a
    sentence."""
    path = write(tmp_path / "ledger", record(folder, stated_of(folder)))
    path.write_text(edit(path.read_text()))
    with pytest.raises(RunFolderError, match=said):
        read(path)


def test_a_claim_of_both_profiles_is_counted_once(folder: Path, tmp_path: Path) -> None:
    """Kills: a claim counted in each profile that was run; the laptop's verdict counted before the paper's; a verdict
    of an earlier version counted before one of today; a row that the page leaves out, or that JSON does not tell
    apart; a headline that is not the counted one, or whose link leads to the other row."""
    stated = stated_of(folder)
    laptop = record(folder, stated)
    paper = replace(laptop, profile="paper")
    assert write(tmp_path, laptop) != write(tmp_path, paper)
    both = [stated, replace(stated, profile="paper")]
    asked = {one.profile: one for one in both}
    alone = rows_of(both[:1], [laptop], lambda _: stated)
    found = rows_of(both, [laptop, paper], lambda entry: asked[entry.profile])
    assert [len(sweep.rows) for sweep in found] == [5, 5]
    assert counts(found) == counts(alone)
    told = to_mappings(found)
    assert [row["counted"] for row in told] == [False] * 5 + [True] * 5
    text = page(found, PAPERS)
    assert "### made.headline\n" in text and "### made.headline, profile paper\n" in text
    assert "| MADE | 5 |" in text
    ccvr = with_headlines(f"{BEGIN}{END}", [replace(one, name="ccvr.headline") for one in found], {})
    assert f"helps (profile paper) | {SETTING} | [held](docs/claims.md#ccvrheadline-profile-paper)" in ccvr
    earlier = rows_of(both, [laptop, paper], lambda entry: stated if entry.profile == "laptop" else None)
    assert {row.word for row in earlier[1].rows} == {EARLIER}
    assert counts(earlier) == counts(alone)
    unrun = rows_of(both, [paper], lambda _: both[1])
    assert words(unrun[0]) == [NOT_RUN] * 5
    assert counts(unrun) == counts(alone)


def test_other_code_makes_an_earlier_version(folder: Path) -> None:
    """Kills: a verdict of other code that counts; code that changed between run and record and passes for today's; an
    entry that forgets, when it is recorded again, which sources its first trials had."""
    now = stated_of(folder)
    first = record(folder, now)
    changed = replace(now, sources=lambda: "t" * 16, codes=lambda: frozenset({"d" * 16}))
    rows = judged(first, changed)
    assert words(rows) == [EARLIER] * 5
    assert rows.rows[0].earlier == ("its code has changed",)
    late = record(folder, changed)
    assert judged(late, now).rows[0].earlier == ("its code had changed already when it was recorded",)
    assert record(folder, changed, before=first).codes == {CODE: SOURCES}
    assert EARLIER not in words(judged(record(folder, changed, before=first), now))


def computed_again(folder: Path, place: Path, code: str) -> Path:
    """The trials of seed 0 by other code, as ``claims --confirm`` leaves them."""
    shutil.copytree(folder, place)
    values = yaml.safe_load((place / "sweep.yaml").read_text())
    (place / "sweep.yaml").write_text(yaml.safe_dump(values | {"seeds": [0]}))
    for trial in place.glob("trials/*"):
        if json.loads((trial / "trial.json").read_text())["seed"]:
            shutil.rmtree(trial)
            continue
        summary = next(trial.rglob("summary.json"))
        summary.write_text(summary.read_text().replace(CODE, code))
    return place


def test_a_seed_that_other_code_computes_to_the_bit_confirms_an_entry(folder: Path, tmp_path: Path) -> None:
    """Kills: a ledger that forgets all verdicts with each change of code; a confirmation of one code that passes for
    another's, that is lost on the disk, or of which nobody is told."""
    entry, other = read(write(tmp_path / "ledger", record(folder, stated_of(folder)))), "d" * 16
    place = computed_again(folder, tmp_path / "again", other)
    now = stated_of(folder, sources=lambda: "t" * 16, codes=lambda: frozenset({other}))
    assert words(judged(entry, now)) == [EARLIER] * 5
    assert seed_of(entry) == 0
    found = read(write(tmp_path / "ledger", confirmed(entry, record(place, now), now)))
    assert found.trials == entry.trials
    rows = judged(found, now)
    assert EARLIER not in words(rows)
    said = f"- Again by sources `{'t' * 16}`: 4 trials of seed 0, equal to the bit (0.1 minutes)."
    assert said in page([rows], PAPERS)
    later = replace(now, sources=lambda: "u" * 16)
    assert words(judged(found, later)) == [EARLIER] * 5
    assert confirmed(found, record(place, now), now) == found  # a second time it is the same one


def test_an_entry_keeps_what_the_one_before_it_knew(folder: Path, tmp_path: Path) -> None:
    """Kills: confirmations that are lost when a folder is recorded again, or kept beside other trials; a first outcome
    that a second setting makes as if it had never been; one that is told when a sweep only went on."""
    first = record(folder, stated_of(folder))
    known = replace(first, confirmed=(Confirmation("t" * 16, 0, 4, 1.0),))
    assert record(folder, stated_of(folder), before=known).confirmed == known.confirmed
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values | {"digest": "fedcba987654"}))
    for path in sorted(folder.glob("trials/*"))[9:]:
        shutil.rmtree(path)
    second = read(write(tmp_path / "ledger", record(folder, stated_of(folder), before=known)))
    assert second.confirmed == ()
    assert [(one.digest, one.seeds) for one in second.before] == [("0123456789ab", (0, 1, 2))]
    told = page([judged(second, stated_of(folder))], PAPERS)
    assert "- Recorded before (digest `0123456789ab`, seeds 0–2): held: 1, 2; not held: 3, 4" in told
    assert record(folder, stated_of(folder), before=second).before == second.before
    for asked in ({"target_accuracy": 0.9}, {"devices": {"seed": 1}}, {"diagnose": True}, {"images": True}):
        other = replace(second, definition={**second.definition, **asked})  # of the same digest
        assert len(record(folder, stated_of(folder), before=other).before) == 2
    eased = [{**CLAIMS[3], "margin": -0.5}]  # of the same digest: claims are no part of it
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values | {"digest": "fedcba987654", "claims": eased}))
    third = record(folder, stated_of(folder), before=second)
    assert [one.digest for one in third.before] == ["0123456789ab", "fedcba987654"]
    others = replace(third, definition={**third.definition, "claims": [claim("another one", 0.1, 0.0)]})
    assert "seeds 0–2): none of these claims." in page([judged(others, stated_of(folder, claims=()))], PAPERS)


def test_what_is_of_one_machine_or_of_seeds_is_no_setting(folder: Path) -> None:
    """Kills: seeds or a folder of data that are taken for a setting since they were typed with spaces."""
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    typed = {"overrides": ["seeds = [0,1,2]", "data.root = /somewhere", "rounds=3"]}
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values | typed))
    rows = judged(record(folder, None), None)
    assert rows.entry is not None and rows.entry.overrides == ("seeds = [0,1,2]", "data.root=FOLDER", "rounds=3")
    assert rows.changed == " (with rounds=3)"
    assert rows.command == "fedskew sweep made.headline data.root=FOLDER rounds=3 'seeds=[0,1,2]'"


def test_trials_that_failed_are_counted(folder: Path) -> None:
    """Kills: a page on which a trial that failed passes for one that gave a figure."""
    entry = record(folder, stated_of(folder))
    first, *others = entry.trials
    entry = replace(entry, trials=({**first, "status": "failed"}, *others))
    rows = judged(entry, stated_of(folder))
    assert "`fedskew sweep made.headline`: 12 trials, 1 of them failed, 0.1 minutes on" in page([rows], PAPERS)


def test_partitions_are_an_axis_and_are_drawn(tmp_path: Path) -> None:
    """Kills: claims over an axis of partitions that find no trial, since the hash of what was drawn stands in its
    place."""
    ways = [{"name": "dirichlet", "alpha": 0.1}, {"name": "iid"}]
    axis = {"name": "partition", "key": "partition", "kind": "grid", "values": ways, "log": False}
    skewed = Claim("IID is better", "table 1", {"partition": ways[1]}, {"partition": ways[0]}).to_mapping()
    folder = make_sweep(
        tmp_path / "sweep",
        axes=[axis],
        rounds=2,
        client_rows=False,
        accuracy=lambda setting, seed: 0.8 + 0.01 * seed if setting["partition"]["name"] == "iid" else 0.6,
        claims=[skewed],
        reference=NAME,
        name=NAME,
        overrides=[],
    )
    entry = read(write(tmp_path / "ledger", record(folder, None)))
    assert [row["partition"] for row in entry.trials] == [ways[0]] * 3 + [ways[1]] * 3
    assert all(re.fullmatch(r"[0-9a-f]{16}", row["drawn partition"]) for row in entry.trials)
    (row,) = judged(entry, None).rows
    assert row.verdict is not None and (row.verdict.verdict, row.partitions) == ("held", 1)


def test_seconds_are_a_metric_and_a_cost(folder: Path, tmp_path: Path) -> None:
    """Kills: a claim on time that is judged by what the trial cost here, or whose column is read in its place; an entry
    that can never be confirmed, since no time comes twice."""
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    sooner = claim("mu = 0.1 is quicker", 0.1, 0.0, metric="seconds", larger_is_better=False)
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values | {"claims": [sooner]}))
    entry = read(write(tmp_path / "ledger", record(folder, stated_of(folder))))
    first = {**entry.trials[0], "seconds taken": 0.1, "seconds": 2.5}
    row = read(write(tmp_path / "both", replace(entry, trials=(first, *entry.trials[1:])))).trials[0]
    assert (row["seconds taken"], row["seconds"]) == (0.1, 2.5)
    assert entry.trials[0]["seconds"] == load(folder).trials["seconds"][0]
    place = computed_again(folder, tmp_path / "again", "d" * 16)
    now = stated_of(folder, sources=lambda: "t" * 16, codes=lambda: frozenset({"d" * 16}))
    again = record(place, now)
    rows = tuple({**row, "seconds": row["seconds"] and 1.5 * row["seconds"]} for row in again.trials)
    assert confirmed(entry, replace(again, trials=rows), now).confirmed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": None}, "its base is no mapping"),
        ({"until_decided": [3]}, r"its until_decided is \[3\]"),
        ({"tuned": [{"where": {}}]}, r"tuned: KeyError\('space'\)"),
        ({"tuned": 3}, r"sweep.yaml cannot be read as a sweep \(tuned: TypeError"),
        ({"begun": None}, r"sweep.yaml cannot be read as a sweep \(begun: None\)"),
        ({"begun": {"base": 3}}, r"\(begun: {'base': 3}\)"),
        ({"begun": {"claims": 3}}, r"\(begun: TypeError"),
        ({"begun": {"claims": [{"x": 1}]}}, r"\(begun: TypeError"),
        ({"begun": {"claims": [{**CLAIMS[0], "worse": {}}]}}, r"began with a claim that is refused now \(worse={}: "),
    ],
)
def test_a_folder_that_was_damaged_takes_no_entrys_place(
    folder: Path, tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    """Kills: an entry that is written and can never be read again; a traceback in the place of a sentence."""
    now = stated_of(folder)
    path = write(tmp_path / "ledger", record(folder, now))
    good = path.read_text()
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values | changes))
    with pytest.raises(RunFolderError, match=said):
        write(tmp_path / "ledger", record(folder, now))
    assert path.read_text() == good


def test_other_bits_confirm_nothing(folder: Path, tmp_path: Path) -> None:
    """Kills: a trial of other weights, of another figure or that is not there, taken for an equal one; trials of the
    code of then that confirm themselves; a setting of which nothing was computed again."""
    entry, other = record(folder, stated_of(folder)), "d" * 16
    place = computed_again(folder, tmp_path / "again", other)
    now = stated_of(folder, sources=lambda: "t" * 16, codes=lambda: frozenset({other}))
    again = record(place, now)
    with pytest.raises(RunError, match="were computed by other code than this; remove their folder"):
        confirmed(entry, entry, now)

    def changed(**values: Any) -> Entry:
        first, *rest = again.trials
        return replace(again, trials=({**first, **values}, *rest))

    for values, said in (
        ({"weights": "0" * 16}, r"comes to other bits now: trial 00000 \(its weights\); run the sweep again"),
        ({"last10_accuracy": 0.5}, r"trial 00000 \(its last10_accuracy\)"),
        ({"status": "missing"}, r"trial 00000 \(has not ended\)"),
        ({"alpha": 17.0}, r"trial 00000 \(has not ended\)"),
    ):
        with pytest.raises(RunError, match=said):
            confirmed(entry, changed(**values), now)
    rows = [row for row in entry.trials if row["seed"] == 0 or row["trial"] == "00001"]
    lone = replace(entry, trials=tuple(rows[1:]))  # the first setting has seed 1 alone
    with pytest.raises(RunError, match="seed 0 has no trial of the setting of trial 00001; run the sweep again"):
        confirmed(lone, again, now)


def test_figures_are_compared_on_any_machine(folder: Path, tmp_path: Path) -> None:
    """Kills: other bits that are called other figures; a difference above the tolerance, a figure that is gone or a
    trial that ended otherwise, taken for equal; the difference of a large figure taken as it is."""
    entry = record(folder, stated_of(folder))
    again = record(computed_again(folder, tmp_path / "again", "d" * 16), stated_of(folder))

    def changed(**values: Any) -> Entry:
        first, *rest = again.trials
        return replace(again, trials=({**first, **values}, *rest))

    assert largest_difference(entry, changed(weights="0" * 16), 0.0) == (0.0, 4)
    name, was = "last10_accuracy", entry.trials[0]["last10_accuracy"]
    assert largest_difference(entry, changed(**{name: was + 0.004}), 0.005) == (pytest.approx(0.004), 4)
    for values, said in (
        ({name: was + 0.006}, rf"other figures now: trial 00000 \({name} [\d.]+, now [\d.]+\); the tolerance is 0.005"),
        ({name: None}, rf"trial 00000 \({name} [\d.]+, now nan\)"),
        ({"status": "missing"}, r"trial 00000 \(its status\)"),
        ({"alpha": 17.0}, r"trial 00000 \(its status\)"),
    ):
        with pytest.raises(RunError, match=said):
            largest_difference(entry, changed(**values), 0.005)
    with pytest.raises(RunError, match="the tolerance is nan"):
        largest_difference(entry, again, math.nan)
    lacking = replace(entry, trials=tuple({**row, name: None} for row in entry.trials))
    with pytest.raises(RunError, match=rf"\({name} nan, now [\d.]+\)"):
        largest_difference(lacking, again, 0.005)
    assert largest_difference(lacking, lacking, 0.0)[0] == 0.0
    large = replace(entry, trials=tuple({**row, name: 1000.0} for row in entry.trials))
    assert largest_difference(large, replace(large, trials=tuple({**row, name: 1004.0} for row in large.trials)), 0.005)


def test_another_machine_is_told_before_anything_runs(folder: Path) -> None:
    """Kills: minutes of computing that can confirm nothing; a machine that is taken for another one, or for the same
    although its torch, its processor or its card is not."""
    entry = record(folder, stated_of(folder))
    here = {"torch": torch.__version__, "hardware": hardware_of("cpu"), "processor": processor(), "device": "cpu"}
    check_machine(replace(entry, versions=({**here, "numpy": "1"}, {**here, "hardware": UNKNOWN})))
    for other, said in (
        ({"torch": "1.0"}, r"torch 1\.0, here 2"),
        ({"processor": "x"}, "processor x, here "),
        ({"hardware": "VSX"}, "hardware VSX, here "),
        ({"device": "cuda", "hardware": "H0"}, "hardware H0, here "),
    ):
        rule = rf"was computed with {said}.*: bits may differ; confirm it on such a machine, or add --figures 0.005"
        with pytest.raises(ConfigError, match=rule):
            check_machine(replace(entry, versions=({**here, **other},)))
        check_machine(replace(entry, versions=({**here, **other}, here)))


def test_another_claim_makes_an_earlier_version_of_that_one(folder: Path) -> None:
    """Kills: a claim that is reworded, or given a smaller margin, once its outcome is known; one that was not held and
    is no longer stated, and so is gone from the page; one that half of its trials judge; a p that is adjusted for
    both wordings of a claim."""
    entry, now = record(folder, stated_of(folder)), stated_of(folder)
    first, *others = now.claims
    eased = replace(first, margin=-0.5)
    rows = judged(entry, replace(now, claims=(eased, *others)))
    assert [(row.claim, row.earlier) for row in rows.rows if row.earlier] == [
        (eased, ("the claim was not stated so when the trials ran",)),
        (first, ("the claim is no longer stated so",)),
    ]
    p_values = [row.verdict and row.verdict.p_holm for row in rows.rows]
    then, today = (judge(entry.results(claims)) for claims in (now.claims, (eased, *others)))
    assert repr(p_values) == repr([one.p_holm for one in (today[0], *then[1:], then[0])])
    assert EARLIER not in words(judged(entry, now))
    other = replace(first, better={"mu": 0.7})  # a setting that the sweep has got since
    assert words(judged(entry, replace(now, claims=(other,))))[0] == NOT_RUN
    assert {row.word for row in judged(entry, None).rows} == {EARLIER}


@pytest.mark.parametrize(
    ("kind", "asked", "own", "other"),
    [
        ("diagnosis", {"diagnose": True}, {}, {"estimator": "biased"}),
        ("diagnosis", {"diagnose": "weights"}, {"layers": "weights"}, {}),
        ("images", {"images": True}, None, {"probe": 20}),
    ],
)
def test_what_was_measured_otherwise_is_not_recorded(
    folder: Path, kind: str, asked: dict[str, Any], own: dict[str, Any] | None, other: dict[str, Any]
) -> None:
    """Kills: figures of another estimator, of other layers or of fewer images in the place of those asked for; a sweep
    that asks for none, and cannot be recorded for what was measured."""
    of_images = {"probe": inspect.signature(look_at_sweep).parameters["probe"].default}
    plain = of_images if own is None else asdict(DiagnosisOptions(**own))
    path = folder / "trials" / "00001" / kind / "round-000003" / "summary.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"options": {**plain, **(other or {"layers": "taps"})}}))
    record(folder, stated_of(folder))
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values | asked))
    with pytest.raises(RunFolderError, match=r"00001/.* was measured with .*; run fedskew resume .*, which measures"):
        record(folder, stated_of(folder))
    path.write_text("{}")
    with pytest.raises(RunFolderError, match="was measured with unknown options, and its sweep asks for "):
        record(folder, stated_of(folder))
    path.write_text(json.dumps({"options": plain}))
    record(folder, stated_of(folder))


def test_claims_of_a_folder_that_was_started_again(folder: Path) -> None:
    """Kills: a claim that was eased once its outcome was known, in a folder that was started again since; figures of
    another target accuracy, or of other devices, than those that were asked for."""
    now = stated_of(folder)
    path = folder / "sweep.yaml"
    values = yaml.safe_load(path.read_text())
    eased = replace(now.claims[0], margin=-0.5)
    changed = {"claims": [eased.to_mapping(), *CLAIMS[1:]], "begun": {"claims": CLAIMS}}
    path.write_text(yaml.safe_dump(values | changed))
    entry = record(folder, now)
    assert entry.claims == now.claims and "begun" not in entry.definition
    path.write_text(yaml.safe_dump(values | {"begun": {"target_accuracy": 0.9}}))
    with pytest.raises(RunFolderError, match=r"has target_accuracy=0\.82, and its trials began with 0\.9: "):
        record(folder, now)
    path.write_text(yaml.safe_dump(values | {"devices": {"seed": 2}, "begun": {"devices": {"seed": 1}}}))
    with pytest.raises(RunFolderError, match=r"has devices=\{'seed': 2\}, and its trials began with \{'seed': 1\}: "):
        record(folder, now)


@pytest.mark.parametrize("metric", ["loss", "cka_classifier"])
def test_a_metric_that_was_not_recorded(folder: Path, metric: str) -> None:
    """Kills: a claim on a figure that the table lacks and that is held, or that ends the page."""
    entry, now = record(folder, stated_of(folder)), stated_of(folder)
    new = replace(now.claims[0], metric=metric, larger_is_better=metric != "loss")
    row = judged(entry, replace(now, claims=(*now.claims, new))).rows[-1]
    assert (row.claim, row.word) == (new, EARLIER)
    assert row.verdict is not None and row.verdict.verdict == "undecided"
    assert metric in row.verdict.why


def test_another_setting_makes_an_earlier_version(folder: Path) -> None:
    """Kills: a base experiment, an axis or a target that changes beneath a verdict; seeds that count as a setting; an
    entry that was recorded after its space had changed."""
    entry, now = record(folder, stated_of(folder)), stated_of(folder)
    base = Experiment.from_mapping(now.definition["base"])
    slower = base.replace({"local.lr": 0.001, "name": "other"})
    alpha = {"axes": [{**now.definition["axes"][0], "values": [0.0, 0.2]}, now.definition["axes"][1]]}
    for changes, said in (
        ({"identity": slower.identity}, "local.lr"),
        ({"definition": {**now.definition, **alpha}}, "axes"),
        ({"definition": {**now.definition, "target_accuracy": 0.9}}, "target_accuracy"),
        ({"definition": {**now.definition, "devices": {"seed": 1}}}, "devices"),
        ({"settings": lambda: [{"mu": 3}]}, "what its space makes"),
        ({}, "what its space makes"),
    ):
        of_now = entry if changes else replace(entry, settings="")
        (told,) = judged(of_now, replace(now, **changes)).rows[0].earlier
        assert "its setting has changed" in told and said in told
    more = judged(entry, replace(now, definition={**now.definition, "seeds": [0, 1]}))
    assert (more.command, more.changed) == ("fedskew sweep made.headline 'seeds=[0,1,2]'", "")
    assert EARLIER not in words(more)


def test_a_sweep_that_goes_on(folder: Path, tmp_path: Path) -> None:
    """Kills: a part of a sweep that passes for all of it; a claim without a trial that is "undecided"; an entry that
    is recorded beside the one before."""
    whole = record(folder, stated_of(folder))
    for path in sorted(folder.glob("trials/*"))[3:]:  # of mu = 0, alpha = 0.05 all three seeds stay
        shutil.rmtree(path)
    part = record(folder, stated_of(folder))
    assert (part.ended, whole.ended) == ("3 of 12 trials", "12 trials")
    rows = judged(part, stated_of(folder))
    assert words(rows) == ["undecided", "undecided", "undecided", NOT_RUN, "undecided"]
    assert "9 are missing" in rows.rows[0].lacks
    assert "9 are missing" in page([rows], PAPERS)
    ledger = tmp_path / "ledger"
    assert write(ledger, part) == write(ledger, whole)
    assert [entry.ended for entry in read_all(ledger)] == ["12 trials"]


def test_an_entry_is_replaced_whole_or_not_at_all(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: an entry that is written in its place, and half of it there after a crash."""
    entry = record(folder, stated_of(folder))
    path = write(tmp_path / "ledger", entry)
    before = path.read_bytes()

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "ledger", replace(entry, digest="other"))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_partitions_are_those_that_were_drawn(folder: Path) -> None:
    """Kills: seeds counted as partitions; the partitions of several settings added up."""
    entry = record(folder, stated_of(folder))
    assert {row.partitions for row in judged(entry, stated_of(folder)).rows} == {1}
    rows = [{**row, "drawn partition": f"{row['seed']}{row['alpha']}"} for row in entry.trials]
    drawn = replace(entry, trials=tuple(rows))
    assert {row.partitions for row in judged(drawn, stated_of(folder)).rows} == {3}


@pytest.mark.parametrize(
    "value",
    [None, True, 1, 0.1, -0.25, "plain", "", "1", "null", "=1+1", "-x", "'x", " x", "a,\"b\"\nc", "é", "x\x85",
     [64, 32], {"name": "fedprox", "mu": 0.1}],
)  # fmt: skip
def test_values_of_axes_come_back(folder: Path, tmp_path: Path, value: Any) -> None:
    """Kills: true that comes back as a word, a word that comes back as a number, a formula in a spreadsheet."""
    entry = record(folder, stated_of(folder))
    odd = replace(entry, trials=tuple({**row, "mu": value} for row in entry.trials))
    written = read(write(tmp_path / "ledger", odd))
    assert written.trials == odd.trials
    assert not written.table.splitlines()[1].split(",")[8].startswith(("=", "-x", "+", "@"))


def test_the_page_says_what_a_row_rests_on(folder: Path) -> None:
    """Kills: a page without counts, command, code, weights or minutes; markup in a claim that the page follows."""
    rows = judged(record(folder, stated_of(folder)), stated_of(folder))
    text = page([rows], PAPERS)
    number = counts([rows])
    assert f"| MADE | 5 | {number['held']} | {number['not held']} | {number['undecided']} | 0 | 0 |" in text
    assert rows.entry is not None
    for said in ("`fedskew sweep made.headline`", CODE, rows.entry.weights, "0.1 minutes", "| 3 (0–2) | 1 |", "A B C"):
        assert said in text
    p_values = sorted(row.verdict.p for row in rows.rows if row.verdict and math.isfinite(row.verdict.p))
    adjusted = [p * len(p_values) / rank for rank, p in enumerate(p_values, start=1)]
    for row in rows.rows:
        if row.verdict and math.isfinite(row.verdict.p):
            of_ledger = min(adjusted[p_values.index(row.verdict.p) :])  # Benjamini and Hochberg 1995, by hand
            assert f"| {row.verdict.p:.3g} ({row.verdict.p_holm:.3g}, {of_ledger:.3g}) |" in text
    assert with_headlines(f"a{BEGIN}old{END}b", [rows], {}).count(f"](docs/claims.md#{NAME.replace('.', '')})") == 0
    ccvr = with_headlines(f"a{BEGIN}old{END}b", [replace(rows, name="ccvr.headline")], {})
    assert f"| CCVR | mu = 0.1 helps | {SETTING} | [held](docs/claims.md#ccvrheadline) | +" in ccvr
    assert "| CBFL | no headline sweep is stated yet | | not yet run | | | |" in ccvr
    assert ccvr.startswith("a") and ccvr.endswith("b") and "old" not in ccvr
    with pytest.raises(RunFolderError):
        with_headlines("no markers", [], {})


def test_parts_of_ones_own_are_refused(folder: Path) -> None:
    """Kills: a row whose command lacks the file, or the package, that it was computed with."""
    path = next(iter(sorted(folder.glob("trials/*/parts.json"))))
    part = {"name": "mine", "place": "more-methods", "version": "0.1", "code": "0" * 16}
    for origin, told in (("file", "of /code/mine.py"), ("package", "algorithm 'mine' came from more-methods")):
        changed = {**part, "origin": origin} | ({"place": "/code/mine.py"} if origin == "file" else {})
        path.write_text(json.dumps({"stages.train.algorithm": changed}))
        with pytest.raises(RunFolderError, match=rf"has parts of your own \({told}.*\): the ledger takes"):
            record(folder, stated_of(folder))


def test_a_report_leads_to_its_row(folder: Path) -> None:
    """Kills: a report that says nothing of the ledger; one of a user's own sweep that names a row that is not there."""
    assert "docs/claims.md#madeheadline" in ledger_note(load(folder))
    values = yaml.safe_load((folder / "sweep.yaml").read_text())
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**values, "reference": "/somewhere/mine.py:headline"}))
    assert ledger_note(load(folder)) == ""
    (folder / "sweep.yaml").write_text(yaml.safe_dump({**values, "profile": "paper"}))
    assert "docs/claims.md#madeheadline-profile-paper" in ledger_note(load(folder))
    side = TunedSide({"mu": 0.1}, (Candidate({"lr": 0.1}, 0.9), Candidate({"lr": 0.2}, 0.8)), (1000,), "accuracy")
    write_choices(folder, second_best([side]))
    (folder / "sweep.yaml").write_text(yaml.safe_dump(values))
    (rows,) = rows_of([], [record(folder, stated_of(folder))], lambda _: None)
    assert f"docs/claims.md#{anchor(rows)} in" in ledger_note(load(folder)) and "second-best" in anchor(rows)


def test_a_portable_digest_is_of_what_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a hash that a later Python's empty fields change, or a comment; two sources that have the same hash."""
    first, same = 'def f(a, b=None):\n    """Doc."""\n    return a\n', "def f(a, b=None):  # why\n    return a\n"
    others = [
        "def f(a, b=0):\n    return a\n",
        "def f(b, a=None):\n    return a\n",
        "def f(a, b=None):\n    return b\n",
        "def f(a, b=None):\n    return\n",
        *("f = None\n", "f = ''\n", "f = 1\n", "f = 1.0\n"),
    ]
    assert portable_digest_of(first) == portable_digest_of(same)
    assert len({*map(portable_digest_of, [first, *others])}) == 1 + len(others)
    before = portable_digest_of(first), digest_of(first)
    monkeypatch.setattr(ast.FunctionDef, "_fields", (*ast.FunctionDef._fields, "of_a_later_python"))
    assert portable_digest_of(first) == before[0]
    assert digest_of(first) != before[1]
