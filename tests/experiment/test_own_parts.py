"""Own parts in an experiment: classes and functions that become choices, and what is refused of them."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL.Image import fromarray
from torch import nn

import fedskew
from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from engine.algorithm import seeds
from engine.base.errors import ConfigError, DataError, RunError
from engine.base.own_modules import import_file
from engine.base.part_calls import settings
from engine.client.steps.flat_net import FlatNet
from engine.data import SOURCES, Assignment, Partition
from engine.data.own_data import as_dataset
from engine.experiment import Experiment
from engine.models import MLP, MODELS, build_model, check_size
from engine.models.model import Model, ModelSpec, built_alike, on_meta
from engine.models.splitting import check_split, split_model
from engine.record import parts
from engine.record.store import StageStore
from engine.run.run import run
from tests.support import own_prox

SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"name": "fashion_mnist_sample", "train_samples": 200, "test_samples": 50},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "execution": {"actors": 0, "device": "cpu", "executor": "loop"},
}


# --- classes ----------------------------------------------------------------------------------------------


def test_an_own_class_is_a_choice_like_ours(tmp_path: Path) -> None:
    """Kills: an own part that computes otherwise than its twin; an instance that is taken only as a mapping; a digest
    or a file that does not name it."""
    import_file(own_prox.write(tmp_path / "code", ownprox=own_prox.FILE) / "ownprox.py", "--with")
    made = Experiment(algorithm=ALGORITHMS["ownprox"](mu=0.1), **SMALL)
    assert made == Experiment(algorithm={"name": "ownprox", "mu": 0.1}, **SMALL)
    assert Experiment.from_mapping(made.to_mapping()) == made
    ours = run(Experiment(algorithm={"name": "fedprox", "mu": 0.1}, **SMALL), tmp_path / "ours")
    assert run(made, tmp_path / "own")["weights_sha256"] == ours["weights_sha256"]
    origins = parts.read(tmp_path / "own")
    assert origins["stages.train.algorithm"]["place"] == str(tmp_path / "code" / "ownprox.py")
    assert {place: one["origin"] for place, one in origins.items()} == {
        **dict.fromkeys(("data", "partition", "model"), "fedskew"),
        "stages.train.algorithm": "file",
    }


def test_a_run_without_its_part_says_what_to_give(tmp_path: Path) -> None:
    """Kills: a traceback, or a file of the folder's that is imported; a summary that cannot be read without code."""
    import_file(own_prox.write(tmp_path / "code", ownprox=own_prox.FILE) / "ownprox.py", "--with")
    run(Experiment(algorithm={"name": "ownprox"}, **SMALL), tmp_path / "run")
    del ALGORITHMS["ownprox"]
    told = r"algorithm 'ownprox' came from \S+/ownprox.py and is not known here; give its file: --with \S+/ownprox.py"
    with pytest.raises(fedskew.FedskewError, match=told):
        fedskew.resume(tmp_path / "run")
    assert fedskew.load_results(tmp_path / "run").trials["status"].tolist() == ["finished"]


def test_a_field_that_is_infinite_is_named() -> None:
    """Kills: a run that trains to its end, and then cannot be written down."""
    clipped = fedskew.algorithm("clipped")(made(__annotations__={"max_norm": "float"}, max_norm=math.inf))
    with pytest.raises(ConfigError, match=r"algorithm.max_norm=inf: is no finite number, and the files of a"):
        Experiment(algorithm=clipped(), **SMALL)


def made(name: str = "mine", *, frozen: bool = True, **space: Any) -> Any:
    """A class over FedAvg that nobody has registered."""
    kind = type("Mine", (FedAvg,), {"__module__": __name__, **space})
    return dataclasses.dataclass(frozen=frozen)(kind) if frozen else kind


