"""Clients that come and go: cohorts among those that are there, by a rate or by a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.base.errors import ConfigError
from engine.data import Availability, read_availability
from engine.experiment import Experiment, Participation
from engine.record.columns import HOW_IT_WENT
from engine.record.run_folder import RunFolder
from engine.record.stage_hashes import stage_hash
from engine.run import run as engine_run
from engine.run.preparing import check_against_data
from engine.run.run import Run
from engine.server.cohort import draw_cohort, is_present, mean_cohort
from tests.support.tiny import SIZES, assignment, dataset, drive, experiment, open_driver

CLIENTS = np.arange(40)


def table(path: Path, columns: Mapping[str, Sequence[int | None]]) -> str:
    pq.write_table(pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}), path)
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Round 1: clients 0, 3 and 5; round 2: 3; round 3: nobody; round 4: 2 and 3."""
    return table(tmp_path / "there.parquet", {"round": [4, 1, 1, 2, 4, 1], "client": [2, 0, 3, 3, 3, 5]})


# --- by a rate ----------------------------------------------------------------------------------------


def test_each_client_has_a_coin_of_its_own() -> None:
    """Kills: one coin for all, or for all rounds; a client whose coin depends on who else there is."""
    half = Participation(availability=0.5)
    there = np.array([is_present(0, round, CLIENTS, half) for round in range(1, 401)])
    assert (abs(there.mean(axis=0) - 0.5) < 5 * 0.5 / 20).all()  # five standard deviations of 400 coins
    assert abs(there.mean() - 0.5) < 5 * 0.5 / math.sqrt(400 * 40)
    assert len({tuple(row) for row in there.tolist()}) == 400
    few = np.array([3, 17, 30])
    assert (np.array([is_present(0, round, few, half) for round in range(1, 401)]) == there[:, few]).all()
    assert (is_present(0, 1, CLIENTS, Participation(availability=0.5, count=2)) == there[0]).all()
    assert (is_present(1, 1, CLIENTS, half) != there[0]).any()
    more = np.array([is_present(0, round, CLIENTS, Participation(availability=0.7)) for round in range(1, 401)])
    assert (more >= there).all() and more.sum() > there.sum()


@settings(max_examples=60, deadline=None)
@given(
    rate=st.floats(0.01, 0.99),
    round=st.integers(1, 10**6),
    asked=st.sampled_from([{}, {"count": 5}, {"fraction": 0.3}, {"fraction": 0.3, "scheme": "binomial"}]),
)
def test_cohorts_are_of_those_that_are_there(rate: float, round: int, asked: dict[str, Any]) -> None:
    """Kills: an absent client that is drawn; a cohort that is smaller than it need be; coins of the binomial scheme by
    who is there."""
    participation = Participation(**asked, availability=rate)
    present = set(CLIENTS[is_present(3, round, CLIENTS, participation)].tolist())
    cohort = draw_cohort(3, round, CLIENTS, participation)
    assert list(cohort) == sorted(set(cohort))
    if "scheme" in asked:
        always = draw_cohort(3, round, CLIENTS, Participation(**asked))
        assert set(cohort) == set(always) & present
    else:
        wanted = {"count": 5, "fraction": 12}.get(next(iter(asked), ""), 40)
        assert set(cohort) <= present
        assert len(cohort) == min(wanted, len(present))


def test_expected_cohorts_by_a_rate() -> None:
    """Kills: the expectation of a cohort that is always full; that of the clients that are there where fewer are drawn.

    By hand: of 4 clients at 0.5, N is 0 to 4 with 1, 4, 6, 4, 1 sixteenths.
    """
    four = range(4)
    assert mean_cohort(four, Participation(availability=0.5, count=1)) == pytest.approx(15 / 16, rel=1e-12)
    assert mean_cohort(four, Participation(availability=0.5, count=2)) == pytest.approx((4 + 11 * 2) / 16, rel=1e-12)
    assert mean_cohort(four, Participation(availability=0.5)) == 2
    assert mean_cohort(four, Participation(availability=0.5, fraction=0.5, scheme="binomial")) == 1
    assert mean_cohort(four, Participation(count=3)) == 3


def test_always_is_the_same_as_without(tmp_path: Path) -> None:
    """Kills: a rate of 1, or a table in which everybody is there, that changes a draw; a rate of 1 in the digest."""
    everybody = table(
        tmp_path / "all.parquet", {"client": range(40), "first_round": [1] * 40, "last_round": [None] * 40}
    )
    kinds: tuple[dict[str, Any], ...] = ({}, {"count": 7}, {"fraction": 0.2, "scheme": "binomial"})
    for asked in kinds:
        for round in range(1, 30):
            drawn = [
                draw_cohort(0, round, CLIENTS, Participation(**asked, availability=availability))
                for availability in (1, 1.0, everybody)
            ]
            assert drawn == [draw_cohort(0, round, CLIENTS, Participation(**asked))] * 3
    assert experiment(participation={"availability": 1}).digest == experiment().digest
    assert "availability" not in experiment().identity()["participation"]


# --- by a table ---------------------------------------------------------------------------------------


