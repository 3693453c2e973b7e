"""FedSER: clients regularise themselves by their own sub-networks (self-regularisation by structure), FedAvg otherwise.

To the cross entropy of the full network F on a batch x come n sub-networks, the first channels of every layer on the
same weights, each of a random width and on a random transform T_i of the batch. They must match the full network's soft
labels, which are a target without gradient:

    CE(F(x), y) + mu sum_i KL(softmax F(x) || softmax F_i(T_i(x)))          (mean over rows, no temperature)

It is GradAug (Yang, Zhu and Chen 2020, arXiv:2006.07989) as local training, which FedAlign (Mendieta et al. 2022,
arXiv:2111.14213) had already put beside FedAvg. Where the sources differ:

* mu is in FedSER's formula but not in its Algorithm 1; here it is used. The sum is not divided by n, so what counts is
  mu n; ``normalise_by_n`` divides it.
* FedSER draws all widths uniformly. ``width_sampling="sandwich"`` is GradAug's rule: the narrowest one once and n - 1
  uniform ones, the widest first.
* The mean and variance that FedSER calls fixed in sub-networks are the running ones, which only the full network's pass
  changes; a sub-network normalises by its own batch, as in both released codes. ``subnet_bn="running"`` is the other
  reading.
* Its transforms are "random scaling, rotation, cropping" without numbers. The scales here are GradAug's for CIFAR,
  32, 28 and 24 pixels of 32; ``width_divisor=8`` is FedAlign's, GradAug's is 1.

What travels is FedAvg's, and the global model is the full network. A step costs about 1 + sum_i w_i^2 s_i^2 of FedAvg's
for widths w_i and scales s_i.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from algorithms.batch_transforms import BatchTransforms
from algorithms.fedavg import FedAvg
from engine.algorithm import Batch, Client, Net, Requires, Setting, Statistics, Tensors, idle_when
from engine.base.declared import Doc, Ge, Gt, Le, Neutral
from engine.base.errors import ConfigError
from engine.models.outline import outline


@dataclass(frozen=True)
class FedSer(FedAvg, BatchTransforms):
    subnets: Annotated[
        int, Ge(0), Doc("n, sub-networks a step, which are to give the full network's answers"), Neutral(0, "is FedAvg")
    ] = 2
    min_width: Annotated[
        float, Gt(0), Le(1), Doc("the least of their widths, as a share of each layer's channels: the paper's alpha")
    ] = 0.8
    mu: Annotated[float, Ge(0), Doc("weight of each sub-network's divergence"), Neutral(0, "is FedAvg")] = 1.75
    normalise_by_n: Annotated[bool, Doc("take the mean over sub-networks in place of the sum")] = False
    width_sampling: Annotated[
        Literal["uniform", "sandwich"], Doc("all widths drawn; or the least one and the others drawn, widest first")
    ] = "uniform"
    width_divisor: Annotated[
        int,
        Ge(1),
        Doc("of the numbers of channels that are kept, see engine.models.narrow.kept; FedAlign: 8"),
        Neutral(1, "is none"),
    ] = 1
    subnet_bn: Annotated[
        Statistics, Doc("sub-networks' BatchNorm layers normalise by their own batch, or by the running statistics")
    ] = "batch"

    symbols: ClassVar[Mapping[str, str]] = {**FedAvg.symbols, "n": "subnets"}
    requires: ClassVar[Requires] = Requires(no_vmap="each client draws its own widths and image sizes")

    def check(self, setting: Setting) -> None:
        if not self.regularises:
            return
        model = outline(setting.model)
        if model.not_narrowed is not None:
            reason = model.not_narrowed
            raise ConfigError("model.name", setting.model_name, reason.rule, reason.repair)
        if self.changes_size and not model.any_resolution:
            rule = f"is not for model {setting.model_name}, which takes images of one size"
            raise ConfigError("algorithm.transform", self.transform, rule, "set algorithm.transform=resize_back")

    @property
    def regularises(self) -> bool:
        return self.subnets > 0 and self.mu > 0

    @idle_when(lambda self: not self.regularises)
    def step_randomness(self, client: Client, rows: int, received: Tensors) -> dict[str, Any]:
        if not self.regularises:
            return {}
        rng, image = client.rng("transform"), client.context.layout.image
        return {"subnets": [(width, self.draw_transform(rng, image)) for width in self.widths(client.rng("width"))]}

    def widths(self, rng: torch.Generator) -> list[float]:
        """Draw the widths of a step, in the order in which they are used."""
        fixed = [self.min_width] if self.width_sampling == "sandwich" else []
        share = torch.rand(self.subnets - len(fixed), generator=rng, dtype=torch.float64)
        drawn = (self.min_width + (1 - self.min_width) * share).tolist()
        return sorted(drawn, reverse=True) + fixed if fixed else drawn

    @idle_when(lambda self: not self.regularises)
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        if not self.regularises:
            return super().loss(net, batch, received, state)
        logits = net(batch.x)
        soft = F.softmax(logits.detach(), dim=1)
        divergences = []
        for width, drawn in batch.drawn["subnets"]:
            subnet = net.narrow(width, self.width_divisor, self.subnet_bn)
            log_p = F.log_softmax(subnet(self.transformed(batch.x, drawn)), dim=1)
            divergences.append(F.kl_div(log_p, soft, reduction="batchmean"))
        weight = self.mu / self.subnets if self.normalise_by_n else self.mu
        return F.cross_entropy(logits, batch.y) + weight * torch.stack(divergences).sum()
