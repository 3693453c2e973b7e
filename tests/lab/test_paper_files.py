"""What a report has for a paper: figures in lines and letters, tables in LaTeX."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from engine.results.loading import load
from fedskew.lab.drawing import Drawing, new_panel, styled
from fedskew.lab.figures.cells import heat_map
from fedskew.lab.pages.tables import MOST_ROWS_LATEX, Cell, Table, latex_text, long_cell, word_cell
from fedskew.lab.report.paper_tables import paper_tables

pytestmark = pytest.mark.slow


# --- figures -------------------------------------------------------------------------------------------------


def test_every_figure_is_there_as_lines_and_letters(sweep: Path) -> None:
    """Kills: a figure without its PDF; a PDF of pixels, one without its letters or with letters of Type 3, one of
    another figure's size."""
    pictures = sorted((sweep / "report").glob("*.png"))
    assert len(pictures) == 10
    for picture in pictures:
        pdf = picture.with_suffix(".pdf").read_bytes()
        assert pdf.startswith(b"%PDF-1.") and pdf.rstrip().endswith(b"%%EOF")
        assert b"/FontFile2" in pdf and b"/CIDFontType2" in pdf and b"/Type3" not in pdf, picture
        assert b"/Subtype /Image" not in pdf or picture.stem.startswith(("partition", "matrix", "images"))
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+) ?\]", pdf)
        assert box is not None
        with Image.open(picture) as image:
            points = [float(size) * 200 / 72 for size in box.groups()]
            assert points == pytest.approx(image.size, abs=1.5)


@pytest.mark.pictures
def test_a_pdf_holds_no_date_and_a_panel_of_many_cells_is_an_image() -> None:
    """Kills: a time stamp, an image at the screen's 72 dots an inch, a PDF drawn in another style than the PNG."""
    made = []
    for _ in range(2):
        figure, axes = styled(new_panel)(2, 2)
        names = list(map(str, range(50)))
        styled(heat_map)(axes, np.arange(2500.0).reshape(50, 50), names, names, 0, 2500)
        drawing = Drawing("cells", "Cells.", figure)
        assert matplotlib.rcParams["pdf.fonttype"] == 3  # matplotlib's own: a style is not left behind
        made.append(drawing.pdf)
    assert made[0] == made[1]
    assert b"/CreationDate" not in made[0] and b"/Type3" not in made[0]
    widths = re.findall(rb"/Width (\d+)", made[0])  # of the panel, and of the bar of colours
    assert max(map(int, widths)) > 250  # of 1.2 inches


# --- tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("50 % & a_b #1 {x} $y$", r"50 \% \& a\_b \#1 \{x\} \$y\$"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ('a<b>c|d"e', r"a\textless{}b\textgreater{}c\textbar{}d''e"),
        ("−1.2 ± 0.3", r"$-$1.2 $\pm$ 0.3"),
        ("--ranks ---", r"-{}-ranks -{}--"),
        ("two\nlines", "two lines"),
    ],
)
def test_text_is_text_in_latex(text: str, wanted: str) -> None:
    """Kills: a letter that LaTeX takes for a command, one that pdflatex stops at, hyphens that become a dash."""
    assert latex_text(text) == wanted


def rows_of(source: str) -> list[str]:
    return source.partition("\\midrule\n")[2].partition("\\bottomrule")[0].splitlines()


def test_a_row_that_begins_with_a_bracket_or_a_star_is_text() -> None:
    """Kills: a first cell that LaTeX takes for an argument of the line before it, in the head or below."""
    rows = [[word_cell("[0.1, 0.2]"), word_cell("[3]")], [word_cell("*"), word_cell("*")]]
    source = Table("t", "T", "", ["[x]", "y"], rows, pd.DataFrame()).latex("tab:t")
    assert r"{[}x{]} & y \\" in source.splitlines()
    assert rows_of(source) == [r"{[}0.1, 0.2{]} & {[}3{]} \\", r"{*} & {*} \\"]


def test_a_table_of_the_paper_has_what_the_page_has(sweep: Path) -> None:
    """Kills: bold by another rule, a figure left out, a title that is a command, two tables of one label."""
    source = (sweep / "report" / "table-1.tex").read_text()
    table = paper_tables(load(sweep))[0].tables[0]
    assert len(rows_of(source)) == len(table.rows)
    for line, cells in zip(rows_of(source), table.rows, strict=True):
        written = line.removesuffix(r" \\").split(" & ")
        assert [one.startswith(r"\textbf{") for one in written] == ["best" in cell.style for cell in cells]
        for one, cell in zip(written, cells, strict=True):
            assert latex_text(cell.text) in one and (not cell.below or latex_text(cell.below) in one)
    assert r"\caption{FedProx \& its mu. Test accuracy" in source
    assert r"\begin{tabular}{@{}rrr@{}}" in source and source.count(r"\toprule") == 1
    sources = [path.read_text() for path in (sweep / "report").glob("*.tex")]
    labels = [re.findall(r"\\label\{(.*?)\}", one) for one in sources]
    assert len(sources) >= 2 and len({label for (label,) in labels}) == len(sources)
    assert r"\label{tab:made.mu-alpha:table-1}" in source


def test_long_tables_words_and_sentences() -> None:
    """Kills: 500 rows in a float, words at the right, a sentence that runs out of the page."""
    rows = [[word_cell("a"), Cell("1", 1.0), long_cell("so it is"), Cell("2", 2.0, style="best", below="paper 3")]]
    table = Table("trials", "Trials", "All.", ["", "n", "why", "x_1"], rows * (MOST_ROWS_LATEX + 5), pd.DataFrame())
    source = table.latex("tab:trials", "of a sweep")
    assert r"{@{}lr>{\raggedright\arraybackslash}p{0.24\linewidth}r@{}}" in source
    assert r" & n & why & x\_1 \\" in source
    assert source.count(r"\textbf{2} {\scriptsize(paper 3)}") == MOST_ROWS_LATEX
    assert r"\caption{Trials (of a sweep). All. 5 more rows in trials.csv.}" in source
