"""The section ``privacy``: clipped updates, noise over many draws, epsilon, and the methods that it covers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import chi2, norm

from algorithms import ALGORITHMS
from engine.algorithm import Context, ParamLayout, Tensors
from engine.algorithm.privacy import Privacy, own_exchanges
from engine.base.errors import ConfigError
from engine.experiment import Experiment
from tests.support.tiny import experiment

DRAWS, SIZE = 1000, 60
BINOMIAL = {"fraction": 0.5, "scheme": "binomial"}
# (q, z, rounds, delta)
SETTINGS = (
    (0.01, 1.1, 1000, 1e-5),
    (0.1, 1.1, 100, 1e-5),
    (0.5, 0.7, 50, 1e-5),
    (1.0, 1.0, 1, 1e-5),
    (1.0, 4.0, 100, 1e-6),
    (0.001, 0.6, 10_000, 1e-7),
    (0.05, 2.0, 500, 1e-3),
    (0.25, 10.0, 20, 1e-5),
    (0.2, 0.3, 10, 1e-4),
    (1e-4, 1.0, 1, 1e-9),
)


def context(round: int = 1, cohort: float = 5.0) -> Context:
    return Context(round, 0.1, 10, 100, 3, cohort, cohort / 10, ParamLayout(SIZE - 4, 4, 0, 2, 1))


def noise(privacy: Privacy, round: int, seed: int = 0) -> torch.Tensor:
    """[SIZE] the noise on the sum, of a cohort in which nobody is."""
    server = {"weights": torch.zeros(SIZE)}
    return privacy.pooled({}, server, context(round), seed).mean["weights"] * 5


# --- clip ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0.0, 0.5, 0.999, 1.001, 3.0, 1e4])
def test_updates_are_no_longer_than_the_clip(dtype: torch.dtype, length: float) -> None:
    """Kills: a clip of weights in place of their change, of each number, by the square of the norm; a short update that
    is changed; a client that weighs more than another; a direction that changes."""
    rng = torch.Generator().manual_seed(1)
    received, direction = (torch.randn(SIZE, generator=rng, dtype=dtype) for _ in range(2))
    end = received + length * 2.5 * direction / direction.norm()
    sent, weight = Privacy(clip=2.5).sent({"weights": end}, 17.0, {"weights": received})
    update, rounding = end - received, 1e-6 if dtype is torch.float32 else 1e-14
    assert weight == 1 and sent.keys() == {"weights"} and sent["weights"].dtype == dtype
    if length < 1:
        assert torch.equal(sent["weights"], update)
    else:
        assert float(sent["weights"].norm()) == pytest.approx(2.5, rel=rounding)
        assert torch.allclose(sent["weights"] / 2.5, update / update.norm(), atol=rounding)


def test_without_a_clip_uploads_are_as_they_were() -> None:
    """Kills: a run without privacy whose uploads, weights or digest are others than before."""
    upload: Tensors = {"weights": torch.ones(3), "control": torch.ones(3)}
    sent, weight = Privacy().sent(upload, 17.0, {})
    assert sent is upload and weight == 17
    assert "privacy" not in experiment().identity()
    assert experiment(privacy={"clip": None, "delta": 1e-3}).digest == experiment().digest
    digests = {experiment(participation=BINOMIAL, privacy=one).digest for one in DISTINCT}
    assert len(digests) == len(DISTINCT)


DISTINCT: tuple[dict[str, Any], ...] = (
    {},
    {"clip": 1},
    {"clip": 2},
    {"clip": 2, "noise": 1},
    {"clip": 2, "noise": 2},
    {"clip": 2, "noise": 2, "delta": 1e-6},
)


# --- noise --------------------------------------------------------------------------------------------


def test_noise_over_a_thousand_draws() -> None:
    """Kills: noise of another spread (z alone, S alone, their squares), off 0, the same in each round or for each seed,
    or of which one number tells another."""
    privacy = Privacy(clip=0.5, noise=1.2)
    drawn = torch.stack([noise(privacy, round) for round in range(1, DRAWS + 1)])  # [DRAWS, SIZE]
    wanted, every = 0.6, drawn.numel()
    low, high = (float(chi2.ppf(p, every)) for p in (1e-4, 1 - 1e-4))
    assert low < float((drawn / wanted).square().sum()) < high  # within 1.6 % of the spread
    assert abs(float(drawn.mean())) < 4 * wanted / math.sqrt(every)
    low, high = (float(chi2.ppf(p, DRAWS)) for p in (1e-7, 1 - 1e-7))
    of_each = (drawn / wanted).square().sum(0)
    assert low < float(of_each.min()) and float(of_each.max()) < high
    numbers, rounds = (float(torch.corrcoef(one).fill_diagonal_(0).abs().max()) for one in (drawn.T, drawn))
    assert numbers < 6 / math.sqrt(DRAWS) and rounds < 7 / math.sqrt(SIZE)
    assert float((drawn.abs() < wanted).double().mean()) == pytest.approx(0.6827, abs=0.01)  # it is Gaussian
    assert torch.equal(noise(privacy, 3), drawn[2]) and not torch.equal(noise(privacy, 3, seed=1), drawn[2])


def test_the_server_learns_the_noisy_sum_by_the_expected_cohort() -> None:
    """Kills: a mean by the clients that came, which is no sum of bounded sensitivity; weights that start from 0; the
    number of clients or their names beside it."""
    weights, total = torch.linspace(-1, 1, SIZE), torch.arange(SIZE, dtype=torch.float64)
    pooled = Privacy(clip=1).pooled({"weights": total}, {"weights": weights}, context(cohort=4.0), 0)
    assert torch.equal(pooled.mean["weights"], weights.double() + total / 4)
    assert (pooled.weight, pooled.count, pooled.ids, pooled.stacked) == (4.0, 4, (), None)


# --- epsilon ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("q", "z", "rounds", "delta"), SETTINGS)
def test_epsilon_is_that_of_the_accountant(q: float, z: float, rounds: int, delta: float) -> None:
    """Kills: another event, another number of rounds, delta or noise in its place."""
    rdp = pytest.importorskip("dp_accounting.rdp")
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

    event = SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(z)), rounds)
    wanted = rdp.RdpAccountant().compose(event).get_epsilon(delta)
    found = Privacy(clip=3.0, noise=z, delta=delta).epsilon(q, rounds)
    assert found == pytest.approx(float(wanted), rel=1e-12)


@pytest.mark.parametrize(
    ("z", "rounds", "delta"), [(1.0, 1, 1e-5), (4.0, 100, 1e-6), (20.0, 100, 1e-5), (2.0, 9, 1e-4)]
)
def test_epsilon_where_all_take_part_is_an_upper_bound_of_the_exact_one(z: float, rounds: int, delta: float) -> None:
    """``rounds`` Gaussian mechanisms are one of noise z / sqrt(rounds), whose epsilon is known (Balle and Wang 2018,
    arXiv:1805.06530, Theorem 8).

    Kills: noise that counts for more than it is, by its square or by the clip; half a sensitivity.
    """
    pytest.importorskip("dp_accounting")
    mu = math.sqrt(rounds) / z

    def excess(epsilon: float) -> float:
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    exact, found = brentq(excess, 0, 100), Privacy(clip=3.0, noise=z, delta=delta).epsilon(1.0, rounds)
    assert found is not None and exact <= found < 1.15 * exact


def test_epsilon_of_abadi_and_others() -> None:
    """q = 0.01, z = 4, 10,000 steps, delta = 1e-5: 1.26 (Abadi et al. 2016, arXiv:1607.00133, section 3.2); conversions
    from Renyi's have become tighter since."""
    pytest.importorskip("dp_accounting")
    found = Privacy(clip=1.0, noise=4.0, delta=1e-5).epsilon(0.01, 10_000)
    assert found is not None and 1.0 < found <= 1.26


