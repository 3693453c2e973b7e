"""Clients with architectures of their own, and what everybody may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from algorithms import ALGORITHMS
from engine.algorithm import (
    Clients,
    ClientView,
    Compute,
    Context,
    Kind,
    Net,
    Personalised,
    PostTraining,
    Tensors,
    TrainingTools,
    seeds,
)
from engine.base.errors import ConfigError
from engine.client.nets import open_model
from engine.client.training_tools import FlatTrainingTools
from engine.data import Assignment
from engine.experiment import Experiment
from engine.record.stage_hashes import stage_hash
from engine.record.store import StageStore
from engine.run.preparing import check_against_data
from tests.support.tiny import SIZES, assignment, dataset, drive, drive_with_store, experiment, open_driver, with_tests

MODELS = [{"name": "logistic"}, {"name": "mlp", "hidden": [5]}, {"name": "resnet8"}]
LOCAL: dict[str, Any] = {"algorithm": {"name": "local"}, "client_models": MODELS, "rounds": 2}
CPU = torch.device("cpu")


def sizes_of_models() -> list[int]:
    models = [experiment(model=model) for model in MODELS]
    return [open_model(one, dataset(), CPU).layout.size for one in models]


def public(parts: Assignment, rows: list[int]) -> Assignment:
    """With rows taken from their clients and set aside for everybody."""
    return Assignment(
        tuple(np.setdiff1d(part, rows) for part in parts.clients), public=np.array(sorted(rows), dtype=np.int64)
    )


# --- different architectures ------------------------------------------------------------------------------


def test_client_k_has_architecture_k_mod_their_number(tmp_path: Path) -> None:
    """Kills: one network for all, another order, a client that is given another's weights."""
    run = drive(tmp_path, experiment(**LOCAL))
    kept = [len(state["personal"]) for state in run.states]
    sizes = sizes_of_models()
    assert len(set(sizes)) == len(MODELS)
    assert kept == [sizes[number % len(MODELS)] for number in range(len(SIZES))]


def test_each_client_draws_its_own_first_weights(tmp_path: Path) -> None:
    """Kills: first weights by architecture alone (two teachers would begin alike), or what is in the net by chance."""
    still = {"local": {"lr": 1e-30}}
    first = [state["personal"] for state in drive(tmp_path / "a", experiment(**LOCAL, **still)).states]
    again = [
        state["personal"]
        for state in drive(tmp_path / "b", experiment(**LOCAL, **still, execution={"block": 3})).states
    ]
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert not np.array_equal(first[0], first[3])  # both logistic


def test_alone_with_one_architecture_is_alone_among_many(tmp_path: Path) -> None:
    """Kills: clients that change each other's training by sharing a process, a network or its BatchNorm counters."""
    mixed = drive(tmp_path / "mixed", experiment(**LOCAL))
    for number, model in enumerate(MODELS):
        alone = drive(tmp_path / str(number), experiment(**{**LOCAL, "client_models": [model]}))
        for client in range(number, len(SIZES), len(MODELS)):
            ours, theirs = mixed.states[client], alone.states[client]
            assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_clients_of_all_architectures_learn(tmp_path: Path) -> None:
    """Kills: own models that are measured in another network, or that are not trained."""
    learn = {**LOCAL, "rounds": 4, "local": {"epochs": 8, "lr": 0.1}}
    run = drive(tmp_path, experiment(**learn), parts=assignment([40, 40, 40]))
    rows = run.folder.frame("personal")
    last = rows[(rows["round"] == 4) & (rows["point"] == "post_server")]
    assert len(last) == 3 and (last["accuracy"] > 0.5).all()


def test_where_weights_travel_clients_cannot_differ() -> None:
    """Kills: weights of one architecture sent to another."""
    with pytest.raises(
        ConfigError, match=r"client_models=\['logistic', .*: is not for fedavg, by which weights travel"
    ):
        experiment(client_models=MODELS)


def test_names_alone_will_do_on_the_command_line() -> None:
    """Kills: a key that cannot be typed, a digest that ignores it, a digest that changes where it is not used."""
    typed = experiment(algorithm={"name": "local"}).override(["client_models=[logistic, {name: mlp, hidden: [5]}]"])
    assert typed == experiment(algorithm={"name": "local"}, client_models=MODELS[:2])
    assert Experiment.from_mapping(typed.to_mapping()) == typed
    assert typed.digest != experiment(algorithm={"name": "local"}).digest
    assert "client_models" not in experiment().identity()


