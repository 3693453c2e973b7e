"""Figures of personal models: by hand, in a run's summary, as columns of the trials table, as reports to Tune."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.personal import FIGURES, at_the_end, by_round, figures, tenth
from engine.results import SCHEMAS


def table(*rows: tuple[str, int, str, int, int, float]) -> Any:
    """Of (stage, round, point, client, samples, accuracy); pandas' own annotations call everything a Series."""
    columns = ["stage", "round", "point", "client", "samples", "accuracy"]
    return pd.DataFrame(rows, columns=columns).assign(loss=1.0, participant=True, reused=False)


def one_client(point: str, accuracies: dict[int, float], stage: str = "train") -> list[tuple[Any, ...]]:
    return [(stage, number, point, 0, 4, accuracy) for number, accuracy in accuracies.items()]


def test_the_last_evaluated_round_by_hand() -> None:
    """Kills: weights mixed up, an earlier round, another point's round, all clients for the worst tenth."""
    rows = table(
        ("train", 1, "post_server", 0, 5, 1.0),
        ("train", 2, "post_server", 0, 10, 0.5),
        ("train", 2, "post_server", 1, 30, 0.9),
        ("train", 2, "post_server", 2, 60, 0.1),
        ("train", 2, "fine_tuned", 0, 10, 0.6),
        ("train", 2, "fine_tuned", 1, 30, 1.0),
        ("train", 3, "received", 1, 30, 0.0),
        ("train", 3, "post_local", 1, 30, 0.7),
    )
    found = figures(rows, last=3)
    assert set(found) == set(FIGURES)
    assert found["personal_accuracy"] == pytest.approx((5 + 27 + 6) / 100)
    assert found["personal_client_accuracy"] == pytest.approx(0.5)
    assert found["personal_worst_decile_accuracy"] == pytest.approx(0.1)  # ceil(3 / 10) is one client
    assert found["personal_last10_accuracy"] == pytest.approx((1.0 + 0.38) / 2)
    assert found["fine_tuned_accuracy"] == pytest.approx(36 / 40)
    assert found["fine_tuned_client_accuracy"] == pytest.approx(0.8)
    assert found["participants_accuracy"] == pytest.approx(0.7)
    assert found["participants_std"] is None  # one round has no spread


def test_the_worst_tenth_by_hand() -> None:
    """Kills: a tenth rounded down or to the nearest, weights by samples, the best tenth, the order of the file."""
    accuracies = [0.9, 0.2, 0.8, 0.7, 0.4, 0.6, 0.5, 1.0, 0.3, 0.95, 0.85]
    rows = table(*(("train", 1, "post_server", k, 1 + 10 * k, one) for k, one in enumerate(accuracies)))
    assert figures(rows, 1)["personal_worst_decile_accuracy"] == pytest.approx((0.2 + 0.3) / 2)
    assert figures(rows[:10], 1)["personal_worst_decile_accuracy"] == pytest.approx(0.2)
    assert [tenth(count) for count in (1, 9, 10, 11, 20, 21)] == [1, 1, 1, 2, 2, 3]


def test_means_of_the_last_ten_rounds_by_hand() -> None:
    """Kills: ten evaluations for ten rounds, the eleventh from the end, ddof=0, an empty cohort as 0."""
    evaluated = {5: 0.0, 10: 0.2, 11: 0.4, 15: 0.6, 20: 0.8}
    cohort = [("train", n, "post_local", k, 1 + k, one) for n, one in evaluated.items() if n != 15 for k in (0, 1)]
    rows = table(*one_client("post_server", evaluated), *cohort, ("train", 20, "post_local", 2, 5, 0.0))
    found = figures(rows, last=20)
    assert found["personal_last10_accuracy"] == pytest.approx((0.4 + 0.6 + 0.8) / 3)
    last = 3 * 0.8 / 8  # by samples: 1 and 2 of them at 0.8, 5 at 0
    assert found["participants_accuracy"] == pytest.approx((0.4 + last) / 2)
    assert found["participants_std"] == pytest.approx((0.4 - last) / math.sqrt(2))
    assert figures(rows, last=21)["personal_last10_accuracy"] == pytest.approx((0.6 + 0.8) / 2)


def test_a_stage_without_rounds_stands_by_itself() -> None:
    """Kills: its model averaged with those of the rounds before; a round's participants that it does not have."""
    rows = table(
        *one_client("post_server", {1: 0.2, 2: 0.4}),
        *one_client("post_local", {1: 0.5, 2: 0.7}),
        *one_client("post_server", {2: 0.9}, "calibrate"),
    )
    found = figures(rows, 2, without_rounds={"calibrate"})
    assert found["personal_accuracy"] == found["personal_last10_accuracy"] == pytest.approx(0.9)
    assert found["participants_accuracy"] == pytest.approx(0.6)
    assert at_the_end(rows, "post_server")["stage"].tolist() == ["calibrate"]
    assert by_round(rows)["stage"].tolist() == ["train"] * 4 + ["calibrate"]  # the two in round 2 are two


def test_without_rows_there_are_no_figures() -> None:
    """Kills: 0 or NaN for what was not measured; an empty table that cannot be read."""
    empty = SCHEMAS["personal"].empty_table().to_pandas()
    assert figures(empty, 0) == dict.fromkeys(FIGURES)
    assert len(by_round(empty)) == len(at_the_end(empty, "post_server")) == 0
    received = figures(table(*one_client("received", {1: 0.5})), 1)
    assert received == dict.fromkeys(FIGURES)


def test_curves_agree_with_a_plain_loop() -> None:
    """Kills: groups that mix stages, rounds or points; the order of rounds lost; a tenth of another group's size."""
    rng = np.random.default_rng(0)
    places = [(stage, number, point) for stage in "ba" for number in (2, 10) for point in ("received", "post_server")]
    rows = [
        (*place, client, int(rng.integers(1, 9)), float(rng.random()))
        for place in places
        for client in rng.permutation(40)[: rng.integers(1, 40)]
    ]
    found = by_round(table(*rows))
    assert found[["stage", "round", "point"]].to_numpy().tolist() == [list(place) for place in places]
    for place, line in zip(places, found.to_dict("records"), strict=True):
        own = [(samples, accuracy) for *where, _, samples, accuracy in rows if tuple(where) == place]
        total = sum(samples for samples, _ in own)
        assert line["samples"] == total
        assert line["accuracy"] == pytest.approx(sum(samples * accuracy for samples, accuracy in own) / total)
        ranked = sorted(accuracy for _, accuracy in own)
        assert line["client_accuracy"] == pytest.approx(statistics.fmean(ranked))
        assert line["worst_decile_accuracy"] == pytest.approx(statistics.fmean(ranked[: math.ceil(len(ranked) / 10)]))
