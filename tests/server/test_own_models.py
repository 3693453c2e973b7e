"""Clients' own models: when they are measured, on what, and that measuring them changes nothing."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from engine.base.errors import DataError
from engine.client.steps.entries import opened
from engine.record.checkpoints import Position
from engine.record.run_folder import RunFolder
from engine.record.store import StageStore
from engine.run.preparing import check_against_data
from engine.server.cohort import draw_cohort
from engine.server.evaluation_schedule import EvaluationSchedule
from fedskew.lab import report, run_line
from fedskew.lab.run_pictures.folder import curves
from tests.support.report_pages import page_of
from tests.support.tiny import (
    SIZES,
    Driven,
    assignment,
    context_of,
    dataset,
    drive,
    drive_with_store,
    experiment,
    open_driver,
)

PART: dict[str, Any] = {"participation": {"count": 3}, "rounds": 4}
PFLEGO: dict[str, Any] = {"name": "pflego", "tau": 3, "head_lr": 0.3, "server_lr": 0.02}
METHODS = pytest.mark.parametrize("algorithm", [PFLEGO, {"name": "fedper"}, {"name": "fedavg_local"}], ids=str)


def measured(folder: Path, algorithm: dict[str, Any], **changes: Any) -> tuple[Driven, pd.DataFrame]:
    run = drive(folder, experiment(algorithm=algorithm, **{**PART, **changes}))
    return run, run.folder.frame("personal")


@METHODS
def test_what_a_client_receives_is_what_the_server_had(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    """Kills: a head of another client or round, a first head that is drawn anew, a measurement that trains: what a
    participant is measured with on receiving is, to the last bit, what it was measured with after the round before."""
    _, rows = measured(tmp_path, algorithm)
    cells = rows.set_index(["round", "point", "client"])[["accuracy", "loss", "samples"]]
    compared = 0
    for (round, client), own in cells.xs("received", level="point").iterrows():
        if round > 1:
            assert own.tolist() == cells.loc[(round - 1, "post_server", client)].tolist()
            compared += 1
    assert compared > 3


def test_after_the_server_by_hand(tmp_path: Path) -> None:
    """Kills: a body or a head of another round, classes that a client does not know, another client's rows."""
    run, rows = measured(tmp_path, PFLEGO)
    worker = run.driver.pool._workers[0]  # type: ignore[attr-defined]
    layout, assigned = run.driver.layout, worker.assignment
    for row in rows[(rows["round"] == 4) & (rows["point"] == "post_server")].itertuples():
        number = int(row.client)  # type: ignore[arg-type]
        client = worker.trainer.client(number, torch.as_tensor(assigned.clients[number]), context_of(run.driver, 4))
        stored = run.driver.lineage.states.store.read([number])[0]
        if stored is None:  # has never taken part
            continue
        head = opened(run.driver.stage.algorithm.kinds, run.driver.pool.fetch(stored), client)["head"]
        worker.net.load(layout.join(layout.body_of(run.server["weights"]), head), worker.net.buffers)
        worker.net.train(False)
        x, y = worker.test.batch(torch.as_tensor(assigned.tests[number]))
        classes = torch.nonzero(client.class_counts).view(-1)
        with torch.no_grad():
            guess = classes[worker.net(x)[:, classes].argmax(1)]
        assert row.accuracy == int((guess == y).sum()) / len(y)
        assert row.samples == len(y)


