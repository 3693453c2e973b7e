"""Numbers that travelled up to a round, by all clients and by one that never misses a round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from engine.record import communication
from engine.results import load
from tests.support.tiny import drive, experiment

ORDER = {"warm-up": 0, "main": 2}  # of a lineage; stage 1 is a branch


def rounds(*rows: tuple[str, int, int, int, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["stage", "round", "clients", "floats_up", "floats_down"])


def exchanges(*rows: tuple[str, int, str, int, int, int, int]) -> pd.DataFrame:
    names = ["stage", "round", "when", "exchange", "client", "floats_up", "floats_down"]
    return pd.DataFrame(rows, columns=names)


ROUNDS = rounds(
    ("warm-up", 1, 4, 40, 80),
    ("warm-up", 2, 2, 24, 40),
    ("aside", 3, 4, 999, 999),
    ("main", 3, 0, 0, 0),  # nobody came
    ("main", 4, 3, 33, 60),
)
EXCHANGES = exchanges(
    ("main", 2, "prepare", 1, 0, 5, 7),
    ("main", 2, "prepare", 1, 1, 6, 7),
    ("main", 2, "prepare", 2, 0, 1, 0),
    ("main", 2, "prepare", 2, 1, 1, 0),
    ("main", 4, "finish", 1, 0, 10, 2),
    ("main", 4, "finish", 1, 1, 20, 2),
)


def test_what_comes_before_a_round() -> None:
    """Kills: a side branch that counts; an exchange before the next stage; the round itself left out."""
    found = communication.until(ROUNDS, ORDER, "main", 3)
    assert list(zip(found["stage"], found["round"], strict=True)) == [("warm-up", 1), ("warm-up", 2), ("main", 3)]
    assert len(communication.until(EXCHANGES, ORDER, "warm-up", 2)) == 0
    assert communication.until(EXCHANGES, ORDER, "main", 3)["when"].tolist() == ["prepare"] * 4
    assert len(communication.until(EXCHANGES, ORDER, "main", 4)) == 6
    assert len(communication.until(EXCHANGES.iloc[:0], ORDER, "main", 4)) == 0


def test_one_client_by_hand() -> None:
    """Kills: the cohort's sum; a division by an empty cohort; an exchange per client in place of its mean."""
    assert communication.of_all(ROUNDS) == 120 + 64 + 1998 + 93
    until_main = communication.until(ROUNDS, ORDER, "main", 4)
    # 120 / 4 + 64 / 2 + 93 / 3; then (12 + 13) / 2 + 1 and (12 + 22) / 2
    assert communication.of_one_client(until_main, EXCHANGES.iloc[:0]) == 30 + 32 + 31
    assert communication.of_one_client(until_main, EXCHANGES) == 93 + 12.5 + 1 + 17


def test_the_communication_of_table_13() -> None:
    """Kills: bytes for floats, one way only. 2 * 0.3 M parameters * 974 rounds = 584.4 M (CBFL, Table 13)."""
    table = rounds(*(("train", number, 10, 10 * 300_000, 10 * 300_000) for number in range(1, 1001)))
    best = communication.until(table, {"train": 0}, "train", 974)
    assert communication.of_one_client(best, EXCHANGES.iloc[:0]) / 1e6 == pytest.approx(584.4)


@pytest.mark.parametrize("count", [3, 8])
def test_of_a_run(tmp_path: Path, count: int) -> None:
    """Kills: a figure up to the last round; one that grows with the cohort; one that the table of trials lacks."""
    settings = experiment(rounds=6, participation={"count": count}, local={"lr": 2.0})
    run = drive(tmp_path, settings)
    best = run.summary["best_round"]
    assert 1 <= best < 6
    assert run.summary["client_floats_to_best"] == 2 * run.driver.layout.size * best
    row: Any = load(tmp_path).trials.iloc[0]
    assert row["client_floats_to_best"] == run.summary["client_floats_to_best"]
