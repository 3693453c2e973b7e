"""IFCA: several global models, of which each client trains the one that fits its rows best (Ghosh et al. 2020,
arXiv:2006.04088, Alg. 1, with averaging of models).

The server sends all ``clusters`` models. A client takes the one with the least loss on its rows, trains it, and sends
it with the model's number. Each model becomes the mean, by rows, of those that were trained from it; one that nobody
took stays. Models start from weights of their own, as the paper's do: the run's first weights with Gaussian noise,
``spread`` times their standard deviation. What is evaluated is clients' own models, each the one that fits. There is
one set of buffers, which all models share.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F

from algorithms.fedavg import FedAvg
from engine.algorithm import (
    Client,
    ClientTools,
    Compute,
    Context,
    Entries,
    Kind,
    LocalRun,
    ModelState,
    Personalised,
    Pooled,
    Tensors,
    TrainingTools,
)
from engine.base.declared import Doc, Ge


@dataclass(frozen=True)
class Ifca(Personalised, FedAvg):
    clusters: Annotated[int, Ge(2), Doc("global models")] = 2
    spread: Annotated[float, Ge(0), Doc("of their first weights, in standard deviations of the run's")] = 1.0

    entries: ClassVar[Entries] = {
        **FedAvg.entries,
        "models": Kind.TENSOR,  # [clusters, P]
        "cluster": Kind.SCALAR,  # the number of a client's model
        "rows": Kind.SCALAR,
    }
    global_model: ClassVar[bool] = False
    stack_uploads: ClassVar[bool] = True

    def before_round(self, server: Tensors, compute: Compute, context: Context) -> Tensors:
        if "models" in server:
            return server
        given = {"weights": server["weights"], "buffers": server["buffers"]}
        return {**server, **compute(partial(first_models, self.clusters, self.spread), given)}

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {"models": server["models"]}

    def client_setup(self, tools: ClientTools, received: Tensors, state: Tensors, client: Client) -> Tensors:
        nets = [tools.net.at(weights, received["buffers"]) for weights in received["models"]]
        losses = [
            torch.stack([F.cross_entropy(net(batch.x), batch.y, reduction="sum") for net in nets])
            for batch in tools.rows()
        ]
        return {"cluster": torch.stack(losses).sum(0).argmin().to(received["models"])}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(received["models"][received["cluster"].long()], received["buffers"])

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        rows = torch.as_tensor(run.num_examples).to(run.end)
        return {"weights": run.end, "cluster": received["cluster"].clone(), "rows": rows}, state

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        assert pooled.stacked is not None
        uploads = {name: tensor.double() for name, tensor in pooled.stacked.items()}
        chosen, models = uploads["cluster"].long(), server["models"].double()
        taken = F.one_hot(chosen, self.clusters).mT * uploads["rows"]  # [clusters, K] rows
        rows = taken.sum(1, keepdim=True)
        means = taken @ uploads["weights"] / rows.clamp_min(1)
        if self.server_lr != 1:
            means = models + self.server_lr * (means - models)
        update = uploads["rows"] @ (uploads["weights"] - models[chosen]) / rows.sum()  # tells runs apart, no more
        weights = server["weights"] + update
        return {**server, "weights": weights, "models": torch.where(rows > 0, means, models)}


def first_models(clusters: int, spread: float, tools: TrainingTools, given: Tensors) -> Tensors:
    """Return [clusters, P] the run's weights, each with noise of its own."""
    weights = given["weights"]
    noise = torch.randn(clusters, len(weights), generator=tools.rng("first models"), dtype=torch.float64).to(weights)
    return {"models": weights + spread * weights.std() * noise}
