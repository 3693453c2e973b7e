"""What holds for what clients keep, whatever the algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import ALGORITHMS
from engine.algorithm import Kind
from engine.models import MLP
from tests.support.bench import FEW, Bench
from tests.support.tiny import assignment, dataset, drive, experiment


def test_a_state_without_a_beginning_is_refused() -> None:
    """Kills: state that is dropped without a word because no init_state announces it."""
    from algorithms.fedavg import FedAvg

    class Forgetful(FedAvg):
        def upload(self, run: Any, received: Any, state: Any) -> Any:
            return {"weights": run.end}, {"weights": run.end}

    class Denying(Forgetful):
        def init_state(self, received: Any, parent: Any, client: Any) -> Any:
            return {"weights": received["weights"]}

        @property
        def stateful(self) -> bool:
            return False

    for algorithm in (Forgetful(), Denying()):
        with pytest.raises(TypeError, match="keeps a state, but init_state gives it no first one, or stateful says"):
            Bench(MLP(hidden=(8,))).train(algorithm, 0)


def test_what_is_not_kept_is_made_for_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a client that is no newcomer any more and has nothing; one whose first state depends on the round."""
    from algorithms.fedavg import FedAvg

    rounds: list[float] = []

    class Fresh(FedAvg):
        entries = {**FedAvg.entries, "draw": Kind.SCALAR}  # noqa: RUF012

        @property
        def stateful(self) -> bool:
            return False

        def init_state(self, received: Any, parent: Any, client: Any) -> Any:
            return {"draw": torch.rand((), generator=client.rng("draw"))}

        def upload(self, run: Any, received: Any, state: Any) -> Any:
            rounds.append(float(state["draw"]))
            return {"weights": run.end}, {}

    monkeypatch.setitem(ALGORITHMS, "fedavg", Fresh)
    done = drive(tmp_path, experiment(rounds=3, participation={}), dataset(sum(FEW)), assignment(FEW))
    first, second, third = (rounds[len(rounds) - 9 :][at : at + 3] for at in (0, 3, 6))  # trials came before
    assert first == second == third
    assert len(set(first)) == len(FEW)
    assert done.driver.lineage.states.store.read(range(len(FEW))) == [None] * len(FEW)
