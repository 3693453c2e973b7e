"""Who has which training rows: an experiment's partition, after its long tail and its public rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from engine.base.errors import require
from engine.base.own_modules import name_of
from engine.data.partitions.partition import Partition
from engine.data.samples.assignment import Assignment, Parts, without
from engine.data.samples.dataset import Dataset, Source


def divided(data: Source, partition: Partition, dataset: Dataset) -> Assignment:
    """Return who has which training rows, after the cut to a long tail and the public ones.

    Raises :class:`ConfigError` for a partition that names rows, which would then be others.
    """
    train, classes = dataset.train, len(dataset.classes)
    rule = f"cannot be with partition.name={name_of(partition)}, which says who has which row"
    repair = "leave it out, or the tuning_rows of a sweep"
    public = partition.public_per_class
    for name, value, still in (
        ("data.imbalance", data.imbalance, 1),
        ("data.validation", data.validation, None),
        ("partition.public_per_class", public, 0),
    ):
        require(value == still or not partition.names_rows, name, value, rule, repair)
    rows = data.remaining(train.labels, classes, partition.seed)
    aside = partition.set_aside(train.labels[rows], classes)
    public, rows = rows[aside], np.delete(rows, aside)
    found = partition.assign(train.labels[rows], classes, None if train.owners is None else train.owners[rows])
    clients = Parts.of(found.clients)
    left_out = without(len(train), np.concatenate([rows, public]))
    return replace(
        found,
        clients=Parts(rows[clients.joined], clients.ends),
        dropped=np.sort(np.concatenate([left_out, rows[found.dropped]])),
        public=np.sort(np.concatenate([public, rows[found.public]])),
    )
