"""Tables of trials: the settings by rank, every trial, the failures by reason; of a run its slowest clients."""

from __future__ import annotations

import json
import math
from typing import Any

from engine.record.metrics import by_column
from engine.record.run_folder import RunFolder
from engine.results.results import Results
from engine.results.settings import MARK, setting_label
from fedskew.lab.comparing.ranking import Setting, ranked
from fedskew.lab.pages.tables import (
    Cell,
    Table,
    count_cell,
    interval_text,
    long_cell,
    spread_text,
    value_cell,
    word_cell,
)
from fedskew.lab.quantities import quantity, quantity_of

MOST_SETTINGS, MOST_SLOW = 15, 10
COLUMNS = by_column()


def best_settings(results: Results, settings: list[Setting]) -> Table | None:
    """Rank the settings: for a sweep whose hyper-parameters are drawn, and for a grid too large for a table."""
    finished = ranked(settings, results.mode)
    if not results.axes or not finished:
        return None
    measured = quantity_of(results)
    oracles = any(setting.breaks_privacy for setting in finished)
    rows = []
    for rank, setting in enumerate(finished[:MOST_SETTINGS], start=1):
        s = setting.summary
        rows.append(
            [
                count_cell(rank),
                *(value_cell(setting.values[axis.name]) for axis in results.axes),
                *[word_cell(MARK if setting.breaks_privacy else "")] * oracles,
                Cell(measured.text(s.mean) + spread_text(measured, s.std, s.n), s.mean),
                Cell(interval_text(measured, s.low, s.high, signed=False), s.low),
                count_cell(s.n),
            ]
        )
    axes = [axis.name for axis in results.axes]
    head = ("rank", *axes, *["privacy"] * oracles, measured.short, "95 % interval", "seeds")
    some = f"The best {len(rows)} of {len(settings)} settings" if len(rows) < len(settings) else "All settings by rank"
    lucky = "Being the best of many, the first is partly lucky."
    note = f"{some}: {measured.title}, mean ± standard deviation over seeds. {lucky}"
    return Table("settings", "Best settings", note, head, rows, results.settings())


def trials_table(results: Results) -> Table:
    """Every trial; columns that say the same of all trials, which is nothing, are left out."""
    trials: list[dict[str, Any]] = results.trials.to_dict("records")
    changes = schedules(results)
    personal = any(row["scope"] == "personal" for row in trials)
    columns = [
        ("trial", [word_cell(row["trial"]) for row in trials]),
        ("status", [Cell(row["status"], style=f"word {row['status']}") for row in trials]),
        *((axis.name, [value_cell(row[axis.name]) for row in trials]) for axis in results.axes),
        ("seed", [count_cell(row["seed"]) for row in trials]),
    ]
    if any(row["breaks_privacy"] == 1 for row in trials):
        columns.append(("privacy", [word_cell(MARK if row["breaks_privacy"] == 1 else "") for row in trials]))
    if personal:
        columns.append(("scope", [word_cell(row["scope"] or "") for row in trials]))
    for one in (quantity(name) for name in COLUMNS if name in results.trials):
        values = [float(row[one.column]) for row in trials]
        if any(map(math.isfinite, values)):
            columns.append((one.short, [Cell("" if math.isnan(v) else one.text(v), v) for v in values]))
    if changes:
        columns.append(("schedule", [long_cell(changes.get(row["trial"], "")) for row in trials]))
    columns.append(("weights", [word_cell((row["weights_sha256"] or "")[:12]) for row in trials]))
    if any(row["reason"] for row in trials):
        columns.append(("reason", [long_cell(row["reason"] or "") for row in trials]))
    note = "A click on a header sorts. trials.parquet beside this folder has all columns."
    if personal:
        note += " Accuracy and loss without a further word are of what the scope says."
    head, cells = zip(*columns, strict=True)
    rows = [list(row) for row in zip(*cells, strict=True)]
    return Table("trials", "Trials", note, head, rows, results.trials, tall=len(rows) > 16)


def schedules(results: Results) -> dict[str, str]:
    """Describe what a trial had from which round on, where something changed (population-based training)."""
    by_trial = {}
    for trial, text in zip(results.trials["trial"], results.trials["schedule"], strict=True):
        if text is not None:
            by_trial[trial] = "; ".join(
                f"from round {one['first_round']}: {setting_label(one['set'])}"
                + (f", copied from {one['from']}" if one.get("from") else "")
                for one in json.loads(text)
            )
    return by_trial


def slowest(results: Results) -> list[Table]:
    """Of a run, its actors and its clients by the time of a step, the slowest first."""
    if [*results.trials["folder"]] != ["."]:
        return []
    columns = ["actor", "client", "steps", "seconds", "reused"]
    rows: Any = RunFolder(results.path).arrow("clients", columns).to_pandas()
    rows = rows[~rows["reused"] & (rows["steps"] > 0)].assign(rounds=1, longest=rows["seconds"])
    tables = []
    for name in ("actor", "client"):
        by = rows.dropna(subset=[name, "seconds"]).astype({name: int}).groupby(name)
        found = by.agg({"rounds": "sum", "steps": "sum", "seconds": "sum", "longest": "max"})
        found = found.assign(ms_per_step=1e3 * found["seconds"] / found["steps"])
        found = found.sort_values("ms_per_step", ascending=False, kind="stable").head(MOST_SLOW).reset_index()
        cells = [[Cell(f"{value:.4g}", value) for value in row] for row in found.itertuples(index=False)]
        head = (name, "rounds of clients", "steps", "seconds", "longest round (s)", "ms per step")
        tables += [Table(f"slowest-{name}s", f"The slowest {name}s", "", head, cells, found)] * (len(found) > 1)
    return tables


def failures(results: Results) -> list[tuple[str, str]]:
    """List each reason with the trials that failed for it."""
    by_reason: dict[str, list[str]] = {}
    names = [*(axis.name for axis in results.axes), "seed"]
    for row in results.trials.to_dict("records"):
        if row["status"] == "failed":
            setting = setting_label({name: row[name] for name in names})
            by_reason.setdefault(row["reason"] or "no reason was recorded", []).append(f"{row['trial']} ({setting})")
    rows = []
    for reason, trials in by_reason.items():
        more = f" and {len(trials) - 3} more" if len(trials) > 4 else ""
        rows.append((reason, ", ".join(trials[:3] if more else trials) + more))
    return rows
