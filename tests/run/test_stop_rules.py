"""Runs that end by a rule of the section ``stop``: when, with which bits, and that nothing goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.record.columns import HOW_IT_WENT
from engine.record.run_folder import RunFolder
from engine.record.stage_hashes import stage_hash
from engine.record.store import StageStore
from engine.run.run import run
from engine.server.stopping import Ended, Stopping
from engine.sweeps.folder import SweepFolder, TrialRecord
from fedskew.lab.diagnosis.embedding import embed
from fedskew.lab.floor.measured import cut_short
from fedskew.lab.replay import until as until_round
from fedskew.lab.scaling.study import endless
from tests.support.small_sweeps import Alone, base
from tests.support.tiny import Driven, drive, drive_with_store, experiment, open_driver

LONG: dict[str, Any] = {"rounds": 9, "checkpoint": {"every": 4}, "local": {"lr": 0.02, "epochs": 1}}
TIMES = [*HOW_IT_WENT, "reused"]


def rows(folder: RunFolder | Path, table: str = "evaluations") -> pd.DataFrame:
    found = folder if isinstance(folder, RunFolder) else RunFolder(folder)
    return found.frame(table).drop(columns=TIMES, errors="ignore")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    """The run without a rule."""
    return drive(tmp_path_factory.mktemp("plain"), experiment(**LONG))


def first_new_best(plain: Driven) -> tuple[int, float]:
    """The first round but the first and the last two whose accuracy is above all before, and that accuracy."""
    accuracies = [float(value) for value in rows(plain.folder)["accuracy"]]
    found = [n for n in range(1, len(accuracies) - 2) if accuracies[n] > max(accuracies[:n])]
    return found[0] + 1, accuracies[found[0]]


# --- the rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "accuracies", "ended"),
    [
        ({"accuracy": 0.5}, [0.4, 0.5, 0.9, 0.9], Ended("accuracy", 2)),
        ({"accuracy": 0.5}, [0.6, 0.5, 0.9, 0.9], Ended("accuracy", 1)),
        ({"accuracy": 0.5}, [0.4, 0.4999, 0.4, 0.3, 0.9], None),  # the fifth is the last round
        ({"patience": 2}, [0.3, 0.2, 0.1, 0.9], Ended("patience", 3)),
        ({"patience": 2}, [0.3, 0.3, 0.3, 0.9], Ended("patience", 3)),
        ({"patience": 2}, [0.3, 0.2, 0.31, 0.2, 0.9], None),
        ({"patience": 1}, [0.3, 0.4, 0.4, 0.9], Ended("patience", 3)),
        ({"patience": 2, "min_delta": 0.25}, [0.25, 0.5, 0.5, 0.9], Ended("patience", 3)),
        ({"patience": 3, "min_delta": 0.25}, [0.25, 0.5, 0.5, 0.5], Ended("patience", 4)),
        ({"patience": 2, "min_delta": 0.25}, [0.25, 0.5, 0.75, 0.75], None),
        ({"accuracy": 0.5, "patience": 1}, [0.6, 0.1], Ended("accuracy", 1)),
        ({}, [0.5, 0.1, 0.1, 0.1], None),
    ],
)
def test_rules(stop: dict[str, Any], accuracies: list[float], ended: Ended | None) -> None:
    """Kills: a target that must be exceeded; equal accuracies that are better; a best that creeps up by less than
    min_delta; patience that counts from the start; a rule that is said to have ended a run whose rounds were all done.
    """
    stopping = Stopping(experiment(rounds=5, stop=stop))
    found = [{"round": number, "accuracy": accuracy} for number, accuracy in enumerate(accuracies, 1)]
    assert stopping.first(0, found) == (ended and ended.round)
    assert stopping.ended is None
    for number in range(len(found)):
        stopping.note(0, found[: number + 1])  # those before are known
    assert stopping.ended == ended
    assert Stopping(experiment(rounds=5, stop=stop)).first(1, found) is None


def test_patience_for_another_figure() -> None:
    """Kills: patience for the accuracy whatever is asked for; a larger loss that is better; a figure that is not finite
    taken for a better one; a metric that changes the digest of a run without patience.
    """
    stopping = Stopping(experiment(rounds=9, stop={"patience": 2, "metric": "loss", "min_delta": 0.1}))
    losses = [None, 2.0, 1.8, 1.75, None, 0.1]
    found = [{"round": number, "accuracy": number / 9, "loss": loss} for number, loss in enumerate(losses, 1)]
    assert stopping.first(0, found) == 5
    assert experiment(stop={"metric": "loss"}).digest == experiment().digest
    other = [experiment(stop={"patience": 2, "metric": one}).digest for one in ("accuracy", "loss")]
    assert other[0] == experiment(stop={"patience": 2}).digest != other[1]
    with pytest.raises(ConfigError, match=r"stop.metric=los: is no figure .*; did you mean 'loss'"):
        experiment(stop={"metric": "los"})


def test_a_target_ends_a_run(tmp_path: Path, plain: Driven) -> None:
    """Kills: an end a round early or late, or at another's bits; a last round of which something is missing; a
    summary that does not say why."""
    round, target = first_new_best(plain)
    done = drive(tmp_path, experiment(**LONG, stop={"accuracy": target}))
    assert done.driver.round == round < 9
    for table in ("rounds", "clients", "evaluations"):
        wanted = rows(plain.folder, table)
        pd.testing.assert_frame_equal(rows(done.folder, table), wanted.loc[wanted["round"] <= round])
    recorded = rows(plain.folder, "rounds").set_index("round")["weights_sha256"]
    assert done.sha == recorded[round] != plain.sha
    summary = done.summary
    assert (summary["status"], summary["stopped_by"], summary["stopped_after"]) == ("finished", "accuracy", round)
    assert summary["rounds"] == summary["rounds_asked"] == round
    assert summary["accuracy"] == target
    assert (plain.summary["stopped_by"], plain.summary["stopped_after"]) == (None, None)


@pytest.mark.parametrize("until", [1, 2, 3, 9])
def test_stops_and_resumes_end_there_too(tmp_path: Path, plain: Driven, until: int) -> None:
    """Kills: patience that a resume forgets, or counts twice; a run that is opened again and goes on past its end."""
    accuracies = list(rows(plain.folder)["accuracy"])
    config = experiment(**LONG, stop={"patience": 2, "min_delta": 0.9})
    driver = open_driver(tmp_path, config)
    while not driver.finished and driver.round < until:
        driver.advance(until=until)
    driver.close()
    again = open_driver(tmp_path, config)
    assert again.finished == (until > 2)
    while not again.finished:
        again.advance()
    summary = again.close()
    assert (summary["stopped_by"], summary["stopped_after"], summary["rounds"]) == ("patience", 3, 3)
    assert list(rows(tmp_path)["accuracy"]) == accuracies[:3]
    once_more = open_driver(tmp_path, config)
    assert once_more.finished
    assert once_more.advance() == []
    assert once_more.close()["weights_sha256"] == summary["weights_sha256"]


def test_only_evaluated_rounds_count(tmp_path: Path) -> None:
    """Kills: patience that counts rounds."""
    config = experiment(**LONG, evaluation={"every": 3}, stop={"patience": 1, "min_delta": 0.9})
    done = drive(tmp_path, config)
    assert done.summary["stopped_after"] == 6
    assert list(rows(done.folder)["round"]) == [3, 6]


def test_the_last_stage_alone_is_ended(tmp_path: Path) -> None:
    """Kills: a warm-up that ends, or whose accuracies count for the stage after it."""
    stages = [
        {"name": "warm", "rounds": 4, "algorithm": {"name": "fedavg"}},
        {"name": "main", "rounds": 5, "needs": ["warm"], "algorithm": {"name": "fedprox"}},
    ]
    done = drive(tmp_path, experiment(stages=stages, stop={"patience": 2, "min_delta": 0.9}))
    assert (done.summary["rounds"], done.summary["stopped_after"]) == (7, 7)
    assert list(rows(done.folder, "rounds")["stage"]) == ["warm"] * 4 + ["main"] * 3
    again = open_driver(tmp_path, done.driver.experiment)
    assert again.finished
    again.pool.close()


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedper"])
def test_what_is_measured_at_an_end_is_measured_there(tmp_path: Path, name: str) -> None:
    """Kills: clients' own models, or fine-tuning, that are left out where a rule ends a run; rows twice; fine-tuning
    in rounds before."""
    common = {"algorithm": {"name": name}, "local": {"epochs": 1}}
    evaluation = {"fine_tune_epochs": 1, "personal_every": 1}
    rule = experiment(rounds=6, evaluation=evaluation, stop={"patience": 1, "min_delta": 0.9}, **common)
    ended, short = (
        drive(tmp_path / "rule", rule),
        drive(tmp_path / "short", experiment(rounds=2, evaluation=evaluation, **common)),
    )
    assert ended.summary["stopped_after"] == 2
    order = ["round", "point", "client"]
    found, wanted = (rows(one.folder, "personal").sort_values(order, ignore_index=True) for one in (ended, short))
    pd.testing.assert_frame_equal(found, wanted)
    assert set(found[found["point"] == "fine_tuned"]["round"]) == {2}
    assert ended.summary["fine_tuned_accuracy"] == short.summary["fine_tuned_accuracy"]


# --- rounds that are shared ---------------------------------------------------------------------------


@pytest.mark.parametrize("keep_all", [True, False])
def test_a_rule_neither_harms_nor_trusts_the_store(tmp_path: Path, plain: Driven, keep_all: bool) -> None:
    """Kills: a stage hash that has the rule in it; a short stage that is taken for a whole one; a stored round beyond
    the end that is taken over; a stored end that is not seen to be one."""
    round, target = first_new_best(plain)
    config, whole = experiment(**LONG, stop={"accuracy": target}), experiment(**LONG)
    one, other = StageStore(tmp_path / "one"), StageStore(tmp_path / "other")
    alone = drive(tmp_path / "alone", config).summary
    drive_with_store(tmp_path / "a", config, one, keep_all=keep_all)
    after = drive_with_store(tmp_path / "b", whole, one)
    assert after["weights_sha256"] == plain.sha
    assert after["rounds_computed"] == 9 - round
    drive_with_store(tmp_path / "c", whole, other, keep_all=keep_all)
    taken = drive_with_store(tmp_path / "d", config, other)
    assert (taken["stopped_by"], taken["stopped_after"]) == ("accuracy", round)
    assert taken["weights_sha256"] == alone["weights_sha256"]
    again = drive_with_store(tmp_path / "e", config, one)
    assert (again["rounds_computed"], again["stopped_after"]) == (0, round)
    for folder in ("a", "d", "e"):
        for table in ("rounds", "clients", "evaluations"):
            pd.testing.assert_frame_equal(rows(tmp_path / folder, table), rows(tmp_path / "alone", table))


def test_a_trial_that_ends_by_a_rule_is_finished(tmp_path: Path) -> None:
    """Kills: a trial that waits for rounds that never come; a last report twice when a sweep is resumed; a record with
    other rounds than its run."""
    changes = {"execution.actors": 0, "stop.patience": 3, "stop.min_delta": 0.9}
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))
    trial = Alone(tmp_path, base(**changes))
    reports = [trial.step(), trial.step()]
    assert [(report["round"], report["done"]) for report in reports] == [(2, False), (4, True)]
    record = SweepFolder(tmp_path).record("00000")
    assert record is not None and (record.status, record.rounds, record.rounds_computed) == ("finished", 4, 4)
    SweepFolder(tmp_path).write(TrialRecord("00000", {}, 0))  # as if it had been killed before it said so
    again = Alone(tmp_path, base(**changes))
    found = [again.step(), again.step()]
    assert [(report["round"], report["done"]) for report in found] == [(2, False), (4, True)]
    assert found[1]["accuracy"] == reports[1]["accuracy"]


# --- the config ---------------------------------------------------------------------------------------


def test_what_identifies_a_run_with_a_rule() -> None:
    """Kills: a digest that changes without a rule, or does not with one; a stage that is another one by a rule."""
    config = experiment()
    assert "stop" not in config.identity()
    assert config.override(["stop.min_delta=0.1"]).digest == config.digest
    others = [["stop.accuracy=0.5"], ["stop.patience=2"], ["stop.patience=2", "stop.min_delta=0.1"]]
    found = [config.override(one) for one in others]
    assert len({config.digest, *(one.digest for one in found)}) == 4
    assert len({stage_hash(one, one.chain[0], {}, "") for one in (config, *found)}) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stop": {"accuracy": 0}}, "stop.accuracy=0: must be greater than 0"),
        ({"stop": {"accuracy": 1.5}}, "stop.accuracy=1.5: must be greater than 0 and at most 1"),
        ({"stop": {"patience": 0}}, "stop.patience=0: must be at least 1"),
        (
            {"stop": {"accuracy": 0.5}, "evaluation": {"every": 0}},
            "stop.accuracy=0.5: is read after evaluated rounds, and with evaluation.every=0 there are none before the "
            "last; set evaluation.every=1",
        ),
        (
            {"stop": {"patience": 2}, "evaluation": {"personal_every": 0}, "algorithm": {"name": "fedper"}},
            "stop.patience=2: is read after evaluated rounds, and with evaluation.personal_every=0 there are none "
            "before the last; set evaluation.personal_every=1",
        ),
        (
            {
                "stop": {"patience": 2},
                "stages": [
                    {"name": "train", "rounds": 2},
                    {"name": "end", "needs": ["train"], "rounds": 0, "algorithm": {"name": "ccvr"}},
                ],
            },
            "stop.patience=2: is of the last stage, and end has no rounds; set stop.patience=null",
        ),
    ],
)
def test_rules_that_cannot_hold_are_one_sentence(changes: dict[str, Any], message: str) -> None:
    """Kills: a rule that never applies and says nothing."""
    with pytest.raises(ConfigError) as caught:
        experiment(**changes)
    assert str(caught.value).startswith(message)


def test_an_early_end_is_the_end_of_its_stage(tmp_path: Path) -> None:
    """Kills: a later command that looks for the model after a round that was never run."""
    config = base(**{"execution.actors": 0, "stop.patience": 1, "stop.min_delta": 0.9})
    assert run(config, tmp_path)["stopped_after"] == 2
    found = embed(tmp_path, probe=20)
    assert found.stages == ("train",)
    assert len(found.frame) == 20


def test_studies_of_time_have_no_rule() -> None:
    """Kills: a study whose rounds are not evaluated that is refused, or ended by accuracy."""
    config = Experiment(stop={"accuracy": 0.9, "patience": 1})
    assert cut_short(config, 3).stop.rules == {}
    assert until_round(config, "train", 2).stop.rules == {}
    assert endless(config).stop.rules == {}
