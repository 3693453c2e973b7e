"""The documentation site, as far as it can be told without building it; `make site` checks links and runs tutorials."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from docs.site import claims, costs, facts, links
from docs.site.comments import comment_of
from docs.site.examples import small
from docs.site.included import with_parts
from engine.models.cost import model_cost
from fedskew.lab.ledger.rows import counted_rows

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
MADE = {"commands.md", "changelog.md", "contributing.md", "security.md", "benchmarks.md"}  # not in docs/


def test_every_algorithm_has_its_equations() -> None:
    """Kills: a method that comes in without one; an equation of one that is gone; a sentence without its formula."""
    equations = facts.equations()["equations"]
    assert list(equations) == list(ALGORITHMS)
    assert all(one["says"].endswith(".") and len(one["tex"]) > 5 for parts in equations.values() for one in parts)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_its_facts(name: str) -> None:
    """Kills: a page without the paper's row."""
    assert facts.told()[name].changes or name == "fedavg"


def test_comments_are_read_above_and_behind() -> None:
    """Kills: one of the two alone; a rule between sections, or the comment of the line before, taken for a field's."""
    lines = ["a = 1  # of a", "# --- rates ---", "# above", "b = (", "    2  # behind", ")"]
    assert comment_of(lines, 1, 1) == "of a"
    assert comment_of(lines, 4, 6) == "above behind"


def test_operations_are_those_of_the_rounds_images() -> None:
    """Kills: a ratio in the place of the count; operations of another round, of an evaluation, of one client alone."""
    experiment = small("fedavg", {}, costs.CLIENTS, costs.ROWS, costs.BATCH)
    model = model_cost(experiment.model, costs.SHAPE, costs.CLASSES)
    layers = [layer for layer in model.layers if layer.kind != "BatchNorm2d"]  # no matrix product
    one_image = sum((4 if layer.is_first else 6) * layer.macs for layer in layers)
    cost = costs.counted("fedavg")
    assert cost.flops == costs.CLIENTS * costs.ROWS * one_image
    assert [replace(cost, flops=number).billions for number in (2_792_486_400, 55_849_728_000, None)] == [
        "2.79",
        "55.8",
        "",
    ]


def test_a_page_has_the_count_beside_the_ratio() -> None:
    """Kills: the one in the other's row; either left out; operations of a stage that has no rounds."""
    pages = pytest.importorskip("docs.site.algorithm_pages", exc_type=ImportError)  # needs the extra docs
    cost = costs.Cost("P", "P", flops=5_591_686_400, by_fedavg=2.002)
    text = "\n".join(pages._costs("fedmix", cost))
    assert "| operations of a round (FLOPs) | 5.59 billion |" in text and "| the same by FedAvg's | 2.00 |" in text
    assert "operations of a round (FLOPs)" not in "\n".join(pages._costs("ccvr", costs.Cost(outside=(3, 0))))
    index = pages._index(dict.fromkeys(ALGORITHMS, cost), {})
    assert all(line.count("| 5.59 | 2.00 |") == 1 for line in index.splitlines() if line.startswith("| ["))


def test_a_claim_counts_once_on_the_pages_of_algorithms() -> None:
    """Kills: a claim twice on a page, of two profiles or of the second best settings; a text that ends a cell."""
    about, _ = claims.by_algorithm()
    for found in about.values():
        # A claim that was reworded may stand beside what it was before.
        told = {id(row) for _, row in found}
        assert len(told) == len(found) and not any(sweep.choice for sweep, _ in found)
    every = [one for found in about.values() for one in found]
    counted = {id(row) for row in [row for _, row in counted_rows({id(s): s for s, _ in every}.values())]}
    assert all(id(row) in counted for _, row in every)
    sweep, row = every[0]
    odd = replace(row, claim=replace(row.claim, text="a | b <i>", source="*table*"))
    assert "| a \\| b &lt;i> | \\*table\\* |" in claims.table([(sweep, odd)])


def test_the_navigation_has_every_page() -> None:
    """Kills: a page that nobody finds; an entry without a page; one that stands twice."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r": ([\w/]+\.md)$", nav, re.MULTILINE)
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} - {"claims/README.md"}
    tutorials = {f"tutorials/{path.stem}.md" for path in NOTEBOOKS}
    assert sorted(named) == sorted(there | tutorials | MADE)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_hold_no_outputs_and_no_places(path: Path) -> None:
    """Kills: an output of some other day, a path of some machine, in a tutorial."""
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["source"][0].startswith("# ")
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
    assert not re.search(r"/(work|home|tmp|root|Users)/", path.read_text())


def test_links_lead_to_pages_of_the_site() -> None:
    """Kills: a link out of docs/ that ends nowhere; one in code that is changed; README shown twice."""
    text = "[a](../algorithms/fedavg.py#L1) [b](claims) [c](../README.md) [d](config.md#keys) "
    text += "`[e](../Makefile)` [f](https://x.y)"
    assert links.rewritten(text, "algorithms/x.md", DOCS) == (
        "[a](../source/algorithms/fedavg.py.md#L1) [b](../claims/README.md) [c](../index.md) [d](../config.md#keys) "
        "`[e](../Makefile)` [f](https://x.y)"
    )
    assert list(links.sources(text, DOCS)) == [ROOT / "algorithms" / "fedavg.py"]


def test_the_start_page_has_the_readmes_beginning() -> None:
    """Kills: a copy that grows old; a part that is cut where README has no such heading any more."""
    page = with_parts((DOCS / "index.md").read_text(), lambda part, folder: part)
    assert "make demo" in page and "## Read on" not in page
    with pytest.raises(ValueError, match="has no part from"):
        with_parts("<!-- include README.md from `# fedskew` to `## No such heading` -->", lambda part, folder: part)
