"""Checks before a run's folder is made: a model that does not fit the data, a place that cannot compute."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.base.errors import ConfigError, DataError, require
from engine.base.own_modules import is_ours
from engine.base.part_calls import calling
from engine.data import Assignment, Dataset
from engine.data.dividing import divided
from engine.data.samples.assignment import Parts
from engine.experiment import Execution, Experiment, check_share, no_gpu
from engine.models import MODELS, ModelSpec, check_inputs, check_size
from engine.models.model import built_alike
from engine.models.splitting import check_split
from engine.record.metrics import METRICS
from engine.record.numerics import other_code
from engine.record.run_folder import RunFolder
from engine.server.cohort import held_out_of
from engine.server.evaluation_schedule import measures_own_models

log = logging.getLogger("fedskew")


def check_against_data(experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
    """Refuse what only the data can tell: a model that does not fit them, a cohort larger than the clients."""
    _check_model(experiment.model, dataset)
    for model in experiment.client_models:
        try:
            _check_model(model, dataset)
        except ConfigError as error:
            field = error.field.replace("model", "client_models", 1)
            raise ConfigError(field, error.value, error.rule, "for example client_models=[mlp]") from None
    _check_public(experiment, dataset, assignment)
    for stage in experiment.chain:
        rule = f"moves and mirrors images, and the data's rows are of shape {dataset.shape}"
        has_sides = dataset.shape[1:] != (1, 1) or stage.local.augment == "none"
        require(has_sides, "local.augment", stage.local.augment, rule, "set local.augment=none")
    held_out = _check_held_out(experiment, assignment)
    own = any(measures_own_models(experiment, stage.algorithm) for stage in experiment.chain)
    tests = Parts.of(assignment.tests).sizes() if assignment.tests else np.zeros(len(assignment.clients), np.int64)
    if own and not tests.sum():
        raise DataError("no client has a test row to measure its own model on: keep more test samples")
    if own and len(held_out) and not 0 < tests[held_out].sum() < tests.sum():
        raise DataError("of the clients held out, or of the others, none has a test row: keep more test samples")
    holders = int((assignment.sizes() > 0).sum()) - len(held_out)
    whose = "that hold data and are not held out" if len(held_out) else "that hold data"
    _check_availability(experiment, assignment, held_out)
    experiment.work.check_clients(len(assignment.clients))
    count = experiment.participation.count
    require(
        count is None or count <= holders,
        "participation.count",
        count,
        f"must be at most {holders}, the number of clients {whose}",
        f"set participation.count={holders}",
    )


def _check_model(model: ModelSpec, dataset: Dataset) -> None:
    """Refuse a model that does not take the data's rows, that is too large for them or for this machine, or that is
    another one each time.
    """
    registered = type(model) in MODELS.values()  # in Python, not from a config, it may be a user's own
    check_inputs(model, MODELS.name_of(model) if registered else type(model).__name__, dataset.vocabulary)
    check_size(model, dataset.shape, len(dataset.classes))
    if not is_ours(type(model)):
        built = built_alike(model, dataset.shape, len(dataset.classes))
        if not model.takes_tokens:
            check_split(built, dataset.shape, len(dataset.classes))


def _check_held_out(experiment: Experiment, assignment: Assignment) -> np.ndarray:
    """Refuse clients that cannot be held out; those that are, int64 [n]."""
    participation, holders = experiment.participation, np.flatnonzero(assignment.sizes())
    field, value = "participation.held_out", participation.held_out
    strangers = sorted({*value} - {*holders.tolist()}) if isinstance(value, tuple) else []
    require(not strangers, field, value, f"names client {strangers[:1]}, which holds no data", "name others")
    few = f"leaves none of the {len(holders)} clients that hold data to train"
    wanted = len(value) if isinstance(value, tuple) else value
    require(wanted < max(len(holders), 1), field, value, few, "hold fewer out")
    held_out = held_out_of(experiment.seed, holders, participation)
    require(len(held_out) < max(len(holders), 1), field, value, few, "hold fewer out")
    return held_out


def _check_availability(experiment: Experiment, assignment: Assignment, held_out: np.ndarray) -> None:
    """Refuse a table of other clients than there are."""
    participation, sizes = experiment.participation, assignment.sizes()
    if participation.table is None:
        return
    named = participation.table.spans[:, 0]
    field, path, repair = "participation.availability", participation.availability, "correct the table"
    rule = f"names client {named.max()}, and clients are 0 to {len(sizes) - 1}"
    require(named.max() < len(sizes), field, path, rule, repair)
    can_train = np.setdiff1d(np.flatnonzero(sizes), held_out)
    require(bool(np.isin(named, can_train).any()), field, path, "names no client that can train", repair)


def _check_public(experiment: Experiment, dataset: Dataset, assignment: Assignment) -> None:
    """Refuse a stage that asks for more public samples than there are."""
    counts = np.bincount(dataset.train.labels[assignment.public], minlength=len(dataset.classes))
    least, there = int(counts.argmin()), int(counts.min())
    if there:
        repair = f"set it to {there} or less, or raise partition.public_per_class"
    elif counts.any():
        repair = "take partition.sets that have every class"
    else:
        repair = "raise partition.public_per_class"
    rule = f"asks for more public samples of each class than there are: class {least} has {there}"
    for stage in experiment.chain:
        wanted = stage.algorithm.public_per_class
        require(wanted <= there, f"stages.{stage.name}.algorithm.per_class", wanted, rule, repair)


@dataclass(frozen=True)
class Prepared:
    """A run that nothing speaks against, before its folder is made."""

    experiment: Experiment
    folder: RunFolder
    dataset: Dataset
    assignment: Assignment

    def write(self) -> None:
        """The experiment last: a folder that has one can be gone on with."""
        self.folder.path.mkdir(parents=True, exist_ok=True)
        self.assignment.save(self.folder.path / "partition.parquet")
        self.folder.create(self.experiment)


def prepare(
    experiment: Experiment, out: Path | str | None, overwrite: bool, dataset: Dataset | None = None
) -> Prepared:
    """Refuse what can be refused, of a resolved experiment; ``dataset`` if it is loaded already."""
    for name in experiment.evaluation.metrics:
        rule = "is a metric of fedskew's own"
        require(name not in METRICS, "evaluation.metrics", name, rule, "give yours another name")
    folder = RunFolder.for_experiment(experiment, out)
    # As saved: a run goes on with the partition it began with. What cannot be read is refused before data are.
    begun = folder.has_experiment() and not overwrite
    saved = Assignment.load(folder.path / "partition.parquet") if begun else None
    dataset = dataset or experiment.data.load()
    fingerprint = dataset.fingerprint
    if saved is None:
        partition = experiment.partition
        assignment = divided(experiment.data, partition, dataset)
        with calling(partition, "partition.name", "draw from numpy_generator(self.seed, ...) of fedskew.contract"):
            assignment = partition.share_tests(replace(assignment, data=fingerprint), dataset)
    else:
        assignment = saved
        root = getattr(experiment.data, "root", None)
        require(
            assignment.data == fingerprint,
            "data.root",
            root,
            "holds other data than this run began with",
            "name another folder with --out, or put the data back",
        )
    assignment.check_rows(len(dataset.train), len(dataset.test))
    check_against_data(experiment, dataset, assignment)
    return Prepared(experiment, folder, dataset, assignment)


def check_code(summary: Mapping[str, Any], experiment: Experiment, folder: RunFolder) -> None:
    """Refuse to show a finished run as that of ``experiment`` where other code has made it."""
    other = other_code(summary, experiment)
    if other is not None:
        raise ConfigError(
            "--out",
            folder.path,
            f"holds the result of other code ({other[0]}, this one is {other[1]})",
            f"start it again with: {folder.command_anew()}, or name another folder with --out",
        )


def check_place(execution: Execution, address: str | None = None) -> None:
    """Refuse what this process cannot do where it is to compute, and say what it leaves unused."""
    check_share(execution)
    if execution.actors:
        return
    if execution.device == "cuda" and not torch.cuda.is_available():
        raise no_gpu(execution)
    require(
        address is None,
        "--address",
        address,
        "is of a Ray cluster, and execution.actors=0 computes in this process",
        "set execution.actors, for example to 8",
    )
    if os.environ.get("RAY_ADDRESS"):
        log.warning("execution.actors=0 computes in this process, and not on the Ray at RAY_ADDRESS")
    if execution.gpus_per_actor > 0:
        log.warning(
            "execution.actors=0 computes in this process, on a whole GPU: execution.gpus_per_actor is of actors"
        )
