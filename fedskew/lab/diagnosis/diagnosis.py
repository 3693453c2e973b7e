"""Client drift in one round: how alike the local models are, layer by layer, and what label skew does to their heads.

    found = diagnose(Path("runs/quickstart-11e11915b836"), number=20)
    found.layers      one row per layer: mean CKA over all pairs of clients, and what chance alone would give
    found.pairs       one row per layer and pair
    found.norms       one row per client and class: norm of the classifier's row, and the client's samples of the class
    found.figures     what a trial of a sweep is described with

The models are those of the round's cohort right after local training and before aggregation, computed again by
``fedskew/lab/replay.py``. The inputs are the same for all: a balanced part of the test set. Protocol and claims: Luo et
al. 2021, "No Fear of Heterogeneity" (arXiv:2106.05001), sec. 3.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from engine.algorithm import Algorithm, Kind, Personalised, seeds
from engine.algorithm.labels import own_logits, spread
from engine.base.errors import nearest, require
from engine.client.nets import open_model
from engine.data import Dataset
from engine.data.samples.batches import Rows
from engine.experiment import Experiment
from engine.models import MODELS
from fedskew.lab.diagnosis.cka import LEAST_ROWS, Estimator, Matrices, Profile, chance, pairwise, profile
from fedskew.lab.replay import LocalModels, find, local_models

log = logging.getLogger("fedskew")

MEMORY = 1024 * 2**20  # bytes of activations and profiles that are compared at a time
CHUNK = 250  # rows of one forward pass
Layers = Literal["taps", "weights"]


@dataclass(frozen=True)
class DiagnosisOptions:
    """Options of a diagnosis, which say what is measured; no field changes what is computed again."""

    probe: int = 1000  # test images, balanced over classes
    estimator: Estimator = "unbiased"  # the one that is drawn and summarised; both are in the tables
    layers: Layers = "taps"  # the model's taps; or the output of each convolution and linear layer
    clients: tuple[int, ...] | None = None  # of the cohort; None: all

    def __post_init__(self) -> None:
        for name, known in (("estimator", ("biased", "unbiased")), ("layers", ("taps", "weights"))):
            value = getattr(self, name)
            require(value in known, f"--{name}", value, "is none", nearest(value, known))
        require(self.probe >= LEAST_ROWS, "--probe", self.probe, f"must be at least {LEAST_ROWS}", "for example 1000")

    @classmethod
    def of_sweep(cls, asked: Literal[True] | Layers) -> DiagnosisOptions:
        """Return what a sweep that asks for ``diagnose=asked`` is measured with."""
        return cls(layers=cls.layers if asked is True else asked)


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """The measurements of one round of one run."""

    name: str  # of the experiment
    options: DiagnosisOptions
    facts: dict[str, Any]  # stage, round, weights_sha256, rounds_again, from_round, probe, clients
    classes: tuple[str, ...]
    matrices: Mapping[str, Matrices] = field(repr=False)  # by layer, first to last; rows and columns are ``clients``
    norms: pd.DataFrame = field(repr=False)  # client, class, samples, norm (see class_norms)
    heads: pd.DataFrame = field(repr=False)  # client, samples, correlation of class samples and norms

    @property
    def clients(self) -> list[int]:
        return self.heads["client"].tolist()

    @property
    def layers(self) -> pd.DataFrame:
        """layer, width, cka (of the chosen estimator), low, high (over pairs), biased, chance, unbiased, undefined.

        ``chance``: what the biased estimator gives for unrelated activations of this width. ``undefined``: pairs of
        which one network is constant on the probe; means leave them out.
        """
        rows = []
        for layer, found in self.matrices.items():
            pairs = found.pairs(self.options.estimator)
            known = pairs[np.isfinite(pairs)]
            low, high = (known.min(), known.max()) if len(known) else (math.nan, math.nan)
            means = _mean(pairs), low, high, _mean(found.pairs("biased"))
            by_chance = chance(found.rows, found.width, found.width)
            undefined = len(pairs) - len(known)
            rows.append((layer, found.width, *means, by_chance, _mean(found.pairs("unbiased")), undefined))
        names = "layer", "width", "cka", "low", "high", "biased", "chance", "unbiased", "undefined"
        return pd.DataFrame(rows, columns=names)

    @property
    def pairs(self) -> pd.DataFrame:
        """layer, client_a, client_b, biased, unbiased; each pair once."""
        a, b = np.triu_indices(len(self.clients), 1)
        ids = np.array(self.clients)
        parts = []
        for layer, found in self.matrices.items():
            values = {name: found.pairs(name) for name in ("biased", "unbiased")}
            parts.append(pd.DataFrame({"layer": layer, "client_a": ids[a], "client_b": ids[b], **values}))
        return pd.concat(parts, ignore_index=True)

    @property
    def figures(self) -> dict[str, float]:
        """A round in five numbers, as a trial of a sweep has them.

        cka_logits: mean over pairs at the logits. cka_lowest_other: the lowest such mean of the layers before.
        cka_logits_margin: by how much the logits are below that. cka_mean: over all layers. norm_correlation: mean
        over clients of the correlation between class samples and norms.
        """
        means = dict(zip(self.layers["layer"], self.layers["cka"], strict=True))
        others = [mean for layer, mean in means.items() if layer != "logits" and math.isfinite(mean)]
        lowest = min(others, default=math.nan)
        return {
            "cka_logits": float(means["logits"]),
            "cka_lowest_other": float(lowest),
            "cka_logits_margin": float(lowest - means["logits"]),
            "cka_mean": _mean(np.array(list(means.values()))),
            "norm_correlation": _mean(self.heads["correlation"].to_numpy()),
        }

    def summary(self) -> dict[str, Any]:
        """Plain data for ``summary.json``."""
        return {**self.facts, "options": asdict(self.options), **self.figures}


def diagnose(
    folder: Path,
    number: int | None = None,
    options: DiagnosisOptions | None = None,
    stage: str | None = None,
    overrides: Sequence[str] = (),
    address: str | None = None,
) -> Diagnosis:
    """Compute a round of the run in ``folder`` again and compare its local models; none: its last round.

    Raises :class:`ConfigError` for a round that the run has not done, for clients that took no part in it, and where
    there are not two clients to compare; :class:`RunError` if the weights are not those that the run recorded.
    """
    options = options or DiagnosisOptions()
    round = find(folder, number, stage, overrides)
    models = [MODELS.name_of(model) for model in round.experiment.client_models]
    rule = "gives clients networks of their own, whose layers cannot be compared"
    require(not models, "client_models", models, rule, "diagnose a run without it")
    chosen = sorted(set(round.clients if options.clients is None else options.clients))
    absent = ", ".join(str(client) for client in chosen if client not in round.clients)
    took_part = ", ".join(map(str, round.clients))
    rule = f"took no part in round {round.number}"
    require(not absent, "--clients", absent, rule, f"its clients are {took_part}")
    field, value, repair = "--round", str(round.number), "name another round"
    if options.clients is not None:
        field, value, repair = "--clients", ",".join(map(str, chosen)), "name two or more"
    rule = f"has {'one' if chosen else 'no'} client, and two are the least to compare"
    require(len(chosen) >= 2, field, value, rule, repair)
    with local_models(round, chosen, address) as models:
        return measure(models, options)


def measure(models: LocalModels, options: DiagnosisOptions) -> Diagnosis:
    """Compare local models that are at hand."""
    experiment, data, clients = models.experiment, models.dataset, models.clients
    network = _Network(experiment, data, options)
    matrices: dict[str, Matrices] = {}
    for group in network.groups(len(clients)):
        profiles = [network.profiles(models[client], group) for client in clients]
        matrices |= {layer: pairwise([one[layer] for one in profiles]) for layer in group}
    counts = models.assignment.class_counts(data.train.labels, len(data.classes))[list(clients)]
    round = models.round
    algorithm = next(stage.algorithm for stage in experiment.chain if stage.name == round.stage)
    rows = [network.row_norms(models[client]) for client in clients]
    norms = np.stack([class_norms(*pair, algorithm) for pair in zip(rows, counts, strict=True)])
    facts = {
        "stage": round.stage,
        "round": round.number,
        "weights_sha256": models.weights_sha256,
        "from_round": models.began,
        "rounds_again": list(models.compared),
        "clients": len(clients),
        "probe_images": network.probe,
    }
    class_rows = {
        "client": np.repeat(clients, len(data.classes)),
        "class": np.tile(np.arange(len(data.classes)), len(clients)),
        "samples": counts.ravel(),
        "norm": norms.ravel(),
    }
    known = [np.isfinite(norm) for norm in norms]
    told = [correlation(count[of], norm[of]) for count, norm, of in zip(counts, norms, known, strict=True)]
    heads = pd.DataFrame({"client": clients, "samples": counts.sum(axis=1), "correlation": told})
    return Diagnosis(experiment.name, options, facts, data.classes, matrices, pd.DataFrame(class_rows), heads)


def balanced_rows(labels: np.ndarray, probe: int) -> np.ndarray:
    """Sorted rows int64: as many of each class as ``probe`` allows, or all there are of it.

    The same for every run on the data set, whatever its seed, so that runs are compared on the same inputs.
    """
    present = np.unique(labels)
    each = probe // len(present)
    repair = f"set --probe={max(LEAST_ROWS, len(present))}"
    require(each >= 1, "--probe", probe, f"must be at least {len(present)}, one image for each class", repair)
    rng = seeds.numpy_generator(0, "probe")
    chosen = [rng.permutation(np.flatnonzero(labels == label))[:each] for label in present]
    return np.sort(np.concatenate(chosen))


def class_norms(rows: np.ndarray, counts: np.ndarray, algorithm: Algorithm) -> np.ndarray:
    """[C] norms of a client's classifier, by row -> by class, NaN for a class that the classifier knows nothing of."""
    norms, held = torch.from_numpy(rows), torch.from_numpy(counts)
    if isinstance(algorithm, Personalised) and algorithm.local_labels:
        norms = spread(norms, held)
    elif Kind.PERSONAL_HEAD in algorithm.kinds.values():
        norms = own_logits(norms, held)
    return torch.where(norms.isfinite(), norms, math.nan).numpy()


