"""Claims that are looked at after every seed, beside one look at all of them."""

from __future__ import annotations

import re
from dataclasses import replace

from benchmarks import looks
from benchmarks.looks import Stop, looked_at
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.ledger import entry
from tests.lab.test_claims import against, results


def test_where_somebody_who_looks_stops() -> None:
    """Kills: a look at later seeds than there are yet; the last verdict in place of the first; the rule for repeated
    looks and the t interval exchanged."""
    differences = [0.05, 0.051, *[0.05, -0.04] * 4]  # t is sure after two, and wrong about it
    [one] = looked_at("made_up", results({0.1: against(differences)}))
    assert one.naive == Stop("held", 2)
    assert one.once == one.rule == Stop("undecided", 10)
    [one] = looked_at("made_up", results({0.1: against([0.05, 0.051, 0.049, 0.05, 0.0505, 0.05])}))
    assert (one.naive, one.once, one.rule) == (Stop("held", 2), Stop("held", 6), Stop("held", 4))
    [one] = looked_at("made_up", results({0.1: against([0.1])}))
    assert one.once == one.rule == one.naive == Stop("undecided", 1)


def test_the_page_has_the_ledgers_claims() -> None:
    """Kills: a page that was not made again when the ledger was added to, whose counts or verdicts are others, or that
    counts a claim twice, since its sweep was run with the second best settings, too."""
    entries = looks.entries()
    few = [one for one in entries if len(one.definition["seeds"]) < 10]  # the others take half a minute
    text = looks.PAGE.read_text(encoding="utf-8").split(looks.BEGIN)[1].split(looks.END)[0]
    assert len({(one.name, one.profile) for one in entries}) == len(entries) < len(entry.read_all(looks.LEDGER))
    once = {
        (one.name, number): verdict.verdict
        for one in entries
        for number, verdict in enumerate(judge(replace(one.results(one.claims), looks="once")), start=1)
    }
    counts = " | ".join(str([*once.values()].count(word)) for word in ("held", "not held", "undecided"))
    assert f"| all seeds, one look, t | {counts} |" in text, "run python -m benchmarks.looks"
    told = re.findall(r"^\| `([\w.]+)` \| (\d+)\. .* \| ([a-z ]+), \d+ seeds? \| [^|]* \| [^|]* \|$", text, re.M)
    assert told and all(once[name, int(number)] == word for name, number, word in told)
    made = looks.tables([look for one in few for look in looked_at(one.name, one.results(one.claims))])
    assert few and {line for line in made.splitlines() if line.startswith("| `")} <= {*text.splitlines()}
