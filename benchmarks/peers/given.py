"""The work that a peer is given, as files. Needs numpy and torch alone, so that a peer's own Python reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from benchmarks.networks import network


@dataclass(frozen=True)
class Given:
    """FedAvg on ``processes`` processes of one thread: one round for each of ``cohorts``."""

    model: str
    lr: float
    batch_size: int
    epochs: int
    clients: int
    processes: int
    cohorts: list[list[int]]
    warm_up: int  # rounds at the beginning that are not timed

    def write(self, folder: Path, rows: Sequence[np.ndarray]) -> None:
        """``peer.json`` and ``rows.npz``, beside the ``data.npz`` and ``weights.npy`` of ``common.write_inputs``.

        rows: the training rows of each client.
        """
        (folder / "peer.json").write_text(json.dumps(asdict(self)), encoding="utf-8")
        np.savez(folder / "rows.npz", rows=np.concatenate(rows), ends=np.cumsum([len(own) for own in rows]))

    @classmethod
    def read(cls, folder: Path) -> Given:
        return cls(**json.loads((folder / "peer.json").read_text(encoding="utf-8")))


def images(folder: Path) -> tuple[Tensor, Tensor]:
    """The training images, normalised once, float32 [N, C, H, W], and their labels int64 [N]."""
    with np.load(folder / "data.npz") as data:
        mean, std = (torch.from_numpy(data[name]).float().view(1, -1, 1, 1) for name in ("mean", "std"))
        x = torch.from_numpy(data["train_images"]).float().div_(255).sub_(mean).div_(std)
        return x, torch.from_numpy(data["train_labels"])


def rows(folder: Path) -> list[Tensor]:
    """The training rows of each client."""
    with np.load(folder / "rows.npz") as data:
        return [torch.from_numpy(own) for own in np.split(data["rows"], data["ends"][:-1])]


def initial(given: Given, folder: Path, x: Tensor, y: Tensor) -> nn.Sequential:
    """The network with the initial weights; ``x`` and ``y`` are the training images and their labels."""
    model = network(given.model, x.shape[1], x.shape[2], int(y.max()) + 1)
    vector_to_parameters(torch.from_numpy(np.load(folder / "weights.npy")), model.parameters())
    return model


def answer(seconds: Sequence[float], **versions: str) -> None:
    """Print what a peer was started for: the seconds of each timed round, and the versions that it ran on."""
    print(json.dumps({"seconds": list(seconds), "versions": {**versions, "torch": torch.__version__}}), flush=True)
