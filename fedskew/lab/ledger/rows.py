"""Each claim with what it came to: what has changed since its trials ran, its verdict, and what it counts as."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from engine.base.errors import FedskewError
from engine.experiment import Experiment
from engine.experiment.dotted_keys import parse_assignment
from engine.results.claims import Claim
from engine.results.completeness import lacks
from engine.results.settings import key
from fedskew.lab.comparing.sides import leaves
from fedskew.lab.comparing.verdicts import Verdict, judge, rests_on
from fedskew.lab.ledger.entry import DRAWN, ROOT, Entry, file_of
from fedskew.lab.quantities import quantity


@dataclass(frozen=True)
class SweepSpec:
    """A sweep of a profile. What is a function here takes a while, and is asked for where an entry is compared.

    definition: ``Sweep.to_mapping()``. identity: what the results of its base experiment depend on. settings: all of
    its settings, none where a searcher proposes them. sources: 16 hex digits of the sources that it goes through.
    codes: the hashes that its trials would note for their code here.
    """

    name: str  # "ccvr.main"
    profile: str
    title: str
    claims: tuple[Claim, ...]
    definition: Mapping[str, Any] = field(repr=False)
    identity: Callable[[], Mapping[str, Any]] = field(repr=False)
    settings: Callable[[], Sequence[Mapping[str, Any]]] = field(repr=False)
    sources: Callable[[], str] = field(repr=False)
    codes: Callable[[], frozenset[str]] = field(repr=False)


# Of a definition: what decides which trials there are and what they compute. Seeds are free: each row says which.
DECIDES = ("axes", "samples", "metric", "mode", "search", "search_seed", "scheduler", "step", "stop", "target_accuracy")
DECIDES += ("devices", "partitions", "tuned", "tuning_seeds", "tuning_rows", "diagnose", "images")
BEFORE = {"partitions": "one"}  # what a sweep meant before it could say so
MOST_KEYS = 4


def changes(entry: Entry, spec: SweepSpec | None) -> tuple[str, ...]:
    """Say what of a sweep is not what it was when its trials ran, one sentence for each thing; () if all of it is."""
    if spec is None:
        return ("the sweep is no longer stated",)
    return tuple(filter(None, (_of_code(entry, spec), _of_setting(entry, spec))))


def change_of(claim: Claim, entry: Entry, spec: SweepSpec | None) -> tuple[str, ...]:
    """Say how a claim differs from those of the sweep then, or is no longer stated; () if it is as it was."""
    if spec is not None and claim not in spec.claims:
        return ("the claim is no longer stated so",)
    return () if claim in entry.claims else ("the claim was not stated so when the trials ran",)


def settings_digest(settings: Iterable[Mapping[str, Any]]) -> str:
    """Return 12 hex digits of all settings of a sweep, in any order; "" without any."""
    texts = sorted(json.dumps(setting, sort_keys=True) for setting in settings)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12] if texts else ""


def _of_code(entry: Entry, spec: SweepSpec) -> str:
    recorded = set(entry.codes.values())
    if recorded <= {spec.sources()} or any(one.sources == spec.sources() for one in entry.confirmed):
        return ""
    return "its code had changed already when it was recorded" if "" in recorded else "its code has changed"


def _of_setting(entry: Entry, spec: SweepSpec) -> str:
    then, now = ({**BEFORE, **one} for one in (entry.definition, json.loads(json.dumps(spec.definition))))
    try:
        before = _keys(Experiment.from_mapping(then["base"]).identity())
    except (FedskewError, ValueError, TypeError, KeyError):  # of a key that is no more
        return "its setting has changed (the experiment of then is none of this version)"
    identity = _keys(spec.identity())
    keys = [name for name in sorted({*before, *identity}) if key(before.get(name)) != key(identity.get(name))]
    keys += [name for name in DECIDES if then.get(name) != now.get(name)]
    if not keys and entry.settings != settings_digest(spec.settings()):
        keys = ["what its space makes of each setting"]
    more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
    return f"its setting has changed ({', '.join(keys[:MOST_KEYS])}{more})" if keys else ""


def _keys(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an experiment's identity by dotted keys, those of a stage by its number."""
    return dict(leaves({**identity, "stages": {str(n): stage for n, stage in enumerate(identity["stages"])}}))


Word = Literal["held", "not held", "undecided", "of an earlier version", "not yet run"]
EARLIER: Word = "of an earlier version"
NOT_RUN: Word = "not yet run"
WORDS: tuple[Word, ...] = ("held", "not held", "undecided", EARLIER, NOT_RUN)
OF_VERDICT = ("effect", "low", "high", "seeds", "seeds_to_decide", "why")
PLACE = Path("docs/claims")  # of the entries in a checkout, for commands