KEYWORD: Any = dataclasses.field(kw_only=True)
WRONG = {
    "no dataclass": (
        lambda: fedskew.algorithm("mine")(made(frozen=False, __annotations__={"mu": "float"}, mu=0.1)),
        r"algorithm.name=mine: \S+:Mine has fields \(mu\) and is no dataclass; write @dataclass\(frozen=True\)",
    ),
    "no default": (
        lambda: fedskew.algorithm("mine")(
            dataclasses.make_dataclass(
                "Mine", [("mu", float, dataclasses.field(kw_only=True))], bases=(FedAvg,), frozen=True
            )
        ),
        r"algorithm.name=mine: \S+:Mine has no default for mu; give it one, its neutral value where there is one: mu: ",
    ),
    "no algorithm": (
        lambda: fedskew.algorithm("mine")(int),
        r"algorithm.name=mine: builtins:int is no Algorithm; write class int\(Algorithm\), or a subclass",
    ),
    "abstract": (
        lambda: fedskew.algorithm("mine")(type("Mine", (fedskew.Algorithm,), {})),
        r"algorithm.name=mine: \S+:Mine does not define aggregate; write it",
    ),
    "a name": (
        lambda: fedskew.algorithm("my method")(made()),
        r"algorithm.name='?my method'?: must be 1 to 64 of the characters",
    ),
    "taken": (
        lambda: fedskew.algorithm("fedprox")(made()),
        r"algorithm.name=fedprox: is the name of algorithms.fedprox",
    ),
    "a function": (
        lambda: fedskew.algorithm("mine")(lambda: None),
        r"algorithm.name=mine: must be a class; put the decorator above one",
    ),
    "not registered": (
        lambda: Experiment(algorithm=made()()),
        r'^algorithm=.*: \S+:Mine is not registered; write @fedskew.algorithm\("a_name"\) above the class',
    ),
    "a data set not registered": (
        lambda: Experiment(data=np.zeros(3)),
        r"^data=.*: must be a name with fields; data.name=...",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_part_is_one_sentence(case: str) -> None:
    """Kills: a class that fails in the middle of a run; a rule without its repair."""
    do, told = WRONG[case]
    with pytest.raises(ConfigError, match=told):
        do()


# --- functions --------------------------------------------------------------------------------------------


def two_layers(shape: Any, num_classes: int, width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], width), nn.PReLU(), nn.Linear(width, num_classes)
    )


def test_a_function_is_a_model(tmp_path: Path) -> None:
    """Kills: weights that are drawn without a key, or left as they were in memory; a field that changes nothing; a
    global generator that a model has moved."""
    mine = fedskew.model("two_layers")(two_layers)
    assert [field.name for field in dataclasses.fields(mine)] == ["head", "projection", "conv_init", "width"]
    torch.manual_seed(1)  # whatever the process has drawn before
    before = torch.get_rng_state()
    same = [build_model(mine(width=5), (1, 8, 8), 4, seeds.generator(seed, "weights")) for seed in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    first, again, other = ([*model.parameters()] for model in same)
    assert [list(one.shape) for one in first] == [[5, 64], [5], [1], [4, 5], [4]]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0]) and torch.equal(first[2], torch.tensor([0.25]))
    summaries = [run(Experiment(**{**SMALL, "model": {"name": "two_layers"}}), tmp_path / name) for name in "ab"]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]


def test_a_network_is_divided_before_its_last_linear_layer() -> None:
    """Kills: a head that is another layer; a division after which the scores are others; one that is not checked."""
    x = torch.linspace(0, 1, 2 * 64).reshape(2, 1, 8, 8)
    network = two_layers((1, 8, 8), 4)
    scores = network(x)
    model = split_model(network)
    assert torch.equal(model(x), scores) and model.head.out_features == 4
    assert torch.equal(model.head(model.features(x)), scores)
    check_split(model, (1, 8, 8), 4)
    ours = build_model(MLP(hidden=(5,)), (1, 8, 8), 4, seeds.generator(0, "weights"))
    assert split_model(ours) is ours
    refused = {
        r"has no linear layer within": nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten()),
        r"must give scores \[B, 4\] .* and gives \[2, 3\]": two_layers((1, 8, 8), 3),
        r"takes no images \[B, 1, 8, 8\]": two_layers((3, 8, 8), 4),
    }
    for told, wrong in refused.items():
        with pytest.raises(ConfigError, match=told):
            check_split(split_model(wrong), (1, 8, 8), 4)


class Viewing(nn.Module):
    """As PyTorch's tutorial flattens images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 4 * 36)


class Tabled(nn.Module):
    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


def test_a_network_is_tried_as_it_will_be_trained() -> None:
    """Kills: a run that ends with torch's own words in the first round, since channels come last in memory there."""
    network = nn.Sequential(nn.Conv2d(1, 4, 3), Viewing(), nn.Linear(144, 4))
    with pytest.raises(ConfigError, match=r"takes no images .*; write flatten\(1\) in the place of view, since"):
        check_split(split_model(network), (1, 8, 8), 4)
    check_split(split_model(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 4))), (1, 8, 8), 4)


