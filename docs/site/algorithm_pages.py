"""A page for each algorithm, and one that lists them: from classes, comments, tables, and counts of what they cost."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from algorithms import ALGORITHMS
from docs.site import claims, examples, facts
from docs.site.costs import OWN, SETTING, TIMES, Cost, costs
from docs.site.formulas import formula
from docs.site.place import ROOT
from docs.site.roles import plain
from engine.algorithm import PostTraining
from engine.base.declared import declared, in_yaml

HEAD = ("field", "default", "range", "neutral", "meaning")
PARTS = "P are the model's parameters, B those of its body, Q BatchNorm's statistics"


def titles() -> list[dict[str, str]]:
    """Return the navigation: the list, then a page for each algorithm."""
    return [{"All of them": "algorithms/index.md"}, *({name: f"algorithms/{name}.md"} for name in ALGORITHMS)]


def pages() -> dict[str, str]:
    """Return page -> Markdown."""
    cost = costs()
    about, against = claims.by_algorithm()
    made = {
        f"algorithms/{name}.md": page(name, cost[name], about.get(name, []), against.get(name, 0))
        for name in ALGORITHMS
    }
    return {"algorithms/index.md": _index(cost, about), **made}


def page(name: str, cost: Cost, about: list[claims.Found], against: int) -> str:
    """Return the page of one algorithm."""
    told = facts.told()[name]
    facts_of = [["paper", told.paper], ["changes", told.changes], ["neutral", told.neutral], *_rules(name)]
    parts = [
        f"# {name}",
        "\n".join(["| | |", "|---|---|", *(f"| **{key}** | {value} |" for key, value in facts_of if value)]),
        "## What it is",
        _docstring(name),
        "## Equations",
        *_equations(name),
        "## Hyper-parameters",
        _hyper_parameters(name),
        "## Costs",
        *_costs(name, cost),
        "## Claims",
        *_claims(about, against),
        "## Run it",
        *_run(name),
        "## Source",
        ", ".join(dict.fromkeys(_source(kind) for kind in (ALGORITHMS[name], *facts.bases(name)))) + ".",
    ]
    return "\n\n".join(parts) + "\n"


def _rules(name: str) -> Iterator[list[str]]:
    """Yield what one must know before one chooses it."""
    kind: Any = ALGORITHMS[name]
    needs = [f"`model.{field}={str(value).lower()}`" for field, value in kind.requires.model.items()]
    needs += ["`local.optimizer=sgd` without `local.clip_norm`"] if kind.requires.linear_optimizer else []
    yield ["needs", ", ".join(needs)]
    if issubclass(kind, PostTraining):
        yield ["stage", "without rounds, after one that has trained"]
    if kind.breaks_privacy:
        yield ["privacy", "clients hand over what they would keep: an oracle to compare with"]
    if not getattr(kind, "global_model", True):
        yield ["evaluated", "by clients' own models: the server has none that means anything"]
    yield ["in one pass", f"clients are trained one by one: {kind.requires.no_vmap}" if kind.requires.no_vmap else ""]


def _docstring(name: str) -> str:
    """Return what the module says, as Markdown: a sign that would begin a tag stands for itself."""
    text = plain(inspect.getdoc(inspect.getmodule(ALGORITHMS[name])) or "")
    blocks = [block if block.startswith("    ") else block.replace("<", "&lt;") for block in text.split("\n\n")]
    return "\n\n".join(blocks)


def _equations(name: str) -> Iterator[str]:
    for equation in facts.equations()["equations"][name]:
        yield equation["says"]
        yield formula(equation["tex"])
    rows = [f"| {formula(one['tex'], in_line=True)} | {one['says']} |" for one in facts.equations()["symbols"]]
    yield "\n".join(['??? note "Symbols"', "", "    | | |", "    |---|---|", *(f"    {row}" for row in rows)])


def _hyper_parameters(name: str) -> str:
    rows = [
        (f"`{field.name}`", in_yaml(field.default), field.kind, str(field.neutral or ""), _cell(field.meaning))
        for field in declared(ALGORITHMS[name]).values()
    ]
    if not rows:
        return "None of its own."
    return "\n".join(f"| {' | '.join(row)} |" for row in [HEAD, ("---",) * len(HEAD), *rows])


def _costs(name: str, cost: Cost) -> Iterator[str]:
    rows = []
    if cost.up:
        rows += [
            f"| numbers up, a client and round | {cost.up} |",
            f"| numbers down, a client and round | {cost.down} |",
        ]
    if any(cost.outside):
        up, down = (f"{value:,.0f}" for value in cost.outside)
        when = "in place of rounds" if not cost.up else "outside rounds"
        rows.append(f"| numbers {when}, the mean of a client | {up} up, {down} down |")
    if cost.flops is not None:
        rows.append(f"| operations of a round (FLOPs) | {cost.billions} billion |")
        rows.append(f"| the same by FedAvg's | {cost.by_fedavg:.2f} |")
    timed = facts.measured(name)
    if timed is not None:
        rows.append(f"| time of local work, by FedAvg's | {timed[1]:.2f} on a {timed[0]}, measured once |")
    if rows:
        yield "\n".join(["| | |", "|---|---|", *rows])
        own = ", ".join(f"`{field}={value}`" for field, value in OWN.get(name, {}).items())
        own += f", the operations times {TIMES[name]}" if name in TIMES else ""
        yield " ".join([SETTING, f"{PARTS}." * bool(cost.up), f"To be quick, with {own}." * bool(own)])
    else:
        yield "Nothing travels: the server works with what the stage before has left it."


def _claims(about: list[claims.Found], against: int) -> Iterator[str]:
    if about:
        yield claims.table(about)
    if against:
        yield f"{against} claims hold another algorithm against it: [all claims](../claims.md)."
    if not about and not against:
        yield "No sweep of this repository claims anything about it."


def _run(name: str) -> Iterator[str]:
    text = yaml.safe_dump(examples.shown(name), sort_keys=False, default_flow_style=None, width=100)
    yield f'```yaml title="{name}.yaml"\n{text}```'
    yield f"```sh\nfedskew run {shlex.quote(name)}.yaml\n```"


def _source(kind: type) -> str:
    file = facts.file_of(kind)
    return f"[{file.relative_to(ROOT)}](../../{file.relative_to(ROOT)})"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _index(cost: Mapping[str, Cost], about: Mapping[str, list[claims.Found]]) -> str:
    rows = []
    for name in ALGORITHMS:
        told, own = facts.told()[name], cost[name]
        flops = ("", "") if own.flops is None else (own.billions, f"{own.by_fedavg:.2f}")
        words = [row.word for _, row in about.get(name, [])]
        counted = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        rows.append(
            f"| [{name}]({name}.md) | {told.paper} | {own.up} | {' | '.join(flops)} | {counted} | {told.changes} |"
        )
    names = ("algorithm", "paper", "numbers up", "10⁹ operations", "by FedAvg's", "claims", "what it changes")
    head = f"| {' | '.join(names)} |\n{'|---' * len(names)}|"
    return (
        "\n\n".join(
            [
                "# Algorithms",
                "Every algorithm that fedskew brings, with what a client sends in a round, and the operations of a "
                f"round of two small clients. {PARTS}; a stage without rounds has neither. A page says where its "
                "figures come from.",
                "\n".join([head, *rows]),
                "One of your own: [a tutorial](../tutorials/own_algorithm.md), [the contract](../contract.md).",
            ]
        )
        + "\n"
    )
