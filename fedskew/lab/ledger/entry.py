"""An entry of the ledger: a sweep's trials as a small table, with what was asked and what computed them.

An entry is one YAML file, docs/claims/<sweep>.<profile>.yaml, replaced as a whole. It keeps figures, and verdicts of
those entries alone whose place it took: its own are judged anew from its table, whenever the page is made. Its first
line is the hash of all lines below, so that an entry whose claims, settings or trials were edited, or badly merged, is
refused.

Its trials are CSV, so that a change of one trial is a change of one line. A value of an axis that is a text stands as
it is where it could be nothing else; all others are JSON, so that lists, algorithms with their fields, true and none
come back as what they were. A figure that a trial does not have is an empty cell.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pydantic import ValidationError
from pydantic.dataclasses import dataclass

from engine.base import safe_yaml
from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import write_atomically
from engine.base.opening import read_text
from engine.results.claims import Claim
from engine.results.completeness import ENDED, Completeness, by_status
from engine.results.results import Axis, Results
from engine.results.settings import setting_column
from engine.results.trials import METRICS
from fedskew.lab.comparing.intervals import INTERVAL_RULES
from fedskew.lab.tuned_sides import TunedSide, from_mappings
from fedskew.lab.wording import counted

RECORD = "record its sweep again"
HASH = "sha256"  # of all lines below the first one
ROOT = "data.root"  # what an override sets that names a folder of one machine
# Of each trial, beside its axes and its metrics: the headings of its columns, and the keys in a row, which are others
# where a sweep may have an axis or a metric of that name.
DRAWN, COST = "drawn partition", "seconds taken"
COLUMNS = {"trial": "trial", "status": "status", "seed": "seed", "partition_seed": "partition_seed"}
COLUMNS |= {"partition": DRAWN, "code": "code", "weights": "weights", "seconds": COST}
TEXTS = ("trial", "status", DRAWN, "code", "weights")


@dataclass(frozen=True)
class Confirmation:
    """The trials of one seed, computed again by other code and equal to the bit, see ``confirming.py``.

    sources: the hash of that code's sources. seconds: of computing them, all added up.
    """

    sources: str
    seed: int
    trials: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What the claims of an entry came to whose place another one has taken: a second outcome hides no first one.

    digest: of that sweep. verdicts: by the text of the claim.
    """

    digest: str
    seeds: tuple[int, ...]
    verdicts: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept of one sweep, in the order in which its file has it.

    settings: the digest of all settings, "" if the sweep was another when it was recorded. codes: the hash of each code
    that computed trials, those of searches too -> that of its sources, "" where these were gone when it was recorded.
    versions: what computed them beside that, one mapping for each mixture. machine: of the computer that it was
    recorded on, {} if that is not known to have computed it. search_seconds: of the trials by which sides were tuned;
    None if nothing was, or if the entry does not say. confirmed: by which other code since. before: what earlier
    entries came to that had other settings, seeds or claims, the oldest first. definition: ``sweep.yaml`` without what
    is of the folder.

    Of a row of ``trials``, ``drawn partition`` and ``weights`` are the first 16 hex digits of what was drawn and of
    what was trained, ``code`` the hash of what computed it, and ``seconds taken`` are those of the rounds that it
    computed itself. Metrics are numbers, or None where the trial has none.
    """

    name: str
    profile: str
    overrides: tuple[str, ...]
    digest: str
    settings: str
    codes: Mapping[str, str]
    versions: tuple[Mapping[str, str], ...]
    machine: Mapping[str, Any]
    search_seconds: float | None = None
    confirmed: tuple[Confirmation, ...] = ()
    before: tuple[Outcome, ...] = ()
    definition: Mapping[str, Any]
    metrics: tuple[str, ...]
    trials: tuple[Mapping[str, Any], ...]

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The claims as they were when the sweep began."""
        return tuple(map(Claim.from_mapping, self.definition["claims"]))

    @property
    def choice(self) -> str:
        """``second-best`` where each side has its second best candidate, for sensitivity; "" otherwise."""
        return str(self.definition.get("choice", ""))

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its trials, whatever became of them."""
        return tuple(sorted({row["seed"] for row in self.trials}))

    @cached_property
    def searched(self) -> tuple[TunedSide, ...]:
        """The tuned sides with their candidates; () if nothing was tuned, or if the entry does not say."""
        return from_mappings(self.definition.get("searched", ()))

    @property
    def seconds(self) -> float:
        """Seconds of computing, all trials added up, and those of the search where the entry has them."""
        return sum(row[COST] or 0.0 for row in self.trials) + (self.search_seconds or 0.0)

    @property
    def computer(self) -> str:
        """What computed its trials: ``AMD EPYC, 2 cores``."""
        if self.machine:
            return f"{self.machine['processor']}, {counted(self.machine['cores'], 'core')}"
        return " and ".join(sorted({one["processor"] for one in self.versions})) or "no machine"

    @property
    def programs(self) -> str:
        """What computed its trials there: ``fedskew 0.1.0, torch 2.13.0, cpu``."""
        told = [f"fedskew {one['fedskew']}, torch {one['torch']}, {one['device']}" for one in self.versions]
        return "; ".join(dict.fromkeys(told)) or "no trial has ended"

    @property
    def axes(self) -> list[str]:
        """The names of its axes."""
        return [axis["name"] for axis in self.definition["axes"]]

    @property
    def table(self) -> str:
        """Its trials as CSV."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*COLUMNS, *self.axes, *self.metrics])
        for row in self.trials:
            others = [_cell(row.get(name)) for name in self.metrics]
            writer.writerow(
                [
                    *(_cell(row[name]) for name in COLUMNS.values()),
                    *(_value_cell(row[name]) for name in self.axes),
                    *others,
                ]
            )
        return file.getvalue()

    @property
    def weights(self) -> str:
        """12 hex digits of the weights of all trials that ended: two runs of a sweep have the same if all bits are."""
        rows = [f"{row['trial']} {row['seed']} {row['weights']}" for row in self.trials if row["weights"]]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]

    @property
    def ended(self) -> str:
        """How many trials have ended: ``24 trials``, or ``18 of 24 trials, 2 of them failed``."""
        number = by_status(row["status"] for row in self.trials)
        ended, planned = sum(number.get(status, 0) for status in ENDED), len(self.trials)
        part = "" if ended == planned else f"{ended:,} of "
        failed = f", {number['failed']:,} of them failed" if number.get("failed") else ""
        return f"{part}{counted(planned, 'trial')}{failed}"

    def results(self, claims: tuple[Claim, ...]) -> Results:
        """Return the trials as what ``judge`` takes, with ``claims`` to be judged."""
        axes = tuple(
            Axis(one["name"], one["key"], one["kind"], one["values"] and tuple(one["values"]), one["log"])
            for one in self.definition["axes"]
        )
        rows = self.trials
        series = {axis.name: setting_column([row[axis.name] for row in rows]) for axis in axes}
        for name in ("trial", "status", "seed"):
            series[name] = pd.Series([row[name] for row in rows])
        for name in dict.fromkeys([*METRICS, *self.metrics]):  # what was not recorded is not a number
            series[name] = pd.Series([row.get(name) for row in rows], dtype="float64")
        looks = self.definition.get("looks", "once")
        if looks not in INTERVAL_RULES:
            raise ValueError(f"its seeds were looked at {looks!r}")
        completeness = Completeness(planned=len(rows), statuses=by_status(row["status"] for row in rows))
        return Results(
            path=Path(self.name),
            name=self.name,
            title=self.name,
            profile=self.profile,
            axes=axes,
            seeds=tuple(self.definition["seeds"]),
            metric=self.definition["metric"],
            mode=self.definition["mode"],
            target_accuracy=self.definition["target_accuracy"],
            tables=(),
            claims=claims,
            trials=pd.DataFrame(series),
            evaluations={},
            completeness=completeness,
            looks=looks,
        )


