"""The workloads of the speed benchmark, and what is needed to do the same work without the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.common import write_inputs
from engine.experiment import Experiment
from engine.run.preparing import prepare
from engine.server.cohort import draw_cohort

ENDLESS = 10**9  # rounds: no run ends while it is measured


@dataclass(frozen=True)
class Workload:
    """FedAvg on Fashion-MNIST, one local epoch of SGD at 0.05 on batches of 32."""

    title: str
    model: str
    partition: dict[str, object]
    cohort: int
    limit: float  # of seconds per round in process or on actors, by the plain loop's
    on_actors: float | None = None  # the same of two actors
    by_process: float | None = None  # of two actors, by the engine's in process
    floor_share: float | None = None  # of the machine's floor, at least
    at_most_peer: str = ""  # the peer whose time is a limit, too

    def experiment(self, name: str, overrides: list[str]) -> Experiment:
        return Experiment(
            name=f"speed-{name}",
            rounds=ENDLESS,
            data={"name": "fashion_mnist"},
            partition=self.partition,
            model={"name": self.model},
            local={"epochs": 1, "batch_size": 32, "lr": 0.05},
            participation={"count": self.cohort},
            evaluation={"every": 0, "client_loss": False},
        ).override(overrides)


WORKLOADS = {
    "W1": Workload(
        "100 clients of 600 images, IID", "mlp", {"name": "iid", "clients": 100}, 10, limit=0.5, by_process=1.15
    ),
    "W2": Workload(
        "1,000 clients of 60 images, IID",
        "logistic",
        {"name": "iid", "clients": 1000},
        50,
        limit=1 / 3,
        on_actors=0.6,
    ),
    "W3": Workload(
        "100 clients, Dirichlet(0.1)",
        "cnn",
        {"name": "dirichlet", "clients": 100, "alpha": 0.1},
        10,
        limit=1.0,
        by_process=1.15,
        floor_share=0.6,
        at_most_peer="pfl_research",
    ),
}


class Inputs:
    """A workload as files, and the cohorts of its rounds: those that the engine draws.

    folder:  data.npz, weights.npy, see ``common.write_inputs``
    plan:    experiment.yaml, partition.parquet, as in the folder of a run
    clients: the training rows of each client
    """

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment, self.folder, self.plan = experiment, folder, folder / "plan"
        prepared = prepare(experiment.resolve(), self.plan, overwrite=False)
        prepared.write()
        write_inputs(experiment, folder)
        self.clients = prepared.assignment.clients
        self._holders = np.flatnonzero(prepared.assignment.sizes()).tolist()

    def cohort(self, number: int) -> list[int]:
        """The clients of a round, from 1."""
        return list(draw_cohort(self.experiment.seed, number, self._holders, self.experiment.participation))
