"""What has changed of a sweep since its entry was recorded: its code, its setting, its claims."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from engine.base.errors import FedskewError
from engine.experiment import Experiment
from engine.results.claims import Claim
from fedskew.lab.ledger.entry import Entry
from fedskew.lab.ledger.stated import Stated

# Of a definition: what decides which trials there are and what they compute. Seeds are free: each row says which.
DECIDES = ("axes", "samples", "metric", "mode", "search", "search_seed", "scheduler", "step", "stop", "target_accuracy")
DECIDES += ("partitions", "tuned", "tuning_seeds", "diagnose", "images")
BEFORE = {"partitions": "one"}  # what a sweep meant before it could say so
MOST_KEYS = 4


def changes(entry: Entry, stated: Stated | None) -> tuple[str, ...]:
    """Say what of a sweep is not what it was when its trials ran, one sentence for each thing; () if all of it is."""
    if stated is None:
        return ("the sweep is no longer stated",)
    return (*_of_code(entry, stated), *_of_setting(entry, stated))


def change_of(claim: Claim, entry: Entry, stated: Stated | None) -> tuple[str, ...]:
    """Say how a claim differs from those of the sweep then, or is no longer stated; () if it is as it was."""
    if stated is not None and claim not in stated.claims:
        return ("the claim is no longer stated so",)
    return () if claim in entry.claims else ("the claim was not stated so when the trials ran",)


def settings_digest(settings: Iterable[Mapping[str, Any]]) -> str:
    """Return 12 hex digits of all settings of a sweep, in any order; "" without any."""
    texts = sorted(json.dumps(setting, sort_keys=True) for setting in settings)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:12] if texts else ""


def _of_code(entry: Entry, stated: Stated) -> Iterable[str]:
    recorded = set(entry.codes.values())
    if any(one.sources == stated.sources() for one in entry.confirmed):
        return
    if "" in recorded:
        yield "its code had changed already when it was recorded"
    elif recorded - {stated.sources()}:
        yield "its code has changed"


def _of_setting(entry: Entry, stated: Stated) -> Iterable[str]:
    then, now = ({**BEFORE, **one} for one in (entry.definition, json.loads(json.dumps(stated.definition))))
    try:
        before = Experiment.from_mapping(then["base"]).identity()
    except (FedskewError, ValueError, TypeError, KeyError):  # of a key that is no more
        yield "its setting has changed (the experiment of then is none of this version)"
        return
    keys = [*_differing(before, json.loads(json.dumps(stated.identity())))]
    keys += [name for name in DECIDES if then.get(name) != now.get(name)]
    if not keys and entry.settings and entry.settings != settings_digest(stated.settings()):
        keys = ["what its space makes of each setting"]
    if keys:
        more = f" and {len(keys) - MOST_KEYS} more" if len(keys) > MOST_KEYS else ""
        yield f"its setting has changed ({', '.join(keys[:MOST_KEYS])}{more})"


def _differing(before: Any, now: Any, place: str = "") -> list[str]:
    """Return the dotted keys at which two mappings differ; what is in a list has the list's key."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        names: Sequence[str] = sorted({*before, *now})
        inner = (_differing(before.get(name), now.get(name), f"{place}.{name}") for name in names)
        return [key for keys in inner for key in keys]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [key for pair in zip(before, now, strict=True) for key in _differing(*pair, place)]
    same = json.dumps(before, sort_keys=True) == json.dumps(now, sort_keys=True)
    return [] if same else [place.removeprefix(".")]
