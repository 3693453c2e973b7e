"""Images of a run's generator: does the model take them for what was asked for, are they copies of training images?

    found = look(Path("runs/.."))      # at its last round
    found.generated    one row per image: class asked for, class decided, distance to the nearest training image
    found.test         one row per test image, as many of them: the distance of images that are no copies
    found.figures      what a trial of a sweep is described with

CBFL (2023) shows such images in its Fig. 11 and says, without a measurement, that they give no client's rows away. A
ratio of distances below 1 is a warning and no proof: smooth images are near to all others, copies to one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from engine.algorithm import Generative, seeds
from engine.base.errors import ConfigError, RunFolderError, require
from engine.base.files import refuse_links, write_atomically
from engine.base.json_text import json_text
from engine.client.nets import open_model
from engine.client.steps.flat_net import FlatNet
from engine.data import Dataset
from engine.data.samples.batches import Rows
from engine.experiment import CHOICES, Experiment, Stage
from engine.record.checkpoints import Checkpoints, Position
from engine.record.run_folder import RunFolder
from engine.results import round_folders
from fedskew.lab.diagnosis.diagnosis import CHUNK, balanced_rows
from fedskew.lab.figures.generated import ImagePanels, generated_images
from fedskew.lab.frames import write_frame
from fedskew.lab.images.nearest import nearest

CPU = torch.device("cpu")
PROBE = 1000  # images that are generated and compared with, where no other number is asked for
SHOWN = 8  # images of a class
MOST_CLASSES = 20


@dataclass(frozen=True, eq=False)
class Generated:
    """The images that were made with a run's state after one round, and their figures."""

    folder: Path  # where it belongs
    stage: str
    round: int
    probe: int  # about so many images were asked for
    generated: pd.DataFrame = field(repr=False)  # image, class (if one was asked for), decided, and as ``test``
    test: pd.DataFrame = field(repr=False)  # row, class, distance, nearest (row of the training split), nearest_class
    panels: ImagePanels = field(repr=False)

    @property
    def figures(self) -> dict[str, float | None]:
        """generated_agreement: share of generated images that are taken for the class asked for by the model that they
        are made for (:meth:`Generative.judge`); None where no class is asked for. nearest_distance: mean over generated
        images of the distance to the nearest training image. nearest_distance_test: the same of test images.
        nearest_ratio: the first by the second.
        """
        made, real = (frame["distance"].to_numpy().mean().item() for frame in (self.generated, self.test))
        agreement = None
        if "class" in self.generated:
            agreement = (self.generated["class"] == self.generated["decided"]).to_numpy().mean().item()
        return {
            "generated_agreement": agreement,
            "nearest_distance": made,
            "nearest_distance_test": real,
            "nearest_ratio": made / real if real > 0 else None,
        }

    def summary(self) -> dict[str, Any]:
        """Plain data for ``summary.json``."""
        counts = {"images": len(self.generated), "test_images": len(self.test)}
        about = {"stage": self.stage, "round": self.round, "options": {"probe": self.probe}}
        return {**about, **counts, **self.figures, "shown": list(self.panels.names)}


def look(folder: Path, number: int | None = None, probe: int = PROBE) -> Generated:
    """Generate about ``probe`` images, as many of each class, with what the run had after round ``number``.

    None: after the last round of a stage that generates images. Raises :class:`ConfigError` for a run that has none,
    and for a round without a checkpoint.
    """
    refuse_links(folder)
    experiment = RunFolder(folder).experiment()
    stage, number, server = _state(folder, experiment, number)
    assert isinstance(stage.algorithm, Generative)
    data = experiment.data.load()
    net = open_model(experiment, data, CPU)
    judge = stage.algorithm.judge(dict(server))
    net.load(judge["weights"], judge["buffers"])
    net.train(False)
    rng = seeds.generator(experiment.seed, "generated images", number)
    target = round_folders.folder_of(folder, "images", experiment, stage.name, number)
    generated, test, panels = measure(stage.algorithm, server, net, data, probe, rng)
    return Generated(target, stage.name, number, probe, generated, test, panels)