def test_a_buffer_of_two_modules_is_refused() -> None:
    """Kills: one tensor counted once and cut out of the vector of buffers twice."""
    table = torch.ones(64)

    def build(shape: Any, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), Tabled(table), Tabled(table), nn.Linear(64, num_classes))

    with pytest.raises(ConfigError, match=r"has one buffer as \S*1.table and as \S*2.table; give each its own"):
        on_meta(fedskew.model("tabled")(build)(), (1, 8, 8), 4)


def test_a_network_that_goes_on_after_its_last_layer_is_refused() -> None:
    """Kills: scores of a head alone, where the network has a temperature or a softmax behind it."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.Softmax(1))
    with pytest.raises(ConfigError, match=r"cannot be divided into a body and a head: something comes after"):
        check_split(split_model(network), (1, 8, 8), 4)


def test_a_head_of_several_layers_is_refused_by_name() -> None:
    """Kills: an error of torch's in the place of what a head is."""
    with pytest.raises(ConfigError, match=r"model=Sequential: is no head: one linear layer .*; put what comes before"):
        Model(nn.Flatten(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))  # pyright: ignore[reportArgumentType]


def test_a_function_of_ones_own_gets_a_projection() -> None:
    """Kills: MOON's projection refused as something that comes after the last linear layer."""

    def build(shape: Any, num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    model = fedskew.model("projected")(build)
    built = build_model(model(projection=True), (1, 8, 8), 4, seeds.generator(0, "weights"))
    assert built(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    check_split(built, (1, 8, 8), 4)


class Softened(Model):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).softmax(1)


@dataclasses.dataclass(frozen=True)
class Written(ModelSpec):
    """A specification of one's own, and not a function."""

    keeps_weights: ClassVar[bool] = True
    softened: bool = False

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        body, head = nn.Flatten(), nn.Linear(math.prod(shape), num_classes if self.softened else 3)
        return Softened(body, head) if self.softened else Model(body, head)


@pytest.mark.parametrize(("softened", "told"), [(True, "something comes after its last"), (False, "must give scores")])
def test_a_specification_of_ones_own_is_checked_alike(
    softened: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: personal heads and calibrated ones that are not what the model computes; three scores of ten."""
    monkeypatch.setitem(MODELS, "written", Written)
    with pytest.raises(ConfigError, match=told):
        run(Experiment(**{**SMALL, "model": Written(softened=softened)}), tmp_path / "run")


@pytest.mark.parametrize(
    ("momentum", "tracked", "refused"), [(None, True, True), (0.1, True, False), (None, False, False)]
)
def test_a_network_that_counts_its_batches_is_refused(momentum: float | None, tracked: bool, refused: bool) -> None:
    """Kills: statistics of one client that depend on whom its worker had trained before; a refusal of other norms."""

    def build(shape: Any, num_classes: int) -> nn.Module:
        norm = nn.BatchNorm1d(8, momentum=momentum, track_running_stats=tracked)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), norm, nn.Linear(8, num_classes))

    model = fedskew.model("counting")(build)()
    net = FlatNet(build_model(model, (1, 8, 8), 4, seeds.generator(0, "weights")), torch.device("cpu"), torch.float32)
    weights, buffers, x = net.weights.clone(), net.buffers.clone(), torch.randn(5, 1, 8, 8)
    visits = []
    for _ in range(2):
        net.load(weights, buffers)
        net.train()
        net(x)
        visits.append(net.buffers.clone())
    assert torch.equal(*visits) == (not refused)
    told = r"model=Sequential: has BatchNorm1d body.2 with momentum=None, which averages over all .*momentum=0.1"
    with pytest.raises(ConfigError, match=told) if refused else nullcontext():
        check_size(model, (1, 8, 8), 4)


def test_a_function_is_a_partition_and_a_data_set(tmp_path: Path) -> None:
    """Kills: rows that are given twice, lost without a word, or not there; another number of clients than was said."""

    def halves(labels: np.ndarray, rng: np.random.Generator, clients: int = 2, skip: int = 0) -> Any:
        return np.array_split(rng.permutation(len(labels))[skip:], clients)

    def blobs(n: int = 60) -> Any:
        y = np.arange(n) % 3
        return {"train": (np.eye(3)[y], y), "test": (np.eye(3)[y[:9]], y[:9])}

    part, data = fedskew.partition("halves")(halves), fedskew.dataset("blobs")(blobs)
    labels = np.zeros(11, np.int64)
    found = part(clients=3, skip=2, seed=4).assign(labels, 1)
    assert found.sizes().tolist() == [3, 3, 3] and len(found.dropped) == 2
    again = part(clients=3, skip=2, seed=4).assign(labels, 1)
    assert all(np.array_equal(a, b) for a, b in zip(found.clients, again.clients, strict=True))
    asked = {**SMALL, "data": {"name": "blobs", "n": 30}, "partition": {"name": "halves", "clients": 2}}
    summary = run(Experiment(**asked, local={"lr": 0.5, "epochs": 5}), tmp_path / "run")
    assert summary["accuracy"] == 1.0 and data().read().shape == (3, 1, 1)
    wrong = {
        "is not what wrong gives, which is 1": lambda labels, clients: [range(3)],
        "gave rows outside of the 11 training samples": lambda labels, clients: [[0], [11]],
        "gave a row twice": lambda labels, clients: [[0, 1], [1]],
        "gave a int that is no list of rows": lambda labels, clients: 3,
        r"raised ZeroDivisionError: division by zero \(test_own_parts.py, line": lambda labels, clients: 1 / 0,
    }
    for told, function in wrong.items():
        function.__name__ = function.__qualname__ = "wrong"
        with pytest.raises(ConfigError, match=told):
            fedskew.partition("wrong")(function)(clients=2).assign(labels, 1)


# --- what a part is given, gives back, and does beside --------------------------------------------------------

ROWS = np.arange(12) % 3


def divide(function: Any, **fields: Any) -> Any:
    """What a function comes to as a partition of twelve rows of three classes."""
    function.__name__ = function.__qualname__ = "mine"
    return fedskew.partition("mine")(function)(**{"clients": 2, **fields}).assign(ROWS.copy(), 3, ROWS.copy())


def giving(rows: Any) -> Any:
    return lambda labels, clients: rows


def told_of(function: Any, **fields: Any) -> str:
    with pytest.raises(ConfigError) as told:
        divide(function, **fields)
    return str(told.value)


NOT_ROWS: dict[str, tuple[Any, str]] = {
    "halves": ([np.arange(3) + 0.5, [1]], "client 0: is given float64 of shape [3] as its rows; give whole numbers"),
    "whole numbers as floats": ([[0], [1.0, 2.0]], "client 1: is given float64 of shape [2] as its rows; give whole"),
    "masks": (
        [ROWS > 0, ROWS == 0],
        "client 0: is given a mask of True and False of shape [12] as its rows; give np.flat",
    ),
    "lists in lists": ([[[0, 1]], [2]], "client 0: is given int64 of shape [1, 2] as its rows"),
    "ragged lists": ([[[0, 1], [2]], [3]], "client 0: is given object of shape [2] as its rows"),
    "names": ([["0", "1"], [2]], "client 0: is given <U1 of shape [2] as its rows"),
    "one row for each": ([0, 1], "client 0: is given int64 of shape [] as its rows"),
    "sets": ([{0, 1}, {2}], "client 0: is given object of shape [] as its rows"),
    "a dictionary": ({0: [0], 1: [1]}, "gave a dict that is no list of rows for each client; return a list of index"),
    "negative rows": ([[-1], [1]], "gave rows outside of the 12 training samples; return places in labels"),
}


@pytest.mark.parametrize("case", NOT_ROWS)
def test_rows_are_not_cast(case: str) -> None:
    """Kills: rows that are rounded, a mask as rows 0 and 1, a dictionary's keys as rows, in silence; for functions or
    for classes alone."""
    rows, told = NOT_ROWS[case]
    assert told in told_of(lambda labels, clients: rows)

    class Own(Partition):
        def draw(self, rng: Any, labels: Any, num_classes: Any, owners: Any) -> Assignment:
            return Assignment(rows)

    if not isinstance(rows, dict):  # of which that is said before it is an Assignment
        with pytest.raises(ConfigError) as refused:
            dataclasses.dataclass(frozen=True, kw_only=True)(Own)(clients=2).assign(ROWS, 3)
        assert told in str(refused.value)


def test_rows_of_other_whole_numbers_are_taken() -> None:
    """Kills: a refusal of what is right: lists, other widths, torch's, empty ones of whatever type."""
    for rows in ([[0, 1], []], (np.int32([0, 1]), np.array([])), [torch.tensor([0, 1]), range(0)], iter([[1, 0], ()])):
        listed = list(rows)  # type: ignore[call-overload]
        assert [sorted(part.tolist()) for part in divide(giving(listed)).clients] == [[0, 1], []]
    assert divide(lambda labels, clients: [[0], [1]]).dropped.tolist() == list(range(2, 12))


class Sharing(Partition):
    def draw(self, rng: Any, labels: Any, num_classes: Any, owners: Any) -> Assignment:
        return Assignment(([0, 1], [1, 2]), public=np.array([5]))


def test_a_class_is_held_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a class that gives a row twice, or rows that are public, where a function may not; what it says of rows
    that nobody has taken as it is."""
    own = dataclasses.dataclass(frozen=True, kw_only=True)(Sharing)(clients=2)
    with pytest.raises(ConfigError, match=r"name=Sharing: gave a row twice; .*shares_rows: ClassVar\[bool\] = True"):
        own.assign(ROWS, 3)
    monkeypatch.setattr(Sharing, "shares_rows", True)
    assert own.assign(ROWS, 3).dropped.tolist() == [3, 4, 6, 7, 8, 9, 10, 11]
    monkeypatch.setattr(Sharing, "draw", lambda *given: [[0], [1]])
    with pytest.raises(ConfigError, match="name=Sharing: draws a list; return an Assignment"):
        own.assign(ROWS, 3)


def test_what_a_part_is_given_cannot_be_written() -> None:
    """Kills: a slip (sort for argsort) that sorts the labels of the data set."""
    given = r"partition.name=mine: raised ValueError: .*read-only \(test_own_parts.py, line \d+\); see that line"
    assert re.search(given, told_of(lambda labels, clients: labels.sort()))
    assert re.search(given, told_of(lambda owners, clients: owners.__setitem__(0, 5)))
    pair: Any = fedskew.dataset("pair")(lambda: ((np.eye(3), [0, 1, 2]),) * 2)
    data = pair().load()
    for array in (data.train.images, data.train.labels, data.test.labels):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_a_partition_is_the_same_twice() -> None:
    """Kills: draws without a key, of whatever generator; a counter; an order of a set's or a clock's."""
    keyless = "partition.name=mine: draws from {}'s global generator, which has no key; draw from rng"
    numpys = lambda labels, clients: np.array_split(np.random.permutation(12), 2)  # noqa: NPY002, E731
    assert told_of(numpys) == keyless.format("numpy")
    assert told_of(lambda labels, clients: torch.randperm(12).chunk(2)) == keyless.format("torch")
    again, calls = "partition.name=mine: gives other rows when it is drawn again; draw from rng alone", list[int]()
    assert again in told_of(lambda labels, clients: (calls.append(1), [[len(calls)], [0]])[1])
    assert again in told_of(lambda labels, clients: [random.sample(range(12), 6), []])
    assert again in told_of(lambda labels, clients: np.array_split(np.random.default_rng().permutation(12), 2))


def test_labels_are_copies() -> None:
    """Kills: a partition that writes into the data set past the flag that forbids it."""
    labels = ROWS.copy()

    def past_the_flag(labels: np.ndarray, clients: int) -> Any:
        labels.setflags(write=True)
        labels[:] = 0
        return [[0], [1]]

    fedskew.partition("mine")(past_the_flag)(clients=2).assign(labels, 3)
    assert (labels == ROWS).all()


def test_a_part_that_is_another_one_each_time() -> None:
    """Kills: data, or a network's weights, numbers, lists and buffers, that each process has others of."""
    unkeyed: Any = fedskew.dataset("unkeyed")(
        lambda: ((np.random.default_rng().normal(size=(4, 2)), [0, 1, 0, 1]),) * 2
    )
    with pytest.raises(ConfigError, match=r"data.name=unkeyed: gives other data when it is read again; draw from"):
        unkeyed().load()

    def other(shape: Any, num_classes: int, kind: str = "") -> nn.Module:
        network = two_layers(shape, num_classes)
        if kind == "weights":
            nn.init.constant_(network[3].bias, random.random())
        if kind == "number":
            network[2].scale = random.random()
        if kind == "list":
            network[2].columns = [random.sample(range(64), 8)]
        if kind == "buffer":
            network[2].register_buffer("places", torch.tensor(random.sample(range(64), 8)), persistent=False)
        return network

    own: Any = fedskew.model("other")(other)
    built_alike(own(), (1, 8, 8), 4)
    with pytest.raises(ConfigError, match=r"model.name=other: has another head.bias when it is built again from"):
        built_alike(own(kind="weights"), (1, 8, 8), 4)
    with pytest.raises(ConfigError, match=r"model.name=other: has another body.2.scale when it is built again"):
        built_alike(own(kind="number"), (1, 8, 8), 4)
    with pytest.raises(ConfigError, match=r"has another body.2.columns when it is built again"):
        built_alike(own(kind="list"), (1, 8, 8), 4)
    with pytest.raises(ConfigError, match=r"has another body.2.places when it is built again"):
        built_alike(own(kind="buffer"), (1, 8, 8), 4)


def test_a_call_of_a_part_is_contained(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Kills: a run that ends with 0 by a part's sys.exit; a part's lines among results; a folder, a precision or a
    number of threads that one part leaves to all others."""
    before = settings()

    def unruly(labels: np.ndarray, clients: int) -> Any:
        print("said")
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(before["torch's number of threads"] + 1)
        torch.set_grad_enabled(False)
        torch.set_default_device("meta")
        torch.use_deterministic_algorithms(True, warn_only=True)
        np.seterr(all="raise")
        return [[0], [1]]

    assert divide(unruly).sizes().tolist() == [1, 1] and settings() == before
    out, err = capsys.readouterr()
    assert out == "" and err.count("said\n") == 2
    assert caplog.messages[0] == "partition.name=mine changes the working directory, which is put back: others share it"
    assert len(set(caplog.messages)) == 7
    ended = "raised SystemExit: 0 (test_own_parts.py, line"
    assert f"partition.name=mine: {ended}" in told_of(lambda labels, clients: sys.exit(0))
    assert "partition.name=mine: raised SystemExit: 15 (test" in told_of(lambda labels, clients: sys.exit(15))
    quits: Any = fedskew.dataset("quits")(lambda: sys.exit(0))
    with pytest.raises(ConfigError) as told:
        quits().load()
    assert f"data.name=quits: {ended}" in str(told.value)
    quits = fedskew.model("quits")(lambda shape, num_classes: sys.exit(0))
    with pytest.raises(ConfigError) as told:
        build_model(quits(), (1, 8, 8), 4, torch.Generator())
    assert f"model.name=quits: {ended}" in str(told.value)


class Quits(FedAvg):
    where: ClassVar[str] = ""

    def loss(self, net: Any, batch: Any, received: Any, state: Any) -> Any:
        return sys.exit(0) if self.where == "loss" else super().loss(net, batch, received, state)

    def aggregate(self, server: Any, pooled: Any, context: Any) -> Any:
        return sys.exit(0) if self.where == "aggregate" else super().aggregate(server, pooled, context)


@pytest.mark.parametrize("where", ["loss", "aggregate"])
def test_an_algorithm_ends_no_process(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: an exit code of 0 after half a run, or an actor that is taken for dead."""
    monkeypatch.setattr(Quits, "where", where)
    kind = type("Quits", (Quits,), {"__module__": __name__})
    quits = fedskew.algorithm("quits")(dataclasses.dataclass(frozen=True)(kind))
    with pytest.raises(RunError, match=r"^round 1: Quits.* calls sys.exit\(0\); let it return, or raise an error$"):
        run(Experiment(algorithm=quits(), **SMALL), tmp_path / "run")
    del ALGORITHMS["quits"]


def test_a_default_precision_of_a_script_is_refused(tmp_path: Path) -> None:
    """Kills: other numbers in this process than in an actor, which does not run the script."""
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"torch.set_default_dtype=torch.float64: is set by code of your own"):
            run(Experiment(**SMALL), tmp_path / "run")
    finally:
        torch.set_default_dtype(torch.float32)


STARTING = """
import fedskew
fedskew.run(fedskew.Experiment(), {out!r})
"""


def test_a_file_that_starts_a_run_is_refused(tmp_path: Path) -> None:
    """Kills: a run that each process of a run starts again; a refusal of all runs afterwards."""
    (tmp_path / "starting.py").write_text(STARTING.format(out=str(tmp_path / "run")))
    told = r'file=\S+starting.py: starts a run while it is imported, .*; put that under if __name__ == "__main__":$'
    with pytest.raises(ConfigError, match=told):
        import_file(tmp_path / "starting.py", "--with")
    assert not (tmp_path / "run").exists()
    assert run(Experiment(**SMALL), tmp_path / "other")["status"] == "finished"


def test_rounds_are_shared_by_who_has_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: rounds of another division, by a partition whose code is the same, taken from the store."""
    fedskew.partition("by_file")(by_file)
    monkeypatch.setattr(sys.modules[__name__], "FIRST", 0)
    config, store = (
        Experiment(**{**SMALL, "partition": {"name": "by_file", "clients": 2}}),
        StageStore(tmp_path / "store"),
    )
    first = run(config, tmp_path / "first", store=store)
    monkeypatch.setattr(sys.modules[__name__], "FIRST", 100)
    second = run(config, tmp_path / "second", store=store)
    assert (first["rounds_computed"], second["rounds_computed"]) == (2, 2)
    assert first["weights_sha256"] != second["weights_sha256"] and first["stages"] != second["stages"]
    assert run(config, tmp_path / "third", store=store)["rounds_computed"] == 0


FIRST = 0


def by_file(labels: np.ndarray, clients: int) -> Any:
    """Rows that depend on what no field says, as of a file that somebody has changed."""
    return [np.arange(FIRST, FIRST + 40), np.arange(FIRST + 40, FIRST + 100)]


# --- data sets ------------------------------------------------------------------------------------------------


class Torch:
    """A data set as torch and torchvision have them."""

    classes = ("cat", "dog")

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> Any:
        if row >= 4:
            raise IndexError
        return torch.full((3, 2, 2), row / 4), row % 2


class Names:
    names = ("zero", "one", "two")


class Hub(list[Any]):
    """A data set as Hugging Face's package has them."""

    features = {"img": None, "label": Names()}  # noqa: RUF012


def test_data_sets_as_users_have_them() -> None:
    """Kills: channels that are not put first; pixels that become floats; labels or class names that are lost."""
    pixels = np.arange(2 * 6 * 5 * 3, dtype=np.uint8).reshape(2, 6, 5, 3)
    both = {"train": (pixels, [0, 1]), "test": (pixels[:1], [1])}
    found = as_dataset(both, "mine")
    assert found.train.images.dtype == np.uint8 and found.shape == (3, 6, 5) and found.name == "mine"
    assert np.array_equal(found.train.images[1, 2], pixels[1, :, :, 2])
    found = as_dataset((Torch(), Torch()), "mine")
    assert found.classes == ("cat", "dog") and found.train.images[3, 0, 0, 0] == np.float32(0.75)
    rows = Hub([{"img": np.full((2, 2), n, np.uint8), "label": n} for n in range(3)])
    found = as_dataset({"train": rows, "test": rows}, "mine")
    assert found.classes == Names.names and found.shape == (1, 2, 2) and found.mean != (0.0,)
    picture = fromarray(np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3))  # four rows, and no alpha
    found = as_dataset(([(picture, 0)], [(picture, 0)]), "mine")
    assert found.shape == (3, 4, 5) and found.train.images[0, 2, 0, 1] == 5
    named = as_dataset({"train": (np.eye(2), ["b", "a"]), "test": (np.eye(2), ["a", "c"])}, "mine")
    assert named.classes == ("a", "b", "c") and named.train.labels.tolist() == [1, 0] and named.test.labels[1] == 2
    owned = as_dataset({"train": (np.eye(2), [0, 1], [5, 6]), "test": (np.eye(2), [0, 1], [5, 6])}, "mine")
    assert owned.train.owners is not None and owned.train.owners.tolist() == [5, 6]


NOT_DATA = {
    "gave a int, and must give": 3,
    "train is a int, and must be": {"train": 3, "test": 3},
    "contains NaN or infinite values": ((np.full((2, 2), np.nan), [0, 1]),) * 2,
    "has samples of type <U1": ((np.full((2, 2), "a"), [0, 1]),) * 2,
    "has samples of shape []": ((np.zeros(2), [0, 1]),) * 2,
    "has the columns picture, label": ([{"picture": 1, "label": 2}], [{"picture": 1, "label": 2}]),
    "train is empty": ([], []),
}


@pytest.mark.parametrize("told", NOT_DATA)
def test_what_is_no_data_set_is_one_sentence(told: str) -> None:
    """Kills: an error of numpy's; samples that nothing can be trained on."""
    with pytest.raises(DataError) as raised:
        as_dataset(NOT_DATA[told], "mine")
    assert told in str(raised.value) and str(raised.value).startswith("data.name=mine")


def test_an_own_folder_is_another_data_set(tmp_path: Path) -> None:
    """Kills: two folders of one's own under one digest, as it is right for a known data set."""
    fedskew.dataset("from_root")(lambda root="a": None)
    digests = {Experiment(**{**SMALL, "data": {"name": "from_root", "root": root}}).digest for root in "ab"}
    assert len(digests) == 2 and "from_root" in SOURCES


# --- on the way to another process -------------------------------------------------------------------------

ELSEWHERE = """
import pickle, sys
from engine.experiment import Experiment
from algorithms import ALGORITHMS
from engine.record.stage_hashes import code_of
experiment = pickle.loads(sys.stdin.buffer.read())
assert ALGORITHMS["ownprox"] is type(experiment.algorithm)
assert Experiment.from_mapping(experiment.to_mapping()) == experiment
print(code_of(experiment), experiment.digest, sys.modules["own_scale"].SCALE)
"""


def test_a_process_that_has_no_file_is_sent_it(tmp_path: Path) -> None:
    """Kills: a part that is pickled by the name of a module that is nowhere else; a module beside it that is left
    behind; another hash of the same code."""
    from engine.record.stage_hashes import code_of

    folder = own_prox.write(tmp_path / "code", ownprox=own_prox.FILE)
    import_file(folder / "ownprox.py", "--with")
    experiment = Experiment(algorithm={"name": "ownprox"}, **SMALL)
    sent = pickle.dumps(experiment)
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], input=sent, capture_output=True, check=False)
    assert done.stdout.decode().split() == [code_of(experiment), experiment.digest, "1.0"], done.stderr.decode()
    assert len(pickle.dumps([experiment] * 50)) < len(sent) + 2000  # the sources once
    assert b"engine.experiment.parts" not in pickle.dumps(Experiment(**SMALL))
    assert MODELS["mlp"] is MLP


