"""The report of a sweep or of a run: one HTML page that needs nothing else, Markdown, PNG, CSV and parquet.

    write(Path("runs/drift.fedprox_mu-laptop-0123456789ab"))    -> .../report/report.html

    report/report.html    style, script and figures inside; no request leaves it, which its content policy enforces
    report/report.md      the same without hover values
    report/*.png, *.csv   each figure and each table
    trials.parquet        one row per trial

Everything is made from the folder alone, so the same folder gives the same bytes. The folder ``report`` is the
report's own: pictures and tables in it that it does not make any more are deleted.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import math
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup

import engine
from engine.analysis import diagnosis_sweep, drift_figures, figures
from engine.analysis.claims import Verdict, judge
from engine.analysis.drawing import THEME, Drawing
from engine.analysis.importance import importance
from engine.analysis.layouts import Layout, comparisons, layout_frame
from engine.analysis.scales import Quantity, Setting, distinct, quantity, ranked, settings_of, shown
from engine.analysis.settings import key, setting_label
from engine.analysis.tables import Results, load, write_trials
from engine.analysis.trials import read_json, read_yaml
from engine.errors import ConfigError, FedskewError
from engine.files import write_atomically

PAGE_COLOURS = {  # beside those of the figures: in the light, in the dark
    "rule": ("#cfd4da", "#3a424d"),
    "shade": ("#f4f5f7", "#1d2229"),
    "link": ("#0b5cad", "#7db8f0"),
    "good": ("#0a6e4b", "#4fcf9f"),
    "bad": ("#b03a06", "#ff9466"),
}
_BOLD = "Bold: the best of each column, and what cannot be told from it (the paired 95 % t interval contains 0)."
_BOLD_ONE_SEED = "Bold: the best of each column; one seed cannot tell it from the others."
_CURVES = "Mean over seeds; the band is the 95 % bootstrap interval."
MOST_ROWS_MARKDOWN = 60
MOST_TABLE_ROWS = 48  # of a table that the report makes up by itself
BEST_SETTINGS = 15


TRIAL_COLUMNS = (
    "last10_accuracy",
    "accuracy",
    "best_accuracy",
    "best_round",
    "worst_decile_accuracy",
    "loss",
    "rounds_to_target",
    "bytes_to_target",
    "rounds",
    "rounds_computed",
    "seconds",
)


# --- tables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    text: str
    value: float | None = None  # what it is sorted by, if not by its text; NaN is last
    tip: str = ""
    style: str = ""  # CSS classes
    below: str = ""  # a second line
    below_style: str = ""

    @property
    def words(self) -> bool:
        """Aligned to the left."""
        return bool({"word", "long"} & set(self.style.split()))

    @property
    def sorted_by(self) -> str | None:
        if self.value is None:
            return None
        return "" if math.isnan(self.value) else repr(self.value)

    @property
    def markdown(self) -> str:
        text = " ".join(part for part in (self.text, f"({self.below})" if self.below else "") if part)
        text = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
        text = " ".join(text.split())
        return f"**{text}**" if "best" in self.style else text


@dataclass(frozen=True, eq=False)
class Sheet:
    """A table: as the page shows it, and as the CSV file has it."""

    name: str
    title: str
    note: str
    head: tuple[str, ...]
    rows: list[list[Cell]]
    frame: pd.DataFrame
    labels: int = 1  # so many columns at the left name the row
    tall: bool = False

    @property
    def markdown(self) -> str:
        lines = [[Cell(name).markdown for name in self.head], ["---"] * len(self.head)]
        lines += [[cell.markdown for cell in row] for row in self.rows[:MOST_ROWS_MARKDOWN]]
        text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        more = len(self.rows) - MOST_ROWS_MARKDOWN
        return f"{text}\n\n{more} more rows in [{self.name}.csv]({self.name}.csv)." if more > 0 else text


def _csv(frame: pd.DataFrame) -> str:
    plain = frame.copy()
    for name in plain.columns:
        if plain[name].dtype == object:
            plain[name] = pd.Series([_csv_value(value) for value in plain[name].tolist()], dtype=object)
    return plain.to_csv(index=False, lineterminator="\n")


def _csv_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return json.dumps(value, sort_keys=True) if isinstance(value, list | tuple | dict) else value


def _value(value: Any) -> Cell:
    """A hyper-parameter's value."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(
        f"{value:.6g}" if isinstance(value, float) else shown(value, 60),
        float(value) if number else None,
        style="" if number else "word",
    )


