"""FedAvg in plain PyTorch, as one would write it by hand; the yardstick for the engine.

Shares no code with the engine. It reads files only: a run's partition and cohorts, initial weights and, in reading
mode, the order of every client's rows; without that file it draws orders of its own. Clients run on persistent
processes of one thread each; weights travel through shared memory, commands through pipes.

    loop = PlainLoop(task, processes=2)
    for number, cohort in cohorts(run_folder / "clients.parquet").items():
        loop.round(number, cohort)
    print(loop.accuracy())
    loop.close()
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F
import yaml
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.networks import network


@dataclass(frozen=True)
class Task:
    """What to train. Paths, so that each process reads for itself."""

    model: str
    lr: float
    batch_size: int
    epochs: int
    data: Path  # .npz: {train, test}_images uint8 [N, C, H, W], {train, test}_labels [N], mean and std [C]
    partition: Path  # .parquet: client, index
    weights: Path  # .npy: the initial weights [P], in the order of network(...).parameters()
    orders: Path | None = None  # .npz: "round/client" -> [epochs, n], an order of the client's rows; None: own orders
    seed: int = 0  # of own orders


# --- the loop -----------------------------------------------------------------------------------------


class Site:
    """What one process holds, and what it is asked to do."""

    def __init__(self, task: Task, weights: Tensor) -> None:
        torch.set_num_threads(1)
        self.task, self.weights, self.rows = task, weights, clients_of(task.partition)
        with np.load(task.data) as data:
            mean, std = (torch.from_numpy(data[name]).float().view(1, -1, 1, 1) for name in ("mean", "std"))
            self.x, self.test_x = (
                torch.from_numpy(data[f"{split}_images"]).float().div_(255).sub_(mean).div_(std)
                for split in ("train", "test")
            )
            self.y, self.test_y = (torch.from_numpy(data[f"{split}_labels"]) for split in ("train", "test"))
        self.model = network(task.model, self.x.shape[1], self.x.shape[2], int(self.y.max()) + 1)
        self.orders = np.load(task.orders) if task.orders else None

    def order(self, number: int, client: int, epoch: int) -> Tensor:
        if self.orders is not None:
            return torch.from_numpy(self.orders[f"{number}/{client}"][epoch])
        key = [self.task.seed, number, client, epoch]
        return torch.from_numpy(np.random.default_rng(key).permutation(len(self.rows[client])))

    def train(self, out: Tensor, number: int, clients: dict[int, float]) -> None:
        """The sum over ``clients`` of share * local weights, into ``out`` [P]."""
        out.zero_()
        for client, share in clients.items():
            vector_to_parameters(self.weights.clone(), self.model.parameters())
            optimizer = torch.optim.SGD(self.model.parameters(), lr=self.task.lr)
            for epoch in range(self.task.epochs):
                for batch in self.rows[client][self.order(number, client, epoch)].split(self.task.batch_size):
                    optimizer.zero_grad()
                    F.cross_entropy(self.model(self.x[batch]), self.y[batch]).backward()
                    optimizer.step()
            out.add_(parameters_to_vector(self.model.parameters()).detach(), alpha=share)

    def correct(self, start: int, step: int) -> int:
        """How many of every ``step``-th test image are classified correctly."""
        vector_to_parameters(self.weights.clone(), self.model.parameters())
        batches = zip(self.test_x[start::step].split(500), self.test_y[start::step].split(500), strict=True)
        with torch.no_grad():
            return sum(int((self.model(x).argmax(1) == y).sum()) for x, y in batches)


class PlainLoop:
    """The server; ``weights`` [P] are the global model."""

    def __init__(self, task: Task, processes: int = 2) -> None:
        self.weights = torch.from_numpy(np.load(task.weights)).share_memory_()
        self.sums = torch.zeros(processes, len(self.weights)).share_memory_()
        self.sizes = [len(rows) for rows in clients_of(task.partition)]
        spawn: Any = torch.multiprocessing.get_context("spawn")  # its methods are not in torch's type hints
        self.pipes: list[Connection] = []
        self.processes = []
        for number in range(processes):
            pipe, far_end = spawn.Pipe()
            process = spawn.Process(target=serve, args=(task, self.weights, self.sums[number], far_end), daemon=True)
            process.start()
            far_end.close()
            self.pipes.append(pipe)
            self.processes.append(process)
        self.test_rows = max(pipe.recv() for pipe in self.pipes)  # every process is ready

    def round(self, number: int, cohort: list[int]) -> None:
        """Train the cohort, average by number of samples."""
        total = sum(self.sizes[client] for client in cohort)
        hands: list[dict[int, float]] = [{} for _ in self.pipes]
        for client in sorted(cohort, key=lambda client: -self.sizes[client]):  # largest first, to whoever has least
            min(hands, key=lambda hand: sum(hand.values()))[client] = self.sizes[client] / total
        self.ask([("train", number, hand) for hand in hands])
        self.weights.copy_(self.sums.sum(0))

    def accuracy(self) -> float:
        """Of the global model on the test set, a fraction."""
        return sum(self.ask([("correct", n, len(self.pipes)) for n in range(len(self.pipes))])) / self.test_rows

    def ask(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        for pipe, command in zip(self.pipes, commands, strict=True):
            pipe.send(command)
        return [pipe.recv() for pipe in self.pipes]

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.close()  # serve() ends at the end of its pipe
            process.join()


def serve(task: Task, weights: Tensor, out: Tensor, pipe: Connection) -> None:
    """One process: carries out commands until the pipe is closed."""
    site = Site(task, weights)
    pipe.send(len(site.test_y))
    while True:
        try:
            command, *arguments = pipe.recv()
        except EOFError:
            return
        pipe.send(site.train(out, *arguments) if command == "train" else site.correct(*arguments))


# --- a run's files ------------------------------------------------------------------------------------


def clients_of(partition: Path) -> list[Tensor]:
    """The training rows of every client, ascending, from ``partition.parquet`` (below 0: nobody's)."""
    table = pq.read_table(partition, filters=[("test", "=", False)])
    owners, rows = table["client"].to_numpy(), table["index"].to_numpy()
    return [torch.from_numpy(np.sort(rows[owners == client])) for client in range(owners.max() + 1)]


def cohorts(path: Path) -> dict[int, list[int]]:
    """The clients of every round, from ``clients.parquet``."""
    table = pq.read_table(path)
    found: dict[int, list[int]] = {}
    for number, client in zip(table["round"].to_pylist(), table["client"].to_pylist(), strict=True):
        found.setdefault(number, []).append(client)
    return dict(sorted(found.items()))


def task_of(run: Path, inputs: Path, own_order: int | None = None) -> Task:
    """The task of a run's folder; ``inputs`` holds data.npz, weights.npy and, for reading mode, orders.npz."""
    settings = yaml.safe_load((run / "experiment.yaml").read_text(encoding="utf-8"))
    local = settings["local"]
    plain = {"optimizer": "sgd", "momentum": 0, "weight_decay": 0, "lr_decay": 1, "augment": "none", "steps": None}
    for key, value in {**plain, "last_batch": "keep"}.items():
        if local[key] != value:
            raise ValueError(f"local.{key}={local[key]}: the plain loop knows {value} only")
    return Task(
        model=settings["model"]["name"],
        lr=local["lr"],
        batch_size=local["batch_size"],
        epochs=local["epochs"],
        data=inputs / "data.npz",
        partition=run / "partition.parquet",
        weights=inputs / "weights.npy",
        orders=inputs / "orders.npz" if own_order is None else None,
        seed=own_order or 0,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow a run, or repeat it with other batch orders.")
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("inputs", type=Path, help="the folder with data.npz, weights.npy and orders.npz")
    parser.add_argument("--own-order", type=int, metavar="SEED", help="draw batch orders of its own from this seed")
    parser.add_argument("--rounds", type=int, help="stop after so many rounds")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    loop = PlainLoop(task_of(options.run, options.inputs, options.own_order), options.processes)
    for number, cohort in list(cohorts(options.run / "clients.parquet").items())[: options.rounds]:
        loop.round(number, cohort)
        print(f"round {number}: accuracy {loop.accuracy():.4f}", flush=True)
    loop.close()


if __name__ == "__main__":
    main()
