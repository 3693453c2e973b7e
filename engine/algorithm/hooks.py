"""Which of an algorithm's hooks have a part in a client's steps: the one place where the engine asks.

A hook that an algorithm does not define is the contract's own, and the engine has a shorter way round it: no gradient
is put together for nobody to see, clients are stacked, a plain loss is written out. :meth:`Algorithm.idle_hooks` says
of hooks that are defined, but do nothing at the present values; they take that way too. So a method at its neutral
value is FedAvg to the bit wherever FedAvg goes, and not merely up to how another way rounds.
"""

from __future__ import annotations

from functools import partial

from engine.algorithm.contract import Algorithm, Loss
from engine.algorithm.types import Context

STEP_HOOKS = frozenset({"loss", "gradient", "step_randomness"})  # that may be idle


def overrides(algorithm: Algorithm | type[Algorithm], hook: str) -> bool:
    """Return whether an algorithm has its own method of that name, whatever it does."""
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    return getattr(kind, hook) is not getattr(Algorithm, hook)


def acts(algorithm: Algorithm, hook: str, context: Context, phase: str = "") -> bool:
    """Return whether a step hook does anything in the phase of that name.

    A declaration is about the hooks that its class knows: where a class below defines one anew, without saying anew
    what is idle, that one acts.
    """
    assert hook in STEP_HOOKS, hook
    if not overrides(algorithm, hook):
        return False
    kind = type(algorithm)
    known = issubclass(_definer(kind, "idle_hooks"), _definer(kind, hook))
    return not (known and hook in algorithm.idle_hooks(context, phase))


def loss_of(algorithm: Algorithm, context: Context, phase: str = "") -> Loss:
    """Return the loss of the phase of that name: the algorithm's own, or where that is idle the contract's."""
    return algorithm.loss if acts(algorithm, "loss", context, phase) else partial(Algorithm.loss, algorithm)


def not_stacked(algorithm: Algorithm, context: Context) -> str:
    """Return why clients are not trained in one pass, see ``Requires.no_vmap``; empty if they are.

    The reason is one of the step hooks', so it holds while one of them acts.
    """
    reason = algorithm.requires.no_vmap
    if not reason:
        return ""
    names = {phase.name for phase in algorithm.phases(context)}
    return reason if any(acts(algorithm, hook, context, name) for hook in STEP_HOOKS for name in names) else ""


def _definer(kind: type[Algorithm], name: str) -> type:
    """The class whose method of that name ``kind`` has."""
    return next(cls for cls in kind.__mro__ if name in vars(cls))
