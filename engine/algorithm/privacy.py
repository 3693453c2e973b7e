"""The section ``privacy`` of an experiment: central differential privacy of clients, for methods that average weights.

DP-FedAvg (McMahan et al. 2018, arXiv:1710.06963, Alg. 1 with the estimator of a fixed denominator): each of K clients
is drawn with probability q, and with weights w the server goes on from

    w + (sum over the cohort of Delta_k min(1, S / |Delta_k|) + N(0, (z S)^2 I)) / (q K)

as if that were the mean of the clients' weights. What a method then does with it is post-processing, which costs no
privacy. The noise is drawn once, by the server, from the run's seed and the round.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec
from typing import Annotated, Any

import pydantic
import torch

from engine.algorithm import seeds
from engine.algorithm.contract import Algorithm
from engine.algorithm.hooks import overrides
from engine.algorithm.types import Context, Pooled, Tensors
from engine.base.declared import Doc, Ge, Gt, Le, Lt, Neutral
from engine.base.errors import require
from engine.base.section import Section

LEAST, MOST = 0.001, 1000  # of noise: beyond them accountants lose their figures
EXCHANGES = ("broadcast", "broadcast_to", "upload", "weight", "prepare", "finish")  # hooks by which more could leave


class Privacy(Section):
    """How far clients' updates are shortened, and how much noise their sum gets."""

    clip: Annotated[
        float | None,
        Gt(0),
        Doc(
            "S, the largest Euclidean norm of a client's update; a longer one is shortened, and all weigh the same, "
            "see [Privacy](#privacy)"
        ),
        Neutral(None, "is none"),
    ] = None
    noise: Annotated[
        float,
        Ge(0),
        Le(MOST),
        Doc(
            "z, the noise multiplier: standard deviation, by S, of the Gaussian noise on each number of the sum; with "
            "`participation.scheme=binomial`"
        ),
        Neutral(0, "is none"),
    ] = 0.0
    delta: Annotated[float, Gt(0), Lt(1), Doc("delta at which the summary's epsilon is")] = 1e-5

    @pydantic.model_validator(mode="after")
    def _noise_needs_a_norm(self) -> Privacy:
        known = self.noise == 0 or self.noise >= LEAST
        require(known, "noise", self.noise, f"must be 0 or at least {LEAST}", "set privacy.noise=0 for none")
        bounded = self.noise == 0 or self.clip is not None
        rule = "hides no update unless its norm is bounded"
        require(bounded, "noise", self.noise, rule, "set privacy.clip, for example to 1")
        return self

    def identity(self) -> dict[str, Any]:
        """Return the fields that a result depends on: none without ``clip``, and ``delta`` with noise alone."""
        if self.clip is None:
            return {}
        return {"clip": self.clip} | ({"noise": self.noise, "delta": self.delta} if self.noise else {})

    def sent(self, upload: Tensors, weight: float, received: Tensors) -> tuple[Tensors, float]:
        """Return what leaves a client, with its weight: with ``clip`` its update, after minus before, shortened."""
        if self.clip is None:
            return upload, weight
        update = upload["weights"] - received["weights"]
        norm = torch.linalg.vector_norm(update, dtype=torch.float64)
        return {"weights": update * (self.clip / norm).clamp_max(1)}, 1.0

    def pooled(self, total: Tensors, server: Tensors, context: Context, seed: int) -> Pooled:
        """Return what the algorithm sees of updates that add up to ``total``, float64, or {} of an empty cohort.

        Of who was drawn it has nothing: the numbers of clients are expectations.
        """
        assert self.clip is not None
        weights, cohort = server["weights"].double(), context.expected_cohort
        noise = torch.zeros_like(weights)
        if self.noise:
            rng = seeds.generator(seed, "privacy", context.round)
            noise = self.noise * self.clip * torch.randn(len(weights), generator=rng, dtype=torch.float64)
        mean = weights + (total.get("weights", 0) + noise) / cohort
        return Pooled({"weights": mean}, weight=cohort, count=round(cohort))

    def epsilon(self, probability: float, rounds: int) -> float | None:
        """Return epsilon at ``delta`` after ``rounds``, in each of which a client is drawn with ``probability``.

        Data sets are neighbours that differ by one client with all of its rows. The accountant is dp-accounting's of
        Renyi differential privacy (Mironov et al. 2019, arXiv:1908.10530), an upper bound. None: there is no noise.
        """
        if not self.noise:
            return None
        import dp_accounting  # pyright: ignore[reportMissingImports]
        from dp_accounting import rdp  # pyright: ignore[reportMissingImports]

        log = logging.getLogger("absl")  # tells of orders that are left out, which makes the bound no less true
        level = log.level
        log.setLevel(logging.ERROR)
        accountant, event = rdp.RdpAccountant(), dp_accounting.GaussianDpEvent(self.noise)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(probability, event), rounds)
        log.setLevel(level)
        return float(accountant.get_epsilon(self.delta))

    def check_accountant(self) -> None:
        """Refuse noise where the library that accounts for it is not installed."""
        there = self.noise == 0 or find_spec("dp_accounting") is not None
        rule = "is accounted for by dp-accounting, which is not installed"
        require(there, "privacy.noise", self.noise, rule, "pip install 'fedskew[privacy]'")


def own_exchanges(algorithm: Algorithm) -> list[str]:
    """Name what of an algorithm is not FedAvg's in what clients and server exchange; none: its updates are all of it.

    Clients then receive the server's weights and send those that training ends with, and only their sum is used.
    """
    kept = ["stack_uploads"] if algorithm.stack_uploads else []
    return [hook for hook in EXCHANGES if overrides(algorithm, hook)] + kept
