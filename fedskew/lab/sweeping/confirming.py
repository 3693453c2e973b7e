"""A sweep by name as the ledger of claims takes it, and the sweep that computes one seed of an entry again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from engine.base.errors import require
from engine.experiment import Experiment
from engine.record.stage_hashes import code_of, sources_of
from engine.sweeps.definition import Optuna
from engine.sweeps.folder import SweepFolder
from engine.sweeps.named import NamedSweep, load
from engine.sweeps.options import How
from fedskew.lab.ledger import Entry, SweepSpec, seed_of, without_seeds
from fedskew.lab.ledger.entry import ROOT
from fedskew.lab.ledger.recording import ANY
from fedskew.lab.sweeping.tuning import begin_with


def spec_of(named: NamedSweep) -> SweepSpec:
    """Return what the ledger compares of a sweep; nothing is hashed before it is asked for."""
    sweep = named.sweep
    searched = isinstance(sweep.search, Optuna)

    @cache
    def experiments() -> tuple[Experiment, ...]:
        of_settings = () if searched else sweep.settings()
        return sweep.base, *(sweep.experiment(setting, sweep.seeds[0]) for setting in of_settings)

    return SweepSpec(
        name=named.name,
        profile=named.profile,
        title=named.title,
        claims=sweep.claims,
        definition=sweep.to_mapping(),
        identity=sweep.base.identity,
        settings=lambda: () if searched else sweep.settings(),
        sources=cache(lambda: sources_of(*experiments())),
        codes=cache(lambda: frozenset(map(code_of, experiments()))),
    )


def again(entry: Entry, how: How, sweeps: Mapping[str, tuple[str, ...]]) -> tuple[NamedSweep, Path]:
    """Return an entry's sweep with one of its seeds, and the folder for it, where tuned sides have what they had.

    The folder is of the present code, whose hash is in its name: trials that other code has left are none of its own.
    """
    place = f"{ROOT}={ANY}"
    require(
        place not in entry.overrides, "--confirm", entry.name, f"was run with {place}", "run it again, and record it"
    )
    named = load(entry.name, entry.profile, [*without_seeds(entry.overrides), f"seeds=[{seed_of(entry)}]"], sweeps)
    named = replace(named, rank=1 if entry.choice else 0)
    plain = SweepFolder.for_sweep(named, None).path
    choice = f"-{entry.choice}" if entry.choice else ""
    folder = SweepFolder.for_sweep(named, plain.with_name(f"{plain.name}{choice}-{spec_of(named).sources()[:8]}"))
    if named.sweep.tuned:
        rule = "does not say which candidates its sides had"
        require(len(entry.searched) > 0, "--confirm", entry.name, rule, "run it again, and record it")
        begin_with(named, folder, entry.searched, how.to_mapping())
    return named, folder.path
