"""A round that is rehearsed: parts from outside come to the same bits twice, or the stage does not begin."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from engine.algorithm import Context, Tensors
from engine.base.errors import FedskewError
from engine.base.own_modules import is_ours, name_of
from engine.base.part_calls import bits, first_other, on_the_server, require_unwritten
from engine.client import twice
from engine.client.messages import TrainJob
from engine.experiment import Stage
from engine.server.broadcast import addressed, broadcast
from engine.server.client_map import ServerSide
from engine.server.federation import Federation
from engine.worker.pool import Call

log = logging.getLogger("fedskew")


def rehearse(federation: Federation, stage: Stage, server: Tensors, context: Context, job: TrainJob) -> None:
    """Have two small clients trained and their uploads aggregated, twice, if a part of the stage is from outside.

    job: the stage's, of which a few steps are taken. Raises :class:`RunError` for other bits the second time, and for
    an algorithm that writes into the server's entries. See :mod:`engine.client.twice`.
    """
    algorithm, experiment, began = stage.algorithm, federation.experiment, time.perf_counter()
    parts = (algorithm, experiment.model, *experiment.client_models)
    who = " or ".join(name_of(part) for part in parts if not is_ours(type(part)))
    if not who:
        return
    reached, ids, given = twice.Reached([algorithm]), federation.population.smallest(twice.ROWS), bits(server)
    local = stage.local.model_copy(update={"epochs": 1, "steps": twice.STEPS})
    job = replace(job, local=local, probe=True, keep_models=True, drop=True)
    received = broadcast(algorithm, server, context)
    compute = ServerSide(federation.pool, context, "aggregate/")
    call = Call(label=f"clients {ids}", args=(ids, addressed(federation, algorithm, server, ids, context), who))
    [(results, doubt)] = federation.pool.run("twice", received, job, [call], what="a round twice")
    if doubt:
        log.warning(doubt)
    sums, made = [result.sum.whole() for result in results], list[dict[str, object]]()
    tried = [(result, total) for result, total in zip(results, sums, strict=True) if total.weight > 0]
    for result, total in tried + tried[:1]:
        with on_the_server(f"round {context.round}: {type(algorithm).__name__}.aggregate", server):
            try:
                entries = algorithm.aggregate_with(server, result.pooled(total), compute, context)
            except FedskewError:
                raise
            except Exception as error:  # it may take more clients than one
                log.info("twice the same: %s.aggregate is not tried (%s)", type(algorithm).__name__, error)
                break
        made.append({f"server[{name!r}]": bits(tensor) for name, tensor in entries.items()})
    if len(made) == len(tried) + 1:
        twice.check_same(who, "aggregate", made[0], made[-1], reached)
    again = broadcast(algorithm, server, context)
    require_unwritten(f"{who} writes into server", first_other(given, bits(server)))
    first, second = ({f"received[{name!r}]": bits(own) for name, own in one.items()} for one in (received, again))
    twice.check_same(who, "broadcast", first, second, reached)
    if not tried:
        log.warning("%s is not tried twice, since rounds of clients %s take too long or fail", who, ids)
    log.info("twice the same: %s, tried by clients %s in %.2f s", who, ids, time.perf_counter() - began)
