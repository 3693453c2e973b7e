"""Fields that keep a run short, and vectors of what a run came to."""

from __future__ import annotations

from typing import Any

import torch

from engine.client.steps.flat_net import FlatNet
from tests.support.tiny import Driven

# Fields that keep a round as short as the others', where those that local training is measured by do not.
SHORT: dict[str, dict[str, Any]] = {
    "pfedme": {"local_rounds": 4, "inner_steps": 2, "personal_lr": 0.1},
    "pflego": {"tau": 5},
    "fedrecon": {"recon_steps": 5},
}


def come_to(run: Driven, turned: bool = False) -> torch.Tensor:
    """[n] what training changes: the global weights, then what clients keep and what they have answered, the last
    client first if ``turned``."""
    states = run.states[::-1] if turned else run.states
    kept = [torch.as_tensor(state[name]) for state in states for name in sorted(state)]
    answers = [run.server["answers"]] if "answers" in run.server else []
    kept += [tensor.flip(0) if turned else tensor for tensor in answers]
    models = [run.server["models"]] if "models" in run.server else []  # of several on the server
    vectors = [run.server["weights"], *models, *(tensor for tensor in kept if tensor.is_floating_point())]
    return torch.cat([vector.reshape(-1).double() for vector in vectors])


def variance_mask(net: FlatNet) -> torch.Tensor:
    """[Q] which buffers are running variances."""
    named = [(path, buffer) for path, buffer in net.model.named_buffers() if buffer.is_floating_point()]
    return torch.cat([torch.full((buffer.numel(),), path.endswith("running_var")) for path, buffer in named])
