"""Unequal local work: stragglers and drawn epochs, tables of clients' work, stragglers that are dropped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.fedavg import FedAvg
from engine.base.errors import ConfigError
from engine.data import Assignment, Dataset, Split
from engine.experiment import Experiment, Local, Work
from engine.run.preparing import check_against_data
from engine.server.cohort import draw_cohort
from engine.server.stragglers import draw_stragglers, expected_without_dropped, work_of
from tests.support.pencil import quadratic
from tests.support.tiny import SIZES, assignment, dataset, drive, experiment, open_driver

COHORT = (1, 4, 5, 9, 12, 20, 21, 30, 33, 39)
CLIENTS = np.arange(40)
FIVE = Local(epochs=5)
ANY = {"name": "natural"}  # a partition that learns its number of clients from the data
BATCHES = np.array([-(-size // 8) for size in SIZES])  # of eight rows


def steps_of(run: Any) -> pd.Series:
    """Steps by round and client."""
    return run.folder.frame("clients").set_index(["round", "client"])["steps"]


# --- draws --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(low=st.integers(1, 6), more=st.integers(0, 6), round=st.integers(1, 10**6), seed=st.integers(0, 99))
def test_work_is_drawn_in_its_range_whoever_else_draws(low: int, more: int, round: int, seed: int) -> None:
    """Kills: a draw that depends on the order of clients, or on who else is in the cohort; one outside of the range."""
    work = Work(low=low, high=low + more)
    found = work_of(seed, round, COHORT, work, FIVE)
    assert work_of(seed, round, COHORT[::-1], work, FIVE) == found
    assert work_of(seed, round, COHORT[3:5], work, FIVE) == {client: found[client] for client in COHORT[3:5]}
    assert all(low <= amount <= low + more and isinstance(amount, int) for amount in found.values())


def test_draws_are_even() -> None:
    """Kills: an end of the range that is never drawn, one draw for all clients or all rounds; other bounds than what
    ``local`` says."""
    counts = Counter(
        one for round in range(500) for one in work_of(0, round, COHORT, Work(low=2, high=5), FIVE).values()
    )
    assert sorted(counts) == [2, 3, 4, 5]
    assert all(abs(count - 1250) < 5 * np.sqrt(5000 * 3 / 16) for count in counts.values())
    assert Work(stragglers=0.5).span(Local(epochs=5.5)) == (1, 5)
    assert Work(stragglers=0.5).span(Local(epochs=5, steps=70)) == (1, 70)
    rounds = {tuple(work_of(0, round, COHORT, Work(low=2, high=5), FIVE).values()) for round in range(50)}
    assert len(rounds) == 50 and all(len({*one}) > 1 for one in rounds)
    run = Work(low=2, high=5, drawn="run")
    assert len({tuple(work_of(0, round, COHORT, run, FIVE).values()) for round in range(50)}) == 1


def test_stragglers_are_a_share_of_the_cohort() -> None:
    """Kills: a coin for each client, by which a small cohort may be dropped whole; a share that is rounded up."""
    for share, count in ((0.0, 0), (0.04, 0), (0.3, 3), (0.55, 5), (0.9, 9), (1.0, 10)):
        work = Work(stragglers=share)
        drawn = [draw_stragglers(0, round, COHORT, CLIENTS, work) for round in range(1, 40)]
        assert all(len(one) == count and list(one) == sorted({*one} & {*COHORT}) for one in drawn)
        assert count in (0, 10) or len({*drawn}) > 8
    assert draw_stragglers(0, 1, COHORT, CLIENTS, Work(low=2, high=3)) == COHORT
    assert draw_stragglers(0, 1, COHORT, CLIENTS, Work(table=[1] * 40)) == ()
    assert draw_stragglers(0, 1, (), CLIENTS, Work(stragglers=0.5)) == ()


def test_stragglers_of_a_run_stay() -> None:
    """Kills: a client that is slow in one round and quick in the next, where speed is the client's own."""
    work = Work(stragglers=0.5, drawn="run")
    slow = {*draw_stragglers(0, 1, range(40), CLIENTS, work)}
    assert len(slow) == 20
    for round in range(1, 20):
        assert {*draw_stragglers(0, round, COHORT, CLIENTS, work)} == slow & {*COHORT}


