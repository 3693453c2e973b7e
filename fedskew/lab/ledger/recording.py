"""The entry of a sweep's folder, finished or still going on, and one seed of an entry held against the present code.

Code changes far more often than what it computes does, and a ledger that forgot its verdicts each time would be empty
most of the time. So a seed is enough to confirm an entry: every setting once, its rounds to the last, and the hash of
its weights.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from engine.base.devices import first_cpu
from engine.base.errors import ConfigError, RunError, RunFolderError, require
from engine.data import Assignment
from engine.experiment.dotted_keys import parse_assignment
from engine.record import parts
from engine.record.numerics import UNKNOWN, differing, hardware_of, processor
from engine.record.run_folder import RunFolder
from engine.record.stage_hashes import CODE
from engine.record.summary import read as read_summary
from engine.record.sweep_files import BEGUN, SEARCHES, read_plan, tuned_by
from engine.results import round_folders
from engine.results.claims import Claim
from engine.results.completeness import ENDED
from engine.results.loading import load, trial_records
from engine.results.results import Results
from engine.results.settings import key, label
from engine.results.trials import read_experiment, read_json, read_yaml
from fedskew.lab import tuned_sides
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.ledger.entry import COST, DRAWN, ROOT, Confirmation, Entry, Outcome
from fedskew.lab.ledger.rows import SweepSpec, settings_digest
from fedskew.lab.quantities import quantity

# Of sweep.yaml, and in no entry.
OF_FOLDER = ("name", "profile", "title", "digest", "reference", "overrides", "how", CODE, "tables", BEGUN)
FIGURED = ("target_accuracy", "devices")  # of the present ones are the figures of a folder
MEASURED = ("diagnose", "images")  # when the trials have ended; like what is figured, in no digest of a sweep
VERSIONS = ("fedskew", "torch", "numpy", "device", "hardware", "processor", "settings")
ANY = "FOLDER"  # in the place of one that is of one machine
MOST = 3  # trials that are named where a confirmation fails


def _damaged(folder: Path, what: str) -> RunFolderError:
    return RunFolderError(f"{folder / 'sweep.yaml'} cannot be read as a sweep ({what})")


def sweep_of(folder: Path) -> tuple[str, str, tuple[str, ...]]:
    """Return name, profile and overrides of the sweep in a folder; raises :class:`RunFolderError`."""
    parent = tuned_by(folder)
    if parent is not None:
        raise RunFolderError(f"{folder} is a search of the sweep in {parent}; record that one")
    values = read_yaml(folder / "sweep.yaml")
    name, profile, overrides = (values.get(part) for part in ("reference", "profile", "overrides"))
    if not isinstance(name, str) or not isinstance(profile, str) or not isinstance(overrides, list):
        raise _damaged(folder, "it has no reference")
    if not re.fullmatch(r"\w+", profile):
        raise _damaged(folder, f"its profile is {profile!r}")
    if not re.fullmatch(r"\w+\.\w+", name):
        raise RunFolderError(
            f"{folder} is a sweep of a file of your own: the ledger takes those of fedskew list sweeps"
        )
    if not isinstance(values.get("base"), dict):
        raise _damaged(folder, "its base is no mapping")
    return name, profile, tuple(_anywhere(str(text)) for text in overrides)


def choice_of(folder: Path) -> str:
    """Return the ``choice`` of the entry that a folder makes, see :class:`Entry`."""
    return "second-best" if any(side.rank for side in tuned_sides.read(folder)) else ""


def record(folder: Path, spec: SweepSpec | None, before: Entry | None = None) -> Entry:
    """Read the folder of a sweep as an entry of the ledger.

    spec: the sweep as it is now, with the overrides of the folder; None if it is no more. before: its entry so far,
    which knows the sources of trials that ran before the code was changed, and by which code they were confirmed. What
    it came to is kept where it was of another setting.
    """
    name, profile, overrides = sweep_of(folder)
    values = read_yaml(folder / "sweep.yaml")
    results = load(folder)
    needed = parts.needs(results.path / row["folder"] for row in results.trials.to_dict("records"))
    if needed.files or needed.others:  # a command of the ledger's page names none of them
        whose = "; ".join(needed.others) or f"of {', '.join(needed.files)}"
        raise RunFolderError(f"{folder} has parts of your own ({whose}): the ledger takes what fedskew alone computes")
    _check_measured(folder, results, values)
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
            sources[row["code"]] = _sources(row["code"], spec, before)
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
        settings=_settings(folder, values, spec),
        codes=sources,
        versions=tuple(versions.values()),
        machine=_machine(list(versions.values())),
        metrics=_metrics(results),
        trials=tuple(rows),
        search_seconds=round(sum(row[COST] or 0.0 for row in searched), 3) if searches else None,
    )
    return entry if before is None else replace(entry, **_kept(entry, before))


def _begun(folder: Path, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was asked when the first trial began and is asked otherwise now, see ``SweepFolder.create``."""
    begun = values.get(BEGUN, {})
    if not isinstance(begun, dict) or {*begun} - {"claims", *FIGURED}:
        raise _damaged(folder, f"{BEGUN}: {begun}")
    for name in (one for one in FIGURED if one in begun):
        then, now = begun[name], values.get(name)
        raise RunFolderError(
            f"{folder} has {name}={now}, and its trials began with {then}: the ledger takes what was asked "
            f"first; set {name}={then} in the sweep, and start it again"
        )
    return begun


