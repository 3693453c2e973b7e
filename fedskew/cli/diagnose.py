"""Looks into a run's models: the work of ``fedskew diagnose | embed | images``.

``studies.py`` imports it when one of these is asked for, since pandas and matplotlib take a second to import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from engine.base.errors import ConfigError
from engine.run.replay import find
from fedskew.cli.json_output import print_json
from fedskew.lab.diagnosis import page as diagnosis_page
from fedskew.lab.diagnosis import sweep as diagnosed
from fedskew.lab.diagnosis.diagnosis import Diagnosis, DiagnosisOptions
from fedskew.lab.diagnosis.diagnosis import diagnose as diagnose_round
from fedskew.lab.images import generated
from fedskew.lab.images import sweep as imaged
from fedskew.lab.quantities import quantity


def options(
    probe: int = 1000, estimator: Any = "unbiased", layers: Any = "taps", clients: str | None = None
) -> DiagnosisOptions:
    """Make the options of a diagnosis of what was typed; raises :class:`ConfigError` for a wrong ``--clients``."""
    chosen = None
    if clients is not None:
        try:
            chosen = tuple(int(part) for part in clients.split(","))
        except ValueError:
            raise ConfigError("--clients", clients, "is no list of numbers", "for example --clients 0,3,7") from None
    return DiagnosisOptions(probe, estimator, layers, chosen)


def diagnose(
    console: Console,
    folder: Path,
    number: int | None,
    stage: str | None,
    options: DiagnosisOptions,
    overrides: Sequence[str],
    address: str | None,
) -> None:
    """Diagnose a run's round, or each trial of a sweep."""
    if os.path.exists(folder / "sweep.yaml"):
        if stage is not None:
            raise ConfigError("--stage", stage, "is of one run", "diagnose a trial: its folder is in trials/")
        trials = sweep(console, folder, number, options, overrides, address)
        console.print("fedskew report shows it with the sweep", highlight=False)
        print_json({"folder": folder, "file": folder / "cka.parquet", "trials": trials})
        return
    with console.status("computing the round again"):
        found = diagnose_round(folder, number, options, stage, overrides, address)
    round = find(folder, found.facts["round"], found.facts["stage"])
    page = diagnosis_page.write(found, diagnosis_page.folder_of(round))
    _show(console, found)
    console.print(f"page       {page}", highlight=False, soft_wrap=True, markup=False)
    tables = {"layers": found.layers.to_dict("records"), "heads": found.heads.to_dict("records")}
    print_json({"folder": folder, "page": page, "facts": found.facts, **tables})


def sweep(
    console: Console,
    folder: Path,
    number: int | None,
    options: DiagnosisOptions,
    overrides: Sequence[str],
    address: str | None,
) -> int:
    """Diagnose each finished trial of a sweep, and return how many there are."""
    with console.status("diagnosis") as status:
        frame = diagnosed.diagnose_sweep(
            folder, number, options, overrides, address, lambda text: status.update(Text(f"diagnosis, {text}"))
        )
    console.print(diagnosed.line(frame, folder), highlight=False, soft_wrap=True, markup=False)
    return len(set(frame["trial"]))


def _show(console: Console, found: Diagnosis) -> None:
    lines = [
        f"{label:<15}{figure}" + (f" ({detail})" if detail else "")
        for label, figure, detail in diagnosis_page.facts(found)
    ]
    console.print("\n".join(lines), highlight=False, markup=False)
    for title, sheet in (
        ("CKA between clients, mean over pairs", diagnosis_page.layers_table(found)),
        ("class samples and classifier norms", diagnosis_page.heads_table(found)),
    ):
        table = Table(*sheet.head, title=title, title_justify="left")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)


def embed(console: Console, folder: Path, after: str | None, before: str | None, method: Any, probe: int) -> None:
    """Draw features of test images in the plane."""
    from fedskew.lab.diagnosis import embedding  # scikit-learn takes a second

    with console.status("features"):
        found = embedding.embed(folder, after, before, method, probe)
    right = {stage: (found.frame[stage] == found.frame["label"]).mean() for stage in found.stages}
    for stage, share in right.items():
        console.print(f"{stage:<15}{100 * share:.2f} % of {len(found.frame):,} test images", highlight=False)
    path = embedding.write(found, folder / "diagnosis" / "embedding")
    console.print(f"picture    {path}", highlight=False, soft_wrap=True, markup=False)
    print_json({"picture": path, "images": len(found.frame), "accuracy": right})


def images(console: Console, folder: Path, number: int | None, probe: int) -> None:
    """Draw and measure the images that a run generates, or each trial of a sweep."""
    if os.path.exists(folder / "sweep.yaml"):
        trials = sweep_images(console, folder, number, probe)
        console.print("fedskew report shows it with the sweep", highlight=False)
        print_json({"folder": folder, "file": folder / "generated.parquet", "trials": trials})
        return
    with console.status("images"):
        found = generated.look(folder, number, probe)
        path = generated.write(found)
    facts = {"round": f"{found.round} of stage {found.stage}", "images": f"{len(found.generated):,}"} | {
        quantity(name).label: quantity(name).text(value, unit=True)
        for name, value in found.figures.items()
        if value is not None
    }
    width = max(map(len, facts)) + 2
    lines = [f"{label:<{width}}{value}" for label, value in (facts | {"picture": str(path)}).items()]
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
    made = {"round": found.round, "stage": found.stage, "images": len(found.generated), "figures": found.figures}
    print_json({"folder": folder, **made, "picture": path})


def sweep_images(console: Console, folder: Path, number: int | None, probe: int) -> int:
    """Measure the images that each finished trial of a sweep generates, and return how many trials there are."""
    with console.status("images") as status:
        frame = imaged.look_at_sweep(folder, number, probe, lambda text: status.update(Text(f"images, {text}")))
    console.print(imaged.line(frame, folder), highlight=False, soft_wrap=True, markup=False)
    return len(frame)