def test_expected_cohorts_leave_out_who_is_dropped() -> None:
    """Kills: an expectation of clients that never report, by which steps are scaled."""
    for cohort, share, left in ((10, 0.9, 1), (10, 0.55, 5), (3, 0.5, 2), (2.5, 0.5, 1.5)):
        assert expected_without_dropped(cohort, 40, Work(stragglers=share, cut="drop")) == left
        assert expected_without_dropped(cohort, 40, Work(stragglers=share)) == cohort
    once = Work(stragglers=0.55, cut="drop", drawn="run")  # 5 of 10 clients are slow, whoever is drawn
    assert expected_without_dropped(1, 10, once) == 0.5 and expected_without_dropped(9, 10, once) == 4.5


# --- whole runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("drawn", ["round", "run"])
def test_partial_work(tmp_path: Path, drawn: Any) -> None:
    """Kills: stragglers that do all of the work, or others that do not; draws by a stage's name or by the process."""
    work = {"stragglers": 0.5, "drawn": drawn}
    config = experiment(local={"epochs": 5}, participation={"count": 6}, work=work)
    steps = steps_of(drive(tmp_path / "run", config))
    for round in (1, 2, 3):
        cohort = draw_cohort(0, round, range(8), config.participation)
        slow = draw_stragglers(0, round, cohort, np.arange(8), config.work)
        epochs = {**dict.fromkeys(cohort, 5), **work_of(0, round, slow, config.work, config.local)}
        assert steps[round].to_dict() == {client: epochs[client] * BATCHES[client] for client in cohort}
    assert len({*(steps / BATCHES[steps.index.get_level_values("client")])}) > 2


@pytest.mark.parametrize(("name", "executor"), [("fedavg", "block"), ("scaffold", "block"), ("scaffold", "loop")])
def test_blocks_and_workers_change_nothing(tmp_path: Path, name: str, executor: str) -> None:
    """Kills: work that is drawn where a client trains, or by its place in a block; clients that step together for as
    long as the first of them; results in the order of work."""
    config = experiment(algorithm={"name": name}, work={"low": 1, "high": 4}, evaluation={"every": 0})
    config = config.replace({"execution.block": 3, "execution.precision": "float64"})
    runs = [
        drive(tmp_path / str(number), config.replace({"execution.executor": one, "execution.workers": workers}))
        for number, (one, workers) in enumerate(((executor, 1), (executor, 2), ("loop", 1)))
    ]
    assert runs[0].shas == runs[1].shas
    assert steps_of(runs[0]).equals(steps_of(runs[1])) and steps_of(runs[0]).equals(steps_of(runs[2]))
    for entry, tensor in runs[0].server.items():
        np.testing.assert_allclose(tensor, runs[2].server[entry], rtol=0, atol=1e-12)


def test_who_is_dropped_never_trains(tmp_path: Path) -> None:
    """Kills: a straggler in the mean, in its number of clients, or among those that may fail; one that nobody hears of.

    The oracle: a run in which, by a table, those that are left are all that are there.
    """
    work = {"stragglers": 0.75, "cut": "drop"}
    run = drive(tmp_path / "run", experiment(participation={"on_client_error": "drop"}, work=work))
    failures, rounds = run.folder.frame("failures"), run.folder.frame("rounds")
    dropped = failures.groupby("round")["client"].apply(list)
    assert dropped.map(len).to_list() == [6, 6, 6] and {*failures["reason"]} == {
        "a straggler, dropped by work.cut=drop"
    }
    left = [(round, client) for round, out in dropped.items() for client in range(8) if client not in out]
    table = pa.table({name: [row[place] for row in left] for place, name in enumerate(("round", "client"))})
    pq.write_table(table, tmp_path / "left.parquet")
    there = {"availability": str(tmp_path / "left.parquet")}
    alone = drive(tmp_path / "alone", experiment(participation=there))
    assert run.sha == alone.sha
    assert [*zip(*(run.folder.frame("clients")[name] for name in ("round", "client")), strict=True)] == left
    assert rounds["failed"].to_list() == [0, 0, 0] and run.summary["clients_failed"] == 0
    assert (rounds["floats_down"] == alone.folder.frame("rounds")["floats_down"]).all()
    assert run.driver.federation.context(0, 1).expected_cohort == 2


