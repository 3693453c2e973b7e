"""Sweeps: names, overrides, options, a user's own file."""

from __future__ import annotations

from tests.bad_input.case import Case

FEDPROX = "drift.fedprox_mu"
HEAD = "from ray import tune\nfrom engine.experiment import Experiment\nfrom engine.sweeps.definition import *\n"


def sweep(name: str, words: str) -> Case:
    return Case(name, ("sweep", *words.split(" ")))


def own(name: str, body: str | bytes) -> Case:
    """``fedskew sweep own.py:f`` with that file."""
    return Case(name, ("sweep", "own.py:f"), {"own.py": body})


def returned(name: str, sweep: str) -> Case:
    return own(name, f"{HEAD}def f(profile):\n    return Sweep(base=Experiment(), {sweep})\n")


WORDS = [
    sweep("sweep is unknown", "drift.nope"),
    sweep("sweep without a name", ""),
    sweep("a sweep's path", "../../drift.fedprox_mu"),
    sweep("profile is unknown", f"{FEDPROX} --profile poster"),
    sweep("mode is unknown", f"{FEDPROX} --mode outside"),
    sweep("no trial at a time", f"{FEDPROX} --concurrent 0"),
    sweep("a store of nothing", f"{FEDPROX} --store-limit 0"),
    sweep("a store of NaN", f"{FEDPROX} --store-limit nan"),
    sweep("a store without end", f"{FEDPROX} --store-limit inf"),
    sweep("a store where nothing can be", f"{FEDPROX} --store /proc/nowhere"),
    sweep("a storage of no kind", f"{FEDPROX} --storage nowhere://bucket"),
    sweep("a storage where nothing can be", f"{FEDPROX} --storage file:///proc/nowhere"),
    sweep("a storage with a password", f"{FEDPROX} --storage s3://me:secret@bucket/sweeps"),
    sweep("a storage with a signature", f"{FEDPROX} --storage abfss://account/sweeps?region=x&sig=secret"),
    sweep("a sweep where nothing can be", f"{FEDPROX} --out /proc/nowhere"),
    sweep("no seed", f"{FEDPROX} seeds=[]"),
    sweep("a seed twice", f"{FEDPROX} seeds=[1,1]"),
    sweep("a seed that is a fraction", f"{FEDPROX} seeds=[1.5]"),
    sweep("a seed that is a list", f"{FEDPROX} seeds=[[1]]"),
    sweep("a seed beyond 64 bits of a trial", f"{FEDPROX} seeds=[{2**63}]"),
    sweep("draws of a grid", f"{FEDPROX} samples=1000000000"),
    sweep("a key that is varied", f"{FEDPROX} partition.alpha=3"),
    sweep("a bad base", f"{FEDPROX} local.lr=-1"),
    sweep("an override without a value", f"{FEDPROX} rounds"),
    Case("a cell that is none", ("run", f"{FEDPROX}:mu=7")),
    Case("overrides of all cells", ("run", FEDPROX, "rounds=3")),
    Case("a trial of no sweep", ("run", "runs/none:00001")),
    Case("a cell of nothing", ("run", ":")),
]

OWN = [
    sweep("a file that is not there", "own.py:f"),
    Case("a file without its function", ("sweep", "own.py:"), {"own.py": "def f(profile): pass"}),
    own("a file that is binary", bytes(range(256))),
    own("a file that ends the process", "import sys\nsys.exit(0)\n"),
    own("a function that ends the process", "def f(profile):\n    raise SystemExit\n"),
    own("a file that calls itself for ever", "def g():\n    g()\ng()\n"),
    own("a function that is none", "f = 3\n"),
    own("a function of nothing", "def f():\n    pass\n"),
    own("a function that returns a number", "def f(profile):\n    return 3\n"),
    returned("a space of an unknown key", "space={'local.lrr': tune.grid_search([1])}"),
    returned("a space of a bad value", "space={'local.lr': tune.grid_search([-1])}"),
    returned("a space of nothing", "space={'local.lr': tune.grid_search([])}"),
    returned("a space of one key twice", "space={'eta': 1, 'local.lr': 2}"),
    returned("a metric that is none", "space={}, metric='beauty'"),
    returned("a mode that is the wrong way", "space={}, mode='min'"),
    returned("a rung between reports", "space={}, scheduler=Asha(grace=3), step=2"),
    returned("halving by one", "space={}, scheduler=Asha(grace=2, factor=1)"),
    returned("a population of one", "space={}, scheduler=Pbt(every=1, mutations={'local.lr': [1, 2]})"),
    returned("a population without change", "space={}, scheduler=Pbt(every=1, mutations={})"),
    returned("a searcher on a grid", "space={'mu': tune.grid_search([1])}, search=Optuna()"),
    returned("samples in words", "space={}, samples='many'"),
    returned("a step of NaN", "space={}, step=float('nan')"),
]

CASES = [*WORDS, *OWN]
