"""CBFL (class-balanced federated learning by data generation): its oracles O-C2, O-C4 to O-C7, O-C9, O-C10."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from algorithms.cbfl import Cbfl, attention, attention_gap, own_generator, soft_labels
from algorithms.fedavg import FedAvg
from algorithms.generators import GeneratorSpec, images, train_against
from engine.algorithm import Batch, Cohort, Tensors, seeds
from engine.base.errors import ConfigError
from engine.client.steps.client_round import ClientTask
from engine.client.training_tools import FlatTrainingTools
from engine.experiment import Experiment, Local
from engine.models import MLP, ResNet8
from tests.support.bench import Bench
from tests.support.tiny import CLASSES, TINY_NORM, context_of, drive, experiment, open_driver

pytestmark = pytest.mark.usefixtures("tiny_norm")
FIELDS: dict[str, Any] = {"fake_batch": 6, "gen_steps": 3, "gen_batch": 8, "gen_width": 4, "noise": 5}


WITH_STATISTICS = {"name": "cbfl", **FIELDS, "gamma": 10.0, "beta": 400.0}


def staged(warm: int, rounds: int, fields: dict[str, Any] | None = None, **changes: Any) -> Experiment:
    """A warm-up and then CBFL, ``rounds`` rounds in all."""
    return experiment(
        **{**TINY_NORM, "participation": {"count": 3}, **changes},
        stages=[
            {"name": "warmup", "algorithm": {"name": "fedavg"}, "rounds": warm},
            {
                "name": "cbfl",
                "needs": ["warmup"],
                "algorithm": {"name": "cbfl", **FIELDS, **(fields or {})},
                "rounds": rounds - warm,
            },
        ],
    )


# --- the run --------------------------------------------------------------------------------------------------


def test_until_the_warm_up_ends_it_is_fedavg(tmp_path: Path) -> None:
    """Kills: anything of CBFL that is drawn, trained or computed before its stage begins (O-C2)."""
    fedavg = drive(tmp_path / "a", experiment(**TINY_NORM, participation={"count": 3}, rounds=4))
    cbfl = drive(tmp_path / "b", staged(2, 4))
    shas = [run.folder.frame("rounds")["weights_sha256"].tolist() for run in (fedavg, cbfl)]
    assert shas[0][:2] == shas[1][:2]
    assert shas[0][2] != shas[1][2]
    assert shas[0][3] != shas[1][3]


@pytest.mark.slow
@pytest.mark.parametrize(("refresh", "wanted"), [(1, [3, 4, 5, 6, 7]), (2, [3, 4, 6]), (3, [3, 5]), (7, [3])])
def test_refreshes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refresh: int, wanted: list[int]) -> None:
    """Kills: a refresh counted from the stage's first round, one too few, one each round (O-C10, R_w = 2, R = 7)."""
    seen: list[int] = []
    original = Cbfl.before_round

    def spy(self: Cbfl, server: Tensors, compute: Any, context: Any) -> Tensors:
        def counted(fn: Any, shared: Tensors) -> Tensors:
            seen.append(context.round)
            assert torch.equal(shared["weights"], server["weights"])
            return compute(fn, shared)

        return original(self, server, counted, context)

    monkeypatch.setattr(Cbfl, "before_round", spy)
    drive(tmp_path, staged(2, 7, {"refresh": refresh, "gen_steps": 1}))
    assert seen == wanted
    if refresh > 1:
        assert len(seen) == (7 - 2) // refresh + 1


@pytest.mark.parametrize(("rounds", "warm", "refresh", "wanted"), [(1000, 700, 3, 101), (1000, 800, 7, 29)])
def test_refreshes_of_the_paper(rounds: int, warm: int, refresh: int, wanted: int) -> None:
    """Kills: as above, at the papers' sizes (O-C10)."""
    bench, algorithm = Bench(MLP(hidden=(4,))), Cbfl(refresh=refresh, **FIELDS)
    server, trained = dict(bench.start), []
    for number in range(1, rounds - warm + 1):
        algorithm.before_round(
            server, lambda fn, shared: trained.append(fn) or {}, replace(bench.context, stage_round=number)
        )
    assert len(trained) == wanted