def _p(value: float) -> str:
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3g}"


def _interval(measured: Quantity, low: float, high: float, signed: bool = True) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "–"
    written = measured.difference if signed else measured.text
    return f"{written(low)} to {written(high)}"


def _seeds(seeds: Sequence[int]) -> str:
    """``0–4``, ``0, 1, 5``, ``none``."""
    if not seeds:
        return "none"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


@dataclass(frozen=True)
class TableView:
    """A table in the layout of a paper with the comparisons behind its bold figures, or why there is none."""

    title: str
    source: str
    sheet: Sheet | None
    pairs: Sheet | None
    problem: str = ""


def tables(results: Results) -> list[TableView]:
    layouts = list(results.tables) or _own_layouts(results)
    return [_table(results, layout, number) for number, layout in enumerate(layouts, start=1)]


def _own_layouts(results: Results) -> list[Layout]:
    """One table of the whole grid, if a sweep asks for none and the grid is small enough to be read."""
    counts = {axis.name: len(distinct(results.trials[axis.name])) for axis in results.axes if axis.kind == "grid"}
    if not counts or len(counts) < len(results.axes):
        return []
    *rows, column = counts
    if not rows or counts[column] > 8:
        rows, columns = [*rows, column], ()
    else:
        columns = (column,)
    if math.prod(counts[name] for name in rows) > MOST_TABLE_ROWS:
        return []
    return [Layout("All settings", tuple(rows), columns, results.metric)]


def _table(results: Results, layout: Layout, number: int) -> TableView:
    try:
        cells = layout_frame(results, layout)
        compared = comparisons(results, layout)
    except ConfigError as error:
        return TableView(layout.title, layout.source, None, None, f"This sweep cannot fill the table: {error}.")
    measured = quantity(layout.metric, results.target_accuracy)
    best = _best(cells, compared, layout)
    across = distinct(tuple(row[name] for name in layout.columns) for row in cells.to_dict("records"))
    down: dict[Any, dict[Any, Mapping[str, Any]]] = {}
    for row in cells.to_dict("records"):
        place = key([row[name] for name in layout.rows])
        down.setdefault(place, {})[key([row[name] for name in layout.columns])] = row
    rows = []
    for row in down.values():
        first = next(iter(row.values()))
        filled = [_figure(row.get(key(place)), measured, best, layout) for place in across]
        rows.append([*(_value(first[name]) for name in layout.rows), *filled])
    columns = [setting_label(dict(zip(layout.columns, place, strict=True))) or measured.short for place in across]
    averaged = cells["averaged"].iloc[0] if len(cells) else ""
    where = ", ".join(f"{name} = {shown(value)}" for name, value in layout.where.items())
    several = max(cells["n"].tolist(), default=0) > 1
    over = ", mean ± standard deviation over seeds" if several else ""
    notes = [
        f"{measured.title[0].upper()}{measured.title[1:]}{over}.",
        f"At {where}." if where else "",
        f"Averaged over {averaged}, seed by seed." if averaged else "",
        (_BOLD if several else _BOLD_ONE_SEED) if len(compared) else "",
        "Second line: the published figure; grey where the setting is another one."
        if any(math.isfinite(value) for value in cells["published"].tolist())
        else "",
    ]
    sheet = Sheet(
        f"table-{number}",
        layout.title,
        " ".join(filter(None, notes)),
        (*layout.rows, *columns),
        rows,
        cells,
        labels=len(layout.rows),
    )
    return TableView(layout.title, layout.source, sheet, _pairs(compared, layout, measured, number))


