"""Modules that are no plain stack of layers, in each executor and by several methods, held against plain PyTorch.

Frozen parameters, parametrizations, parameters in common, hooks, recurrent layers: each kind of module gives what a
loop with ``torch.optim.SGD`` over that module gives, or is refused in a sentence that names it and what to do.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from engine.algorithm import seeds
from engine.base.errors import ConfigError, FedskewError, ResourceError
from engine.client.steps.flat_net import FlatNet
from engine.client.vmap.dense import Dense
from engine.experiment import Experiment
from engine.models import MODELS, Model, ModelSpec, build_model, check_size
from engine.models.cost import model_cost
from engine.models.heads import is_plain_linear
from engine.models.model import built_alike
from engine.models.splitting import check_split, split_model
from engine.worker.preflight import activations
from fedskew.testing.models import is_one_vector
from fedskew.testing.small_runs import Driven
from tests.support.loops import each
from tests.support.tiny import assignment, dataset, experiment, open_driver

SIZES, SHAPE, CLASSES, CPU = [12, 10, 8], (1, 8, 8), 4, torch.device("cpu")
LR, STEPS, ROUNDS = 0.1, 2, 2


def stack(*between: nn.Module, first: nn.Module | None = None) -> nn.Sequential:
    """64 pixels -> 6 units, what lies ``between`` -> 4 classes."""
    return nn.Sequential(nn.Flatten(), first or nn.Linear(64, 6), *between, nn.ReLU(), nn.Linear(6, CLASSES))


def frozen(network: nn.Sequential, *places: int) -> nn.Module:
    for place in places:
        network[place].requires_grad_(False)
    return network


def frozen_bias() -> nn.Module:
    network = stack()
    network[1].bias.requires_grad_(False)  # type: ignore[union-attr]
    return network


def tied() -> nn.Module:
    network = stack(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    network[4].weight = network[2].weight
    return network


def dense(place: int = 0, changed: str = "") -> Model:
    """A network that ``block`` writes out where it is no more than it seems: one ReLU in two places is not."""
    relu = nn.ReLU()
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), relu, nn.Linear(6, 6), relu)
    model = Model(body, nn.Linear(6, CLASSES))
    layer: Any = [*body, model.head][place]
    if changed == "hook":
        layer.register_forward_hook(halved)
    elif changed == "frozen":
        layer.requires_grad_(False)
    elif changed == "own forward":
        layer.forward = lambda x: halved(layer, x, type(layer).forward(layer, x))
    elif changed == "common":
        body.append(body[3])
    return model


def twice() -> nn.Module:
    """One layer, one norm and one ReLU in two places each."""
    layer, norm, relu = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), layer, norm, relu, layer, norm, relu, nn.Linear(6, 6), nn.Linear(6, CLASSES)
    )


def halved(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    return output / 2


def hooked(place: int) -> nn.Module:
    network = stack()
    network[place].register_forward_hook(halved)
    return network


class Extra(nn.Module):
    """A network with something more than its layers, by which features are ``scaled``."""

    def __init__(self, extra: Any, scaled: bool = True) -> None:
        super().__init__()
        self.first, self.extra, self.last, self.scaled = nn.Linear(64, 6), extra, nn.Linear(6, CLASSES), scaled

    def forward(self, x: Tensor) -> Tensor:
        z = self.first(x.flatten(1)).relu()
        return self.last(z * self.extra if self.scaled else z)


class Quiet(nn.BatchNorm1d):
    """A norm that keeps to its running statistics, as in a backbone from elsewhere."""

    def train(self, mode: bool = True) -> Quiet:
        return super().train(False)


class Recurrent(nn.Module):
    """Rows of an image one after another; ``kind``: GRU or LSTM."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cells, self.last = kind(8, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cells(x[:, 0])[0][:, -1])


