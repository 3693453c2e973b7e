"""The contract: what a federated algorithm is to the engine, and the types that it speaks of.

It offers :class:`Algorithm`, the mixins :class:`Personalised` and :class:`Generative`, and everything that their
methods are given or return; it knows no config, no Ray and no algorithm. Read ``contract.py`` first;
``algorithms/fedavg.py`` is the shortest example of its use.
"""

from engine.algorithm.contract import Algorithm, Loss, PostTraining
from engine.algorithm.generative import Generative
from engine.algorithm.hooks import acts, idle_when, loss_of, not_stacked, overrides
from engine.algorithm.local import Local, batches_in
from engine.algorithm.local_run import LocalRun, PhaseResult, accumulated, accumulation
from engine.algorithm.net import Net, Statistics
from engine.algorithm.personalised import Personalised
from engine.algorithm.services import Clients, ClientView, Compute, Merge, TrainingTools
from engine.algorithm.setting import PlannedStage, Setting
from engine.algorithm.types import (
    Batch,
    Client,
    Cohort,
    Context,
    Entries,
    Entry,
    Kind,
    ModelState,
    ParamLayout,
    Phase,
    Pooled,
    Requires,
    Scalar,
    Tensors,
    Traffic,
)

__all__ = [
    "Algorithm",
    "Batch",
    "Client",
    "ClientView",
    "Clients",
    "Cohort",
    "Compute",
    "Context",
    "Entries",
    "Entry",
    "Generative",
    "Kind",
    "Local",
    "LocalRun",
    "Loss",
    "Merge",
    "ModelState",
    "Net",
    "ParamLayout",
    "Personalised",
    "Phase",
    "PhaseResult",
    "PlannedStage",
    "Pooled",
    "PostTraining",
    "Requires",
    "Scalar",
    "Setting",
    "Statistics",
    "Tensors",
    "Traffic",
    "TrainingTools",
    "accumulated",
    "accumulation",
    "acts",
    "batches_in",
    "idle_when",
    "loss_of",
    "not_stacked",
    "overrides",
]
