"""Clients that never train: in no cohort and in no sum, and evaluated beside those that do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from engine.base.errors import ConfigError, DataError
from engine.data import Assignment
from engine.experiment import Experiment, Participation
from engine.record.columns import HOW_IT_WENT
from engine.record.store import StageStore
from engine.run.preparing import check_against_data
from engine.server.cohort import held_out_of
from tests.support.tiny import (
    SIZES,
    Driven,
    assignment,
    dataset,
    drive,
    drive_with_store,
    experiment,
    experiment_of,
    open_driver,
    with_tests,
)

OUT = (3, 6)  # of 30 and 24 rows, the largest
TIMES = [*HOW_IT_WENT, "reused"]


def holding_out(name: str = "fedavg", **changes: Any) -> Experiment:
    participation = {"held_out": list(OUT), **changes.pop("participation", {})}
    return experiment_of(name, participation=participation, **changes)


def without(parts: Assignment, gone: tuple[int, ...]) -> Assignment:
    """The same clients, of which these hold nothing."""
    nothing = np.empty(0, dtype=np.int64)
    return replace(parts, clients=[nothing if k in gone else rows for k, rows in enumerate(parts.clients)])


def rows_of(run: Driven, table: str = "personal") -> Any:
    return run.folder.frame(table).drop(columns=TIMES, errors="ignore")


# --- who they are -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "count"), [(0, 0), (0.0, 0), ([], 0), (3, 3), (0.1, 3), (0.29, 8), (0.01, 1), (0.99, 29), ([4, 9], 2)]
)
def test_as_many_as_are_asked_for(wanted: Any, count: int) -> None:
    """Kills: a share of all clients, of which some hold nothing; one that is rounded up, or down to nobody; clients
    that hold nothing; a client twice."""
    holders = np.arange(0, 60, 2) + (0 if not isinstance(wanted, list) else np.arange(30) % 2)
    found = held_out_of(0, holders, Participation.model_validate({"held_out": wanted}))
    assert len(set(found.tolist())) == len(found) == count
    assert found.tolist() == sorted(found.tolist())
    if not isinstance(wanted, list):
        assert set(found.tolist()) <= set(holders.tolist())


def test_the_draw_is_keyed_by_the_seed() -> None:
    """Kills: the same clients for every seed, always the first ones; draws from a global generator."""
    drawn = {tuple(held_out_of(seed, np.arange(30), Participation(held_out=3)).tolist()) for seed in range(50)}
    assert len(drawn) > 45
    again = {tuple(held_out_of(seed, np.arange(30), Participation(held_out=3)).tolist()) for seed in range(50)}
    assert again == drawn


def test_nobody_held_out_is_in_no_digest() -> None:
    """Kills: a digest by how nobody is written, or by the order of a list; one that leaves clients out."""
    config = experiment()
    for nobody in (0, 0.0, []):
        assert experiment(participation={"held_out": nobody}).digest == config.digest
    assert "held_out" not in config.identity()["participation"]
    assert experiment(participation={"held_out": [6, 3]}).digest == holding_out().digest
    others = [experiment(participation={"held_out": one}) for one in (2, 0.2, [3])]
    assert len({one.digest for one in (config, holding_out(), *others)}) == 5
    assert Experiment.from_mapping(holding_out().to_mapping()) == holding_out()


# --- they never train ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddc", "pflego", "fedmix", "cbfl", "ccvr", "iid_calibration"])
def test_training_is_as_if_they_held_nothing(tmp_path: Path, name: str) -> None:
    """Kills: a held-out client in a cohort, in a pass over all clients, or in a sum of rows or clients by which others
    are weighted."""
    parts = with_tests(assignment(SIZES), dataset())
    rounds = {"rounds": 3, "participation": {"count": 4}}
    there = drive(tmp_path / "there", holding_out(name, **rounds), parts=parts)
    gone = drive(tmp_path / "gone", experiment_of(name, **rounds), parts=without(parts, OUT))
    assert there.shas == gone.shas
    assert not set(rows_of(there, "clients")["client"]) & {*OUT}
    assert not set(rows_of(there, "exchanges")["client"]) & {*OUT}
    columns = ["round", "clients", "samples", "steps", "floats_up", "floats_down", "loss_before", "loss_after"]
    pd.testing.assert_frame_equal(rows_of(there, "rounds")[columns], rows_of(gone, "rounds")[columns])
    contexts = [one.driver.federation.context(0, 2) for one in (there, gone)]
    assert contexts[0] == contexts[1]
    assert (contexts[0].num_clients, contexts[0].num_examples) == (6, 120 - 30 - 24)
    assert there.summary["held_out_clients"] == 2 and gone.summary["held_out_clients"] == 0
    for figure in ("label_entropy", "step_label_entropy"):
        assert there.summary[figure] == gone.summary[figure]


def test_cohorts_and_the_largest_are_of_the_others(tmp_path: Path) -> None:
    """Kills: a fraction of all clients; a trial of memory, or of room for states, by a client that never trains."""
    driver = open_driver(tmp_path, holding_out(participation={"fraction": 0.5, "availability": 0.9}))
    federation = driver.federation
    assert federation.population.largest == 0
    assert federation.context(0, 1).expected_cohort < 3
    cohorts = [federation.cohort(round) for round in range(1, 60)]
    assert set().union(*cohorts) == {0, 1, 2, 4, 5, 7}
    assert max(map(len, cohorts)) == 3
    driver.pool.close()


# --- they are evaluated -------------------------------------------------------------------------------


def test_the_global_model_on_their_rows(tmp_path: Path) -> None:
    """Kills: another model, or other rows; figures of held-out clients that are mixed with those of others.

    By hand: the final weights in the network, over each client's test rows.
    """
    run = drive(tmp_path, holding_out(rounds=2))
    worker = run.driver.pool._workers[0]  # type: ignore[attr-defined]
    worker.net.load(*run.driver.weights)
    wanted = {}
    for client in range(8):
        x, y = worker.test.batch(torch.as_tensor(worker.assignment.tests[client]))
        if len(y):
            with torch.no_grad():
                wanted[client] = float((worker.net.model(x).argmax(1) == y).double().mean()), len(y)
    last = rows_of(run).query("round == 2")
    found = {row["client"]: (row["accuracy"], row["samples"]) for row in last.to_dict("records")}
    assert found == {client: (pytest.approx(share), count) for client, (share, count) in wanted.items()}
    assert last.set_index("client")["point"].to_dict() == {
        client: "held_out" if client in OUT else "post_server" for client in wanted
    }
    assert not last[last["point"] == "held_out"]["participant"].any()
    held, others = ([wanted[k] for k in wanted if (k in OUT) == out] for out in (True, False))
    for name, group in (("held_out", held), ("personal", others)):
        total = sum(count for _, count in group)
        by_rows = sum(share * count for share, count in group) / total
        assert run.summary[f"{name}_accuracy"] == pytest.approx(by_rows)
        assert run.summary[f"{name}_client_accuracy"] == pytest.approx(sum(share for share, _ in group) / len(group))


@pytest.mark.parametrize(
    ("evaluation", "rounds"),
    [({}, [1, 2, 3, 4, 5]), ({"every": 2}, [2, 4, 5]), ({"personal_every": 3}, [3, 5]), ({"personal_every": 0}, [5])],
)
def test_when_they_are_measured(tmp_path: Path, evaluation: dict[str, int], rounds: list[int]) -> None:
    """Kills: held-out clients that are measured only where others would be anyway; participants that are measured in
    training for their sake."""
    run = drive(tmp_path, holding_out(rounds=5, evaluation=evaluation))
    rows = rows_of(run)
    for point in ("held_out", "post_server"):
        assert rows[rows["point"] == point]["round"].drop_duplicates().tolist() == rounds
    during = {"received", "post_local"} & {*rows["point"]}
    assert bool(during) == bool(evaluation.get("personal_every"))


@pytest.mark.parametrize("name", ["ditto", "fedper", "pfedme", "perfedavg", "fedrecon"])
def test_of_personal_methods_they_have_a_newcomers_model(tmp_path: Path, name: str) -> None:
    """Kills: a model that somebody trained, or that has none of the server's; a state that is kept of them.

    What a client that may train, and that was never there, would use in a run of the same others is the same.
    """
    others = [client for client in range(8) if client not in OUT]
    there = tmp_path / "there.parquet"
    pd.DataFrame({"client": others, "first_round": 1, "last_round": 9}).to_parquet(there)
    settings = {"rounds": 2, "evaluation": {"personal_every": 1, "fine_tune_steps": 2}}
    held = drive(tmp_path / "held", holding_out(name, **settings))
    never = drive(tmp_path / "never", experiment_of(name, participation={"availability": str(there)}, **settings))
    assert held.shas == never.shas
    assert held.states[3] == held.states[6] == {}
    rows = rows_of(held)
    found = rows[rows["client"].isin(OUT)]
    points = {"held_out": "post_server", "held_out_tuned": "fine_tuned"}
    assert {*found["point"]} == {*points}
    wanted = rows_of(never)
    wanted = wanted[wanted["client"].isin(OUT)]
    renamed = found.assign(point=found["point"].map(points))
    pd.testing.assert_frame_equal(renamed.reset_index(drop=True), wanted.reset_index(drop=True))


def test_the_headline_without_a_global_model_is_of_the_others(tmp_path: Path) -> None:
    """Kills: untrained heads of held-out clients in the run's accuracy."""
    run = drive(tmp_path, holding_out("fedper", rounds=2))
    rows = rows_of(run).query("round == 2 and point == 'post_server'")
    headline = rows_of(run, "evaluations").iloc[-1]
    assert headline["samples"] == rows["samples"].sum()
    assert headline["accuracy"] == pytest.approx((rows["accuracy"] * rows["samples"]).sum() / rows["samples"].sum())
    assert run.summary["accuracy"] == run.summary["personal_accuracy"] != run.summary["held_out_accuracy"]


