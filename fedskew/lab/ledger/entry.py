"""An entry of the ledger: a sweep's trials as a small table, with what was asked and what computed them.

An entry is one YAML file, docs/claims/<sweep>.<profile>.yaml, replaced as a whole. It keeps figures, and verdicts of
those entries alone whose place it took: its own are judged anew from its table, whenever the page is made. Its first
line is the hash of all lines below, so that an entry whose claims, settings or trials were edited, or badly merged, is
refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pydantic import BaseModel, ValidationError

from engine.base import safe_yaml
from engine.base.errors import ConfigError, RunFolderError
from engine.base.files import write_atomically
from engine.base.opening import read_text
from engine.results.claims import Claim
from engine.results.coverage import ENDED, Coverage, by_status
from engine.results.results import Axis, Results
from engine.results.settings import setting_column
from engine.results.trials import METRICS
from fedskew.lab.comparing.intervals import INTERVAL_RULES
from fedskew.lab.ledger.table import COST, TrialTable
from fedskew.lab.tuned_sides import TunedSide, from_mappings
from fedskew.lab.wording import counted

TRIALS = "trials"  # the table, last of all
RECORD = "record its sweep again"
HASH = "sha256"  # of all lines below the first one
ROOT = "data.root"  # what an override sets that names a folder of one machine


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


@dataclass(frozen=True)
class Entry:
    """What is kept of one sweep.

    definition: ``sweep.yaml`` without what is of the folder. settings: of :class:`Stated`, "" if the sweep was another
    when it was recorded. codes: the hash of each code that computed trials, those of searches too -> that of its
    sources, "" where these were gone when it was recorded. versions: what computed them beside that, one mapping for
    each mixture. machine: of the computer that it was recorded on, {} if that is not known to have computed it.
    search_seconds: of the trials by which sides were tuned; None if nothing was, or if the entry does not say.
    confirmed: by which other code since. before: what earlier entries came to that
    had other settings, seeds or claims, the oldest first.
    """

    name: str
    profile: str
    overrides: tuple[str, ...]
    digest: str
    definition: Mapping[str, Any]
    settings: str
    codes: Mapping[str, str]
    versions: tuple[Mapping[str, str], ...]
    machine: Mapping[str, Any]
    table: TrialTable
    search_seconds: float | None = None
    confirmed: tuple[Confirmation, ...] = ()
    before: tuple[Outcome, ...] = ()

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
        return tuple(sorted({row["seed"] for row in self.table.rows}))

    @cached_property
    def searched(self) -> tuple[TunedSide, ...]:
        """The tuned sides with their candidates; () if nothing was tuned, or if the entry does not say."""
        return from_mappings(self.definition.get("searched", ()))

    @property
    def seconds(self) -> float:
        """Seconds of computing, all trials added up, and those of the search where the entry has them."""
        return sum(row[COST] or 0.0 for row in self.table.rows) + (self.search_seconds or 0.0)

    @property
    def weights(self) -> str:
        """12 hex digits of the weights of all trials that ended: two runs of a sweep have the same if all bits are."""
        rows = [f"{row['trial']} {row['seed']} {row['weights']}" for row in self.table.rows if row["weights"]]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:12]

    @property
    def ended(self) -> str:
        """How many trials have ended: ``24 trials``, or ``18 of 24 trials, 2 of them failed``."""
        number = by_status(row["status"] for row in self.table.rows)
        ended, planned = sum(number.get(status, 0) for status in ENDED), len(self.table.rows)
        part = "" if ended == planned else f"{ended:,} of "
        failed = f", {number['failed']:,} of them failed" if number.get("failed") else ""
        return f"{part}{counted(planned, 'trial')}{failed}"

    def results(self, claims: tuple[Claim, ...]) -> Results:
        """Return the trials as what ``judge`` takes, with ``claims`` to be judged."""
        axes = tuple(Axis(a["name"], a["key"], a["kind"], _tuple(a["values"]), a["log"]) for a in self._axes)
        rows = self.table.rows
        series = {axis.name: setting_column([row[axis.name] for row in rows]) for axis in axes}
        for name in ("trial", "status", "seed"):
            series[name] = pd.Series([row[name] for row in rows])
        for name in dict.fromkeys([*METRICS, *self.table.metrics]):  # what was not recorded is not a number
            series[name] = pd.Series([row.get(name) for row in rows], dtype="float64")
        looks = self.definition.get("looks", "once")
        if looks not in INTERVAL_RULES:
            raise ValueError(f"its seeds were looked at {looks!r}")
        coverage = Coverage(planned=len(rows), statuses=by_status(row["status"] for row in rows))
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
            coverage=coverage,
            looks=looks,
        )

    @property
    def _axes(self) -> list[dict[str, Any]]:
        return self.definition["axes"]


def file_of(ledger: Path, name: str, profile: str, choice: str = "") -> Path:
    """Return the file of an entry in the ledger's folder; ``choice``: of :class:`Entry`."""
    return ledger / ".".join(filter(None, (name, profile, choice, "yaml")))


