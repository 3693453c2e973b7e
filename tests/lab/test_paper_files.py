"""What a report has for a paper: figures in lines and letters, tables in LaTeX."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from engine.results.loading import load
from fedskew.lab.drawing import STYLE, Sketch
from fedskew.lab.figures.cells import coloured_cells
from fedskew.lab.report import latex
from fedskew.lab.report.paper_tables import paper_tables
from fedskew.lab.report.sheets import MOST_ROWS_MARKDOWN, Cell, Sheet, long_cell, word_cell

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"


# --- figures -------------------------------------------------------------------------------------------------


def test_every_figure_is_there_as_lines_and_letters(sweep: Path) -> None:
    """Kills: a figure without its SVG or PDF; a PDF of pixels, one without its letters or with letters of Type 3, one
    of another figure's size; an SVG that is the page's, without a namespace and with the page's colours."""
    pictures = sorted((sweep / "report").glob("*.png"))
    assert len(pictures) > 10
    for picture in pictures:
        root = ElementTree.parse(picture.with_suffix(".svg")).getroot()
        assert root.tag == f"{SVG}svg" and "var(--" not in picture.with_suffix(".svg").read_text()
        assert root.findall(f".//{SVG}text"), picture
        pdf = picture.with_suffix(".pdf").read_bytes()
        assert pdf.startswith(b"%PDF-1.") and pdf.rstrip().endswith(b"%%EOF")
        assert b"/FontFile2" in pdf and b"/CIDFontType2" in pdf and b"/Type3" not in pdf, picture
        drawn = root.findall(f".//{SVG}image")
        assert (b"/Subtype /Image" in pdf) == bool(drawn), picture
        assert not drawn or picture.stem.startswith(("partition", "matrix", "images"))
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
        with matplotlib.rc_context(STYLE):
            sketch = Sketch(2, 2)
            axes = sketch.figure.subplots()
            coloured_cells(sketch, axes, np.arange(2500.0).reshape(50, 50), None, 0, 2500)
            drawing = sketch.finish("cells", "Cells.")
        assert matplotlib.rcParams["pdf.fonttype"] == 3  # matplotlib's own: a style is not left behind
        made.append(drawing.pdf)
    assert made[0] == made[1]
    assert b"/CreationDate" not in made[0] and b"/Type3" not in made[0]
    (width,) = re.findall(rb"/Width (\d+)", made[0])
    assert int(width) > 250  # of 1.7 inches


# --- tables --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("50 % & a_b #1 {x} $y$", r"50 \% \& a\_b \#1 \{x\} \$y\$"),
        ("~^\\", r"\textasciitilde{}\textasciicircum{}\textbackslash{}"),
        ("a<b>c|d\"e`f", r"a\textless{}b\textgreater{}c\textbar{}d''e\`{}f"),
        ("α=0.1, λ ≤ Γ, Α", r"$\alpha$=0.1, $\lambda$ $\leq$ $\Gamma$, $A$"),
        ("−1.2 ± 0.3, 0–4 …", r"$-$1.2 $\pm$ 0.3, 0--4 \ldots{}"),
        ("Müller, Çelik, Łukasz, Ström", r"M\"{u}ller, \c{C}elik, \L{}ukasz, Str\"{o}m"),
        ("--ranks ---", r"-{}-{}ranks -{}-{}-"),
        ("研", r"\texttt{U+7814}"),
        ("ϛ ϟ ϸ ω", r"\texttt{U+03DB} \texttt{U+03DF} \texttt{U+03F8} $\omega$"),
        ("two\nlines\x07", "two lines"),
    ],
)  # fmt: skip
def test_text_is_text_in_latex(text: str, wanted: str) -> None:
    """Kills: a letter that LaTeX takes for a command, one that pdflatex stops at, hyphens that become a dash."""
    assert latex.escaped(text) == wanted
    assert latex.escaped(text).isascii()


