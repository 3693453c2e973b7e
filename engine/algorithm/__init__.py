"""The contract: what a federated algorithm is to the engine, and the types that it speaks of.

It offers :class:`Algorithm` and everything that its methods are given or return; it knows no config, no Ray and no
algorithm. Read ``contract.py`` first; ``algorithms/fedavg.py`` is the shortest example of its use.
"""

from engine.algorithm.contract import (
    Algorithm,
    Batch,
    Client,
    Clients,
    ClientView,
    Cohort,
    Compute,
    Context,
    Ended,
    Finisher,
    Kind,
    Layout,
    LocalRun,
    Merge,
    Net,
    Phase,
    Pooled,
    Scalar,
    Statistics,
    Tensors,
    Workbench,
    accumulation,
)
from engine.algorithm.local import Local
from engine.algorithm.setting import PlannedStage, Setting

__all__ = [
    "Algorithm",
    "Batch",
    "Client",
    "ClientView",
    "Clients",
    "Cohort",
    "Compute",
    "Context",
    "Ended",
    "Finisher",
    "Kind",
    "Layout",
    "Local",
    "LocalRun",
    "Merge",
    "Net",
    "Phase",
    "PlannedStage",
    "Pooled",
    "Scalar",
    "Setting",
    "Statistics",
    "Tensors",
    "Workbench",
    "accumulation",
]