def test_a_table_says_who_is_there(path: str) -> None:
    """Kills: rounds that count from 0, or rows that are clients and rounds exchanged; a round that nobody is named for
    in which everybody is there."""
    participation = Participation(availability=path)
    cohorts = [draw_cohort(0, round, range(8), participation) for round in range(1, 7)]
    assert cohorts == [(0, 3, 5), (3,), (), (2, 3), (), ()]
    assert draw_cohort(0, 1, [0, 1, 2], participation) == (0,)
    two = {draw_cohort(seed, 1, range(8), Participation(availability=path, count=2)) for seed in range(40)}
    assert two == {(0, 3), (0, 5), (3, 5)}
    # Cohorts of 3, 1, 0 and 2; of 2, 1, 0 and 2; of the first three clients 1, 0, 0 and 1.
    assert mean_cohort(range(8), participation) == 6 / 4
    assert mean_cohort(range(8), Participation(availability=path, count=2)) == 5 / 4
    assert mean_cohort(range(3), participation) == 2 / 4
    assert mean_cohort(range(8), Participation(availability=path, fraction=0.5, scheme="binomial")) == 3 / 4


def test_stays_are_rounds(tmp_path: Path, path: str) -> None:
    """Kills: a last round that is left out; a null that is no stay; a table whose digest depends on its kind, its rows'
    order, its other columns or its path."""
    spans = {"client": [3, 3, 0, 5, 2, 3], "first_round": [4, 1, 1, 1, 4, 1], "last_round": [4, 2, 1, 1, 4, 1]}
    other = table(tmp_path / "stays.parquet", {**spans, "note": [0] * 6})
    assert read_availability(other) == read_availability(path)
    assert (
        experiment(participation={"availability": other}).digest
        == experiment(participation={"availability": path}).digest
    )
    open_end = table(tmp_path / "open.parquet", {"client": [1, 0], "first_round": [2, 3], "last_round": [None, 3]})
    found = read_availability(open_end)
    frame = pd.DataFrame({"client": [1, 0], "first_round": [2, 3], "last_round": [None, 3]})  # 3.0, and no number
    frame.to_parquet(tmp_path / "pandas.parquet")
    assert read_availability(str(tmp_path / "pandas.parquet")) == found
    assert [found.present(round).tolist() for round in (1, 2, 3, 4, 10**12)] == [[], [1], [0, 1], [1], [1]]
    assert mean_cohort(range(2), Participation(availability=open_end)) == 1  # 0, 1 and 2 in the three rounds named


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=12))
def test_merged_stays_are_the_same_rounds(stays: list[tuple[int, int, int]]) -> None:
    """Kills: stays that overlap and count twice, or one inside another that cuts it short."""
    found = Availability.of(np.array([(client, first, first + more) for client, first, more in stays]))
    wanted = {(client, round) for client, first, more in stays for round in range(first, first + more + 1)}
    for round in range(1, 15):
        assert found.present(round).tolist() == sorted(client for client, at in wanted if at == round)
    counts, rounds = found.levels(np.arange(3))
    assert rounds.sum() == max(round for _, round in wanted)
    assert (counts * rounds).sum() == sum(client < 3 for client, _ in wanted)


def test_what_a_table_says_is_in_the_digest_and_not_its_path(tmp_path: Path, path: str) -> None:
    """Kills: a digest of the path; a table that changes under an experiment that was made before."""
    config = experiment(participation={"availability": path})
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(Path(path).read_bytes())
    same = experiment(participation={"availability": str(copy)})
    assert same.digest == config.digest != experiment().digest
    table(copy, {"round": [1], "client": [7]})
    assert same.digest == config.digest
    again = Experiment.from_mapping(same.to_mapping())
    assert again.digest != config.digest
    assert len({stage_hash(one, one.chain[0], {}, "") for one in (config, again, experiment())}) == 3


# --- whole runs ---------------------------------------------------------------------------------------


def test_a_run_by_a_table(tmp_path: Path, path: str) -> None:
    """Kills: a round with nobody there that is no round, or that changes weights; other clients than the table has."""
    config = experiment(rounds=5, participation={"availability": path})
    run = drive(tmp_path / "run", config)
    rounds, clients = run.folder.frame("rounds"), run.folder.frame("clients")
    assert rounds["clients"].tolist() == [3, 1, 0, 2, 0]
    assert clients.groupby("round")["client"].apply(list).to_dict() == {1: [0, 3, 5], 2: [3], 4: [2, 3]}
    shas = rounds["weights_sha256"].tolist()
    assert shas[1] == shas[2] and shas[3] == shas[4] and len(set(shas)) == 3
    context = run.driver.federation.context(0, 1)
    assert (context.expected_cohort, context.participation, context.num_clients) == (1.5, 1.5 / 8, 8)


