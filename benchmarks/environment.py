"""Settings of the environment: which change a run's bits, and which change the key under which its rounds are stored.

    python -m benchmarks.environment [--page docs/reliability.md]

Five tiny runs, each in a process that was started under one setting: a network with convolutions and BatchNorm on the
embedded images and an MLP on drawn features, with either executor, and the first with two threads. No setting may
change bits and leave the key as it is. Writes each row to ``benchmarks/results/environment.json`` as it comes, and goes
on where it stopped, unless sources, versions or the machine have changed; exits with 1 if a setting fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, facts, load, save
from engine.base.errors import FedskewError
from engine.experiment import Experiment
from engine.record.numerics import CHANGE_NO_BIT, STEERING, differing
from engine.record.stage_hashes import CODE, code_of
from engine.run.local_driver import LocalDriver
from engine.run.preparing import prepare

ROOT = Path(__file__).parents[1]
NAME = "environment"
BEGIN, END = "<!-- environment: written by python -m benchmarks.environment -->", "<!-- end of environment -->"
UNSET = ""
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}  # two threads on a busy machine would wait for each other at full speed
SETTINGS = (  # beside one process without any
    "ONEDNN_MAX_CPU_ISA=SSE41",
    "ONEDNN_MAX_CPU_ISA=AVX2",
    "ONEDNN_MAX_CPU_ISA=AVX512_CORE",
    "DNNL_MAX_CPU_ISA=AVX",
    "ONEDNN_DEFAULT_FPMATH_MODE=BF16",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY=0",
    "MKL_CBWR=COMPATIBLE",
    "MKL_CBWR=AVX2",
    "MKL_ENABLE_INSTRUCTIONS=SSE4_2",
    "MKL_DYNAMIC=TRUE",
    "MKL_NUM_THREADS=2",
    "OMP_NUM_THREADS=1",
    "OMP_MAX_ACTIVE_LEVELS=1",
    "KMP_AFFINITY=disabled",
    "ATEN_CPU_CAPABILITY=default",
    "ATEN_CPU_CAPABILITY=avx2",
    "OPENBLAS_CORETYPE=Prescott",
    "NPY_DISABLE_CPU_FEATURES=AVX2 FMA3",
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2,-FMA",
    "CUBLAS_WORKSPACE_CONFIG=:4096:8",
    "PYTHONHASHSEED=1",
    "LC_ALL=C",
    "TZ=Asia/Tokyo",
    "MALLOC_ARENA_MAX=1",
    "OMP_SCHEDULE=dynamic",
)
IMAGES = {"name": "fashion_mnist_sample", "train_samples": 160, "test_samples": 100}
DRAWN = {"name": "synthetic", "users": 6, "train_samples": 160, "test_samples": 60}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "resnet8, loop": {"data": IMAGES, "model": {"name": "resnet8"}, "execution": {"executor": "loop"}},
    "resnet8, block": {"data": IMAGES, "model": {"name": "resnet8"}, "execution": {"executor": "block"}},
    "resnet8, 2 threads": {
        "data": IMAGES,
        "model": {"name": "resnet8"},
        "execution": {"executor": "loop", "threads": 2},
    },
    "mlp, loop": {"data": DRAWN, "model": {"name": "mlp"}, "execution": {"executor": "loop"}},
    "mlp, block": {"data": DRAWN, "model": {"name": "mlp"}, "execution": {"executor": "block"}},
}


def experiment(name: str) -> Experiment:
    """One of :data:`RUNS`, of a round and four clients."""
    values = RUNS[name]
    return Experiment(
        rounds=1,
        partition={"name": "dirichlet", "clients": 4, "alpha": 1.0},
        local={"epochs": 1, "batch_size": 20, "lr": 0.05},
        **{**values, "execution": {"device": "cpu", "workers": 1, **values["execution"]}},
    )


def here() -> dict[str, Any]:
    """Run all of them in this process: weights and keys of each, and the numerics of each."""
    answer: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fedskew-environment-") as folder:
        for number, name in enumerate(RUNS):
            prepared = prepare(experiment(name).resolve(), Path(folder) / str(number), overwrite=False)
            prepared.write()
            driver = LocalDriver(prepared)
            while not driver.advance(seconds=0.0).finished:
                pass
            summary = driver.close()
            answer[name] = {
                "weights": summary["weights_sha256"],
                "key": summary["stages"]["train"],
                "numerics": {name: value for name, value in summary["versions"].items() if name != CODE}
                | {"data": summary["data_sha256"]},
            }
    return answer


def under(setting: str) -> dict[str, Any]:
    """Start a process under ``setting``, NAME=value, and none else that steers kernels; its answer."""
    plain = {
        name: value for name, value in os.environ.items() if name in CHANGE_NO_BIT or not name.startswith(STEERING)
    }
    variable, _, value = setting.partition("=")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.environment", "--here"],
        cwd=ROOT,
        env=plain | PATIENT | ({variable: value} if variable else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FedskewError(f"{setting or 'no setting'}: {done.stderr.strip().splitlines()[-1:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def row(plain: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name the runs whose weights differ, those whose keys do, and what differs in the numerics."""
    by = {name for run in plain for name in differing(plain[run]["numerics"], changed[run]["numerics"])}
    return {
        "bits": [run for run in plain if plain[run]["weights"] != changed[run]["weights"]],
        "keys": [run for run in plain if plain[run]["key"] != changed[run]["key"]],
        "by": sorted(by),
    }


