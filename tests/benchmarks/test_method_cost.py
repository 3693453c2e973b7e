"""The benchmark of what methods cost: nothing with a limit goes unmeasured, and each is beside the right FedAvg."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from algorithms import ALGORITHMS
from benchmarks import method_cost, speed_page
from benchmarks.common import RESULTS
from benchmarks.method_cost import BATCHES, BESIDE, OWN, WORKLOADS, judged, measure, moments, report


def entries(**changes: float) -> dict[str, Any]:
    ratios = dict.fromkeys(BATCHES, 1.0) | changes
    return {f"{name} head=linear": {"method": name, "by_fedavg": ratio} for name, ratio in ratios.items()}


def test_every_limit_is_judged() -> None:
    """Kills: a method that drops out of the benchmark and is never missed; a limit of another method or network."""
    assert [kept for _, kept in judged("resnet20", entries())] == [True] * len(BATCHES)
    slow = judged("resnet20", entries(fedmix=3.01))
    assert [text for text, kept in slow if not kept] == [
        "resnet20, fedmix head=linear: 3.010 of FedAvg's time, limit 3.0"
    ]
    some = {label: entry for label, entry in entries().items() if entry["method"] != "fedmix"}
    assert [text for text, kept in judged("resnet20", some) if not kept] == [
        "resnet20, fedmix: was not measured, limit 3.0"
    ]
    assert judged("mlp", entries(fedmix=9.0)) == []
    assert [kept for _, kept in judged("heads", {"pflego": {"method": "pflego", "by_fedavg": 0.07}})] == [False]


def test_every_method_exists() -> None:
    """Kills: a benchmark that skips a name it does not know."""
    assert {name for work in WORKLOADS.values() for name in work.methods} <= set(ALGORITHMS)
    assert {*OWN, *BESIDE} <= {name for work in WORKLOADS.values() for name in work.methods}


def test_as_much_work_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: CBFL beside FedAvg on its own rows alone; a ratio by another FedAvg; moments by themselves."""
    work = method_cost.Workload("logistic", 1, {"cbfl": 2.0}, ("fedprox",), ("data.train_samples=200",))
    monkeypatch.setitem(WORKLOADS, "tiny", work)
    monkeypatch.setitem(OWN, "cbfl", {"generator": "gaussian_noise", "beta": 0})
    contestants = measure(work, 1, 1, [])
    asked = [(one.method, one.run.experiment.local.batch_size, len(one.seconds)) for one in contestants]
    assert asked == [("fedavg", 50, 2), ("fedavg", 120, 2), ("cbfl", 50, 2), ("fedprox", 50, 2)]
    for one, seconds in zip(contestants, (1.0, 4.0, 6.0, 3.0), strict=True):
        one.seconds[1:] = [seconds]
    found = report("tiny", contestants, Console(quiet=True))
    assert {label: entry["by_fedavg"] for label, entry in found.items()} == {
        "fedavg": 1.0,
        "fedavg local.batch_size=120": 1.0,
        "cbfl": 1.5,
        "fedprox": 3.0,
    }
    monkeypatch.setattr(method_cost, "CLASSES", 2)
    assert moments(1)["by_products"] > 0


def test_the_page_has_what_was_measured() -> None:
    """Kills: figures of another run than the one that is in the repository; a method with a limit that is left out."""
    page = speed_page.PAGE.read_text(encoding="utf-8")
    results = json.loads((RESULTS / "method_cost.json").read_text(encoding="utf-8"))
    named = {"resnet20": "", "heads": ", one client after the other", "heads of a block": ", a block of two clients"}
    for workload, where in named.items():
        for entry in results["workloads"][workload].values():
            if entry["limit"] is not None:
                ratio, limit = entry["by_fedavg"], entry["limit"]
                told = f"{ratio:.3f} | {limit:g}" + " **missed**" * (ratio > limit)
                assert f"| `{entry['method']}`{where} | {told} |" in page
    moment = results["moments"]
    assert f"| CCVR's moments, by the bare products | {moment['by_products']:.2f} | 2 |" in page