def test_any_method_is_scored_among_own_classes(tmp_path: Path) -> None:
    """Kills: a model for all that is scored among all classes beside heads that know a client's own; own classes where
    nobody asked; a field that leaves a run its identity."""
    found = {}
    for own in (False, True):
        evaluation = {"personal_every": 1, "own_classes": own}
        few = {"rounds": 1, "partition": {"name": "classes_per_client", "clients": len(SIZES), "classes": 2}}
        run, rows = measured(tmp_path / str(own), {"name": "fedavg"}, evaluation=evaluation, **few)
        worker = run.driver.pool._workers[0]  # type: ignore[attr-defined]
        worker.net.load(run.server["weights"], worker.net.buffers)
        worker.net.train(False)
        here = rows[rows["point"] == "post_server"]
        for row in here.itertuples():
            number = int(row.client)  # type: ignore[arg-type]
            own_rows = torch.as_tensor(worker.assignment.clients[number])
            client = worker.trainer.client(number, own_rows, context_of(run.driver, 1))
            x, y = worker.test.batch(torch.as_tensor(worker.assignment.tests[number]))
            known = torch.nonzero(client.class_counts).view(-1) if own else torch.arange(len(client.class_counts))
            with torch.no_grad():
                guess = known[worker.net(x)[:, known].argmax(1)]
            assert row.accuracy == int((guess == y).sum()) / len(y)
        found[own] = run.driver.experiment.digest, here["accuracy"].tolist()
    assert found[False][0] != found[True][0] and found[False][1] != found[True][1]


def test_after_local_work_a_client_has_its_trained_body(tmp_path: Path) -> None:
    """Kills: post_local measured with the received body where a client trains its own, or before its work."""
    _, rows = measured(tmp_path, {"name": "fedper"}, local={"lr": 0.3, "epochs": 10}, rounds=1)
    by_point = rows[rows["participant"]].groupby("point")["loss"].mean()
    assert by_point["post_local"] < 0.7 * by_point["received"]
    assert by_point["post_local"] != by_point["post_server"]


def test_rows_say_who_took_part(tmp_path: Path) -> None:
    """Kills: a cohort of another round; clients without test rows; a point for those who were not there."""
    run, rows = measured(tmp_path, PFLEGO)
    tests = run.driver.pool._workers[0].assignment.tests  # type: ignore[attr-defined]
    with_tests = {number for number, own in enumerate(tests) if len(own)}
    for round in range(1, 5):
        cohort = set(draw_cohort(0, round, range(len(SIZES)), run.driver.experiment.participation)) & with_tests
        here = rows[rows["round"] == round]
        for point in ("received", "post_local"):
            assert set(here[here["point"] == point]["client"]) == cohort
        everyone = here[here["point"] == "post_server"]
        assert set(everyone["client"]) == with_tests
        assert set(everyone[everyone["participant"]]["client"]) == cohort
    assert (rows["samples"] == [len(tests[client]) for client in rows["client"]]).all()


