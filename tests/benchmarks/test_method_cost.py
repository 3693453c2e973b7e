"""The benchmark of what methods cost: nothing with a limit goes unmeasured."""

from __future__ import annotations

from typing import Any

from algorithms import ALGORITHMS
from benchmarks.method_cost import LIMITED, LIMITS, METHODS, judged


def entries(**changes: float) -> dict[str, Any]:
    ratios = dict.fromkeys(LIMITS, 1.0) | changes
    return {f"{name} head=linear": {"method": name, "by_fedavg": ratio} for name, ratio in ratios.items()}


def test_every_limit_is_judged() -> None:
    """Kills: a method that drops out of the benchmark and is never missed; a limit of another method or network."""
    assert [kept for _, kept in judged(LIMITED, entries())] == [True] * len(LIMITS)
    slow = judged(LIMITED, entries(fedmix=3.01))
    assert [text for text, kept in slow if not kept] == [
        f"{LIMITED}, fedmix head=linear: 3.010 of FedAvg's step, limit 3.0"
    ]
    some = {label: entry for label, entry in entries().items() if entry["method"] != "fedmix"}
    assert [text for text, kept in judged(LIMITED, some) if not kept] == [
        f"{LIMITED}, fedmix: was not measured, limit 3.0"
    ]
    assert judged("mlp", entries(fedmix=9.0)) == []


def test_every_method_exists() -> None:
    """Kills: a benchmark that skips a name it does not know."""
    assert set(METHODS) <= set(ALGORITHMS)
    assert set(LIMITS) <= set(METHODS)