def _best(cells: pd.DataFrame, compared: pd.DataFrame, layout: Layout) -> set[Any]:
    """The cells in bold: the reference of each column, and those whose interval of the difference reaches 0."""
    worse, near = set(), set()
    for row in compared.to_dict("records"):
        place = key([row[name] for name in layout.axes])
        worse.add(place)
        reaches = row["n"] > 1 and not (row["low"] > 0 or row["high"] < 0)
        if reaches and math.isfinite(row["difference"]):
            near.add(place)
    every = {key([row[name] for name in layout.axes]) for row in cells.to_dict("records") if math.isfinite(row["mean"])}
    return (every - worse if len(compared) else set()) | near


def _figure(row: Mapping[str, Any] | None, measured: Quantity, best: set[Any], layout: Layout) -> Cell:
    if row is None:
        return Cell("", math.nan)
    lost = [f"{row[status]} {status}" for status in ("failed", "stopped", "running") if row[status]]
    seeds = f"{row['n']} seed{'s' if row['n'] != 1 else ''}"
    tip = [setting_label({name: row[name] for name in layout.axes}), ", ".join([seeds, *lost])]
    text = measured.text(row["mean"])
    if row["n"] > 1:
        text += f" ± {measured.text(row['std'])}"
        tip.insert(1, f"95 % interval {_interval(measured, row['low'], row['high'], signed=False)}")
    below, below_style = "", ""
    if math.isfinite(row["published"]):
        below = f"paper {measured.text(row['published'])}"
        if not row["same_setting"]:
            below, below_style = f"{below}, other setting", "other"
        else:
            tip.append(f"ours less the paper's: {measured.difference(row['difference'], unit=True)}")
        if row["note"]:
            tip.append(row["note"])
    style = "best" if key([row[name] for name in layout.axes]) in best else ""
    if not row["n"]:
        text = ", ".join(lost) or "–"
    return Cell(text, float(row["mean"]), "\n".join(filter(None, tip)), style, below, below_style)


def _pairs(compared: pd.DataFrame, layout: Layout, measured: Quantity, number: int) -> Sheet | None:
    if not len(compared):
        return None
    points = " (points)" if measured.unit == "%" else f" ({measured.unit})" if measured.unit else ""
    head = (
        *layout.columns,
        "setting",
        "best of the column",
        f"difference{points}",
        "95 % t interval",
        "p",
        "p, Holm",
        "seeds",
    )
    rows = []
    for row in compared.to_dict("records"):
        rows.append(
            [
                *(_value(row[name]) for name in layout.columns),
                Cell(row["setting"], style="word"),
                Cell(row["reference"], style="word"),
                Cell(measured.difference(row["difference"]), float(row["difference"])),
                Cell(_interval(measured, row["low"], row["high"]), float(row["low"])),
                Cell(_p(row["p"]), float(row["p"])),
                Cell(_p(row["p_holm"]), float(row["p_holm"])),
                Cell(_seeds(row["seeds"]), float(row["n"])),
            ]
        )
    fewest = min(row["n"] for row in compared.to_dict("records"))
    least = f" With {fewest} seeds no exact p is below {2 / 2**fewest:g}." if 1 < fewest < 6 else ""
    note = (
        "Paired seed by seed with the best of the same column, which was chosen by these same seeds, so its lead is on "
        f"the large side. p: exact sign-flip test, two-sided; Holm: over the rows of this table.{least}"
    )
    labels = len(layout.columns) + 2
    return Sheet(
        f"table-{number}-comparisons", "Paired differences", note, head, rows, compared, labels, len(rows) > 14
    )


