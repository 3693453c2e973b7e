"""FedBN: which parameters are BatchNorm's, and whole runs against modules trained by torch.optim, layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from algorithms.fedbn import joined
from engine.algorithm import ParamLayout, seeds
from engine.client.steps.flat_net import FlatNet
from engine.models import MODELS, Model, build_model
from tests.support.full_batches import CNN, LR, MEAN, STD, STEPS, drive, experiment, federation
from tests.support.plain_torch import close


def is_norm(name: str, model: nn.Module) -> bool:
    return isinstance(model.get_submodule(name.rpartition(".")[0]), nn.BatchNorm1d | nn.BatchNorm2d)


@pytest.mark.parametrize(
    "spec",
    [CNN, {"name": "resnet8"}, {"name": "resnet20", "shortcut": "pad"}, {"name": "mobilenetv2"}],
    ids=lambda spec: spec["name"],
)
@pytest.mark.parametrize("trained", [False, True])
def test_norms_are_found(spec: dict[str, Any], trained: bool) -> None:
    """Kills: a parameter that is taken for BatchNorm's, or missed, whatever values it has: at initial weights, and at
    weights among which scales are near 0 and anything else may be 1."""
    shape = (3, 16, 16)
    net = FlatNet(
        build_model(MODELS.build(spec), shape, 4, seeds.generator(0, "weights")),
        torch.device("cpu"),
        torch.float32,
        shape,
    )
    if trained:
        net.weights.add_(torch.randn(len(net.weights), generator=torch.Generator().manual_seed(0)), alpha=0.3)
    wanted = torch.cat([torch.full((p.numel(),), is_norm(name, net.model)) for name, p in net.model.named_parameters()])
    assert [name for name, _ in net.model.named_parameters()] == net.names
    assert torch.equal(net.layout.norm_mask(net.weights), wanted)
    for part in ("body", "head"):
        where, _ = net.slices[part]
        assert torch.equal(net.layout.part(where).norm_mask(net.weights[where]), wanted[where])
    assert wanted.any()


class Shifted(nn.BatchNorm1d):
    """Has its shifts before its scales."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        scales = self._parameters.pop("weight")
        self.register_parameter("weight", scales)


def with_frozen_scales(features: int) -> nn.Module:
    norm = nn.BatchNorm1d(features)
    norm.weight.requires_grad_(False)
    return norm


@pytest.mark.parametrize(("norm", "per_feature"), [(Shifted, 2), (with_frozen_scales, 1)])
def test_norms_of_ones_own_are_found(norm: Callable[[int], nn.Module], per_feature: int) -> None:
    """Kills: the bias of the layer before, kept by clients in place of scales that are frozen or stand elsewhere."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), norm(6), nn.ReLU())
    net = FlatNet(Model(body, nn.Linear(6, 3)), torch.device("cpu"), torch.float32, (1, 2, 2))
    mask = net.layout.norm_mask(net.weights)
    start = 4 * 6 + 6
    assert mask.nonzero().flatten().tolist() == [*range(start, start + 6 * per_feature)]


def test_joined_is_taken_apart_again() -> None:
    """Kills: two parts exchanged, another order within one."""
    named = {"parameters": (("a", 0, 1), ("b", 1, 3), ("c", 3, 4), ("d", 4, 5)), "norms": ("b", "d")}
    layout = ParamLayout(body=4, head=1, buffers=0, classes=1, features=1, **named)
    whole = torch.arange(5.0)
    mask = layout.norm_mask(whole)
    assert joined(whole[~mask], whole[mask], layout).tolist() == whole.tolist()


def load(model: nn.Module, weights: Tensor, buffers: Tensor) -> None:
    """Put flat vectors into a module: parameters, and floating buffers, each in the order of registration."""
    floating = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    for vector, tensors in ((weights, list(model.parameters())), (buffers, floating)):
        for piece, tensor in zip(vector.split([one.numel() for one in tensors]), tensors, strict=True):
            tensor.data = piece.view(tensor.shape).clone()


def put(model: nn.Module, values: dict[str, Tensor]) -> None:
    """Write named tensors into a module. Its own `load_state_dict` asks BatchNorm for the count of batches, which a
    run's network does not keep."""
    tensors = model.state_dict()
    assert tensors.keys() == values.keys()
    for name, tensor in tensors.items():
        tensor.copy_(values[name])