def _state(folder: Path, experiment: Experiment, number: int | None) -> tuple[Stage, int, Mapping[str, Tensor]]:
    """The last state, or that after round ``number``, of the stages that generate: stage, round, server's entries."""
    chain = experiment.chain
    lineage = [
        (place, stage)
        for place, stage in enumerate(chain)
        if stage.name in experiment.lineage and isinstance(stage.algorithm, Generative)
    ]
    if not lineage:
        name = CHOICES["algorithm"].name_of(chain[-1].algorithm)
        makers = [name for name, cls in CHOICES["algorithm"].items() if issubclass(cls, Generative)]
        raise ConfigError("algorithm.name", name, "generates no images", f"name a run of {' or '.join(makers)}")
    checkpoints = Checkpoints(folder / "checkpoints", experiment.digest, 1, tuple(stage.name for stage in chain))
    saved = {
        round: (stage.at(round), path)
        for place, stage in lineage
        for round in experiment.spans[place]
        if (path := checkpoints.path(Position(place, round))).exists()
    }
    if not saved:
        names = " or ".join(stage.name for _, stage in lineage)
        raise RunFolderError(f"{folder} has no checkpoint of stage {names} yet; fedskew resume goes on to it")
    number = max(saved) if number is None else number
    told, rule = ", ".join(map(str, saved)), "has no checkpoint of a stage that generates images"
    require(number in saved, "--round", number, rule, f"rounds that have one: {told}; checkpoint.keep keeps more")
    stage, path = saved[number]
    return stage, number, checkpoints.load(path).server


@torch.inference_mode()
def measure(
    algorithm: Generative,
    server: Mapping[str, Tensor],
    net: FlatNet,
    data: Dataset,
    probe: int,
    rng: torch.Generator,
) -> tuple[pd.DataFrame, pd.DataFrame, ImagePanels]:
    """The tables of a :class:`Generated`, and what is drawn of it; ``net`` decides on classes, in eval mode."""
    classes = len(data.classes)
    each = max(1, probe // classes)
    asked = torch.arange(classes).repeat_interleave(each)
    parts = [algorithm.generate(dict(server), labels, net.layout, rng) for labels in asked.split(CHUNK)]
    x = torch.cat([part["images"] for part in parts])
    train, held_out = (Rows(data, split, CPU, x.dtype) for split in (data.train, data.test))
    copied, distances = nearest(x, train)
    told = {"class": asked.numpy()} if "labels" in parts[0] else {}
    told["decided"] = torch.cat([algorithm.predict(net, part).argmax(1) for part in x.split(CHUNK)]).numpy()
    generated = pd.DataFrame({"image": np.arange(len(x)), **told, **_columns(copied, distances, train)})
    rows = balanced_rows(data.test.labels, each * classes)
    of_rows = nearest(held_out.batch(torch.from_numpy(rows))[0], train)
    test = pd.DataFrame({"row": rows, "class": data.test.labels[rows], **_columns(*of_rows, train)})
    names = data.classes if "class" in told else ("",) * classes
    return generated, test, panels(x, train.batch(copied)[0], names, train)


def _columns(nearest: Tensor, distances: Tensor, train: Rows) -> dict[str, np.ndarray]:
    return {
        "distance": distances.numpy(),
        "nearest": nearest.numpy(),
        "nearest_class": train.labels[nearest].numpy(),
    }


def panels(generated: Tensor, nearest: Tensor, names: Sequence[str], train: Rows) -> ImagePanels:
    """Pick the images that are drawn, as the pixels that they are stored as: uint8.

    generated, nearest: normalised images [n, channels, height, width], as many of each class of ``names`` and in their
    order. What is no pixel (features) is stretched over 0 to 255.
    """
    each = len(generated) // len(names)
    rows = names[:MOST_CLASSES]

    def some(x: Tensor) -> np.ndarray:
        stored = (x.unflatten(0, (len(names), each))[: len(rows), :SHOWN] - train.shift) / train.scale
        if train.images.is_floating_point():
            low, high = train.images.min(), train.images.max()
            stored = 255 * (stored - low) / (high - low)
        return stored.round().clamp(0, 255).byte().numpy()

    return ImagePanels(tuple(rows), some(generated), some(nearest))


def write(found: Generated) -> Path:
    """Write tables, pixels, picture and figures into ``found.folder``; the path of the picture. Equal finds give equal
    bytes."""
    found.folder.mkdir(parents=True, exist_ok=True)
    write_frame(found.generated, found.folder / "generated")
    write_frame(found.test, found.folder / "test")
    found.panels.save(found.folder / "shown.safetensors")
    summary = found.summary()
    write_atomically(found.folder / "generated.png", generated_images("generated", summary, found.panels).png)
    # Last: who finds it finds the rest.
    write_atomically(found.folder / "summary.json", json_text(summary, indent=2) + "\n")
    return found.folder / "generated.png"
