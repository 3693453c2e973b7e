"""Teachers, answers and a student as three stages of a run, on tiny images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from algorithms import ALGORITHMS
from algorithms.answers import Answers, spread
from algorithms.class_costs import ClassCosts
from engine.algorithm import seeds
from engine.base.errors import ConfigError, RunError
from engine.client.nets import open_model
from engine.client.training_tools import FlatTrainingTools
from engine.data import Assignment
from engine.data.samples.batches import Rows
from engine.experiment import Experiment
from tests.support.tiny import CLASSES, STUDENTS, Driven, dataset, drive, experiment, experiment_of, with_public

SETS = ((0, 1), (1, 2, 3), (3,), (0, 2, 3))  # one teacher of a single class
PER_CLASS = 3
N = PER_CLASS * CLASSES
MODELS = [{"name": "mlp", "hidden": [5]}, {"name": "resnet8"}, {"name": "logistic"}]
CPU = torch.device("cpu")


def by_class(sets: tuple[tuple[int, ...], ...] = SETS, each: int = 5) -> Assignment:
    """Clients with so many samples of each of their classes."""
    rows = [iter(np.flatnonzero(dataset().train.labels == number)) for number in range(CLASSES)]
    parts = [np.sort([next(rows[number]) for number in own for _ in range(each)]) for own in sets]
    return Assignment(tuple(part.astype(np.int64) for part in parts))


def setting(name: str, fields: dict[str, Any] | None = None, **changes: Any) -> Experiment:
    return experiment_of(name, fields, **{"rounds": 1, "client_models": MODELS, **changes})


def run(folder: Path, name: str, fields: dict[str, Any] | None = None, **changes: Any) -> Driven:
    return drive(folder, setting(name, fields, **changes), parts=with_public(by_class(), dataset(), PER_CLASS))


def public_rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels, class by class, by hand."""
    data = dataset()
    rows = with_public(by_class(), data, PER_CLASS).public
    labels = data.train.labels[rows]
    order = np.concatenate([rows[labels == number] for number in range(CLASSES)])
    return Rows(data, data.train, CPU, torch.float32).batch(torch.from_numpy(order))


# --- answers ------------------------------------------------------------------------------------------------


def test_answers_are_what_each_clients_model_says(tmp_path: Path) -> None:
    """Kills: answers of another client's model or architecture, of a model in training mode, of a fresh one; logits in
    another order of classes; logits of classes that a teacher has never seen."""
    config = setting("answers")
    done = run(tmp_path / "done", "answers")
    teachers = drive(tmp_path / "teachers", experiment(algorithm={"name": "local"}, rounds=1, client_models=MODELS),
                     parts=with_public(by_class(), dataset(), PER_CLASS)).states  # fmt: skip
    x, _ = public_rows()
    answers, known = done.server["answers"], done.server["known"]
    assert answers.shape == (len(SETS), N, CLASSES)
    assert known.dtype == torch.bool
    for number, own in enumerate(SETS):
        assert torch.nonzero(known[number])[:, 0].tolist() == list(own)
        net = open_model(config, dataset(), CPU, config.client_models[number % len(MODELS)])
        net.load(torch.as_tensor(teachers[number]["personal"]), torch.as_tensor(teachers[number]["personal_buffers"]))
        net.train(False)
        with torch.no_grad():
            wanted = net(x)
        torch.testing.assert_close(answers[number][:, known[number]], wanted[:, known[number]])
        assert (answers[number][:, ~known[number]] == 0).all()


def test_spreading_is_the_inverse_of_sending() -> None:
    """Kills: parts of wrong sizes, one teacher's rows in another's place."""
    known = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 1]], dtype=torch.bool)
    answers = torch.where(known[:, None], torch.arange(1.0, 37).view(3, 4, 3), 0.0)
    sent = torch.cat([answers[i][:, known[i]].reshape(-1) for i in range(3)])
    assert torch.equal(spread(sent, known), answers)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["answers", *STUDENTS])
def test_what_leaves_a_device(tmp_path: Path, name: str) -> None:
    """N |L_i| logits and C bits, and for features N D_i more (spec 0.2). Kills: logits of all classes; a model that is
    sent down; features that are asked for by a method that has no use for them, or are not counted."""
    exchanges = run(tmp_path, name).folder.frame("exchanges").set_index(["stage", "client"])
    assert set(exchanges.index.get_level_values("stage")) <= {"answers", "end"}  # teachers sent and got nothing
    asked = exchanges.loc["end" if name == "answers" else "answers"]
    assert asked["floats_up"].tolist() == [N * len(own) + CLASSES for own in SETS]
    assert (exchanges["floats_down"] == 0).all()
    if name == "cfl_amalgam":
        widths = [5, 64, 64, 5]  # of the last hidden layer: mlp, resnet8, logistic (64 pixels), mlp
        assert exchanges.loc["end"]["floats_up"].tolist() == [N * width for width in widths]
    elif name != "answers":
        assert "end" not in exchanges.index.get_level_values("stage")


