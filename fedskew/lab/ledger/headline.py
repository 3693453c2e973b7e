"""The headline claims of the five papers, as rows of the README between two markers."""

from __future__ import annotations

from collections.abc import Iterable

from engine.base.errors import RunFolderError
from fedskew.lab.ledger.counting import counted_rows
from fedskew.lab.ledger.page import anchor
from fedskew.lab.ledger.rows import NOT_RUN, Row, SweepRows
from fedskew.lab.ledger.sensitivity import both, pairs
from fedskew.lab.wording import escaped

HEADLINES = {"CCVR": "ccvr", "PFLEGO": "pflego", "CBHMA": "cbhma", "FedSER": "fedser", "CBFL": "cbfl"}
BEGIN = "<!-- headline claims: written by fedskew claims -->"
END = "<!-- end of the headline claims -->"


def with_headlines(text: str, sweeps: Iterable[SweepRows]) -> str:
    """Return the README's text with the table of today; raises :class:`RunFolderError` without its two markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunFolderError(f"README.md has no place for the headline claims; put in a line {BEGIN!r} and one {END!r}")
    return f"{before}{BEGIN}\n{_table(sweeps)}\n{END}{after}"


def _table(sweeps: Iterable[SweepRows]) -> str:
    """The first claim of each paper's headline sweep, one row a paper: that which is counted."""
    known = [*sweeps]
    first: dict[str, tuple[SweepRows, Row]] = {}
    for sweep, row in counted_rows(known):
        first.setdefault(sweep.name, (sweep, row))
    then = {id(row): other for best, second in pairs(known) for _, row, other in both(best, second)}
    head = "| paper | claim | verdict | effect, 95 % interval | seeds | with second best settings |"
    lines = [head, "|---|---|---|---|---|---|"]
    for paper, module in HEADLINES.items():
        found = first.get(f"{module}.headline")
        if found is None:
            lines.append(f"| {paper} | no headline sweep is stated yet | {NOT_RUN} | | | |")
            continue
        sweep, row = found
        profile = f" (profile {sweep.profile})" if sweep.profile != "laptop" else ""
        seeds = str(len(row.verdict.seeds)) if row.verdict else ""
        verdict = f"[{row.word}](docs/claims.md#{anchor(sweep)})"
        text = f"{escaped(row.claim.text)}{escaped(sweep.changed)}{profile}"
        second = _second_best(sweep, then.get(id(row)))
        lines.append(f"| {paper} | {text} | {verdict} | {row.effect} | {seeds} | {second} |")
    return "\n".join(lines)


def _second_best(sweep: SweepRows, row: Row | None) -> str:
    """Tell what a claim came to with the second best choices; row: of it, None if there is none."""
    if row is not None:
        return ", ".join(filter(None, (row.word, row.effect)))
    tuned = sweep.entry is None or sweep.entry.definition.get("tuned")
    return NOT_RUN if tuned else "nothing tuned"
