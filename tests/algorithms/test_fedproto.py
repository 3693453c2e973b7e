"""FedProto: prototypes with a pencil, whole runs against Algorithm 1 in plain torch, and how clients answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedproto import FedProto
from engine.base.errors import ConfigError
from tests.support.full_batches import CLASSES, HIDDEN, Driven, drive, experiment, federation
from tests.support.plain_torch import HEAD, Own, close, cross_entropy, descend, features, head, logits, owns, rows_of

LAM = 0.6
COUNTS = ((6, 2, 0, 0), (0, 3, 0, 0), (3, 0, 4, 0), (0, 0, 0, 5))  # no two clients have all classes
Prototypes = dict[int, Tensor]  # class -> [H]


def means(weights: Tensor, own: Own) -> Prototypes:
    z = features(weights, own.x)
    return {c: z[[y == c for y in own.y]].mean(0) for c in range(CLASSES) if own.counts[c]}


def written_out(run: Driven, own: list[Own], weighting: str) -> tuple[Prototypes, dict[int, Tensor]]:
    """The server's prototypes and clients' weights at the end."""
    known: Prototypes = {}
    weights: dict[int, Tensor] = {}
    for cohort in run.cohorts:
        sent = {}
        for k in cohort:

            def risk(w: Tensor, k: int = k, known: Prototypes = known) -> Tensor:
                z = features(w, own[k].x)
                gaps = [
                    ((row - known[y]) ** 2).sum() / HIDDEN if y in known else torch.zeros(())
                    for row, y in zip(z, own[k].y, strict=True)
                ]
                return cross_entropy(logits(w, own[k].x), own[k].y) + LAM * torch.stack(gaps).mean()

            weights[k] = descend(risk, weights.get(k, run.first["weights"]))
            sent[k] = means(weights[k], own[k])
        for c in range(CLASSES):
            having = [k for k in cohort if c in sent[k]]
            shares = [own[k].counts[c] if weighting == "samples" else 1 for k in having]
            if having:
                total = torch.stack([share * sent[k][c] for k, share in zip(having, shares, strict=True)]).sum(0)
                known = {**known, c: total / sum(shares)}
    return known, weights


@pytest.mark.parametrize("executor", ["loop", "block"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_run_is_algorithm_1(tmp_path: Path, weighting: str, executor: str) -> None:
    """Kills: weights that are averaged after all, prototypes of the weights before training, a class's mean that counts
    clients without it, a prototype that is lost in a round in which nobody has its class; a distance to the prototype
    of a class that has none yet."""
    data = federation(COUNTS)
    fields = {"name": "fedproto", "lam": LAM, "weighting": weighting}
    run = drive(tmp_path, experiment(fields, rounds=4, execution={"executor": executor}), data)
    held = [{c for k in cohort for c in range(CLASSES) if COUNTS[k][c]} for cohort in run.cohorts]
    assert held[1] - held[0] and held[0] - held[1]
    known, weights = written_out(run, owns(data), weighting)
    for c in range(CLASSES):
        assert run.server["known"][c] == (c in known)
        close(run.server["prototypes"][c], known.get(c, torch.zeros(HIDDEN, dtype=torch.float64)))
    for k, wanted in weights.items():
        close(run.states[k]["personal"], wanted)
    assert torch.equal(run.server["weights"], run.first["weights"])


def test_a_class_keeps_its_prototype_while_nobody_has_it() -> None:
    """Kills: 0 / 0, a class that is forgotten, one that is known before anybody has sent it."""
    one = torch.ones(3, dtype=torch.float64)
    server = {"prototypes": torch.stack((one, 2 * one, 0 * one)), "known": torch.tensor([1.0, 1.0, 0.0])}
    sums, weights = torch.stack((6 * one, 0 * one, 0 * one)), torch.tensor([1.5, 0.0, 0.0])
    pooled: Any = type("Pooled", (), {"mean": {"sums": sums, "class_weights": weights}})()
    context: Any = None
    after = FedProto().aggregate(server, pooled, context)
    assert after["prototypes"].tolist() == [[4.0] * 3, [2.0] * 3, [0.0] * 3]
    assert after["known"].tolist() == [1, 1, 0]


def layout_of_a_head() -> Any:
    layout: Any = type("Layout", (), {"head_of": lambda _, w: w[-HEAD:], "body_of": lambda _, w: w[:-HEAD]})()
    layout.join = lambda body, own: torch.cat((body, own))
    return layout


def test_the_nearest_prototype_as_a_linear_head() -> None:
    """Kills: a bias or a factor of the head that answers: its scores are ||z||^2 - ||z - C||^2, and those of a class
    without a prototype lose to all."""
    draw = torch.Generator().manual_seed(0)
    z, prototypes = (torch.randn(n, HIDDEN, generator=draw, dtype=torch.float64) for n in (20, CLASSES))
    prototypes = prototypes * torch.tensor([[1.0], [2.0], [5.0], [0.1]])
    received = {"known": torch.tensor([1.0, 1.0, 1.0, 0.0]), "prototypes": prototypes}
    model: Any = type("Model", (), {"weights": torch.zeros(HEAD + 3, dtype=torch.float64), "buffers": None})()
    scores = head(FedProto().answering(model, received, layout_of_a_head()).weights, z)
    distances = torch.stack([(z - prototype).square().sum(1) for prototype in prototypes], dim=1)
    close(scores[:, :3], (z.square().sum(1, keepdim=True) - distances)[:, :3])
    assert (scores[:, 3] < scores[:, :3].min() - 1e6).all()


@pytest.mark.parametrize("answer", ["prototypes", "head"])
def test_clients_answer_with_the_nearest_prototype(tmp_path: Path, answer: str) -> None:
    """Kills: a head that is not the nearest prototype's, prototypes on another client's body, an unknown class that
    is answered; the two answers exchanged."""
    data = federation(((6, 3, 0, 0), (0, 3, 9, 0), (4, 0, 4, 0)))  # nobody has the last class
    run = drive(tmp_path, experiment({"name": "fedproto", "answer": answer}), data)
    table = run.folder.frame("personal")
    last = table[(table["round"] == 3) & (table["point"] == "post_server")].set_index("client")
    known = [c for c in range(CLASSES) if run.server["known"][c]]
    assert known == [0, 1, 2]
    for k, part in enumerate(data[1].tests):
        test = rows_of(data[0].test.images[part], data[0].test.labels[part])
        weights = run.states[k]["personal"] if run.states[k] else run.first["weights"]
        z = features(weights, test.x)
        if answer == "prototypes":
            distances = torch.stack([(z - run.server["prototypes"][c]).norm(dim=1) for c in known], dim=1)
            answers = [known[i] for i in distances.argmin(1).tolist()]
        else:
            answers = head(weights, z).argmax(1).tolist()
        right = sum(a == y for a, y in zip(answers, test.y, strict=True)) / test.size
        assert last.loc[k, "accuracy"] == pytest.approx(right, abs=1e-9)


def test_without_prototypes_the_own_head_answers() -> None:
    """Kills: a model that answers at random before anybody has sent a prototype."""
    weights = torch.arange(HEAD + 3.0)
    received = {"known": torch.zeros(CLASSES), "prototypes": torch.zeros(CLASSES, HIDDEN)}
    model: Any = type("Model", (), {"weights": weights, "buffers": weights[:0]})()
    assert torch.equal(FedProto().answering(model, received, layout_of_a_head()).weights, weights)


def test_without_weight_and_in_the_first_round_it_is_local_training(tmp_path: Path) -> None:
    """Kills: a term that does not vanish, a way of its own for what is local training to the bit."""
    for executor in ("loop", "block"):
        for fields, rounds in (({"lam": 0.0}, 3), ({}, 1)):
            execution = {"executor": executor, "precision": "float32"}
            local = {"batch_size": 4, "momentum": 0.9, "steps": 5}
            setting: dict[str, Any] = {"execution": execution, "local": local, "rounds": rounds}
            one = drive(tmp_path / f"{executor}{rounds}", experiment({"name": "fedproto", **fields}, **setting))
            two = drive(tmp_path / f"{executor}{rounds}local", experiment({"name": "local"}, **setting))
            for ours, theirs in zip(one.states, two.states, strict=True):
                assert ours.keys() == theirs.keys()
                assert all((ours[name] == theirs[name]).all() for name in ours)


def test_clients_may_have_architectures_of_their_own(tmp_path: Path) -> None:
    """Kills: anything shaped like a model that travels; a width that does not match and is not refused."""
    wide = {"name": "mlp", "hidden": [9, HIDDEN]}
    models = [{"name": "mlp", "hidden": [HIDDEN]}, wide]
    run = drive(tmp_path / "fits", experiment({"name": "fedproto"}, client_models=models, participation={"count": 3}))
    assert len({len(state["personal"]) for state in run.states}) == 2
    assert run.server["known"].all()
    models[1] = {"name": "mlp", "hidden": [9]}
    config = experiment({"name": "fedproto"}, client_models=models, participation={"count": 3})
    with pytest.raises(ConfigError, match=r"client_models=.*9 features.* 6 of section model"):
        drive(tmp_path / "does not", config)
