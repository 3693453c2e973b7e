"""What verdicts become where each tuned side has the second best of its candidates."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedskew.lab.ledger.rows import EARLIER, NOT_RUN, Row, SweepRows


def pairs(sweeps: Iterable[SweepRows]) -> list[tuple[SweepRows, SweepRows]]:
    """Return each sweep that was run both ways, with one setting: (with the best choices, with the second best)."""
    run = [sweep for sweep in sweeps if sweep.entry is not None]
    best = {(sweep.name, sweep.profile, sweep.changed): sweep for sweep in run if not sweep.choice}
    seconds = [((sweep.name, sweep.profile, sweep.changed), sweep) for sweep in run if sweep.choice]
    return [(best[which], second) for which, second in seconds if which in best]


def both(best: SweepRows, second: SweepRows) -> Iterator[tuple[int, Row, Row]]:
    """Yield each claim's number with its row under the best choices, and its row under the second best."""
    for number, row in enumerate(best.rows, start=1):
        other = next((one for one in second.rows if one.claim == row.claim), None)
        if other is not None:
            yield number, row, other


def table(found: Iterable[tuple[str, SweepRows, SweepRows]]) -> str:
    """Return how many verdicts stay, and which do not, in Markdown; found: headings with the pairs below them."""
    lines = ["| sweep | claims | same verdict | other verdict | no verdict of now |", "|---|---|---|---|---|"]
    for heading, best, second in found:
        rows = [*both(best, second)]
        judged = [(n, row.word, then.word) for n, row, then in rows if not {row.word, then.word} & {EARLIER, NOT_RUN}]
        other = [f"{n}: {word}, then {then}" for n, word, then in judged if word != then]
        counts = f"{len(rows)} | {len(judged) - len(other)} | {'; '.join(other) or 'none'} | {len(rows) - len(judged)}"
        lines.append(f"| {heading} | {counts} |")
    return "\n".join(lines)
