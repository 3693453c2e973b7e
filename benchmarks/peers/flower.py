"""Flower's simulation at the given work: ``python -m benchmarks.peers.flower FOLDER`` prints seconds per round.

Its message API with the FedAvg strategy on its Ray backend, an actor for each core. Clients train in the loop of its
quickstart for PyTorch, but on tensors in memory, and an actor keeps data and network from client to client. Not
evaluated: the strategy's ``evaluate_fn`` only looks at the clock.
"""

# pyright: reportMissingImports=false
# (what it needs is in a Python of its own)
from __future__ import annotations

import os
import sys
import time
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import flwr
import ray
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers.given import Given, answer, images, initial, rows

client_app, server_app = ClientApp(), ServerApp()


# --- a client, in an actor ----------------------------------------------------------------------------


@cache
def site(folder: str) -> tuple[Any, ...]:
    """What an actor holds, whoever's work it does."""
    torch.set_num_threads(1)
    path = Path(folder)
    given = Given.read(path)
    x, y = images(path)
    return given, x, y, rows(path), initial(given, path, x, y)


@client_app.train()
def train(message: Message, context: Any) -> Message:
    config = message.content["config"]
    given, x, y, parts, model = site(config["folder"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    own = parts[config["client"]]
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr)
    for _ in range(given.epochs):
        for batch in own[torch.randperm(len(own))].split(given.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    metrics = MetricRecord({"num-examples": len(own)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


# --- the server ---------------------------------------------------------------------------------------


class OfCohorts(FedAvg):
    """FedAvg by which the nodes of a round do the work of the given clients."""

    def __init__(self, given: Given) -> None:
        super().__init__(
            fraction_train=len(given.cohorts[0]) / given.clients,
            fraction_evaluate=0.0,
            min_train_nodes=len(given.cohorts[0]),
        )
        self._given = given

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        messages = super().configure_train(server_round, arrays, config, grid)
        for message, client in zip(messages, self._given.cohorts[server_round - 1], strict=True):
            own = ConfigRecord({**config, "client": client})
            content = RecordDict({"arrays": arrays, "config": own})
            yield Message(content, message_type=message.metadata.message_type, dst_node_id=message.metadata.dst_node_id)


@server_app.main()
def serve(grid: Any, context: Any) -> None:
    folder = Path(os.environ["PEER_FOLDER"])
    given = Given.read(folder)
    _, _, _, _, model = site(str(folder))
    clock: list[float] = []

    def look(server_round: int, arrays: Any) -> None:
        clock.append(time.perf_counter())

    OfCohorts(given).start(
        grid=grid,
        initial_arrays=ArrayRecord(model.state_dict()),
        num_rounds=len(given.cohorts),
        train_config=ConfigRecord({"folder": str(folder)}),
        evaluate_fn=look,
    )
    seconds = [after - before for before, after in pairwise(clock)]
    answer(seconds[given.warm_up :], flwr=flwr.__version__, ray=ray.__version__)


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    os.environ["PEER_FOLDER"] = str(folder)
    given = Given.read(folder)
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=given.clients,
        backend_config={
            "init_args": {"address": "local", "num_cpus": given.processes, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )


if __name__ == "__main__":
    # By its name, since what belongs to __main__ is sent to actors whole with each message, and kept by none.
    from benchmarks.peers import flower

    flower.main()
