"""FedProto: clients exchange class prototypes and no weights (Tan et al. 2022, arXiv:2105.00243, Alg. 1).

A client's prototype of a class is the mean of its features over its rows of that class. The server's are the means of
the clients', and a class that nobody of the cohort has keeps the one it had. A client trains a model of its own by
cross entropy plus lambda times the distance L_R of its features to the prototypes of their classes:

    CE + lambda mean over rows of ||z - C_y||^2 / D,

where the released code's distance is taken: of each row, squared, and as a mean over the D features. Rows of classes
without a prototype have no such term, so in the first round there is none. A client answers with the class whose
prototype is nearest to a row's features, or with its own head's: ``answer``.

Since ||z - C||^2 = ||z||^2 - (2 C^T z - ||C||^2), the nearest prototype is the answer of a linear head with rows 2 C
and biases -||C||^2; that head, on the client's own body, is the model that is evaluated.

``weighting="samples"`` takes the means by rows, as the paper's aggregation does but for a further factor 1/|N_j|, with
which its weights would not add up to 1; ``"uniform"`` takes them by clients, as the released code does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.algorithm import (
    Batch,
    Client,
    Context,
    Entries,
    Entry,
    Kind,
    LocalRun,
    ModelState,
    Net,
    ParamLayout,
    Personalised,
    Pooled,
    Requires,
    Scalar,
    Tensors,
    idle_when,
)
from engine.base.declared import Doc, Ge, Neutral
from engine.base.errors import require

NEVER = -1e30  # a score that loses to that of any prototype


@dataclass(frozen=True)
class FedProto(Personalised):
    lam: Annotated[
        float, Ge(0), Doc("lambda, weight of the distance to prototypes"), Neutral(0, "is local training")
    ] = 1.0
    weighting: Annotated[Literal["samples", "uniform"], Doc("how clients are weighted in a class's prototype")] = (
        "samples"
    )
    answer: Annotated[Literal["prototypes", "head"], Doc("by which a client's own model answers")] = "prototypes"

    entries: ClassVar[Entries] = {
        "weights": Entry(Kind.VECTOR, "once"),  # that all start from
        "buffers": Entry(Kind.BUFFERS, "once"),
        "prototypes": Kind.TENSOR,  # [C, D]
        "known": Kind.TENSOR,  # [C] 1 for a class that has a prototype, 0 for others
        "sums": Kind.TENSOR,  # [C, D] a client's prototypes, each times the weight that it has
        "class_weights": Kind.TENSOR,  # [C] these weights
        "personal": Kind.VECTOR,  # a client's own model
        "personal_buffers": Kind.BUFFERS,
    }
    symbols: ClassVar[Mapping[str, str]] = {"lambda": "lam"}
    requires: ClassVar[Requires] = Requires(model={"head": "linear"})  # prototypes are laid into one
    global_model: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = False
    mixed_models: ClassVar[bool] = True

    # --- on the server -------------------------------------------------------------------------------

    def init_server(self, parent: Tensors, context: Context) -> Tensors:
        layout, weights = context.layout, parent["weights"]
        return {
            "weights": weights,
            "prototypes": weights.new_zeros(layout.classes, layout.features),
            "known": weights.new_zeros(layout.classes),
        }

    def broadcast(self, server: Tensors, context: Context) -> Tensors:
        return {name: server[name] for name in ("weights", "prototypes", "known")}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        weights = pooled.mean["class_weights"]  # a mean over clients, as the sums are: their quotient is right
        held = weights > 0
        fresh = pooled.mean["sums"] / torch.where(held, weights, 1)[:, None]
        prototypes = torch.where(held[:, None], fresh, server["prototypes"].to(fresh))
        known = torch.where(held, torch.ones_like(weights), server["known"].to(weights))
        return {**server, "prototypes": prototypes, "known": known}

    # --- on one client -------------------------------------------------------------------------------

    def init_state(self, received: Tensors, parent: Tensors, client: Client) -> Tensors:
        layout, width = client.context.layout, received["prototypes"].shape[1]
        rule = f"has a model of {layout.features} features, and prototypes have the {width} of section model"
        require(layout.features == width, "client_models", "its list", rule, "use models of as many features")
        if "personal" in parent:  # of another method whose clients keep whole models
            return {name: parent[name] for name in ("personal", "personal_buffers")}
        return {"personal": received["weights"].clone(), "personal_buffers": received["buffers"].clone()}

    def start(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return ModelState(state["personal"], state["personal_buffers"])

    @idle_when(lambda self, context: self.lam == 0 or context.stage_round == 1)  # no prototypes yet
    def loss(self, net: Net, batch: Batch, received: Tensors, state: Tensors) -> Tensor:
        z = net.features(batch.x)
        supervised = F.cross_entropy(net.head(z), batch.y)
        if self.lam == 0:
            return supervised
        gap = (z - received["prototypes"][batch.y]).square().mean(1)  # [B]
        return supervised + self.lam * (received["known"][batch.y] * gap).mean()

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        layout, counts = run.client.context.layout, run.client.class_counts.to(run.end)
        total = run.end.new_zeros(layout.classes, layout.features)
        with torch.no_grad():
            for batch in run.rows():
                z = run.net.features(batch.x)
                total = total + F.one_hot(batch.y, layout.classes).to(z).T @ z
        if self.weighting == "samples":
            sent = {"sums": total, "class_weights": counts}  # n_ic C_ic, n_ic
        else:
            sent = {"sums": total / counts.clamp(min=1)[:, None], "class_weights": (counts > 0).to(counts)}
        return sent, {"personal": run.end, "personal_buffers": run.buffers}

    def weight(self, run: LocalRun) -> Scalar:
        return 1.0  # weights are by class, see upload

    # --- clients' own models -------------------------------------------------------------------------

    def personal_model(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        return self.answering(self.start(received, state, client), received, client.context.layout)

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> ModelState:
        return self.answering(run.model, received, run.client.context.layout)

    def answering(self, model: ModelState, received: Tensors, layout: ParamLayout) -> ModelState:
        """Return the model with the head that gives its answers; its own where no class has a prototype."""
        if self.answer == "head":
            return model
        known, prototypes = received["known"], received["prototypes"]
        biases = torch.where(known > 0, -prototypes.square().sum(1), NEVER)
        nearest = torch.cat((2 * prototypes.flatten(), biases))
        head = torch.where(known.any(), nearest, layout.head_of(model.weights))
        return ModelState(layout.join(layout.body_of(model.weights), head), model.buffers)
