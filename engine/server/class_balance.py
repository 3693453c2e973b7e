"""The balance of classes among clients' rows, and in what one of their local steps is expected to see.

Of a client with class shares p the entropy H(p) = -sum_c p_c log p_c, by its maximum log C: 1 is balanced, 0 is a
single class. A run has the mean over the clients that can train, twice: of their rows, and of a local step, into which
an algorithm may mix rows of its own making (:meth:`~engine.algorithm.Generative.step_classes`).

A partition's skew is how far clients' class shares are from those of all their rows, see :func:`skew`.

Shapes: K clients, C classes.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from engine.algorithm import Algorithm, Generative
from engine.algorithm.generative import own_classes
from engine.experiment import Experiment, Local, Stage


def label_entropies(experiment: Experiment, counts: np.ndarray) -> dict[str, float]:
    """The figures of a run whose clients have ``counts`` int64 [K, C] samples of each class."""
    counts = counts[counts.sum(axis=1) > 0]
    stage = last_trained(experiment)
    return {
        "label_entropy": balance(counts),
        "step_label_entropy": balance(step_classes(stage.algorithm, stage.local, counts)),
    }


def balance(counts: np.ndarray) -> float:
    """The mean over rows of ``counts`` [K, C], none of which is all 0, of H(p) / log C; 1 if there is one class."""
    if counts.shape[1] == 1:
        return 1.0
    shares = counts / counts.sum(axis=1, keepdims=True)
    terms = np.log(shares, out=np.zeros_like(shares), where=shares > 0) * shares
    return float(-terms.sum(axis=1).mean() / math.log(counts.shape[1]))


def skew(counts: np.ndarray) -> dict[str, float]:
    """Return the distances between class shares p of a client and q of all rows, and the classes that a client has.

    Means over the rows of ``counts`` int64 [K, C] that are not all 0, each with the same weight:
    Hellinger sqrt(sum_c (sqrt p_c - sqrt q_c)^2 / 2); Jensen-Shannon, the root of the divergence in bits; total
    variation sum_c |p_c - q_c| / 2, half of what Zhao et al. (2018) call earth mover's distance; and exp(H(p)).
    """
    counts = counts[counts.sum(axis=1) > 0]
    p = counts / counts.sum(axis=1, keepdims=True)
    q = counts.sum(axis=0) / counts.sum()
    middle = (p + q) / 2
    divergence = (_entropic(p, middle) + _entropic(np.broadcast_to(q, p.shape), middle)) / (2 * math.log(2))
    of_clients = {
        "label_hellinger": np.sqrt(((np.sqrt(p) - np.sqrt(q)) ** 2).sum(axis=1) / 2),
        "label_jensen_shannon": np.sqrt(np.maximum(divergence, 0)),
        "label_total_variation": np.abs(p - q).sum(axis=1) / 2,
        "effective_classes": np.exp(-_entropic(p, np.ones_like(p))),
    }
    return {name: float(values.mean()) for name, values in of_clients.items()}


def _entropic(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return sum_c p_c log(p_c / q_c) of each row [K, C], where 0 log 0 is 0."""
    ratio = np.divide(p, q, out=np.ones_like(p), where=p > 0)
    return (p * np.log(ratio)).sum(axis=1)


def step_classes(algorithm: Algorithm, local: Local, counts: np.ndarray) -> np.ndarray:
    """Rows of each class, float64 [K, C], that one local step of each client is expected to see.

    counts: int64 [K, C], of clients that hold data. A batch is ``local.batch_size`` rows, or all that a client has if
    that is "full" or these are fewer; a shorter one at the end of a pass is left out of account.
    """
    sizes = counts.sum(axis=1)
    rows = sizes if local.batch_size == "full" else np.minimum(sizes, local.batch_size)
    of_step = algorithm.step_classes if isinstance(algorithm, Generative) else own_classes
    expected = np.empty(counts.shape)
    for number in np.unique(rows):
        alike = rows == number
        expected[alike] = of_step(torch.from_numpy(counts[alike]), int(number)).numpy()
    return expected


def last_trained(experiment: Experiment) -> Stage:
    """The last stage of the lineage that has rounds, as it was in the last of them."""
    spans = zip(experiment.chain, experiment.spans, strict=True)
    trained = [(stage, span) for stage, span in spans if stage.name in experiment.lineage and stage.rounds]
    stage, span = trained[-1]
    return stage.at(span.stop - 1)


def changes_classes(experiment: Experiment) -> bool:
    """Return whether local steps see other shares of classes than clients hold."""
    kind = type(last_trained(experiment).algorithm)
    return issubclass(kind, Generative) and kind.step_classes is not Generative.step_classes