def _check_measured(folder: Path, results: Results, values: Mapping[str, Any]) -> None:
    """Refuse a folder whose trials were measured otherwise than its sweep asks for, by a command that came later."""
    from fedskew.lab.diagnosis.diagnosis import DiagnosisOptions  # matplotlib takes a second
    from fedskew.lab.images.generated import PROBE

    layers = values.get("diagnose")
    asked: dict[round_folders.Kind, dict[str, Any]] = {"images": {"probe": PROBE}} if values.get("images") else {}
    asked |= {"diagnosis": asdict(DiagnosisOptions.of_sweep(layers))} if layers else {}
    for kind, trial in product(asked, results.trials["folder"]):
        place = round_folders.latest(results.path / trial, kind)
        options = asked[kind] if place is None else read_json(place / "summary.json").get("options", "unknown options")
        if options != asked[kind]:
            rule = f"was measured with {label(options)}, and its sweep asks for {label(asked[kind])}"
            raise RunFolderError(f"{place} {rule}; run fedskew resume {folder}, which measures again")


def _claims_of(folder: Path, begun: Mapping[str, Any], now: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Return the claims that a sweep began with; ``now``: those that it has."""
    try:
        return tuple(map(Claim.from_mapping, begun["claims"])) if "claims" in begun else now
    except ConfigError as error:
        raise RunFolderError(
            f"{folder} began with a claim that is refused now ({error}); run it as a new sweep with --out"
        ) from None
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise _damaged(folder, f"{BEGUN}: {error!r}") from None


def _kept(entry: Entry, before: Entry) -> dict[str, Any]:
    """Return what an entry keeps of the one whose place it takes."""
    kept: dict[str, Any] = {"before": before.before}
    if before.table == entry.table:
        kept["confirmed"] = before.confirmed
    asked = [(one.digest, one.claims, *map(one.definition.get, (*FIGURED, *MEASURED))) for one in (before, entry)]
    if asked[0] != asked[1]:
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
    names, metrics = ("trial", "status", *(axis.name for axis in results.axes)), _metrics(results)
    nothing = {"code": "", DRAWN: "", "partition_seed": None, COST: None, "versions": {}}
    rows = []
    for row in results.trials.to_dict("records"):
        ended = row["status"] in ("finished", "stopped")
        weights = row["weights_sha256"][:16] if isinstance(row["weights_sha256"], str) else ""
        about = _of_folder(results.path / row["folder"]) if ended else nothing
        figures = {name: float(row[name]) if math.isfinite(row[name]) else None for name in metrics}
        own = {name: row[name] for name in names} | {"seed": int(row["seed"]), "weights": weights}
        rows.append(own | figures | about)
    return rows


def _of_folder(folder: Path) -> dict[str, Any]:
    """Read what the trials table has not: which partition was drawn, what computed the trial and how long."""
    computed_by = read_summary(folder).get("versions", {})
    seed = read_experiment(folder / "experiment.yaml").get("partition", {}).get("seed")
    return {
        DRAWN: Assignment.load(folder / "partition.parquet").digest[:16],
        "partition_seed": seed if type(seed) is int else None,
        "code": computed_by.get(CODE, UNKNOWN),
        "versions": {name: computed_by.get(name, UNKNOWN) for name in VERSIONS},
        COST: _seconds(folder),
    }


def _seconds(folder: Path) -> float:
    """Add up the seconds of the rounds that the trial computed itself, their evaluations included."""
    rounds = RunFolder(folder).arrow("rounds", ["reused", "seconds", "evaluation_seconds"]).to_pandas()
    computed = rounds[~rounds["reused"].astype(bool)]
    return round(float(computed["seconds"].sum() + computed["evaluation_seconds"].sum()), 3)


def _sources(code: str, spec: SweepSpec | None, before: Entry | None) -> str:
    if spec is not None and code in spec.codes():
        return spec.sources()
    return before.codes.get(code, "") if before is not None else ""


def _settings(folder: Path, values: Mapping[str, Any], spec: SweepSpec | None) -> str:
    """Return the digest of the sweep's settings, if those of the folder are the sweep's own still."""
    settings = spec.settings() if spec is not None else ()
    known = {key(setting) for setting in settings}
    try:
        searched = {name for side in values.get("tuned") or () for name in side["space"]}  # chosen for a side since
    except (KeyError, TypeError) as error:
        raise _damaged(folder, f"tuned: {error!r}") from None
    records, _ = trial_records(folder, read_plan(folder, values) or ())
    stated_part = ({name: one for name, one in record["setting"].items() if name not in searched} for record in records)
    return settings_digest(settings) if all(key(setting) in known for setting in stated_part) else ""


def _machine(versions: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Describe this computer, if it is of the processor that computed every trial; {} otherwise."""
    here = processor()
    if not versions or any(one["processor"] != here for one in versions):
        return {}
    model = first_cpu(Path("/proc/cpuinfo")).get("model name", "")
    named = model if model and not model.lower().startswith("unknown") else here
    return {"processor": named, "cores": os.cpu_count(), "python": platform.python_version()}


def seed_of(entry: Entry) -> int:
    """Return the seed of which the most trials have finished, the first of them; raises :class:`RunError` for none."""
    finished = Counter(row["seed"] for row in entry.trials if row["status"] == "finished")
    if not finished:
        raise RunError(f"no trial of {entry.name} has finished, so there is nothing to be confirmed; record it again")
    return min(finished, key=lambda seed: (-finished[seed], seed))


def confirmed(entry: Entry, again: Entry, spec: SweepSpec) -> Entry:
    """Return the entry with the confirmation that ``again``, the trials of one of its seeds, is.

    spec: the sweep as it is now. Raises :class:`RunError` where a trial has not ended, was computed by other code, or
    came to other bits (weights or a figure that the entry keeps), and where a setting has no trial of the
    seed, so that nothing would be known of it.
    """
    sources, pairs = spec.sources(), _pairs(entry, again)
    if {*again.codes.values()} != {sources}:
        raise RunError(f"{again.name}: its trials were computed by other code than this; remove their folder")
    found = [(row["trial"], _difference(row, other, _compared(entry))) for row, other in pairs]
    wrong = [f"trial {trial} ({what})" for trial, what in found if what]
    if wrong:
        raise RunError(f"{entry.name} comes to other bits now: {_few(wrong)}; run the sweep again, and record it")
    confirmation = Confirmation(sources, seed_of(entry), len(pairs), round(again.seconds, 3))
    others = tuple(earlier for earlier in entry.confirmed if earlier.sources != sources)
    return replace(entry, confirmed=(*others, confirmation))


def largest_difference(entry: Entry, again: Entry, tolerance: float) -> tuple[float, int]:
    """Return by how much a figure of an entry differs at most from that of ``again``, and of how many trials.

    again: the trials of one of its seeds, of any machine and code. A difference is absolute, or relative where figures
    are above 1. Raises :class:`RunError` where one is above the tolerance, or a trial has another end.
    """
    most, wrong, pairs = 0.0, list[str](), _pairs(entry, again)
    for row, other in pairs:
        if other is None or other["status"] != row["status"]:
            wrong.append(f"trial {row['trial']} (its status)")
            continue
        for name in _compared(entry):
            then, now = (math.nan if one.get(name) is None else one[name] for one in (row, other))
            if math.isnan(then) and math.isnan(now):
                continue
            off = abs(then - now) / max(1.0, abs(then))
            most = max(most, off)
            if not off <= tolerance:  # nor where one of the two is not there
                wrong.append(f"trial {row['trial']} ({name} {then:g}, now {now:g})")
    if wrong:
        raise RunError(f"{entry.name} comes to other figures now: {_few(wrong)}; the tolerance is {tolerance:g}")
    return most, len(pairs)


def check_machine(entry: Entry) -> None:
    """Raise :class:`ConfigError` where nothing that computed an entry's trials is as it is on this machine."""
    found = []
    for one in entry.versions:
        hardware = UNKNOWN if one["device"] == "cuda" and not torch.cuda.is_available() else hardware_of(one["device"])
        here = {**one, "torch": torch.__version__, "hardware": hardware, "processor": processor()}
        found.append([f"{name} {a}, here {b}" for name, (a, b) in differing(one, here).items() if a != UNKNOWN])
    rule = f"was computed with {'; '.join(found[0] if found else ())}: bits may differ"
    fits = not all(found)  # where several have computed it, the trials to be confirmed may be of this one
    require(fits, "--confirm", entry.name, rule, "confirm it on such a machine, or add --figures 0.005")


def _pairs(entry: Entry, again: Entry) -> list[tuple[Mapping[str, Any], Mapping[str, Any] | None]]:
    """Return each ended trial of the seed that was run again, with the one that it is now, None where there is none.

    Raises :class:`RunError` where a setting has no trial of the seed: nothing would be known of it.
    """

    def setting(row: Mapping[str, Any]) -> Any:
        return key([row[axis] for axis in entry.axes])

    seed, ended = seed_of(entry), [row for row in entry.trials if row["status"] in ENDED]
    now = {setting(row): row for row in again.trials if row["seed"] == seed}
    then = {setting(row): row for row in ended if row["seed"] == seed}
    alone = next((row["trial"] for row in ended if setting(row) not in then), None)
    if alone is not None:
        raise RunError(f"{entry.name}: seed {seed} has no trial of the setting of trial {alone}; run the sweep again")
    return [(row, now.get(place)) for place, row in then.items()]


def _compared(entry: Entry) -> list[str]:
    return [name for name in entry.metrics if quantity(name).unit != "s"]  # time is never the same


def _few(wrong: Sequence[str]) -> str:
    return ", ".join(wrong[:MOST]) + (f" and {len(wrong) - MOST} more" if len(wrong) > MOST else "")


def _difference(row: Mapping[str, Any], other: Mapping[str, Any] | None, metrics: Sequence[str]) -> str:
    """Return the first difference between a stored trial and its re-run; "" if they are equal."""
    if other is None or other["status"] not in ENDED:
        return "has not ended"
    names = ("status", "weights", *metrics)
    return next((f"its {name}" for name in names if row.get(name) != other.get(name)), "")