def test_only_features_break_privacy() -> None:
    """Kills: a method whose traffic leaks, without its label; a label on one by which only answers leave."""
    assert {name for name in ("answers", *STUDENTS) if ALGORITHMS[name].breaks_privacy} == {"cfl_amalgam"}


@pytest.mark.parametrize("fields", [{"alpha": 0.0}, {"feature_weight": 0.0}])
def test_features_that_weigh_nothing_are_not_asked_for(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Kills: traffic for nothing."""
    assert set(run(tmp_path, "cfl_amalgam", fields).folder.frame("exchanges")["stage"]) == {"answers"}


def test_who_has_not_trained_is_no_teacher(tmp_path: Path) -> None:
    """Kills: answers of fresh weights; features of other teachers than have answered."""
    one_class = ((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3))
    parts = with_public(by_class(one_class), dataset(), PER_CLASS)
    done = drive(tmp_path, setting("cfl_amalgam", participation={"count": 2}), parts=parts)
    trained = set(done.folder.frame("clients")["client"])
    exchanges = done.folder.frame("exchanges")
    assert len(trained) == 2
    assert set(exchanges[exchanges["floats_up"] > 0]["client"]) == trained
    assert (exchanges[~exchanges["client"].isin(trained)]["floats_up"] == 0).all()


def test_teachers_are_measured_as_they_are(tmp_path: Path) -> None:
    """Kills: a stage of answers at which clients' own models are those of its start."""
    own = run(tmp_path, "uhc").folder.frame("personal").set_index(["stage", "client"])
    for client in range(len(SETS)):
        assert own.loc[("answers", client), "loss"] == own[own["point"] == "post_server"].loc[("train", client), "loss"]


# --- students -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDENTS)
def test_a_run_of_three_stages_is_deterministic(tmp_path: Path, name: str) -> None:
    """Kills: a draw from a global generator, an order of teachers that depends on blocks."""
    torch.manual_seed(1)
    first = run(tmp_path / "a", name)
    torch.manual_seed(2)
    second = run(tmp_path / "b", name, execution={"block": 1})
    assert second.sha == first.sha
    assert torch.isfinite(first.server["weights"]).all()
    assert first.server.keys() == {"weights", "buffers"} | (
        {"cost", "correlation", "row_weight", "imbalance"} if name.startswith("cbhma") else set()
    )


SAME = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 5e-4}  # where cfl_amalgam has other defaults


def test_without_teachers_it_is_training_on_the_public_set(tmp_path: Path) -> None:
    """Oracle 3.12.12: alpha = 0 gives identical weights, which are those of plain cross entropy. Kills: a loss, a draw
    or a start of one's own; teachers that still count; fields that do not reach the optimizer."""
    shas = {name: run(tmp_path / name, name, {"alpha": 0.0, **SAME}).sha for name in ("skd1", "skd2", "uhc")}
    shas["cfl_amalgam"] = run(tmp_path / "cfl", "cfl_amalgam", {"alpha": 0.0, **SAME}).sha
    assert len(set(shas.values())) == 1
    net = open_model(setting("uhc"), dataset(), CPU)
    x, y = public_rows()
    bench = FlatTrainingTools(net, lambda purpose: seeds.generator(0, purpose, 1))
    plain = bench.fit(
        lambda net, rows: F.cross_entropy(net(x[rows]), y[rows]),
        N,
        epochs=4,
        batch_size=8,
        lr=0.05,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="cosine",
    )
    student = run(tmp_path / "student", "uhc", {"alpha": 0.0}).server["weights"]
    torch.testing.assert_close(student, plain["weights"], rtol=0, atol=1e-6)
    assert (plain["weights"] - open_model(setting("uhc"), dataset(), CPU).weights).abs().max() > 1e-2
    taught = run(tmp_path / "taught", "uhc").server["weights"]
    assert (student - taught).abs().max() > 1e-3


def test_without_features_amalgamation_is_distillation_of_merged_logits(tmp_path: Path) -> None:
    """Oracle 3.12.14 in a run. Kills: other defaults than those that the merged logits are documented with."""
    same = {"optimizer": "adam", "lr": 0.001, "weight_decay": 1e-4}
    merged = run(tmp_path / "a", "skd2", {"alpha": 1.0, "temperature": 1.0, "centre": False, **same})
    assert run(tmp_path / "b", "cfl_amalgam", {"alpha": 1.0, "feature_weight": 0.0}).sha == merged.sha
    assert run(tmp_path / "c", "cfl_amalgam", {"alpha": 1.0}).sha != merged.sha


