"""What travels and what is kept, counted by the engine, against the formulas of spec table 0.6.

A new algorithm adds a row to TABLE: functions of the numbers of weights d and of buffers b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import LocalRun, PostTraining, Tensors
from tests.support.tiny import CLASSES, SIZES, TINY_NORM, assignment, dataset, drive, experiment

pytestmark = pytest.mark.usefixtures("tiny_norm")
Count = Callable[[int, int], int]


# Numbers of tests/support/tiny.py's quick generator: linear, three convolutions, three norms, moments of four;
# its embedding.
DCGAN = 6 * 16 + (37 * 4 + 37 * 2 + 19) + 2 * (4 + 4 + 2) + 2 * (4 + 4 + 2 + 1)
GENERATOR = DCGAN + CLASSES * 5
HEAD_ROW = 16 + 1  # numbers of the head of ``TINY_NORM``'s model for a class


def model(d: int, b: int) -> int:
    return d + b


def nothing(d: int, b: int) -> int:
    return 0


def prototypes(d: int, b: int) -> int:
    return CLASSES * (16 + 1)


def body(d: int, b: int) -> int:
    return d - CLASSES * HEAD_ROW + b


def head(d: int, b: int) -> int:
    return CLASSES * HEAD_ROW


@dataclass(frozen=True)
class Row:
    """Numbers per client and round, and kept: d weights (a projection included, where there is one), b buffers."""

    down: Count = model
    up: Count = model
    client: Count = nothing  # kept by a client that has taken part
    per_class: int = 0  # kept by a client beside that, for each class of its rows
    server: Count = nothing  # kept by the server beside weights and buffers
    fields: dict[str, Any] = field(default_factory=dict)


TABLE: list[tuple[str, Row]] = [
    ("fedavg", Row()),
    ("fedprox", Row()),
    ("fedavgm", Row(server=lambda d, b: d)),
    (
        "scaffold",
        Row(
            down=lambda d, b: 2 * d + b,
            up=lambda d, b: 2 * d + b,
            client=lambda d, b: d,
            server=lambda d, b: d,
        ),
    ),
    # One number more, a_k (O-N5); the server notes tau_eff.
    ("fednova", Row(up=lambda d, b: d + b + 1, server=lambda d, b: 1)),
    ("fednova", Row(up=lambda d, b: d + b + 1, server=lambda d, b: d + 1, fields={"server_momentum": 0.9})),
    ("fednova", Row(up=lambda d, b: d + b + 2, server=lambda d, b: 2, fields={"max_multiplier": 2.0})),
    ("moon", Row(client=lambda d, b: d + b)),
    ("moon", Row(client=lambda d, b: 2 * (d + b), fields={"buffer": 2})),
    (
        "feddc",
        Row(
            down=lambda d, b: 2 * d + b,
            up=lambda d, b: 2 * d + b,
            client=lambda d, b: 2 * d,
            server=lambda d, b: 2 * d,
        ),
    ),
    # What is exchanged once is counted apart: test_fedmix.py. The server keeps an average of each of the 8 clients.
    ("fedmix", Row(server=lambda d, b: 8 * (64 + CLASSES))),
    ("naivemix", Row(server=lambda d, b: 8 * (64 + CLASSES))),
    ("mixup_local", Row()),
    # As FedAvg (O-C11): the server's generator and frozen model are not counted.
    ("cbfl", Row(server=lambda d, b: d + b + GENERATOR)),
    ("cbfl", Row(fields={"teacher": "current", "gen_scope": "client"})),
    ("cbfl", Row(server=model, fields={"generator": "gaussian_noise"})),
    (
        "cbfl",
        Row(down=lambda d, b: d + b + DCGAN, server=lambda d, b: d + b + 8 * DCGAN, fields={"generator": "dcgan"}),
    ),
    ("fedser", Row()),  # O-R8
    ("feddyn", Row(client=lambda d, b: d, server=lambda d, b: d)),  # g_k, and h
    ("fedadam", Row(server=lambda d, b: 2 * d)),  # two moments
    ("fedyogi", Row(server=lambda d, b: 2 * d)),
    # A direction down and a number up, a_k; the server keeps the direction.
    ("fedcm", Row(down=lambda d, b: 2 * d + b, up=lambda d, b: d + b + 1, server=lambda d, b: d)),
    ("fedacg", Row(server=lambda d, b: d)),
    # A squared norm up; the server keeps eta and the weights that clients start from.
    ("fedexp", Row(up=lambda d, b: d + b + 1, server=lambda d, b: d + 1)),
    ("qfedavg", Row(up=lambda d, b: d + b + 1)),  # h_k
    ("feddecorr", Row()),
    ("fedetf", Row()),
    ("fedntd", Row()),
    ("fedlc", Row()),
    ("fedsam", Row()),
    ("fedala", Row(client=lambda d, b: 2 * d)),  # its last weights, and their mix
    # Two models down; one up with its number and the client's rows.
    ("ifca", Row(down=lambda d, b: 2 * d + b, up=lambda d, b: d + b + 2, server=lambda d, b: 2 * d)),
    ("fedrs", Row()),
    # Prototypes of the classes, and which there are, or their weights; weights travel once.
    ("fedproto", Row(prototypes, prototypes, client=model, server=prototypes)),
    ("fedrod", Row(client=head)),  # its head has all rows
    # BatchNorm has as many scales and shifts as running statistics, all of them a client's own.
    ("fedbn", Row(down=lambda d, b: d - b, up=lambda d, b: d - b, client=lambda d, b: 2 * b)),
    ("clsprox", Row()),
    ("clsnorm", Row()),
    # A gradient of the body; the server keeps Adam's two moments of it and counts its steps.
    ("pflego", Row(body, body, per_class=HEAD_ROW, server=lambda d, b: 2 * body(d, 0) + 1, fields={"tau": 2})),
    ("pflego", Row(body, body, per_class=HEAD_ROW, fields={"tau": 2, "server_optimizer": "sgd"})),
    ("fedper", Row(body, body, per_class=HEAD_ROW)),
    # Its head travels, without statistics; a client keeps all else.
    ("lg_fedavg", Row(head, head, client=body)),
    ("fedavg_local", Row()),
    ("local", Row(down=nothing, up=nothing, client=model)),  # all start from what was sent once: test_local.py
    ("ditto", Row(client=model)),
    ("apfl", Row(client=lambda d, b: d + b + 1)),  # v_k and alpha_k
    ("pfedme", Row(client=model, fields={"local_rounds": 2})),
    ("perfedavg", Row()),
    # calibration spec 0.2, without the count, which the simulation has
    ("fedrep", Row(down=body, up=body, per_class=HEAD_ROW)),
    ("fedbabu", Row(down=body, up=body)),  # its head travels once: test_fedbabu.py
    ("fedbabu", Row(fields={"train_head": True})),
    ("fedrecon", Row(down=body, up=body)),
    ("fedrecon", Row(down=body, up=body, per_class=HEAD_ROW, fields={"reset_head": False})),
    (
        "fedrecon",
        Row(
            down=body,
            up=body,
            server=lambda d, b: 2 * body(d, 0) + 1,  # two moments and a count of steps
            fields={"grad_only": True, "server_optimizer": "adam", "server_lr": 0.003},
        ),
    ),
]


def check_messages(folder: Path, name: str, row: Row) -> None:
    config = experiment(algorithm={"name": name, **row.fields}, **TINY_NORM, rounds=2)
    run = drive(folder, config)
    layout = run.driver.layout
    clients = run.folder.frame("clients")
    kept = [run.driver.lineage.states.store.read([client])[0] or {} for client in range(len(SIZES))]
    extra = [tensor for key, tensor in run.server.items() if key not in ("weights", "buffers")]
    counted = {
        "down": set(clients["floats_down"]),
        "up": set(clients["floats_up"]),
        "server": {sum(tensor.numel() for tensor in extra)},
    }
    wanted = {key: {getattr(row, key)(layout.size, layout.buffers)} for key in counted}
    assert counted == wanted
    classes = (assignment(SIZES).class_counts(dataset().train.labels, CLASSES) > 0).sum(axis=1)
    assert [sum(tensor.numel() for tensor in state.values()) for state in kept] == [
        row.client(layout.size, layout.buffers) + row.per_class * number for number in classes
    ]
    rounds = run.folder.frame("rounds")
    assert rounds["floats_up"].tolist() == clients.groupby("round")["floats_up"].sum().tolist()
    assert rounds["floats_down"].tolist() == clients.groupby("round")["floats_down"].sum().tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row"), TABLE, ids=lambda value: value if isinstance(value, str) else "")
def test_floats_are_those_of_the_table(tmp_path: Path, name: str, row: Row) -> None:
    """Kills: an upload, a broadcast or a state that carries more than the method needs."""
    check_messages(tmp_path, name, row)


def test_every_algorithm_has_its_row() -> None:
    """Kills: an algorithm whose traffic nobody has looked at."""
    # What is sent without rounds: test_ccvr.py, test_answers.py.
    rounds = {name for name in ALGORITHMS if not issubclass(ALGORITHMS[name], PostTraining)}
    assert {name for name, _ in TABLE} == rounds


class Chatty(FedAvg):
    """A mutant: sends its weights twice."""

    entries = {**FedAvg.entries, "again": FedAvg.entries["weights"]}  # noqa: RUF012

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"weights": run.end, "again": torch.clone(run.end)}, state


def test_an_upload_too_many_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "fedavg", Chatty)
    with pytest.raises(AssertionError):
        check_messages(tmp_path, "fedavg", Row())
