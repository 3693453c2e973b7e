"""Features of test images in the plane, and what a head makes of them before and after calibration.

    found = embed(Path("runs/..."))            # the last stage, and the stage it needs
    drawing = draw(found)

A calibration changes the head alone, so both heads decide on the same features and one picture shows both: points
stay where they are, colours change. A stage that trained the body too is shown alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from engine.algorithm.personalised import has_global_model
from engine.base.errors import RunFolderError, nearest, require
from engine.base.files import refuse_links, write_atomically
from engine.client.nets import open_model
from engine.data.samples.batches import Rows
from engine.experiment import Experiment
from engine.record.checkpoints import Checkpoints, last_of_stages
from engine.record.run_folder import RunFolder
from fedskew.lab.diagnosis.diagnosis import CHUNK, balanced_rows
from fedskew.lab.drawing import CATEGORIES, MUTED, Drawing, new_figure, styled
from fedskew.lab.frames import write_frame

log = logging.getLogger("fedskew")
Method = Literal["pca", "tsne"]
MARKERS = "o^"  # with six colours: twelve classes that can be told apart
MOST_CLASSES = len(CATEGORIES) * len(MARKERS)
PERPLEXITY = 30.0  # of t-SNE, its usual value


@dataclass(frozen=True, eq=False)
class Embedding:
    """Test images in the plane."""

    classes: tuple[str, ...]
    stages: tuple[str, ...]  # whose heads decided: before and after, or the only one
    method: Method
    frame: pd.DataFrame = field(repr=False)  # row (of the test set), label, x, y, and a class for each stage


def embed(folder: Path, after: str | None = None, method: Method = "pca", probe: int = 1000) -> Embedding:
    """Embed features of ``probe`` test images, balanced over classes, by the body that both stages of a run share.

    ``after``: a stage, by default the last. The other one is that which it needs, if that has a global model.
    """
    require(method in ("pca", "tsne"), "--method", method, "is none", nearest(method, ("pca", "tsne")))
    refuse_links(folder)
    experiment = RunFolder(folder).experiment()
    chain = {stage.name: stage for stage in experiment.chain}
    after = after or experiment.chain[-1].name
    require(after in chain, "--after", after, "is no stage of this run", nearest(after, chain))
    rule = "has no global model, only those of single clients"
    require(has_global_model(chain[after].algorithm), "--after", after, rule, "name a stage that has one")
    before = [need for need in chain[after].needs if has_global_model(chain[need].algorithm)][:1]
    stages = (*before, after)
    data = experiment.data.load()
    net = open_model(experiment, data, torch.device("cpu"))
    net.train(False)
    ends = [_end(folder, experiment, stage) for stage in stages]
    bodies = [(net.layout.body_of(end["weights"]), end["buffers"]) for end in ends]
    if any(not torch.equal(a, b) for body in bodies[1:] for a, b in zip(bodies[0], body, strict=True)):
        log.warning("stage %s trained the body too: its features are shown without those of %s", *reversed(stages))
        stages, ends = stages[-1:], ends[-1:]
    rows = balanced_rows(data.test.labels, probe)
    labels = data.test.labels[rows]
    some = np.unique(labels)[:MOST_CLASSES]
    rows = rows[np.isin(labels, some)]
    net.load(ends[0]["weights"], ends[0]["buffers"])
    test = Rows(data, data.test, torch.device("cpu"), net.weights.dtype)
    last_round = dict(zip(chain, (span.stop - 1 for span in experiment.spans), strict=True))
    with torch.inference_mode():
        chunks = [test.batch(chunk)[0] for chunk in torch.from_numpy(rows).split(CHUNK)]
        features = torch.cat([net.features(x) for x in chunks])
        decisions = {}
        for stage, end in zip(stages, ends, strict=True):
            net.load(end["weights"], end["buffers"])
            algorithm = chain[stage].at(last_round[stage]).algorithm
            decisions[stage] = torch.cat([algorithm.predict(net, x) for x in chunks]).argmax(1).numpy()
    places = in_the_plane(features.double().numpy(), method)
    frame = pd.DataFrame({"row": rows, "label": data.test.labels[rows], "x": places[:, 0], "y": places[:, 1]})
    return Embedding(data.classes, stages, method, frame.assign(**decisions))


def _end(folder: Path, experiment: Experiment, stage: str) -> dict[str, torch.Tensor]:
    """The server's entries after the stage's last round."""
    names = tuple(one.name for one in experiment.chain)
    checkpoints = Checkpoints(folder / "checkpoints", experiment.digest, 1, names)
    path = last_of_stages(checkpoints, experiment)[stage]
    if stage == names[-1] and RunFolder(folder).summary().get("stopped_by"):  # before that round
        path = checkpoints.paths()[0]
    if not path.exists():
        raise RunFolderError(f"{folder} has no checkpoint of the end of stage {stage}; fedskew resume goes on with it")
    return checkpoints.load(path).server


def in_the_plane(features: np.ndarray, method: Method) -> np.ndarray:
    """[n, D] -> [n, 2]: the two first principal components, or t-SNE started from them. The same for equal input."""
    if method == "pca" or len(features) <= 3:
        return PCA(2, svd_solver="full").fit_transform(features)
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    return TSNE(2, perplexity=perplexity, init="pca", random_state=0).fit_transform(features)


@styled
def draw(found: Embedding) -> Drawing:
    """The points three times (or twice): true classes, then what each head decides."""
    frame = found.frame
    shown = sorted(frame["label"].unique())
    panels = {"classes": frame["label"].to_numpy()} | {stage: frame[stage].to_numpy() for stage in found.stages}
    figure = new_figure(2.7 * len(panels) + 1.3, 2.9)
    plots: Any = figure.subplots(1, len(panels), sharex=True, sharey=True)
    size = float(np.clip(9000 / len(frame), 3, 16))
    for axes, (title, values) in zip(plots, panels.items(), strict=True):
        for number, label in enumerate(shown):
            of = values == label
            if not of.any():
                continue
            axes.scatter(
                frame["x"][of],
                frame["y"][of],
                s=size,
                marker=MARKERS[number // len(CATEGORIES)],
                color=CATEGORIES[number % len(CATEGORIES)],
                linewidths=0,
                label=found.classes[label],
            )
        others = ~np.isin(values, shown)
        if others.any():
            axes.scatter(frame["x"][others], frame["y"][others], s=size, marker="x", color=MUTED, linewidths=0.6)
        right = "" if title == "classes" else f"  {np.mean(values == frame['label']):.1%}".replace("%", " %")
        axes.set_title(f"{title}{right}")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.grid(False)
        axes.spines[["left", "bottom"]].set_color(MUTED)
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside right center", markerscale=1.6)
    how = "their two first principal components" if found.method == "pca" else "t-SNE"
    return Drawing(
        "embedding",
        f"Features of {len(frame):,} test images by {how}: their classes, and what the head of "
        f"{' and of '.join(found.stages)} decides; the share of right decisions above.",
        figure,
        wide=True,
    )


def write(found: Embedding, folder: Path) -> Path:
    """``embedding.png``, ``embedding.parquet`` and ``embedding.csv``; the path of the picture."""
    folder.mkdir(parents=True, exist_ok=True)
    write_frame(found.frame, folder / "embedding")
    drawing = draw(found)
    write_atomically(folder / "embedding.png", drawing.png)
    return folder / "embedding.png"
