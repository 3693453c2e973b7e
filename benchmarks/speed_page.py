"""The tables of ``docs/performance.md``, from ``speed.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- python -m benchmarks.speed --page: -->\n", "<!-- end -->"
HEAD = ("", "ms per round", "by the plain loop's", "quartiles", "MB", "share of the floor")
BUSY = 0.1  # cores at work while all wait, from which on the machine is not quiet
PEERS = {"flower": ("Flower", "flwr"), "pfl_research": ("pfl-research", "pfl")}  # its name, its package


def rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Of one workload, below :data:`HEAD`; peers that did not run say so."""
    found = []
    there = {entry["name"]: entry for entry in result["entries"]}
    for name in [*there, *(peer for peer in PEERS if peer not in there)]:
        entry = there.get(name, {})
        label = name
        if name in PEERS:
            title, package = PEERS[name]
            label = " ".join([title, *([entry["versions"][package]] if "versions" in entry else [])])
        if "seconds_per_round" not in entry:
            found.append((label, "failed" if "failed" in entry else "not run", *[""] * (len(HEAD) - 2)))
            continue
        low, high = entry["ratio_quartiles"]
        megabytes, share = entry.get("megabytes"), entry.get("floor_share")
        found.append(
            (
                label,
                f"{1e3 * entry['seconds_per_round']:.1f}",
                f"{entry['ratio']:.2f}",
                f"{low:.2f} to {high:.2f}",
                "" if megabytes is None else f"{megabytes:.0f}",
                "" if share is None else f"{100 * share:.0f} %",
            )
        )
    return found


def tables(results: dict[str, Any]) -> str:
    """All workloads, the limits, and what it ran on."""
    parts = []
    for name, result in results["workloads"].items():
        model = result["experiment"]["model"]["name"]
        parts.append(f"**{name}**: `{model}`, {result['title']}; executor `{result['executor']}`.\n")
        lines = [HEAD, ("---",) * len(HEAD), *rows(result)]
        parts.append("\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines) + "\n")
    if results.get("idle_ray_megabytes"):
        parts.append(f"An idle Ray: {results['idle_ray_megabytes']:.0f} MB.\n")
    parts.append(
        "\n".join(f"- {'Met' if limit['met'] else '**Missed**'}: {limit['text']}" for limit in results["limits"]) + "\n"
    )
    settings, machine = results["settings"], results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    parts.append(
        f"{settings['cycles']} cycles of turns of about {settings['seconds']:g} s, runs of each peer that counted: "
        f"{settings['peer_blocks']}. {machine['cores']} cores of an {machine['cpu']} ({machine['capability']}); "
        f"{versions}. While all waited {results['busy_cores']:.2f} cores were at work.\n"
    )
    if results["busy_cores"] > BUSY:
        parts.append("**The machine was not quiet: these figures are not to be relied on.**\n")
    return "\n".join(parts)


def with_tables(page: str, results: dict[str, Any]) -> str:
    """The page with what is between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables(results)}\n{END}{after}"


def write(path: Path) -> None:
    results = json.loads(path.read_text(encoding="utf-8"))
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
