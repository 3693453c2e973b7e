"""Definition of a sweep. A function of ``tune_configs`` returns one:

def fedprox_mu(profile: str) -> Sweep:
    return Sweep(
        base=base(profile),
        space={"mu": tune.grid_search([0, 0.1, 1]), "alpha": tune.grid_search([0.05, 0.5])},
        seeds=(0, 1, 2),
    )
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

import numpy as np
from ray.tune import Callback
from ray.tune.search.variant_generator import generate_variants

from engine.base.errors import nearest, require
from engine.base.evaluated import METRICS as OWN_METRICS
from engine.experiment import Experiment
from engine.record.metrics import PERSONAL, REPORTED
from engine.results.claims import Claim, PaperTable
from engine.results.class_figures import EXAMPLES, class_figures, is_class_figure
from engine.results.settings import better_way, key, label, matches, plain, setting_label
from engine.results.simulated_time import Devices
from engine.results.trials import LAYER, METRICS, ON_REQUEST, RESERVED
from engine.sweeps.space import as_data, axis, drawn_from, is_called, is_drawn, is_grid, is_open, options, plain_grids
from engine.sweeps.tuned import Tuned, check_tuned

Partitions = Literal["anew", "one"]


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
    # "anew": a seed draws its own partition, and intervals hold what differs between partitions. "one": all have the
    # base's, for a source that has one split.
    partitions: Partitions = "anew"
    samples: int = 1  # draws of what is not on a grid
    metric: str = "last10_accuracy"
    mode: Literal["max", "min"] = "max"
    search: Literal["random"] | Optuna = "random"  # grids and random draws; or a searcher
    search_seed: int = 0
    scheduler: Asha | Pbt | None = None
    tuned: tuple[Tuned, ...] = ()  # sides that get the best of their candidates first, each of as many
    tuning_seeds: tuple[int, ...] = (1000, 1001)  # on which they are compared: none of ``seeds``
    tuning_rows: float | None = None  # share of the training rows on which they are, untrained; None: on the test rows
    step: int = 1  # rounds between two reports where a scheduler or ``stop`` may end a trial
    stop: Mapping[str, float] = field(default_factory=dict)  # metric -> value from which on a trial ends
    target_accuracy: float | None = None  # for rounds, bytes and simulated seconds to it
    devices: Devices | None = None  # that simulated time supposes, for claims on it
    claims: tuple[Claim, ...] = ()
    tables: tuple[PaperTable, ...] = ()
    # Compare the local models of each trial's last round, for claims on cka_* and norms: at the model's taps (True or
    # "taps"), or at each convolution and linear layer ("weights").
    diagnose: bool | Literal["taps", "weights"] = False
    # Of Ray Tune, told of this sweep's trials beside fedskew's own; they change no result and no digest.
    callbacks: tuple[Callback, ...] = field(default=(), compare=False)
    images: bool = False  # compare what each trial generates at its end with its training images, for nearest_ratio

    def __post_init__(self) -> None:
        require(len(self.seeds) > 0, "seeds", list(self.seeds), "must name at least one", "for example seeds=[0,1,2]")
        whole = all(type(seed) is int and seed >= 0 for seed in self.seeds)
        require(whole, "seeds", list(self.seeds), "must be whole numbers from 0 on", "for example seeds=[0,1,2]")
        once = len(set(self.seeds)) == len(self.seeds)
        require(once, "seeds", list(self.seeds), "names one twice", "name each once")
        for name in ("samples", "step"):
            value = getattr(self, name)
            ok = type(value) is int and value >= 1
            require(ok, name, value, "must be a whole number of at least 1", f"for example {name}=10")
        own = self.base.evaluation.metrics
        repair = self._meant(self.metric, (*REPORTED, *EXAMPLES, *own))
        require(_is_reported(self.metric, own), "metric", self.metric, "is not reported", repair)
        mode = "min" if better_way(self.metric) == "min" else "max"
        require(self.mode == mode, "mode", self.mode, f"is not the way to a better {self.metric}", f"set mode={mode!r}")
        rising = [name for name in (*REPORTED, *EXAMPLES, *own) if better_way(name) != "min"]
        for name in self.stop:  # Tune ends a trial whose value is at least that
            known = _is_reported(name, own) and better_way(name) != "min"
            require(known, "stop", name, "is no metric of which more is better", self._meant(name, rising))
        rule = "is none of False, True, 'taps' and 'weights'"
        known = self.diagnose in (False, True, "taps", "weights")
        require(known, "diagnose", self.diagnose, rule, "set diagnose=True for the model's taps")
        callbacks = all(isinstance(one, Callback) for one in self.callbacks)
        rule = "must be objects of ray.tune.Callback"
        require(callbacks, "callbacks", list(self.callbacks), rule, "for example callbacks=(JsonLoggerCallback(),)")
        object.__setattr__(self, "space", {name: as_data(value) for name, value in self.space.items()})
        self._check_space()
        self._check_search()
        if self.tuned:
            self._check_tuned()
        self._check_analysis()

    def _check_space(self) -> None:
        ways = "is neither anew nor one"
        require(self.partitions in get_args(Partitions), "partitions", self.partitions, ways, "use anew or one")
        seen: dict[str, str] = {}
        for name, value in self._whole_space().items():
            values, key = options(value), self.base.key_of(name)
            other = {"rounds": "write R", "seed": "name them as seeds=(...)"}.get(name, f"write {key}")
            require(name not in RESERVED, "space", name, "is a column of the trials table", other)
            require(values != [], "space", name, "has no value to choose from", "name some")
            lost = next((seen[one] for one in seen if one.startswith(f"{key}.") and values is not None), None)
            require(lost is None, "space", name, f"comes after {lost}, and writes over it", f"write {name} before it")
            labels = list(map(label, values or ())) if is_grid(value) else []
            twice = next((one for one in labels if labels.count(one) > 1), None)
            require(twice is None, "space", name, f"has {twice} twice, and each would count twice", "name each once")
            repair = f"name each value whole, or vary {key}.FIELD"
            require(not any(map(is_open, values or ())), "space", name, "has choices inside of a value", repair)
            require(key not in seen, "space", name, f"is {seen.get(key)} by another name", "keep one of the two")
            drawn_twice = key == "partition.seed" and self.partitions == "anew"
            rule = "is set by each seed of the sweep, which draws its own partition"
            require(not drawn_twice, "space", name, rule, "set partitions='one' in the sweep")
            rule = "is set by each seed of the sweep, which tests on rows of its own"
            require(key != "data.test_part", "space", name, rule, "set it in the base")
            seen[key] = name
        self._check_functions()

    def _check_functions(self) -> None:
        """Refuse a function of ``sample_from`` that comes to other values when it is asked again, with which the sweep
        could not go on, and one that gives trials of one cell several: a cell has one setting.
        """
        space = self._whole_space()
        names, axes = ([name for name, value in space.items() if is_called(value) == yes] for yes in (True, False))
        if not names or isinstance(self.search, Optuna):
            return
        cells, repair = dict[Any, dict[str, Any]](), "let it follow from spec.config, and draw by tune.choice"
        for one, again in zip(self.settings(), self.settings(), strict=True):
            first = cells.setdefault(key([one[name] for name in axes]), one)
            for name in names:
                rule = "comes to another value each time it is asked"
                require(repr(one[name]) == repr(again[name]), "space", name, rule, repair)
                rule = "comes to several values for one setting of all else: a cell would hold several settings"
                require(repr(one[name]) == repr(first[name]), "space", name, rule, repair)

    def _check_search(self) -> None:
        if isinstance(self.search, Optuna):
            grids = [name for name, value in self.space.items() if is_grid(value)]
            require(not grids, "space", grids, "is a grid, which a searcher cannot use", "use tune.choice")
            alone = not isinstance(self.scheduler, Pbt)
            require(alone, "search", "optuna", "cannot propose what a population changes", "drop it or the scheduler")
        if isinstance(self.scheduler, Pbt):
            self._check_pbt(self.scheduler)
        if isinstance(self.scheduler, Asha):
            grace, factor = self.scheduler.grace, self.scheduler.factor
            whole = grace >= 1 and grace % self.step == 0
            require(whole, "scheduler.grace", grace, f"must be a multiple of step={self.step}")
            require(factor >= 2, "scheduler.factor", factor, "must be at least 2")
        if self.samples > 1 or isinstance(self.search, Optuna):
            drawn = any(map(is_drawn, self._whole_space().values()))
            rule = "draws from a space in which nothing is drawn"
            require(drawn, "samples", self.samples, rule, "leave it away, or use tune.choice or tune.uniform")

    def _check_tuned(self) -> None:
        grids = self.scheduler is None and self.search == "random" and not any(map(is_drawn, self.space.values()))
        grids = grids and not self.stop  # or candidates would be compared at other rounds
        rule, repair = "is for sweeps of grids alone", "leave the scheduler, the searcher, stop or what is drawn away"
        require(grids, "tuned", [dict(side.where) for side in self.tuned], rule, repair)
        check_tuned(self.tuned, self.settings(), self.base, self.seeds, self.tuning_seeds)

    def _check_pbt(self, pbt: Pbt) -> None:
        whole = pbt.every >= 1 and pbt.every % self.step == 0
        require(whole, "scheduler.every", pbt.every, f"must be a multiple of step={self.step}")
        require(0 < pbt.quantile <= 0.5, "scheduler.quantile", pbt.quantile, "must be above 0 and at most 0.5")
        require(0 <= pbt.resample <= 1, "scheduler.resample", pbt.resample, "must be between 0 and 1")
        one = len(self.seeds) == 1
        require(one, "seeds", self.seeds, "must be one: trials copy each other's weights", "run once a seed")
        varied = [name for name, value in self.space.items() if is_grid(value) or is_drawn(value)]
        fixed = [name for name in varied if name not in pbt.mutations]
        require(
            not fixed,
            "space",
            fixed,
            "differs between trials that copy each other's weights, and is not among the mutations",
            "fix it in the base, or name it in mutations",
        )
        require(len(pbt.mutations) > 0, "scheduler.mutations", {}, "must name what changes", "for example local.lr")
        for name, value in pbt.mutations.items():
            key = self.base.key_of(name)
            section = key.split(".")[2] if key.startswith("stages.") else key.partition(".")[0]
            require(
                section in ("algorithm", "local") and not key.endswith(".name"),
                "scheduler.mutations",
                name,
                "cannot change in mid-run",
                "only fields of algorithm and local can",
            )
            domain = drawn_from(value)
            ok = is_drawn(domain) and options(domain) != []
            require(ok, "scheduler.mutations", name, "must be a list of values or drawn", "for example tune.uniform")
        population = len(self.settings())
        require(population >= 2, "samples", self.samples, f"makes a population of {population}", "set samples=8")

    def _check_analysis(self) -> None:
        measured = (*METRICS, *ON_REQUEST, *self.base.evaluation.metrics)  # those on request may come later
        table = self.devices.table if self.devices is not None else None
        rule = "is a file beside the sweep's folder, which is read without it"
        require(table is None, "devices.table", table, rule, "draw them, or give the table to fedskew report --devices")
        axes = [axis["name"] for axis in self.axes()]
        named = [("tables", one.metric, (*one.rows, *one.columns, *one.where)) for one in self.tables]
        named += [("claims", one.metric, (*one.better, *one.worse, *one.where)) for one in self.claims]
        for field_name, metric, names in named:
            known = metric in measured or metric.startswith(LAYER) or is_class_figure(metric)
            require(known, field_name, metric, "is no figure of a trial", self._meant(metric, (*measured, *EXAMPLES)))
            for name in names:
                require(name in axes, field_name, name, "is not varied by this sweep", nearest(name, axes))

    def _meant(self, name: str, known: Sequence[str]) -> str:
        """Return the repair of a name that is no figure of this sweep's trials."""
        listed = ",".join((*self.base.evaluation.metrics, name))
        return f"set evaluation.metrics=[{listed}] in the base" if name in OWN_METRICS else nearest(name, known)

    def check_claims(self) -> None:
        """Refuse claims on settings that no trial will have, or on a name that more than one setting has.

        Apart from what a sweep is made with: one whose space was narrowed afterwards keeps the claims of the whole.
        """
        known = {one["name"]: one["values"] for one in self.axes()}
        if isinstance(self.search, str) and not isinstance(self.scheduler, Pbt):  # what is drawn is known, too
            settings = self.settings() if self.claims else []
            known = {name: list({key(one[name]): one[name] for one in settings}.values()) for name in known}
        for claim in self.claims:
            for name, value in (*claim.better.items(), *claim.worse.items()):
                found = _meant(name, value, known[name])
                whole = [one if isinstance(one, Mapping) else {"name": one} for one in found]
                rule, repair = "is more than one setting", f"say which: {' or '.join(map(str, whole))}"
                require(len(found) < 2, "claims", setting_label({name: value}), rule, repair)
            for name, wanted in (*claim.where.items(), *claim.than.items()):
                is_one = not isinstance(wanted, list) or any(key(one) == key(wanted) for one in known[name] or ())
                for value in [wanted] if is_one else wanted:
                    _meant(name, value, known[name])

    @property
    def needs_personal(self) -> bool:
        """True if a figure of personal models decides anything while trials run."""
        return not {self.metric, *self.stop}.isdisjoint(PERSONAL)

    @property
    def by_class(self) -> tuple[str, ...]:
        """The figures of single classes that decide anything while trials run."""
        return class_figures([self.metric, *self.stop])

    @property
    def fixed_steps(self) -> bool:
        """True if something may end or change a trial between two reports, so that reports come at fixed rounds."""
        return self.scheduler is not None or bool(self.stop)

    def complete(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        """A searcher's proposal with the constants of the space, and what ``sample_from`` makes of it."""
        space = {name: drawn.get(name, value) for name, value in self.space.items()}
        (_, spec), *_ = generate_variants({"config": space})
        return {name: plain(value) for name, value in spec["config"].items()}

    def settings(self) -> list[dict[str, Any]]:
        """All grid points with all random draws; each point of the grid gets the same draws, so that they compare."""
        space = self._whole_space()
        rng: Any = np.random.default_rng(self.search_seed)
        found: list[dict[str, Any]] = []
        for _ in range(self.samples):
            drawn = {name: value.sample(random_state=rng) for name, value in space.items() if is_drawn(value)}
            for _, spec in generate_variants({"config": {**space, **drawn}}):
                found.append({name: plain(value) for name, value in spec["config"].items()})
        return found

    def _whole_space(self) -> dict[str, Any]:
        """The space, with what the hyper-parameters of a population are first drawn from."""
        mutations = self.scheduler.mutations if isinstance(self.scheduler, Pbt) else {}
        return {**{name: drawn_from(value) for name, value in mutations.items()}, **self.space}

    def label(self, setting: Mapping[str, Any]) -> str:
        """A cell's name, of what varies of its own accord."""
        named = {axis["name"]: setting[axis["name"]] for axis in self.axes()}
        return setting_label(named).replace(" ", "")  # as the report has it, but in one word: mu=0.1,alpha=0.05

    def experiment(self, setting: Mapping[str, Any], seed: int) -> Experiment:
        return experiment_of(self.base, setting, seed, self.partitions)

    def axes(self) -> list[dict[str, Any]]:
        """The hyper-parameters that vary of their own accord, as data."""
        return [
            axis(name, self.base.key_of(name), value)
            for name, value in self._whole_space().items()
            if is_grid(value) or is_drawn(value)
        ]

    def to_mapping(self) -> dict[str, Any]:
        """Everything but functions of the space, as data."""
        search = {"name": self.search} if isinstance(self.search, str) else {"name": "optuna", **asdict(self.search)}
        scheduler: dict[str, Any] = {"name": "none"}
        if isinstance(self.scheduler, Asha):
            scheduler = {"name": "asha", **asdict(self.scheduler)}
        if isinstance(self.scheduler, Pbt):
            pbt = self.scheduler
            scheduler = {"name": "pbt", "every": pbt.every, "quantile": pbt.quantile, "resample": pbt.resample}
            scheduler["mutations"] = {
                name: axis(name, self.base.key_of(name), drawn_from(value)) for name, value in pbt.mutations.items()
            }
        searched = [{"where": dict(side.where), "space": plain_grids(side.space)} for side in self.tuned]
        return {
            "base": self.base.to_mapping(),
            "axes": self.axes(),
            "seeds": list(self.seeds),
            "partitions": self.partitions,
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
            "images": self.images,
            **({"devices": asdict(self.devices)} if self.devices is not None else {}),
            **({"tuned": searched, "tuning_seeds": list(self.tuning_seeds)} if searched else {}),
            **({"tuning_rows": self.tuning_rows} if self.tuning_rows is not None else {}),
        }


def experiment_of(base: Experiment, setting: Mapping[str, Any], seed: int, partitions: Partitions) -> Experiment:
    """Return a trial's experiment, ``seed`` added to its part of the test rows and, with "anew", to its partition's
    seed.
    """
    experiment = base.replace({**setting, "seed": seed})
    part = experiment.data.test_part
    added = {} if partitions == "one" else {"partition.seed": experiment.partition.seed + seed}
    added |= {} if part is None else {"data.test_part": part + seed}
    return experiment.replace(added) if added and seed else experiment


def _meant(name: str, value: Any, known: Sequence[Any] | None) -> list[Any]:
    """Return the values of an axis that ``value`` stands for; raises :class:`ConfigError` where there is none.

    known: those that there are; None: of a range that a searcher draws from.
    """
    found = [one for one in known or () if matches(one, [value])]
    repair = nearest(label(value), map(label, known or ()))
    require(bool(found) or known is None, "claims", setting_label({name: value}), "is of no trial", repair)
    return found


def _is_reported(name: str, own: Sequence[str]) -> bool:
    return name in (*REPORTED, *own) or is_class_figure(name)