KINDS: dict[str, Callable[[], nn.Module]] = {
    "a frozen layer": lambda: frozen(stack(nn.Linear(6, 6)), 2),
    "a frozen body": lambda: frozen(stack(), 1),
    "a frozen bias": frozen_bias,
    "a frozen norm": lambda: frozen(stack(nn.BatchNorm1d(6)), 2),
    "a frozen body with a norm in eval mode": lambda: frozen(stack(Quiet(6)), 1, 2),
    "an integer parameter": lambda: Extra(nn.Parameter(torch.tensor(2), requires_grad=False)),
    "a parameter without dimensions": lambda: Extra(nn.Parameter(torch.tensor(2.0))),
    "an unused layer": lambda: Extra(nn.Linear(3, 3), scaled=False),
    "weight_norm": lambda: stack(first=parametrizations.weight_norm(nn.Linear(64, 6))),
    "spectral_norm": lambda: stack(first=parametrizations.spectral_norm(nn.Linear(64, 6))),
    "old weight_norm": lambda: stack(first=nn.utils.weight_norm(nn.Linear(64, 6))),
    "tied weights": tied,
    "layers in two places": twice,
    "a hook": lambda: hooked(1),
    "a hook of the head": lambda: hooked(3),
    "one ReLU in two places": dense,
    "a frozen layer of ours": lambda: dense(1, "frozen"),
    "a hook of a layer of ours": lambda: dense(1, "hook"),
    "a hook of a head of ours": lambda: dense(5, "hook"),
    "a forward method of its own": lambda: dense(2, "own forward"),
    "one layer in two places": lambda: dense(changed="common"),
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTM": lambda: Recurrent(nn.LSTM),
}
# What a pass over several clients cannot do with some; it says so, and what to do.
NOT_IN_ONE_PASS = ("spectral_norm", "GRU", "LSTM")
ONE_BY_ONE = r"cannot be computed for several clients in one pass \(.*\); set execution.executor=loop"


@dataclass(frozen=True)
class Unusual(ModelSpec):
    """A network of one's own: one of :data:`KINDS`."""

    keeps_weights: ClassVar[bool] = True
    kind: str = "a hook"

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        network = KINDS[self.kind]()
        model = split_model(network)
        if model is not network:  # as of a function; what a class of one's own gives is taken as it is
            check_split(model, shape, num_classes)
        return model


@dataclass(frozen=True)
class Drawn(Unusual):
    """The same, its weights drawn by the engine."""

    keeps_weights: ClassVar[bool] = False

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        return split_model(KINDS[self.kind]())


@pytest.fixture(autouse=True)
def unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "unusual", Unusual)
    monkeypatch.setattr("engine.record.numerics.canary", lambda execution: "not computed")  # a third of such a run


# --- plain PyTorch ----------------------------------------------------------------------------------------

Rows = tuple[Tensor, Tensor]
Term = Callable[[int, Tensor], Tensor]  # number of a parameter, its value -> what is added to its gradient


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def vector(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def descend(model: Model, rows: Rows, local: dict[str, Any], term: Term | None = None) -> Model:
    """A copy of a model after the steps of one round, each on all rows of a client."""
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, **local)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(rows[0]), rows[1]).backward()
        for number, parameter in enumerate(trained(model)):
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad  # unused
            parameter.grad += term(number, parameter.detach()) if term else 0
        optimizer.step()
    return model


def put(model: Model, tensors: Sequence[Tensor]) -> Model:
    for parameter, tensor in zip(trained(model), tensors, strict=True):
        parameter.data = tensor.clone()
    return model