def test_a_round_of_which_all_are_dropped(tmp_path: Path) -> None:
    """Kills: a mean of nobody, where slow clients stay slow."""
    work, seeds = {"stragglers": 0.9, "cut": "drop", "drawn": "run"}, range(20)
    empty = [
        drive(tmp_path / f"{seed}", experiment(seed=seed, rounds=1, participation={"count": 2}, work=work))
        for seed in seeds[:3]
    ]
    assert 0 in [run.folder.frame("rounds")["clients"][0] for run in empty]
    assert all(len(run.folder.frame("failures")) + len(run.folder.frame("clients")) == 2 for run in empty)


@pytest.mark.parametrize("name", ["fedavg", "fednova"])
def test_fixed_points_of_quadratics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Kills: work that is not each client's own, or of which FedNova is told another number.

    Wang et al. 2020, Theorem 1: f_k = (y - b_k)^2 / 2 and tau_k steps, of which Delta_k = (1 - (1 - eta)^tau_k)
    (b_k - y). FedAvg ends where the sum of p_k Delta_k is 0, FedNova where that of p_k Delta_k / tau_k is: to first
    order in eta at sum p tau b / sum p tau = 3.1, and at the optimum sum p b = 1.5.
    """
    monkeypatch.setattr(FedAvg, "loss", quadratic())
    targets, tau, share = np.array([1.0, 4.0, 4.0, -3.0]), np.array([2, 30, 8]), np.array([1, 2, 1]) / 4
    split = Split(targets.astype(np.float32).reshape(-1, 1, 1, 1), np.zeros(4, np.int64))
    data = Dataset("pencil", ("only",), split, split, (0.0,), (1.0,))
    parts = Assignment(tuple(np.array(rows) for rows in ([0], [1, 2], [3])))
    config = experiment(
        algorithm={"name": name},
        model={"name": "logistic"},
        partition=ANY,
        local={"steps": 5, "batch_size": "full", "lr": 0.05},
        work={"table": tau.tolist()},
        rounds=30,
        evaluation={"every": 0},
        execution={"precision": "float64"},
    )
    run = drive(tmp_path, config.replace({"model": {"name": "logistic"}}), data, parts)
    weight = share * (1 - 0.95**tau) / (tau if name == "fednova" else 1)
    b = np.array([1.0, 4.0, -3.0])
    assert run.server["weights"][0].item() == pytest.approx(weight @ b / weight.sum(), abs=1e-7)
    first_order = share @ b if name == "fednova" else (share * tau) @ b / (share @ tau)
    assert run.server["weights"][0].item() == pytest.approx(first_order, abs=0.6)


# --- tables -------------------------------------------------------------------------------------------


def test_a_table_is_what_each_client_does(tmp_path: Path) -> None:
    """Kills: a file that is read by the order of its lines; one that a run still needs; a path in the digest."""
    given = [3, 1, 2, 0.5, 4, 1, 2.0, 1]
    frame = pd.DataFrame({"client": range(8), "work": given}).iloc[::-1]
    frame.to_csv(tmp_path / "work.csv", index=False)
    frame.assign(note="x").to_parquet(tmp_path / "work.parquet")
    base = experiment(rounds=1, partition=ANY)
    runs = [
        base.replace({"work.table": one})
        for one in (given, *(str(tmp_path / f"work.{end}") for end in ("csv", "parquet")))
    ]
    assert len({one.digest for one in runs}) == 1 and runs[0].digest != base.digest
    (tmp_path / "work.csv").unlink()
    assert Experiment.from_mapping(runs[1].to_mapping()).digest == runs[0].digest
    steps = steps_of(drive(tmp_path / "run", runs[1]))[1]
    assert steps.to_list() == [int(np.ceil(one * batches)) for one, batches in zip(given, BATCHES, strict=True)]
    counted = base.replace({"work.table": [9, *range(1, 8)], "local.steps": 50})
    assert steps_of(drive(tmp_path / "steps", counted))[1].to_list() == [9, *range(1, 8)]


def test_who_has_most_to_do_is_sent_first(tmp_path: Path) -> None:
    """Kills: blocks whose expected work is what ``local`` says, so that the longest is waited for at the end."""
    driver = open_driver(
        tmp_path, experiment(partition=ANY, work={"table": [1, 1, 9, 1, 1, 50, 1, 1]}, execution={"block": 1})
    )
    run, costs = driver.pool.run, list[float]()

    def spy(name: str, shared: Any, job: Any, calls: Any, **rest: Any) -> Any:
        costs.extend(call.cost for call in calls if name == "train")
        return run(name, shared, job, calls, **rest)

    driver.pool.run = spy  # type: ignore[method-assign]
    driver.next()
    driver.pool.close()
    assert np.argsort(costs)[-2:].tolist() == [2, 5]


def test_phases_that_say_for_how_long_are_as_they_were(tmp_path: Path) -> None:
    """Kills: work of phases whose length is the algorithm's."""
    fields = {"algorithm": {"name": "fedrep", "head_epochs": 3}, "rounds": 1, "partition": ANY}
    runs = [
        drive(tmp_path / f"{number}", experiment(**fields, work=work))
        for number, work in enumerate(({}, {"table": [4] * 8}))
    ]
    equal, more = (steps_of(run)[1] for run in runs)
    body = 1 if (equal == 4 * BATCHES).all() else 0  # fedrep's body has epochs of its own as well
    assert body and equal.equals(more)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,epochs\n0,1\n", "it has no column 'work'"),
        ("client,work\n0,1\n2,3\n", "has 0 lines for client 1, and each client has one, from 0 on"),
        ("client,work\n0,1\n0,3\n", "has 2 lines for client 0"),
        ("client,work\n-1,1\n", "has 0 lines for client 0"),
        ("client,work\n0,\n1,2\n", "a list with a number above 0 for each client"),
        ("client,work\n0,0\n", "a list with a number above 0 for each client"),
        ("client,work\na,1\n", "a cell is empty or no number"),
        ("client,work\n0,many\n", "a cell is empty or no number"),
        ("client,work\n", "a cell is empty or no number"),
        ("", "is no table of clients' work"),
    ],
)
def test_files_that_are_no_table_are_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    """Kills: a client that has no line and does what another does; an error of the library's."""
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(ConfigError) as caught:
        experiment(work={"table": str(tmp_path / "bad.csv")})
    assert message in str(caught.value) and str(caught.value).startswith(f"work.table={tmp_path}")
    with pytest.raises(ConfigError, match=r"is no table of clients' work"):
        experiment(work={"table": str(tmp_path / "bad.parquet")})


