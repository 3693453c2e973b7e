"""FedRecon: heads are not kept, but reconstructed whenever needed (Singhal et al. 2021, arXiv:2102.03448).

Whenever a client takes part it starts its head where it always does and reconstructs it: ``recon_steps`` steps on the
support part of its rows, the body frozen. Then it trains the body on the query part, the head frozen, as the section
``local`` says, and sends it. The server takes a step of its optimizer as if the gradient were the mean of

    body sent to the client - body it ended with        weighted by query rows

which is what the paper's clients send, before minus after; a delta is after minus before everywhere else here. Where
a client's model is used it is reconstructed in the same way, on all of its rows.

Other readings in released code:

* PFLEGO's (arXiv:2202.09848): the head is kept, nothing is split, and clients send one gradient of the body after the
  head's steps, for Adam. That is ``reset_head=False``, ``support_frac=1``, ``grad_only=True`` with
  ``local.batch_size=full``. When it resets, it draws another head at each visit; here a client's head is always the
  same.
* KarhouTam/FedRecon keeps a client's head and its split from the first visit on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from algorithms.personal_head import PersonalHead
from algorithms.server_steps import ServerSteps
from engine.algorithm import Context, Entries, Kind, LocalRun, Phase, Pooled, Scalar, Setting, Tensors
from engine.base.declared import Doc, Ge, Gt, Le, Neutral
from engine.base.errors import require

if TYPE_CHECKING:
    from engine.algorithm import Algorithm


@dataclass(frozen=True)
class FedRecon(ServerSteps, PersonalHead):
    recon_steps: Annotated[
        int,
        Ge(0),
        Doc("steps at the head, and before a client's model is measured"),
        Neutral(0, "leaves it where it starts"),
    ] = 50
    recon_lr: Annotated[float, Gt(0), Doc("of the steps at the head")] = 0.1
    query_steps: Annotated[
        int | None,
        Ge(1),
        Doc("steps at the body, in place of `local.epochs` and `local.steps`"),
        Neutral(None, "is as local says"),
    ] = None
    support_frac: Annotated[
        float,
        Gt(0),
        Le(1),
        Doc("share of a client's rows for the head, the others being the body's"),
        Neutral(1, "is no split: all rows for both"),
    ] = 0.5
    reset_head: Annotated[
        bool,
        Doc("heads start afresh in each round, and are not kept; false: they are kept, and go on from where they are"),
    ] = True
    grad_only: Annotated[
        bool, Doc("clients send one gradient of the body over all query rows, and take no step at it")
    ] = False
    server_optimizer: Literal["sgd", "adam", "yogi"] = "sgd"
    server_lr: Annotated[
        float,
        Gt(0),
        Doc("rate of the server's optimizer; with sgd 1 takes the mean of bodies, adam and yogi want far less"),
    ] = 1.0

    entries: ClassVar[Entries] = {
        **PersonalHead.entries,
        **ServerSteps.moments,
        "body_gradient": Kind.BODY,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, rule = self.query_steps, "is not for grad_only, where the body takes no step"
        require(steps is None or not self.grad_only, "query_steps", steps, rule, "set query_steps=null")

    def check(self, setting: Setting) -> None:
        if self.grad_only:
            setting.local.demand(
                "is not for fedrecon with grad_only, whose bodies take no steps at clients", clip_norm=None
            )

    def check_change(self, later: Algorithm) -> None:
        assert isinstance(later, FedRecon)
        self.check_same_optimizer(later)
        rule = "cannot change in mid-run: clients have kept their heads, or have not"
        require(self.reset_head == later.reset_head, "reset_head", later.reset_head, rule, f"keep {self.reset_head}")

    @property
    def stateful(self) -> bool:
        return not self.reset_head

    def phases(self, context: Context) -> tuple[Phase, ...]:
        split = self.support_frac < 1
        rows: Literal["all", "query"] = "query" if split else "all"
        body = Phase("query", steps=self.query_steps, trainable="body", rows=rows, support=self.support_frac)
        if self.grad_only:
            body = replace(body, steps=1, batch="full", emit="gradient")
        return *self._reconstruction("support" if split else "all"), body

    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        return self._reconstruction("all")

    def _reconstruction(self, rows: Literal["all", "support"]) -> tuple[Phase, ...]:
        if self.recon_steps == 0:
            return ()
        heads = Phase(steps=self.recon_steps, trainable="head", features="cached", lr=self.recon_lr)
        return (replace(heads, rows=rows, support=self.support_frac),)

    def upload(self, run: LocalRun, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        sent, kept = super().upload(run, received, state)
        if self.grad_only:
            assert run.gradient is not None  # of the query phase
            sent = {"body_gradient": run.client.context.layout.body_of(run.gradient)}
        return sent, {} if self.reset_head else kept

    def weight(self, run: LocalRun) -> Scalar:
        return run.ends["query"].num_examples

    def aggregate(self, server: Tensors, pooled: Pooled, context: Context) -> Tensors:
        body = context.layout.body_of(server["weights"])
        gradient = pooled.mean["body_gradient"] if self.grad_only else body - pooled.mean["body"]
        body, remembered = self.stepped(server, body, gradient)
        return self.with_body({**server, **remembered}, body, context)
