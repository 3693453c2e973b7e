"""The ledger as a page, docs/claims.md, and its headline claims as rows of the README between two markers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from engine.base.errors import RunFolderError
from engine.record.run_folder import BREAKS_PRIVACY
from engine.results.settings import label, names_oracle
from fedskew.lab.ledger.entry import Entry
from fedskew.lab.ledger.rows import EARLIER, NOT_RUN, WORDS, Row, SweepRows, counted_rows, counts
from fedskew.lab.wording import counted, escaped, seeds_text

ABOUT = """# What the papers claim, and what came of it

Made by `fedskew claims` from the tables in [docs/claims](claims); edit neither by hand. Each sweep of `tune_configs`
states, before it is run, which setting of a paper should be better than which other one, and by how much. A row is one
such claim. **Held**: the 95 % interval of the effect, taken seed by seed, lies above what was asked for in every cell
of the sweep. **Not held**: in some cell the interval, widened for the number of cells, lies nowhere above it.
**Undecided**: the seeds so far say neither. **Of an earlier version**: there is a verdict, but the code that computes
the trials, the setting or the claim has changed since they ran; it counts for nothing until it is run again, or until
one of its seeds comes to the same bits by the code of today (`fedskew claims --confirm`). **Not yet run**: there are no
trials of it here. An effect is counted so that more than 0 speaks for the claim, and where a claim has many cells it is
that of the weakest one. A trial that failed speaks against its setting ([deciding.md](deciding.md)). Each claim is
judged by itself: of forty whose true effect is just what was asked for, about one comes to "held", and one to "not
held", by chance.
Partitions: how many different ways of dealing the data out to clients are among the seeds; 1 means that the verdict
holds for that one division. The setting is the sweep's: `fedskew run SWEEP` lists its cells, and a sweep of the profile
laptop is smaller than the paper's, which is the profile paper. A claim that both profiles state is one claim: it has a
row in each that was run, and is counted by its verdict in the profile paper where there is one.