@dataclass(frozen=True)
class Row:
    """A claim, and what it came to.

    verdict: as its trials have it, None if it has none. earlier: what has changed since they ran; () if nothing has.
    partitions: the fewest distinct partitions among the seeds of a setting that it rests on. lacks: what is not there
    of the trials that it rests on.
    """

    claim: Claim
    target: float | None  # the target accuracy of its sweep
    verdict: Verdict | None = None
    earlier: tuple[str, ...] = ()
    partitions: int = 0
    lacks: str = ""

    @property
    def word(self) -> Word:
        """What the ledger counts the claim as: a verdict of other code or of another setting is none of this one."""
        if self.verdict is None:
            return NOT_RUN
        return EARLIER if self.earlier else self.verdict.verdict

    @property
    def effect(self) -> str:
        """The effect with its 95 % interval, in the unit of the metric; "" where there is none."""
        if self.verdict is None or not math.isfinite(self.verdict.effect):
            return ""
        measured = quantity(self.claim.metric, self.target)
        told = measured.difference(self.verdict.effect, unit=True)
        if not math.isfinite(self.verdict.low):
            return told
        return f"{told} ({measured.difference(self.verdict.low)} to {measured.difference(self.verdict.high)})"

    @property
    def remark(self) -> str:
        """Why it is no verdict, and what would make it one; "" where there is nothing to say."""
        if self.verdict is None:
            return ""
        said = [f"{self.verdict.verdict} then; since, {', '.join(self.earlier)}"] if self.earlier else []
        said += [self.verdict.why] if self.verdict.verdict == "undecided" else []
        needed = self.verdict.seeds_to_decide
        said += [f"about {needed} seeds would decide it"] if needed is not None else []
        return "; ".join([*said, self.lacks] if self.lacks else said)


@dataclass(frozen=True)
class SweepRows:
    """The claims of one sweep and profile; entry: its trials, None if there are none.

    choice: as of :class:`Entry`. What has one is shown beside the sweep, and counted nowhere. since: what of the sweep
    has changed since its trials ran.
    """

    name: str
    profile: str
    title: str
    entry: Entry | None
    rows: tuple[Row, ...]
    command: str
    choice: str = ""
    since: tuple[str, ...] = ()

    @property
    def paper(self) -> str:
        """The module that states the sweep, one for each paper."""
        return self.name.partition(".")[0]

    @property
    def heading(self) -> str:
        """What its section of the page is called."""
        profile = f", profile {self.profile}" if self.profile != "laptop" else ""
        return f"{self.name}{profile}" + ", with the second best setting of each side" * bool(self.choice)

    @property
    def changed(self) -> str:
        """Where the trials have another setting than the sweep's own, say so: `` (with rounds=2)``."""
        overrides = without_seeds(self.entry.overrides) if self.entry else ()
        words = [word for word in overrides if parse_assignment(word)[0] != ROOT]
        return f" (with {', '.join(words)})" if words else ""

    def numbers(self, word: str) -> str:
        """The numbers of the claims that came to ``word``, for a reader."""
        return ", ".join(str(number) for number, row in enumerate(self.rows, start=1) if row.word == word)


def rows_of(
    specs: Iterable[SweepSpec], entries: Iterable[Entry], again: Callable[[Entry], SweepSpec | None]
) -> list[SweepRows]:
    """Judge every claim that a sweep states or that an entry was recorded with.

    specs: named sweeps, each profile of a sweep by itself; of a profile whose claims another one of the sweep states
    too, only what is recorded is a row. again: the sweep of an entry as it is now, with the entry's overrides.
    """
    recorded = {(entry.name, entry.profile, entry.choice): entry for entry in entries}
    found = []
    told: set[tuple[str, str, str]] = set()  # name, text and source of the claims of a sweep's profiles before
    for one in specs:
        entry = recorded.pop((one.name, one.profile, ""), None)
        if entry is not None:
            found.append(_of_entry(entry, again(entry), one))
        else:
            claims = [claim for claim in one.claims if (one.name, claim.text, claim.source) not in told]
            rows = tuple(Row(claim, one.definition["target_accuracy"]) for claim in claims)
            if rows:
                found.append(SweepRows(one.name, one.profile, one.title, None, rows, _command(one.name, one.profile)))
        second = recorded.pop((one.name, one.profile, "second-best"), None)
        found += [_of_entry(second, again(second), one)] if second is not None else []
        told |= {(one.name, claim.text, claim.source) for claim in one.claims}
    return found + [_of_entry(entry, None, None) for entry in recorded.values()]


def _of_entry(entry: Entry, spec: SweepSpec | None, plain: SweepSpec | None) -> SweepRows:
    """Judge an entry; spec, plain: its sweep as it is now, with the entry's overrides and without."""
    now = spec.claims if spec is not None else ()
    stated = (*now, *entry.claims)
    results = entry.results(entry.claims)
    # Holm's p is over the claims of then, and of one that was stated since over today's: to reword is no further test.
    verdicts = [*judge(results), *(one for one in judge(entry.results(now)) if one.claim not in entry.claims)]
    since = changes(entry, spec)
    rows = []
    for verdict in sorted(verdicts, key=lambda one: stated.index(one.claim)):
        claim = verdict.claim
        trials = rests_on(results, claim)
        begun = any(trial["status"] not in ("missing", "running") for trial in trials)
        rows.append(
            Row(
                claim=claim,
                target=results.target_accuracy,
                verdict=verdict if begun else None,
                earlier=(*since, *change_of(claim, entry, spec)) if begun else (),
                partitions=_partitions(entry, trials, verdict),
                lacks=lacks(trials, 0),
            )
        )
    own = plain is not None and [*entry.seeds] == sorted(plain.definition["seeds"])
    command = _command(entry.name, entry.profile, entry, own)
    title = plain.title if plain is not None else entry.name
    return SweepRows(entry.name, entry.profile, title, entry, tuple(rows), command, entry.choice, since)