def test_without_noise_there_is_no_epsilon() -> None:
    assert Privacy(clip=1).epsilon(0.1, 10) is None


# --- what is refused ----------------------------------------------------------------------------------

COVERED = "fedavg fedprox fedavgm fedadam fedyogi fedsam fedntd feddecorr fedetf fedlc fedrs mixup_local fedser"
COVERED += " clsprox clsnorm fedavg_local perfedavg"


def test_the_methods_that_are_covered() -> None:
    """Kills: a method by which more leaves clients, control variates, prototypes, counts of classes or answers, or that
    keeps single uploads, and is accounted for as FedAvg."""
    assert {name for name, kind in ALGORITHMS.items() if not own_exchanges(kind())} == set(COVERED.split())


REFUSED = {
    "algorithm.name=scaffold: has broadcast, upload, weight of its own": {"algorithm": {"name": "scaffold"}},
    "stages.end.algorithm=ccvr: has upload, finish of its own": {
        "stages": [
            {"name": "train", "rounds": 2},
            {"name": "end", "rounds": 0, "needs": ["train"], "algorithm": {"name": "ccvr"}},
        ]
    },
    "model.name=resnet8: has running": {"model": {"name": "resnet8"}},
    "participation.scheme=fixed: is no Poisson": {"participation": {"fraction": 0.5}},
    "privacy.noise=1.0: hides no": {"privacy": {"clip": None, "noise": 1.0}},
    "privacy.noise=1e-05: must be 0": {"privacy": {"clip": 1.0, "noise": 1e-5}},
}


@pytest.mark.parametrize("begins", REFUSED)
def test_it_is_refused_by_name(begins: str) -> None:
    """Kills: a guarantee that does not hold."""
    values: dict[str, Any] = {"privacy": {"clip": 1.0, "noise": 1.0}, "participation": BINOMIAL, **REFUSED[begins]}
    with pytest.raises(ConfigError) as refused:
        experiment(**values)
    assert str(refused.value).startswith(begins)


def test_noise_without_its_accountant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: a run that fails at its end; one that is refused though it needs no accountant, or is only read."""
    monkeypatch.setattr("engine.algorithm.privacy.find_spec", lambda name: None)
    place = {"execution": {"device": "cpu"}, "participation": BINOMIAL}
    Experiment.from_mapping({**place, "privacy": {"clip": 1}}).resolve()
    with pytest.raises(ConfigError, match=r"privacy.noise=1.0: .* pip install 'fedskew\[privacy\]'"):
        Experiment.from_mapping({**place, "privacy": {"clip": 1, "noise": 1}}).resolve()
