"""Test rows scored batch by batch, in one answer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from algorithms.fedavg import FedAvg
from tests.support.tiny import experiment, open_driver

WAITS = ("_local_scalar_dense", "nonzero", "bincount", "index", "_unique2")  # for a GPU, to know numbers or sizes


class Waits(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in WAITS:
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


def test_batches_are_summed_where_they_are(tmp_path: Path) -> None:
    """Kills: a wait for each batch; a class's hits counted to another; a loss that is added in another order."""
    driver = open_driver(tmp_path, experiment(evaluation={"batch_size": 7}))
    worker: Any = driver.pool._workers[0]  # type: ignore[attr-defined]
    server = driver.lineage.server
    worker.receive({name: server[name] for name in ("weights", "buffers")})
    with Waits() as waits:
        scores = worker.evaluate(FedAvg(), 3, 30)
    assert sum(waits.counted.values()) <= 1, waits.counted
    loss, correct, count = 0.0, Counter[int](), Counter[int]()
    for rows in torch.arange(3, 30).split(7):
        x, y = worker.test.batch(rows)
        logits = worker.net.model(x).detach()
        loss += float(F.cross_entropy(logits.double(), y, reduction="sum"))
        count.update(y.tolist())
        correct.update(
            label for label, asked in zip(y.tolist(), logits.argmax(1).tolist(), strict=True) if label == asked
        )
    classes = range(worker.net.layout.classes)
    assert scores.loss == loss
    assert scores.correct == [correct[label] for label in classes]
    assert scores.count == [count[label] for label in classes]
    driver.close()
