"""ClsNorm: classifier weights of unit length, phi_i / ||phi_i|| (Luo et al. 2021, arXiv:2106.05001).

The normalisation is the model's (``model.head=normalised``), so that training, evaluation and later stages see the same
network; what is left here is FedAvg on it, and with ``mu`` above 0 the two remedies together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from algorithms.clsprox import ClsProx
from engine.algorithm import Requires
from engine.base.declared import Doc, Ge, Neutral


@dataclass(frozen=True)
class ClsNorm(ClsProx):
    mu: Annotated[float, Ge(0), Doc("weight of ClsProx's term"), Neutral(0, "is FedAvg on the normalised head")] = 0.0

    requires: ClassVar[Requires] = Requires(model={"head": "normalised"})
