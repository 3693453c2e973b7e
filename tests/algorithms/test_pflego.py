"""PFLEGO's exact oracles: a round is a gradient step on the joint loss, in expectation over cohorts.

The reference is one autograd graph over all clients' rows, written here on plain tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.fedper import FedPer
from algorithms.pflego import Pflego
from engine.algorithm import Algorithm, Context, Pooled, Tensors
from engine.base.errors import ClientError, ConfigError
from engine.client.steps.client_round import ClientResult, ClientTask, Streams
from engine.client.steps.entries import opened
from engine.experiment import Experiment, Local
from engine.models import Model, ModelSpec
from tests.support.bench import Bench
from tests.support.pencil import pool
from tests.support.tiny import context_of, dataset, drive, experiment, open_driver

HIDDEN = 6
SIZES = (12, 5, 9, 3, 7)
FULL = Local(steps=1, batch_size="full")
SGD: dict[str, Any] = {"server_optimizer": "sgd", "server_lr": 0.05, "head_lr": 0.1}


@dataclass(frozen=True)
class Tanh(ModelSpec):
    """A smooth network: one hidden layer under tanh."""

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        body = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], HIDDEN), nn.Tanh())
        return self.assemble(body, HIDDEN, num_classes)


class Federation(Bench):
    """Clients whose rounds are run by hand, in float64, for any cohort."""

    def __init__(self, algorithm: Algorithm, participation: float = 1.0, sizes: tuple[int, ...] = SIZES) -> None:
        super().__init__(Tanh(), participation, sizes)
        self.algorithm = algorithm
        self.server = {**algorithm.init_server(self.start, self.context), "buffers": self.start["buffers"]}
        self.stored: list[Tensors] = [{} for _ in sizes]
        self.new = [True] * len(sizes)

    def one(self, number: int) -> ClientResult:
        received = {**self.algorithm.broadcast(self.server, self.context), "buffers": self.start["buffers"]}
        rows, stored, new = self.parts[number], self.stored[number], self.new[number]
        return self.trainer.train(ClientTask(self.algorithm, FULL, number, rows, self.context, received, stored, new))

    def round(self, cohort: Sequence[int] | None = None) -> list[ClientResult]:
        ids = list(range(len(self.parts))) if cohort is None else list(cohort)
        trained = [self.one(number) for number in ids]
        for number, one in zip(ids, trained, strict=True):
            self.stored[number], self.new[number] = one.new_state, False
        if ids:
            self.server = {**self.algorithm.aggregate(self.server, pool(trained, tuple(ids)), self.context)}
        return trained

    @property
    def body(self) -> Tensor:
        return self.net.layout.body_of(self.server["weights"])

    def head(self, number: int) -> Tensor:
        """[P_head] as it is, or would be at first."""
        client = self.client(number)
        first = self.net.layout.head_of(self.server["weights"])
        received = {"body": self.body, "base": self.body, "top": self.body[:0], "first_head": first}
        if self.new[number]:
            early = replace(client, rng=Streams(self.trainer.seed, 0, number))
            head = self.algorithm.init_state(received, {}, early)["head"]
            return own_rows(head, client.class_counts)
        return opened(self.algorithm.kinds, self.stored[number], client)["head"]

    # --- the reference --------------------------------------------------------------------------------

    def loss_of(self, number: int, body: Tensor, head: Tensor) -> Tensor:
        """f_i: the mean cross entropy over the client's own classes, on plain tensors."""
        batch = self.batch(number)
        weight, bias = body[: 64 * HIDDEN].view(HIDDEN, 64), body[64 * HIDDEN :]
        features = torch.tanh(batch.x.flatten(1) @ weight.T + bias)
        rows, offsets = head[: 4 * HIDDEN].view(4, HIDDEN), head[4 * HIDDEN :]
        classes = sorted(set(batch.y.tolist()))
        logits = features @ rows[classes].T + offsets[classes]
        return F.cross_entropy(logits, torch.tensor([classes.index(int(y)) for y in batch.y]))

    def alpha(self, number: int) -> float:
        return len(self.parts[number]) / sum(map(len, self.parts))

    def gradients(self, body: Tensor, heads: list[Tensor]) -> tuple[Tensor, list[Tensor], float]:
        """Of L = sum alpha_i f_i at a point, by one graph: for the body, for each head, and L."""
        leaves = [tensor.clone().requires_grad_() for tensor in (body, *heads)]
        loss = sum(self.alpha(i) * self.loss_of(i, leaves[0], leaves[i + 1]) for i in range(len(heads)))
        assert isinstance(loss, Tensor)
        first, *rest = torch.autograd.grad(loss, leaves)
        return first, list(rest), loss.item()

    @property
    def heads(self) -> list[Tensor]:
        return [self.head(number) for number in range(len(self.parts))]