def test_the_teacher_is_of_the_last_refresh_or_of_now(tmp_path: Path) -> None:
    """Kills: a teacher that follows the global model where it should be old, or is old where it should follow."""
    driver = open_driver(tmp_path, staged(1, 4, {"refresh": 3}))
    after = []
    while not driver.finished:
        driver.advance()
        after.append({name: tensor.clone() for name, tensor in driver.lineage.server.items()})
    warm, second, third, last = after
    for server in (second, third):
        assert torch.equal(server["teacher"], warm["weights"])
        assert torch.equal(server["teacher_buffers"], warm["buffers"])
        assert torch.equal(server["generator"], second["generator"])
    assert torch.equal(last["teacher"], third["weights"])
    assert not torch.equal(last["generator"], third["generator"])
    every = drive(tmp_path / "every", staged(1, 4, {"refresh": 1}))
    current = drive(tmp_path / "current", staged(1, 4, {"refresh": 1, "teacher": "current"}))
    assert every.sha == current.sha
    assert "teacher" not in current.server


@pytest.mark.slow
def test_stopped_between_two_refreshes(tmp_path: Path) -> None:
    """Kills: a generator or a teacher that is not in the checkpoint, or is made anew by a resume (O-7)."""
    settings = staged(1, 6, {"refresh": 4, "gamma": 3.0})
    straight = drive(tmp_path / "straight", settings)
    driver = open_driver(tmp_path / "stopped", settings)
    for _ in range(3):
        driver.advance()
    driver.close()
    assert drive(tmp_path / "stopped", settings).sha == straight.sha


def test_a_warm_up_of_no_rounds_is_none(tmp_path: Path) -> None:
    """Kills: R_w = 0 that cannot be written, or that is another run than CBFL from the first round on."""
    none = drive(tmp_path / "none", staged(0, 2))
    alone = drive(
        tmp_path / "alone", experiment(**TINY_NORM, participation={"count": 3}, rounds=2, algorithm=WITH_STATISTICS)
    )
    assert none.sha == alone.sha
    assert none.driver.experiment.value_of("R_w") == 0
    with pytest.raises(ConfigError, match=r"^stages.warmup.rounds=0: a stage without rounds goes on from another one"):
        Experiment(stages=[{"name": "warmup", "rounds": 0}, {"name": "train", "rounds": 2}])


def test_generators_of_one_seed_are_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kills: a generator that depends on who trains it, with what rows or in which mode (O-C9)."""
    bench = Bench(ResNet8())
    algorithm = Cbfl(gen_scope="client", teacher="current", **FIELDS)
    rng = lambda purpose: seeds.generator(7, purpose, 1)  # noqa: E731
    bench.net.load(bench.start["weights"], bench.start["buffers"])
    bench.net.train(False)
    client = replace(bench.client(1), rng=rng)
    own = algorithm.client_setup(FlatTrainingTools(bench.net, rng), bench.start, {}, client)
    shared = Cbfl(**FIELDS).before_round(
        bench.start, lambda fn, given: fn(FlatTrainingTools(bench.net, rng), given), bench.context
    )
    assert torch.equal(own["generator"], shared["generator"])
    # and in a run each client's is its own
    made: list[torch.Tensor] = []
    original = Cbfl.client_setup

    def spy(self: Cbfl, *args: Any) -> Tensors:
        made.append(original(self, *args)["generator"])
        return {**original(self, *args), "generator": made[-1]}

    monkeypatch.setattr(Cbfl, "client_setup", spy)
    drive(tmp_path, staged(1, 2, {"gen_scope": "client", "teacher": "current"}))
    *tried, first, second, third = made
    assert len(tried) == 3  # before the stage, twice the same: the network is one of the tests' own
    assert not torch.equal(first, second) and not torch.equal(second, third)


def test_the_generators_loss_is_the_fields() -> None:
    """Kills: gamma, the reduction over layers, steps, batch or rate that do not reach the generator (E-03, E-04)."""
    bench = Bench(ResNet8())
    bench.net.load(bench.start["weights"], bench.start["buffers"])
    bench.net.train(False)
    place = FlatTrainingTools(bench.net, lambda purpose: seeds.generator(0, purpose, 1))
    made = []
    for gamma, reduction in ((10.0, "mean"), (10.0, "sum"), (1.0, "mean"), (0.0, "mean")):
        algorithm = Cbfl(gamma=gamma, bns_reduction=reduction, gen_lr=0.02, **FIELDS)  # type: ignore[arg-type]
        server = algorithm.before_round(bench.start, lambda fn, given: fn(place, given), bench.context)
        spec = GeneratorSpec((1, 8, 8), CLASSES, noise=5, width=4)
        alone = train_against(place, bench.start, spec, 3, 8, 0.02, gamma, reduction == "mean")
        assert torch.equal(server["generator"], alone["generator"])
        made.append(server["generator"])
    assert len({tuple(generator.tolist()) for generator in made}) == 4


def test_a_dcgan_is_lent_in_turn() -> None:
    """Kills: one client's generator for all, or the same one each round."""
    bench, algorithm = Bench(ResNet8()), Cbfl(generator="dcgan", **FIELDS)
    server: Tensors = {**bench.start, "generators": torch.arange(3.0)[:, None]}
    cohort = Cohort((0, 2), (12, 9))
    rows = [algorithm.broadcast_to(server, cohort, replace(bench.context, round=number))["lent"] for number in (3, 4)]
    lent = [row[:, 0].tolist() for row in rows]
    assert lent == [[0, 2], [1, 0]]