def _partitions(entry: Entry, trials: Sequence[dict[str, Any]], verdict: Verdict) -> int:
    """Count the distinct partitions of each setting among the seeds that count; the fewest of all settings."""
    of_trial = {row["trial"]: row for row in entry.trials}
    drawn: dict[Any, set[str]] = {}
    for trial in trials:
        row = of_trial[trial["trial"]]
        if row[DRAWN] and row["status"] == "finished" and row["seed"] in verdict.seeds:
            drawn.setdefault(key([row[axis] for axis in entry.axes]), set()).add(row[DRAWN])
    return min(map(len, drawn.values()), default=0)


def _command(name: str, profile: str, entry: Entry | None = None, own: bool = True) -> str:
    """Return what computes a sweep again, as it was recorded; own: whether it has the entry's seeds by itself."""
    words = ["fedskew", "sweep", name, *without_seeds(entry.overrides if entry else ())]
    added = entry.definition.get("until_decided") if entry else None
    words += [f"seeds=[{','.join(map(str, entry.seeds))}]"] if entry and not (own or added) else []
    words += ["--profile", profile] * (profile != "laptop")
    words += ["--until-decided", "--most", str(added["most"])] if added else []
    if entry and entry.choice:  # the entry has the candidates
        words += ["--second-best", file_of(PLACE, name, profile, entry.choice).as_posix()]
    return shlex.join(words)


def without_seeds(overrides: Iterable[str]) -> list[str]:
    """Return the overrides of a sweep but that of its seeds, which a command has in words of its own."""
    return [word for word in overrides if parse_assignment(word)[0] != "seeds"]


def counts(sweeps: Iterable[SweepRows]) -> dict[Word, int]:
    """Count the claims by what they came to, in the order of :data:`WORDS`."""
    words = [row.word for _, row in counted_rows(sweeps)]
    return {word: words.count(word) for word in WORDS}


def counted_rows(sweeps: Iterable[SweepRows]) -> list[tuple[SweepRows, Row]]:
    """Return the one row of each claim that is counted, with its sweep, in the order of the claims' first rows.

    A claim is known by sweep, text and source, and has a row in each profile in which it was recorded. The profile
    paper's goes before the laptop's; a verdict goes before one of an earlier version, which counts for nothing, and
    that one before "not yet run". What was run with the second best settings is counted nowhere.
    """
    rows: dict[tuple[str, str, str, int], list[tuple[SweepRows, Row]]] = {}
    for sweep in sweeps:
        seen = Counter[tuple[str, str, str]]()  # a claim that was reworded beside what it was before
        for row in sweep.rows if not sweep.choice else ():
            claim = (sweep.name, row.claim.text, row.claim.source)
            seen[claim] += 1
            rows.setdefault((*claim, seen[claim]), []).append((sweep, row))
    return [min(group, key=_rank) for group in rows.values()]


def to_mappings(sweeps: Sequence[SweepRows]) -> list[dict[str, Any]]:
    """Return all rows as plain data, for JSON; ``counted``: whether it is the row that its claim is counted by."""
    counted = {id(row) for _, row in counted_rows(sweeps)}
    found = []
    for sweep in sweeps:
        about = {name: getattr(sweep, name) for name in ("paper", "profile", "choice", "command")}
        about |= {"sweep": sweep.name, "codes": [], "weights": None, "machine": {}}
        about |= {"minutes": None, "search_minutes": None}
        if (entry := sweep.entry) is not None:
            about |= {"codes": list(entry.codes), "weights": entry.weights, "machine": entry.machine}
            search = entry.search_seconds
            about["minutes"] = round(entry.seconds / 60, 2)
            about["search_minutes"] = None if search is None else round(search / 60, 2)
        for row in sweep.rows:
            of_claim = {name: getattr(row.claim, name) for name in ("text", "source", "metric", "margin", "kind")}
            of_row = {name: getattr(row, name) for name in ("earlier", "partitions", "lacks")}
            of_verdict = {name: getattr(row.verdict, name, None) for name in OF_VERDICT}
            of_verdict |= {"judged": row.verdict.verdict} if row.verdict else {"judged": None, "seeds": []}
            found.append(about | of_claim | of_row | of_verdict | {"verdict": row.word, "counted": id(row) in counted})
    return found


def _rank(found: tuple[SweepRows, Row]) -> tuple[int, bool]:
    sweep, row = found
    return {EARLIER: 1, NOT_RUN: 2}.get(row.word, 0), sweep.profile != "paper"
