"""A sweep by name as the ledger of claims takes it."""

from __future__ import annotations

from functools import cache

from engine.experiment import Experiment
from engine.record.stage_hashes import code_of, sources_of
from engine.sweeps.definition import Optuna
from engine.sweeps.named import NamedSweep
from fedskew.lab.ledger.stated import Stated


def as_stated(named: NamedSweep) -> Stated:
    """Return what the ledger compares of a sweep; nothing is hashed before it is asked for."""
    sweep = named.sweep
    searched = isinstance(sweep.search, Optuna)

    @cache
    def experiments() -> tuple[Experiment, ...]:
        of_settings = () if searched else sweep.settings()
        return sweep.base, *(sweep.experiment(setting, sweep.seeds[0]) for setting in of_settings)

    return Stated(
        name=named.name,
        profile=named.profile,
        overrides=named.overrides,
        title=named.title,
        claims=sweep.claims,
        definition=sweep.to_mapping(),
        identity=sweep.base.identity,
        settings=lambda: () if searched else sweep.settings(),
        sources=cache(lambda: sources_of(*experiments())),
        codes=cache(lambda: frozenset(map(code_of, experiments()))),
    )