def write(ledger: Path, entry: Entry) -> Path:
    """Put an entry in the place of the one before it, and return its file.

    Raises :class:`ConfigError` where it cannot be written, :class:`RunFolderError` where it could not be read again.
    """
    plain = json.loads(json.dumps(asdict(replace(entry, definition={}, table=TrialTable((), (), ())))))
    known = [name for name in ("search_seconds", "confirmed", "before") if plain[name] not in (None, [])]
    names = ("profile", "overrides", "digest", "settings", "codes", "versions", "machine")
    head = {"sweep": entry.name} | {name: plain[name] for name in (*names, *known)}
    head |= {"definition": dict(entry.definition), "metrics": list(entry.table.metrics)}
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=120)
    text += f"{TRIALS}: |\n{textwrap.indent(entry.table.to_text(), '  ')}"
    path = file_of(ledger, entry.name, entry.profile, entry.choice)
    text = f"{HASH}: {_hash(text)}\n{text}"
    _checked(path, text, "mend its sweep.yaml")  # what was edited so takes no entry's place
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
        raise _damaged(path, error) from None
    return _checked(path, text)


def _checked(path: Path, text: str, repair: str = RECORD) -> Entry:
    """Return the entry that ``text`` is, of the file ``path``; raises :class:`RunFolderError` with the ``repair``."""
    try:
        return _entry(path, _File.model_validate(safe_yaml.parse(text)), text.partition("\n")[2])
    except ValidationError as error:
        first = error.errors()[0]
        raise _damaged(path, f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}", repair) from None
    except KeyError as error:
        raise _damaged(path, f"it has no {error}", repair) from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _damaged(path, error, repair) from None


def _damaged(path: Path, error: Exception | str, repair: str = RECORD) -> RunFolderError:
    return RunFolderError(f"{path} cannot be read as an entry of the ledger ({error}); {repair}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class _File(BaseModel):
    """What stands in an entry's file."""

    sha256: str
    sweep: str
    profile: str
    overrides: tuple[str, ...]
    digest: str
    settings: str
    codes: dict[str, str]
    versions: tuple[dict[str, str], ...]
    machine: dict[str, Any]
    definition: dict[str, Any]
    metrics: tuple[str, ...]
    trials: str
    search_seconds: float | None = None
    confirmed: tuple[Confirmation, ...] = ()
    before: tuple[Outcome, ...] = ()


def _entry(path: Path, file: _File, below: str) -> Entry:
    """Make an entry of its file; below: the text without the first line."""
    if _hash(below) != file.sha256:
        raise ValueError("it is not what was recorded")
    added = file.definition.get("until_decided")
    if added is not None and not (isinstance(added, dict) and type(added.get("most")) is int):
        raise ValueError(f"its until_decided is {added!r}")
    same = {one.name: getattr(file, one.name) for one in dataclasses.fields(Entry) if one.name in _File.model_fields}
    axes = [axis["name"] for axis in file.definition["axes"]]
    entry = Entry(name=file.sweep, table=TrialTable.from_text(file.trials, axes, file.metrics), **same)
    if path.name != file_of(path.parent, entry.name, entry.profile, entry.choice).name:
        raise ValueError(f"it is of {entry.name} in profile {entry.profile}")
    _ = entry.searched, entry.results(entry.claims)  # raises where a side is damaged, or the definition lacks a part
    return entry


def _tuple(values: Any) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)