def file_of(ledger: Path, name: str, profile: str, choice: str = "") -> Path:
    """Return the file of an entry in the ledger's folder; ``choice``: of :class:`Entry`."""
    return ledger / ".".join(filter(None, (name, profile, choice, "yaml")))


def write(ledger: Path, entry: Entry) -> Path:
    """Put an entry in the place of the one before it, and return its file.

    Raises :class:`ConfigError` where it cannot be written, :class:`RunFolderError` where it could not be read again.
    """
    plain = json.loads(json.dumps(asdict(replace(entry, trials=()))))
    unknown = [name for name in ("search_seconds", "confirmed", "before") if plain[name] in (None, [])]
    head = {"sweep": entry.name} | {name: plain[name] for name in plain if name not in ("name", "trials", *unknown)}
    head["definition"] = dict(entry.definition)  # as it was read: what stands in it twice stays one thing
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    text += f"trials: |\n{textwrap.indent(entry.table, '  ')}"
    path = file_of(ledger, entry.name, entry.profile, entry.choice)
    text = f"{HASH}: {_hash(text)}\n{text}"
    _entry(path, text, "mend its sweep.yaml")  # what was edited so takes no entry's place
    try:
        ledger.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError("--ledger", ledger, f"cannot be written ({error})", "name another folder") from None
    return path


