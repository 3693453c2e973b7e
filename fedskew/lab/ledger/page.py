"""The ledger as a page, docs/claims.md, and its headline claims as rows of the README between two markers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import scipy  # its stats are imported at their first use: they take longer than all else here

from engine.base.errors import RunFolderError
from engine.record.run_folder import BREAKS_PRIVACY
from engine.results.claims import Claim
from engine.results.settings import label, names_oracle
from fedskew.lab.ledger.entry import Entry, Outcome
from fedskew.lab.ledger.rows import EARLIER, NOT_RUN, WORDS, Row, SweepRows, counted_rows, counts
from fedskew.lab.quantities import quantity
from fedskew.lab.wording import counted, escaped, seeds_text

HEADLINES = {  # paper -> the sweep whose first claim is its row
    "CCVR": "ccvr.headline",
    "PFLEGO": "pflego.headline",
    "CBHMA": "cbhma.weak_class",
    "FedSER": "fedser.headline",
    "CBFL": "cbfl.headline",
}
TRAINING_ROWS = {"cifar10": 50_000, "cifar100": 50_000, "fashion_mnist": 60_000, "fashion_mnist_sample": 10_000}
OWN_DATA = ("imagefolder", "parquet")  # whose folder says what it is
BEGIN = "<!-- headline claims: written by fedskew claims -->"
END = "<!-- end of the headline claims -->"


def page(sweeps: Sequence[SweepRows], papers: Mapping[str, str]) -> str:
    """Return the page in Markdown; papers: by the module of its sweeps, the first sentence on each paper."""
    order = [*papers]
    judged = [(id(row), row.verdict.p) for _, row in counted_rows(sweeps) if row.verdict]
    known = {row: p for row, p in judged if math.isfinite(p)}
    of_ledger = dict(zip(known, scipy.stats.false_discovery_control([*known.values()]), strict=True)) if known else {}
    claiming = [sweep for sweep in sweeps if sweep.rows]
    ordered = sorted(claiming, key=lambda sweep: order.index(sweep.paper) if sweep.paper in order else len(order))
    return filled(
        "claims.md.j2",
        words=WORDS,
        counts=counts,
        papers=[(name, list(group)) for name, group in groupby(ordered, lambda sweep: sweep.paper)],
        everything=ordered,
        about=papers,
        method=lambda name: escaped(re.split(r",| \(|:", papers.get(name, name))[0]),
        both_ways=[_sensitivity(best, rows) for best, rows in both_ways(sweeps)],
        mark=_mark,
        p_values=lambda row: _p_values(row, of_ledger.get(id(row))),
        before=_before,
        tried=_tried,
    )


def with_headlines(text: str, sweeps: Iterable[SweepRows], paper: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the README's text with the table of today; raises :class:`RunFolderError` without its two markers.

    A paper's row is the first claim of its headline sweep: that which is counted. paper: by the name of a sweep, its
    base experiment in the profile paper.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunFolderError(f"README.md has no place for the headline claims; put in a line {BEGIN!r} and one {END!r}")
    known = [*sweeps]
    counted = counted_rows(known)
    first = {sweep.name: (sweep, row) for sweep, row in reversed(counted)}
    then = {id(row): other for _, rows in both_ways(known) for _, row, other in rows}
    headlines = []
    for name, of in HEADLINES.items():
        sweep, row = first.get(of, (None, None))
        setting, span = "", ""
        if sweep and row and row.verdict and sweep.entry:
            share = local_steps(sweep.entry.definition["base"]) / local_steps(paper[of]) if of in paper else math.nan
            setting = where(sweep.entry) + (f"; {100 * share:.2g} % of the paper's local steps" if share < 1 else "")
            span = _span(row, [other for one, other in counted if one is sweep])
        headlines.append((name, sweep, row, setting, span, _second_best(sweep, then.get(id(row)))))
    return f"{before}{BEGIN}\n{filled('headlines.md.j2', headlines=headlines)}{END}{after}"


def anchor(sweep: SweepRows) -> str:
    """Return the anchor of a sweep's heading, as a page of Markdown is given them."""
    return re.sub(r"[^\w -]", "", sweep.heading).replace(" ", "-")


def both_ways(sweeps: Iterable[SweepRows]) -> list[tuple[SweepRows, list[tuple[int, Row, Row]]]]:
    """Return each sweep that was run with the best and the second best choices, of one setting.

    With it, of each claim: its number, its row under the best choices, and that under the second best.
    """
    run = {(sweep.name, sweep.profile, sweep.changed, sweep.choice): sweep for sweep in sweeps if sweep.entry}
    found = []
    for (name, profile, changed, choice), second in run.items():
        best = run.get((name, profile, changed, ""))
        if choice and best is not None:
            then = [(number, row, _of_claim(second, row.claim)) for number, row in enumerate(best.rows, start=1)]
            found.append((best, [(number, row, other) for number, row, other in then if other is not None]))
    return found


def _of_claim(sweep: SweepRows, claim: Claim) -> Row | None:
    return next((row for row in sweep.rows if row.claim == claim), None)


