"""The way down: the broadcast to a cohort, what is meant for single clients, and the calls that carry blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.algorithm import Algorithm, Cohort, Context, Tensors
from engine.base.errors import RunError
from engine.client.steps.entries import cast, checked, floats, not_finite
from engine.record.stage_states import StageStates
from engine.server.federation import Federation
from engine.worker import cost
from engine.worker.pool import Call


def validated(
    federation: Federation, number: int, round: int, algorithm: Algorithm, method: str, entries: Tensors
) -> Tensors:
    """Return the server's entries as a method made them: as declared, finite, in the run's precision.

    Raises TypeError for an entry that breaks its declaration, and :class:`RunError` for one that is not finite.
    """
    layout, dtype = federation.layout(number), federation.fresh["weights"].dtype
    entries = cast(algorithm, checked(algorithm, method, entries, layout), dtype)
    name = not_finite(entries)
    if name is not None:
        raise RunError(
            f"stage {federation.chain[number].name}, after round {round}: {type(algorithm).__name__}.{method} made "
            f"entry {name!r}, which is not finite; lower the server's rate, or the learning rates"
        )
    return entries


def broadcast(algorithm: Algorithm, server: Tensors, context: Context) -> Tensors:
    """Return what every client of a cohort receives alike: the algorithm's entries and the buffers."""
    entries = checked(algorithm, "broadcast", algorithm.broadcast(server, context), context.layout)
    return {**entries, "buffers": server["buffers"]}


def addressed(
    federation: Federation, algorithm: Algorithm, server: Tensors, ids: tuple[int, ...], context: Context
) -> Tensors:
    """Return what is meant for each of these clients alone, [K, ...]."""
    members = Cohort(ids, tuple(int(federation.population.sizes[client]) for client in ids))
    rows = algorithm.broadcast_to(server, members, context)
    for name, tensor in rows.items():
        if len(tensor) != len(ids):
            raise TypeError(
                f"{type(algorithm).__name__}.broadcast_to: entry {name!r} has {len(tensor)} rows for {len(ids)}"
            )
    if rows:
        checked(algorithm, "broadcast_to", {name: tensor[0] for name, tensor in rows.items()}, context.layout)
    return rows


def count_floats_down(algorithm: Algorithm, received: Tensors, rows: Tensors) -> int:
    """Count the numbers that each client of a round receives, but for what it can derive or has got once."""
    known = algorithm.with_traffic("derivable") | algorithm.with_traffic("once")
    alike = {name: tensor for name, tensor in received.items() if name not in known}
    own, dtype = {name: tensor[0] for name, tensor in rows.items()}, received["buffers"].dtype
    return sum(floats(entries, algorithm.entries, dtype) for entries in (alike, own))


def count_sent_once(algorithm: Algorithm, received: Tensors) -> int:
    """Count the numbers that every client gets at the stage's start and keeps, though here they come with each
    broadcast.
    """
    once = algorithm.with_traffic("once")
    entries = {name: tensor for name, tensor in received.items() if name in once}
    return floats(entries, algorithm.entries, received["buffers"].dtype)


def block_calls(
    federation: Federation,
    ids: Sequence[int],
    rows: Tensors,
    work: Mapping[int, cost.Work],
    states: StageStates,
    stateful: bool,
    together: bool = False,
    returns_states: bool = False,
) -> list[Call]:
    """Make calls for blocks of these clients: what is meant for each, whether it is new to the stage, and what it
    keeps.

    rows: [K, ...] by :func:`addressed`. work: what each client is expected to do. stateful: whether clients keep a
    state. returns_states: whether each client's new state comes back, as a handle beside the result.
    """
    execution = federation.experiment.execution
    row_of = {client: row for row, client in enumerate(ids)}
    calls = []
    for block in federation.blocks(ids, together):
        where = [row_of[client] for client in block]
        calls.append(
            Call(
                label="clients " + ", ".join(map(str, block)),
                args=(block, {name: tensor[where] for name, tensor in rows.items()}, states.are_new(block)),
                cost=cost.total(work[client] for client in block).cost(execution.device),
                states=tuple(states.read(block)) if stateful else (None,) * len(block),
                returned_states=len(block) if returns_states else 0,
            )
        )
    return calls
