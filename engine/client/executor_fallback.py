"""The executor that takes the place of one that cannot train.

It is beside what trains, and not beside the policy of ``auto``, since the hash of a stage has what was asked for alone:
this rule changes bits, and is hashed with its room.
"""

from __future__ import annotations

from engine.experiment.executor_policy import Executor


def in_place_of(executor: Executor, no_vmap: str, client_models: bool) -> tuple[Executor, str]:
    """Name the executor that trains where ``executor`` was asked for, and if it is another one say why.

    no_vmap: the algorithm's reason not to be stacked, if one holds. client_models: clients' networks differ.
    """
    why = no_vmap or ("clients have networks of their own" if client_models else "")
    return ("loop", why) if why and executor != "loop" else (executor, "")