def mean(tensors: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The mean over clients, weighted by their rows."""
    return [
        sum((n * own for n, own in zip(SIZES, of_one, strict=True)), torch.zeros(())) / sum(SIZES)
        for of_one in zip(*tensors, strict=True)
    ]


def floats(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


@dataclass
class Plain:
    """A server and its clients in plain PyTorch; what clients keep is a list of tensors each."""

    server: Model
    rows: list[Rows]
    local: dict[str, Any]
    kept: list[list[Tensor]]
    momentum: list[Tensor] | None = None

    def average(self, ends: Sequence[Model]) -> None:
        put(self.server, mean([trained(end) for end in ends]))
        for own, buffer in zip(floats(self.server), mean([floats(end) for end in ends]), strict=True):
            own.copy_(buffer)

    def fedavg(self) -> None:
        self.average([descend(self.server, own, self.local) for own in self.rows])

    def fedprox(self) -> None:
        start = [parameter.detach().clone() for parameter in trained(self.server)]
        ends = [descend(self.server, own, self.local, lambda n, w: 0.5 * (w - start[n])) for own in self.rows]
        self.average(ends)

    def fedavgm(self) -> None:
        start = [parameter.detach().clone() for parameter in trained(self.server)]
        self.fedavg()
        before = self.momentum or [torch.zeros_like(own) for own in start]
        self.momentum = [0.9 * v + (end - w) for v, end, w in zip(before, trained(self.server), start, strict=True)]
        put(self.server, [w + v.detach() for w, v in zip(start, self.momentum, strict=True)])

    def scaffold(self) -> None:
        zeros = [torch.zeros_like(parameter) for parameter in trained(self.server)]
        self.kept = [own or zeros for own in self.kept]
        common, ends, news = mean(self.kept), [], []
        for own, rows in zip(self.kept, self.rows, strict=True):
            end = descend(self.server, rows, self.local, lambda n, w, own=own: common[n] - own[n])
            paths = [(w - y).detach() / (LR * STEPS) for w, y in zip(trained(self.server), trained(end), strict=True)]
            news.append([c - every + path for c, every, path in zip(own, common, paths, strict=True)])
            ends.append(end)
        self.kept = news
        self.average(ends)

    def fedper(self) -> None:
        """What clients keep: rows [C, D + 1] of a head, the bias last. Each client has rows of each class."""
        ends, first = [], copy.deepcopy(self.server.head)
        for number, rows in enumerate(self.rows):
            model = copy.deepcopy(self.server)
            if not self.kept[number]:
                draws = torch.rand(first.weight.numel() + CLASSES, generator=seeds.generator(0, "head", 0, number))
                weight, bias = ((2 * draws - 1) / sqrt(first.in_features)).double().tensor_split([-CLASSES])
                self.kept[number] = [torch.cat((weight.view(CLASSES, -1), bias[:, None]), 1)]
            model.head.weight.data, model.head.bias.data = self.kept[number][0].split((first.in_features, 1), 1)
            model.head.bias.data = model.head.bias.data.flatten()
            ends.append(descend(model, rows, self.local))
            self.kept[number] = [torch.cat((ends[-1].head.weight, ends[-1].head.bias[:, None]), 1).detach()]
        self.average(ends)
        self.server.head = first

    def ditto(self) -> None:
        start = [parameter.detach().clone() for parameter in trained(self.server)]
        for number, rows in enumerate(self.rows):
            model = put(copy.deepcopy(self.server), self.kept[number][: len(start)] or start)
            for own, buffer in zip(floats(model), self.kept[number][len(start) :], strict=False):
                own.copy_(buffer)
            end = descend(model, rows, self.local, lambda n, w: 0.5 * (w - start[n]))
            self.kept[number] = [*(own.detach() for own in trained(end)), *floats(end)]
        self.fedavg()


METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fedavg": ({}, {}),
    "fedprox": ({"mu": 0.5}, {"weight_decay": 0.1, "momentum": 0.9}),
    "fedavgm": ({"server_momentum": 0.9}, {"weight_decay": 0.1}),
    "scaffold": ({}, {}),
    "fedper": ({"head_init": "kaiming"}, {"weight_decay": 0.1, "momentum": 0.9}),
    "ditto": ({"lam": 0.5}, {}),
}


def config(kind: str, method: str, executor: str, **changes: Any) -> Experiment:
    fields, local = METHODS[method]
    return experiment(
        **{
            "algorithm": {"name": method, **fields},
            "model": {"name": "unusual", "kind": kind},
            "local": {"epochs": STEPS, "batch_size": max(SIZES), "lr": LR, **local},
            "execution": {"executor": executor, "precision": "float64"},
            "evaluation": {"every": 0},
            "rounds": ROUNDS,
            **changes,
        }
    )


def plain(kind: str, method: str) -> Plain:
    """What plain PyTorch comes to."""
    data, parts = dataset(sum(SIZES)), assignment(SIZES)
    x = (torch.tensor(data.train.images).double() / 255 - 0.5) / 0.25
    rows = [(x[own], torch.tensor(data.train.labels[own])) for own in parts.clients]
    model = build_model(Unusual(kind=kind), SHAPE, CLASSES, seeds.generator(0, "weights", 0, -1)).double()
    reference = Plain(model, rows, METHODS[method][1], [[] for _ in rows])
    for _ in range(ROUNDS):
        getattr(reference, method)()
    return reference


def trained_by_the_engine(folder: Path, own: Experiment) -> Tensor:
    """Weights, buffers and what clients keep, after both rounds."""
    driver = open_driver(folder, own, dataset(sum(SIZES)), assignment(SIZES))
    with closing(driver.pool):
        for _ in range(ROUNDS):
            driver.next()
        states = [
            torch.cat([one.view(-1) for one in state.values()])
            for state in Driven(driver, {}, driver.folder).states
            if state
        ]
    return vector([driver.lineage.server["weights"], driver.lineage.server["buffers"], *states])


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.torch.nn.utils.weight_norm. is deprecated")
@pytest.mark.parametrize("kind", KINDS)
def test_a_module_is_trained_as_in_plain_pytorch(tmp_path: Path, kind: str) -> None:
    """Kills: a frozen parameter that is trained, or moved by decay, momentum, a pull, a control variate or a mean; one
    of two modules in common that is trained alone, or left with another's numbers; a hook that is passed over; a
    module that cannot be mapped, without the executor that can."""
    for method in METHODS if kind.startswith("a frozen") else ("fedavg", "fedprox", "fedper"):
        wanted = plain(kind, method)
        expected = vector([*trained(wanted.server), *floats(wanted.server), *map(vector, filter(None, wanted.kept))])
        for executor in ("loop", "block"):
            own, folder = config(kind, method, executor), tmp_path / f"{method}-{executor}"
            if executor == "block" and kind in NOT_IN_ONE_PASS:
                with pytest.raises(FedskewError, match=ONE_BY_ONE):
                    trained_by_the_engine(folder, own)
                continue
            found = trained_by_the_engine(folder, own)
            told = f"{method} by {executor} is not plain PyTorch"
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10, msg=told)


def test_only_what_is_no_more_than_it_seems_is_written_out() -> None:
    """Kills: a network or a head that is computed from its classes' names alone."""
    assert Dense.of(dense()) == Dense((True, True, False)) and Dense.head_of(dense()) is not None
    for changed in ("hook", "frozen", "own forward"):
        assert Dense.of(dense(1, changed)) is None and Dense.of(dense(5, changed)) is None
        assert Dense.head_of(dense(5, changed)) is None and not is_plain_linear(dense(5, changed).head)
    assert Dense.of(dense(2, "hook")) is None and Dense.of(dense(changed="common")) is None


# --- what is refused ------------------------------------------------------------------------------------------


def with_hook_on_a_gradient() -> nn.Module:
    network = stack()
    network[1].weight.register_hook(lambda grad: grad / 2)  # type: ignore[operator, union-attr]
    return network


def with_hook_on_a_module() -> nn.Module:
    network = stack(nn.Linear(6, 6))
    network[3].register_full_backward_hook(lambda module, into, out: (into[0] / 2,))
    return network


def with_the_head_in_its_body() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, CLASSES))
    network[4].weight = network[2].weight
    return network


