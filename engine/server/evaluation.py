"""Models measured on the pool, and the rows that come of it: ``evaluations.parquet`` and ``personal.parquet``.

When something is measured: ``cadence.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np

from engine.algorithm import Algorithm, Tensors
from engine.client.entries import Arrays, to_numpy
from engine.client.jobs import OwnScores, PersonalJob, Scores
from engine.record.run_folder import Row, RunFolder
from engine.record.schemas import finite
from engine.worker.pool import Call, Pool

BLOCK_ROWS = 2000  # test rows of one block


class Place(NamedTuple):
    """Where a run stands."""

    stage: str
    round: int  # global


class Measurements:
    """Of one run."""

    def __init__(self, folder: RunFolder, pool: Pool, test_rows: int) -> None:
        self._folder = folder
        self._pool = pool
        self._test_rows = test_rows

    def global_model(self, place: Place, algorithm: Algorithm, server: Tensors) -> Row:
        """The headline: the server's model on the test set, in blocks of rows."""
        calls = []
        for start in range(0, self._test_rows, BLOCK_ROWS):
            end = min(start + BLOCK_ROWS, self._test_rows)
            calls.append(Call(label=f"test rows from {start}", args=(start, end), cost=end - start))
        shared = to_numpy({name: server[name] for name in ("weights", "buffers")})
        results = self._pool.run("evaluate", shared, algorithm, calls, what=f"evaluation after round {place.round}")
        return self.headline(place, "global", [result.value for result in results])

    def own_models(
        self, place: Place, job: PersonalJob, shared: Arrays, calls: Sequence[Call], participants: Collection[int]
    ) -> list[Scores]:
        """Clients' own models on their own test rows; the scores of those that were not fine-tuned."""
        results = self._pool.run("measure", shared, job, calls, what=f"clients' own models after round {place.round}")
        found: list[OwnScores] = [one for result in results for one in result.value]
        self.record(place, found, participants)
        return [one.scores for one in found if one.point == "post_server"]

    def record(self, place: Place, found: Sequence[OwnScores], participants: Collection[int]) -> None:
        """Add rows of clients' own models; ``participants``: the round's cohort."""
        for one in found:
            samples = int(one.scores.count.sum())
            self._folder.personal.add(
                {
                    "stage": place.stage,
                    "round": place.round,
                    "client": one.client,
                    "point": one.point,
                    "participant": one.client in participants,
                    "samples": samples,
                    "accuracy": float(one.scores.correct.sum() / samples),
                    "loss": finite(one.scores.loss / samples),
                }
            )

    def headline(self, place: Place, scope: Literal["global", "personal"], scores: Sequence[Scores]) -> Row:
        """Add the round's row of evaluations, of all these test rows together."""
        correct = np.sum([score.correct for score in scores], axis=0)
        count = np.sum([score.count for score in scores], axis=0)
        row = {
            "stage": place.stage,
            "round": place.round,
            "scope": scope,
            "accuracy": float(correct.sum() / count.sum()),
            "loss": finite(sum(score.loss for score in scores) / float(count.sum())),
            "samples": int(count.sum()),
            "class_accuracy": [float(c / n) if n else None for c, n in zip(correct, count, strict=True)],
            "class_samples": count.tolist(),
        }
        self._folder.evaluations.add(row)
        return row
