"""FedAvg on local labels: PFLEGO's baseline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from algorithms.fedavg_local import FedAvgLocal
from engine.data import Assignment
from engine.models import MLP
from tests.support.bench import Bench
from tests.support.tiny import CLASSES, dataset, drive, experiment


def test_with_every_class_everywhere_it_is_fedavg(tmp_path: Path) -> None:
    """Kills: local labels in another order than the global one."""
    order = np.argsort(dataset().train.labels, kind="stable")
    parts = Assignment(tuple(np.sort(order[first::5]) for first in range(5)))  # each has all classes
    shas = {
        name: drive(tmp_path / name, experiment(algorithm={"name": name}), parts=parts).sha
        for name in ("fedavg", "fedavg_local")
    }
    assert shas["fedavg"] == shas["fedavg_local"]


def test_labels_are_the_clients_own() -> None:
    """Kills: a loss on global labels; by hand for a client with the classes 1 and 3: they are rows 0 and 1."""
    bench = Bench(MLP(hidden=(5,)))
    labels = bench.rows.train.labels[bench.parts[1]]
    bench.relabel(1, np.where(labels % 2, 1, 3))
    batch, algorithm = bench.batch(1), FedAvgLocal()
    loss = algorithm.loss(bench.net, batch, {}, {})
    wanted = F.cross_entropy(bench.net(batch.x)[:, :2], (batch.y == 3).long())
    torch.testing.assert_close(loss, wanted)
    guesses = algorithm.predict_own(bench.net, batch.x, bench.client(1)).argmax(1)
    assert torch.equal(guesses == 3, bench.net(batch.x)[:, :2].argmax(1) == 1)
    assert set(guesses.tolist()) <= {1, 3}


def test_rows_beyond_a_clients_classes_do_not_move(tmp_path: Path) -> None:
    """Kills: a softmax over all rows of the head."""
    labels = dataset().train.labels
    parts = Assignment(tuple(np.flatnonzero((labels == one) | (labels == one + 1))[:20] for one in range(3)))
    run = drive(tmp_path, experiment(algorithm={"name": "fedavg_local"}), parts=parts)
    layout = run.driver.layout
    before, after = (layout.head_of(w) for w in (run.driver.federation.fresh["weights"], run.server["weights"]))
    # Each client has two of the four classes, so the last two rows belong to nobody.
    width, two = layout.features, CLASSES - 2
    rest = torch.ones(layout.head, dtype=torch.bool)
    rest[: two * width] = rest[CLASSES * width : CLASSES * width + two] = False
    assert torch.equal(before[rest], after[rest])
    assert not torch.equal(before[~rest], after[~rest])


def test_the_headline_is_of_clients_own_models(tmp_path: Path) -> None:
    """Kills: a headline of the global model, which means nothing here."""
    run = drive(tmp_path, experiment(algorithm={"name": "fedavg_local"}))
    assert set(run.folder.frame("evaluations")["scope"]) == {"personal"}
