"""Several phases: batches that are repeated, parts of the rows, draws apart, where each starts and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.fedavg import FedAvg
from engine.algorithm import Client, Context, LocalRun, ModelState, Phase, PhaseResult, Tensors, batches_in
from engine.algorithm.personalised import personal_model
from engine.client.steps.client_round import ClientProgress, ClientTask
from engine.client.steps.training_loop import SequentialLoop
from engine.experiment import Local
from engine.models import MLP, ResNet8
from tests.support.bench import Bench
from tests.support.phases import Spy, spied

# --- rows ---------------------------------------------------------------------------------------------


def test_a_repeated_batch_is_followed_by_the_next() -> None:
    """Kills: a pass that is repeated, a batch that is drawn anew; epochs counted by steps, steps by batches."""
    plain = spied(Phase(epochs=2)).rows_of("")
    assert [len(rows) for rows in plain] == [5, 5, 2] * 2
    assert spied(Phase(epochs=2, repeat=3)).rows_of("") == [rows for rows in plain for _ in range(3)]
    assert spied(Phase(steps=7, repeat=3)).rows_of("") == [plain[number // 3] for number in range(7)]
    assert spied(Phase(repeat=2), epochs=1).rows_of("") == [rows for rows in plain[:3] for _ in range(2)]
    whole = spied(Phase(batch="full", epochs=2, repeat=2)).rows_of("")
    assert len(whole) == 4
    assert [len(rows) for rows, _ in groupby(whole)] == [12]


@pytest.mark.parametrize(
    ("epochs", "sizes"),
    [
        (0.01, [5]),
        (0.3, [5]),
        (0.34, [5, 5]),
        (0.5, [5, 5]),
        (1, [5, 5, 2]),
        (1.1, [5, 5, 2, 5]),
        (1.5, [5, 5, 2, 5, 5]),
        (2.7, [5, 5, 2] * 3),
    ],
)
def test_a_share_of_an_epoch_is_its_first_batches(epochs: float, sizes: list[int]) -> None:
    """Kills: a floor, which leaves a client without a step; a pass begun that is taken whole, or left out; batches
    that are others than those of whole epochs."""
    plain = spied(Phase(epochs=3)).rows_of("")
    of_phase = spied(Phase(epochs=epochs)).rows_of("")
    assert [len(rows) for rows in of_phase] == sizes
    assert of_phase == plain[: len(sizes)]
    assert spied(Phase(), epochs=epochs).rows_of("") == of_phase
    repeated = spied(Phase(epochs=epochs, repeat=2)).rows_of("")
    assert repeated == [rows for rows in of_phase for _ in range(2)]
    full = spied(Phase(epochs=epochs, batch="full")).rows_of("")
    assert [len(rows) for rows in full] == [12] * -(-len(sizes) // 3)


def test_batches_of_epochs_are_counted_in_decimals() -> None:
    """Kills: a product of floats, by which 0.1 of 30 batches are 4; whole epochs beyond what floats tell apart."""
    assert [batches_in(share, 30) for share in (0.1, 0.7, 1.1, 0.11)] == [3, 21, 33, 4]
    assert [batches_in(share, 10) for share in (0.1, 0.29, 0.2)] == [1, 3, 2]
    assert batches_in(0.5, 0) == batches_in(0, 7) == 0
    assert batches_in(2**62 + 1, 3) == 3 * (2**62 + 1)


def test_no_epochs_draw_nothing() -> None:
    """Kills: an order that is drawn for a phase without a pass, so that a later one has others."""
    assert spied(Phase(epochs=0), Phase(epochs=1)).rows_of("") == spied(Phase(epochs=1)).rows_of("")


@pytest.mark.parametrize(("support", "sizes"), [(0.5, [6, 6]), (0.25, [3, 9]), (0.0, [0, 12]), (1.0, [11, 1])])
def test_support_has_its_share(support: float, sizes: list[int]) -> None:
    """Kills: halves whatever is asked for, the shares of the one and of the other exchanged."""
    phases = (Phase(name=part, rows=part, support=support, batch="full", epochs=1) for part in ("support", "query"))
    spy = spied(*phases)
    rows = [[*chain.from_iterable(spy.rows_of(part))] for part in ("support", "query")]
    assert [len(part) for part in rows] == sizes
    assert len(set(rows[0] + rows[1])) == 12


def test_support_is_one_draw_a_round() -> None:
    """Kills: parts that are drawn by the phase, so that they would overlap or depend on its name."""

    def support(*names: str) -> list[set[int]]:
        spy = spied(*(Phase(name=name, rows="support", batch="full", epochs=1) for name in names))
        return [set(rows) for _, rows in spy.seen]

    one, other, unnamed = support("one", "other", "")
    assert one == other == unnamed
    assert support("other", "one") == [one, one]


# --- draws --------------------------------------------------------------------------------------------


def test_a_phase_with_a_name_draws_apart() -> None:
    """Kills: one stream, from which an earlier phase takes the batches of a later one."""
    alone = spied(Phase(epochs=2)).rows_of("")
    spy = spied(Phase(name="first", epochs=3), Phase(epochs=2), Phase(name="last", epochs=1))
    assert spy.rows_of("") == alone
    assert spy.rows_of("first")[:3] != alone[:3]
    assert spy.rows_of("last") != spy.rows_of("first")[:3]
    assert spied(Phase(name="first", epochs=3)).rows_of("first") == spy.rows_of("first")


def test_phases_of_one_name_go_on_in_one_stream() -> None:
    """Kills: the same batches in each of them."""
    once = spied(Phase(name="again", epochs=2)).rows_of("again")
    assert spied(*[Phase(name="again", epochs=1)] * 2).rows_of("again") == once
    assert once[:3] != once[3:]


def test_an_algorithms_own_draws_are_apart_too() -> None:
    """Kills: a name that is only the batches'."""
    drawn: list[tuple[str, int]] = []

    class Drawing(Spy):
        def step_randomness(self, client: Client, rows: int, received: Tensors) -> dict[str, Any]:
            drawn.append((client.phase, int(torch.randint(10**9, (), generator=client.rng("own")))))
            return {}

    phases = (Phase(name="a", steps=2), Phase(steps=2))
    for wanted in (phases, phases[1:]):
        Bench(MLP(hidden=(4,))).train(Drawing(wanted=wanted), 0)
    assert [name for name, _ in drawn] == ["a", "a", "", "", "", ""]
    assert drawn[2:4] == drawn[4:]
    assert drawn[:2] != [("a", number) for _, number in drawn[2:4]]