def best_settings(results: Results, settings: list[Setting]) -> Sheet | None:
    """The settings by rank: for a sweep whose hyper-parameters are drawn, and for a grid too large for a table."""
    finished = ranked(settings, results.mode)
    if not results.axes or not finished:
        return None
    measured = quantity(results.metric, results.target_accuracy)
    rows = []
    for rank, setting in enumerate(finished[:BEST_SETTINGS], start=1):
        s = setting.summary
        rows.append(
            [
                Cell(str(rank), float(rank)),
                *(_value(setting.values[axis.name]) for axis in results.axes),
                Cell(measured.text(s.mean) + (f" ± {measured.text(s.std)}" if s.n > 1 else ""), s.mean),
                Cell(_interval(measured, s.low, s.high, signed=False), s.low),
                Cell(str(s.n), float(s.n)),
            ]
        )
    head = ("rank", *(axis.name for axis in results.axes), measured.short, "95 % interval", "seeds")
    some = f"The best {len(rows)} of {len(settings)} settings" if len(rows) < len(settings) else "All settings by rank"
    lucky = "Being the best of many, the first is partly lucky."
    note = f"{some}: {measured.title}, mean ± standard deviation over seeds. {lucky}"
    return Sheet("settings", "Best settings", note, head, rows, results.settings())


def trials_sheet(results: Results) -> Sheet:
    frame = results.trials
    trials: list[dict[str, Any]] = frame.to_dict("records")
    columns = [quantity(name) for name in TRIAL_COLUMNS if any(math.isfinite(row[name]) for row in trials)]
    schedules = _schedules(results)
    reasons = any(row["reason"] for row in trials)
    head = ["trial", "status", *(axis.name for axis in results.axes), "seed", *(one.short for one in columns)]
    head += ["schedule"] * bool(schedules) + ["weights"] + ["reason"] * bool(reasons)
    rows = []
    for row in trials:
        cells = [Cell(row["trial"], style="word"), Cell(row["status"], style=f"word {row['status']}")]
        cells += [_value(row[axis.name]) for axis in results.axes]
        cells += [Cell(str(row["seed"]), float(row["seed"]))]
        for one in columns:
            value = float(row[one.column])
            cells.append(Cell("" if math.isnan(value) else one.text(value), value))
        if schedules:
            cells.append(Cell(schedules.get(row["trial"], ""), style="long"))
        cells.append(Cell((row["weights_sha256"] or "")[:12], style="word"))
        if reasons:
            cells.append(Cell(row["reason"] or "", style="long"))
        rows.append(cells)
    note = "A click on a header sorts. trials.parquet beside this folder has all columns."
    return Sheet("trials", "Trials", note, tuple(head), rows, frame, tall=len(rows) > 16)


def failures(results: Results) -> list[tuple[str, str]]:
    """Each reason with the trials that failed for it."""
    by_reason: dict[str, list[str]] = {}
    names = [axis.name for axis in results.axes]
    for row in results.trials.to_dict("records"):
        if row["status"] != "failed":
            continue
        setting = setting_label({name: row[name] for name in names} | {"seed": row["seed"]})
        by_reason.setdefault(row["reason"] or "no reason was recorded", []).append(f"{row['trial']} ({setting})")
    found = []
    for reason, trials in by_reason.items():
        more = f" and {len(trials) - 3} more" if len(trials) > 4 else ""
        found.append((reason, ", ".join(trials[:3] if more else trials) + more))
    return found


def _schedules(results: Results) -> dict[str, str]:
    """What changed in mid-run, for trials in which something did (population-based training)."""
    found = {}
    for trial, folder in zip(results.trials["trial"], results.trials["folder"], strict=True):
        path = results.path / folder / "trial.json"
        changes = read_json(path).get("schedule", [])[1:] if path.exists() else []
        if changes:
            found[trial] = "; ".join(
                f"from round {change['first_round']}: {setting_label(change['set'])}" for change in changes
            )
    return found