def test_a_clients_dcgan_is_trained_on_its_own_rows(tmp_path: Path) -> None:
    """Kills: generators in another order than clients, or all of one client's rows."""
    driver = open_driver(tmp_path, staged(1, 2, {"generator": "dcgan"}))
    while not driver.finished:
        driver.advance()
    algorithm, trainer = driver.stage.algorithm, driver.pool._workers[0].trainer  # type: ignore[attr-defined]
    assert isinstance(algorithm, Cbfl)
    context = replace(context_of(driver, 1), round=1)
    for number in (0, 3):
        view = _Rows(trainer, number, torch.as_tensor(driver.pool._workers[0].assignment.clients[number]), context)  # type: ignore[attr-defined]
        alone = own_generator(view, {}, algorithm.spec(driver.layout), 3, 8, algorithm.gen_lr)["generators"]
        assert torch.equal(driver.lineage.server["generators"][number], alone[0])


class _Rows:
    """A client's view, as ``clients.map`` gives it."""

    def __init__(self, trainer: Any, number: int, indices: torch.Tensor, context: Any) -> None:
        self.client = trainer.client(number, indices, context)
        self.rows = lambda: trainer.one_pass(self.client, indices)


# --- the loss -------------------------------------------------------------------------------------------------


def test_soft_labels_by_hand() -> None:
    """Kills: student and teacher exchanged (E-01), a missing T^2, a sum over rows."""
    student, teacher = torch.tensor([[0.0, 0.0], [0.0, 0.0]]).double(), torch.tensor([[0.0, 0.0], [4.0, 0.0]]).double()
    heat = 2.0
    p = torch.tensor([1 / (1 + torch.e**-2), 1 / (1 + torch.e**2)], dtype=torch.float64)
    forward = (p * (p / 0.5).log()).sum() * heat**2 / 2
    backward = (0.5 * (0.5 / p).log()).sum() * heat**2 / 2
    torch.testing.assert_close(soft_labels(student, teacher, heat), forward)
    torch.testing.assert_close(soft_labels(student, teacher, heat, "student_teacher"), backward)


def test_soft_labels_see_no_constant_and_keep_their_scale() -> None:
    """Kills: scores that are compared instead of probabilities; a gradient that dies with the temperature (O-C4)."""
    rng = torch.Generator().manual_seed(0)
    teacher = torch.randn(5, 4, generator=rng, dtype=torch.float64)
    assert soft_labels(teacher + 3.0, teacher, 5.0).abs() < 1e-12
    assert soft_labels(teacher * 1.1, teacher, 5.0) > 1e-4
    norms = []
    for heat in (5.0, 50.0, 500.0):
        student = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
        [grad] = torch.autograd.grad(soft_labels(student, teacher, heat), student)
        norms.append(grad.norm().item())
    assert max(norms) < 1.5 * min(norms)


def test_attention_maps() -> None:
    """Kills: maps that are not squared, not normalised, or normalised over the batch (E-02, O-C5)."""
    rng = torch.Generator().manual_seed(0)
    maps = torch.randn(3, 5, 4, 2, generator=rng, dtype=torch.float64)
    found = attention(maps)
    by_hand = (maps**2).sum(1).reshape(3, 8)
    by_hand = by_hand / by_hand.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found, by_hand)
    torch.testing.assert_close(attention(7 * maps), found)
    torch.testing.assert_close(attention(maps[:, :, 0, 0]).norm(dim=1), torch.ones(3, dtype=torch.float64))
    assert attention_gap({"a": maps}, {"a": found}) == 0
    one, other = torch.zeros(1, 1, 2, 4).double(), torch.zeros(1, 1, 2, 4).double()
    one[..., 0, 0], other[..., 1, 1] = 3, 5  # maps that do not meet: the bound of 2 / (H W)
    shown = {"a": attention(other), "b": attention(one)}
    assert attention_gap({"a": one, "b": one}, shown).item() == pytest.approx(2 / 8)


