"""FedMix: global Mixup to first order in lambda, with averages alone (Yoon et al. 2021, arXiv:2107.00233, eq. 4).

The exchange is NaiveMix's. The network sees (1 - lambda) x_i; what the others' share of the input would change is the
Taylor term lambda kappa <d CE(f(x), y_i) / dx, x_bar>, at that point and for each row's own loss. By the chain rule it
is <softmax(z_i) - onehot(y_i), dz_i>, where dz is the derivative of the logits z along x_bar: one forward pass
(``net.jvp``) and no gradient in input space. Public implementations take that gradient of the batch's *mean* loss and
average again, so their term is B times too small.

kappa = 1 - lambda is the exact expansion, 1 the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from algorithms.naivemix import NaiveMix
from engine.algorithm import Batch, Net, Requires, Tensors, idle_when
from engine.base.declared import Doc, Ge, Lt, Neutral


@dataclass(frozen=True)
class FedMix(NaiveMix):
    requires: ClassVar[Requires] = Requires(
        no_vmap="its loss takes a derivative along a direction, which cannot be mapped over clients",
        no_tokens=NaiveMix.requires.no_tokens,
    )

    mix: Annotated[float, Ge(0), Lt(1), Doc("lambda, the share of the others' averages"), Neutral(0, "is FedAvg")] = (
        0.05
    )
    taylor_coef: Annotated[
        Literal["one_minus_lambda", "one"],
        Doc("kappa, the factor of the Taylor term: the exact expansion, or the paper's"),
    ] = "one_minus_lambda"

    @idle_when(mix=0)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        if self.mix == 0:
            return super().loss(net, batch, received, state)
        image, label = self.partner(batch, received)
        z, slope = net.jvp((1 - self.mix) * batch.x, image)
        log_p = F.log_softmax(z, dim=1)
        kappa = 1.0 if self.taylor_coef == "one" else 1 - self.mix
        own = (log_p.exp() * slope).sum(1).mean() + F.nll_loss(slope, batch.y)  # <p_i - e_y, dz_i>; nll_loss is -dz_iy
        return self.mixed(log_p, batch, label) + self.mix * kappa * own
