"""pfl-research at the given work: ``python -m benchmarks.peers.pfl_research FOLDER`` prints seconds per round.

Its FederatedAveraging on a SimulatedBackend, replicated on processes of one thread as its documentation has it, which
sum by all-reduce. Users' data are tensors that were cut up before the first round, and where their sizes differ it
is told them, so that it spreads users evenly. It does not shuffle a user's rows; that it is spared.
"""

# pyright: reportMissingImports=false
# (what it needs is in a Python of its own)
from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from itertools import chain, cycle, pairwise
from pathlib import Path
from typing import Any

from benchmarks.peers.given import Given, answer, images, initial, rows

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def work(folder: Path) -> None:
    """One of the replicas; the first one answers."""
    from importlib.metadata import version

    import numpy as np
    import torch
    import torch.nn.functional as F
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    given = Given.read(folder)
    x, y = images(folder)
    layers = initial(given, folder, x, y)

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def loss(self, images: Any, labels: Any) -> Any:
            return F.cross_entropy(self.layers(images), labels)

        @torch.no_grad()
        def metrics(self, images: Any, labels: Any) -> Any:  # asked for once, in the first round
            return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}

    seen = [time.perf_counter()]

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            seen.append(time.perf_counter())
            return False, Metrics()

    network = Network()
    np.random.seed(0)  # noqa: NPY002  (pfl draws its seeds from it, and all replicas must have the same ones)
    users = {number: Dataset((x[own], y[own]), user_id=str(number)) for number, own in enumerate(rows(folder))}
    del x, y
    sizes = {number: len(user) for number, user in users.items()}
    order = cycle(chain.from_iterable(given.cohorts))
    even = len(set(sizes.values())) == 1
    data = FederatedDataset(users.__getitem__, lambda: next(order), None if even else sizes)
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    count = len(given.cohorts)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=count,
            evaluation_frequency=count + 1,
            train_cohort_size=len(given.cohorts[0]),
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(
            local_num_epochs=given.epochs,
            local_learning_rate=given.lr,
            local_batch_size=given.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=given.batch_size),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    if os.environ[RANK] == "0":
        seconds = [after - before for before, after in pairwise(seen)]
        answer(seconds[given.warm_up :], pfl=version("pfl"))


def main() -> None:
    """The first replica starts the others."""
    folder = Path(sys.argv[1])
    if RANK in os.environ:
        return work(folder)
    sockets = [socket.create_server(("localhost", 0)) for _ in range(Given.read(folder).processes)]
    os.environ[ADDRESSES] = ",".join(f"localhost:{opened.getsockname()[1]}" for opened in sockets)
    for opened in sockets:
        opened.close()
    command = [sys.executable, "-m", "benchmarks.peers.pfl_research", str(folder)]
    others = [subprocess.Popen(command, env={**os.environ, RANK: str(rank)}) for rank in range(1, len(sockets))]
    os.environ[RANK] = "0"
    work(folder)
    for other in others:
        other.wait()
    return None


if __name__ == "__main__":
    main()