A verdict is no part of the tables: it is judged anew whenever this page is made, from one line for each trial.
`fedskew claims --record FOLDER` puts the folder of a sweep there, and a command below computes it again: equal weights
have an equal hash. Minutes are of computing, all trials added up, with those by which sides were tuned ("of which
search"); a sweep with the second best settings had no search of its own.

Earlier verdicts, of `benchmarks/results/balance.json`, `calibration.json`, `distillation.json` and `personal.json`, are
left out: their trials were not kept, so that they cannot be judged anew, and all of their seeds shared one partition.
Their claims are counted here as what the tables in this repository say of them, which is often "not yet run".
"""

SENSITIVITY = """## With the second best settings

These sweeps were also run with the second best of each side's candidates. A verdict that changes then hangs on the
choice, and is worth less than one that stays. None of these is counted above."""

HEADLINE = ".headline"  # ends the name of the sweep of what a paper claims first


def page(sweeps: Sequence[SweepRows], papers: Mapping[str, str]) -> str:
    """Return the page in Markdown; papers: by the module of its sweeps, the first sentence on each paper."""
    by_paper = {name: list(group) for name, group in groupby(_by_paper(sweeps, papers), lambda sweep: sweep.paper)}
    blocks = [ABOUT.rstrip(), _summary(by_paper, papers)]
    second = [(_heading(best), best, other) for best, other in pairs(sweeps)]
    blocks += [SENSITIVITY, _sensitivity(second)] if second else []
    for name, found in by_paper.items():
        blocks += [f"## {_short(name, papers)}", escaped(papers.get(name, ""))]
        for sweep in found:
            blocks += _sweep(sweep)
    return "\n\n".join(filter(None, blocks)) + "\n"


def anchor(sweep: SweepRows) -> str:
    """Return the anchor of a sweep's heading, as a page of Markdown is given them."""
    return re.sub(r"[^\w -]", "", _heading(sweep)).replace(" ", "-")


def _by_paper(sweeps: Iterable[SweepRows], papers: Mapping[str, str]) -> list[SweepRows]:
    order = [*papers]
    return sorted(sweeps, key=lambda sweep: order.index(sweep.paper) if sweep.paper in order else len(order))


def _short(name: str, papers: Mapping[str, str]) -> str:
    """Return the name of a paper's method: what its sentence begins with."""
    sentence = papers.get(name, name)
    for mark in (",", " (", ":"):
        sentence = sentence.partition(mark)[0]
    return escaped(sentence)


def _summary(by_paper: Mapping[str, Sequence[SweepRows]], papers: Mapping[str, str]) -> str:
    lines = [f"| paper | claims | {' | '.join(WORDS)} |", "|---|---|" + "---|" * len(WORDS)]
    everything = [sweep for found in by_paper.values() for sweep in found]
    for name, found in [*((_short(name, papers), found) for name, found in by_paper.items()), ("all", everything)]:
        number = counts(found)
        lines.append(f"| {name} | {sum(number.values())} | {' | '.join(str(number[word]) for word in WORDS)} |")
    return "\n".join(lines)


def _heading(sweep: SweepRows) -> str:
    profile = f", profile {sweep.profile}" if sweep.profile != "laptop" else ""
    return f"{sweep.name}{profile}" + ", with the second best setting of each side" * bool(sweep.choice)


def _sweep(sweep: SweepRows) -> list[str]:
    end = "" if sweep.title.endswith(("?", "!")) and not sweep.changed else "."
    title = f"{escaped(sweep.title)}{escaped(sweep.changed)}{end}"
    blocks = [f"### {_heading(sweep)}", title, _table(sweep), f"`{sweep.command}`"]
    if sweep.entry is not None:
        blocks[-1] += f": {_made_by(sweep.entry)}"
        told = [*_tuning(sweep.entry), *_again(sweep.entry), *_before(sweep, sweep.entry)]
        told += [*_tried(sweep, sweep.entry), *_remarks(sweep.rows)]
        blocks.append("\n".join(f"- {one}" for one in told))
    return blocks


def _table(sweep: SweepRows) -> str:
    if sweep.entry is None:
        lines = ["| | claim | source | verdict |", "|---|---|---|---|"]
        rows = ([*_claim(row), row.word] for row in sweep.rows)
    else:
        head = "| | claim | source | verdict | effect, 95 % interval | seeds | partitions |"
        lines = [head, "|---|---|---|---|---|---|---|"]
        rows = ([*_claim(row), *_outcome(row)] for row in sweep.rows)
    return "\n".join([*lines, *(f"| {number} | {' | '.join(row)} |" for number, row in enumerate(rows, start=1))])


def _claim(row: Row) -> list[str]:
    sides = [row.claim.better, row.claim.worse, row.claim.where]
    mark = f" ({BREAKS_PRIVACY})" if names_oracle(sides) else ""
    return [escaped(row.claim.text) + mark, escaped(row.claim.source)]


def _outcome(row: Row) -> list[str]:
    seeds = row.verdict.seeds if row.verdict else ()
    told = f"{len(seeds)} ({seeds_text(seeds)})" if seeds else "0"
    word = f"**{row.word}**" if row.word in ("held", "not held") else row.word
    return [word, row.effect, told, str(row.partitions)]


def _made_by(entry: Entry) -> str:
    versions = [f"fedskew {one['fedskew']}, torch {one['torch']}, {one['device']}" for one in entry.versions]
    codes = ", ".join(f"`{code}`" for code in entry.codes) or "none"
    if entry.machine:
        machine = f"{entry.machine['processor']}, {counted(entry.machine['cores'], 'core')}"
    else:
        machine = " and ".join(sorted({one["processor"] for one in entry.versions})) or "no machine"
    search = "" if entry.search_seconds is None else f", of which search {entry.search_seconds / 60:.1f}"
    minutes = f"{entry.seconds / 60:.1f} minutes on {escaped(machine)}{search}"
    told = "; ".join(dict.fromkeys(versions)) or "no trial has ended"
    return f"{entry.ended}, {minutes} ({told}); code {codes}; weights `{entry.weights}`."


def _tuning(entry: Entry) -> Iterable[str]:
    """Say what each side was given by a search, or that there was none."""
    if entry.searched:
        return (f"Tuned: {escaped(side.sentence)}." for side in entry.searched)
    tuned = entry.definition.get("tuned")
    return ["Sides are not tuned yet." if tuned else "Nothing was tuned: each side has what the sweep sets."]


def _again(entry: Entry) -> Iterable[str]:
    """Say by which other code a seed was computed again."""
    for one in entry.confirmed:
        told = f"{counted(one.trials, 'trial')} of seed {one.seed}, equal to the bit ({one.seconds / 60:.1f} minutes)"
        told += ", with the rates of the search, which was not run again" if entry.searched else ""
        yield f"Again by sources `{one.sources}`: {told}."


def _before(sweep: SweepRows, entry: Entry) -> Iterable[str]:
    """Say what the same claims came to in the entries before this one."""
    for one in entry.before:
        numbers: dict[str, list[str]] = {word: [] for word in WORDS}
        for number, row in enumerate(sweep.rows, start=1):
            numbers.get(one.verdicts.get(row.claim.text, ""), []).append(str(number))
        told = "; ".join(f"{word}: {', '.join(found)}" for word, found in numbers.items() if found)
        seeds = seeds_text(one.seeds)
        yield f"Recorded before (digest `{one.digest}`, seeds {seeds}): {told or 'none of these claims'}."


def _tried(sweep: SweepRows, entry: Entry) -> Iterable[str]:
    """Say with which settings and seeds the claims of a headline were tried that are not held."""
    refused = [str(number) for number, row in enumerate(sweep.rows, start=1) if row.word == "not held"]
    if not refused or not sweep.name.endswith(HEADLINE):
        return
    seeds = seeds_text(entry.seeds)
    tried = ((axis["name"], axis["values"] or ["drawn"]) for axis in entry.definition["axes"])
    told = "; ".join(f"{name}: {', '.join(map(label, values))}" for name, values in tried)
    yield escaped(f"Not held: {', '.join(refused)}. Tried on seeds {seeds}: {told}.")


def _remarks(rows: Sequence[Row]) -> Iterable[str]:
    """Say what a reader must know beside the table: why a row is no verdict, and what would make it one."""
    for number, row in enumerate(rows, start=1):
        if row.verdict is None:
            continue
        said = []
        if row.earlier:
            said.append(f"{row.verdict.verdict} then; since, {', '.join(row.earlier)}")
        if row.verdict.verdict == "undecided":
            said.append(row.verdict.why)
        if row.verdict.seeds_to_decide is not None:
            said.append(f"about {row.verdict.seeds_to_decide} seeds would decide it")
        if said or row.lacks:
            yield f"{number}: {escaped('; '.join([*said, *filter(None, [row.lacks])]))}."


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


def _sensitivity(found: Iterable[tuple[str, SweepRows, SweepRows]]) -> str:
    """Return how many verdicts stay, and which do not, in Markdown; found: headings with the pairs below them."""
    lines = ["| sweep | claims | same verdict | other verdict | no verdict of now |", "|---|---|---|---|---|"]
    for heading, best, second in found:
        rows = [*both(best, second)]
        judged = [(n, row.word, then.word) for n, row, then in rows if not {row.word, then.word} & {EARLIER, NOT_RUN}]
        other = [f"{n}: {word}, then {then}" for n, word, then in judged if word != then]
        counts = f"{len(rows)} | {len(judged) - len(other)} | {'; '.join(other) or 'none'} | {len(rows) - len(judged)}"
        lines.append(f"| {heading} | {counts} |")
    return "\n".join(lines)


HEADLINES = {"CCVR": "ccvr", "PFLEGO": "pflego", "CBHMA": "cbhma", "FedSER": "fedser", "CBFL": "cbfl"}
BEGIN = "<!-- headline claims: written by fedskew claims -->"
END = "<!-- end of the headline claims -->"


def with_headlines(text: str, sweeps: Iterable[SweepRows]) -> str:
    """Return the README's text with the table of today; raises :class:`RunFolderError` without its two markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RunFolderError(f"README.md has no place for the headline claims; put in a line {BEGIN!r} and one {END!r}")
    return f"{before}{BEGIN}\n{_headlines(sweeps)}\n{END}{after}"


def _headlines(sweeps: Iterable[SweepRows]) -> str:
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
