"""Plan of a scaling study: settings around one round, in sweeps over actors, cohort, block and model.

plan = make_plan(experiment, cohort=32, holders=200, actors=(0, 1, 2), wanted=Wanted())
for group in plan.groups: ...       # see study.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from engine.base.errors import require
from engine.experiment import Experiment

Block = int | Literal["auto"]
MODELS = ("logistic", "mlp", "cnn")  # beside the experiment's own: from 8 thousand to 1.7 million parameters
ENDLESS = 10**9  # rounds: no run ends while it is measured


@dataclass(frozen=True)
class Setting:
    """A point of a study: what differs between it and the others."""

    actors: int
    clients: int  # per round
    block: Block
    model: str


@dataclass(frozen=True)
class Wanted:
    """Wishes for a plan; None: what :func:`make_plan` takes."""

    clients: tuple[int, ...] | None = None
    blocks: tuple[Block, ...] | None = None
    models: tuple[str, ...] | None = None
    turns: int = 5
    seconds: float = 2.0  # of a turn; at least one round


@dataclass(frozen=True)
class Plan:
    """The settings that will be measured."""

    experiment: Experiment  # what all settings share
    sweeps: Mapping[str, tuple[Setting, ...]]
    turns: int
    seconds: float

    @cached_property
    def settings(self) -> tuple[Setting, ...]:
        """Each once, though sweeps share some."""
        return tuple(dict.fromkeys(setting for sweep in self.sweeps.values() for setting in sweep))

    @property
    def groups(self) -> list[list[Setting]]:
        """Settings that take turns: those of one model."""
        models = dict.fromkeys(setting.model for setting in self.settings)
        return [[setting for setting in self.settings if setting.model == model] for model in models]

    @property
    def most(self) -> int:
        """Actors at a time, at most."""
        return max(setting.actors for setting in self.settings)

    def experiment_of(self, setting: Setting) -> Experiment:
        """Return the experiment that is run at a setting: endless rounds without evaluations and checkpoints."""
        changes: dict[str, Any] = {
            "participation.count": setting.clients,
            "participation.scheme": "fixed",
            "execution.actors": setting.actors,
            "execution.block": setting.block,
        }
        if setting.model != model_of(self.experiment):
            changes["model.name"] = setting.model
        return self.experiment.replace(changes)

    def describe(self) -> dict[str, Any]:
        """Return what belongs to the study's identity, in plain values."""
        return {
            "experiment": self.experiment.to_mapping(),
            "sweeps": {name: [asdict(setting) for setting in sweep] for name, sweep in self.sweeps.items()},
            "turns": self.turns,
            "seconds": self.seconds,
        }

    @property
    def digest(self) -> str:
        """12 hex digits of :meth:`describe`."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()[:12]


def model_of(experiment: Experiment) -> str:
    return experiment.to_mapping()["model"]["name"]


def actors_for(room: int, in_process: bool) -> tuple[int, ...]:
    """0 if the work can be done in process, 1, and on to ``room``: one by one up to 4, then doubled."""
    counts = {count for count in (1, 2, 3, 4) if count <= room} | {room}
    while (count := 2 * max(counts - {room}, default=room)) < room:
        counts.add(count)
    return tuple(sorted(counts | ({0} if in_process else set())))


def make_plan(experiment: Experiment, cohort: int, holders: int, actors: Iterable[int], wanted: Wanted) -> Plan:
    """The sweeps around ``cohort`` clients per round on the largest number of actors.

    ``holders``: clients that hold data. Refuses what could not be measured, before anything is.
    """
    require(
        not experiment.stages,
        "stages",
        [stage.name for stage in experiment.stages],
        "cannot be measured: a study has one kind of round",
        "name an experiment without stages, or leave them away: stages=[]",
    )
    counts, most = sorted(set(actors)), max(actors, default=0)
    require(
        bool(counts) and counts[0] >= 0, "--actors", counts, "must be numbers from 0 on", "for example --actors 1,2"
    )
    require(
        most <= cohort,
        "--actors",
        most,
        f"must be at most the {cohort} clients of a round, or actors idle",
        f"set participation.count={4 * most}",
    )
    own, block = model_of(experiment), experiment.execution.block
    clients = wanted.clients or tuple(
        count for count in (cohort // 4, cohort // 2, cohort, 2 * cohort) if max(most, 1) <= count <= holders
    )
    for count in (cohort, *clients):
        require(
            1 <= count <= holders,
            "--clients-per-round",
            count,
            f"must be from 1 to {holders}, the number of clients that hold data",
            "raise partition.clients",
        )
    plain = not experiment.client_models and not experiment.algorithm.requires.model
    models = wanted.models or ((own, *MODELS) if plain else (own,))
    fair = max(cohort // max(most, 1), 1)  # clients of each actor
    blocks: tuple[Block, ...] = wanted.blocks or (block, 1, 4, fair)
    for size in blocks:
        require(
            size == "auto" or size >= 1, "--blocks", size, "must be auto or at least 1", "for example --blocks auto,4"
        )
    sweeps = {
        "strong": [Setting(count, cohort, block, own) for count in counts],
        "weak": [Setting(count, fair * count, block, own) for count in counts if count],
        "clients": [Setting(most, count, block, own) for count in sorted(clients)],
        "blocks": [Setting(most, cohort, size, own) for size in sorted(blocks, key=lambda b: 0 if b == "auto" else b)],
        "models": [Setting(most, cohort, block, model) for model in models],
    }
    base = experiment.replace(
        {
            "rounds": ENDLESS,
            "evaluation.every": 0,
            "evaluation.local_every": 0,
            "evaluation.personal_every": 0,
            "evaluation.fine_tune_epochs": 0,
            "evaluation.fine_tune_steps": None,
            "participation.availability": 1.0,
            "participation.held_out": 0,
            "stop.accuracy": None,
            "stop.patience": None,
            "checkpoint.every": ENDLESS,
        }
    )
    distinct = {name: tuple(dict.fromkeys(sweep)) for name, sweep in sweeps.items()}
    plan = Plan(base, distinct, wanted.turns, wanted.seconds)
    for setting in plan.settings:
        plan.experiment_of(setting)  # refuses a model's name or a pair that does not go together
    return plan
