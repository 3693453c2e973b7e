"""The hashes of all that a result depends on: of a stage's, for the store, and of the code behind a whole run.

A stage's covers the experiment's identity, the stage with its ancestors, the numerics of the machine and its libraries,
and the sources that compute: those of whole rooms and of what is behind the algorithm, the model, the data source and
the partition, without comments, docstrings and log messages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping

from engine.base.sources import all_behind, behind, numeric_path, portable_digest, source_digest
from engine.experiment import Experiment, Stage
from engine.experiment.parts import choices_of, metrics_of

CODE = "code"  # the name of :func:`code_of` among a run's numerics


def stage_hash(
    experiment: Experiment, stage: Stage, computed_by: Mapping[str, str], data: str, round: int | None = None
) -> str:
    """Return 16 hex digits that are equal for two stages only if their results are equal to the bit.

    computed_by: see :func:`engine.record.numerics.numerics`. data: what tells the data and who has which of them.
    round (global): what counts is the schedule up to it, None for all of it.

    The number of rounds is left out: a longer run of the same stage passes through the shorter one. So is the code
    behind the whole run: that of the stage counts.
    """
    identity = experiment.identity()
    for key in ("stages", "evaluation", "stop"):
        identity.pop(key, None)
    identity["data"].pop("root", None)  # what was read counts, not where it was
    if not experiment.has_server_model(stage):
        identity.pop("model")
    if round is not None:
        changes = tuple(change for change in stage.changes if change.round <= round)
        stage = stage.model_copy(update={"changes": changes})
    own = stage.identity()
    for key in ("name", "needs", "rounds"):
        del own[key]
    by_name = {other.name: other for other in experiment.chain}
    parents = [[stage_hash(experiment, by_name[need], computed_by, data), by_name[need].rounds] for need in stage.needs]
    text = json.dumps(
        {
            "experiment": identity,
            "stage": own,
            "parents": parents,
            "numerics": {name: value for name, value in computed_by.items() if name != CODE},
            "data": data,
            "sources": _sources(choices_of(experiment, [stage])),
        },
        sort_keys=True,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_of(*experiments: Experiment) -> str:
    """Return 16 hex digits of the code that runs of ``experiments`` go through, all of their stages."""
    choices = {choice for one in experiments for choice in choices_of(one, one.chain) | metrics_of(one)}
    text = json.dumps(_sources(choices), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def sources_of(*experiments: Experiment) -> str:
    """Return 16 hex digits of the sources that runs of ``experiments`` go through, equal wherever these are the same.

    They leave out what :func:`code_of` has beside the sources: versions of installed packages, and the form that this
    version of Python gives a syntax tree.
    """
    choices = {choice for one in experiments for choice in choices_of(one, one.chain) | metrics_of(one)}
    modules = {*numeric_path(), *(module for choice in choices for module in behind(choice))}
    text = json.dumps({module: portable_digest(module) for module in sorted(modules)})
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _sources(choices: Iterable[type]) -> dict[str, str]:
    """Return what computes: modules of the numeric path, and what is behind ``choices``."""
    fixed = {module: source_digest(module) for module in numeric_path()}
    return fixed | {name: value for choice in choices for name, value in all_behind(choice).items()}
