"""What a sweep is. A function of ``tune_configs`` returns one:

def fedprox_mu(profile: str) -> Sweep:
    return Sweep(
        base=base(profile),
        space={"mu": tune.grid_search([0, 0.1, 1]), "alpha": tune.grid_search([0.05, 0.5])},
        seeds=(0, 1, 2),
    )
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from ray.tune.search.sample import Domain, Float, Function, Integer, LogUniform
from ray.tune.search.variant_generator import generate_variants

from engine.analysis.claims import Claim, Layout
from engine.analysis.trials import RESERVED
from engine.errors import ConfigError, nearest, require
from engine.experiment import Experiment

METRICS = ("last10_accuracy", "accuracy", "best_accuracy", "loss")  # that a trial reports while it runs
PROFILES = ("laptop", "paper")


@dataclass(frozen=True)
class Asha:
    """Asynchronous successive halving (Li et al. 2020): at each rung the worse trials are stopped."""

    grace: int  # rounds that every trial gets; the first rung
    factor: int = 3  # one trial in ``factor`` goes on from rung to rung, and rungs are that many times apart


@dataclass(frozen=True)
class Pbt:
    """Population-based training (Jaderberg et al. 2017): the worst go on from a copy of one of the best, perturbed."""

    every: int  # rounds between two looks
    mutations: Mapping[str, Any]  # hyper-parameter -> Tune's domain or list of values to draw anew from
    quantile: float = 0.25  # the share that is replaced, and the share that is copied
    resample: float = 0.25  # probability of drawing anew; otherwise a value is multiplied by 0.8 or 1.2


@dataclass(frozen=True)
class Optuna:
    """Settings proposed by Optuna (the extra ``search``) from the mean over seeds of those before them."""

    sampler: Literal["tpe", "gp"] = "tpe"
    random: int = 10  # settings drawn at random before that


@dataclass(frozen=True)
class Sweep:
    """A base experiment, what is varied, and what is to be learned from it."""

    base: Experiment
    # Dotted keys or papers' symbols -> Ray Tune's grid_search, choice, uniform, loguniform, ..., sample_from.
    space: Mapping[str, Any]
    seeds: tuple[int, ...] = (0,)
    samples: int = 1  # draws of what is not on a grid
    metric: str = "last10_accuracy"
    mode: Literal["max", "min"] = "max"
    search: Literal["random"] | Optuna = "random"  # grids and random draws; or a searcher
    search_seed: int = 0
    scheduler: Asha | Pbt | None = None
    step: int = 1  # rounds between two reports where a scheduler or ``stop`` may end a trial
    stop: Mapping[str, float] = field(default_factory=dict)  # metric -> value from which on a trial ends
    target_accuracy: float | None = None  # for rounds and bytes to it
    claims: tuple[Claim, ...] = ()
    tables: tuple[Layout, ...] = ()
    diagnose: bool = False  # compare the local models of each trial's last round, for claims on cka_* and norms

    def __post_init__(self) -> None:
        require(len(self.seeds) > 0, "seeds", self.seeds, "must name at least one", "for example seeds=[0,1,2]")
        require(len(set(self.seeds)) == len(self.seeds), "seeds", self.seeds, "names one twice", "name each once")
        require(self.samples >= 1, "samples", self.samples, "must be at least 1", "for example samples=20")
        require(self.step >= 1, "step", self.step, "must be at least 1 round", "for example step=1")
        require(self.metric in METRICS, "metric", self.metric, "is not reported", nearest(self.metric, METRICS))
        for name in self.space:
            require(name not in RESERVED, "space", name, "is a column of the trials table", "write its dotted key")
        axes = [axis["name"] for axis in self.axes()]
        for table in self.tables:
            for name in (*table.rows, *table.columns):
                require(name in axes, "tables", name, "is not varied by this sweep", nearest(name, axes))
        for name in self.stop:
            require(name in METRICS, "stop", name, "is not reported", nearest(name, METRICS))
        grids = [name for name, value in self.space.items() if is_grid(value)]
        if isinstance(self.search, Optuna):
            require(not grids, "space", grids, "is a grid, which a searcher cannot use", "use tune.choice")
        if isinstance(self.scheduler, Pbt):
            self._check_pbt(self.scheduler)
        if isinstance(self.scheduler, Asha):
            grace = self.scheduler.grace
            require(
                grace >= 1 and grace % self.step == 0,
                "scheduler.grace",
                grace,
                f"must be a multiple of step={self.step}",
            )
            require(self.scheduler.factor >= 2, "scheduler.factor", self.scheduler.factor, "must be at least 2")

    def _check_pbt(self, pbt: Pbt) -> None:
        whole = pbt.every >= 1 and pbt.every % self.step == 0
        require(whole, "scheduler.every", pbt.every, f"must be a multiple of step={self.step}")
        one = len(self.seeds) == 1
        require(one, "seeds", self.seeds, "must be one: trials copy each other's weights", "run once a seed")
        varied = [name for name, value in self.space.items() if is_grid(value) or isinstance(value, Domain)]
        fixed = [name for name in varied if name not in pbt.mutations]
        require(
            not fixed,
            "space",
            fixed,
            "differs between trials that copy each other's weights, and is not among the mutations",
            "fix it in the base, or name it in mutations",
        )
        for name in pbt.mutations:
            key = self.base.key_of(name)
            section = key.split(".")[2] if key.startswith("stages.") else key.partition(".")[0]
            require(
                section in ("algorithm", "local") and not key.endswith(".name"),
                "scheduler.mutations",
                name,
                "cannot change in mid-run",
                "only fields of algorithm and local can",
            )

    @property
    def fixed_steps(self) -> bool:
        """Whether something may end or change a trial between two reports, so that reports come at fixed rounds."""
        return self.scheduler is not None or bool(self.stop)

    def complete(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """A searcher's proposal with the constants of the space, and what ``sample_from`` makes of it."""
        space = {name: drawn.get(name, value) for name, value in self.space.items()}
        (_, spec), *_ = generate_variants({"config": space})
        return {name: _plain(value) for name, value in spec["config"].items()}

    def settings(self) -> list[dict[str, Any]]:
        """All grid points with all random draws; each point of the grid gets the same draws, so that they compare."""
        space = dict(self.space)
        if isinstance(self.scheduler, Pbt):
            space = {**self.scheduler.mutations, **space}
        rng: Any = np.random.default_rng(self.search_seed)
        found: list[dict[str, Any]] = []
        for _ in range(self.samples):
            drawn = {name: value.sample(random_state=rng) for name, value in space.items() if is_drawn(value)}
            for _, spec in generate_variants({"config": {**space, **drawn}}):
                found.append({name: _plain(value) for name, value in spec["config"].items()})
            if not drawn:
                break
        return found

    def label(self, setting: Mapping[str, Any]) -> str:
        """A cell's name, of what varies of its own accord."""
        return label({axis["name"]: setting[axis["name"]] for axis in self.axes()})

    def experiment(self, setting: Mapping[str, Any], seed: int) -> Experiment:
        return self.base.replace({**setting, "seed": seed})

    def axes(self) -> list[dict[str, Any]]:
        """The hyper-parameters that vary of their own accord, as data."""
        space = dict(self.space)
        if isinstance(self.scheduler, Pbt):
            space = {**self.scheduler.mutations, **space}
        return [
            _axis(name, self.base.key_of(name), value)
            for name, value in space.items()
            if is_grid(value) or is_drawn(value) or isinstance(value, list)
        ]

    def to_mapping(self) -> dict[str, Any]:
        """Everything but functions of the space, as data."""
        search = {"name": self.search} if isinstance(self.search, str) else {"name": "optuna", **asdict(self.search)}
        scheduler: dict[str, Any] = {"name": "none"}
        if isinstance(self.scheduler, Asha):
            scheduler = {"name": "asha", **asdict(self.scheduler)}
        if isinstance(self.scheduler, Pbt):
            pbt = self.scheduler
            mutations = {name: _axis(name, self.base.key_of(name), value) for name, value in pbt.mutations.items()}
            scheduler = {"name": "pbt", "every": pbt.every, "quantile": pbt.quantile, "resample": pbt.resample}
            scheduler["mutations"] = mutations
        return {
            "base": self.base.to_mapping(),
            "axes": self.axes(),
            "seeds": list(self.seeds),
            "samples": self.samples,
            "metric": self.metric,
            "mode": self.mode,
            "search": search,
            "search_seed": self.search_seed,
            "scheduler": scheduler,
            "step": self.step,
            "stop": dict(self.stop),
            "target_accuracy": self.target_accuracy,
            "tables": [table.to_mapping() for table in self.tables],
            "claims": [claim.to_mapping() for claim in self.claims],
            "diagnose": self.diagnose,
        }