# --- where a phase starts, and what it ends with ------------------------------------------------------


Entry = ModelState | Tensor | None


@dataclass(frozen=True)
class Entering(Spy):
    """Notes each entry; ``entry`` says where the phase starts."""

    entry: Callable[[PhaseResult, Tensors, Client], Entry] = lambda previous, received, client: None
    entered: list[tuple[str, PhaseResult]] = field(default_factory=list)
    run: list[LocalRun] = field(default_factory=list)

    def phase_start(self, previous: PhaseResult, received: Tensors, state: Tensors, client: Client) -> Entry:
        self.entered.append((client.phase, previous))
        return self.entry(previous, received, client)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        self.run.append(run)
        return super().upload(run, received, state)


THREE = (Phase(name="a", steps=2), Phase(steps=1), Phase(name="b", steps=2))


def test_phases_follow_each_other() -> None:
    """Kills: an entry to the first phase, an end that is the start, statistics of another moment, views of a net that
    goes on; ends of phases without a name."""
    bench, entering = Bench(ResNet8()), Entering(wanted=THREE)
    bench.train(entering, 0)
    (run,) = entering.run
    assert [name for name, _ in entering.entered] == ["", "b"]
    first, second = (previous for _, previous in entering.entered)
    assert list(run.ends) == ["a", "b"]
    for field_name in ("start", "end", "buffers"):
        assert torch.equal(getattr(run.ends["a"], field_name), getattr(first, field_name))
    assert torch.equal(first.start, bench.start["weights"])
    assert torch.equal(first.end, second.start)
    assert torch.equal(second.end, run.ends["b"].start)
    assert torch.equal(run.ends["b"].end, run.end)
    assert torch.equal(run.ends["b"].buffers, run.buffers)
    buffers = [bench.start["buffers"], first.buffers, second.buffers, run.buffers]
    weights = [first.start, first.end, second.end, run.end]
    for moments in (buffers, weights):
        assert all(not torch.equal(one, other) for one, other in pairwise(moments))
    assert run.steps == 5
    plain = Entering(wanted=(Phase(name="a", steps=2),))
    Bench(ResNet8()).train(plain, 0)
    assert torch.equal(plain.run[0].end, first.end)


@pytest.mark.parametrize("with_buffers", [False, True])
def test_a_phase_starts_where_it_is_told_to(with_buffers: bool) -> None:
    """Kills: an entry that is not loaded, statistics that are reset unasked, or kept where others are given."""

    def entry(previous: PhaseResult, received: Tensors, client: Client) -> Entry:
        given = previous.start + 2 * (previous.end - previous.start)
        return ModelState(given, received["buffers"]) if with_buffers else given

    bench, entering = Bench(ResNet8()), Entering(wanted=(*THREE[:1], Phase(name="b", steps=0)), entry=entry)
    trained = bench.train(entering, 0)
    (run,) = entering.run
    before = run.ends["a"]
    assert torch.equal(run.ends["b"].start, before.start + 2 * (before.end - before.start))
    assert torch.equal(trained.weights, run.ends["b"].start)
    assert torch.equal(trained.buffers, bench.start["buffers"] if with_buffers else before.buffers)
    assert not torch.equal(before.buffers, bench.start["buffers"])


