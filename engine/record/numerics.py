"""The machine's and the libraries' share in a result's bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from engine.experiment import Experiment


def numerics(experiment: Experiment, hardware: str) -> dict[str, str]:
    """Name versions, device and hardware that a result's bits depend on; ``hardware``: that of the workers."""
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": experiment.execution.device,
        "hardware": hardware,
    }


def mixed(*values: str) -> str:
    """Name all that took part, where not all of it was the same."""
    return " | ".join(sorted({part for value in values for part in value.split(" | ")}))


def is_mixed(computed_by: Mapping[str, str]) -> bool:
    """Return whether bits may depend on who computed what, so that nothing of it may be shared."""
    return any(" | " in value for value in computed_by.values())


def hardware_of(device: str) -> str:
    """Name what this process computes on: the GPU, or the CPU's vector instructions."""
    return torch.cuda.get_device_name() if device == "cuda" else torch.backends.cpu.get_cpu_capability()