def correlation(a: Any, b: Any) -> float:
    """Pearson's; NaN where one side is constant."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0 else math.nan


def _mean(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else math.nan


class _Network:
    """The run's network and the probe; local models are loaded into it one after the other."""

    def __init__(self, experiment: Experiment, data: Dataset, options: DiagnosisOptions) -> None:
        # The driver's process may have a GPU even where only actors trained; it has at least a CPU.
        cuda = experiment.execution.device == "cuda" and torch.cuda.is_available()
        device = torch.device("cuda" if cuda else "cpu")
        self._net = open_model(experiment, data, device)
        self._net.train(False)
        test = Rows(data, data.test, device, self._net.weights.dtype)
        chosen = torch.from_numpy(balanced_rows(data.test.labels, options.probe)).to(device)
        self._chunks = chosen.split(CHUNK)
        self._batch = lambda rows: test.batch(rows)[0]
        self.probe = len(chosen)
        self._widths, self._names = self._look(options.layers)

    def _look(self, layers: Layers) -> tuple[dict[str, int], dict[str, str]]:
        """The width of each layer, first to last, and the module whose output it is."""
        modules = dict(self._net.model.named_modules())
        taps = self._net.tap_names
        if layers == "weights":
            taps = tuple(n for n, m in modules.items() if isinstance(m, nn.Conv2d | nn.Linear) and n != "head")
        with torch.inference_mode():
            logits, outputs = self._net.taps(self._batch(self._chunks[0][:2]), (*taps, "body"))
        features = outputs.pop("body")
        names = {
            name.removeprefix("body."): name
            for name in taps
            if outputs[name].shape != features.shape or not torch.equal(outputs[name], features)
        }
        widths = {layer: outputs[name][0].numel() for layer, name in names.items()}
        widths |= {"features": features[0].numel(), "logits": logits[0].numel()}
        return widths, names | {"features": "body"}

    def groups(self, networks: int) -> Iterator[list[str]]:
        """Layers of which one network's activations, and the profiles of all, fit into memory; at least one."""
        group, size = list[str](), 0
        for layer, width in self._widths.items():
            numbers = width * self._net.weights.element_size() + 8 * networks * min(width, self.probe)
            if group and size + self.probe * numbers > MEMORY:
                yield group
                group, size = [], 0
            group.append(layer)
            size += self.probe * numbers
        yield group

    @torch.inference_mode()
    def profiles(self, model: Mapping[str, Tensor], layers: Sequence[str]) -> dict[str, Profile]:
        """Return the profiles of one local model by layer."""
        self._net.load(model["weights"], model["buffers"])
        parts: dict[str, list[Tensor]] = {layer: [] for layer in layers}
        names = tuple(self._names[layer] for layer in layers if layer != "logits")
        for rows in self._chunks:
            logits, outputs = self._net.taps(self._batch(rows), names)
            for layer in layers:
                x = logits if layer == "logits" else outputs[self._names[layer]]
                # flattened here, and copied: a view would keep a whole chunk's outputs alive
                parts[layer].append(x.flatten(1).clone())
        return {layer: profile(torch.cat(chunks)) for layer, chunks in parts.items()}

    def row_norms(self, model: Mapping[str, Tensor]) -> np.ndarray:
        """[C] Euclidean norm of each row of the classifier, without its bias."""
        self._net.load(model["weights"], model["buffers"])
        return self._net.model.head.weight.detach().double().norm(dim=1).cpu().numpy()
