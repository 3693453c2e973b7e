"""CCVR: the head is trained anew on virtual features, drawn from class moments (Luo et al. 2021, arXiv:2106.05001).

A stage after any training. Every client sends count, mean and covariance of its features class by class; merged they
are exactly those of all data together (eqs. 3 and 4, where the printed weight N_c / N_ck must be N_ck / N_c). Features
are then drawn from N(mu_c, Sigma_c), and the head is trained on them, from the aggregated head on (Alg. 1).

Clients send (n, mean, M2) in place of Sigma, and a few classes at a time, so that memory is bounded whatever the
number of classes; a client that holds one row of a class sends that row's feature (``min_upload_count`` prevents it).
All clients that hold data send: there is no choice of some of them (the specification's ``stat_clients``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from algorithms.calibration import HeadCalibration
from engine.algorithm import Clients, ClientView, Compute, Context, Net, ParamLayout, Setting, Tensors, TrainingTools
from engine.algorithm.moments import Moments, from_message, merge, moments_of, to_message, unpack, words
from engine.base.declared import Doc, Ge, Gt, Le, Neutral
from engine.base.errors import RunError, require

log = logging.getLogger("fedskew")
CHUNK_BYTES = 8 * 2**20  # of a client's message: classes are asked for in groups of about this size
LEAST_EIGENVALUE = -1e-6  # of the largest one: below it a matrix is no covariance


def tukey(z: Tensor, power: float) -> Tensor:
    """Return z^power of Tukey's ladder, with the sign of z, so that negative features stay apart; 1 is z itself."""
    return z if power == 1 else z.sign() * z.abs() ** power


def class_moments(
    view: ClientView, shared: Tensors, classes: range, least: int, diagonal: bool, power: float
) -> Tensors:
    """Return the client's message: moments of its features of each of ``classes`` that it holds ``least`` rows of."""
    counts = view.client.class_counts.tolist()
    held = [number for number in classes if counts[number] >= least]
    if not held:
        return {}
    features, labels = [], []
    with torch.no_grad():
        for batch in view.rows():
            inside = (batch.y >= classes.start) & (batch.y < classes.stop)
            if inside.any():
                features.append(tukey(view.net.features(batch.x[inside]), power))
                labels.append(batch.y[inside])
    z, y = torch.cat(features), torch.cat(labels)
    return to_message({number: moments_of(z[y == number], diagonal) for number in held})


def square_root(covariance: Tensor) -> Tensor:
    """Return the root S = V sqrt(Lambda) V^T [d, d] of a covariance [d, d] of any rank.

    Symmetric, so that it does not depend on the signs of eigenvectors; eigenvalues that are zero but for rounding are.
    """
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    low, high = float(values[0]), float(values[-1])
    if not low >= LEAST_EIGENVALUE * high:  # not a number either
        raise RunError(f"ccvr: a class's covariance has eigenvalues from {low:g} to {high:g}; it is none")
    rounding = len(values) * torch.finfo(values.dtype).eps * high
    values = torch.where(values > rounding, values, 0.0)
    return (vectors * values.sqrt()) @ vectors.T


def draw_features(
    tools: TrainingTools, shared: Tensors, sizes: Mapping[int, int], features: int, shrink: float, clip: bool
) -> Tensors:
    """Draw, for each class c, ``sizes[c]`` rows [M_c, d] of N("c/mean" [d], "c/covariance" or "covariance", packed).

    Each class has a generator of its own, so its rows do not depend on which others are drawn with it.
    """
    roots: Tensors = {}
    drawn: Tensors = {}
    for number, size in sizes.items():
        name = f"{number}/covariance" if f"{number}/covariance" in shared else "covariance"
        if name not in roots:
            covariance = unpack(shared[name], features)
            if shrink:
                level = covariance.trace() / features
                covariance = (1 - shrink) * covariance + shrink * level * torch.eye(features).to(covariance)
            roots = {name: square_root(covariance)}
        noise = torch.randn(size, features, generator=tools.rng(f"virtual features {number}"), dtype=torch.float64)
        z = shared[f"{number}/mean"] + noise.to(roots[name]) @ roots[name]
        drawn[str(number)] = (z.clamp(min=0) if clip else z).to(shared["weights"].dtype)
    return drawn