def trained(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("executor", ["loop", "block"])
def test_a_run_is_algorithm_1(tmp_path: Path, executor: str) -> None:
    """Kills: scales, shifts or running statistics that are averaged or sent, that are another client's, or that start
    afresh; anything else that is not averaged."""
    data = federation()
    run = drive(tmp_path, experiment({"name": "fedbn"}, model=CNN, execution={"executor": executor}), data)
    network: Any = deepcopy(run.driver.pool._workers[0].net.model)  # pyright: ignore[reportAttributeAccessIssue]
    load(network, **run.first)
    first = {name: value.clone() for name, value in network.state_dict().items()}
    norms = [name for name in first if is_norm(name, network)]
    shared = {name: value for name, value in first.items() if name not in norms}
    kept: dict[int, dict[str, Tensor]] = {}
    for cohort in run.cohorts:
        ends = {}
        for k in cohort:
            part = data[1].clients[k]
            x = torch.tensor((data[0].train.images[part] / 255 - MEAN) / STD)
            put(network, {**first, **shared, **kept.get(k, {})})  # pyright: ignore[reportArgumentType]
            ends[k] = trained(network, x, torch.tensor(data[0].train.labels[part]))
            kept[k] = {name: ends[k][name] for name in norms}
        sizes = {k: len(data[1].clients[k]) for k in cohort}
        shared = {name: sum(n * ends[k][name] for k, n in sizes.items()) / sum(sizes.values()) for name in shared}
    server = {**first, **shared}
    close(run.server["weights"], torch.cat([server[name].flatten() for name, _ in network.named_parameters()]))
    assert torch.equal(run.server["buffers"], run.first["buffers"])
    assert {k for k, state in enumerate(run.states) if state} == kept.keys()
    parameters = [name for name, _ in network.named_parameters() if name in norms]
    statistics = [name for name, buffer in network.named_buffers() if buffer.is_floating_point()]
    for k, own in kept.items():
        close(run.states[k]["norms"], torch.cat([own[name].flatten() for name in parameters]))
        close(run.states[k]["statistics"], torch.cat([own[name].flatten() for name in statistics]))
        assert (run.states[k]["norms"] != run.first["weights"][run.driver.layout.norm_mask(run.first["weights"])]).any()


def test_what_travels(tmp_path: Path) -> None:
    """Kills: layers that stay with their clients and are counted in every round, or that all start from and are never
    counted; a mask that is counted as traffic."""
    run = drive(tmp_path, experiment({"name": "fedbn"}, model=CNN))
    layout = run.driver.layout
    rounds, exchanges = run.folder.frame("rounds"), run.folder.frame("exchanges")
    assert set(rounds["floats_up"]) == {2 * (layout.size - layout.buffers)}
    assert set(rounds["floats_down"]) == {2 * (layout.size - layout.buffers)}
    assert (
        sum(exchanges["floats_down"].tolist()) == 3 * 2 * layout.buffers
    )  # scales, shifts and statistics, for each client


def test_without_batchnorm_it_is_fedavg(tmp_path: Path) -> None:
    """Kills: parameters that are kept though no layer is BatchNorm's."""
    for executor in ("loop", "block"):
        setting: dict[str, Any] = {
            "execution": {"executor": executor, "precision": "float32"},
            "local": {"batch_size": 4, "momentum": 0.9, "steps": 5},
        }
        one = drive(tmp_path / f"{executor} fedbn", experiment({"name": "fedbn"}, **setting))
        two = drive(tmp_path / f"{executor} fedavg", experiment({"name": "fedavg"}, **setting))
        assert torch.equal(one.server["weights"], two.server["weights"])
