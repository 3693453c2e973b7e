"""What verdicts become where each tuned side has the second best of its candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from engine.analysis.ledger.rows import Row, SweepRows


def pairs(sweeps: Iterable[SweepRows]) -> list[tuple[SweepRows, SweepRows]]:
    """Return each sweep that has both, as (with the best settings, with the second best)."""
    found = [*sweeps]
    best = {(sweep.name, sweep.profile): sweep for sweep in found if not sweep.choice}
    seconds = [sweep for sweep in found if sweep.choice]
    return [(best[at], second) for second in seconds if (at := (second.name, second.profile)) in best]


def both(best: SweepRows, second: SweepRows) -> Iterator[tuple[int, Row, Row]]:
    """Yield each claim's number with its row under the best settings, and its row under the second best."""
    others = {(row.claim.text, row.claim.source): row for row in second.rows}
    for number, row in enumerate(best.rows, start=1):
        other = others.get((row.claim.text, row.claim.source))
        if other is not None:
            yield number, row, other


def table(sweeps: Iterable[SweepRows]) -> str:
    """Return how many verdicts stay, and which do not, in Markdown; "" if no sweep has both."""
    found = pairs(sweeps)
    if not found:
        return ""
    lines = ["| sweep | claims | same verdict | other verdict |", "|---|---|---|---|"]
    for best, second in found:
        rows = [*both(best, second)]
        other = [f"{n}: {row.word}, then {then.word}" for n, row, then in rows if row.word != then.word]
        lines.append(f"| {best.name} | {len(rows)} | {len(rows) - len(other)} | {'; '.join(other) or 'none'} |")
    return "\n".join(lines)