def own_rows(head: Tensor, counts: Tensor) -> Tensor:
    """The head with zeros for classes that the client lacks."""
    mask = (counts > 0).double()
    return head * torch.cat((mask.repeat_interleave(HIDDEN), mask))


def close(got: Tensor, wanted: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got.double(), wanted.double(), rtol=0, atol=atol)


# --- one step on the joint loss ---------------------------------------------------------------------------


def check_step(algorithm: Pflego) -> None:
    """Full participation: tau - 1 block steps of each head, then one step of all on L (oracles 1 and 2)."""
    fed = Federation(algorithm)
    body, heads = fed.body.clone(), fed.heads
    for _ in range(algorithm.tau - 1):
        leaves = [head.clone().requires_grad_() for head in heads]
        grads = [torch.autograd.grad(fed.loss_of(i, body, leaf), leaf)[0] for i, leaf in enumerate(leaves)]
        heads = [head - algorithm.head_lr * grad for head, grad in zip(heads, grads, strict=True)]
    for_body, for_heads, _ = fed.gradients(body, heads)
    fed.round()
    close(fed.body, body - algorithm.server_lr * for_body)
    for number, (head, grad) in enumerate(zip(heads, for_heads, strict=True)):
        scale = 1.0 if algorithm.w_scale == "joint" else 1 / fed.alpha(number)
        close(fed.head(number), head - algorithm.server_lr * scale * grad)


@pytest.mark.parametrize("w_scale", ["joint", "printed"])
@pytest.mark.parametrize("tau", [1, 4])
def test_a_full_round_is_one_step_on_the_joint_loss(tau: int, w_scale: Any) -> None:
    """Kills: a head that moves before the joint gradient is taken, alpha of the wrong rows, a mean in place of the sum
    over clients, tau head steps in place of tau - 1, head steps by the server's rate (oracles 1 and 2)."""
    check_step(Pflego(tau=tau, w_scale=w_scale, **SGD))


def test_a_full_round_of_a_run_is_that_step_too(tmp_path: Path) -> None:
    """Kills: a driver that scales by something else than the algorithm is told, a context with the wrong counts."""
    algorithm = {"name": "pflego", "tau": 1, "w_scale": "joint", **SGD}
    execution = {"actors": 0, "device": "cpu", "precision": "float64"}
    settings = experiment(algorithm=algorithm, rounds=1, model={"name": "mlp", "hidden": [HIDDEN]}, execution=execution)
    run = drive(tmp_path, settings)
    data = dataset()
    net, worker = run.driver.pool._workers[0].net, run.driver.pool._workers[0]  # type: ignore[attr-defined]
    before = run.driver.federation.fresh["weights"]
    layout, total, gradient = net.layout, len(data.train), torch.zeros(net.layout.body, dtype=torch.float64)
    for number, rows in enumerate(worker.assignment.clients):
        client = worker.trainer.client(number, torch.as_tensor(rows), context_of(run.driver, 1))
        received = {"body": layout.body_of(before), "first_head": layout.head_of(before), "buffers": net.buffers}
        algorithm = run.driver.stage.algorithm
        visit = ClientTask(algorithm, FULL, number, torch.as_tensor(rows), client.context, received, {}, newcomer=True)
        state = worker.trainer.state_of(visit, client)
        net.load(layout.join(received["body"], state["head"]), net.buffers)
        x, y = worker.trainer.rows.batch(torch.as_tensor(rows))
        classes = sorted(set(y.tolist()))
        loss = F.cross_entropy(net(x)[:, classes], torch.tensor([classes.index(int(one)) for one in y]))
        gradient += len(rows) / total * net.backward(loss, "body")
    close(layout.body_of(run.server["weights"]), layout.body_of(before) - 0.05 * gradient)


