"""The oracle of CCVR: the head is trained anew on raw rows drawn from all clients' data (arXiv:2106.05001, sec. 3.3).

It shows how much a calibration could gain. It is a bound, not a method to use: clients hand over their images. These
travel as images and are counted as such; the server computes features from them, with the body frozen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod, sqrt
from typing import Annotated, ClassVar

import torch

from algorithms.calibration import HeadCalibration
from engine.algorithm import Clients, ClientView, Compute, Context, Tensors, TrainingTools
from engine.base.declared import Doc, Gt, Le

CHUNK_BYTES = 64 * 2**20  # of images that are on their way at a time
CHUNK_ROWS = 500  # of one forward pass


def keys_of(view: ClientView) -> torch.Tensor:
    """Draw [n], a uniform number for each row of a client; the rows with the smallest of all clients are the sample."""
    rng = view.client.rng("calibration rows")
    return torch.rand(int(view.client.num_examples), generator=rng, dtype=torch.float64)


def small_keys(view: ClientView, shared: Tensors, below: float) -> Tensors:
    keys = keys_of(view)
    return {"keys": keys[keys < below]}


def chosen_rows(view: ClientView, shared: Tensors, above: float, at_most: float) -> Tensors:
    """Return the client's rows with keys in (above, at_most]: "images" [m, ...] and "labels" [m]."""
    keys = keys_of(view)
    chosen = (keys > above) & (keys <= at_most)
    images, labels, start = [], [], 0
    for batch in view.rows():
        inside = chosen[start : start + len(batch.y)].to(batch.y.device)
        start += len(batch.y)
        images.append(batch.x[inside])
        labels.append(batch.y[inside])
    return {"images": torch.cat(images), "labels": torch.cat(labels)}


@torch.no_grad()
def features_of(tools: TrainingTools, shared: Tensors) -> Tensors:
    return {"features": torch.cat([tools.net.features(part) for part in shared["images"].split(CHUNK_ROWS)])}


@dataclass(frozen=True)
class IidCalibration(HeadCalibration):
    fraction: Annotated[
        float,
        Gt(0),
        Le(1),
        Doc("n_cal / N, rows that clients hand over, as a share of all: from 1/512 to 1, here 1/64"),
    ] = 0.015625

    neutral: ClassVar = {"epochs": 0}
    breaks_privacy: ClassVar[bool] = True

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        if self.changes_nothing:
            return server
        parts = list(self.real_features(server, clients, compute, context))
        features, labels = (torch.cat([part[name] for part in parts]) for name in ("features", "labels"))
        return self.retrained(server, features, labels, compute, context.layout)

    def real_features(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Iterator[Tensors]:
        """Yield "features" [m, D] and "labels" [m] of the sample, drawn without replacement, some rows at a time."""
        model = {name: server[name] for name in ("weights", "buffers")}
        wanted = max(round(self.fraction * context.num_examples), 1)
        # Keys below this are enough but for one draw in 10^9, and few more than there are rows to be sent.
        below = min((wanted + 6 * sqrt(wanted) + 20) / context.num_examples, 1.0)
        found = clients.map(partial(small_keys, below=below), {}, reduce="stack")["keys"]
        keys = found.sort().values[:wanted].tolist()
        rows = max(CHUNK_BYTES // (prod(context.layout.image) * server["weights"].element_size()), 1)
        edges = [-1.0, *keys[rows - 1 : -1 : rows], keys[-1]]
        for above, at_most in pairwise(edges):
            part = clients.map(partial(chosen_rows, above=above, at_most=at_most), {}, reduce="stack")
            made = compute(features_of, {**model, "images": part["images"]})
            yield {"features": made["features"], "labels": part["labels"]}
