"""How claims of the ledger are decided if their seeds are looked at one after the other, beside all seeds at once.

``python -m benchmarks.looks`` computes no trial: it reads the tables in docs/claims, without those with second best
settings, which are counted nowhere. It takes the seeds of each sweep in their order, and judges its claims after two of
them, three, and so on, by the rule for repeated looks and by the t interval, which is right for one look alone. It
writes two tables into docs/deciding.md: how many claims come to what, and the claims for which the ways differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.results.results import Results
from fedskew.lab.comparing.verdicts import Word, judge
from fedskew.lab.ledger import entry
from fedskew.lab.wording import counted

LEDGER, PAGE = Path("docs/claims"), Path("docs/deciding.md")
BEGIN, END = "<!-- made by python -m benchmarks.looks -->\n", "<!-- end of what it made -->\n"
FEWEST = 2  # seeds of the first look


@dataclass(frozen=True)
class Stop:
    """Where somebody who looks after every seed stops: what it says then, and after how many seeds."""

    verdict: Word
    seeds: int

    def __str__(self) -> str:
        return f"{self.verdict}, {counted(self.seeds, 'seed')}"


@dataclass(frozen=True)
class Looked:
    """A claim by three ways."""

    sweep: str
    number: int
    text: str
    once: Stop  # the t interval, all seeds
    rule: Stop  # the anytime-valid interval after each seed
    naive: Stop  # the t interval after each seed


def entries() -> list[entry.Entry]:
    """Return the ledger's entries whose claims are counted."""
    return [one for one in entry.read_all(LEDGER) if not one.choice]


def looked_at(sweep: str, results: Results) -> Iterator[Looked]:
    """Judge each claim of a sweep after each of its seeds."""
    seeds = sorted({*results.trials["seed"].tolist()})
    counts = range(min(FEWEST, len(seeds)), len(seeds) + 1)
    words: dict[str, list[list[Word]]] = {
        how: [[one.verdict for one in judge(_first(results, seeds[:count], how))] for count in counts]
        for how in ("once", "repeatedly")
    }
    for number, claim in enumerate(results.claims):
        once = Stop(words["once"][-1][number], len(seeds))
        rule, naive = (_stop([look[number] for look in words[how]], counts) for how in ("repeatedly", "once"))
        yield Looked(sweep, number + 1, claim.text, once, rule, naive)


def _first(results: Results, seeds: Sequence[int], looks: str) -> Results:
    kept = results.trials[results.trials["seed"].isin(seeds)]
    return replace(results, trials=kept, seeds=tuple(seeds), looks=looks)


def _stop(words: Sequence[Word], counts: Sequence[int]) -> Stop:
    found = (Stop(word, count) for word, count in zip(words, counts, strict=True) if word != "undecided")
    return next(found, Stop(words[-1], counts[-1]))


def page(text: str) -> str:
    """Return docs/deciding.md, whose text is given, with both tables as the ledger has them now."""
    before, rest = text.split(BEGIN)
    looked = [look for one in entries() for look in looked_at(one.name, one.results(one.claims))]
    return f"{before}{BEGIN}{tables(looked)}\n{END}{rest.split(END)[1]}"


def tables(found: Sequence[Looked]) -> str:
    """Return both tables as Markdown."""
    lines = ["| | held | not held | undecided | seeds, on average |", "|---|---|---|---|---|"]
    for label, name in (
        ("all seeds, one look, t", "once"),
        ("after every seed, this rule", "rule"),
        ("after every seed, t", "naive"),
    ):
        stops: list[Stop] = [getattr(one, name) for one in found]
        counts = [sum(stop.verdict == word for stop in stops) for word in ("held", "not held", "undecided")]
        mean = sum(stop.seeds for stop in stops) / len(stops)
        lines.append(f"| {label} | {' | '.join(map(str, counts))} | {mean:.1f} |")
    lines += ["", "| sweep | claim | all seeds, one look | after every seed, this rule | after every seed, t |"]
    lines += ["|---|---|---|---|---|"]
    for one in found:
        if len({one.once.verdict, one.rule.verdict, one.naive.verdict}) > 1:
            lines.append(f"| `{one.sweep}` | {one.number}. {one.text} | {one.once} | {one.rule} | {one.naive} |")
    return "\n".join(lines)


def main() -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