def holds(found: Mapping[str, list[str]]) -> bool:
    """Return whether each run whose weights differ has another key."""
    return set(found["bits"]) <= set(found["keys"])


def table(results: Mapping[str, Any]) -> str:
    """Return a page's table of the settings that change bits, in Markdown; the others are in the file of results."""
    rows: Mapping[str, Mapping[str, list[str]]] = results["rows"]
    machine, versions = results["machine"], results["versions"]
    changing, keyed = (sum(bool(one[what]) for one in rows.values()) for what in ("bits", "keys"))
    wrong = sum(not holds(one) for one in rows.values())
    lines = [
        f"{len(rows)} settings on {machine['cpu']} ({machine['capability']}) with torch {versions['torch']}: "
        f"{changing} change bits, {keyed} change the key, **{wrong} change bits alone**.",
        "",
        "| setting | changes the bits of | changes the key, by |",
        "|---|---|---|",
    ]
    for setting, one in rows.items():
        bits = "; ".join(one["bits"]) if len(one["bits"]) < len(RUNS) else "all five"
        if bits:
            lines.append(f"| `{setting}` | {bits} | {', '.join(one['by']) if one['keys'] else 'no'} |")
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """The page with what is between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="a page whose table is to have the rows")
    parser.add_argument("--here", action="store_true", help="run in this process, and print what the runs came to")
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(here()))
        return 0
    made_with = {**facts(), CODE: code_of(*map(experiment, RUNS))}
    results = load(NAME, RESULTS)
    if {name: results.get(name) for name in made_with} != made_with:
        results = {"plain": under(UNSET), "rows": {}, CODE: made_with[CODE]}
    for setting in SETTINGS:
        if setting not in results["rows"]:
            results["rows"][setting] = row(results["plain"], under(setting))
            save(NAME, results, RESULTS)
        found = results["rows"][setting]
        print(
            f"{'ok   ' if holds(found) else 'WRONG'}  {setting}: bits {found['bits']}, key by {found['by']}", flush=True
        )
    results["rows"] = {setting: results["rows"][setting] for setting in SETTINGS}
    save(NAME, results, RESULTS)
    if asked.page is not None:
        text = asked.page.read_text(encoding="utf-8")
        asked.page.write_text(with_table(text, table({**results, **facts()})), encoding="utf-8")
    return 0 if all(map(holds, results["rows"].values())) else 1


if __name__ == "__main__":
    sys.exit(main())