# --- claims ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClaimView:
    number: int
    verdict: Verdict
    numbers: tuple[str, ...]
    places: Mapping[str, float] | None  # of the small picture, in percent of its width
    cells: Sheet | None
    drawing: Drawing | None

    @property
    def style(self) -> str:
        return self.verdict.verdict.replace(" ", "-")


def claims(verdicts: Sequence[Verdict], target: float | None) -> list[ClaimView]:
    return [_claim(number, verdict, target) for number, verdict in enumerate(verdicts, start=1)]


def _claim(number: int, verdict: Verdict, target: float | None) -> ClaimView:
    claim = verdict.claim
    measured = quantity(claim.metric, target)
    numbers = []
    if math.isfinite(verdict.effect):
        where = " in the weakest cell" if len(verdict.cells) > 1 else ""
        effect = f"Effect{where} {measured.difference(verdict.effect, unit=True)}"
        if math.isfinite(verdict.low):
            effect += f", 95 % interval {_interval(measured, verdict.low, verdict.high)}"
        numbers.append(effect)
    if claim.margin:
        kind = "within ±" if claim.kind == "equal" else "more than "
        numbers.append(f"asked for {kind}{measured.difference(claim.margin, unit=True).lstrip('+')}")
    if not math.isnan(verdict.p):
        numbers.append(f"p {_p(verdict.p)} (Holm {_p(verdict.p_holm)})")
    numbers.append(f"seeds {_seeds(verdict.seeds)}" if verdict.seeds else "no common seed")
    if verdict.seeds_to_decide is not None:
        numbers.append(f"about {verdict.seeds_to_decide} seeds would decide it")
    return ClaimView(
        number,
        verdict,
        tuple(numbers),
        _places(verdict),
        _claim_cells(number, verdict, measured) if verdict.cells else None,
        figures.forest(number, verdict),
    )


def _places(verdict: Verdict) -> dict[str, float] | None:
    """Where zero, margin, interval and effect of the weakest cell lie along a line."""
    marks = {"zero": 0.0, "margin": verdict.claim.margin, "effect": verdict.effect}
    if math.isfinite(verdict.low) and math.isfinite(verdict.high):
        marks |= {"low": verdict.low, "high": verdict.high}
    if verdict.claim.kind == "equal":
        marks["other_margin"] = -verdict.claim.margin
    if not all(map(math.isfinite, marks.values())):
        return None
    low, high = min(marks.values()), max(marks.values())
    if low == high:
        return None
    return {name: round(4 + 92 * (value - low) / (high - low), 2) for name, value in marks.items()}


def _claim_cells(number: int, verdict: Verdict, measured: Quantity) -> Sheet:
    points = " (points)" if measured.unit == "%" else f" ({measured.unit})" if measured.unit else ""
    head = ["cell", "verdict", f"effect{points}", "95 % t interval", "p", "seeds", "why"]
    open_ones = any(cell.verdict == "undecided" and cell.seeds_to_decide for cell in verdict.cells)
    if open_ones:
        head.insert(6, "would decide it")
    rows, records = [], []
    for cell in verdict.cells:
        decide = cell.seeds_to_decide if cell.verdict == "undecided" else None
        rows.append(
            [
                Cell(setting_label(cell.cell) or "all", style="word"),
                Cell(cell.verdict, style=f"word {cell.verdict.replace(' ', '-')}"),
                Cell(measured.difference(cell.effect), cell.effect),
                Cell(_interval(measured, cell.low, cell.high), cell.low),
                Cell(_p(cell.p), cell.p),
                Cell(_seeds(cell.seeds), float(len(cell.seeds))),
                *([Cell(f"{decide} seeds" if decide else "", float(decide or math.nan))] if open_ones else []),
                Cell(cell.why, style="long"),
            ]
        )
        records.append({"claim": number, **dataclasses.asdict(cell)})
    return Sheet(f"claim-{number}-cells", "Cells", "", tuple(head), rows, pd.DataFrame(records), tall=len(rows) > 14)


