"""The entry of a sweep's folder, finished or still going on."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.base.devices import first_cpu
from engine.base.errors import ConfigError, RunFolderError
from engine.base.opening import read_bytes
from engine.experiment.dotted_keys import parse_assignment
from engine.record import parts
from engine.record.numerics import UNKNOWN, processor
from engine.record.run_folder import RunFolder
from engine.record.stage_hashes import CODE
from engine.record.summary import read as read_summary
from engine.record.sweep_files import BEGUN, SEARCHES, read_plan, tuned_by
from engine.results.claims import Claim
from engine.results.loading import load, trial_records
from engine.results.results import Results
from engine.results.settings import key
from engine.results.trials import read_experiment, read_yaml
from fedskew.lab import tuned_sides
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.ledger.entry import ROOT, Entry, Outcome
from fedskew.lab.ledger.stated import Stated
from fedskew.lab.ledger.table import COST, DRAWN, TrialTable
from fedskew.lab.ledger.versions import settings_digest

# Of sweep.yaml, and in no entry.
OF_FOLDER = ("name", "profile", "title", "digest", "reference", "overrides", "how", CODE, "tables", BEGUN)
VERSIONS = ("fedskew", "torch", "numpy", "device", "hardware", "processor", "settings")
ANY = "FOLDER"  # in the place of one that is of one machine


def asked(folder: Path) -> tuple[str, str, tuple[str, ...]]:
    """Return name, profile and overrides of the sweep in a folder; raises :class:`RunFolderError`."""
    parent = tuned_by(folder)
    if parent is not None:
        raise RunFolderError(f"{folder} is a search of the sweep in {parent}; record that one")
    values = read_yaml(folder / "sweep.yaml")
    name, profile, overrides = (values.get(part) for part in ("reference", "profile", "overrides"))
    if not isinstance(name, str) or not isinstance(profile, str) or not isinstance(overrides, list):
        raise RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep (it has no reference)")
    if not re.fullmatch(r"\w+", profile):
        raise RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep (its profile is {profile!r})")
    if not re.fullmatch(r"\w+\.\w+", name):
        raise RunFolderError(
            f"{folder} is a sweep of a file of your own: the ledger takes those of fedskew list sweeps"
        )
    if not isinstance(values.get("base"), dict):
        raise RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep (its base is no mapping)")
    return name, profile, tuple(_anywhere(str(text)) for text in overrides)


def choice_of(folder: Path) -> str:
    """Return the ``choice`` of the entry that a folder makes, see :class:`Entry`."""
    return "second-best" if any(side.rank for side in tuned_sides.read(folder)) else ""


def record(folder: Path, stated: Stated | None, before: Entry | None = None) -> Entry:
    """Read the folder of a sweep as an entry of the ledger.

    stated: the sweep as it is now, with the overrides of the folder; None if it is no more. before: its entry so far,
    which knows the sources of trials that ran before the code was changed, and by which code they were confirmed. What
    it came to is kept where it was of another setting.
    """
    name, profile, overrides = asked(folder)
    values = read_yaml(folder / "sweep.yaml")
    results = load(folder)
    own = parts.needs(results.path / row["folder"] for row in results.trials.to_dict("records"))
    if own.files or own.others:  # a command of the ledger's page names none of them
        told = "; ".join(own.others) or f"of {', '.join(own.files)}"
        raise RunFolderError(f"{folder} has parts of your own ({told}): the ledger takes what fedskew alone computes")
    begun = _begun(folder, values)
    results = replace(results, claims=_claims_of(folder, begun, results.claims))
    rows = _rows(results)
    searches = [path.parent for path in sorted(folder.glob(f"{SEARCHES}/*/sweep.yaml"))]
    searched = [row for path in searches for row in _rows(load(path))]
    versions, sources = dict[tuple[Any, ...], dict[str, str]](), dict[str, str]()
    for row in [*rows, *searched]:  # a choice that other code has made is of an earlier version, too
        computed_by = row.pop("versions")
        if computed_by:
            versions.setdefault(tuple(computed_by.items()), computed_by)
        if row["code"] and row["code"] not in sources:
            sources[row["code"]] = _sources(row["code"], stated, before)
    definition = {part: value for part, value in values.items() if part not in OF_FOLDER}
    definition |= begun
    data = definition["base"].get("data")
    if isinstance(data, dict) and data.get("root") is not None:
        data["root"] = ANY
    sides = tuned_sides.read(folder)
    definition |= {"choice": choice_of(folder), "searched": tuned_sides.to_mappings(sides)} if sides else {}
    entry = Entry(
        name=name,
        profile=profile,
        overrides=overrides,
        digest=str(values.get("digest", "")),
        definition=definition,
        settings=_settings(folder, values, stated),
        codes=sources,
        versions=tuple(versions.values()),
        machine=_machine(list(versions.values())),
        table=TrialTable(tuple(axis.name for axis in results.axes), _metrics(results), tuple(rows)),
        search_seconds=round(sum(row[COST] or 0.0 for row in searched), 3) if searches else None,
    )
    return entry if before is None else replace(entry, **_kept(entry, before))


def _begun(folder: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was asked when the first trial began and is asked otherwise now, see ``SweepFolder.create``."""
    begun = values.get(BEGUN, {})
    if not isinstance(begun, dict) or {*begun} - {"claims", "target_accuracy"}:
        raise RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep ({BEGUN}: {begun})")
    if "target_accuracy" in begun:  # the figures of the folder are of the present one
        then, now = begun["target_accuracy"], values["target_accuracy"]
        raise RunFolderError(
            f"{folder} has target_accuracy={now}, and its trials began with {then}: the ledger takes what was asked "
            f"first; set target_accuracy={then} in the sweep, and start it again"
        )
    return begun


