"""The scaling study: which settings are measured, in which order, and what has been measured so far.

    plan = make_plan(experiment, holders, actors=(0, 1, 2), wanted=Wanted())
    study = Study.open(plan, machine, folder)
    study.measure(bench)                # scaling_runs.EngineBench; goes on where it was stopped
    fitted = study.fitted((4, 8))       # the law of strong and of weak scaling, with what it predicts

Settings with one model take turns with each other, so that whatever else changes on the machine meets all alike; models
follow one another, since a pool's workers know one model each.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from engine.errors import ConfigError, RunError, RunFolderError, require
from engine.experiment import Experiment
from engine.files import locked, write_atomically
from engine.scaling_law import Fit, Prediction, fit

Block = int | Literal["auto"]
SWEEPS = ("strong", "weak", "clients", "blocks", "models")
LAWS = {"strong": "rounds_per_second", "weak": "clients_per_second"}  # what grows with actors
MODELS = ("logistic", "mlp", "cnn")  # beside the experiment's own: from 8 thousand to 1.7 million parameters
ENDLESS = 10**9  # rounds: no run ends while it is measured
SCHEMA = pa.schema(
    [
        ("sweeps", pa.string()),  # that the setting belongs to, with spaces between
        ("model", pa.string()),
        ("parameters", pa.int64()),
        ("actors", pa.int64()),  # 0: in the command's own process
        ("block", pa.string()),  # as asked for
        ("blocks", pa.int64()),  # of a round, as they were cut
        ("clients", pa.int64()),  # per round
        ("turn", pa.int64()),  # from 0
        ("session", pa.int64()),  # which call of the command, from 0
        ("seconds", pa.float64()),
        ("rounds", pa.int64()),  # in those seconds
        ("samples", pa.int64()),  # of the cohorts of those rounds
        ("rounds_per_second", pa.float64()),
        ("clients_per_second", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Setting:
    """What differs between two points of a study."""

    actors: int
    clients: int  # per round
    block: Block
    model: str


@dataclass(frozen=True)
class Wanted:
    """What was asked for; None: what :func:`make_plan` takes."""

    clients: tuple[int, ...] | None = None
    blocks: tuple[Block, ...] | None = None
    models: tuple[str, ...] | None = None
    turns: int = 5
    seconds: float = 2.0  # of a turn; at least one round


@dataclass(frozen=True)
class Turn:
    """What one turn of a setting came to."""

    seconds: float
    rounds: int
    samples: int  # of all rounds
    blocks: int  # of one round
    parameters: int


class Contestant(Protocol):
    """A run that waits for its turns."""

    def turn(self, seconds: float) -> Turn:
        """Rounds for about so many seconds, at least one, in a steady state."""
        ...


class Bench(Protocol):
    """Where contestants run."""

    def opened(self, settings: Sequence[Setting]) -> AbstractContextManager[Mapping[Setting, Contestant]]:
        """Contestants of one model, ready, until the context ends."""
        ...


@dataclass(frozen=True)
class Plan:
    """What will be measured."""

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
        """What is run at a setting: endless rounds without evaluations and checkpoints."""
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
        """What belongs to the study's identity, in plain values."""
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
    plain = not experiment.client_models and not experiment.algorithm.model_needs
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
            "checkpoint.every": ENDLESS,
        }
    )
    distinct = {name: tuple(dict.fromkeys(sweep)) for name, sweep in sweeps.items()}
    plan = Plan(base, distinct, wanted.turns, wanted.seconds)
    for setting in plan.settings:
        plan.experiment_of(setting)  # refuses a model's name or a pair that does not go together
    return plan


@dataclass(frozen=True)
class Fitted:
    """One way of scaling: its law, or why there is none."""

    sweep: str  # of LAWS
    fit: Fit | None
    why_not: str
    predictions: tuple[Prediction, ...]