@pytest.mark.parametrize("availability", [0.4, "table"])
def test_stops_change_nothing(tmp_path: Path, path: str, availability: Any) -> None:
    """Kills: draws that depend on when a process began."""
    availability = path if availability == "table" else availability
    config = experiment(rounds=5, algorithm={"name": "scaffold"}, participation={"availability": availability})
    plain = drive(tmp_path / "plain", config)
    for until in (2, 3, 5):
        driver = open_driver(tmp_path / "again", config)
        while driver.round < until:
            driver.advance(until=until)
        summary = driver.close()
    assert (summary["weights_sha256"], summary["states_sha256"]) == plain.shas
    times = [*HOW_IT_WENT, "reused"]
    for name in ("rounds", "clients", "evaluations"):
        frames = [one.frame(name).drop(columns=times, errors="ignore") for one in (plain.folder, driver.folder)]
        pd.testing.assert_frame_equal(frames[0], frames[1])


def test_a_round_depends_on_who_is_there_alone(tmp_path: Path) -> None:
    """Kills: training that another client's absence changes: with one client there, that is the client alone."""
    alone = table(tmp_path / "one.parquet", {"client": [4], "first_round": [1], "last_round": [None]})
    run = drive(tmp_path / "run", experiment(rounds=2, participation={"availability": alone, "count": 8}))
    seen: dict[int, torch.Tensor] = {}
    driver = open_driver(tmp_path / "seen", experiment(rounds=1))

    def look(client: int, model: Any) -> None:
        seen[client] = model["weights"]

    driver.watch(look)
    driver.next()
    driver.pool.close()
    first = open_driver(tmp_path / "first", experiment(rounds=2, participation={"availability": alone}))
    first.next()
    assert torch.equal(first.weights[0], seen[4])
    assert first.round == 1 and run.summary["rounds"] == 2
    first.pool.close()


def test_a_run_goes_on_by_its_own_table(tmp_path: Path, path: str) -> None:
    """Kills: a run that cannot be resumed, or shown, where the user's table is not; one that goes on by another table;
    an end of a span that is another one when it is read again."""
    table(Path(path), {"client": [0, 3], "first_round": [1, 2], "last_round": [None, 2]})
    settings = {"data.train_samples": 200, "data.test_samples": 50, "rounds": 3, "participation.availability": path}
    config = Experiment().replace({**settings, "execution.device": "cpu"})
    whole = engine_run.run(config, tmp_path / "whole")
    begun = Run.open(config, tmp_path / "run")
    begun.advance(until=1)
    begun.close()
    table(Path(path), {"client": [0, 1], "first_round": [1, 1], "last_round": [2, 2]})
    with pytest.raises(ConfigError, match=r"holds another experiment \("):
        Run.open(Experiment().replace({**settings, "execution.device": "cpu"}), tmp_path / "run")
    Path(path).unlink()
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    found = RunFolder(moved).experiment()
    assert found.digest == config.resolve().digest and found.participation.table == config.participation.table
    assert engine_run.run(found, moved)["weights_sha256"] == whole["weights_sha256"]
    assert RunFolder(moved).experiment().digest == found.digest


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -0.5, 1.5, "", None, True, [0.5], float("nan")])
def test_values_that_are_neither_rate_nor_path(value: Any) -> None:
    """Kills: a rate that is read as a path, since numbers may be text."""
    with pytest.raises(ConfigError, match=r"^participation\.availability=.*must be a rate above 0 and at most 1"):
        Experiment.from_mapping({"participation": {"availability": value}})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"client": [1]}, "its columns are client; wanted: round, client, or client, first_round, last_round"),
        ({"round": [], "client": []}, "it has no rows"),
        ({"round": [1, None], "client": [1, 1]}, "its column round has an empty cell"),
        ({"round": [1, 0], "client": [1, 1]}, "has client 1 from round 0 to 0 in row 1"),
        ({"round": [1], "client": [-1]}, "has client -1 from round 1 to 1 in row 0"),
        ({"client": [2], "first_round": [3], "last_round": [2]}, "has client 2 from round 3 to 2 in row 0"),
    ],
)
def test_tables_that_are_none_are_one_sentence(tmp_path: Path, columns: Any, message: str) -> None:
    """Kills: a table that is taken for a schedule that it is not."""
    place = table(tmp_path / "bad.parquet", columns)
    with pytest.raises(ConfigError) as caught:
        experiment(participation={"availability": place})
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"participation.availability={place}: ")


def test_files_that_are_no_table_are_one_sentence(tmp_path: Path) -> None:
    """Kills: an error of the library's; times in place of rounds; a file that is missing at the first round."""
    (tmp_path / "text").write_text("round,client")
    pq.write_table(pa.table({"round": [1.5], "client": [1]}), tmp_path / "float")
    for name in ("text", "float", "missing"):
        with pytest.raises(ConfigError, match=r"^participation\.availability="):
            experiment(participation={"availability": str(tmp_path / name)})


def test_tables_of_other_clients_are_refused(tmp_path: Path) -> None:
    """Kills: a table of another partition, by which clients that are not there are drawn, or never anybody."""
    parts = assignment([*SIZES, 0])
    for client, message in ((9, "names client 9, and clients are 0 to 8"), (8, "names no client that can train")):
        config = experiment(
            participation={"availability": table(tmp_path / f"{client}", {"round": [1], "client": [client]})}
        )
        with pytest.raises(ConfigError, match=message):
            check_against_data(config, dataset(), parts)