# --- stages -----------------------------------------------------------------------------------------------


def chosen(name: str) -> list[dict[str, Any]]:
    return [
        {"name": "teachers", "algorithm": {"name": "local"}, "rounds": 1},
        {"name": "look", "algorithm": {"name": "see"}, "rounds": 0, "needs": ["teachers"]},
        {"name": "end", "algorithm": {"name": name}, "rounds": 0, "needs": ["look"]},
    ]


def see(view: ClientView, shared: Tensors, per_class: int) -> Tensors:
    x, y = view.public(per_class)
    net = view.at(view.state["personal"], view.state["personal_buffers"])
    return {"scores": net(x)[None], "labels": y[None], "size": torch.tensor([len(view.state["personal"])])}


@dataclass(frozen=True)
class See(Personalised, PostTraining):
    """Clients' answers on the public rows."""

    per_class: int = 2

    entries: ClassVar = {**PostTraining.entries, "scores": Kind.TENSOR, "labels": Kind.IMAGES, "size": Kind.TENSOR}
    mixed_models: ClassVar[bool] = True
    global_model: ClassVar[bool] = False

    @property
    def keeps_head(self) -> bool:
        return False

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        return {name: tensor for name, tensor in parent.items() if name != "buffers"}

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        return {**server, **clients.map(partial(see, per_class=self.per_class), {}, "stack", states=True)}


def look_again(bench: TrainingTools, shared: Tensors) -> Tensors:
    x, y = bench.public(2)
    return {"weights": shared["weights"], "labels": y, "scores": bench.net(x).detach()}


@dataclass(frozen=True)
class SeeAgain(See):
    """The same once more, with a server that has a model."""

    global_model: ClassVar[bool] = True

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        again = super().finish(server, clients, compute, context)
        assert torch.equal(again["scores"], server["scores"])
        made = compute(look_again, {name: server[name] for name in ("weights", "buffers")})
        return {**again, **made}


@pytest.fixture
def seeing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "see", See)
    monkeypatch.setitem(ALGORITHMS, "see_again", SeeAgain)


def three_stages(**changes: Any) -> Experiment:
    return experiment(stages=chosen("see_again"), **{"client_models": MODELS, **changes})


def set_aside() -> tuple[Assignment, np.ndarray]:
    labels = dataset().train.labels
    rows = [int(row) for c in range(4) for row in np.flatnonzero(labels == c)[:3]]
    return public(assignment(SIZES), rows), labels


