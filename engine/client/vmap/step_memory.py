"""The memory in which a block's steps find what they read and write: in tensors made for the block, as here, or at
fixed addresses.

A step that is captured once and replayed for other clients sees the same addresses each time (``cuda_graph.py``). So
all that it reads beside the weights of the program goes through one object: what is kept is copied there before the
first step of a block or of a phase, what differs from step to step is handed over with the step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from torch import Tensor

from engine.algorithm import Context
from engine.client.steps.step_inputs import Inputs
from engine.client.vmap.compiled_step import Usual


class Memory:
    """As it comes: nothing is copied, and every step is run as it is written."""

    def rows(self, name: str, tensor: Tensor) -> Tensor:
        """``tensor`` [K, ...] of K clients as the steps are to read and write it."""
        return tensor

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """The same for one that belongs to all clients."""
        return tensor

    def number(self, name: str, value: float, like: Tensor) -> float | Tensor:
        """A number that may be another one in another round; a tensor [] ``like`` another if steps are to read it."""
        return value

    def watched(self, context: Context) -> Context:
        """``context`` as a step is to see it."""
        return context

    compiles = False  # whether steps of a usual size are compiled

    def step(
        self, bucket: Hashable, work: Callable[[Inputs], None], inputs: Inputs, usual: Usual | None = None
    ) -> None:
        """``work(inputs)``. Works of equal ``bucket`` in one memory do the same, if their inputs have equal shapes.

        usual: what is the same in many steps, where this is one of them.
        """
        work(inputs)

    def aside(self, why: str) -> None:
        """Steps are taken without :meth:`step`, because of ``why``."""

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy of what the last step has written."""
        return tensor.clone()

    def settle(self) -> None:
        """Let whatever is done next come after all steps, so that it may read what these have written."""