def test_the_headline_is_of_all_rows_together(tmp_path: Path) -> None:
    """Kills: a mean over clients in place of rows; a global model that means nothing in the headline."""
    run, rows = measured(tmp_path, PFLEGO)
    headline = run.folder.frame("evaluations").set_index("round")
    assert set(headline["scope"]) == {"personal"}
    for round, here in rows[rows["point"] == "post_server"].groupby("round"):
        mean = np.average(here["accuracy"], weights=here["samples"])
        np.testing.assert_allclose(headline.loc[round, "accuracy"], mean, rtol=1e-12)
        assert headline.loc[round, "samples"] == here["samples"].sum() == 40
        assert sum(headline.loc[round, "class_samples"]) == 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "evaluation", "headline", "everyone", "participants"),
    [
        ("fedavg", {}, [1, 2, 3, 4, 5], [], []),
        ("fedavg", {"personal_every": 2}, [1, 2, 3, 4, 5], [2, 4, 5], [2, 4]),
        ("fedavg", {"every": 0, "personal_every": 3}, [5], [3, 5], [3]),
        ("pflego", {}, [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]),
        ("pflego", {"every": 2}, [2, 4, 5], [2, 4, 5], [2, 4]),
        ("pflego", {"every": 2, "personal_every": 3}, [3, 5], [3, 5], [3]),
        ("pflego", {"every": 0}, [5], [5], []),
        ("ditto", {"every": 2}, [2, 4, 5], [2, 4, 5], [2, 4]),
        ("pfedme", {"every": 0}, [5], [5], []),
        ("perfedavg", {"every": 2, "personal_every": 0}, [2, 4, 5], [], []),
        ("perfedavg", {"every": 2, "personal_every": 3}, [2, 4, 5], [3, 5], [3]),
        ("fedavg", {"fine_tune_epochs": 1}, [1, 2, 3, 4, 5], [5], []),
        ("ditto", {"every": 3, "personal_every": 0, "fine_tune_steps": 1}, [3, 5], [5], []),
    ],
)
def test_when_is_what_measured(
    tmp_path: Path,
    algorithm: str,
    evaluation: dict[str, int],
    headline: list[int],
    everyone: list[int],
    participants: list[int],
) -> None:
    """Kills: a cadence that is read for another scope; a last round that is not measured; participants of a last round
    that another run would not have measured; models that differ from the global one and are not measured unless
    asked for; fine-tuning that is silently passed over where personal_every is not set."""
    settings = experiment(algorithm={"name": algorithm}, evaluation=evaluation, rounds=5)
    run = drive(tmp_path, settings)
    rows = run.folder.frame("personal")
    assert run.folder.frame("evaluations")["round"].tolist() == headline
    assert rows[rows["point"] == "post_server"]["round"].drop_duplicates().tolist() == everyone
    for point in ("received", "post_local"):
        assert rows[rows["point"] == point]["round"].drop_duplicates().tolist() == participants
    tuned = [5] if settings.evaluation.fine_tuning else []
    assert rows[rows["point"] == "fine_tuned"]["round"].drop_duplicates().tolist() == tuned
    cadence = EvaluationSchedule(settings)
    assert [round for round in range(1, 6) if cadence.headline(Position(0, round))] == headline


@METHODS
def test_measuring_changes_no_bits(tmp_path: Path, algorithm: dict[str, Any]) -> None:
    """Kills: a measurement that draws from training's generators, writes to a state, or leaves its head in the net."""
    shas = set()
    for number, evaluation in enumerate(
        [{"every": 0}, {"personal_every": 1}, {"personal_every": 2, "fine_tune_epochs": 3, "fine_tune_part": "all"}]
    ):
        run, _ = measured(tmp_path / str(number), algorithm, evaluation=evaluation)
        shas.add((run.sha, run.summary["states_sha256"]))
    assert len(shas) == 1


@pytest.mark.parametrize("part", ["head", "body", "all"])
def test_fine_tuning_is_measured_at_the_end(tmp_path: Path, part: str) -> None:
    """Kills: fine-tuning by the wrong part or of the wrong model; by hand for one client: plain steps on its rows."""
    evaluation = {"personal_every": 2, "fine_tune_steps": 2, "fine_tune_part": part, "fine_tune_lr": 0.3}
    settings = experiment(evaluation=evaluation, rounds=3, local={"batch_size": "full"})
    run = drive(tmp_path, settings)
    rows = run.folder.frame("personal")
    tuned = rows[rows["point"] == "fine_tuned"]
    assert set(tuned["round"]) == {3}
    worker = run.driver.pool._workers[0]  # type: ignore[attr-defined]
    number = 3
    x, y = worker.trainer.rows.batch(torch.as_tensor(worker.assignment.clients[number]))
    worker.net.load(*run.driver.weights)
    model = worker.net.model
    body, head = list(model.body.parameters()), list(model.head.parameters())
    trained = {"head": head, "body": body, "all": body + head}[part]
    optimizer = torch.optim.SGD(trained, lr=0.3)
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    tx, ty = worker.test.batch(torch.as_tensor(worker.assignment.tests[number]))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(model(tx), ty).item()
    got = tuned.set_index("client").loc[number, "loss"]
    np.testing.assert_allclose(got, loss, rtol=1e-5)
    assert got != rows[(rows["point"] == "post_server") & (rows["round"] == 3)].set_index("client").loc[number, "loss"]