def read_all(ledger: Path) -> list[Entry]:
    """Read every entry of the ledger's folder, by name; an empty list where there is no such folder."""
    return [read(path) for path in sorted(ledger.glob("*.yaml"))]


def read(path: Path) -> Entry:
    """Read one entry; raises :class:`RunFolderError` for one that is damaged or was edited."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read as an entry of the ledger ({error}); {RECORD}") from None
    return _entry(path, text, RECORD)


def _entry(path: Path, text: str, repair: str) -> Entry:
    """Return the entry that ``text`` is, of the file ``path``; raises :class:`RunFolderError` with the ``repair``."""
    try:
        first, _, below = text.partition("\n")
        if first != f"{HASH}: {_hash(below)}":
            raise ValueError("it is not what was recorded")
        values = safe_yaml.parse(below)
        axes = [axis["name"] for axis in values["definition"]["axes"]]
        values |= {"name": values.pop("sweep"), "trials": _rows(values["trials"], axes, values["metrics"])}
        entry = Entry(**values)
        added = entry.definition.get("until_decided")
        if added is not None and not (isinstance(added, dict) and type(added.get("most")) is int):
            raise ValueError(f"its until_decided is {added!r}")
        if path.name != file_of(path.parent, entry.name, entry.profile, entry.choice).name:
            raise ValueError(f"it is of {entry.name} in profile {entry.profile}")
        # These raise where a side is damaged, and where the definition lacks a part.
        _ = entry.searched
        entry.results(entry.claims)
        return entry
    except ValidationError as error:
        what: Any = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
    except KeyError as error:
        what = f"it has no {error}"
    except (ValueError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        what = error
    raise RunFolderError(f"{path} cannot be read as an entry of the ledger ({what}); {repair}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _rows(text: str, axes: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """Return the trials that :attr:`Entry.table` made a text of; raises ValueError where it is no such table."""
    head, *lines = csv.reader(io.StringIO(text), strict=True)
    if head != [*COLUMNS, *axes, *metrics]:
        raise ValueError(f"its table has other columns than {', '.join([*COLUMNS, *axes, *metrics])}")
    rows = []
    for line in lines:
        row: dict[str, Any] = dict(zip([*COLUMNS.values(), *axes, *metrics], line, strict=True))
        row |= {name: _value(row[name]) for name in axes}
        row |= {name: json.loads(row[name]) if row[name] else None for name in row if name not in (*TEXTS, *axes)}
        rows.append(row)
    return rows


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None or not math.isfinite(value) else json.dumps(value)


def _value_cell(value: Any) -> str:
    plain = isinstance(value, str) and re.fullmatch(r"\w[ -~]*", value) and _value(value) is value
    return value if plain else json.dumps(value, sort_keys=True)


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell
