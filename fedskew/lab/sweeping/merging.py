"""Merging of a sweep that was split over machines, by seeds or by values of its grids, into one folder.

Each part is a folder of the same sweep with other ``seeds=`` or with some values of an axis alone. The merged folder is
that of the sweep which has the seeds and the values of all parts: it is reported, resumed and recorded as any other,
and what no part has is missing there. Nothing is computed, and the parts stay as they are.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from engine.base.errors import ConfigError, RunFolderError, require
from engine.base.files import locked, refuse_links, write_atomically
from engine.experiment import parse_assignment
from engine.record import wholeness
from engine.record.numerics import UNKNOWN
from engine.record.run_folder import RunFolder
from engine.record.stage_hashes import CODE, code_of
from engine.record.sweep_files import RECORD, SEARCHES, PlannedTrial
from engine.results.settings import key, label, setting_label
from engine.sweeps.definition import Optuna
from engine.sweeps.folder import SweepFolder, TrialRecord
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.options import How
from engine.sweeps.planning import Planned, plan
from engine.sweeps.running import combined, reopened
from engine.sweeps.space import is_grid
from fedskew.lab import tuned_sides
from fedskew.lab.comparing.sides import NONE, config_keys, leaves
from fedskew.lab.sweeping.tuning import completing

FILE = "merged.json"  # in the merged folder: which trial came from where
ENDED = ("finished", "stopped")


@dataclass(frozen=True)
class Part:
    """A folder that is merged."""

    path: Path
    named: NamedSweep
    how: How
    code: str  # of all its trials together, as its sweep.yaml says


@dataclass(frozen=True)
class Found:
    """A trial in a part."""

    part: Part
    record: TrialRecord
    summary: Mapping[str, Any]  # {} of one that has not ended

    @property
    def place(self) -> Path:
        return self.part.path / "trials" / self.record.trial

    @property
    def code(self) -> str:
        """The hash of what computed it."""
        return str(self.summary.get("versions", {}).get(CODE, UNKNOWN))

    @property
    def outcome(self) -> tuple[Any, ...]:
        """What is equal for two trials that came to the same, to the bit."""
        weights = tuple(self.summary.get(name) for name in ("weights_sha256", "states_sha256"))
        return self.record.status, self.record.rounds, *weights

    @property
    def worth(self) -> tuple[bool, bool, int]:
        """The larger it is, the more of the trial is here."""
        return self.record.status in ENDED, self.record.status == "failed", self.record.rounds


@dataclass(frozen=True)
class Merged:
    """What a merge has come to."""

    folder: Path
    planned: int
    taken: Mapping[str, int]  # part -> trials that were taken from it
    doubles: int  # trials that several parts have, equal to the bit, each taken once
    missing: tuple[str, ...]  # trials that no part has
    damaged: tuple[str, ...]  # sentences on trials that cannot be read, and are missing therefore
    versions: Mapping[str, tuple[str, ...]]  # of libraries and machines -> values, where trials differ in them


def merge(out: Path, folders: Sequence[Path], sweeps: Mapping[str, tuple[str, ...]]) -> Merged:
    """Write the folder ``out`` of the sweep that all ``folders`` are parts of.

    Raises :class:`RunFolderError` for folders that are not of one sweep and one code, for trials that two of them have
    with different bits, and for a part that is under way; :class:`ConfigError` for an ``out`` that is in use.
    """
    require(len(folders) > 1, "folders", ", ".join(map(str, folders)), "are fewer than two", "name all parts")
    places = [path.resolve() for path in folders]
    for number, place in enumerate(places):
        require(place not in places[:number], "folders", folders[number], "is given twice", "name it once")
    taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    require(not taken, "OUT", out, "is there already", "name a new folder")
    with ExitStack() as stack:
        for path in folders:
            refuse_links(path)
            if (path / ".lock").exists():
                stack.enter_context(locked(path / ".lock"))
        parts = [_part(path, sweeps) for path in folders]
        named = _whole(parts, sweeps)
        sides = tuned_sides.read(folders[0])
        for path in folders:
            if tuned_sides.read(path) != sides:
                raise RunFolderError(f"{path} has tuned its sides to other values than {folders[0]}")
        planned = plan(named.sweep, completing(named.sweep, sides))
        found, damaged = _found(parts, planned)
        code = _code(parts, named, planned, found)
        chosen = {trial: _chosen(several) for trial, several in found.items()}
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
            try:
                _write(made, parts, named, planned, chosen, code)
                reopened(made, sweeps)  # as a resume will find it
                if out.exists():
                    out.rmdir()
                made.chmod(0o755)  # a temporary folder is its owner's alone
                made.rename(out)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
        except OSError as error:
            raise ConfigError("OUT", out, f"cannot be written ({error})", "name another folder") from None
    return Merged(
        folder=out,
        planned=len(planned),
        taken=Counter(str(one.part.path) for one in chosen.values()),
        doubles=sum(sum(one.record.status in ENDED for one in several) > 1 for several in found.values()),
        missing=tuple(one.trial for one in planned if one.trial not in chosen),
        damaged=tuple(damaged),
        versions=_versions(chosen.values()),
    )


# --- one sweep of several -----------------------------------------------------------------------------------


def _part(path: Path, sweeps: Mapping[str, tuple[str, ...]]) -> Part:
    values = SweepFolder(path).asked()
    named, how = reopened(path, sweeps)
    sweep, why = named.sweep, ""
    if isinstance(sweep.search, Optuna):
        why = "a searcher proposes its settings, each from those before it"
    elif sweep.scheduler is not None:
        why = "a scheduler ends or changes its trials by what others came to"
    elif named.most is not None:
        why = "its seeds were added until its claims were decided"
    if why:
        raise RunFolderError(f"{path} cannot be a part of a sweep: {why}")
    return Part(path, named, how, str(values.get(CODE, UNKNOWN)))


def _whole(parts: Sequence[Part], sweeps: Mapping[str, tuple[str, ...]]) -> NamedSweep:
    """Return the sweep with the seeds and the values of all parts; :class:`RunFolderError` where that is not one."""
    first, *others = parts
    mine = _asked(first.named)
    for part in others:
        theirs = _asked(part.named)
        for name in {**mine, **theirs}:
            here, there = (facts.get(name, NONE) for facts in (theirs, mine))
            if key(here) != key(there):
                raise RunFolderError(
                    f"{part.path} is not of the sweep of {first.path}: its {name} is {label(here)}, there "
                    f"{label(there)}; parts of a sweep differ in seeds and in values of its grids alone"
                )
    plain = load(first.named.reference, first.named.profile, _rest(first).values(), sweeps)
    words = [*_rest(first).values()]
    for name, value in plain.sweep.space.items():
        if is_grid(value):
            kept = {key(one) for part in parts for one in part.named.sweep.space[name]["grid_search"]}
            values = [one for one in value["grid_search"] if key(one) in kept]
            words += [f"{name}={_yaml(values)}"] if len(values) < len(value["grid_search"]) else []
    seeds = sorted({seed for part in parts for seed in part.named.sweep.seeds})
    words += [f"seeds={_yaml(seeds)}"] if seeds != sorted(plain.sweep.seeds) else []
    whole = load(first.named.reference, first.named.profile, words, sweeps)
    of_first = replace(whole.sweep, partitions=first.named.sweep.partitions)  # "one", of an older folder
    return replace(whole, sweep=of_first, rank=first.named.rank)


def _rest(part: Part) -> dict[str, str]:
    """Return the overrides of a part that are not of seeds and grids, by key."""
    sweep = part.named.sweep
    varied = {sweep.base.key_of(name) for name in sweep.space}
    named = {parse_assignment(text)[0]: text for text in part.named.overrides}
    return {name: text for name, text in named.items() if name != "seeds" and sweep.base.key_of(name) not in varied}


def _asked(named: NamedSweep) -> dict[str, Any]:
    """Return by name what all parts have in common: what moves their results, but for seeds and grids."""
    base, of_sweep = named.sweep.base, named.sweep.to_mapping()
    asked = {"sweep": named.name, "profile": named.profile, "choice of tuned candidates": named.rank}
    # In no comparison of settings: the seed that those of trials are added to, and what lets bits differ.
    asked |= {"partition.seed": getattr(base.partition, "seed", None)}
    asked |= {"execution.mixed_hardware": base.execution.mixed_hardware}
    asked |= {name: value for name, value in of_sweep.items() if name not in ("base", "axes", "seeds")}
    return asked | config_keys(base.to_mapping()) | dict(leaves(base.identity()["data"], "data"))


def _yaml(values: list[Any]) -> str:
    return yaml.safe_dump(values, default_flow_style=True, width=2**30, allow_unicode=True).strip()


# --- its trials ---------------------------------------------------------------------------------------------


def _found(parts: Sequence[Part], planned: Sequence[Planned]) -> tuple[dict[str, list[Found]], list[str]]:
    """Return what the parts have of each planned trial, and say what is damaged."""
    places: dict[Any, list[str]] = {}
    for one in planned:
        places.setdefault((key(one.setting), one.seed), []).append(one.trial)
    found: dict[str, list[Found]] = {}
    damaged: list[str] = []
    for part in parts:
        seen = Counter[Any]()
        folder = SweepFolder(part.path)
        for path in sorted((part.path / "trials").glob(f"*/{RECORD}")):
            try:
                record = folder.begun(path.parent.name)
                run = RunFolder(path.parent)
                if record.status in ENDED:
                    wholeness.check_ended(run)
                summary = run.summary() if record.status in ENDED else {}
            except RunFolderError as error:
                damaged.append(str(error))
                continue
            same = places.get((key(record.setting), record.seed), [])
            number = seen[key(record.setting), record.seed]  # a setting that was drawn twice is two trials
            seen[key(record.setting), record.seed] += 1
            if number >= len(same):
                label = setting_label(record.setting)
                raise RunFolderError(f"{path.parent} ({label}, seed {record.seed}) is no trial of the merged sweep")
            found.setdefault(same[number], []).append(Found(part, record, summary))
    return found, damaged


def _chosen(several: Sequence[Found]) -> Found:
    """Return the trial that is taken of doubles; :class:`RunFolderError` where two have ended and differ."""
    best = max(several, key=lambda one: one.worth)
    for one in several:
        if one.record.status in ENDED and one.outcome != best.outcome:
            told = ", ".join(filter(None, [setting_label(one.record.setting), f"seed {one.record.seed}"]))
            hashes = [str(other.summary.get("weights_sha256"))[:12] for other in (best, one)]
            raise RunFolderError(
                f"{best.place} and {one.place} are the same trial ({told}) with other bits (weights {hashes[0]} and "
                f"{hashes[1]}); find out which is right, and leave the other's folder away"
            )
    return best


def _code(
    parts: Sequence[Part], named: NamedSweep, planned: Sequence[Planned], found: Mapping[str, Sequence[Found]]
) -> str:
    """Return the hash of the code of all trials; :class:`RunFolderError` unless one code has computed all of them."""
    here = {one.trial: code_of(one.experiment) for one in planned}
    ended = [(here[trial], one) for trial, several in found.items() for one in several if one.summary]
    other = next((one for code, one in ended if one.code != code), None)
    if other is None:
        return combined([code_of(named.sweep.base), *here.values()])
    # Of other code than that here nobody knows the sources: it is one code if all trials that have one code here have
    # one there, and the parts note the same for all of their trials together.
    pairs = {(code, one.code) for code, one in ended}
    if len({part.code for part in parts}) == 1 and len(pairs) == len({code for code, _ in pairs}):
        return parts[0].code
    raise RunFolderError(
        f"{other.place} was computed by other code than this ({other.part.code}), and so the parts may be of several; "
        "merge them with the code that has computed them"
    )


# --- the folder ---------------------------------------------------------------------------------------------


def _write(
    made: Path,
    parts: Sequence[Part],
    named: NamedSweep,
    planned: Sequence[Planned],
    chosen: Mapping[str, Found],
    code: str,
) -> None:
    folder, first = SweepFolder(made), parts[0]
    folder.create(named, replace(first.how, store=None).to_mapping(), code, _begun(parts, named))
    folder.write_plan([PlannedTrial(one.trial, one.seed, one.setting) for one in planned])
    for trial, one in chosen.items():
        shutil.copytree(one.place, made / "trials" / trial, ignore=shutil.ignore_patterns(".lock"))
        folder.write(replace(one.record, trial=trial))
    for name in (tuned_sides.FILE, SEARCHES):
        if (first.path / name).is_dir():
            shutil.copytree(first.path / name, made / name, ignore=shutil.ignore_patterns(".lock"))
        elif (first.path / name).exists():
            shutil.copy2(first.path / name, made / name)
    came = {trial: {"folder": one.part.path.resolve().name, "trial": one.record.trial} for trial, one in chosen.items()}
    write_atomically(made / FILE, json.dumps({"trials": came}, indent=1) + "\n")


def _begun(parts: Sequence[Part], named: NamedSweep) -> dict[str, Any]:
    """Return the claims that every part had when its trials began, and a target and devices that are not today's."""
    first = [asked for part in parts if (asked := SweepFolder(part.path).asked_first())]
    if not first:
        return {}
    asked = named.sweep.to_mapping()
    now = {name: asked.get(name) for name in ("target_accuracy", "devices")}
    return {
        "claims": [claim for claim in first[0]["claims"] if all(claim in one["claims"] for one in first)],
        **{name: next((one[name] for one in first if one[name] != value), value) for name, value in now.items()},
    }


def _versions(chosen: Iterable[Found]) -> dict[str, tuple[str, ...]]:
    """Return the versions of libraries and machines in which trials differ."""
    noted = [one.summary.get("versions", {}) for one in chosen]
    values = {name: {one[name] for one in noted if name in one} for name in set().union(*noted) - {CODE}}
    return {name: tuple(sorted(several)) for name, several in sorted(values.items()) if len(several) > 1}