@pytest.mark.slow
@pytest.mark.parametrize("fine_tune", [0, 1])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize(("first", "second"), [(4, 6), (6, 4)])
def test_taken_over_rounds_leave_the_same_tables(
    tmp_path: Path, every: int, fine_tune: int, first: int, second: int
) -> None:
    """Kills: rows of another run's end kept where this run goes on, or lacking where it ends; rows twice."""
    evaluation = {"every": every, "fine_tune_epochs": fine_tune}
    changes: dict[str, Any] = {"algorithm": PFLEGO, "participation": {"count": 3}, "evaluation": evaluation}
    changes |= {"checkpoint": {"every": 1}}
    store = StageStore(tmp_path / "store")
    drive_with_store(tmp_path / "first", experiment(**changes, rounds=first), store, keep_all=True)
    summary = drive_with_store(tmp_path / "second", experiment(**changes, rounds=second), store)
    assert summary["rounds_computed"] < second
    alone = drive(tmp_path / "alone", experiment(**changes, rounds=second))
    assert summary["weights_sha256"] == alone.sha
    assert summary["states_sha256"] == alone.summary["states_sha256"]
    order = ["round", "point", "client"]
    for table, key in (("personal", order), ("evaluations", ["round"])):
        got, wanted = (
            run.sort_values(key, ignore_index=True).drop(columns="reused").astype(str)
            for run in (RunFolder(tmp_path / "second").frame(table), alone.folder.frame(table))
        )
        pd.testing.assert_frame_equal(got, wanted)


def test_stages_of_both_kinds(tmp_path: Path) -> None:
    """Kills: a scope or a cadence of another stage; heads of one stage in another's models."""
    stages = [
        {"name": "warmup", "rounds": 2, "algorithm": {"name": "fedavg"}},
        {"name": "own", "rounds": 2, "needs": ["warmup"], "algorithm": PFLEGO},
    ]
    run = drive(tmp_path, experiment(stages=stages))
    assert run.folder.frame("evaluations")["scope"].tolist() == ["global", "global", "personal", "personal"]
    assert set(run.folder.frame("personal")["stage"]) == {"own"}


@pytest.mark.parametrize(
    ("algorithm", "evaluation", "said"),
    [
        (PFLEGO, {"every": 0, "personal_every": 0}, True),
        ({"name": "ditto"}, {}, True),
        ({"name": "ditto"}, {"personal_every": 0}, False),
        ({"name": "fedavg"}, {}, False),
        ({"name": "fedavg"}, {"personal_every": 2}, True),
        ({"name": "fedavg"}, {"personal_every": 0, "fine_tune_steps": 1}, True),
    ],
)
def test_no_test_rows_is_said(algorithm: dict[str, Any], evaluation: dict[str, int], said: bool) -> None:
    """Kills: a division by zero at the end of a run where a sentence is due before it; the sentence where nothing is
    measured on clients' rows; a check that does not ask what the driver asks."""
    parts = assignment(SIZES)
    parts = type(parts)(parts.clients, tests=tuple(np.empty(0, np.int64) for _ in SIZES))
    settings = experiment(algorithm=algorithm, evaluation=evaluation)
    with pytest.raises(DataError, match="no client has a test row") if said else nullcontext():
        check_against_data(settings, dataset(), parts)
    cadence = EvaluationSchedule(settings)
    assert any(cadence.personal(Position(0, number)) for number in (1, 2, 3)) == said


