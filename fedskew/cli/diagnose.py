"""Looks into a run's models: ``fedskew diagnose | embed | images``.

What they compute is in ``fedskew/lab``, and imported when a command asks for it: pandas and matplotlib take a second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from engine.base.errors import require
from fedskew.cli.naming import Address, Folder, numbers, pairs
from fedskew.cli.output import console, leave_streams_to_ray, print_json, say, table

Placement = Annotated[list[str] | None, pairs("where to compute, in key=value pairs: execution.actors=0")]


def diagnose_command(
    folder: Folder,
    overrides: Placement = None,
    number: Annotated[int | None, typer.Option("--round", help="none: the last one")] = None,
    stage: Annotated[str | None, typer.Option(help="one that trains; none: of the last stage's lineage")] = None,
    probe: Annotated[int, typer.Option(help="test images, balanced over classes")] = 1000,
    estimator: Annotated[str, typer.Option(help="of linear CKA: unbiased | biased")] = "unbiased",
    layers: Annotated[str, typer.Option(help="taps | weights: each convolution and linear layer")] = "taps",
    clients: Annotated[str | None, typer.Option(help="some of the cohort, as 0,3,7; none: all")] = None,
    address: Address = None,
) -> None:
    """Compute a round again and compare its local models: CKA between clients, classifier norms per class."""
    from fedskew.lab.diagnosis import folder as written
    from fedskew.lab.diagnosis.diagnosis import DiagnosisOptions
    from fedskew.lab.diagnosis.diagnosis import diagnose as diagnose_round

    words: dict[str, Any] = {"estimator": estimator, "layers": layers}  # checked there
    leave_streams_to_ray()
    options = DiagnosisOptions(probe, clients=numbers("--clients", clients), **words)
    if os.path.exists(folder / "sweep.yaml"):
        require(stage is None, "--stage", stage, "is of one run", "diagnose a trial: its folder is in trials/")
        from fedskew.lab.diagnosis import sweep

        with console.status("diagnosis") as status:
            frame = sweep.diagnose_sweep(
                folder,
                number,
                options,
                overrides or [],
                address,
                lambda at: status.update(Text(f"diagnosis, {at}")),
            )
        _say_of_sweep(sweep.line(frame, folder))
        print_json({"folder": folder, "file": folder / "cka.parquet", "trials": len(set(frame["trial"]))})
        return
    from fedskew.lab.replay import find

    with console.status("computing the round again"):
        diagnosis = diagnose_round(folder, number, options, stage, overrides or [], address)
    round = find(folder, diagnosis.facts["round"], diagnosis.facts["stage"])
    target = written.folder_of(round)
    written.write(diagnosis, target)
    for label, text in written.facts(diagnosis).items():
        say(f"{label:<15}{text}")
    for title, (head, rows) in written.tables(diagnosis).items():
        console.print(table(head, rows, title))
    say(f"pictures       {target}")
    frames = {"layers": diagnosis.layers.to_dict("records"), "heads": diagnosis.heads.to_dict("records")}
    print_json({"folder": folder, "pictures": target, "facts": diagnosis.facts, **frames})


def _say_of_sweep(line: str) -> None:
    say(line)
    say("fedskew report shows it with the sweep")


def embed_command(
    folder: Annotated[Path, typer.Argument(help="the folder of a run")],
    after: Annotated[str | None, typer.Option(help="a stage, shown with the one it needs; none: the last one")] = None,
    method: Annotated[str, typer.Option(autocompletion=lambda: ["pca", "tsne"], help="pca | tsne")] = "pca",
    probe: Annotated[int, typer.Option(help="test images, balanced over classes")] = 1000,
) -> None:
    """Draw the features of test images in the plane, and what the heads before and after a calibration decide."""
    from fedskew.lab.diagnosis import embedding  # scikit-learn takes a second

    way: Any = method  # checked there
    with console.status("features"):
        points = embedding.embed(folder, after, way, probe)
    right = {stage: (points.frame[stage] == points.frame["label"]).mean() for stage in points.stages}
    for stage, share in right.items():
        say(f"{stage:<15}{100 * share:.2f} % of {len(points.frame):,} test images")
    path = embedding.write(points, folder / "diagnosis" / "embedding")
    say(f"picture    {path}")
    print_json({"picture": path, "images": len(points.frame), "accuracy": right})


def images_command(
    folder: Folder,
    number: Annotated[int | None, typer.Option("--round", help="one with a checkpoint; none: the last one")] = None,
    probe: Annotated[int, typer.Option(help="images to generate, and test images to compare with")] = 1000,
) -> None:
    """Draw what a run's generator makes beside the nearest training images, and measure how far from copies it is."""
    from fedskew.lab.images import generated, sweep
    from fedskew.lab.quantities import quantity

    if os.path.exists(folder / "sweep.yaml"):
        with console.status("images") as status:
            frame = sweep.look_at_sweep(folder, number, probe, lambda text: status.update(Text(f"images, {text}")))
        _say_of_sweep(sweep.line(frame, folder))
        print_json({"folder": folder, "file": folder / "generated.parquet", "trials": len(frame)})
        return
    with console.status("images"):
        look = generated.look(folder, number, probe)
        path = generated.write(look)
    facts = {"round": f"{look.round} of stage {look.stage}", "images": f"{len(look.generated):,}"} | {
        quantity(name).label: quantity(name).text(value, unit=True)
        for name, value in look.figures.items()
        if value is not None
    }
    width = max(map(len, facts)) + 2
    for label, value in (facts | {"picture": str(path)}).items():
        say(f"{label:<{width}}{value}")
    made = {"round": look.round, "stage": look.stage, "images": len(look.generated), "figures": look.figures}
    print_json({"folder": folder, **made, "picture": path})