@pytest.mark.parametrize("name", ["cbhma", "cbhma_e"])
def test_costs_are_made_of_the_runs_answers(tmp_path: Path, name: str) -> None:
    """Kills: costs of other labels than the public set's, or that are not kept."""
    answers = run(tmp_path / "answers", "answers").server
    _, labels = public_rows()
    config = setting(name)
    method = config.chain[-1].algorithm
    assert isinstance(method, ClassCosts)
    made = method.class_costs(answers["answers"], answers["known"], labels)
    server = run(tmp_path / "student", name).server
    for entry, tensor in made.items():
        torch.testing.assert_close(server[entry].double(), tensor, rtol=1e-6, atol=0)


def test_a_student_is_trained_from_fresh_weights(tmp_path: Path) -> None:
    """Kills: a student that starts from a teacher, or from empty weights."""
    still = run(tmp_path, "uhc", {"epochs": 0})
    assert torch.equal(still.server["weights"], open_model(setting("uhc"), dataset(), CPU).weights)


# --- what is refused ------------------------------------------------------------------------------------------


def test_stages_in_another_order_are_refused() -> None:
    """Kills: a student without answers, answers without teachers, found out in mid-run."""
    train = {"name": "train", "rounds": 1}
    answers = {"name": "answers", "rounds": 0, "needs": ["train"], "algorithm": {"name": "answers"}}
    with pytest.raises(
        ConfigError,
        match=r"^stages.train.algorithm.name=fedavg: leaves clients no whole models of their own .*; set it to local$",
    ):
        experiment(stages=[train, answers])
    for name in STUDENTS:
        end = {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": name}}
        with pytest.raises(
            ConfigError, match=r"^stages.train.algorithm.name=local: is not answers, .*; write three stages: one of"
        ):
            experiment(stages=[{**train, "algorithm": {"name": "local"}}, end])
    for name in ("local", "ditto", "pfedme"):
        experiment(stages=[{**train, "algorithm": {"name": name}}, answers])


def test_what_a_field_cannot_be() -> None:
    """Kills: a public set of no samples."""
    with pytest.raises(ConfigError, match=r"^per_class=0: must be at least 1; for example per_class=100"):
        Answers(per_class=0)


def test_nobody_to_ask_is_refused() -> None:
    """Kills: a traceback where cohorts were empty."""

    class Nobody:
        def map(self, fn: object, shared: object, **how: object) -> dict[str, torch.Tensor]:
            return {}

    with pytest.raises(RunError, match=r"^no client has taken part in training, so that none could answer: give"):
        Answers().finish({}, Nobody(), None, None)  # type: ignore[arg-type]


def test_a_class_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """Kills: log 0 of a class without teachers."""
    parts = with_public(by_class(((0, 1), (1, 3))), dataset(), PER_CLASS)
    with pytest.raises(RunError, match=r"^no client that has trained has rows of classes 2, so that nobody could"):
        drive(tmp_path, setting("uhc"), parts=parts)


def test_a_class_without_public_samples_is_refused(tmp_path: Path) -> None:
    """Kills: labels and answers of public sets of two sizes."""
    parts = with_public(by_class(), dataset(), PER_CLASS)
    few = parts.public[dataset().train.labels[parts.public] != 1]
    with pytest.raises(RunError, match=r"^the public set has samples of 3 of 4 classes: choose a partition"):
        drive(tmp_path, setting("uhc"), parts=Assignment(parts.clients, public=few))


def test_too_few_public_samples_are_refused(tmp_path: Path) -> None:
    """Kills: a class with fewer samples than the others."""
    with pytest.raises(ConfigError, match=r"per_class=4: is more than the 3 public samples that there are of each "):
        run(tmp_path, "answers", {"per_class": 4})


def test_a_student_that_diverges_is_refused(tmp_path: Path) -> None:
    """Kills: a run that ends with weights that are no numbers."""
    with pytest.raises(RunError, match=r"^the student diverged with lr=1e\+30: lower the stage's algorithm.lr"):
        run(tmp_path, "uhc", {"lr": 1e30, "epochs": 20})


def test_answers_that_are_no_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a student of nan, or a message about the student's rate where a teacher is to blame."""
    lost = torch.full((N, CLASSES), torch.nan)
    monkeypatch.setattr("algorithms.answers.own_model", lambda view: lambda x: lost)
    with pytest.raises(RunError, match=r"^client 0, asked .* answers 'logits' that is not finite; lower local.lr of"):
        run(tmp_path, "uhc")
