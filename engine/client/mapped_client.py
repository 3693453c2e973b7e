"""A client as a function given to ``clients.map`` sees it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from engine.algorithm import Batch, Client, Net, Tensors
from engine.client.trainer import Trainer


class MappedClient:
    """The contract's :class:`~engine.algorithm.ClientView`: a client's net, rows and state."""

    def __init__(
        self, trainer: Trainer, client: Client, indices: Tensor, state: Tensors | None, with_model: bool
    ) -> None:
        self._state = state
        self._trainer = trainer
        self._indices = indices
        self._with_model = with_model
        self.client = client

    @property
    def net(self) -> Net:
        if not self._with_model:  # it would be whatever the worker did before
            raise TypeError("clients were sent no model; share weights and buffers with clients.map to use view.net")
        return self._trainer.net

    @property
    def state(self) -> Tensors:
        if self._state is None:
            raise TypeError("clients' states were not asked for; call clients.map with states=True to use view.state")
        return self._state

    def at(self, weights: Tensor, buffers: Tensor) -> Net:
        return self._trainer.net.at(weights, buffers)

    def rows(self) -> Iterator[Batch]:
        return self._trainer.one_pass(self.client, self._indices)

    def public(self, per_class: int, /) -> tuple[Tensor, Tensor]:
        return self._trainer.public(per_class)
