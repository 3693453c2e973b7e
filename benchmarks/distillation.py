"""What CBHMA's paper states, at laptop size on real images: ``make distillation``.

    python -m benchmarks.distillation --runs FOLDER                       # gone on with after Ctrl-C
    python -m benchmarks.distillation --only motivation per_class

The sweeps of ``tune_configs/cbhma.py`` by their names, seeds 0 to 4, on Fashion-MNIST: five teachers of five
architectures, their answers, and one student for each trial. They share a stage store, so that a teacher is trained
once for all sweeps that need it. Nothing has to hold: the benchmark reports what does.
"""

from __future__ import annotations

from benchmarks import claims

SWEEPS = ("motivation", "cost", "per_class", "alpha", "samples", "architecture", "errata", "quality", "leakage")
PARTS = {part: f"cbhma.{part}" for part in SWEEPS}
METRICS = ("accuracy", "class_std", "class_accuracy[1]", "class_accuracy[9]", "class_accuracy[2,4,6]", "floats_up")


if __name__ == "__main__":
    raise SystemExit(claims.main(__doc__, "distillation", PARTS, METRICS))