class Giving(Extra):
    """Gives ``extra`` of its scores."""

    def __init__(self, extra: Callable[[Any], Any]) -> None:
        super().__init__(extra, scaled=False)

    def forward(self, x: Tensor) -> Any:
        return self.extra(super().forward(x))


class Unfreezing(Extra):
    def forward(self, x: Tensor) -> Tensor:
        self.first.requires_grad_(True)
        return super().forward(x)


class Listed(Extra):
    """Computes with a parameter of a Python list."""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.linear(x.flatten(1), self.extra[0]))


def listed() -> nn.Module:
    network = Listed([])
    network.extra.append(network.first.weight)
    return network


def unfreezing() -> nn.Module:
    network = Unfreezing(None, scaled=False)
    network.first.requires_grad_(False)
    return network


def unused_at_the_end() -> nn.Module:
    network = Extra(None, scaled=False)
    network.more = nn.Linear(3, 3)
    return network


REFUSED: dict[str, Callable[[], nn.Module]] = {
    r"Sequential: has a head whose weight requires no gradient, .*algorithm.name=fedbabu": lambda: frozen(stack(), 3),
    r"Sequential: has a head whose weight is in its body, too": with_the_head_in_its_body,
    r"has a head whose first parameter is bias, .*; parametrize layers before the last": lambda: nn.Sequential(
        nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, CLASSES))
    ),
    r"has complex body.extra, and weights are real; keep two real ones": lambda: Extra(
        nn.Parameter(torch.ones((), dtype=torch.complex64)), scaled=False
    ),
    r"has a hook on gradients of body.1.weight, .*; change gradients in the": with_hook_on_a_gradient,
    r"has body.1.weight without a shape; call the network once in build": lambda: Model(
        stack(first=nn.LazyLinear(6))[:-1], nn.Linear(6, CLASSES)
    ),
    r"Giving: gives a tuple in the place of a tensor of scores; return the": lambda: Giving(lambda scores: (scores, 1)),
    r"Giving: gives a dict in the place of a tensor of scores": lambda: Giving(lambda scores: {"logits": scores}),
    r"Listed: computes with parameters that its modules do not have by their names": listed,
    r"Listed: computes with .* as those in a Python list; keep them in an nn.ModuleList": lambda: Listed(
        [nn.Parameter(torch.zeros(6, 64))]
    ),
    r"Unfreezing: changes requires_grad of body.first.weight, .*; set it where the": unfreezing,
    r"has a hook on gradients of body.3, .*; change gradients in the": with_hook_on_a_module,
    r"takes no images .* Half.*; let it follow the shape that it is given, in float32": lambda: stack().half(),
    r"its last linear layer is not used; leave it out": unused_at_the_end,
}


