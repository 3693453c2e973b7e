"""The plan of a phase's steps: which of an algorithm's hooks take part, and which shorter operations serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.algorithm import Algorithm, Context, Loss, Phase, acts, loss_of
from engine.client.steps.flat_net import FlatNet
from engine.client.vmap.dense import Dense
from engine.experiment import Local

HOOKS = ("gradient", "perturbation", "loss", "step_randomness")


@dataclass(frozen=True)
class StepPlan:
    """The plan of one phase. Steps of equal plans may be captured once and replayed."""

    objective: Loss = field(compare=False)
    dense: Dense | None  # the network, or the head on cached features, where the plain loss is written out
    hooked: bool  # a gradient hook sees whole vectors
    perturbed: bool  # a step is two passes, and the perturbation sees whole vectors
    in_place: bool  # plain SGD, for which no gradient is written out
    draws: bool  # a step has random numbers of the algorithm
    own_loss: bool  # the objective is the algorithm's, and not the contract's
    head: bool  # dense is the head alone
    whole_head: bool  # and steps are over all rows of each client

    @property
    def by_layer(self) -> bool:
        """True if nobody sees weights as whole vectors."""
        return self.in_place and not self.perturbed

    @property
    def reads_entries(self) -> bool:
        """True if the loss or the hook has entries that clients have received or keep."""
        return self.hooked or self.perturbed or self.own_loss

    @property
    def mapped(self) -> bool:
        """True if a function of one client is mapped over all; with the head alone where the loss is asked for."""
        return self.dense is None or self.hooked or self.perturbed or self.head


def step_plans(
    algorithm: Algorithm, local: Local, phases: Sequence[Phase], context: Context, net: FlatNet, is_exact: bool
) -> tuple[StepPlan, ...]:
    """Return the plan of each phase; ``is_exact``: a forward pass is in the run's precision."""
    whole, head = (Dense.of(net.model), Dense.head_of(net.model)) if is_exact else (None, None)

    def plan_of(phase: Phase) -> StepPlan:
        hooked, perturbed, own, draws = (acts(algorithm, hook, context, phase.name) for hook in HOOKS)
        cached = phase.features == "cached"
        dense = None if own else head if cached else whole
        full = (local.batch_size if phase.batch == "local" else phase.batch) == "full"
        return StepPlan(
            objective=loss_of(algorithm, context, phase.name),
            dense=dense,
            hooked=hooked,
            perturbed=perturbed and phase.emit == "step",
            in_place=local.of_phase(phase.lr).is_plain_sgd and not (hooked or full) and phase.emit == "step",
            draws=draws,
            own_loss=own,
            head=cached and dense is not None,
            whole_head=cached and dense is not None and full and phase.emit == "step" and not (draws or perturbed),
        )

    return tuple(map(plan_of, phases))