def test_the_pages_examples_run(tmp_path: Path) -> None:
    """Kills: an example that does not train; a README that begins with one."""
    root = Path(__file__).parents[2]
    page = re.findall(r"```python\n(.*?)```", (root / "docs" / "own_parts.md").read_text(), re.S)
    blocks = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(), re.S)
    readme = next(block for block in blocks if "OwnProx" in block)
    names = {"nn": nn, "np": np, "fedskew": fedskew, "__name__": __name__}
    for block in (one for one in page if "fedskew.testing" not in one):
        exec(compile(block, "own_parts.md", "exec"), names)
    asked = {**SMALL, "model": {"name": "two_layers"}, "partition": {"name": "by_parity", "clients": 4}}
    made = Experiment(algorithm=names["OwnProx"](mu=0.1), **asked)
    labels = np.arange(40) % 10
    held = made.partition.assign(labels, 10).clients
    assert [set(labels[rows] % 2) for rows in held] == [{0}, {0}, {1}, {1}]
    del ALGORITHMS["ownprox"]
    exec(compile(readme.partition("summary = ")[0], "README.md", "exec"), names)
    assert run(Experiment(algorithm=names["OwnProx"](mu=0.1), **SMALL), tmp_path / "run")["rounds"] == 2


def test_a_method_that_has_come_into_fedskew_is_not_asked_for(tmp_path: Path) -> None:
    """Kills: an old folder that asks for a package whose method fedskew has by now; one that asks for none of those
    that fedskew still lacks."""
    packaged = {"origin": "package", "place": "fedskew-more", "version": "0.1.0", "code": "0" * 16}
    names = {"stages.train.algorithm": "feddyn", "stages.end.algorithm": "feddyna"}
    (tmp_path / parts.FILE).write_text(json.dumps({place: {"name": name, **packaged} for place, name in names.items()}))
    assert parts.needs([tmp_path]).others == (
        "algorithm 'feddyn' came from fedskew-more; fedskew has one of that name itself now",
        "algorithm 'feddyna' came from fedskew-more; install fedskew-more 0.1.0",
    )
    assert [name for _, name in parts.lacking(tmp_path)] == ["feddyna"]