@each("told, build", REFUSED.items())
def test_what_cannot_be_one_vector_is_refused_by_name(
    told: str, build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: an error of torch's, or a number that depends on the executor, where the module can be named."""
    monkeypatch.setitem(KINDS, "refused", build)
    with pytest.raises(ConfigError, match=rf"^model=.*{told}"):
        check_size(Unusual(kind="refused"), SHAPE, CLASSES)


def masked() -> nn.Module:
    network = stack()
    network.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
    return network


def seen_twice() -> nn.Module:
    network = stack()
    network.register_buffer("view", network[1].weight.detach()[:2])
    return network


@each(
    "told, build",
    {
        r"begins with body.mask that is not finite; for a mask, take booleans, or -1e9 in place of -inf": masked,
        r"has body.1.weight in the memory of body.view, and each is kept apart": seen_twice,
    }.items(),
)
def test_values_that_cannot_be_kept_are_refused_by_name(
    told: str, build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a causal mask for which the server's rate is blamed; a buffer that follows a weight in one executor."""
    monkeypatch.setitem(KINDS, "refused", build)
    with pytest.raises(ConfigError, match=rf"^model.name=Unusual: {told}"):
        built_alike(Unusual(kind="refused"), SHAPE, CLASSES)


def test_modules_that_were_given_before_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: two networks of one process with each other's weights, or a word of devices in the place of the reason."""
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    monkeypatch.setitem(KINDS, "kept", lambda: nn.Sequential(backbone, nn.Linear(6, CLASSES)))
    check_size(Unusual(kind="kept"), SHAPE, CLASSES)  # once in each run, before anything is built to be trained
    with pytest.raises(ConfigError, match=r"gives modules that it has given before; .*or give copy.deepcopy of them"):
        built("kept")


# --- what is built and kept -----------------------------------------------------------------------------------


def built(kind: str, spec: type[Unusual] = Unusual, seed: int = 0) -> Model:
    return build_model(spec(kind=kind), SHAPE, CLASSES, seeds.generator(seed, "weights"))


def test_what_is_drawn_by_the_key_stays_frozen_and_in_common() -> None:
    """Kills: two layers in the place of one weight that they have in common; a frozen layer that trains once it is
    drawn, or that is left as it was in memory; a KeyError in the place of a rule that is not there."""
    body: Any = built("tied weights", Drawn).body
    assert body[2].weight is body[4].weight and body[2].bias is not body[4].bias
    one, again, other = (built("a frozen body", Drawn, seed).body for seed in (0, 0, 1))
    for first, same, unlike in zip(one.parameters(), again.parameters(), other.parameters(), strict=True):
        assert not first.requires_grad and torch.equal(first, same) and not torch.equal(first, unlike)
    with pytest.raises(ConfigError, match=r"has bias in body.1, which fedskew has no rule to draw; .*keeps_weights"):
        built("weight_norm", Drawn)


def test_other_frozen_values_are_no_continuation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a run that goes on with another backbone than it began with, or shares its rounds with it."""
    own = config("a frozen body", "fedavg", "loop", checkpoint={"every": 1})
    data = dataset(sum(SIZES)), assignment(SIZES)
    driver = open_driver(tmp_path, own, *data)
    assert len(driver.pool.numerics["network"]) == 16
    driver.next()
    driver.pool.close()
    open_driver(tmp_path, own, *data).pool.close()
    monkeypatch.setitem(KINDS, "a frozen body", lambda: frozen(lifted(), 1))
    with pytest.raises(ResourceError, match=r"the run began with network \w{16} and would go on with \w{16}"):
        open_driver(tmp_path, own, *data)
    with closing(open_driver(tmp_path / "ours", experiment(rounds=1)).pool) as pool:
        assert "network" not in pool.numerics


def test_other_first_weights_are_no_continuation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of a file, an activation by a variable. Kills: rounds of a store, or a run, that another network has."""
    data = dataset(sum(SIZES)), assignment(SIZES)

    def network(slope: float, bias: float) -> str:
        def made() -> nn.Module:
            layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.LeakyReLU(slope), nn.Linear(6, CLASSES))
            nn.init.constant_(layers[1].bias, bias)
            return layers

        monkeypatch.setitem(KINDS, "a hook", made)
        place = tmp_path / f"{slope} {bias}"
        with closing(open_driver(place, config("a hook", "fedavg", "loop"), *data).pool) as pool:
            return pool.numerics["network"]

    assert network(0.1, 0.0) == network(0.1, 0.0)
    assert len({network(0.1, 0.0), network(0.2, 0.0), network(0.1, 1.0)}) == 3


def lifted() -> nn.Sequential:
    network: Any = stack()
    network[1].bias.data += 1
    return network


@each("kind", ["layers in two places", "tied weights", "a frozen layer of ours", "GRU"])
def test_another_models_numbers_leave_none_behind(kind: str) -> None:
    """Kills: a forward pass at other weights that leaves them in a module of two places, that reaches one of two
    names alone, or that misses what is frozen."""
    net, x = FlatNet(built(kind), CPU, torch.float32, SHAPE), torch.linspace(-1, 1, 3 * 64).view(3, *SHAPE)
    net.train(False)
    weights, buffers = net.weights.clone(), net.buffers.clone()
    with torch.no_grad():
        before, there = net(x), net.at(weights * 2, buffers)(x)
        assert torch.equal(net(x), before)
        net.load(weights * 2, buffers)
        assert torch.allclose(net(x), there) and not torch.allclose(before, there)
        if kind == "a frozen layer of ours":
            assert torch.allclose(net.at(weights * 2, buffers).narrow(0.5)(x), net.narrow(0.5)(x))


@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated")
@each("kind", list(KINDS))
def test_every_kind_has_a_cost_and_passes_for_one_vector(kind: str) -> None:
    """Kills: an IndexError of a parametrization, which is given nothing; an AttributeError of an LSTM's states; a
    check that takes a frozen parameter for a number that is nowhere."""
    assert model_cost(Unusual(kind=kind), SHAPE, CLASSES).macs > 0
    assert activations(Unusual(kind=kind), SHAPE, CLASSES) > 0
    is_one_vector(Unusual(kind=kind))
