"""Networks whose inputs are token ids in place of pixels: [B, L, 1, 1], whole numbers stored as floats."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn

from engine.base.declared import Doc, Ge
from engine.models.model import Model, ModelSpec
from engine.models.networks import append_hidden

PADDING = 0  # the id that fills short rows


class MeanEmbedding(nn.Module):
    """The mean of the embeddings of a row's tokens that are not padding: ids [B, L, 1, 1] -> [B, dimension].

    A row of padding alone has the mean 0. An id that has no embedding is an IndexError of torch's; the data are
    compared with ``vocabulary`` before a run begins.
    """

    def __init__(self, vocabulary: int, dimension: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dimension)

    def forward(self, x: Tensor) -> Tensor:
        ids = x.flatten(1).long()
        vectors = self.embedding(ids)
        # A product and a sum in place of EmbeddingBag or padding_idx, which do not map over stacked clients.
        present = (ids != PADDING).to(vectors.dtype)
        total = (vectors * present.unsqueeze(2)).sum(1)
        return total / present.sum(1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class DAN(ModelSpec):
    """Deep averaging network (Iyyer et al. 2015, section 3): the mean of token embeddings, hidden layers with ReLU.

    Without hidden layers and with a linear head it is a neural bag of words (their section 2.1).
    """

    takes_tokens: ClassVar[bool] = True
    vocabulary: Annotated[int, Ge(2), Doc("token ids are below it; 0 is padding")] = 30_000
    dimension: Annotated[int, Ge(1), Doc("numbers of a token's embedding")] = 64
    hidden: Annotated[tuple[Annotated[int, Ge(1)], ...], Doc("units of each hidden layer; none with []")] = (64,)

    def build(self, shape: tuple[int, int, int], num_classes: int) -> Model:
        body = nn.Sequential(OrderedDict(mean=MeanEmbedding(self.vocabulary, self.dimension)))
        features, taps = append_hidden(body, self.dimension, self.hidden)
        return self.assemble(body, features, num_classes, taps)