@dataclass(frozen=True)
class NamedSweep:
    """A sweep with the way to find it again."""

    reference: str  # "drift.fedprox_mu", or "FILE.py:function"
    profile: str
    overrides: tuple[str, ...]
    title: str
    sweep: Sweep

    @property
    def name(self) -> str:
        """For folders: letters, digits, dots, dashes."""
        return self.reference.rpartition("/")[2].replace(".py:", ".")

    @property
    def digest(self) -> str:
        """Of everything that decides which trials there are and what each of them computes."""
        values = self.sweep.to_mapping()
        for key in ("tables", "claims", "target_accuracy", "diagnose"):  # read by the analysis only
            del values[key]
        base = self.sweep.base
        values["base"] = base.identity()
        if not isinstance(self.sweep.search, Optuna):
            values["settings"] = self.sweep.settings()  # functions of the space have no other form as data
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def load(reference: str, profile: str, overrides: Iterable[str], sweeps: Mapping[str, tuple[str, ...]]) -> NamedSweep:
    """The sweep of that name, or of a user's own file; ``sweeps``: module -> its functions."""
    require(profile in PROFILES, "--profile", profile, "is not a profile", nearest(profile, PROFILES))
    function = _function(reference, sweeps)
    try:
        sweep = function(profile)
    except TypeError as error:
        raise ConfigError(
            "sweep", reference, f"cannot be called with a profile ({error})", "def f(profile: str)"
        ) from None
    require(isinstance(sweep, Sweep), "sweep", reference, f"returned a {type(sweep).__name__}", "return a Sweep")
    sweep, rest = _own_overrides(sweep, overrides)
    sweep = replace(sweep, base=sweep.base.override(rest))
    title = (inspect.getdoc(function) or reference).split("\n\n")[0].replace("\n", " ").rstrip(".")
    return NamedSweep(reference, profile, tuple(overrides), title, sweep)