def ready(algorithm: Cbfl, spec: Any = None) -> tuple[Bench, Tensors, Batch]:
    """A net somewhere else than its teacher, what a client has received, and a step's rows with what is drawn."""
    bench = Bench(spec or ResNet8())
    run = lambda fn, given: fn(FlatTrainingTools(bench.net, lambda p: seeds.generator(0, p, 1)), given)  # noqa: E731
    bench.net.train(False)
    server = algorithm.before_round(dict(bench.start), run, bench.context)
    received = {**algorithm.broadcast(server, bench.context), "buffers": server["buffers"]}
    batch = bench.batch(0)
    moved = bench.train(FedAvg(), 0)
    bench.net.load(moved.weights, moved.buffers)
    bench.net.train(True)
    return bench, received, replace(batch, drawn=algorithm.step_randomness(batch.client, len(batch.y), received))


def test_the_loss_by_hand() -> None:
    """Kills: two passes where it should be one, a teacher in training mode, real rows that are distilled, generated
    ones that are classified, weights in the wrong place (eqs. 10 to 13)."""
    algorithm = Cbfl(lam=0.7, beta=30.0, temperature=3.0, **FIELDS)
    bench, received, batch = ready(algorithm)
    fake = images(
        algorithm.spec(bench.net.layout), received["generator"], batch.drawn["noise"].double(), batch.drawn["labels"]
    )
    found = algorithm.loss(bench.net, batch, received, {})
    after = bench.net.buffers.clone()

    moved = bench.train(FedAvg(), 0)
    bench.net.load(moved.weights, moved.buffers)
    names = bench.net.tap_names
    with torch.no_grad():
        bench.net.train(True)
        logits, maps = bench.net.taps(torch.cat((batch.x, fake)), names)
        assert torch.equal(bench.net.buffers, after)  # both halves moved the running statistics
        student = F.log_softmax(logits[12:] / 3, dim=1)
        bench.net.load(received["teacher"], received["teacher_buffers"])
        bench.net.train(False)
        wanted, shown = bench.net.taps(fake, names)
        teacher = F.softmax(wanted / 3, dim=1)
        kd = 9 * (teacher * (teacher.log() - student)).sum(1).mean()
        at = sum(((attention(maps[name][12:]) - attention(shown[name])) ** 2).mean() for name in names)
        by_hand = F.cross_entropy(logits[:12], batch.y) + 0.7 * (kd + 30 * at)
    torch.testing.assert_close(found.detach(), by_hand, rtol=1e-12, atol=0)


@pytest.mark.parametrize("fields", [{}, {"generator": "gaussian_noise"}, {"fake_loss": "ce"}, {"beta": 0.0}])
def test_what_is_made_ahead_is_what_the_loss_makes(fields: dict[str, Any]) -> None:
    """Kills: images or answers of another model; constants that the loss makes once more; one that is missing."""
    algorithm = Cbfl(**fields, **FIELDS)
    bench, received, batch = ready(algorithm)
    made = algorithm.step_constants(bench.net, batch.drawn, received, bench.context)
    ahead = replace(batch, drawn={**batch.drawn, **made})
    alone, found = (algorithm.loss(bench.net, one, received, {}) for one in (batch, ahead))
    assert torch.equal(alone, found)
    without = {name: tensor for name, tensor in received.items() if name not in ("generator", "teacher")}
    assert not algorithm.step_constants(bench.net, batch.drawn, without, bench.context)
    del batch.drawn["noise" if "noise" in batch.drawn else "images"]  # nothing is made again
    assert torch.equal(algorithm.loss(bench.net, ahead, received, {}), found)


