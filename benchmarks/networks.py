"""The networks of the workloads in plain PyTorch, for the plain loop and for the peers. Needs torch alone."""

from __future__ import annotations

from torch import nn


def network(name: str, channels: int, side: int, classes: int) -> nn.Sequential:
    """The same layers, in the same order, as the engine's model of that name with its default fields."""
    inputs = channels * side * side
    if name == "logistic":
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))
    if name == "mlp":
        layers = [nn.Flatten(), nn.Linear(inputs, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(200, classes))
    if name == "cnn":
        first = [nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        dense = [nn.Flatten(), nn.Linear(64 * (side // 4) ** 2, 512), nn.ReLU(), nn.Linear(512, classes)]
        return nn.Sequential(*first, *second, *dense)
    raise ValueError(f"model {name!r}: the plain loop knows logistic, mlp and cnn")
