"""The parts of a run that do not change: its clients and their rows, its stages, its models, and the pool that
trains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from engine.algorithm import Algorithm, Context, ParamLayout, Tensors, not_stacked
from engine.client.blocks import cut, in_place_of
from engine.client.nets import ClientNets, open_model, without_model
from engine.data import Assignment, Dataset
from engine.experiment import Experiment, Stage
from engine.experiment.executor_policy import STACKING, Executor
from engine.server.cohort import draw_cohort, held_out_of, mean_cohort
from engine.server.stragglers import draw_stragglers, expected_without_dropped, work_of
from engine.worker.pool import Pool


@dataclass(frozen=True)
class Population:
    """The clients of a run as the server knows them, by number from 0."""

    sizes: np.ndarray  # [K] training rows; of clients that never train they are in no sum
    tests: tuple[int, ...]  # [K] test rows
    class_counts: Callable[[], np.ndarray]  # [K, C] training rows of each class
    held_out: frozenset[int] = frozenset()  # clients that hold data and never train

    @classmethod
    def of(cls, dataset: Dataset, assignment: Assignment, experiment: Experiment) -> Population:
        sizes = assignment.sizes()
        tests = tuple(len(rows) for rows in assignment.tests) or (0,) * len(sizes)
        counts = partial(assignment.class_counts, dataset.train.labels, len(dataset.classes))
        held_out = held_out_of(experiment.seed, np.flatnonzero(sizes), experiment.participation)
        return cls(sizes, tests, counts, frozenset(held_out.tolist()))

    @cached_property
    def clients(self) -> list[int]:
        """Those that hold data and can train, ascending: the others are never sampled."""
        return [client for client in np.flatnonzero(self.sizes).tolist() if client not in self.held_out]

    @cached_property
    def drawn_from(self) -> np.ndarray:
        """The same as an array, made once: there may be 100,000."""
        return np.array(self.clients)

    @cached_property
    def testers(self) -> tuple[int, ...]:
        """Those that hold data and have test rows of their own, ascending: held-out clients are among them."""
        return tuple(client for client in sorted({*self.clients, *self.held_out}) if self.tests[client])

    @cached_property
    def num_examples(self) -> int:
        """Rows of the clients that can train."""
        return int(self.sizes[self.drawn_from].sum())

    @property
    def largest(self) -> int:
        """The client with most rows, of those that can train."""
        return int(self.drawn_from[self.sizes[self.drawn_from].argmax()])

    def smallest(self, rows: int) -> tuple[int, ...]:
        """The two clients with fewest rows, of those that can train and have so many, or as the two largest have."""
        sizes = self.sizes[self.drawn_from]
        enough = np.flatnonzero(sizes >= min(rows, np.sort(sizes)[-2:][0]))
        chosen = enough[np.argsort(sizes[enough], kind="stable")[:2]]
        return tuple(self.drawn_from[np.sort(chosen)].tolist())


class Federation:
    """A run's clients, stages and models, and the pool that its blocks run on."""

    def __init__(self, experiment: Experiment, dataset: Dataset, assignment: Assignment, pool: Pool) -> None:
        self.experiment = experiment
        self.pool = pool
        self.population = Population.of(dataset, assignment, experiment)
        self.chain = experiment.chain
        self.starts = [span.start - 1 for span in experiment.spans]  # the round after which each stage begins
        self.ends = [span.stop - 1 for span in experiment.spans]
        net = open_model(experiment, dataset, torch.device("cpu"))
        self.model_layout = net.layout
        self.largest_layout = ClientNets(experiment, dataset, net).largest.layout  # of the clients' networks
        drawn = mean_cohort(self.population.drawn_from, experiment.participation)
        self._expected_cohort = expected_without_dropped(drawn, len(self.population.drawn_from), experiment.work)
        self.fresh: Tensors = {"weights": net.weights, "buffers": net.buffers}

    def layout(self, number: int) -> ParamLayout:
        """The layout of the server's weights in a stage."""
        has_model = self.experiment.has_server_model(self.chain[number])
        return self.model_layout if has_model else without_model(self.model_layout)

    def with_model(self, number: int, server: Tensors) -> Tensors:
        """Return the entries with weights as the stage has them: none, those there are, or fresh ones for none."""
        if not self.experiment.has_server_model(self.chain[number]):
            return server | {name: tensor[:0] for name, tensor in self.fresh.items()}
        return server if len(server["weights"]) else server | self.fresh

    def stage(self, number: int, round: int) -> Stage:
        """The stage with that number in the chain, with what holds in ``round`` (global)."""
        return self.chain[number].at(round)

    def cohort(self, round: int) -> tuple[int, ...]:
        """The clients that train in a round (global), ascending."""
        drawn, dropped = self._drawn(round), {*self.dropped(round)}
        return tuple(client for client in drawn if client not in dropped)

    def dropped(self, round: int) -> tuple[int, ...]:
        """The clients that were drawn for a round, and are stragglers whose work does not count."""
        return self._stragglers(round) if self.experiment.work.cut == "drop" else ()

    def work(self, stage: Stage, round: int) -> dict[int, float]:
        """The epochs, or steps, of each client of a round that does not do what the stage's ``local`` says."""
        work, seed = self.experiment.work, self.experiment.seed
        if work.numbers:
            return {client: work.numbers[client] for client in self.cohort(round)}
        return work_of(seed, round, self._stragglers(round), work, stage.local) if work.cut == "partial" else {}

    def _drawn(self, round: int) -> tuple[int, ...]:
        return draw_cohort(self.experiment.seed, round, self.population.drawn_from, self.experiment.participation)

    def _stragglers(self, round: int) -> tuple[int, ...]:
        clients, work = self.population.drawn_from, self.experiment.work
        if not work.is_drawn:
            return ()
        return draw_stragglers(self.experiment.seed, round, self._drawn(round), clients, work)

    def context(self, number: int, round: int, cohort_size: int = 0) -> Context:
        """The context of ``round`` (global) of a stage."""
        clients = len(self.population.clients)
        expected = self._expected_cohort
        return Context(
            round=round,
            lr=self.stage(number, round).local.lr_at(max(round, 1)),
            num_clients=clients,
            num_examples=self.population.num_examples,
            cohort_size=cohort_size,
            expected_cohort=expected,
            participation=expected / clients,
            layout=self.layout(number),
            stage_round=round - self.starts[number],
        )

    def executor(self, algorithm: Algorithm, context: Context) -> tuple[Executor, str]:
        """Return the executor that trains clients and, if it is not the one that was asked for, why."""
        configured = self.experiment.execution.executor
        assert configured != "auto", "the experiment is resolved"
        return in_place_of(configured, not_stacked(algorithm, context), bool(self.experiment.client_models))

    def together(self, algorithm: Algorithm, context: Context) -> bool:
        """Return whether clients of a block are trained in one pass."""
        return self.executor(algorithm, context)[0] in STACKING

    def blocks(self, ids: Sequence[int], together: bool) -> list[tuple[int, ...]]:
        """Cut clients into blocks; ``together``: they are trained in one pass."""
        return cut(ids, self.experiment.execution.block, self.pool.workers, together)

    def lanes(self, algorithm: Algorithm, context: Context) -> int:
        """Return how many clients of a block a worker trains side by side, each in its lane; 1: none beside another."""
        return self.experiment.execution.lanes if self.executor(algorithm, context)[0] == "graph" else 1
