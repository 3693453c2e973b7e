"""The facts at the top of a report: what was done, in figures; and where its claims stand among all others."""

from __future__ import annotations

import re
from typing import Any

from engine.record.run_folder import BREAKS_PRIVACY
from engine.results.claims import PaperTable
from engine.results.results import Results
from engine.results.settings import setting_label
from engine.results.trials import read_yaml
from fedskew.lab import tuned_sides
from fedskew.lab.comparing.comparisons import comparisons
from fedskew.lab.comparing.ranking import Setting, ranked
from fedskew.lab.ledger.page import anchor
from fedskew.lab.ledger.recording import choice_of
from fedskew.lab.ledger.rows import SweepRows
from fedskew.lab.pages.tables import spread_text
from fedskew.lab.quantities import percent, quantity_of
from fedskew.lab.report.paper_tables import MOST_ROWS
from fedskew.lab.wording import counted, seeds_text


def ledger_note(results: Results) -> str:
    """Say which row of the ledger of claims is that of a named sweep; "" of a sweep that is none of fedskew's."""
    path = results.path / "sweep.yaml"
    reference = read_yaml(path).get("reference") if results.claims and path.exists() else None
    if not isinstance(reference, str) or not re.fullmatch(r"\w+\.\w+", reference):
        return ""
    row = SweepRows(reference, str(results.profile), results.title, None, (), "", choice_of(results.path))
    return (
        f"What the ledger says of them: docs/claims.md#{anchor(row)} in fedskew's repository; "
        "fedskew claims --record with this folder puts these trials there."
    )


def facts(results: Results, settings: list[Setting]) -> list[tuple[str, str, str]]:
    """Return what was done, in figures: label, figure, detail."""
    trials: list[dict[str, Any]] = results.trials.to_dict("records")
    planned, computed = (sum(row[name] for row in trials) for name in ("rounds_asked", "rounds_computed"))
    measured = quantity_of(results)
    best = ranked(settings, results.mode)
    rows = []
    if results.axes or len(trials) != 1:
        rows.append(("trials", results.completeness.figure, results.completeness.counts))
        rows.append(("seeds", f"{len(results.seeds)}", seeds_text(results.seeds)))
    else:
        rows.append(("status", trials[0]["status"], trials[0]["reason"] or ""))
        rows.append(("seed", seeds_text(results.seeds), ""))
    rows.append(("rounds asked for", f"{planned:,}", ""))
    saved = sum(row["rounds_asked"] - row["rounds_computed"] for row in trials if row["status"] == "finished")
    rows.append(
        ("rounds computed", f"{computed:,}", f"reuse saved {saved:,} ({percent(saved / planned)})" if saved else "")
    )
    oracles = sum(row["breaks_privacy"] == 1 for row in trials)
    if oracles:
        rows.append(("privacy", BREAKS_PRIVACY, f"{oracles:,} of {len(trials):,} trials" if results.axes else ""))
    evaluated = [row for row in trials if row["scope"]]
    personal = sum(row["scope"] == "personal" for row in evaluated)
    if personal:
        detail = "each client's on its own test rows"
        if personal < len(evaluated):
            detail += f", in {personal:,} of {len(evaluated):,} trials; not to be compared with the others', "
            detail += "of the global model on the whole test set"
        rows.append(("accuracy", "of personal models", detail))
    if results.devices is not None:
        rows.append(("simulated time", str(results.devices), "a round lasts as long as its slowest client"))
    rows += [("tuned", setting_label(side.chosen.values), side.sentence) for side in tuned_sides.read(results.path)]
    if best and results.axes:
        rows.append(("best", measured.text(best[0].mean, unit=True), f"{best[0].label}{_ties(results, len(best))}"))
    elif best:
        s = best[0].summary
        figure = measured.text(s.mean, unit=True) + spread_text(measured, s.std, s.n)
        rows.append((measured.short.partition(" (")[0], figure, measured.label))
    return rows


def _ties(results: Results, settings: int) -> str:
    """Say how many settings are not told apart from the best one, as the tables' bold figures do; "" of many."""
    if settings > MOST_ROWS:
        return ""
    axes = tuple(axis.name for axis in results.axes)
    ties = sum(comparisons(results, PaperTable("", axes, (), results.metric))["bold"])
    return f"; {counted(ties, 'other')} not told apart from it" if ties else ""