def _claims_frame(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    rows = []
    for number, one in enumerate(verdicts, start=1):
        row = {
            "claim": number,
            **{name: getattr(one.claim, name) for name in ("text", "source", "metric", "margin", "kind")},
        }
        names = ("verdict", "effect", "low", "high", "p", "p_holm", "seeds", "seeds_to_decide", "why")
        rows.append(row | {name: getattr(one, name) for name in names})
    return pd.DataFrame(rows)


# --- figures -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Group:
    """Figures of one kind; without any there is a note that says why, or the section is left out."""

    anchor: str
    title: str
    short: str
    drawings: Sequence[Drawing]
    note: str = ""


def figure_groups(results: Results, settings: list[Setting]) -> tuple[list[Group], dict[str, pd.DataFrame]]:
    """The groups in the order of the page, and the tables behind them that are no other table."""
    measured = quantity(results.metric, results.target_accuracy)
    curves, drawn = figures.curves(results, settings)
    worth = importance(results, settings)
    pictures, missing = _partitions(results, settings)
    changed = "Hyper-parameters changed in mid-run; a trial stands where it began. " if _schedules(results) else ""
    over = f"{changed}{measured.title[0].upper()}{measured.title[1:]}."
    groups = [
        Group("curves", "Curves", "Curves", curves, _CURVES if len(results.seeds) > 1 else ""),
        Group("sensitivity", "Sensitivity", "Sensitivity", figures.sensitivity(results, settings), over),
        Group("pairs", "Two hyper-parameters at a time", "Pairs", figures.heat_maps(results, settings)),
        Group(
            "importance",
            "Importance of hyper-parameters",
            "Importance",
            figures.importance(worth) if worth else [],
            worth.note if worth else "",
        ),
        Group("parallel", "All hyper-parameters at once", "Parallel", figures.parallel_coordinates(results, settings)),
        Group("classes", "Accuracy of each class", "Classes", figures.class_accuracy(results, settings)),
        Group(
            "clients",
            "The worst-served clients",
            "Clients",
            figures.worst_clients(results, settings),
            "What the final global model is expected to score on test data distributed as a client's own classes are, "
            "averaged over the worst tenth of the clients.",
        ),
        Group("drift", "Client drift", "Drift", _drift(results)),
        Group("partitions", "Partitions", "Partitions", pictures, missing),
    ]
    frames = {"curves": drawn} if len(drawn) else {}
    if worth:
        frames["importance"] = worth.frame
    return [group for group in groups if group.drawings], frames


def _drift(results: Results) -> list[Drawing]:
    """Of a sweep that has been diagnosed."""
    means = diagnosis_sweep.means(results.path)
    return [drift_figures.over_settings(means)] if means else []


def _partitions(results: Results, settings: list[Setting]) -> tuple[list[Drawing], str]:
    """One picture for each partition that the sweep draws, with the first seed that has it."""
    names = [axis.name for axis in results.axes if axis.key.partition(".")[0] in ("partition", "data")]
    groups: dict[Any, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(key([setting.values[name] for name in names]), []).append(setting)
    drawings: list[Drawing] = []
    for members in groups.values():
        if len(drawings) == figures.MOST_PARTITIONS:
            break
        for row in (row for setting in members for row in setting.trials):
            try:
                counts = results.class_counts(row["trial"])
            except (FedskewError, OSError):
                continue  # it died before it had one, or the data are on another machine
            title = setting_label({name: row[name] for name in names})
            drawings.append(figures.partition(f"partition-{len(drawings) + 1}", title, counts))
            break
    some = f"The first {len(drawings)} of {len(groups)} partitions. " if len(drawings) < len(groups) else ""
    return drawings, f"{some}Which client holds which classes, in the trial of the first seed."


# --- the page ----------------------------------------------------------------------------------------------


def facts(results: Results, settings: list[Setting]) -> list[tuple[str, str, str]]:
    """What was done, in figures: label, figure, detail."""
    trials: list[dict[str, Any]] = results.trials.to_dict("records")
    counts = Counter(row["status"] for row in trials)
    order = [status for status in ("finished", "stopped", "failed", "running") if counts[status]]
    asked, computed = (sum(row[name] for row in trials) for name in ("rounds_asked", "rounds_computed"))
    measured = quantity(results.metric, results.target_accuracy)
    best = ranked(settings, results.mode)
    rows = []
    if results.axes or len(trials) != 1:
        detail = ", ".join(f"{counts[status]:,} {status}" for status in order) or "none has begun"
        rows.append(("trials", f"{len(trials):,}", detail))
        rows.append(("seeds", f"{len(results.seeds)}", _seeds(results.seeds)))
    else:
        rows.append(("status", trials[0]["status"], trials[0]["reason"] or ""))
        rows.append(("seed", _seeds(results.seeds), ""))
    rows.append(("rounds asked for", f"{asked:,}", ""))
    saved = sum(row["rounds_asked"] - row["rounds_computed"] for row in trials if row["status"] == "finished")
    share = f"{saved / asked:.0%}".replace("%", " %") if asked else ""
    rows.append(("rounds computed", f"{computed:,}", f"reuse saved {saved:,} ({share})" if saved else ""))
    if best and results.axes:
        rows.append(("best", measured.text(best[0].mean, unit=True), best[0].label))
    elif best:
        s = best[0].summary
        spread = f" ± {measured.text(s.std)}" if s.n > 1 else ""
        rows.append((measured.short.partition(" (")[0], measured.text(s.mean, unit=True) + spread, measured.label))
    return rows


def _theme() -> str:
    light = {name: colour for colour, (name, _) in THEME.items()} | {n: c for n, (c, _) in PAGE_COLOURS.items()}
    dark = dict(THEME.values()) | {n: c for n, (_, c) in PAGE_COLOURS.items()}

    def rule(colours: Mapping[str, str], scheme: str) -> str:
        return f"color-scheme:{scheme};" + "".join(f"--{name}:{colour};" for name, colour in colours.items())

    return (
        f":root{{{rule(light, 'light')}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{rule(dark, 'dark')}}}}}\n"
        f":root[data-theme=dark]{{{rule(dark, 'dark')}}}\n"
    )


def _part(name: str) -> str:
    return resources.files("engine.analysis").joinpath(name).read_text(encoding="utf-8")


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_part("page.html.j2"))


def _origin(results: Results) -> tuple[str, list[tuple[str, str]]]:
    """The sweep as it was asked for, or the run's experiment, in YAML; and what it was computed with."""
    sweep = results.path / "sweep.yaml"
    source = sweep if sweep.exists() else results.path / "experiment.yaml"
    text = source.read_text(encoding="utf-8")
    rows = [("folder", results.path.resolve().name)]
    if sweep.exists():
        values = read_yaml(sweep)
        rows.append(("digest of the sweep", str(values.get("digest", ""))))
        for name in ("search", "scheduler"):
            rows.append((name, yaml.safe_dump(values.get(name), default_flow_style=True, sort_keys=False).strip()))
    seconds = results.trials["seconds"].sum()
    rows.append(("seconds of all trials", f"{seconds:,.1f}"))
    rows.append(("fedskew", engine.__version__))
    rows += [(name, metadata.version(name)) for name in ("torch", "ray", "numpy", "pandas", "scipy", "scikit-learn")]
    rows.append(("Python", platform.python_version()))
    return text, rows


def _markdown(results: Results, sections: _Sections) -> str:
    def escaped(text: str) -> str:
        return Cell(text).markdown

    def pictures(drawings: Iterable[Drawing]) -> list[str]:
        return [f"![{escaped(one.caption)}]({one.name}.png)\n\n{escaped(one.caption)}" for one in drawings]

    blocks = [
        f"# {escaped(results.title)}",
        f"`{results.name}`" + (f", profile {results.profile}" if results.profile else ""),
    ]
    blocks.append(
        "\n".join(f"- {name}: {figure}{f' ({escaped(more)})' if more else ''}" for name, figure, more in sections.facts)
    )
    if sections.claims:
        blocks.append("## Claims")
    for view in sections.claims:
        one = view.verdict
        source = f" ({escaped(one.claim.source)})" if one.claim.source else ""
        said = f"{view.number}. **{one.verdict}**: {escaped(one.claim.text)}{source}"
        blocks.append("  \n   ".join([said, "; ".join(view.numbers), escaped(one.why)]))
    for view in sections.tables:
        blocks.append(f"## {escaped(view.title)}")
        blocks += [escaped(view.source)] if view.source else []
        blocks += [f"{sheet.markdown}\n\n{sheet.note}" for sheet in (view.sheet, view.pairs) if sheet]
        blocks += [escaped(view.problem)] if view.problem else []
    if sections.best:
        blocks += ["## Best settings", sections.best.markdown, sections.best.note]
    for group in sections.groups:
        blocks += [f"## {group.title}", *([group.note] if group.note else []), *pictures(group.drawings)]
    blocks += ["## Trials", *(f"Failed: {escaped(who)}: {escaped(why)}." for why, who in sections.failures)]
    blocks += [sections.trials.markdown]
    return "\n\n".join(blocks) + "\n"


@dataclass(frozen=True, eq=False)
class _Sections:
    """What the page and its Markdown twin show."""

    facts: list[tuple[str, str, str]]
    claims: list[ClaimView]
    tables: list[TableView]
    best: Sheet | None
    groups: list[Group]
    failures: list[tuple[str, str]]
    trials: Sheet


def write(folder: Path, metric: str | None = None) -> Path:
    """Write ``report/`` and ``trials.parquet`` into the folder of a sweep or a run; the path of the page.

    ``metric`` (a column of the trials table) takes the place of the sweep's own.
    """
    results = load(Path(folder), metric)
    settings = settings_of(results)
    verdicts = judge(results)
    views = claims(verdicts, results.target_accuracy)
    groups, frames = figure_groups(results, settings)
    layouts = tables(results)
    sections = _Sections(
        facts(results, settings),
        views,
        layouts,
        best_settings(results, settings) if len(settings) > 12 or not any(one.sheet for one in layouts) else None,
        groups,
        failures(results),
        trials_sheet(results),
    )
    origin, versions = _origin(results)
    script = _part("page.js")
    page = _template().render(
        results=results,
        kind="sweep" if (results.path / "sweep.yaml").exists() else "run",
        sections=sections,
        words=[(word, sum(one.verdict == word for one in verdicts)) for word in ("held", "not held", "undecided")],
        equal=any(one.claim.kind == "equal" for one in verdicts),
        origin=origin,
        versions=versions,
        style=Markup(_theme() + _part("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        svg=Markup,
    )
    sheets = [sheet for view in sections.tables for sheet in (view.sheet, view.pairs)]
    sheets += [view.cells for view in views] + [sections.best, sections.trials]
    if verdicts:
        frames["claims"] = _claims_frame(verdicts)
    tables_written = {sheet.name: sheet.frame for sheet in sheets if sheet} | frames
    files: dict[str, bytes | str] = {f"{name}.csv": _csv(frame) for name, frame in tables_written.items()}
    drawings = [drawing for group in groups for drawing in group.drawings]
    drawings += [view.drawing for view in views if view.drawing]
    files |= {f"{drawing.name}.png": drawing.png for drawing in drawings}
    files |= {"report.md": _markdown(results, sections), "report.html": page}
    target = results.path / "report"
    target.mkdir(exist_ok=True)
    for old in [*target.glob("*.png"), *target.glob("*.csv")]:
        if old.name not in files:
            old.unlink()
    for name, content in files.items():
        write_atomically(target / name, content)
    write_trials(results)
    return target / "report.html"
