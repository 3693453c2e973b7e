"""Clients' own models: what methods of personalised federated learning add to the contract.

The functions below it are the engine's, which may measure and fine-tune the own models of clients under any algorithm:
where that is no personalised one, a client's own model is the one that its local training starts from or ends with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from engine.algorithm.contract import Algorithm
from engine.algorithm.local_run import LocalRun
from engine.algorithm.net import Net
from engine.algorithm.types import Client, Context, ModelState, Phase, Tensors


@dataclass(frozen=True)
class Personalised(Algorithm):
    """An algorithm whose clients use something other than the server's model.

    Attributes:
        global_model: False: the server's weights alone are no model; the run is evaluated by clients' own models
        local_labels: True: a head's k-th row is a client's k-th class, whichever that is
    """

    global_model: ClassVar[bool] = True
    local_labels: ClassVar[bool] = False

    def personal_model(self, received: Tensors, state: Tensors, client: Client) -> ModelState:
        """Return the model that a client would use, with what it has just received and what it keeps."""
        return self.start(received, state, client)

    def personalise_phases(self, context: Context) -> tuple[Phase, ...]:
        """Return the phases that :meth:`personal_model` goes through before it is used; nothing of them is kept."""
        return ()

    def personal_after(self, run: LocalRun, received: Tensors, state: Tensors) -> ModelState:
        """Return the model that a client would use after local training; ``state`` is the new one."""
        return run.model

    def predict_own(self, net: Net, x: Tensor, client: Client) -> Tensor:
        """Return the class scores [B, C] of a client's own model for rows ``x`` [B, ...].

        They are -inf for a class that the client does not know.
        """
        return self.predict(net, x)


def has_global_model(algorithm: Algorithm) -> bool:
    """Return whether the server's weights are a model that can be evaluated."""
    return not isinstance(algorithm, Personalised) or algorithm.global_model


def personal_model(algorithm: Algorithm, received: Tensors, state: Tensors, client: Client) -> ModelState:
    """Return the model that a client would use, under any algorithm; see :meth:`Personalised.personal_model`."""
    own = algorithm.personal_model if isinstance(algorithm, Personalised) else algorithm.start
    return own(received, state, client)


def personalise_phases(algorithm: Algorithm, context: Context) -> tuple[Phase, ...]:
    """Return the phases that the model then goes through, see :meth:`Personalised.personalise_phases`."""
    return algorithm.personalise_phases(context) if isinstance(algorithm, Personalised) else ()


def personal_after(algorithm: Algorithm, run: LocalRun, received: Tensors, state: Tensors) -> ModelState:
    """Return the model that a client would use after local training, see :meth:`Personalised.personal_after`."""
    return algorithm.personal_after(run, received, state) if isinstance(algorithm, Personalised) else run.model


def predict_own(algorithm: Algorithm, net: Net, x: Tensor, client: Client) -> Tensor:
    """Return the class scores [B, C] of a client's own model, see :meth:`Personalised.predict_own`."""
    if isinstance(algorithm, Personalised):
        return algorithm.predict_own(net, x, client)
    return algorithm.predict(net, x)
