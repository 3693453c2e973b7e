"""The rows of a head's steps over all rows of each client: features of a frozen body, padded to one length.

Steps go together whose batches have equal sizes (``lockstep.py``), and no two clients need have equally many rows. Of
a head the step is one small product of what is computed already, so clients of similar sizes go together all the same:
what is padded has no weight in the gradient, to which it adds zeros.

Shapes: k clients that go together, n rows of the largest, D features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from engine.client.step_inputs import Inputs

LEAST = 0.75  # of the rows of the largest client that goes along: less costs more padding than it saves operations


def alike(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) of clients that go together. sizes: their rows, in descending order."""
    first = 0
    for client in range(1, len(sizes) + 1):
        if client == len(sizes) or sizes[client] < LEAST * sizes[first]:
            yield first, client
            first = client


def padded(features: Sequence[Tensor], labels: Sequence[Tensor]) -> Inputs:
    """Return "x" [k, n, D], "y" [k, n] and "weights" [k, n] of each client's features and labels, largest first.

    The weights are those of a mean over a client's own rows, and 0 beyond them.
    """
    most = len(labels[0])
    x = features[0].new_zeros(len(features), most, features[0].shape[1])
    y = labels[0].new_zeros(len(labels), most)
    weights = x.new_zeros(len(labels), most)
    for row, (z, own) in enumerate(zip(features, labels, strict=True)):
        x[row, : len(own)], y[row, : len(own)], weights[row, : len(own)] = z, own, 1 / len(own)
    return Inputs({"x": x, "y": y, "weights": weights})
