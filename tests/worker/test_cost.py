"""Expected work against what training does."""

from __future__ import annotations

from typing import Any

from engine.algorithm import Phase
from engine.experiment import Local
from engine.worker.cost import FORWARD, ROWS_PER_STEP, Work, forward, total, training
from tests.support.loops import each
from tests.support.phases import spied

ROWS = 12  # of the client that is spied on
ONCE = 1  # its loading and its upload, in steps

LIVE: list[tuple[tuple[Phase, ...], dict[str, Any]]] = [
    ((Phase(),), {"epochs": 2, "batch_size": 5}),
    ((Phase(),), {"epochs": 2, "batch_size": 5, "last_batch": "drop"}),
    ((Phase(),), {"epochs": 2, "batch_size": 5, "last_batch": "wrap"}),
    ((Phase(),), {"batch_size": 13, "last_batch": "drop"}),
    ((Phase(),), {"steps": 6, "batch_size": 4}),
    ((Phase(),), {"epochs": 3, "batch_size": "full"}),
    ((Phase(epochs=0),), {"epochs": 3}),
    ((Phase(),), {"epochs": 0.5, "batch_size": 5}),
    ((Phase(),), {"epochs": 1.5, "batch_size": 5, "last_batch": "drop"}),
    ((Phase(epochs=1.1, repeat=2),), {"batch_size": 5}),
    ((Phase(),), {"steps": 5, "batch_size": 5}),
    ((Phase(steps=9, repeat=3),), {"epochs": 3, "batch_size": 4}),
    ((Phase(epochs=2, repeat=3, trainable="body"),), {"batch_size": 5}),
    ((Phase(batch="full", emit="gradient", epochs=4), Phase()), {"batch_size": 5}),
    ((Phase(emit="gradient"),), {"batch_size": 6}),
    ((Phase(rows="support", support=0.25), Phase(rows="query", support=0.25, epochs=2)), {"batch_size": 2}),
    ((Phase(rows="support", support=0.0), Phase(rows="query", support=0.0)), {"batch_size": 5}),
    ((Phase(rows="support", support=1.0), Phase(rows="query", support=1.0)), {"batch_size": 5}),
]


@each("phases, local", LIVE)
def test_work_is_what_training_does(phases: tuple[Phase, ...], local: dict[str, Any]) -> None:
    """Kills: steps, epochs, repeats, short batches or parts of the rows that count otherwise than they are taken."""
    seen = [len(rows) for _, rows in spied(*phases, **local).seen]
    expected = training(phases, Local(**local), ROWS)
    assert (expected.steps, expected.rows) == (ONCE + len(seen), sum(seen))


def test_a_frozen_body_is_only_passed_forward() -> None:
    """Kills: steps at a head that cost what steps of everything do; features that are computed at each of them."""
    local = Local(batch_size=4)
    assert training((Phase(epochs=2, trainable="head"),), local, ROWS) == Work(ONCE + 6 * FORWARD, 24 * FORWARD)
    cached = training((Phase(epochs=2, trainable="head", features="cached"),), local, ROWS)
    assert cached == Work(ONCE + 6 * FORWARD, 12 * FORWARD)
    assert forward(9) == Work(0, 3)


def test_cost_is_of_steps_and_rows() -> None:
    """Kills: rows alone, by which clients that take as many steps differ by their rows; steps alone, by which a full
    batch costs what a row does; the sum of something else than all clients of a block."""
    work = total([training((Phase(),), Local(batch_size=32), rows) for rows in (64, 1)])
    assert work == Work(2 * ONCE + 2 + 1, 65)
    assert work.cost("cpu") == 5 + 65 / ROWS_PER_STEP["cpu"]
    assert work.cost("cuda") == 5 + 65 / ROWS_PER_STEP["cuda"]
    assert training((Phase(),), Local(), 0) == Work(ONCE)
    assert total([]) == Work()