def test_fine_tuning_is_their_own(tmp_path: Path) -> None:
    """Kills: fine-tuned models of held-out clients under the name of others; weights that change by it."""
    evaluation = {"fine_tune_epochs": 3, "fine_tune_part": "all", "fine_tune_lr": 0.1}
    tuned = drive(tmp_path / "tuned", holding_out(rounds=2, evaluation=evaluation))
    plain = drive(tmp_path / "plain", holding_out(rounds=2))
    assert tuned.shas == plain.shas
    rows = rows_of(tuned)
    assert set(rows[rows["point"] == "held_out_tuned"]["client"]) == set(rows[rows["point"] == "held_out"]["client"])
    assert not set(rows[rows["point"] == "fine_tuned"]["client"]) & {*OUT}
    at_end = rows.query("round == 2").set_index(["point", "client"])["loss"]
    assert all(at_end["held_out_tuned", client] != at_end["held_out", client] for client in (3, 6))
    assert "held_out_tuned_client_accuracy" in tuned.summary


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
def test_stops_and_stores_change_nothing(tmp_path: Path, name: str) -> None:
    """Kills: rows that another run of the same experiment would not have; a draw that a resume makes anew."""
    config = experiment_of(name, rounds=4, participation={"held_out": 2, "count": 3}, checkpoint={"every": 1})
    plain = drive(tmp_path / "plain", config)
    for until in (1, 3, 4):
        driver = open_driver(tmp_path / "again", config)
        while driver.round < until:
            driver.advance(until=until)
        summary = driver.close()
    assert (summary["weights_sha256"], summary["states_sha256"]) == plain.shas
    store = StageStore(tmp_path / "store")
    drive_with_store(tmp_path / "first", config.replace({"rounds": 3}), store)
    taken = drive_with_store(tmp_path / "taken", config, store)
    assert (taken["rounds_computed"], taken["weights_sha256"]) == (1, plain.sha)
    order = ["round", "point", "client"]
    wanted = rows_of(plain).sort_values(order, ignore_index=True)
    for folder in (driver.folder, type(driver.folder)(tmp_path / "taken")):
        found = folder.frame("personal").drop(columns=TIMES, errors="ignore").sort_values(order, ignore_index=True)
        pd.testing.assert_frame_equal(found, wanted)


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, -0.1, True, None, "two", [1, 1], [-1], [0.5], [True], float("nan")])
def test_values_that_say_nobody(value: Any) -> None:
    """Kills: a share of 1, which leaves nobody; a number of another type that is rounded."""
    with pytest.raises(ConfigError, match=r"^participation\.held_out="):
        Experiment.from_mapping({"participation": {"held_out": value}})


