"""How large effects are, and ranks: against published figures and against the packages that users know."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from engine.data.samples.dataset import disjoint_part, stratified
from engine.results.claims import PaperTable
from engine.results.loading import load
from fedskew.lab.comparing.effects import effects_of, practical
from fedskew.lab.comparing.intervals import interval
from fedskew.lab.comparing.ranks import critical_difference, friedman, ranks_of
from fedskew.lab.comparing.verdicts import judge
from fedskew.lab.figures import critical_differences
from fedskew.lab.report.folder import PICTURES_AND_TABLES
from fedskew.lab.report.paper_tables import paper_tables
from tests.support.report_pages import small
from tests.support.sweep_folders import ALPHA, MU

# --- the chance of the test rows -----------------------------------------------------------------------------


def test_intervals_over_seeds_hold_the_chance_of_test_rows_where_each_seed_has_its_own() -> None:
    """A thousand simulated studies of five seeds without an effect: rows, of which the sides get 8 % each that the
    other one does not, whatever the seed, and seeds by a quarter of a point.

    Kills: parts that overlap; a part that is the same for each seed, with which three of four studies find an effect.
    """
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(10), 1_000)
    parts, shared = [disjoint_part(labels, 2_000, seed) for seed in range(5)], stratified(labels, 2_000, "any")
    outside = {"own": 0, "shared": 0}
    for _ in range(1_000):
        ahead = rng.choice([1, 0, -1], p=[0.08, 0.84, 0.08], size=len(labels))
        of_seed = rng.normal(0, 0.0025, 5)
        for name, rows in (("own", parts), ("shared", [shared] * 5)):
            low, high = interval([seed + ahead[one].mean() for seed, one in zip(of_seed, rows, strict=True)])
            outside[name] += not low <= 0 <= high
    assert 30 <= outside["own"] <= 70  # 50 +- 3 standard errors
    assert outside["shared"] > 650


# --- region of practical equivalence -------------------------------------------------------------------------

A, B = [0.71, 0.74, 0.69, 0.73, 0.72, 0.75], [0.70, 0.72, 0.71, 0.69, 0.70, 0.71]


@pytest.mark.parametrize(
    ("width", "above", "within", "below"),
    [(0.005, 0.8157461341949198, 0.11207018617755071, 0.07218367962752947),
     (0.01, 0.7180363685285446, 0.23706226143125464, 0.04490137004020078)],
)  # fmt: skip
def test_practical_equivalence_is_that_of_baycomp(width: float, above: float, within: float, below: float) -> None:
    """Kills: a normal posterior, the wrong degrees of freedom, sides exchanged, a region of half its width.

    The figures are of baycomp 1.0.3, two_on_single(A, B, rope=width): folds of one cross validation.
    """
    found = practical(np.subtract(A, B), width, correlation=1 / len(A))
    assert (found.above, found.within, found.below) == pytest.approx((above, within, below), abs=1e-12)


def test_practical_equivalence_of_seeds() -> None:
    """Kills: seeds taken for folds; probability from one seed or few equal ones; shares that add up to more than 1."""
    differences = np.subtract(A, B)
    seeds, folds = practical(differences, 0.005), practical(differences, 0.005, correlation=1 / 6)
    assert seeds.above > folds.above  # less spread about a mean that is above the region
    t = (np.mean(differences) - 0.005) / (np.std(differences, ddof=1) / math.sqrt(6))
    assert seeds.above == pytest.approx(stats.t.cdf(t, 5))
    assert seeds.below + seeds.within + seeds.above == pytest.approx(1)
    for little in ([], [0.1], [0.1, 0.1], [0.0] * 5, [0.1, math.nan, 0.2]):
        assert math.isnan(practical(little, 0.005).within)
    assert practical([0.0] * 6, 0.005).within == 1
    assert practical([-0.01] * 6, 0.005).below == 1


def test_effects_stand_beside_each_claim(sweep: Path) -> None:
    """Kills: effects of the other side, of the strongest cell, of one cell alone; a region for a loss."""
    results = load(sweep)
    verdicts = judge(results)
    first, _, third = (effects_of(results, claim) for claim in results.claims)
    assert len(first.cells) == len(verdicts[0].cells) == 2
    weakest = min(verdicts[0].cells, key=lambda cell: cell.effect)
    assert first.weakest == first.cells[verdicts[0].cells.index(weakest)]
    assert first.weakest.above > 0.9 and third.weakest.above < 0.5
    wide = effects_of(results, results.claims[0], rope=0.5)
    assert wide.weakest.within > 0.99
    frame = (sweep / "report" / "claims.csv").read_text()
    assert f"{first.weakest.above!r}," in frame
    page = (sweep / "report" / "report.html").read_text()
    assert f"above +0.5 points with probability {first.weakest.above:.2f}, within ±0.5 points" in page


def test_no_region_where_nobody_has_said_what_a_difference_is_worth(tmp_path: Path) -> None:
    """Kills: half a point of loss; a claim that a sweep cannot judge as a crash."""
    claims = [
        {"text": "a", "source": "", "better": {"mu": 0.1}, "worse": {"mu": 0.0}, "metric": "loss",
         "larger_is_better": False},
        {"text": "b", "source": "", "better": {"mu": 0.1}, "kind": "above"},
        {"text": "c", "source": "", "better": {"lr": 0.1}, "worse": {"lr": 0.0}},
    ]  # fmt: skip
    results = load(small(tmp_path / "sweep", axes=(MU,), claims=claims))
    loss, above, unknown = (effects_of(results, claim) for claim in results.claims)
    assert math.isnan(loss.rope) and math.isnan(loss.weakest.within)
    assert math.isnan(above.weakest.within)
    assert unknown.cells == () and math.isnan(unknown.weakest.within)


# --- ranks ---------------------------------------------------------------------------------------------------

DEMSAR = np.array(  # Demsar 2006, table 6: ranks of C4.5, with m, with cf, with both, on 14 data sets
    [[4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5], [3, 2, 4, 1],
     [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5], [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2]]
)  # fmt: skip


def test_ranks_are_demsars() -> None:
    """Kills: a critical difference of another quantile or without the root; a chi-square p for that of F.

    Published: average ranks 3.143, 2.000, 2.893, 1.964; chi-square 9.28; F 3.69 on 3 and 39 degrees of freedom; the
    critical difference 1.25 at 5 % and 1.12 at 10 %; q for 2, 5 and 10 settings 1.960, 2.728, 3.164. His
    chi-square leaves ties alone; scipy's, which is used here, is larger by 1 / (1 - 78 / 840).
    """
    assert DEMSAR.mean(axis=0) == pytest.approx([3.143, 2.0, 2.893, 1.964], abs=5e-4)
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_difference(4, 14, 0.9) == pytest.approx(1.12, abs=0.005)
    for settings, q in ((2, 1.960), (5, 2.728), (10, 3.164)):
        assert critical_difference(settings, 1) / math.sqrt(settings * (settings + 1) / 6) == pytest.approx(q, abs=1e-3)
    squared = stats.friedmanchisquare(*DEMSAR.T).statistic
    assert squared * (1 - 78 / 840) == pytest.approx(9.28, abs=0.005)
    assert friedman(DEMSAR) == pytest.approx(stats.f.sf(13 * squared / (14 * 3 - squared), 3, 39))
    assert friedman(DEMSAR) < stats.f.sf(3.69, 3, 39)
    same = np.tile([1.0, 2.0, 3.0], (4, 1))
    assert friedman(same) == pytest.approx(1 / 6**3)  # all blocks after the first agree with it
    tied = np.tile([1.0, 2.5, 2.5], (3, 1))  # one of three orderings, twice again
    assert friedman(tied) == pytest.approx(1 / 3**2)
    assert math.isnan(friedman(np.full((3, 4), 2.5)))


FOUR = ALPHA | {"values": [0.05, 0.1, 0.3, 0.5]}


def test_ranks_of_a_table(tmp_path: Path) -> None:
    """Kills: ranks from the worst, blocks that lack a setting, the axis of blocks as a setting, ranks of seeds; a
    setting that failed and is ranked by what did not, or costs the others their block."""
    table = {"title": "t", "rows": ["mu"], "columns": ["alpha"]}
    results = load(small(tmp_path / "sweep", axes=(MU, FOUR), tables=[table], seeds=(0,), killed=[3]))
    ranks = ranks_of(results, results.tables[0])
    assert ranks is not None
    assert ranks.blocks == ("alpha=0.05", "alpha=0.1", "alpha=0.3") and ranks.left_out == 1
    rows = results.settings().to_dict("records")
    for block, alpha in zip(ranks.of_block, (0.05, 0.1, 0.3), strict=True):
        found = sorted((row for row in rows if row["alpha"] == alpha), key=lambda row: -row["mean"])
        best_first = [f"mu={row['mu']:g}" for row in found]
        assert [ranks.settings[block.index(rank)] for rank in (1, 2, 3, 4)] == best_first
    assert ranks.settings[0] == "mu=0.1" and ranks.average[0] == 1 and list(ranks.average) == sorted(ranks.average)
    assert ranks.critical == pytest.approx(critical_difference(4, 3))
    view = paper_tables(results)[0]
    table = view.tables[-1]
    assert table.name == "table-1-ranks" and view.diagram is not None
    assert [row[0].text for row in table.rows] == list(ranks.settings)
    assert "Left out, for some setting has no figure there: 1 column." in table.note
    files = [f"{table.name}.csv", f"{table.name}.tex", *view.diagram.files]
    assert None not in [PICTURES_AND_TABLES.rank(name) for name in files]  # another report takes them away
    by_loss = ranks_of(results, PaperTable("t", ("mu",), ("alpha",), "loss"))
    assert by_loss is not None and by_loss.settings[0] == "mu=0.1"
    best_failed = load(small(tmp_path / "failed", axes=(MU, FOUR), seeds=(0, 1), failed=[16]))  # mu=0.1, alpha=0.05
    last = ranks_of(best_failed, results.tables[0])
    assert last is not None and last.left_out == 0
    assert last.of_block[0][last.settings.index("mu=0.1")] == 4 and last.settings[0] == "mu=0.1"
    two = PaperTable("t", ("mu",), ("alpha",), where={"alpha": [0.05, 0.1]})
    assert critical_difference(4, 2) > 3 and ranks_of(results, two) is None
    for rows, columns in ((("alpha",), ()), (("mu",), ())):  # nothing to compare; nothing to compare over
        assert ranks_of(results, PaperTable("t", rows, columns)) is None


def test_the_diagram_joins_what_is_not_told_apart(tmp_path: Path) -> None:
    """Kills: joined pairs that differ, a run of settings inside another, more names than have room."""
    results = load(small(tmp_path / "sweep", axes=(MU, FOUR), seeds=(0,)))
    ranks = ranks_of(results, PaperTable("t", ("mu",), ("alpha",)))
    assert ranks is not None
    for first, last in ranks.alike:
        assert ranks.average[last] - ranks.average[first] < ranks.critical
        assert last + 1 == 4 or ranks.average[last + 1] - ranks.average[first] >= ranks.critical
    assert len(ranks.alike) == 2
    drawing = critical_differences("ranks-1", ranks)
    assert drawing is not None
    texts = [text.get_text().strip() for text in drawing.figure.axes[0].texts]
    assert "mu=0.1  1.00" in texts and f"critical difference {ranks.critical:.2f}" in texts
    many = type(ranks)(
        tuple(map(str, range(21))), tuple(map(float, range(21))), ("a",), ((1.0,) * 21,), 0, math.nan, 3.0
    )
    assert critical_differences("ranks-1", many) is None