def test_a_local_model_is_what_the_client_would_use(tmp_path: Path) -> None:
    """Kills: local accuracy of a head before its last step, or of classes that its client does not know."""
    run, _ = measured(tmp_path, PFLEGO, evaluation={"local_every": 1})
    local = run.folder.frame("clients")["local_accuracy"]
    assert local.between(0, 1).all()
    counts = run.driver.pool._workers[0].assignment.class_counts(dataset().train.labels, 4)  # type: ignore[attr-defined]
    shares = np.bincount(dataset().test.labels, minlength=4) / 40
    for row in run.folder.frame("clients").itertuples():
        assert row.local_accuracy <= shares[counts[row.client] > 0].sum() + 1e-9  # type: ignore[operator, index]


@pytest.mark.slow
def test_a_thousand_personal_heads(tmp_path: Path) -> None:
    """Kills: states in proportion to models or to all classes: on disk, a thousand clients keep the rows of their own
    classes; a resume that mixes them up."""
    data = dataset(4000)
    order = np.argsort(data.train.labels, kind="stable")
    parts = type(assignment([1]))(tuple(np.sort(part) for part in np.array_split(order, 1000)))  # one or two classes
    settings = experiment(
        algorithm={**PFLEGO, "tau": 2},
        model={"name": "mlp", "hidden": [300, 7]},
        partition={"name": "iid", "clients": 1000},
        participation={"count": 500},
        rounds=2,
        evaluation={"every": 2},
        execution={"actors": 0, "device": "cpu", "state_store": "disk"},
    )
    straight = drive(tmp_path / "straight", settings, data, parts)
    driver = open_driver(tmp_path / "stopped", settings, data, parts)
    driver.advance(until=1)
    driver.close()
    resumed = drive(tmp_path / "stopped", settings, data, parts)
    assert resumed.sha == straight.sha
    assert resumed.summary["states_sha256"] == straight.summary["states_sha256"]
    taken_part = set(straight.folder.frame("clients")["client"])
    counts = parts.class_counts(data.train.labels, 4)
    numbers = 0
    for number in taken_part:
        state = straight.driver.pool.fetch(straight.driver.lineage.states.store.read([number])[0])
        assert {name: array.shape for name, array in state.items()} == {"head": ((counts[number] > 0).sum(), 8)}
        numbers += state["head"].numel()
    assert len(taken_part) > 600
    files = list((tmp_path / "straight" / "checkpoints" / "states").iterdir())
    on_disk = sum(path.stat().st_size for path in files)
    assert on_disk < len(files) * 200 + 2 * 4 * numbers  # a header each; two checkpoints are kept
    assert straight.driver.layout.size > 100 * numbers / len(taken_part)


def test_a_loss_that_is_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: an infinite loss of clients that are tested on classes they do not train on, in a table, in JSON, or in
    a figure that is made of it; an accuracy that goes with it; a null that the terminal, a picture or a report trips
    over."""
    data = dataset()
    by_class = np.split(np.argsort(data.train.labels, kind="stable"), 8)
    parts = type(assignment(SIZES))(tuple(map(np.sort, by_class)), tests=tuple(np.split(np.arange(40), 8)))
    settings = experiment(algorithm={"name": "fedper"})
    driver = open_driver(tmp_path, settings, data, parts)
    shown = driver.advance(until=2)
    assert run_line.headline(shown[-1]) == f"accuracy {shown[-1]['accuracy']:.3f}  loss -"
    driver.advance()
    driver.close()
    run = RunFolder(tmp_path)
    rows, headline = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("personal", "evaluations"))
    assert rows["loss"].isna().any() and not np.isinf(rows["loss"]).any()
    assert headline["loss"].isna().all() and headline["accuracy"].between(0, 1).all()
    Console().print(run_line.summary_table(run.summary(), run))
    assert "inf" not in capsys.readouterr().out
    for text in (json.dumps(run.summary()), (tmp_path / "summary.json").read_text()):
        summary = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        assert summary["loss"] is None and summary["accuracy"] == headline["accuracy"].iloc[-1]
    assert curves(run).png
    report.write(tmp_path)
    assert not re.search(r"\binf\b", "".join(page_of(tmp_path).text))