def test_a_stage_without_rounds_hands_on_what_clients_keep(tmp_path: Path, seeing: None) -> None:
    """Kills: teachers' models that are lost behind the stage that asks them, models of another client, a server whose
    first weights are not the student's own; and that answers are of the clients' own architectures."""
    parts, _ = set_aside()
    run = drive(tmp_path, three_stages(), parts=parts)
    sizes = sizes_of_models()
    holders = [number for number, part in enumerate(parts.clients) if len(part)]
    assert run.server["size"].tolist() == [sizes[number % 3] for number in holders]
    assert run.server["labels"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    student = open_model(three_stages(), dataset(), CPU)
    assert torch.equal(run.server["weights"], student.weights)
    assert run.summary["parameters"] == student.layout.size


def test_no_weights_are_sent_or_counted(tmp_path: Path, seeing: None) -> None:
    """Kills: teachers charged for a model that they do not receive, answers that are not counted."""
    parts, _ = set_aside()
    run = drive(tmp_path, three_stages(), parts=parts)
    assert run.folder.frame("clients")[["floats_up", "floats_down"]].to_numpy().sum() == 0
    exchanges = run.folder.frame("exchanges")
    look = exchanges[exchanges["stage"] == "look"]
    assert set(look["floats_up"]) == {8 * 4 + 8 + 1} and set(look["floats_down"]) == {0}


def test_the_student_is_no_part_of_its_teachers_key(seeing: None) -> None:
    """Kills: teachers trained anew for every student, or shared by runs whose teachers differ."""

    def keys(**changes: Any) -> list[str]:
        config = three_stages(**changes)
        return [stage_hash(config, stage, {}, "data") for stage in config.chain]

    one, other = keys(), keys(model={"name": "mlp", "hidden": [7]})
    assert one[:2] == other[:2] and one[2] != other[2]
    assert not set(one) & set(keys(client_models=MODELS[:2]))
    assert not set(one) & set(keys(seed=1))


def test_students_share_teachers_through_a_store(tmp_path: Path, seeing: None) -> None:
    """Kills: teachers that another student's run trains again."""
    store = StageStore(tmp_path / "store")
    teachers = {"stages": chosen("see_again")[:1], "client_models": MODELS}
    one = drive_with_store(tmp_path / "a", experiment(**teachers), store, keep_all=True)
    other = drive_with_store(tmp_path / "b", experiment(**teachers, model={"name": "logistic"}), store, keep_all=True)
    assert one["states_sha256"] == other["states_sha256"]
    assert one["rounds_computed"] == 1 and other["rounds_computed"] == 0


def test_a_killed_run_goes_on_behind_its_teachers(tmp_path: Path, seeing: None) -> None:
    """Kills: states that a resume does not find, since another stage's checkpoint names them."""
    parts, _ = set_aside()
    whole = drive(tmp_path / "whole", three_stages(), parts=parts)
    begun = open_driver(tmp_path / "cut", three_stages(), parts=parts)
    begun.next()
    assert begun.stage.name == "teachers"
    begun.next()
    assert begun.stage.name == "look"
    del begun  # as after SIGKILL: nothing is closed
    again = drive(tmp_path / "cut", three_stages(), parts=parts)
    assert again.shas == whole.shas and torch.equal(again.server["scores"], whole.server["scores"])
    assert whole.summary["states_sha256"] is not None
    assert drive(tmp_path / "whole", three_stages(), parts=parts).shas == whole.shas  # opened when finished


# --- public rows ------------------------------------------------------------------------------------------


def test_a_smaller_public_set_is_part_of_a_larger_one(tmp_path: Path) -> None:
    """Kills: a set that is drawn anew for each size, rows in another order than their labels."""
    parts, labels = set_aside()
    worker = open_driver(tmp_path, experiment(), parts=parts).pool._workers[0]  # type: ignore[attr-defined]
    (one, of_one), (two, of_two) = (worker.trainer.public(count) for count in (1, 2))
    assert of_two.tolist() == [0, 0, 1, 1, 2, 2, 3, 3] and of_one.tolist() == [0, 1, 2, 3]
    assert torch.equal(one, two[::2])
    expected = [int(parts.public[labels[parts.public] == c][0]) for c in range(4)]
    assert torch.equal(one, worker.trainer.rows.batch(torch.tensor(expected))[0])


@pytest.mark.parametrize(
    ("per_class", "message"), [(4, "per_class=4: is more than the 3 public samples"), (1, "there are none")]
)
def test_public_rows_that_are_not_there(tmp_path: Path, per_class: int, message: str) -> None:
    """Kills: fewer rows than asked for, in silence."""
    parts = set_aside()[0] if per_class == 4 else assignment(SIZES)
    worker = open_driver(tmp_path, experiment(), parts=parts).pool._workers[0]  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=message):
        worker.trainer.public(per_class)


# --- the workbench's training -----------------------------------------------------------------------------


def workbench() -> FlatTrainingTools:
    net = open_model(experiment(model={"name": "logistic"}, execution={"precision": "float64"}), dataset(), CPU)
    return FlatTrainingTools(net, lambda purpose: seeds.generator(0, purpose, 1))


Loss = Callable[[Net, torch.Tensor], torch.Tensor]


def linear(bench: FlatTrainingTools) -> Loss:
    """A loss whose gradient is the same everywhere, so that steps are the rates."""
    x = torch.ones(1, 1, 8, 8, dtype=torch.float64)
    return lambda net, rows: net(x)[0, 0]


def test_a_cosine_falls_from_lr_to_nearly_nothing() -> None:
    """Kills: a cosine that is constant, that begins late, that goes by steps; lr / 2 (1 + cos(pi e / 4)), e = 0..3."""
    bench = workbench()
    before = bench.net.weights.clone()
    bench.fit(linear(bench), 6, epochs=4, batch_size=3, lr=0.1, schedule="cosine")
    rates = 0.05 * (1 + torch.cos(torch.pi * torch.arange(4, dtype=torch.float64) / 4))
    assert (before - bench.net.weights)[0].item() == pytest.approx(2 * rates.sum().item(), rel=1e-12)


