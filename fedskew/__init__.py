"""What users import: ``from fedskew import Experiment, run``.

Every name is loaded when it is first used, so that ``import fedskew`` takes neither torch nor Ray. Parts of one's own
(an algorithm, a model, a data set, a partition) come in by decorators; see docs/own_parts.md.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from algorithms.fedavg import FedAvg as FedAvg
    from engine import __version__ as __version__
    from engine.algorithm import Algorithm as Algorithm
    from engine.algorithm import Batch as Batch
    from engine.algorithm import Client as Client
    from engine.algorithm import Clients as Clients
    from engine.algorithm import Cohort as Cohort
    from engine.algorithm import Compute as Compute
    from engine.algorithm import Context as Context
    from engine.algorithm import Entries as Entries
    from engine.algorithm import Entry as Entry
    from engine.algorithm import Generative as Generative
    from engine.algorithm import Kind as Kind
    from engine.algorithm import Local as Local
    from engine.algorithm import LocalRun as LocalRun
    from engine.algorithm import ModelState as ModelState
    from engine.algorithm import Net as Net
    from engine.algorithm import ParamLayout as ParamLayout
    from engine.algorithm import Personalised as Personalised
    from engine.algorithm import Phase as Phase
    from engine.algorithm import PhaseResult as PhaseResult
    from engine.algorithm import Pooled as Pooled
    from engine.algorithm import PostTraining as PostTraining
    from engine.algorithm import Requires as Requires
    from engine.algorithm import Scalar as Scalar
    from engine.algorithm import Setting as Setting
    from engine.algorithm import Tensors as Tensors
    from engine.algorithm import TrainingTools as TrainingTools
    from engine.algorithm import idle_when as idle_when
    from engine.base.errors import ConfigError as ConfigError
    from engine.base.errors import FedskewError as FedskewError
    from engine.base.errors import require as require
    from engine.data import Assignment as Assignment
    from engine.data import Dataset as Dataset
    from engine.data import Partition as Partition
    from engine.data import Source as Source
    from engine.data import Split as Split
    from engine.experiment import Experiment as Experiment
    from engine.experiment.own_parts import algorithm as algorithm
    from engine.experiment.own_parts import dataset as dataset
    from engine.experiment.own_parts import model as model
    from engine.experiment.own_parts import partition as partition
    from engine.models import Model as Model
    from engine.models import ModelSpec as ModelSpec
    from engine.models.splitting import split_model as split_model
    from engine.record.run_folder import RunFolder as RunFolder
    from engine.results.claims import Claim as Claim
    from engine.results.claims import PaperTable as PaperTable
    from engine.results.frames.frames import Frames as Frames
    from engine.results.frames.frames import load_results as load_results
    from engine.results.results import Results as Results
    from engine.run.run import Run as Run
    from engine.sweeps.definition import Asha as Asha
    from engine.sweeps.definition import Optuna as Optuna
    from engine.sweeps.definition import Pbt as Pbt
    from engine.sweeps.definition import Sweep as Sweep
    from engine.sweeps.tuned import Tuned as Tuned
    from fedskew.lab.sweeping.from_python import sweep as sweep
    from fedskew.running import resume as resume
    from fedskew.running import run as run

_PLACES = {
    "algorithms.fedavg": ("FedAvg",),
    "engine": ("__version__",),
    "engine.algorithm": (
        *(
            "Algorithm",
            "Batch",
            "Client",
            "Clients",
            "Cohort",
            "Compute",
            "Context",
            "Entries",
            "Entry",
            "Generative",
            "Kind",
        ),
        *("Local", "LocalRun", "ModelState", "Net", "ParamLayout", "Personalised", "Phase", "PhaseResult", "Pooled"),
        *("PostTraining", "Requires", "Scalar", "Setting", "Tensors", "TrainingTools", "idle_when"),
    ),
    "engine.results.claims": ("Claim", "PaperTable"),
    "engine.results.frames.frames": ("Frames", "load_results"),
    "engine.results.results": ("Results",),
    "engine.base.errors": ("ConfigError", "FedskewError", "require"),
    "engine.data": ("Assignment", "Dataset", "Partition", "Source", "Split"),
    "engine.experiment": ("Experiment",),
    "engine.experiment.own_parts": ("algorithm", "dataset", "model", "partition"),
    "engine.models": ("Model", "ModelSpec"),
    "engine.models.splitting": ("split_model",),
    "engine.record.run_folder": ("RunFolder",),
    "engine.run.run": ("Run",),
    "engine.sweeps.definition": ("Asha", "Optuna", "Pbt", "Sweep"),
    "engine.sweeps.tuned": ("Tuned",),
    "fedskew.lab.sweeping.from_python": ("sweep",),
    "fedskew.running": ("resume", "run"),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}

__all__ = [
    "Algorithm",
    "Asha",
    "Assignment",
    "Batch",
    "Claim",
    "Client",
    "Clients",
    "Cohort",
    "Compute",
    "ConfigError",
    "Context",
    "Dataset",
    "Entries",
    "Entry",
    "Experiment",
    "FedAvg",
    "FedskewError",
    "Frames",
    "Generative",
    "Kind",
    "Local",
    "LocalRun",
    "Model",
    "ModelSpec",
    "ModelState",
    "Net",
    "Optuna",
    "PaperTable",
    "ParamLayout",
    "Partition",
    "Pbt",
    "Personalised",
    "Phase",
    "PhaseResult",
    "Pooled",
    "PostTraining",
    "Requires",
    "Results",
    "Run",
    "RunFolder",
    "Scalar",
    "Setting",
    "Source",
    "Split",
    "Sweep",
    "Tensors",
    "TrainingTools",
    "Tuned",
    "__version__",
    "algorithm",
    "dataset",
    "idle_when",
    "load_results",
    "model",
    "partition",
    "require",
    "resume",
    "run",
    "split_model",
    "sweep",
]


def _check_nothing_is_hidden() -> None:
    """Refuse a package or a folder that Python finds in the place of ours: beside a script, say."""
    for name in ("engine", "algorithms", "tune_configs"):
        there = sys.modules.get(name)
        spec = find_spec(name) if there is None else there.__spec__
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        found = [Path(place) for place in places if place]
        ours = Path(__file__).resolve().parents[1] / name
        if not any(ours in (place.resolve(), *place.resolve().parents) for place in found):
            where = found[0] if found else "nothing"
            raise ImportError(f"{where} hides fedskew's own package {name!r} ({ours}); rename yours") from None


_check_nothing_is_hidden()


def __getattr__(name: str) -> Any:
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'fedskew' has no attribute {name!r}")
    value = getattr(import_module(_PLACE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]