def test_without_head_rate_tau_is_no_matter() -> None:
    """Kills: head steps at another rate than beta (oracle 6)."""
    runs = []
    for tau in (1, 50):
        fed = Federation(Pflego(tau=tau, server_optimizer="sgd", head_lr=0.0))
        fed.round()
        runs.append([fed.body, *fed.heads])
    for one, two in zip(*runs, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("tau", [1, 6])
def test_one_client_is_central_training(tau: int) -> None:
    """Kills: a factor that is 1 by luck elsewhere (oracle 11)."""
    fed = Federation(Pflego(tau=tau, **SGD), sizes=(20,))
    body, head = fed.body.clone(), fed.head(0)
    for _ in range(3):
        for _ in range(tau - 1):
            leaf = head.clone().requires_grad_()
            head = head - 0.1 * torch.autograd.grad(fed.loss_of(0, body, leaf), leaf)[0]
        for_body, (for_head,), _ = fed.gradients(body, [head])
        body, head = body - 0.05 * for_body, head - 0.05 * for_head
        fed.round()
    close(fed.body, body)
    close(fed.head(0), head)


# --- expectation over cohorts -----------------------------------------------------------------------------


class ByThoseWhoCame(Pflego):
    """The released code's scale: I / |I_t| in place of 1 / pi."""

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return super().aggregate(server, pooled, replace(context, participation=pooled.count / context.num_clients))


class AlphaOfTheCohort(Pflego):
    """The released code's weights: N_i over the cohort's rows, and I / r on top."""

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        return super().aggregate(server, replace(pooled, weight=float(context.num_examples)), context)


Cohorts = dict[tuple[int, ...], float]  # with their probabilities


def expected_step(cls: type[Pflego], cohorts: Cohorts, participation: float) -> tuple[Tensor, Tensor]:
    """The body's expected step over all cohorts by their probabilities, and the step on L."""
    algorithm = cls(tau=1, **SGD)
    start = Federation(algorithm, participation)
    wanted = -algorithm.server_lr * start.gradients(start.body, start.heads)[0]
    mean = torch.zeros_like(wanted)
    for cohort, probability in cohorts.items():
        fed = Federation(algorithm, participation)
        fed.round(cohort)
        mean += probability * (fed.body - start.body)
    return mean, wanted


PAIRS = dict.fromkeys(combinations(range(5), 2), 1 / 10)
COINS = {
    cohort: 0.3 ** len(cohort) * 0.7 ** (5 - len(cohort))
    for size in range(6)
    for cohort in combinations(range(5), size)
}


@pytest.mark.parametrize(("cohorts", "participation"), [(PAIRS, 0.4), (COINS, 0.3)], ids=["fixed", "binomial"])
def test_steps_are_unbiased_over_all_cohorts(cohorts: Cohorts, participation: float) -> None:
    """Kills: a scale by those who came, alpha over the cohort; every cohort counted, the empty one too (oracle 3)."""
    close(*expected_step(Pflego, cohorts, participation))


def test_the_released_codes_scales_are_biased() -> None:
    """Kills: an enumeration too blunt to notice. With coins, I / |I_t| comes to 1 - 0.7^5 of the step; with pairs,
    alpha of the cohort to more than twice the step."""
    mean, wanted = expected_step(ByThoseWhoCame, COINS, 0.3)
    close(mean, (1 - 0.7**5) * wanted)
    mean, wanted = expected_step(AlphaOfTheCohort, PAIRS, 0.4)
    assert mean.norm() > 2 * wanted.norm()


def test_a_head_is_scaled_by_the_expected_share() -> None:
    """Kills: a head's last step without 1 / pi, or by those who came."""
    fed, all_in = Federation(Pflego(tau=1, **SGD), participation=0.4), Federation(Pflego(tau=1, **SGD))
    before = fed.head(1)
    fed.round([1])
    all_in.round()
    close(fed.head(1) - before, (all_in.head(1) - before) / 0.4)


def test_an_empty_cohort_leaves_everything(tmp_path: Path) -> None:
    """Kills: a division by an empty cohort; an Adam step on nothing. At this rate some rounds are empty."""
    settings = experiment(
        algorithm={"name": "pflego", "tau": 2}, participation={"fraction": 0.12, "scheme": "binomial"}, rounds=8
    )
    run = drive(tmp_path, settings)
    rows = run.folder.frame("rounds")
    empty = rows["clients"] == 0
    assert 0 < empty.sum() < 8
    assert (rows["update_norm"][empty] == 0).all()
    steps = [dict(scalars).get("server_steps", 0.0) for scalars in rows["scalars"]]
    assert steps == (~empty).cumsum().tolist()


# --- FedPer, caches, messages ------------------------------------------------------------------------------


def test_fedper_with_one_full_step_is_pflego_without_head_steps() -> None:
    """Kills: a FedPer that trains one part, or averages another way (oracle 4)."""
    eta = SGD["server_lr"]
    one, two = Federation(FedPer()), Federation(Pflego(tau=1, w_scale="printed", **SGD))
    one.context = replace(one.context, lr=eta)
    for _ in range(2):
        one.round()
        two.round()
    close(one.body, two.body)
    for number in range(len(SIZES)):
        close(one.head(number), two.head(number))


def test_cached_features_give_the_heads_gradient() -> None:
    """Kills: features of another body or mode; the closed form is -(1/N) (Y - P)^T Phi (oracle 7)."""
    algorithm = Pflego(tau=9, **SGD)
    cached, live = Federation(algorithm), Federation(Live(tau=9, **SGD))
    cached.round()
    live.round()
    for number in range(len(SIZES)):
        close(cached.head(number), live.head(number), atol=1e-10)
    fed = Federation(Pflego(tau=2, server_optimizer="sgd", server_lr=1e-300, head_lr=1.0))
    before, batch, layout = fed.head(0), fed.batch(0), fed.net.layout
    fed.net.load(layout.join(fed.body, before), fed.net.buffers)
    with torch.no_grad():
        features = fed.net.features(batch.x)
        absent = fed.client(0).class_counts == 0
        p = torch.softmax(fed.net.head(features).masked_fill(absent, -torch.inf), 1)
        error = F.one_hot(batch.y, 4).double() - p
    fed.round([0])
    wanted = torch.cat(((error.T @ features).reshape(-1), error.sum(0))) / len(batch.y)
    close(fed.head(0) - before, wanted, atol=1e-10)


class Live(Pflego):
    def phases(self, context: Context) -> Any:
        return tuple(replace(phase, features="live") for phase in super().phases(context))


def test_who_does_not_take_part_keeps_its_head_and_bodies_do_not_move_on_clients(tmp_path: Path) -> None:
    """Kills: a head that moves unasked, a body that a client trains (oracle 8)."""
    fed = Federation(Pflego(tau=5, **SGD), participation=0.4)
    fed.round()
    kept = [stored["head"].clone() for stored in fed.stored]
    body = fed.body.clone()
    trained = fed.round([1, 3])
    for number in (0, 2, 4):
        assert torch.equal(fed.stored[number]["head"], kept[number])
    for one in trained:
        assert torch.equal(one.weights[: len(body)], body)


@pytest.mark.parametrize("name", ["pflego", "fedper"])
def test_no_head_travels(tmp_path: Path, name: str) -> None:
    """Kills: a head in a message; counted from the tensors that travel (oracle 8)."""
    run = drive(tmp_path, experiment(algorithm={"name": name}, rounds=2))
    body = run.driver.layout.body
    rows = run.folder.frame("clients")
    assert set(rows["floats_up"]) == {body}
    assert set(rows["floats_down"]) == {body}


def test_a_head_in_an_upload_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: trust in the author of an algorithm where privacy is concerned."""
    upload = FedPer.upload

    def leaks(self: FedPer, *args: Any) -> Any:
        sent, kept = upload(self, *args)
        return {**sent, "head": kept["head"]}, kept

    monkeypatch.setattr(FedPer, "upload", leaks)
    with pytest.raises(ClientError, match=r"TypeError: FedPer.upload: entry 'head' is a personal head, which is never"):
        drive(tmp_path, experiment(algorithm={"name": "fedper"}, rounds=1))


# --- the server's optimizers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "factor"), [("adam", 1.0), ("sgd", 10.0)])
def test_ten_times_the_gradient(optimizer: Any, factor: float) -> None:
    """Kills: an Adam without its normalisation, an SGD with it (oracle 12)."""
    algorithm = Pflego(server_optimizer=optimizer, server_lr=0.01)
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(1000, dtype=torch.float64, generator=generator)
    gradient = gradient[gradient.abs() > 1e-5]
    zero = torch.zeros_like(gradient)
    once, _ = algorithm.stepped({}, zero, gradient)
    tenfold, _ = algorithm.stepped({}, zero, 10 * gradient)
    torch.testing.assert_close(tenfold, factor * once, rtol=1e-3, atol=0)


@pytest.mark.parametrize("optimizer", ["adam", "yogi"])
def test_server_optimizers_by_hand(optimizer: Any) -> None:
    """Kills: a bias correction that is missing (Adam) or too many (Yogi), moments that are forgotten."""
    algorithm = Pflego(server_optimizer=optimizer, server_lr=0.1, server_betas=(0.9, 0.99), server_eps=1e-3)
    weights, server = torch.tensor([1.0, -2.0], dtype=torch.float64), dict[str, Tensor]()
    first = second = torch.zeros(2, dtype=torch.float64)
    wanted = weights.clone()
    for number, values in enumerate(([0.3, -1.0], [0.2, 0.5], [-0.1, 2.0]), start=1):
        grad = torch.tensor(values, dtype=torch.float64)
        weights, remembered = algorithm.stepped(server, weights, grad)
        server = {**server, **remembered}
        first = 0.9 * first + 0.1 * grad
        if optimizer == "adam":
            second = 0.99 * second + 0.01 * grad**2
            step = (first / (1 - 0.9**number)) / ((second / (1 - 0.99**number)).sqrt() + 1e-3)
        else:
            second = second - 0.01 * grad**2 * torch.sign(second - grad**2)
            step = first / (second.sqrt() + 1e-3)
        wanted = wanted - 0.1 * step
        close(weights, wanted)


def test_the_server_remembers(tmp_path: Path) -> None:
    """Kills: moments that are not in the checkpoint, or not used in the next round."""
    settings = experiment(algorithm={"name": "pflego", "tau": 2}, rounds=3)
    run = drive(tmp_path, settings)
    assert run.server["server_steps"] == 3
    assert run.server["moment1"].shape == (run.driver.layout.body,)


# --- descent ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("w_scale", ["joint", "printed"])
def test_the_joint_loss_falls_in_every_round(w_scale: Any) -> None:
    """Kills: a step that is not down the gradient; a smooth network, small steps, everybody takes part (oracle 13)."""
    fed = Federation(Pflego(tau=3, w_scale=w_scale, server_optimizer="sgd", server_lr=0.05, head_lr=0.02))
    losses = []
    for _ in range(50):
        losses.append(fed.gradients(fed.body, fed.heads)[2])
        fed.round()
    assert all(later < earlier for earlier, later in pairwise(losses))


# --- bad settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": {"name": "pflego", "tau": 0}}, "algorithm.tau=0: must be at least 1; 1 is the joint one alone"),
        ({"algorithm": {"name": "pflego", "head_lr": -1}}, r"algorithm.head_lr=-1.*: must be at least 0"),
        ({"algorithm": {"name": "pflego", "batch_size": 0}}, "algorithm.batch_size=0: must be at least 1"),
        ({"algorithm": {"name": "pflego", "server_lr": 0}}, r"algorithm.server_lr=0.*: must be greater than 0"),
        (
            {"algorithm": {"name": "pflego", "server_betas": [0.9, 1.0]}},
            "algorithm.server_betas.1=1.0: must be at least 0 and below 1; for example algorithm.server_betas",
        ),
        ({"local": {"momentum": 0.9}}, r"local.momentum=0.9: is not for pflego, .*; set local.momentum=0.0"),
        ({"local": {"optimizer": "adam"}}, "local.optimizer=adam: is not for pflego"),
        ({"local": {"augment": "flip"}}, "local.augment=flip: is not for pflego"),
        ({"algorithm": {"name": "fedper", "layers": 0}}, "algorithm.layers=0: must be at least 1"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    """Kills: a setting that is silently without effect."""
    with pytest.raises(ConfigError, match=message):
        Experiment(**{"algorithm": {"name": "pflego"}, **changes})


def test_an_optimizer_cannot_change_in_mid_run() -> None:
    """Kills: Adam's moments left behind, or read by Yogi."""
    schedule = [{"round": 3, "set": {"algorithm.server_optimizer": "yogi"}}]
    with pytest.raises(ConfigError, match="server_optimizer=yogi: cannot change in mid-run"):
        Experiment(algorithm={"name": "pflego"}, schedule=schedule)


def test_as_many_personal_layers_as_the_model_has_are_refused(tmp_path: Path) -> None:
    """Kills: a FedPer that shares nothing and does not say so."""
    settings = experiment(algorithm={"name": "fedper", "layers": 2}, rounds=1)
    with pytest.raises(
        ConfigError,
        match=r"algorithm.layers=2: leaves no block below them: the model has 1 below",
    ):
        drive(tmp_path, settings)


def test_personal_layers_stay_as_many() -> None:
    """Kills: a cut that moves in mid-run, which no client's state fits."""
    change = [{"round": 2, "set": {"algorithm.layers": 2}}]
    with pytest.raises(ConfigError, match=r"layers=2: cannot change in mid-run: .*; keep 1$"):
        experiment(algorithm={"name": "fedper"}, model={"name": "mlp", "hidden": [10, 8]}, schedule=change)
    change[0]["set"] = {"local.lr": 0.2}
    assert experiment(algorithm={"name": "fedper"}, schedule=change)


def test_personal_layers_below_the_head(tmp_path: Path) -> None:
    """Kills: a cut in the wrong place; counted on the wire: the layers up to the last but one."""
    settings = experiment(
        algorithm={"name": "fedper", "layers": 2}, model={"name": "mlp", "hidden": [10, 8, 6]}, rounds=2
    )
    run = drive(tmp_path, settings)
    assert set(run.folder.frame("clients")["floats_up"]) == {64 * 10 + 10 + 10 * 8 + 8}
    state = run.driver.pool.fetch(run.driver.lineage.states.store.read([0])[0])
    assert state["top"].shape == (8 * 6 + 6,)
    assert not (state["top"] == run.driver.federation.fresh["weights"][738:792]).all()


def test_fully_connected_layers_go_with_the_last_block(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Kills: a cut between the last convolution and the hidden layer above it; a run silent on what is shared."""
    settings = experiment(algorithm={"name": "fedper", "layers": 2}, model={"name": "cnn"}, rounds=1)
    with caplog.at_level("INFO", "fedskew"):
        driver = open_driver(tmp_path, settings)
    first_block, size = 5 * 5 * 32 + 32, driver.layout.size
    assert f"fedper: {first_block} of the model's {size} parameters are shared" in caplog.messages
    driver.close()