def test_adam_steps_by_the_rate() -> None:
    """Kills: SGD in Adam's place: with an equal gradient Adam's steps are lr, whatever the gradient's size."""
    bench = workbench()
    before = bench.net.weights.clone()
    loss = linear(bench)
    bench.fit(lambda net, rows: 50 * loss(net, rows), 6, epochs=1, batch_size=3, lr=0.1, optimizer="adam")
    assert (before - bench.net.weights)[0].item() == pytest.approx(0.2, rel=1e-6)


@pytest.mark.parametrize("part", ["all", "head"])
def test_what_stands_beside_the_net_is_trained_along(part: Any) -> None:
    """Kills: leaves that are left as they are, that have the net's gradient, a net that is left instead."""
    bench = workbench()
    leaf = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    before, loss = bench.net.weights.clone(), linear(bench)
    goal = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    bench.fit(
        lambda net, rows: loss(net, rows) + (leaf - goal).square().sum() / 2,
        4,
        epochs=200,
        batch_size=4,
        lr=0.1,
        trainable=part,
        beside=(leaf,),
    )
    assert torch.allclose(leaf.detach(), goal)
    assert (before - bench.net.weights)[0].item() == pytest.approx(20)


# --- what is refused before anything runs -------------------------------------------------------------------


@pytest.mark.parametrize("value", ["mlp", {"name": "mlp"}, 3], ids=str)
def test_models_that_are_no_list(value: Any) -> None:
    """Kills: pydantic's words, a name that is taken for a list of letters."""
    with pytest.raises(ConfigError, match=r"^client_models=.*: must be a list of models; for example client_models="):
        experiment(algorithm={"name": "local"}, client_models=value)


def test_names_alone_will_do_in_a_file() -> None:
    """Kills: names that only the command line takes."""
    named = experiment(algorithm={"name": "local"}, client_models=["logistic", "mlp"])
    assert named == experiment(algorithm={"name": "local"}, client_models=[{"name": "logistic"}, {"name": "mlp"}])


def test_a_model_that_does_not_fit_the_images() -> None:
    """Kills: a complaint about the student, or one that comes when a client is trained."""
    config = experiment(algorithm={"name": "local"}, client_models=["mlp", "lenet"])
    with pytest.raises(ConfigError, match=r"^client_models.name=lenet: needs images of at least 16x16 pixels"):
        check_against_data(config, dataset(), with_tests(assignment(SIZES), dataset()))


def test_students_are_not_measured_as_clients_own(tmp_path: Path, seeing: None) -> None:
    """Kills: fresh networks of the clients' architectures that are measured as what they would use of a student."""
    parts, _ = set_aside()
    run = drive(tmp_path, three_stages(evaluation={"personal_every": 1}), parts=parts)
    assert set(run.folder.frame("personal")["stage"]) == {"teachers", "look"}
    with pytest.raises(ConfigError, match=r"^evaluation.fine_tune_epochs=1: is of clients' own models, and the last"):
        three_stages(evaluation={"fine_tune_epochs": 1})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (12, r"^stages.look.algorithm.per_class=9: asks for more .*: class 0 has 3; set it to 3 or less, or raise"),
        (9, r"^stages.look.algorithm.per_class=9: asks for more .*: class 3 has 0; take partition.sets that have"),
        (0, r"^stages.look.algorithm.per_class=9: asks for more .*: class 0 has 0; raise partition.public_per_class"),
    ],
)
def test_public_samples_are_counted_before_teachers_train(
    seeing: None, monkeypatch: pytest.MonkeyPatch, rows: int, message: str
) -> None:
    """Kills: teachers that have trained for hours when it turns out that there is nothing to ask them."""
    monkeypatch.setattr(See, "public_per_class", 9)
    labels = dataset().train.labels
    taken = [int(row) for c in range(4) for row in np.flatnonzero(labels == c)[:3]][:rows]
    parts = with_tests(public(assignment(SIZES), taken), dataset())
    with pytest.raises(ConfigError, match=message):
        check_against_data(three_stages(), dataset(), parts)
