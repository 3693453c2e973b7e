"""Test rows scored batch by batch, in one answer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from algorithms.fedavg import FedAvg
from engine.algorithm import Net
from engine.base.errors import RunError
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


@dataclass(frozen=True)
class Wider(FedAvg):
    """Predicts a class more than there are."""

    def predict(self, net: Net, x: Tensor) -> Tensor:
        return F.pad(net(x), (0, 1))


@dataclass(frozen=True)
class Failing(FedAvg):
    def predict(self, net: Net, x: Tensor) -> Tensor:
        raise AttributeError("no")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            Wider,
            r"^predictions are scores of shape \[7, 5\] for 7 rows and 4 classes; return one for each row and class$",
        ),
        (Failing, r"^test rows 3 to 29: AttributeError: no$"),
    ],
)
def test_predictions_that_are_none_are_told(kind: type[FedAvg], told: str, tmp_path: Path) -> None:
    """Kills: a score too many, by which rows are counted of the next class; an own method's bare error."""
    driver = open_driver(tmp_path, experiment(evaluation={"batch_size": 7}))
    worker: Any = driver.pool._workers[0]  # type: ignore[attr-defined]
    server = driver.lineage.server
    worker.receive({name: server[name] for name in ("weights", "buffers")})
    with pytest.raises(RunError, match=told):
        worker.evaluate(kind(), 3, 30)
    driver.close()


def test_batches_are_summed_where_they_are(tmp_path: Path) -> None:
    """Kills: a wait for each batch; a class's hits counted to another; a loss that is added in another order; a
    Brier score or a confidence of the logits."""
    driver = open_driver(tmp_path, experiment(evaluation={"batch_size": 7}))
    worker: Any = driver.pool._workers[0]  # type: ignore[attr-defined]
    server = driver.lineage.server
    worker.receive({name: server[name] for name in ("weights", "buffers")})
    with Waits() as waits:
        scores = worker.evaluate(FedAvg(), 3, 30)
    assert sum(waits.counted.values()) <= 1, waits.counted
    loss, brier, confidence, correct, count = 0.0, 0.0, list[float](), Counter[int](), Counter[int]()
    for rows in torch.arange(3, 30).split(7):
        x, y = worker.test.batch(rows)
        logits = worker.net.model(x).detach()
        loss += float(F.cross_entropy(logits.double(), y, reduction="sum"))
        count.update(y.tolist())
        correct.update(
            label for label, asked in zip(y.tolist(), logits.argmax(1).tolist(), strict=True) if label == asked
        )
        shares = torch.softmax(logits.double(), 1)
        brier += float((shares - F.one_hot(y, shares.shape[1])).square().sum())
        confidence += shares.max(1).values.tolist()
    classes = range(worker.net.layout.classes)
    assert abs(scores.brier - brier) < 1e-12
    assert abs(sum(scores.bins[1]) - sum(confidence)) < 1e-12
    assert sum(scores.bins[0]) == 27 and sum(scores.bins[2]) == sum(correct.values())
    assert scores.loss == loss
    assert scores.by_class()[:2].tolist() == [[of[label] for label in classes] for of in (correct, count)]
    driver.close()