def known(sweeps: Mapping[str, tuple[str, ...]]) -> dict[str, Callable[[str], Sweep]]:
    """All sweeps by their names."""
    return {
        f"{module}.{name}": getattr(importlib.import_module(f"tune_configs.{module}"), name)
        for module, names in sweeps.items()
        for name in names
    }


def _function(reference: str, sweeps: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    path, colon, name = reference.rpartition(":")
    if colon and path.endswith(".py"):
        if not Path(path).is_file():
            raise ConfigError("sweep", path, "is not a file", "name one as FILE.py:function")
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        functions = {key: value for key, value in vars(module).items() if inspect.isfunction(value)}
        require(name in functions, "sweep", reference, f"has no function {name!r}", nearest(name, functions))
        return functions[name]
    module, _, name = reference.partition(".")
    if name in sweeps.get(module, ()):
        return getattr(importlib.import_module(f"tune_configs.{module}"), name)
    names = [f"{module}.{name}" for module, functions in sweeps.items() for name in functions]
    raise ConfigError("sweep", reference, "is not a known sweep", nearest(reference, names))


def _own_overrides(sweep: Sweep, overrides: Iterable[str]) -> tuple[Sweep, list[str]]:
    """``seeds=[0,1]`` and ``samples=5`` are the sweep's own; all others are its base experiment's."""
    rest = []
    for text in overrides:
        key, _, value = text.partition("=")
        if key == "seeds":
            seeds = yaml.safe_load(value)
            seeds = seeds if isinstance(seeds, list) else [seeds]
            ok = all(isinstance(seed, int) and seed >= 0 for seed in seeds)
            require(ok, "seeds", value, "must be whole numbers from 0 on", "for example seeds=[0,1,2]")
            sweep = replace(sweep, seeds=tuple(seeds))
        elif key == "samples":
            samples = yaml.safe_load(value)
            require(isinstance(samples, int), "samples", value, "must be a whole number", "for example samples=20")
            sweep = replace(sweep, samples=samples)
        else:
            varied = {sweep.base.key_of(name): name for name in sweep.space}
            own = varied.get(sweep.base.key_of(key))
            require(own is None, key, value, "is varied by this sweep", "change the sweep, or run one cell of it")
            rest.append(text)
    return sweep, rest


def label(setting: Mapping[str, Any]) -> str:
    """``mu=0.1,alpha=0.05``: a cell's name."""
    return ",".join(f"{name}={_short(value)}" for name, value in setting.items())


def _short(value: Any) -> str:
    if isinstance(value, Mapping) and "name" in value:
        return str(value["name"])
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def is_grid(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"grid_search"}


def is_drawn(value: Any) -> bool:
    return isinstance(value, Domain) and not isinstance(value, Function)  # a Function is Tune's sample_from


def _plain(value: Any) -> Any:
    """Numbers as Python's own, so that they mean the same in YAML."""
    return value.item() if isinstance(value, np.generic) else value


def _axis(name: str, key: str, value: Any) -> dict[str, Any]:
    if is_grid(value):
        values = list(value["grid_search"])
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        positive = sorted(v for v in values if numbers and v > 0)
        # Values that span a decade or more were chosen by ratio.
        log = bool(positive) and positive[-1] >= 10 * positive[0]
        return {"name": name, "key": key, "kind": "grid", "values": values, "log": log}
    if isinstance(value, Float | Integer):
        sampler = value.get_sampler()
        log = isinstance(getattr(sampler, "sampler", sampler), LogUniform)  # inside a quantised one
        return {"name": name, "key": key, "kind": "sampled", "values": None, "log": log}
    values = list(getattr(value, "categories", value))
    return {"name": name, "key": key, "kind": "sampled", "values": values, "log": False}
