"""The room that clients' states will take on the disk, projected before a stage's first round.

K clients, of which each takes part in a round with probability p, whatever it did in other rounds; R rounds in the
stage; a checkpoint every E rounds, of which the last k are kept.

:class:`~engine.record.states.DiskStore` writes a file for each client and round. A file goes when a checkpoint is
saved and neither the store nor a kept checkpoint names it, so states are there in several versions. What the disk
holds already (states of the stage before) is no free space any more, and what others link to (a sweep's store) is
not counted. Trials that run side by side each project for themselves, and rounds that another one may do are not
taken off.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable

from engine.algorithm import Context, Tensors
from engine.base.errors import ResourceError
from engine.base.sizes import size_text
from engine.experiment import Checkpointing, Stage
from engine.record.states import DiskStore, States

log = logging.getLogger("fedskew")


def check_room(
    states: States, stage: Stage, context: Context, checkpoint: Checkpointing, first_state: Callable[[], Tensors]
) -> None:
    """Log what the stage's states will come to; a :class:`ResourceError` if the disk has less than that free.

    Nothing where states live in memory, or where there are none. ``first_state``: one client's, as it is stored; states
    that grow are taken to stay as large as that.
    """
    if not (isinstance(states, DiskStore) and stage.algorithm.stateful and stage.rounds):
        return
    folder = next(path for path in (states.folder, *states.folder.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    one = sum(tensor.numel() * tensor.element_size() for tensor in first_state().values())
    if one == 0:
        log.info("states: grow from nothing, so how large they become is not known; %s free", size_text(free))
        return
    share = context.participation
    clients = touched(context.num_clients, share, stage.rounds)
    needed = one * most_files(context.num_clients, share, stage.rounds, checkpoint)
    log.info(
        "states: up to %s clients x %s = %s, with older versions %s on disk, %s free",
        f"{clients:,.0f}",
        size_text(one),
        size_text(clients * one),
        size_text(needed),
        size_text(free),
    )
    if needed > free:
        raise ResourceError(
            f"execution.state_store=disk: the states of {clients:,.0f} clients in stage {stage.name}, {size_text(one)} "
            f"each, will take {size_text(needed)} with the older versions that checkpoints need, and {folder} has "
            f"{size_text(free)} free; make room, or put the run on another disk with --out"
        )


def touched(clients: int, participation: float, rounds: int) -> float:
    """Return K (1 - (1 - p)^rounds), the clients expected to have taken part in that many rounds; 0 before any."""
    return clients * (1 - (1 - participation) ** max(rounds, 0))


def most_files(clients: int, participation: float, rounds: int, checkpoint: Checkpointing) -> float:
    """Return the number of files expected just before the stage's last checkpoint is saved, when there are most.

    p K for each round since the checkpoint before it, in round R - E; the state of each client at that one; and for
    each older one that is kept, the versions that a client had there and has changed before the next.
    """
    window = min(checkpoint.every, rounds)
    before = rounds - window
    at_checkpoints = [
        touched(clients, participation, before - back * checkpoint.every) for back in range(checkpoint.keep)
    ]
    newest, *older = at_checkpoints
    changed = 1 - (1 - participation) ** checkpoint.every
    return clients * participation * window + newest + changed * sum(older)
