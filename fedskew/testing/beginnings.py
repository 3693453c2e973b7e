"""A part to begin with: a file and its test, which pass as they are (``fedskew new``)."""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template

from engine.base.errors import nearest, require
from engine.base.files import write_atomically
from engine.base.writable import check_writable
from engine.experiment import CHOICES

PART: dict[str, str] = {
    "algorithm": '''"""$Class: FedAvg with a term that holds clients near the weights that they received.

A client minimises F_k(w) + (mu / 2) ||w - w_t||^2, where F_k is its own mean loss and w_t are the weights that it
received; the gradient is that of F_k plus mu (w - w_t). This is FedProx (Li et al. 2020, arXiv:1812.06127, eq. 2):
put a method of your own in its place.
"""

from dataclasses import dataclass
from typing import Annotated

import fedskew
from fedskew.contract import Doc, Ge, Neutral


@fedskew.algorithm("$name")
@dataclass(frozen=True)
class $Class(fedskew.FedAvg):
    """Hyper-parameters are fields with defaults; what clients keep or send is declared in ``entries``."""

    # What it takes, what it means, and the value at which it is FedAvg to the bit, which is checked.
    mu: Annotated[float, Ge(0), Doc("weight of the proximal term"), Neutral(0, "is FedAvg")] = 0.1

    @fedskew.idle_when(mu=0)  # the engine then skips this hook and goes FedAvg's way, to the bit
    def gradient(self, grad, weights, received, state, client):
        """Return the gradient [P] that the optimizer gets; make new tensors, and look at no tensor's value."""
        if self.mu == 0:  # a hyper-parameter, so this is no branch on a tensor
            return grad
        return grad + self.mu * (weights - received["weights"])
''',
    "model": '''"""$Class: two hidden layers and a head; put a network of your own in its place."""

import torch

import fedskew


@fedskew.model("$name")
def $name(shape, num_classes, hidden: int = 32):
    """Return a network for images of ``shape`` (C, H, W). What is not given by the engine is a field: model.hidden."""
    inputs = shape[0] * shape[1] * shape[2]
    return torch.nn.Sequential(
        torch.nn.Flatten(),
        torch.nn.Linear(inputs, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, num_classes),  # the head: the last linear layer, with nothing after it
    )
''',
    "data": '''"""$Class: points around a centre for each class; put data of your own in their place."""

import numpy

import fedskew


@fedskew.dataset("$name")
def $name(samples: int = 2000, spread: float = 1.0):
    """Return two splits (x, y) or (x, y, owners): x [N, D], [N, H, W] or [N, C, H, W], y class numbers from 0."""
    rng = numpy.random.Generator(numpy.random.PCG64(0))  # of a seed, so that the data are the same each time
    labels = numpy.arange(samples) % 10
    centres = rng.normal(size=(10, 20))
    x = centres[labels] + spread * rng.normal(size=(samples, 20))
    cut = samples * 4 // 5
    return {"train": (x[:cut], labels[:cut]), "test": (x[cut:], labels[cut:])}
''',
    "partition": '''"""$Class: samples dealt at random, to each client as many; put a rule of your own in its place."""

import numpy

import fedskew


@fedskew.partition("$name")
def $name(labels, rng, clients: int = 20):
    """Return for each client the rows that it holds, places in ``labels``; draw from ``rng`` alone.

    ``num_classes`` and ``owners`` may be named as well; any other parameter is a field with that default.
    """
    return numpy.array_split(rng.permutation(len(labels)), clients)
''',
}

TEST = '''"""The checks of fedskew for $name, and tests of its own."""

import $imported

import $name
from fedskew.testing import parametrize_with_checks


@parametrize_with_checks([$name.$made])
def test_checks(part, check):
    """Kills: a broken rule of the engine; one that must fail is named by expected_failures={"its_name": "why"}."""
    check(part)


$own'''

# section -> the module that its own test needs, how an instance is made, its own test
OF_TEST: dict[str, tuple[str, str, str]] = {
    "algorithm": (
        "torch",
        "$Class(mu=0.1)",
        '''def test_the_term_holds_clients_back():
    """Kills: a sign error, a factor; g + mu (w - w_t) = 1 + 0.5 (5 - 3) = 2 by hand."""
    grad, weights, received = (torch.tensor([value]) for value in (1.0, 5.0, 3.0))
    found = $name.$Class(mu=0.5).gradient(grad, weights, {"weights": received}, {}, None)
    assert found.tolist() == [2.0]
''',
    ),
    "model": (
        "torch",
        "$name()",
        '''def test_it_has_so_many_weights():
    """Kills: a layer too many or too few; 12 inputs, 5 and 5 hidden units, 3 classes, by hand."""
    model = $name.$name(hidden=5).build((3, 2, 2), 3)
    assert sum(weights.numel() for weights in model.parameters()) == (12 + 1) * 5 + (5 + 1) * 5 + (5 + 1) * 3
    assert model(torch.zeros(7, 3, 2, 2)).shape == (7, 3)
''',
    ),
    "data": (
        "numpy",
        "$name()",
        '''def test_every_class_has_as_many_samples():
    """Kills: labels that are cut unevenly; 80 % of 100 samples of 10 classes are 8 of each."""
    data = $name.$name(samples=100).load()
    assert numpy.bincount(data.train.labels).tolist() == [8] * 10
    assert numpy.bincount(data.test.labels).tolist() == [2] * 10
''',
    ),
    "partition": (
        "numpy",
        "$name()",
        '''def test_clients_have_as_many_rows():
    """Kills: rows that are left over; 10 rows among 4 clients are 3, 3, 2 and 2."""
    parts = $name.$name(clients=4).assign(numpy.zeros(10, int), 1)
    assert parts.sizes().tolist() == [3, 3, 2, 2]
''',
    ),
}


def write(section: str, name: str, folder: Path) -> tuple[Path, Path]:
    """Write a part of that section and its test into ``folder``; return both files.

    Raises :class:`ConfigError` for a section that is none, a name that a module or another part has, and a file that
    is there already.
    """
    require(section in PART, "KIND", section, "is nothing to begin", nearest(section, PART))
    _check_name(section, name)
    path, test = folder / f"{name}.py", folder / f"test_{name}.py"
    for file in (path, test):
        require(not file.exists(), "--out", file, "is there already", "take another name, or another folder")
    check_writable(folder, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    imported, made, own = OF_TEST[section]
    words = {"name": name, "Class": "".join(word.capitalize() for word in name.split("_"))}
    words |= {"imported": imported, "made": Template(made).substitute(words), "own": Template(own).substitute(words)}
    for file, text in ((path, PART[section]), (test, TEST)):
        write_atomically(file, Template(text).substitute(words).encode())
    return path, test


def _check_name(section: str, name: str) -> None:
    fits = re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) is not None and not keyword.iskeyword(name)
    rule = "must be a name in Python: letters a-z, digits and '_', beginning with a letter"
    require(fits, "NAME", name, rule, "for example NAME=my_method")
    known = name in CHOICES[section].names()
    require(not known, "NAME", name, f"is the name of a known {section}", f"for example NAME=my_{name}")
    taken = name in sys.stdlib_module_names or name in sys.modules or find_spec(name) is not None
    require(not taken, "NAME", name, "is the name of another Python module", f"for example NAME=my_{name}")


def next_commands(section: str, name: str, path: Path, test: Path) -> list[str]:
    """Return what to type next: the checks, the tests, a run."""
    file = shlex.quote(str(path))
    run = f"fedskew run --with {file} {section}.name={name}"
    return [f"fedskew check {file}", f"pytest {shlex.quote(str(test))}", run]