@dataclass(frozen=True)
class Ccvr(HeadCalibration):
    samples_per_class: Annotated[
        int,
        Ge(1),
        Doc("M, virtual features of a class; the paper: 100 for CIFAR-10, 500 for CIFAR-100, 1000 for CINIC-10"),
    ] = 100
    allocation: Annotated[
        Literal["equal", "proportional"],
        Doc("as many of each class; or by its share of the data, M_c = C M N_c / N, at least 1"),
    ] = "equal"
    cov: Annotated[
        Literal["full", "diag", "shared"], Doc("covariance of a class, its diagonal alone, or pooled within classes")
    ] = "full"
    shrink: Annotated[
        float,
        Ge(0),
        Le(1),
        Doc("rho, share of a multiple of the identity with the same trace, (tr Sigma / d) I"),
        Neutral(0, "is none"),
    ] = 0.0
    clip_nonneg: Annotated[
        bool, Doc("virtual features below 0 become 0, for bodies that end in a ReLU"), Neutral(False, "leaves them")
    ] = False
    tukey_lambda: Annotated[
        float,
        Gt(0),
        Doc("power of the features, of virtual, real and test rows alike"),
        Neutral(1, "leaves features as they are"),
    ] = 1.0
    min_upload_count: Annotated[
        int, Ge(1), Doc("rows of a class below which a client keeps it to itself"), Neutral(1, "keeps no class back")
    ] = 1
    min_cov_count: Annotated[
        int,
        Ge(2),
        Doc("rows of a class in all below which its covariance is the pooled one: one row has none"),
        Neutral(2, "pools none"),
    ] = 2

    neutral: ClassVar = {"epochs": 0}
    symbols: ClassVar[Mapping[str, str]] = {"M": "samples_per_class", "rho": "shrink"}

    def check(self, setting: Setting) -> None:
        super().check(setting)
        projected = getattr(setting.model, "projection", False)
        repair = "set model.projection=false or clip_nonneg=false"
        rule = "cuts off half of a projection's features, which have both signs"
        require(not (self.clip_nonneg and projected), "clip_nonneg", True, rule, repair)

    def finish(self, server: Tensors, clients: Clients, compute: Compute, context: Context) -> Tensors:
        if self.changes_nothing:
            return server
        features, labels = self.virtual_features(server, clients, compute, context)
        return self.retrained(server, features, labels, compute, context.layout)

    def predict(self, net: Net, x: Tensor) -> Tensor:
        if self.tukey_lambda == 1 or self.changes_nothing:
            return net(x)
        return net.head(tukey(net.features(x), self.tukey_lambda))

    def virtual_features(
        self, server: Tensors, clients: Clients, compute: Compute, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Return features [N, D] and labels [N], class after class; none of a class that no client sent."""
        model = {name: server[name] for name in ("weights", "buffers")}
        layout = context.layout
        # In one piece from the start: rows that stay, between covariances that go, would break up the heap.
        most = layout.classes * (self.samples_per_class + 1)
        features = torch.empty(most, layout.features, dtype=server["weights"].dtype)
        labels: list[int] = []

        def draw(by_class: Mapping[int, Moments], covariances: Tensors) -> None:
            sizes = {number: self.size_of(moments, context) for number, moments in by_class.items()}
            means = {f"{number}/mean": moments.mean for number, moments in by_class.items()}
            job = partial(
                draw_features, sizes=sizes, features=layout.features, shrink=self.shrink, clip=self.clip_nonneg
            )
            for name, z in compute(job, {**model, **means, **covariances}).items():
                features[len(labels) : len(labels) + len(z)] = z
                labels.extend([int(name)] * len(z))

        within, freedom = torch.zeros((), dtype=torch.float64), 0.0  # sums over classes of M2_c and N_c - 1
        waiting: dict[int, Moments] = {}  # for the covariance pooled within classes
        for found in self.moments(model, clients, layout):
            for moments in found.values():
                within = within + moments.scatter
                freedom += float(moments.count) - 1
            own = {} if self.cov == "shared" else {c: m for c, m in found.items() if m.count >= self.min_cov_count}
            waiting |= {c: replace(m, scatter=within[:0]) for c, m in found.items() if c not in own}
            if own:
                draw(own, {f"{number}/covariance": moments.covariance for number, moments in own.items()})
        if waiting:
            if self.cov != "shared":
                log.warning("ccvr: classes %s have fewer than %d rows: the covariance is that within all classes",
                            ", ".join(map(str, waiting)), self.min_cov_count)  # fmt: skip
            draw(waiting, {"covariance": within / max(freedom, 1.0)})  # no class has two rows: no spread is known
        require(bool(labels), "min_upload_count", self.min_upload_count, "leaves no class to be sent", "lower it")
        missing = sorted(set(range(layout.classes)) - set(labels))
        if missing:
            log.warning("ccvr: no client sent classes %s: they have no virtual features", ", ".join(map(str, missing)))
        return features[: len(labels)], torch.tensor(labels)

    def moments(self, model: Tensors, clients: Clients, layout: ParamLayout) -> Iterator[dict[int, Moments]]:
        """Yield the moments of all clients' features, some classes at a time."""
        diagonal = self.cov == "diag"
        size = max(CHUNK_BYTES // (8 * (1 + layout.features + words(layout.features, diagonal))), 1)
        for first in range(0, layout.classes, size):
            ask = partial(
                class_moments,
                classes=range(first, min(first + size, layout.classes)),
                least=self.min_upload_count,
                diagonal=diagonal,
                power=self.tukey_lambda,
            )
            yield from_message(clients.map(ask, model, reduce=merge))

    def size_of(self, moments: Moments, context: Context) -> int:
        """Return M_c, the number of virtual features of a class with these moments."""
        if self.allocation == "equal":
            return self.samples_per_class
        share = float(moments.count) / context.num_examples
        return max(round(context.layout.classes * self.samples_per_class * share), 1)
