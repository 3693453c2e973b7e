"""The table of docs/catalogue.md, complete in both directions."""

from __future__ import annotations

import re
from pathlib import Path

from tune_configs import SWEEPS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
IDS = """
CB-F1/F8, CB-T1 (+Fig 6, 7), CB-T2, CB-T3, CB-T4, CB-T5, CB-T6, CB-T7, CB-T8, CB-T9, CB-F9, CB-T10, CB-T11,
CB-F10/T12, CB-T13, CB-F11, CB-x1 (ours), CB-x2 (ours),
FS-F2, FS-T1, FS-T2, FS-T3, FS-T4, FS-F3, FS-x1 (ours),
ccvr.cka, ccvr.norms, ccvr.remedies, ccvr.iidcal, ccvr.main10, ccvr.main100/cinic, ccvr.M, ccvr.ablate (ours),
ccvr.tsne, ccvr.comm (ours),
pflego.table, pflego.omniglot, pflego.curves, pflego.tau, pflego.particip, pflego.time, pflego.div, pflego.scale (ours),
fedper.het, fedper.heads, fedper.flickr, fedrep.table1, fedbabu.grid, fedrecon.main,
hma.motivation, hma.cost, hma.perclass, hma.alpha, hma.samples, hma.arch, hma.errata (ours), hma.noise (ours),
hma.leak (ours)
"""  # of the specifications' catalogues: drift and CBFL, section 16; calibration, personal and HMA, section 4


def rows(part: str) -> list[list[str]]:
    """The rows of a part's table, without its head."""
    lines = [line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def named(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`(\w+\.\w+)`", cell)]


CATALOGUE, OURS = map(rows, PAGE.split("## In no catalogue"))


def test_every_id_has_its_row() -> None:
    """Kills: an experiment of the specifications that nobody finds, or one row for two of them."""
    ids = re.split(r",\s+(?=[A-Z]{2}-|[a-z]+\.)", " ".join(IDS.split()))
    assert len(ids) == 18 + 7 + 10 + 8 + 6 + 9
    assert [row[0] for row in CATALOGUE] == ids


def test_every_row_has_a_sweep_or_a_reason() -> None:
    """Kills: an empty cell, a reason beside a sweep, an experiment that is left out without one."""
    for name, sweeps, told in CATALOGUE:
        assert told
        if not named([sweeps]):
            assert (name, told) == ("fedper.flickr", "not here: the data cannot be had")


def test_sweeps_are_there_and_all_of_them_are_named() -> None:
    """Kills: a function that was renamed; a sweep in neither table, or in both."""
    every = [f"{module}.{function}" for module, functions in SWEEPS.items() for function in functions]
    found = named([row[1] for row in CATALOGUE]) + named([row[0] for row in OURS])
    assert sorted(found) == sorted(every)
    assert all(told for _, told in OURS)


def test_the_page_can_be_found() -> None:
    """Kills: a page that nothing leads to."""
    for page in ("README.md", "docs/config.md"):
        assert "catalogue.md)" in (ROOT / page).read_text(encoding="utf-8")
