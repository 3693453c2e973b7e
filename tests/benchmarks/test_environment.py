"""What the measurement of settings of the environment says, and where."""

from __future__ import annotations

import json

from benchmarks import environment


def test_the_page_has_what_was_measured() -> None:
    """Kills: a table of another run than the one that is in the repository."""
    page = (environment.ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    results = json.loads((environment.ROOT / "benchmarks" / "results" / "environment.json").read_text(encoding="utf-8"))
    assert page.count(environment.BEGIN) == page.count(environment.END) == 1
    assert environment.with_table(page, environment.table(results)) == page
