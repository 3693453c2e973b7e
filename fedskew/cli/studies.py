"""Measurements and looks into models: ``fedskew floor | tune-executor | diagnose | embed | images | scale``.

These are the commands with their options. What they do is in the file of each, which is imported when it is asked
for, because pandas and matplotlib take a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedskew.cli.json_output import Json
from fedskew.cli.naming import Address, Profile, What, With, find_experiment, is_name, joined, overridden
from fedskew.cli.show import console

Placement = Annotated[
    list[str] | None,
    typer.Argument(callback=joined, help="where to compute, in key=value pairs: execution.actors=0"),
]


def floor_command(
    what: What = None,
    rounds: Annotated[int, typer.Option(min=2, help="rounds to run; the first one is not counted")] = 5,
    layers: Annotated[bool, typer.Option("--layers", help="show what each layer costs")] = False,
    save: Annotated[Path | None, typer.Option(help="a JSON file for all figures")] = None,
    profile: Profile = "laptop",
    as_json: Json = False,
    own: With = None,
) -> None:
    """Hold a round's time against the least that this machine's arithmetic and memory allow."""
    experiment = overridden(what, profile)
    if experiment is None:
        return
    from fedskew.cli import floor as cli_floor

    cli_floor.floor(console, experiment, rounds, layers, save)


def tune_executor_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(callback=joined, help="as of run: a YAML file, a name, a cell or a trial, then key=value pairs"),
    ] = None,
    rounds: Annotated[int, typer.Option(help="to time, of each executor")] = 10,
    out: Annotated[Path | None, typer.Option(help="a YAML file; none: the one that was given, or NAME.yaml")] = None,
    profile: Profile = "laptop",
    as_json: Json = False,
    own: With = None,
) -> None:
    """Time each way to train clients on this machine, and write the fastest into the experiment's YAML file."""
    experiment = overridden(what, profile)
    if experiment is None:
        return
    from fedskew.cli import executors as cli_executor

    given = Path(what[0]) if what and what[0].endswith((".yaml", ".yml")) else None
    cli_executor.tune(console, experiment, rounds, out or given or Path(f"{experiment.name}.yaml"))


def diagnose_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    overrides: Placement = None,
    number: Annotated[int | None, typer.Option("--round", help="none: the last one")] = None,
    stage: Annotated[str | None, typer.Option(help="one that trains; none: of the last stage's lineage")] = None,
    probe: Annotated[int, typer.Option(help="test images, balanced over classes")] = 1000,
    estimator: Annotated[str, typer.Option(help="of linear CKA: unbiased | biased")] = "unbiased",
    layers: Annotated[str, typer.Option(help="taps | weights: each convolution and linear layer")] = "taps",
    clients: Annotated[str | None, typer.Option(help="some of the cohort, as 0,3,7; none: all")] = None,
    address: Address = None,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Compute a round again and compare its local models: CKA between clients, classifier norms per class."""
    from fedskew.cli import diagnose as cli_diagnose

    options = cli_diagnose.options(probe, estimator, layers, clients)
    cli_diagnose.diagnose(console, folder, number, stage, options, overrides or [], address)


def embed_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run")],
    after: Annotated[str | None, typer.Option(help="a stage; none: the last one")] = None,
    before: Annotated[str | None, typer.Option(help="a stage; none: the one that the other needs")] = None,
    method: Annotated[str, typer.Option(help="pca | tsne")] = "pca",
    probe: Annotated[int, typer.Option(help="test images, balanced over classes")] = 1000,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Draw the features of test images in the plane, and what the heads before and after a calibration decide."""
    from fedskew.cli import diagnose as cli_diagnose

    cli_diagnose.embed(console, folder, after, before, method, probe)


def images_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run or a sweep")],
    number: Annotated[int | None, typer.Option("--round", help="one with a checkpoint; none: the last one")] = None,
    probe: Annotated[int, typer.Option(help="images to generate, and test images to compare with")] = 1000,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Draw what a run's generator makes beside the nearest training images, and measure how far from copies it is."""
    from fedskew.cli import diagnose as cli_diagnose

    cli_diagnose.images(console, folder, number, probe)


def scale_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            callback=joined,
            help="as of run: a YAML file, a name, a cell or a trial, then key=value pairs; none: scaling",
        ),
    ] = None,
    actors: Annotated[str | None, typer.Option(help="0,1,2,...; 0: in process; none: up to the cores")] = None,
    clients: Annotated[str | None, typer.Option("--clients-per-round", help="8,16,...")] = None,
    blocks: Annotated[str | None, typer.Option(help="clients in a block: auto,1,4,...")] = None,
    models: Annotated[str | None, typer.Option(help="names: logistic,mlp,...")] = None,
    predict: Annotated[str | None, typer.Option(help="actors to predict for: 8,64; none: twice, four times")] = None,
    turns: Annotated[int, typer.Option(help="of each setting")] = 5,
    seconds: Annotated[float, typer.Option(help="of a turn, about; at least one round")] = 2.0,
    output: Annotated[Path | None, typer.Option(help="the study's folder; none: runs/scale-<name>-<hash>")] = None,
    address: Address = None,
    as_json: Json = False,
    own: With = None,
) -> None:
    """Measure rounds per second over actors, cohort, block and model; fit a scaling law and say what it predicts."""
    from fedskew.cli import scale as cli_scale

    words = list(what or [])
    has_name = bool(words) and is_name(words[0])
    experiment, _ = find_experiment(words.pop(0) if has_name else "scaling", "laptop", words)
    if experiment is None:  # a sweep without a cell: its cells are listed
        return
    asked = cli_scale.Asked(actors, clients, blocks, models, predict, turns, seconds)
    cli_scale.scale(console, experiment, words, not has_name, asked, address, output)