def test_of_phases_of_one_name_the_last_end_is_kept() -> None:
    """Kills: the first one's."""
    entering = Entering(wanted=(Phase(name="a", steps=1),) * 3)
    Bench(MLP(hidden=(4,))).train(entering, 0)
    (run,) = entering.run
    assert torch.equal(run.ends["a"].end, run.end)
    assert torch.equal(run.ends["a"].start, entering.entered[-1][1].end)


def test_another_model_has_its_own_losses() -> None:
    """Kills: losses before and after of two models: those of the one that the round ends with are plain FedAvg's."""
    bench = Bench(MLP(hidden=(4,)))

    def losses(algorithm: FedAvg) -> tuple[float | None, float | None]:
        received = {"weights": bench.start["weights"], "buffers": bench.start["buffers"]}
        about = (Local(batch_size=5, epochs=2), 0, bench.parts[0], bench.context, received, {})
        trained = bench.trainer.train(ClientTask(algorithm, *about, newcomer=True), probe=True)
        return trained.loss_before, trained.loss_after

    plain = losses(FedAvg())
    aside = Phase(name="aside", lr=0.5)
    anew = Entering(
        wanted=(aside, Phase()),
        entry=lambda previous, received, client: ModelState(received["weights"], received["buffers"]),
    )
    assert losses(anew) == plain
    on = Entering(wanted=(aside, Phase()))
    assert losses(on)[0] == losses(Entering(wanted=(aside,)))[0]  # one model: where it all began
    assert losses(on)[1] != plain[1]


def test_a_round_starts_from_the_buffers_that_are_given() -> None:
    """Kills: weights of one model with statistics of another."""

    class Own(FedAvg):
        def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
            return ModelState(received["weights"], received["buffers"] + 3)

        def phases(self, context: Context) -> tuple[Phase, ...]:
            return (Phase(steps=0),)

    bench = Bench(ResNet8())
    trained = bench.train(Own(), 0)
    assert torch.equal(trained.buffers, bench.start["buffers"] + 3)
    assert torch.equal(trained.personal.buffers, trained.buffers)
    client, received = bench.client(0), dict(bench.start)
    assert torch.equal(personal_model(Own(), received, {}, client).buffers, bench.start["buffers"] + 3)


def test_buffers_that_are_not_shared_are_not_sent() -> None:
    """Kills: statistics in the mean of an algorithm that keeps them on clients."""

    class Own(FedAvg):
        shares_buffers = False

    trained = Bench(ResNet8()).train(Own(), 0)
    assert len(trained.buffers) == 0
    assert len(trained.personal.buffers) > 0


@pytest.mark.parametrize("part", ["all", "body", "head"])
def test_the_gradient_knows_where_its_phase_began(part: Any) -> None:
    """Kills: the start of the round for that of the phase, whole vectors beside slices."""
    gaps: list[tuple[str, float]] = []

    class Pulled(FedAvg):
        def gradient(self, grad: Tensor, weights: Tensor, received: Tensors, state: Tensors, client: Client) -> Tensor:
            gaps.append((client.phase, float((weights - received["phase_start"]).norm())))
            assert len(received["phase_start"]) == client.context.layout.size
            return grad

        def phases(self, context: Context) -> tuple[Phase, ...]:
            return tuple(
                replace(phase, trainable=part) for phase in (Phase(name="a", steps=2), Phase(name="b", steps=2))
            )

    received = dict(Bench(MLP(hidden=(4,))).start)
    Bench(MLP(hidden=(4,))).train(Pulled(), 0)
    assert [(name, gap == 0) for name, gap in gaps] == [("a", True), ("a", False), ("b", True), ("b", False)]
    assert "phase_start" not in received


def test_nothing_is_remembered_that_nobody_asks_for() -> None:
    """Kills: copies of a whole model for each phase of an algorithm that has no use for them."""
    bench = Bench(MLP(hidden=(4,)))
    client, trainer = bench.client(0), bench.trainer
    task = ClientTask(FedAvg(), Local(batch_size=5), 0, bench.parts[0], client.context, bench.start, {})
    progress = ClientProgress(task, client, bench.start, {}, ModelState(*bench.start.values()))
    loop = SequentialLoop(trainer.net, trainer.rows, trainer.forward, progress)
    loop.run_all((Phase(steps=1), Phase(steps=1)))
    assert loop._start is None
    assert progress.previous is None
    assert progress.ends == {}
