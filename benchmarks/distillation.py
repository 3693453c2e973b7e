"""What CBHMA's paper states, at laptop size on real images: ``make distillation``.

    python -m benchmarks.distillation --runs FOLDER                       # gone on with after Ctrl-C
    python -m benchmarks.distillation --only motivation per_class

The sweeps of ``tune_configs/cbhma.py`` by their names, seeds 0 to 4, on Fashion-MNIST: five teachers of five
architectures, their answers, and one student for each trial. They share a stage store, so that a teacher is trained
once for all sweeps that need it. Nothing has to hold: the benchmark reports what does.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks import claims
from benchmarks.common import RESULTS, save

PARTS = ("motivation", "cost", "per_class", "alpha", "samples", "architecture", "errata", "quality", "leakage")
METRICS = ("accuracy", "class_std", "class_accuracy[1]", "class_accuracy[9]", "class_accuracy[2,4,6]", "floats_up")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="key=value pairs for another setting, of every part")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument("--runs", type=Path, help="where the sweeps go, and are gone on with; none: a temporary folder")
    parser.add_argument("--name", default="distillation", help="of the file of results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for it")
    options = parser.parse_intermixed_args()
    console = Console()
    with tempfile.TemporaryDirectory() as temporary:
        runs = options.runs or Path(temporary)
        found = {
            part: claims.measure(console, f"cbhma.{part}", options.overrides, runs / part, METRICS)
            for part in options.only
        }
    console.print(claims.table(found))
    save(options.name, found, options.results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
