"""FedClip: FedAvg of updates that are clipped to a norm (McMahan et al. 2018, arXiv:1710.06963, Alg. 1, without noise).

@inproceedings{mcmahan2018learning,
  author = {McMahan, H. Brendan and Ramage, Daniel and Talwar, Kunal and Zhang, Li},
  title = {{Learning Differentially Private Recurrent Language Models}},
  year = {2018},
  booktitle = {International Conference on Learning Representations},
  eprint = {1710.06963},
  archiveprefix = {arXiv},
}
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedskew import FedAvg, require
from fedskew.contract import LocalRun, Tensors


@dataclass(frozen=True)
class FedClip(FedAvg):
    clip: float = 1.0  # largest norm of an update

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.clip > 0, "clip", self.clip, "must be greater than 0", "for example 1")

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        update = run.end - run.start
        factor = (self.clip / torch.linalg.vector_norm(update)).clamp(max=1.0)  # no branch on a tensor's value
        return {"weights": run.start + factor * update}, state
