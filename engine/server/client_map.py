"""Work that an algorithm asks for outside rounds: passes over every client, counted as traffic, and server-side work.

``prepare`` and ``finish`` of the contract are given a :class:`EveryClient` and a :class:`ServerSide`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch

from engine.algorithm import Context, Kind, Merge, Tensors
from engine.client.messages import ComputeJob, Handle, MapJob
from engine.client.steps.entries import copied, floats
from engine.client.tree import Part, joined, whole
from engine.record.tables import Table
from engine.server.federation import Federation
from engine.worker.pool import Call, Pool

When = Literal["prepare", "start", "finish"]
ReadStates = Callable[[Sequence[int]], Sequence[Handle | None]]  # of clients, in their order; None: has none yet


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Messages outside rounds, of one run."""

    table: Table  # exchanges.parquet
    federation: Federation

    def record(self, stage: str, round: int, when: When, number: int, numbers: Mapping[int, tuple[int, int]]) -> None:
        """Add an exchange's rows; ``numbers``: client -> floats up, floats down."""
        about = {"stage": stage, "round": round, "when": when, "exchange": number}
        for client, (up, down) in numbers.items():
            samples = int(self.federation.population.sizes[client])
            self.table.add({**about, "client": client, "samples": samples, "floats_up": up, "floats_down": down})


class EveryClient:
    """``clients.map`` of the contract."""

    def __init__(
        self,
        exchanges: Exchanges,
        stage: str,
        context: Context,
        when: Literal["prepare", "finish"],
        states: ReadStates,
        kinds: Mapping[str, Kind],
    ) -> None:
        self._exchanges = exchanges
        self._stage = stage
        self._context = context
        self._when: Literal["prepare", "finish"] = when
        self._read_states = states
        self._kinds = kinds
        self._passes = 0
        self._sent: Tensors = {}  # what clients have got in earlier passes of this method

    def map(
        self,
        fn: Callable[..., Tensors],
        shared: Tensors,
        reduce: Literal["sum", "stack"] | Merge = "sum",
        states: bool = False,
    ) -> Tensors:
        ours, federation = self._exchanges, self._exchanges.federation
        population, merge = federation.population, _sum_of if reduce == "sum" else reduce
        blocks = federation.blocks(population.clients, together=False)
        calls = [
            Call(
                label="clients " + ", ".join(map(str, ids)),
                args=(ids, first),
                cost=float(population.sizes[list(ids)].sum()),
                states=tuple(self._read_states(ids)) if states else (None,) * len(ids),
            )
            for first, ids in zip(accumulate(map(len, blocks), initial=0), blocks, strict=False)
        ]
        job = MapJob(fn, self._context, None if merge == "stack" else merge, states, self._kinds)
        parts, down, numbers = list[Part[Tensors]](), self._count_new(shared), dict[int, tuple[int, int]]()
        results = federation.pool.run("map", shared, job, calls, what="a pass over every client")
        for call, mapped in zip(calls, results, strict=True):
            numbers |= {client: (up, down) for client, up in zip(call.args[0], mapped.floats_up, strict=True)}
            parts += mapped.results
            if merge != "stack":
                parts = joined(parts, merge)
        self._passes += 1
        ours.record(self._stage, self._context.round, self._when, self._passes, numbers)
        if merge != "stack":
            total = copied(whole(parts, merge) or {}, torch.device("cpu"))
            return _sum_of(total, {}) if reduce == "sum" else total
        answers = [part.value for part in parts if part.value is not None]
        names = dict.fromkeys(name for answer in answers for name in answer)
        return {name: torch.cat([answer[name] for answer in answers if name in answer]) for name in names}

    def _count_new(self, shared: Tensors) -> int:
        """Numbers of ``shared`` that clients do not have of an earlier pass: each tensor goes down once."""
        new = {name: tensor for name, tensor in shared.items() if self._sent.get(name) is not tensor}
        self._sent |= new
        return floats(new)


def _sum_of(left: Tensors, right: Tensors) -> Tensors:
    """Add answers, in float64; what one of them has not is as the other has it."""
    return {
        name: tensor.double() + right[name].double() if name in left and name in right else tensor.double()
        for name, tensor in (right | left).items()
    }


class ServerSide:
    """``compute`` of the contract."""

    def __init__(self, pool: Pool, context: Context, purposes: str = "") -> None:
        """``purposes``: a prefix that sets the draws of one hook of a round apart from another's."""
        self._pool = pool
        self._context = context
        self._purposes = purposes

    def __call__(self, fn: Callable[..., Tensors], shared: Tensors) -> Tensors:
        job = ComputeJob(fn, self._context.round, self._purposes)
        call = Call(label="server-side training", args=())
        [made] = self._pool.run("compute", shared, job, [call], f"round {job.round}")
        return copied(made, torch.device("cpu"))  # of a worker in this process it may be what it goes on with