def _claims_of(folder: Path, begun: Mapping[str, Any], now: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Return the claims that a sweep began with; ``now``: those that it has."""
    try:
        return tuple(map(Claim.from_mapping, begun["claims"])) if "claims" in begun else now
    except ConfigError as error:
        raise RunFolderError(
            f"{folder} began with a claim that is refused now ({error}); run it as a new sweep with --out"
        ) from None
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep ({BEGUN}: {error!r})") from None


def _kept(entry: Entry, before: Entry) -> dict[str, Any]:
    """Return what an entry keeps of the one whose place it takes."""
    kept: dict[str, Any] = {"before": before.before}
    if before.table.to_text() == entry.table.to_text():  # a figure that is not there is NaN in one, None in the other
        kept["confirmed"] = before.confirmed
    if (before.digest, before.claims) != (entry.digest, entry.claims):
        kept["before"] += (outcome_of(before),)
    return kept


def outcome_of(entry: Entry) -> Outcome:
    """Judge an entry for one that takes its place."""
    verdicts = {verdict.claim.text: verdict.verdict for verdict in judge(entry.results(entry.claims))}
    return Outcome(entry.digest, entry.seeds, verdicts)


def _anywhere(override: str) -> str:
    return f"{ROOT}={ANY}" if parse_assignment(override)[0] == ROOT else override


def _metrics(results: Results) -> tuple[str, ...]:
    """Name the metrics that the sweep's claims, its tables and the sweep itself ask for, as far as trials have them."""
    wanted = [results.metric, *(one.metric for one in (*results.claims, *results.tables))]
    return tuple(name for name in dict.fromkeys(wanted) if name in results.trials)


def _rows(results: Results) -> list[dict[str, Any]]:
    metrics = _metrics(results)
    found = []
    for row in results.trials.to_dict("records"):
        folder = results.path / row["folder"]
        kept = {name: row[name] for name in ("trial", "status", *(axis.name for axis in results.axes), *metrics)}
        kept |= {"seed": int(row["seed"]), "code": "", DRAWN: "", "partition_seed": None, COST: None}
        kept |= {"weights": (row["weights_sha256"] or "")[:16] if isinstance(row["weights_sha256"], str) else ""}
        found.append(kept | {"versions": {}} | (_of_folder(folder) if row["status"] in ("finished", "stopped") else {}))
    return found


def _of_folder(folder: Path) -> dict[str, Any]:
    """Read what the trials table has not: which partition was drawn, what computed the trial and how long."""
    computed_by = read_summary(folder).get("versions", {})
    partition = folder / "partition.parquet"
    try:
        drawn = hashlib.sha256(read_bytes(partition)).hexdigest()[:16]
    except OSError as error:
        raise RunFolderError(f"{partition} cannot be read ({error})") from None
    seed = read_experiment(folder / "experiment.yaml").get("partition", {}).get("seed")
    return {
        DRAWN: drawn,
        "partition_seed": seed if type(seed) is int else None,
        "code": computed_by.get(CODE, UNKNOWN),
        "versions": {name: computed_by.get(name, UNKNOWN) for name in VERSIONS},
        COST: _seconds(folder),
    }


def _seconds(folder: Path) -> float:
    """Add up the seconds of the rounds that the trial computed itself, their evaluations included."""
    rounds = RunFolder(folder).arrow("rounds", ["reused", "seconds", "evaluation_seconds"]).to_pandas()
    own = rounds[~rounds["reused"].astype(bool)]
    return round(float(own["seconds"].sum() + own["evaluation_seconds"].sum()), 3)


def _sources(code: str, stated: Stated | None, before: Entry | None) -> str:
    if stated is not None and code in stated.codes():
        return stated.sources()
    return before.codes.get(code, "") if before is not None else ""


def _settings(folder: Path, values: Mapping[str, Any], stated: Stated | None) -> str:
    """Return the digest of the sweep's settings, if those of the folder are the sweep's own still."""
    settings = stated.settings() if stated is not None else ()
    known = {key(setting) for setting in settings}
    try:
        searched = {name for side in values.get("tuned") or () for name in side["space"]}  # chosen for a side since
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep (tuned: {error!r})") from None
    records, _ = trial_records(folder, read_plan(folder, values) or ())
    stated_part = ({name: one for name, one in record["setting"].items() if name not in searched} for record in records)
    return settings_digest(settings) if all(key(setting) in known for setting in stated_part) else ""


def _machine(versions: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Describe this computer, if it is of the processor that computed every trial; {} otherwise."""
    here = processor()
    if not versions or any(one["processor"] != here for one in versions):
        return {}
    told = first_cpu(Path("/proc/cpuinfo"))
    model = told.get("model name", "")
    named = model if model and not model.lower().startswith("unknown") else here
    return {"processor": named, "cores": os.cpu_count(), "python": platform.python_version()}