@pytest.mark.parametrize(
    ("participation", "message"),
    [
        ({"held_out": 8}, "participation.held_out=8: leaves none of the 8 clients that hold data to train"),
        ({"held_out": 10**6}, "leaves none of the 8 clients"),
        ({"held_out": list(range(8))}, "leaves none of the 8 clients"),
        ({"held_out": [1, 8]}, "names client [8], which holds no data"),
        ({"held_out": [1, 99]}, "names client [99], which holds no data"),
        ({"held_out": 3, "count": 6}, "must be at most 5, the number of clients that hold data and are not held out"),
    ],
)
def test_clients_that_cannot_be_held_out(participation: dict[str, Any], message: str) -> None:
    """Kills: a run in which nobody trains; a list of another partition's clients."""
    parts = with_tests(assignment([*SIZES, 0]), dataset())
    with pytest.raises(ConfigError) as caught:
        check_against_data(experiment(participation=participation), dataset(), parts)
    assert message in str(caught.value)


def test_someone_must_have_test_rows() -> None:
    """Kills: a comparison of something with nothing."""
    parts = with_tests(assignment(SIZES), dataset())
    nothing = np.empty(0, dtype=np.int64)
    bare = replace(parts, tests=[nothing if k in OUT else rows for k, rows in enumerate(parts.tests)])
    with pytest.raises(DataError, match="of the clients held out, or of the others, none has a test row"):
        check_against_data(holding_out(), dataset(), bare)