def test_a_table_of_other_clients_is_refused() -> None:
    """Kills: a table of another partition."""
    with pytest.raises(ConfigError, match=r"is for clients 0 to 6, and clients are 0 to 7"):
        check_against_data(experiment(partition=ANY, work={"table": [1] * 7}), dataset(), assignment(SIZES))


# --- what a result depends on -------------------------------------------------------------------------


def test_equal_work_is_in_no_digest(tmp_path: Path) -> None:
    """Kills: hashes of earlier experiments that change; a share of no stragglers that is another experiment."""
    plain = experiment()
    for work in ({}, {"stragglers": 0}, {"stragglers": 0, "cut": "drop", "drawn": "run"}):
        assert experiment(work=work).digest == plain.digest
    assert "work" not in plain.identity()
    digests = {
        experiment(local={"epochs": 5}, work=work).digest
        for work in (
            {},
            {"stragglers": 0.5},
            {"stragglers": 0.5, "cut": "drop"},
            {"low": 2},
            {"low": 2, "drawn": "run"},
        )
    }
    assert len(digests) == 5
    driver = open_driver(tmp_path, experiment(work={"stragglers": 0}))
    assert driver.federation.work(driver.stage, 1) == {} and driver.federation.dropped(1) == ()
    driver.pool.close()


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ({"low": 3}, "work.low=3: must be at most 2, the most that is drawn"),
        ({"low": 3, "high": 2}, "work.low=3: must be at most 2, the most that is drawn"),
        ({"cut": "drop"}, "work.cut=drop: is for a share of stragglers below 1"),
        ({"cut": "drop", "stragglers": 1}, "work.cut=drop: is for a share of stragglers"),
        ({"table": [1, 2], "stragglers": 0.5}, "work.table=...: says all, so that nothing is drawn"),
        ({"table": [1, 2]}, "work.table=...: is for clients 0 to 1, and clients are 0 to 19"),
        ({"table": [1, 0]}, "work.table=[1, 0]: must be the path of a table, or a list with a number above 0"),
        ({"stragglers": 1.5}, "work.stragglers=1.5: must be at least 0 and at most 1"),
    ],
)
def test_bad_values_are_refused(work: dict[str, Any], message: str) -> None:
    """Kills: a missing check."""
    with pytest.raises(ConfigError) as caught:
        experiment(work=work)  # of 2 epochs
    assert str(caught.value).startswith(message)