@pytest.mark.parametrize("fields", [{"fake_loss": "ce"}, {"fake_loss": "ce", "forward": "separate"}])
def test_the_ablation_without_distillation(fields: dict[str, Any]) -> None:
    """Kills: cross entropy of real rows twice, labels of the wrong half, one pass where two are asked for (Table 7)."""
    algorithm = Cbfl(lam=0.7, **fields, **FIELDS)
    bench, received, batch = ready(algorithm)
    spec = algorithm.spec(bench.net.layout)
    labels = batch.drawn["labels"]
    fake = images(spec, received["generator"], batch.drawn["noise"].double(), labels)
    found = algorithm.loss(bench.net, batch, received, {})
    if "forward" in fields:
        parts = F.cross_entropy(bench.net(batch.x), batch.y), F.cross_entropy(bench.net(fake), labels)
    else:
        logits = bench.net(torch.cat((batch.x, fake)))
        parts = F.cross_entropy(logits[:12], batch.y), F.cross_entropy(logits[12:], labels)
    torch.testing.assert_close(found, parts[0] + 0.7 * parts[1], rtol=1e-12, atol=0)


def test_layers_that_are_compared() -> None:
    """Kills: attention_layers that nobody reads."""
    chosen = ResNet8().build((1, 8, 8), CLASSES).tap_names[:1]
    all_of_them, one, none = (Cbfl(**FIELDS, **fields) for fields in ({}, {"attention_layers": chosen}, {"beta": 0.0}))
    bench, received, batch = ready(all_of_them)
    # running statistics move with each pass, and no loss in training mode depends on them
    losses = [float(which.loss(bench.net, batch, received, {}).detach()) for which in (none, one, all_of_them)]
    assert losses[0] < losses[1] < losses[2]


def test_without_weight_generated_rows_still_reach_batchnorm(tmp_path: Path) -> None:
    """Kills: lambda = 0 that is FedAvg where batches have statistics, or is not where they have none (O-C6)."""
    fedavg = experiment(**TINY_NORM, participation={"count": 3}, rounds=3)
    weightless = staged(1, 3, {"lam": 0.0})
    assert drive(tmp_path / "a", weightless).sha != drive(tmp_path / "b", fedavg).sha
    plain = {"model": {"name": "mlp", "hidden": [12]}}
    fedavg = experiment(**plain, participation={"count": 3}, rounds=3)
    weightless = staged(1, 3, {"lam": 0.0, "gamma": 0.0}, **plain)
    assert drive(tmp_path / "c", weightless).sha == drive(tmp_path / "d", fedavg).sha


@pytest.mark.parametrize("generator", ["cbfl", "gaussian_noise"])
def test_training_changes_neither_teacher_nor_generator(generator: str) -> None:
    """Kills: a teacher that is trained, or whose buffers move; a generator in training mode (O-C7)."""
    algorithm = Cbfl(generator=generator, **FIELDS)  # type: ignore[arg-type]
    bench, received, _ = ready(algorithm)
    before = {name: tensor.clone() for name, tensor in received.items()}
    local = Local(epochs=2, batch_size=4, lr=0.1)
    bench.trainer.train(ClientTask(algorithm, local, 0, bench.parts[0], bench.context, received, {}))
    assert all(torch.equal(received[name], before[name]) for name in before)


def test_what_is_drawn_follows_the_clients_classes() -> None:
    """Kills: labels drawn from the client's own shares, or from another client's; equal draws in two steps."""
    algorithm = Cbfl(**{**FIELDS, "fake_batch": 2000})
    bench = Bench(MLP(hidden=(4,)))
    client = replace(bench.client(0), class_counts=torch.tensor([9, 3, 0, 0]), num_examples=12)
    first, second = (algorithm.step_randomness(client, 4, bench.start) for _ in range(2))
    shares = torch.bincount(first["labels"], minlength=4) / 2000
    torch.testing.assert_close(shares, torch.tensor([0.25, 0.75, 1, 1]) / 3, rtol=0, atol=0.03)
    assert not torch.equal(first["labels"], second["labels"])
    assert not torch.equal(first["noise"], second["noise"])
    assert first["noise"].shape == (2000, 5)


# --- refusals -------------------------------------------------------------------------------------------------


