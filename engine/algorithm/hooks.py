"""Which of an algorithm's hooks have a part in a client's steps: the one place where the engine asks.

A hook that an algorithm does not define is the contract's, and the engine has a shorter way round it: it puts no
gradient together that nobody sees, stacks clients, and writes a plain loss out. :func:`idle_when` says when a hook that
is defined does nothing; the engine then skips it as well. So a method at its neutral value is FedAvg to the bit under
every executor, and not merely up to the rounding of another way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, TypeVar

from engine.algorithm.contract import Algorithm, Loss
from engine.algorithm.types import Context

Hook = TypeVar("Hook", bound=Callable[..., Any])

STEP_HOOKS = frozenset({"loss", "perturbation", "gradient", "step_randomness"})  # that may be idle


def idle_when(condition: Callable[..., bool] | None = None, /, **fields: Any) -> Callable[[Hook], Hook]:
    """Mark a hook as one that does what the contract's own does while a condition holds, so that the engine skips it.

        @idle_when(mu=0)
        def gradient(self, grad, weights, received, state, client): ...

    The hook is one of :data:`STEP_HOOKS`, and must then do nothing of its own for any client.
    ``fields``: hyper-parameters, one of which having the value given is enough. ``condition``: a function of ``self``,
    of ``self, context`` or of ``self, context, phase`` (the name of the phase). A subclass inherits the mark with the
    hook; one that overrides the hook marks its own. Raises TypeError for any other hook.
    """
    takes = 0 if condition is None else len(signature(condition).parameters)

    def is_idle(algorithm: Algorithm, context: Context, phase: str) -> bool:
        if any(getattr(algorithm, name) == value for name, value in fields.items()):
            return True
        return condition is not None and condition(*(algorithm, context, phase)[:takes])

    def mark(hook: Hook) -> Hook:
        if hook.__name__ not in STEP_HOOKS:
            raise TypeError(f"idle_when cannot mark {hook.__name__}; it marks {', '.join(sorted(STEP_HOOKS))}")
        hook.__dict__["is_idle"] = is_idle
        return hook

    return mark


def overrides(algorithm: Algorithm | type[Algorithm], hook: str) -> bool:
    """Return whether an algorithm has its own method of that name, whatever it does."""
    kind = algorithm if isinstance(algorithm, type) else type(algorithm)
    return getattr(kind, hook) is not getattr(Algorithm, hook)


def acts(algorithm: Algorithm, hook: str, context: Context, phase: str = "") -> bool:
    """Return whether a step hook does anything in the phase of that name: it is overridden, and not idle."""
    assert hook in STEP_HOOKS, hook
    is_idle = getattr(getattr(type(algorithm), hook), "is_idle", None)
    return overrides(algorithm, hook) and not (is_idle is not None and is_idle(algorithm, context, phase))


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
