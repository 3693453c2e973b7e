"""Sweeps: names, overrides, options, a user's own file."""

from __future__ import annotations

from tests.bad_input.case import Case

FEDPROX = "drift.fedprox_mu"
HEAD = "from ray import tune\nfrom engine.experiment import Experiment\nfrom engine.sweeps.definition import *\n"


def sweep(name: str, words: str, message: str) -> Case:
    return Case(name, ("sweep", *words.split(" ")), message)


def own(name: str, body: str | bytes, message: str) -> Case:
    """``fedskew sweep own.py:f`` with that file."""
    return Case(name, ("sweep", "own.py:f"), message, {"own.py": body})


def returned(name: str, sweep: str, message: str) -> Case:
    return own(name, f"{HEAD}def f(profile):\n    return Sweep(base=Experiment(), {sweep})\n", message)


WORDS = [
    sweep("sweep is unknown", "drift.nope", "sweep=drift.nope: is not a known sweep; did you mean"),
    sweep("sweep without a name", "", "sweep='': is not a known sweep"),
    sweep("a sweep's path", "../../drift.fedprox_mu", "is not a known sweep"),
    sweep("profile is unknown", f"{FEDPROX} --profile poster", "--profile=poster: is not a profile"),
    sweep("mode is unknown", f"{FEDPROX} --mode outside", "--mode=outside: is not a mode; use auto, inside or nested"),
    sweep("no trial at a time", f"{FEDPROX} --concurrent 0", "--concurrent=0: must be at least 1"),
    sweep("a store of nothing", f"{FEDPROX} --store-limit 0", "--store-limit=0.0: must be above 0 GB"),
    sweep("a store of NaN", f"{FEDPROX} --store-limit nan", "--store-limit=nan: must be above 0 GB"),
    sweep("a store without end", f"{FEDPROX} --store-limit inf", "--store-limit=inf: must be above 0 GB"),
    sweep("a store where nothing can be", f"{FEDPROX} --store /proc/nowhere", "--store=/proc/nowhere: cannot be wr"),
    sweep("a sweep where nothing can be", f"{FEDPROX} --out /proc/nowhere", "--out=/proc/nowhere: cannot be written"),
    sweep("no seed", f"{FEDPROX} seeds=[]", "seeds=[]: must name at least one"),
    sweep("a seed twice", f"{FEDPROX} seeds=[1,1]", "seeds=[1, 1]: names one twice"),
    sweep("a seed that is a fraction", f"{FEDPROX} seeds=[1.5]", "seeds=[1.5]: must be whole numbers from 0 on"),
    sweep("a seed that is a list", f"{FEDPROX} seeds=[[1]]", "seeds=[[1]]: must be whole numbers from 0 on"),
    sweep("a seed beyond 64 bits of a trial", f"{FEDPROX} seeds=[{2**63}]", "is larger than any number of a run can"),
    sweep("draws of a grid", f"{FEDPROX} samples=1000000000", "draws from a space in which nothing is drawn"),
    sweep("a key that is varied", f"{FEDPROX} partition.alpha=3", "is varied by this sweep"),
    sweep("a bad base", f"{FEDPROX} local.lr=-1", "local.lr=-1: must be greater than 0"),
    sweep("an override without a value", f"{FEDPROX} rounds", "override=rounds: must be key=value"),
    Case("a cell that is none", ("run", f"{FEDPROX}:mu=7"), "cell=mu=7: is not in drift.fedprox_mu"),
    Case("overrides of all cells", ("run", FEDPROX, "rounds=3"), "overrides=rounds=3: are for one cell"),
    Case("a trial of no sweep", ("run", "runs/none:00001"), "folder=runs/none: is not a sweep's folder"),
    Case("a cell of nothing", ("run", ":"), "sweep='': is not a known sweep"),
]

OWN = [
    sweep("a file that is not there", "own.py:f", "own.py: is not a file; name one as FILE.py:function"),
    Case("a file without its function", ("sweep", "own.py:"), "has no function ''", {"own.py": "def f(profile): pass"}),
    own("a file that is binary", bytes(range(256)), "own.py: cannot be imported: SyntaxError"),
    own("a file that ends the process", "import sys\nsys.exit(0)\n", "own.py: cannot be imported: SystemExit"),
    own("a function that ends the process", "def f(profile):\n    raise SystemExit\n", "own.py:f: raised SystemExit"),
    own("a file that calls itself for ever", "def g():\n    g()\ng()\n", "own.py: cannot be imported: RecursionError"),
    own("a function that is none", "f = 3\n", "own.py:f: has no function 'f'"),
    own("a function of nothing", "def f():\n    pass\n", "own.py:f: cannot be called with a profile"),
    own("a function that returns a number", "def f(profile):\n    return 3\n", "own.py:f: returned a int; return a"),
    returned("a space of an unknown key", "space={'local.lrr': tune.grid_search([1])}", "local.lrr"),
    returned("a space of a bad value", "space={'local.lr': tune.grid_search([-1])}", "local.lr=-1: must be greater"),
    returned("a space of nothing", "space={'local.lr': tune.grid_search([])}", "has no value to choose from"),
    returned("a space of one key twice", "space={'eta': 1, 'local.lr': 2}", "by another name; keep one of the two"),
    returned("a metric that is none", "space={}, metric='beauty'", "metric=beauty: is not reported"),
    returned("a mode that is the wrong way", "space={}, mode='min'", "mode=min: is not the way to a better"),
    returned("a rung between reports", "space={}, scheduler=Asha(grace=3), step=2", "scheduler.grace=3: must be a mu"),
    returned("halving by one", "space={}, scheduler=Asha(grace=2, factor=1)", "scheduler.factor=1: must be at least 2"),
    returned("a population of one", "space={}, scheduler=Pbt(every=1, mutations={'local.lr': [1, 2]})", "samples=1: m"),
    returned("a population without change", "space={}, scheduler=Pbt(every=1, mutations={})", "must name what changes"),
    returned("a searcher on a grid", "space={'mu': tune.grid_search([1])}, search=Optuna()", "mu"),
    returned("samples in words", "space={}, samples='many'", "samples=many: must be a whole number of at least 1"),
    returned("a step of NaN", "space={}, step=float('nan')", "step=nan: must be a whole number of at least 1"),
]

CASES = [*WORDS, *OWN]