def refused(**fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Experiment(algorithm={"name": "cbfl", **fields}, model={"name": "resnet8"})
    return str(caught.value)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"lam": -1.0}, "algorithm.lam=-1.0: must be at least 0; "),
        ({"refresh": 0}, "algorithm.refresh=0: must be at least 1; for example algorithm.refresh=3"),
        ({"gen_batch": 1}, "algorithm.gen_batch=1: must be at least 2; for example algorithm.gen_batch=256"),
        ({"temperature": 0.0}, "algorithm.temperature=0.0: must be greater than 0; for example"),
        ({"sampler": "fewest"}, "algorithm.fewest=0: must be at least 1 with sampler=fewest, and 0 with any other; "),
        ({"fewest": 3}, "algorithm.fewest=3: must be at least 1 with sampler=fewest, and 0 with any other; "),
        ({"fake_loss": "ce", "generator": "dcgan"}, "algorithm.fake_loss=ce: is not for generator=dcgan; set it to "),
        ({"sampler": "exact", "generator": "gaussian_noise"}, "algorithm.sampler=exact: is not for generator=gaussian"),
        (
            {"attention_layers": ["body.units.0"], "beta": 0.0},
            "algorithm.attention_layers=('body.units.0',): names ",
        ),
        ({"gen_scope": "client"}, "algorithm.gen_scope=client: trains against the model just received, which is "),
        ({"attention_layers": ["body.unit9"]}, "algorithm.attention_layers=body.unit9: is no block of model.name="),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused(fields: dict[str, Any], wanted: str) -> None:
    """Kills: a setting that fails in mid-run, or is ignored."""
    assert refused(**fields).startswith(wanted)


def test_refused_by_the_data(tmp_path: Path) -> None:
    """Kills: more rarest classes than there are, which is another name for all of them; chances that are no number."""
    with pytest.raises(ConfigError, match=r"^algorithm.fewest=5: must be at most 4, the data's classes; set "):
        drive(tmp_path, staged(1, 2, {"sampler": "fewest", "fewest": 5}))
    bench = Bench(MLP(hidden=(4,)))
    one = replace(bench.context, layout=replace(bench.net.layout, classes=1))
    with pytest.raises(ConfigError, match=r"^algorithm.name=cbfl: balances classes, and the data have one; "):
        Cbfl().prepare(bench.start, None, one)  # type: ignore[arg-type]


def test_refused_full_batches() -> None:
    """Kills: generated rows that come once for each part of a full batch."""
    with pytest.raises(ConfigError, match=r"^local.batch_size=full: has no size that generated rows could be beside; "):
        Experiment(algorithm={"name": "cbfl"}, model={"name": "resnet8"}, local={"batch_size": "full"})


def test_a_warm_up_of_nothing_before_nothing() -> None:
    """Kills: a repair that the user has followed already."""
    stages = [
        {"name": "warmup", "rounds": 0},
        {"name": "end", "rounds": 0, "needs": ["warmup"], "algorithm": {"name": "ccvr"}},
    ]
    with pytest.raises(ConfigError, match=r"^stages.warmup.rounds=0: leaves nothing trained that stage end could "):
        Experiment(stages=stages)


def test_refused_without_batchnorm_or_without_rounds() -> None:
    """Kills: statistics of a model that has none; a warm-up that leaves no round."""
    with pytest.raises(ConfigError, match=r"^algorithm.gamma=10.0: weighs BatchNorm's statistics, and model.name=mlp "):
        Experiment(algorithm={"name": "cbfl"})
    Experiment(algorithm={"name": "cbfl", "gamma": 0.0})
    with pytest.raises(ConfigError, match=r"^algorithm.beta=400.0: weighs attention maps, and model.name=logistic "):
        Experiment(algorithm={"name": "cbfl", "gamma": 0.0}, model={"name": "logistic"})
    with pytest.raises(ConfigError, match=r"^stages.cbfl.rounds=0: leaves no round for cbfl .*; lower R_w below R$"):
        staged(3, 3)
    with pytest.raises(ConfigError, match=r"^stages.cbfl.rounds=-1: must be at least 0; .* lower R_w below R$"):
        staged(4, 3)


@pytest.mark.parametrize("field", ["generator", "noise", "gen_width", "teacher"])
def test_a_generator_in_use_cannot_change(field: str) -> None:
    """Kills: a schedule by which the generator's numbers are read as another network's."""
    value = {"generator": "gaussian_noise", "noise": 7, "gen_width": 6, "teacher": "current"}[field]
    with pytest.raises(ConfigError, match=rf"algorithm.{field}={value}: cannot change within a stage"):
        Experiment(
            algorithm={"name": "cbfl"},
            model={"name": "resnet8"},
            rounds=4,
            schedule=[{"round": 3, "set": {f"algorithm.{field}": value}}],
        )