def _sensitivity(best: SweepRows, rows: Sequence[tuple[int, Row, Row]]) -> dict[str, Any]:
    """Say how many verdicts of a sweep stay under the second best settings, and which do not."""
    judged = [(n, row.word, then.word) for n, row, then in rows if not {row.word, then.word} & {EARLIER, NOT_RUN}]
    other = [f"{number}: {word}, then {then}" for number, word, then in judged if word != then]
    return {"heading": best.heading, "claims": len(rows), "same": len(judged) - len(other), "other": other}


def _second_best(sweep: SweepRows | None, row: Row | None) -> str:
    """Tell what a claim came to with the second best choices; row: of it, None if there is none."""
    if row is not None:
        return ", ".join(filter(None, (row.word, row.effect)))
    tuned = sweep is None or sweep.entry is None or sweep.entry.definition.get("tuned")
    return NOT_RUN if tuned else "nothing tuned"


def _mark(claim: Claim) -> str:
    return f" ({BREAKS_PRIVACY})" if names_oracle([claim.better, claim.worse, claim.where, claim.than]) else ""


def where(entry: Entry) -> str:
    """Say on what the trials of a sweep were run: ``10,000 images of fashion_mnist; cnn; 10 clients; 12 rounds``."""
    base = entry.definition["base"]
    data, models = base["data"], [model["name"] for model in base.get("client_models") or [base["model"]]]
    name = Path(data["root"]).name if data["name"] in OWN_DATA else data["name"]
    name += f" at {data['size']} x {data['size']} pixels" if data.get("size") else ""
    images = f"{data['train_samples']:,} images of " if data.get("train_samples") else ""
    rounds = sum(stage["rounds"] for stage in base["stages"]) if base.get("stages") else base["rounds"]
    clients = counted(base["partition"]["clients"], "client")
    return f"{images}{name}; {', '.join(models)}; {clients}; {counted(rounds, 'round')}"


def local_steps(base: Mapping[str, Any]) -> float:
    """Return how many local steps a client takes in all rounds of an experiment, where all hold equally many rows.

    NaN where that does not say how long is trained: of data whose rows nobody says, and of class sets, whose student
    learns afterwards.
    """
    data, partition, stages = base["data"], base["partition"], base.get("stages") or [base]
    rows, clients, cohorts = data.get("train_samples"), partition["clients"], base["participation"]
    rows = (rows or TRAINING_ROWS.get(data["name"], 0)) / (clients or 1)
    if not rows or not clients or partition["name"] == "class_sets":
        return math.nan
    share = cohorts["count"] / clients if cohorts.get("count") else cohorts.get("fraction") or 1.0
    found = 0
    for stage in stages:
        local = {**base["local"], **{name: value for name, value in (stage.get("local") or {}).items() if value}}
        batches = 1 if local["batch_size"] == "full" else math.ceil(rows / local["batch_size"])
        found += stage["rounds"] * (local.get("steps") or local["epochs"] * batches)
    return found * share


def _span(row: Row, rows: Iterable[Row]) -> str:
    """Tell the least and the greatest effect among claims of a sweep with the metric, kind and margin of ``row``."""
    asked = ("metric", "kind", "margin")
    alike = [one for one in rows if all(getattr(one.claim, name) == getattr(row.claim, name) for name in asked)]
    known = [one.verdict.effect for one in alike if one.verdict and math.isfinite(one.verdict.effect)]
    told = quantity(row.claim.metric, row.target).difference
    return f"{told(min(known))} to {told(max(known))} in {counted(len(known), 'claim')}" if len(known) > 1 else ""


def _p_values(row: Row, of_ledger: float | None) -> str:
    """Write a claim's p, Holm's over its sweep, Benjamini and Hochberg's over the ledger; "" where there is none."""
    if row.verdict is None or not math.isfinite(row.verdict.p):
        return ""
    others = [row.verdict.p_holm, *([] if of_ledger is None else [of_ledger])]
    return f"{row.verdict.p:.3g} ({', '.join(f'{p:.3g}' for p in others)})"


def _before(sweep: SweepRows, outcome: Outcome) -> str:
    """Say what the same claims came to in an entry before this one; "" if it had none of them."""
    numbers: dict[str, list[str]] = {word: [] for word in WORDS}
    for number, row in ((number, row) for number, row in enumerate(sweep.rows, start=1) if row.verdict):
        numbers.get(outcome.verdicts.get(row.claim.text, ""), []).append(str(number))
    return "; ".join(f"{word}: {', '.join(found)}" for word, found in numbers.items() if found)


def _tried(entry: Entry) -> str:
    """Say with which settings the claims of a sweep were tried."""
    tried = ((axis["name"], axis["values"] or ["drawn"]) for axis in entry.definition["axes"])
    return "; ".join(f"{name}: {', '.join(map(label, values))}" for name, values in tried)


def filled(template: str, **values: Any) -> str:
    """Fill in a template of this folder."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> jinja2.Environment:
    folder = resources.files("fedskew.lab.ledger")
    loader = jinja2.FunctionLoader(lambda name: folder.joinpath(name).read_text(encoding="utf-8"))
    made = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.keep_trailing_newline = True
    made.filters |= {"escaped": escaped, "counted": counted, "seeds": seeds_text, "anchor": anchor}
    made.filters["minutes"] = lambda seconds: f"{seconds / 60:.1f}"
    return made
