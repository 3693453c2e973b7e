"""A scaling study under way: turns of its settings, what is on disk of them, the laws through them.

    study = Study.open(plan, machine, folder)
    study.measure(bench)                # scaling_runs.EngineBench; goes on where it was stopped
    fitted = study.fitted((4, 8))       # the laws of strong and of weak scaling, with what they predict

Settings with one model take turns with each other, so that whatever else changes on the machine meets all alike; models
follow one another, since a pool's workers know one model each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.base import parquet
from engine.base.errors import ConfigError, RunError, RunFolderError, require
from engine.base.files import locked, write_atomically
from engine.base.opening import read_text
from fedskew.lab.scaling.law import Fit, Prediction, fit
from fedskew.lab.scaling.plan import Block, Plan, Setting

LAWS = {"strong": "rounds_per_second", "weak": "clients_per_second"}  # what grows with actors
Row = dict[str, Any]
SCHEMA = pa.schema(
    [
        ("sweeps", pa.string()),  # that the setting belongs to, with spaces between
        ("model", pa.string()),
        ("parameters", pa.int64()),
        ("actors", pa.int64()),  # 0: in the command's own process
        ("executor", pa.string()),  # by which a block's clients were trained
        ("block", pa.string()),  # as asked for
        ("blocks", pa.int64()),  # of a round, as they were cut
        ("clients", pa.int64()),  # per round
        ("turn", pa.int64()),  # from 0
        ("session", pa.int64()),  # which call of the command, from 0
        ("load", pa.float64()),  # processes that wanted a core before the session, on the command's machine
        ("seconds", pa.float64()),
        ("rounds", pa.int64()),  # in those seconds
        ("samples", pa.int64()),  # of the cohorts of those rounds
        ("rounds_per_second", pa.float64()),
        ("clients_per_second", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Turn:
    """The measurement of one turn of a setting."""

    seconds: float
    rounds: int
    samples: int  # of all rounds
    blocks: int  # of one round
    parameters: int
    executor: str  # as resolved for the model


class Contestant(Protocol):
    """A run that waits for its turns."""

    def turn(self, seconds: float) -> Turn:
        """Rounds for about so many seconds, at least one, in a steady state."""
        ...


class Bench(Protocol):
    """A place where contestants run."""

    def load(self) -> float:
        """Processes that want a core while nothing is measured; NaN where the system does not tell."""
        ...

    def opened(self, settings: Sequence[Setting]) -> AbstractContextManager[Mapping[Setting, Contestant]]:
        """Contestants of one model, ready, until the context ends."""
        ...


@dataclass(frozen=True)
class Fitted:
    """One way of scaling: its law, or why there is none."""

    sweep: str  # of LAWS
    fit: Fit | None
    why_not: str
    predictions: tuple[Prediction, ...]


class Study:
    """A plan and its measurements on disk."""

    def __init__(self, plan: Plan, machine: Mapping[str, Any], folder: Path, rows: list[Row]) -> None:
        self.plan, self.machine, self.folder = plan, dict(machine), folder
        self.rows = rows  # see SCHEMA, in the order in which they were measured
        self._load = math.nan
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
            found = json.loads(read_text(described))
            rows = parquet.read(table).cast(SCHEMA).to_pylist() if table.exists() else []
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

    def measure(self, bench: Bench, tell: Callable[[Setting, int], None] = lambda setting, turn: None) -> None:
        """Every turn that is not yet there; each is on disk before the next one begins."""
        self._load = bench.load()
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
        self.rows.append(
            {
                **asdict(setting),
                **asdict(measured),
                "block": str(setting.block),
                "sweeps": " ".join(name for name, sweep in self.plan.sweeps.items() if setting in sweep),
                "turn": turn,
                "session": self._session,
                "load": self._load,
                "rounds_per_second": rate,
                "clients_per_second": rate * setting.clients,
            }
        )
        self._done.add((setting, turn))
        content = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(self.rows, schema=SCHEMA), content, compression="zstd")
        write_atomically(self.folder / "scaling.parquet", content.getvalue().to_pybytes())

    # --- what it says -----------------------------------------------------------------------------------

    def of(self, sweep: str) -> list[Row]:
        """The measurements of one sweep, settings in the plan's order, turns ascending."""
        places = {setting: place for place, setting in enumerate(self.plan.sweeps[sweep])}
        rows = [row for row in self.rows if _key(row) in places]
        return sorted(rows, key=lambda row: (places[_key(row)], row["turn"]))

    def fitted(self, predict: Iterable[int]) -> dict[str, Fitted]:
        """The laws of strong and of weak scaling; what runs in process has no part in them."""
        return {sweep: self._fitted(sweep, column, sorted(set(predict))) for sweep, column in LAWS.items()}

    def _fitted(self, sweep: str, column: str, predict: Sequence[int]) -> Fitted:
        rows = [row for row in self.of(sweep) if row["actors"] >= 1]
        rates: dict[int, list[float]] = {}
        for row in rows:
            rates.setdefault(row["actors"], []).append(row[column])
        try:
            found = fit(rates)
        except RunError as error:
            return Fitted(sweep, None, str(error), ())
        predictions = [found.predict(count) for count in predict]
        if sweep == "strong":  # whose rounds are all cut alike
            blocks = rows[0]["blocks"]
            predictions = [_with_blocks(prediction, blocks) for prediction in predictions]
        return Fitted(sweep, found, "", tuple(predictions))


def over_turns(rows: Iterable[Row], by: str, column: str) -> list[Row]:
    """One row for each value of ``by``, in their order: its first row with the geometric ``mean`` of ``column`` over
    turns, its slowest turn as ``low`` and its fastest as ``high``."""
    parts: dict[Any, list[Row]] = {}
    for row in rows:
        parts.setdefault(row[by], []).append(row)
    found = []
    for part in parts.values():
        rates = np.array([row[column] for row in part])
        spread = {"mean": float(np.exp(np.log(rates).mean())), "low": float(rates.min()), "high": float(rates.max())}
        found.append({**part[0], **spread})
    return found


def _key(row: Mapping[str, Any]) -> Setting:
    block: Block = "auto" if row["block"] == "auto" else int(row["block"])
    return Setting(row["actors"], row["clients"], block, row["model"])


def _with_blocks(prediction: Prediction, blocks: int) -> Prediction:
    if prediction.actors <= blocks:
        return prediction
    return replace(prediction, note=f"{prediction.note}; only {blocks} blocks in a round: the other actors would idle")