class Study:
    """A plan and its measurements on disk."""

    def __init__(self, plan: Plan, machine: Mapping[str, Any], folder: Path, rows: list[dict[str, Any]]) -> None:
        self.plan, self.machine, self.folder = plan, dict(machine), folder
        self._rows = rows
        self._done = {(_key(row), row["turn"]) for row in rows}
        self._session = max((row["session"] for row in rows), default=-1) + 1

    @classmethod
    def open(cls, plan: Plan, machine: Mapping[str, Any], out: Path | None) -> Study:
        """``runs/scale-<name>-<digest>``, or ``out``; goes on with the study that is there if it is the same one."""
        folder = out or Path("runs") / f"scale-{plan.experiment.name}-{plan.digest}"
        told = {**plan.describe(), "machine": dict(machine)}
        described, table = folder / "study.json", folder / "scaling.parquet"
        if not described.exists():
            require(
                not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
                "--output",
                folder,
                "is not empty and holds no study",
                "name another folder",
            )
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(described, json.dumps(told, indent=2) + "\n")
            return cls(plan, machine, folder, [])
        try:
            found = json.loads(described.read_text(encoding="utf-8"))
            rows = pq.read_table(table, schema=SCHEMA).to_pylist() if table.exists() else []
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{folder} cannot be read ({error}); name another folder") from None
        # Through JSON, as what was found went.
        for key, value in json.loads(json.dumps(told)).items():
            if found.get(key) != value:
                raise ConfigError(
                    "--output", folder, f"holds a study with another {key}", "name another folder, or ask for the same"
                )
        return cls(plan, machine, folder, rows)

    @property
    def left(self) -> int:
        """Turns that are still to be measured."""
        return sum(not self._has(setting, turn) for setting in self.plan.settings for turn in range(self.plan.turns))

    @property
    def sessions(self) -> int:
        """How many calls of the command it took."""
        return len({row["session"] for row in self._rows})

    @property
    def frame(self) -> pd.DataFrame:
        """A row for each measurement, see ``SCHEMA``."""
        return pa.Table.from_pylist(self._rows, schema=SCHEMA).to_pandas()

    def measure(self, bench: Bench, tell: Callable[[Setting, int], None] = lambda setting, turn: None) -> None:
        """Every turn that is not yet there; each is on disk before the next one begins."""
        with locked(self.folder / ".lock"):
            for group in self.plan.groups:
                missing = [s for s in group if not all(self._has(s, turn) for turn in range(self.plan.turns))]
                if missing:
                    with bench.opened(missing) as contestants:
                        self._take_turns(missing, contestants, tell)

    def _take_turns(
        self,
        settings: list[Setting],
        contestants: Mapping[Setting, Contestant],
        tell: Callable[[Setting, int], None],
    ) -> None:
        for turn in range(self.plan.turns):
            first = turn % len(settings)  # nobody always follows the same one
            for setting in settings[first:] + settings[:first]:
                if not self._has(setting, turn):
                    self._add(setting, turn, contestants[setting].turn(self.plan.seconds))
                    tell(setting, turn)

    def _has(self, setting: Setting, turn: int) -> bool:
        return (setting, turn) in self._done

    def _add(self, setting: Setting, turn: int, measured: Turn) -> None:
        rate = measured.rounds / measured.seconds
        self._rows.append(
            {
                **asdict(setting),
                **asdict(measured),
                "block": str(setting.block),
                "sweeps": " ".join(name for name, sweep in self.plan.sweeps.items() if setting in sweep),
                "turn": turn,
                "session": self._session,
                "rounds_per_second": rate,
                "clients_per_second": rate * setting.clients,
            }
        )
        self._done.add((setting, turn))
        content = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self._rows, schema=SCHEMA), content, compression="zstd")
        write_atomically(self.folder / "scaling.parquet", content.getvalue().to_pybytes())

    # --- what it says -----------------------------------------------------------------------------------

    def of(self, sweep: str) -> pd.DataFrame:
        """The measurements of one sweep, settings in the plan's order, turns ascending."""
        places = {setting: place for place, setting in enumerate(self.plan.sweeps[sweep])}
        rows = [row for row in self._rows if _key(row) in places]
        rows.sort(key=lambda row: (places[_key(row)], row["turn"]))
        return pa.Table.from_pylist(rows, schema=SCHEMA).to_pandas()

    def fitted(self, predict: Iterable[int]) -> dict[str, Fitted]:
        """The laws of strong and of weak scaling; what runs in process has no part in them."""
        return {sweep: self._fitted(sweep, column, sorted(set(predict))) for sweep, column in LAWS.items()}

    def _fitted(self, sweep: str, column: str, predict: Sequence[int]) -> Fitted:
        rows = self.of(sweep)
        rows = rows[rows["actors"] >= 1]
        try:
            found = fit({int(count): list(part[column]) for count, part in rows.groupby("actors")})
        except RunError as error:
            return Fitted(sweep, None, str(error), ())
        predictions = [found.predict(count) for count in predict]
        if sweep == "strong":  # whose rounds are all cut alike
            blocks = int(rows["blocks"].iloc[0])
            predictions = [_with_blocks(prediction, blocks) for prediction in predictions]
        return Fitted(sweep, found, "", tuple(predictions))


def over_turns(rows: pd.DataFrame, by: str, column: str) -> pd.DataFrame:
    """One row for each value of ``by``, as they come: geometric mean, slowest and fastest turn of ``column``, and
    what is the same in all turns."""
    found = []
    for value, part in rows.groupby(by, sort=False):
        rates = part[column].to_numpy()
        same = part.iloc[0][["actors", "clients", "block", "blocks", "model", "parameters"]].to_dict()
        spread = {"mean": float(np.exp(np.log(rates).mean())), "low": float(rates.min()), "high": float(rates.max())}
        found.append({**same, by: value, **spread})
    return pd.DataFrame(found)


def _key(row: Mapping[str, Any]) -> Setting:
    block: Block = "auto" if row["block"] == "auto" else int(row["block"])
    return Setting(row["actors"], row["clients"], block, row["model"])


def _with_blocks(prediction: Prediction, blocks: int) -> Prediction:
    if prediction.actors <= blocks:
        return prediction
    return replace(prediction, note=f"{prediction.note}; only {blocks} blocks in a round: the other actors would idle")