def test_a_row_that_begins_with_a_bracket_or_a_star_is_text() -> None:
    """Kills: a first cell that LaTeX takes for an argument of the line before it, in the head or below."""
    rows = [
        [word_cell("[0.1, 0.2]"), word_cell("[3]")],
        [word_cell("*"), word_cell("*")],
        [word_cell("a"), word_cell("b")],
    ]
    source = latex.table(Sheet("t", "T", "", ["[x]", "y"], rows, pd.DataFrame()), "tab:t")
    lines = source.partition("\\toprule\n")[2].partition("\\bottomrule")[0].splitlines()
    assert lines == [r"{}[x] & y \\", r"\midrule", r"{}[0.1, 0.2] & [3] \\", r"{}* & * \\", r"a & b \\"]


def test_a_table_of_the_paper_has_what_the_page_has(sweep: Path) -> None:
    """Kills: bold by another rule, a figure left out, a title that is a command, two tables of one label."""
    source = (sweep / "report" / "table-1.tex").read_text()
    sheet = paper_tables(load(sweep))[0].sheet
    assert sheet is not None
    rows = source.partition("\\midrule\n")[2].partition("\\bottomrule")[0].splitlines()
    assert len(rows) == len(sheet.rows)
    for line, cells in zip(rows, sheet.rows, strict=True):
        written = line.removesuffix(r" \\").split(" & ")
        assert [one.startswith(r"\textbf{") for one in written] == ["best" in cell.style for cell in cells]
        for one, cell in zip(written, cells, strict=True):
            assert latex.escaped(cell.text) in one and (not cell.below or latex.escaped(cell.below) in one)
    assert r"\caption{FedProx \& its mu. Test accuracy" in source
    assert r"\begin{tabular}{@{}rrr@{}}" in source and source.count(r"\toprule") == 1
    claims = (sweep / "report" / "claims.tex").read_text()
    for verdict in ("held", "not held", "undecided"):
        assert f" & {verdict} & " in claims
    assert r"\textless{}script\textgreater{}" in claims and "<" not in claims
    sources = [path.read_text() for path in (sweep / "report").glob("*.tex") if path.stem != "paper"]
    labels = [re.findall(r"\\label\{(.*?)\}", one) for one in sources]
    assert len(sources) >= 3 and len({label for (label,) in labels}) == len(sources)


def test_the_document_reads_every_table_and_figure(sweep: Path) -> None:
    """Kills: a figure that is not there, a table left out, a title that LaTeX runs."""
    report = sweep / "report"
    source = (report / "paper.tex").read_text()
    tables = {path.stem for path in report.glob("*.tex")} - {"paper"}
    assert set(re.findall(r"\\input\{(.*?)\}", source)) == tables
    figures = re.findall(r"\\includegraphics\[.*?\]\{(.*?)\}", source)
    assert sorted(figures) == sorted(path.name for path in report.glob("*.pdf"))
    assert r"\& \$\textbackslash{}mu\$" in source and source.isascii()


def test_long_tables_words_and_sentences() -> None:
    """Kills: 500 rows in a float, words at the right, a sentence that runs out of the page."""
    rows = [[word_cell("a"), Cell("1", 1.0), long_cell("so it is"), Cell("2", 2.0, style="best", below="paper 3")]]
    sheet = Sheet("trials", "Trials", "All.", ["", "n", "why", "x_1"], rows * (MOST_ROWS_MARKDOWN + 5), pd.DataFrame())
    source = latex.table(sheet, latex.label_of("tab", "drift.fedprox_mu", "trials"), "of a sweep")
    assert r"\label{tab:drift.fedprox-mu:trials}" in source
    assert r"{@{}lr>{\raggedright\arraybackslash}p{0.24\linewidth}r@{}}" in source
    assert r" & n & why & x\_1 \\" in source
    assert source.count(r"\textbf{2} {\scriptsize(paper 3)}") == MOST_ROWS_MARKDOWN
    assert "5 more rows in trials.csv" in source
    assert r"\caption{Trials (of a sweep). All.}" in source
