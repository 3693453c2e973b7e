"""PFLEGO: exact stochastic gradient descent on a shared body and personal heads.

Nikoloutsopoulos, Koutsopoulos and Titsias 2022, arXiv:2202.09848. With f_i the mean cross entropy of client i's n_i
rows, the objective is L(body, W_1 .. W_K) = sum_i alpha_i f_i(W_i, body), alpha_i = n_i / n. A client takes tau - 1
gradient steps at its head, on features that are computed once, then the joint gradient at what it has come to; its head
moves by

    W_i <- W_i - eta / pi * s_i * grad_W f_i        pi: the probability of taking part

and the server moves the body along 1/pi * sum over the cohort of alpha_i grad_body f_i, whose expectation over cohorts
is the gradient of L.

Where the printed text and the released code differ from that:

* ``w_scale="printed"`` is s_i = 1 (eq. 4, and the code); ``"joint"`` is s_i = alpha_i, the gradient of L itself.
* pi is the expected share of clients, not the share that came: dividing by the latter is biased where cohorts vary.
* alpha_i is of all clients' rows. The code's is of the cohort's, and is scaled by K / cohort on top: too much by that
  factor, which Adam hides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from algorithms.personal_head import PersonalHead
from algorithms.server_steps import ServerSteps
from engine.algorithm import Context, Entries, Kind, LocalRun, ModelState, Phase, Pooled, Setting, Tensors
from engine.base.declared import Doc, Ge, Neutral

if TYPE_CHECKING:
    from engine.algorithm import Algorithm


@dataclass(frozen=True)
class Pflego(ServerSteps, PersonalHead):
    # eta: the released code's README has 0.003, for Omniglot alone, and its arguments 0.01. On Fashion-MNIST 0.003 came
    # out below FedPer: an early step of Adam moves a pre-activation by up to eta times the sum of a row's pixels.
    server_lr: float = 0.001
    tau: Annotated[
        int,
        Ge(1),
        Doc("gradients at the head in a round, the joint one included"),
        Neutral(1, "is the joint one alone"),
    ] = 50
    head_lr: Annotated[
        float,
        Ge(0),
        Doc("beta, of the head steps before the joint one"),
        Neutral(0, "leaves the head to the joint steps"),
    ] = 0.007
    w_scale: Annotated[
        Literal["printed", "joint"],
        Doc(
            "the head's last step as the paper prints it, or by the client's share of all rows, which is the "
            "gradient of the joint loss"
        ),
    ] = "printed"
    batch_size: Annotated[int | None, Ge(1), Doc("rows of a gradient"), Neutral(None, "is all rows, and exact")] = None

    entries: ClassVar[Entries] = {
        **PersonalHead.entries,
        **ServerSteps.moments,
        "body_gradient": Kind.BODY,
    }
    symbols: ClassVar[Mapping[str, str]] = {"beta": "head_lr", "eta": "server_lr", "rho": "server_lr"}

    def check(self, setting: Setting) -> None:
        rule = "is not for pflego, whose clients take plain gradients of plain rows"
        plain = {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip_norm": None, "augment": "none"}
        setting.local.demand(rule, **plain)

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, Pflego)
        self.check_same_optimizer(later)

    def phases(self, context: Context) -> tuple[Phase, ...]:
        batch = self.batch_size or "full"
        heads = Phase(steps=self.tau - 1, trainable="head", batch=batch, features="cached", lr=self.head_lr)
        joint = Phase(steps=1, batch=batch, emit="gradient")
        return (heads, joint) if self.tau > 1 else (joint,)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        assert run.gradient is not None  # of the last phase: both parts at one point, before the head moves
        context = run.client.context
        share = run.num_examples / context.num_examples if self.w_scale == "joint" else 1.0
        step = self.server_lr / context.participation * share
        head = context.layout.head_of(run.end) - step * context.layout.head_of(run.gradient)
        return {"body_gradient": context.layout.body_of(run.gradient)}, {"head": head}

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        # The cohort's mean is by its own rows; alpha_i is by those of all clients.
        share = pooled.weight / context.num_examples
        gradient = share / context.participation * pooled.mean["body_gradient"]
        body, remembered = self.stepped(server, context.layout.body_of(server["weights"]), gradient)
        return self.with_body({**server, **remembered}, body, context)

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> ModelState:
        weights = run.client.context.layout.join(received["body"], state["head"])
        return ModelState(weights, run.buffers)
