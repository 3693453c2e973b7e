"""Clients whose samples of each class are given as a matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import require
from engine.data.partitions.dealing import deal
from engine.data.partitions.partition import Partition
from engine.data.samples.dataset import largest_remainder

Matrix = tuple[tuple[float | int, ...], ...]  # int: counts; else shares


@dataclass(frozen=True, kw_only=True)
class ClassMatrix(Partition):
    """Client k has ``matrix[c][k]`` of the samples of class c, drawn at random.

    matrix: a row for each class, a column for each client. Whole numbers are counts, and what they leave over of a
    class is dropped; fractions are shares of the class, which add up to 1 in each row and become counts by largest
    remainder.
    clients: 0 for as many as there are columns; any other number must be that number.
    """

    clients: Annotated[int, Ge(0), Doc("number of clients"), Neutral(0, "takes every column of matrix")] = 0
    matrix: Annotated[
        Matrix,
        Doc(
            "a row for each class, a column for each client: numbers of samples, of which what a row leaves over is "
            "dropped, or shares of the class, whose sum is 1 in each row"
        ),
    ]

    def __post_init__(self) -> None:
        self._check_fixed("where the samples of clients are given")
        super().__post_init__()
        matrix, shown = self.matrix, [list(row) for row in self.matrix]
        repair = "for example matrix=[[0.5, 0.5], [0.1, 0.9]] for two classes and two clients"
        columns = len(matrix[0]) if matrix else 0
        rule = "must have a number for each client in each row"
        require(columns > 0 and all(len(row) == columns for row in matrix), "matrix", shown, rule, repair)
        sound = all(0 <= value < math.inf for row in matrix for value in row)
        require(sound, "matrix", shown, "must have numbers from 0 on", repair)
        rule = f"is not the number of columns of matrix, {columns}"
        require(self.clients in (0, columns), "clients", self.clients, rule, f"leave it out or set it to {columns}")
        for c, row in enumerate(() if self._has_counts else matrix):
            rule = f"must have shares that add up to 1 in each row, but row {c} adds up to {math.fsum(row):g}"
            require(abs(math.fsum(row) - 1) <= 1e-6, "matrix", shown, rule, repair)

    @property
    def _has_counts(self) -> bool:
        return all(isinstance(value, int) for row in self.matrix for value in row)

    def _check_feasible(self, labels: np.ndarray) -> None:
        pass  # a column of zeros is a client without samples

    def draw(self, rng, labels, num_classes, owners):
        shown = [list(row) for row in self.matrix]
        rule = f"has {len(shown)} rows, but the data have {num_classes} classes"
        require(len(shown) == num_classes, "partition.matrix", shown, rule, f"give it {num_classes} rows")
        totals = np.bincount(labels, minlength=num_classes)
        if not self._has_counts:
            shares = np.array(self.matrix)
            return deal(rng, labels, np.stack(list(map(largest_remainder, totals.tolist(), shares)), axis=1))
        for c, row in enumerate(self.matrix):
            rule = f"asks for {sum(row)} samples of class {c}, of which there are {totals[c]}"
            require(sum(row) <= totals[c], "partition.matrix", shown, rule, "lower them, or give shares")
        return deal(rng, labels, np.array(self.matrix, dtype=np.int64).T)
