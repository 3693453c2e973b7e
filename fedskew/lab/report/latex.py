"""Tables and figures of a report in LaTeX: booktabs, the same figures in bold as on the page, letters escaped.

    table-1.tex     a ``table`` each, for \\input; needs the packages array and booktabs
    paper.tex       a document with all of them and each figure's PDF, which compiles as it is, to be copied from

All is plain ASCII, so that it does not matter in which encoding a paper is written.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from fedskew.lab.drawing import Drawing
from fedskew.lab.report.sheets import MOST_ROWS_MARKDOWN, Cell, Sheet

_SPECIAL = {
    **{letter: f"\\{letter}" for letter in "%&#_{}$"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\\": "\\textbackslash{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "''",
    "`": "\\`{}",
    "±": "$\\pm$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": "\\ldots{}",
    "∞": "$\\infty$",
    "×": "$\\times$",
    "·": "$\\cdot$",
    "≤": "$\\leq$",
    "≥": "$\\geq$",
    "≠": "$\\neq$",
    "≈": "$\\approx$",
    "→": "$\\rightarrow$",
    "°": "$^\\circ$",
    "µ": "$\\mu$",
    "‘": "`",
    "’": "'",
    "“": "``",
    "”": "''",
    "ß": "\\ss{}",
    "æ": "\\ae{}",
    "Æ": "\\AE{}",
    "ø": "\\o{}",
    "Ø": "\\O{}",
    "ł": "\\l{}",
    "Ł": "\\L{}",
    "ı": "\\i{}",
    "ς": "$\\varsigma$",
}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
    "\u0328": "k",
}
_LIKE_LATIN = {  # Greek capitals, and omicron, that TeX has no command for
    "Alpha": "A", "Beta": "B", "Epsilon": "E", "Zeta": "Z", "Eta": "H", "Iota": "I", "Kappa": "K", "Mu": "M",
    "Nu": "N", "Omicron": "O", "Rho": "P", "Tau": "T", "Chi": "X", "omicron": "o",
}  # fmt: skip
_SPELT = {"lamda": "lambda"}  # as Unicode has it: as TeX has it
_GREEK = re.compile(  # that TeX has a command for
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho|sigma|tau|upsilon|phi|chi|psi|omega"
    "|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Upsilon|Phi|Psi|Omega"
)


def escaped(text: str) -> str:
    """Escape for LaTeX: one line in which nothing that users write is a command, in ASCII.

    What LaTeX has no letter for is named by its number, as U+7814.
    """
    # Hyphens side by side, which TeX would join to a dash, are kept apart.
    parts = ("".join(map(_letter, part)) for part in " ".join(text.split()).split("--"))
    return "-{}-{}".join(parts)


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter.isascii():
        return letter if letter.isprintable() else ""
    if greek := re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(letter, "")):
        spelt = _SPELT.get(greek[2].lower(), greek[2].lower())
        name = spelt if greek[1] == "SMALL" else spelt.capitalize()
        if name in _LIKE_LATIN or _GREEK.fullmatch(name):
            return f"${_LIKE_LATIN[name]}$" if name in _LIKE_LATIN else f"$\\{name}$"
    base, *marks = unicodedata.normalize("NFD", letter)
    if base.isascii() and base.isalpha() and len(marks) == 1 and marks[0] in _ACCENTS:
        return f"\\{_ACCENTS[marks[0]]}{{{base}}}"
    return f"\\texttt{{U+{ord(letter):04X}}}"


def table(sheet: Sheet, label: str, about: str = "") -> str:
    """Write a sheet as a ``table``; ``about``: what its title is of, where that does not say it.

    Columns of words are at the left, of sentences as paragraphs, of numbers at the right. Beyond 60 rows the last line
    says how many more the CSV file has.
    """
    lines = [_row(map(escaped, sheet.head)), r"\midrule"]
    lines += [_row(map(_cell, row)) for row in sheet.rows[:MOST_ROWS_MARKDOWN]]
    more = len(sheet.rows) - MOST_ROWS_MARKDOWN
    if more > 0:
        lines.append(rf"\multicolumn{{{len(sheet.head)}}}{{l}}{{{more} more rows in {escaped(sheet.name)}.csv}} \\")
    caption = escaped(f"{sheet.title}{f' ({about})' if about else ''}. {sheet.note}")
    return "\n".join(
        [
            r"\begin{table}[tbp]",
            r"\centering\small\setlength{\tabcolsep}{4pt}\setlength{\belowcaptionskip}{4pt}",
            rf"\caption{{{caption}}}",
            rf"\label{{{label}}}",
            rf"\begin{{tabular}}{{@{{}}{_columns(sheet)}@{{}}}}",
            r"\toprule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _row(cells: Iterable[str]) -> str:
    line = " & ".join(cells)
    # The line before ends with a command, which would take a bracket for its argument and a star for its form.
    return f"{'{}' if line.startswith(('[', '*')) else ''}{line} \\\\"


def _columns(sheet: Sheet) -> str:
    found = [{style for row in sheet.rows for style in row[column].style.split()} for column in range(len(sheet.head))]
    paragraph = r">{\raggedright\arraybackslash}p{0.24\linewidth}"
    return "".join(paragraph if "long" in styles else "l" if "word" in styles else "r" for styles in found)


def _cell(cell: Cell) -> str:
    text = escaped(cell.text)
    if "best" in cell.style.split():
        text = rf"\textbf{{{text}}}"
    return text + (rf" {{\scriptsize({escaped(cell.below)})}}" if cell.below else "")


def label_of(kind: str, sweep: str, name: str) -> str:
    """Return a label that no other sweep's table or figure has: ``tab:drift.fedprox-mu:table-1``."""
    return f"{kind}:{re.sub('[^A-Za-z0-9.]+', '-', sweep)}:{name}"


def document(title: str, sweep: str, tables: Mapping[str, str], drawings: Sequence[Drawing]) -> str:
    """Write a document of all tables and figures, which reads their files from its own folder."""
    lines = [
        "% Each table and figure of the report. Copy what you need; the files that it reads stand beside it.",
        r"\documentclass{article}",
        r"\usepackage[margin=2cm]{geometry}",
        r"\usepackage{array}",
        r"\usepackage{booktabs}",
        r"\usepackage{graphicx}",
        r"\extrafloats{200}",
        r"\begin{document}",
        rf"\section*{{{escaped(title)}}}",
        r"\renewcommand{\bottomfraction}{0.9}",
        r"\renewcommand{\textfraction}{0.05}",
        r"\suppressfloats[t]",  # none above the title, but below it
    ]
    lines += [rf"\input{{{name.removesuffix('.tex')}}}" for name in tables]
    for number, drawing in enumerate(drawings, start=1):
        lines += [
            r"\begin{figure}[tbp]",
            r"\centering",
            rf"\includegraphics[width={'' if drawing.wide else '0.6'}\linewidth]{{{drawing.name}.pdf}}",
            rf"\caption{{{escaped(drawing.caption)}}}",
            rf"\label{{{label_of('fig', sweep, drawing.name)}}}",
            r"\end{figure}",
        ]
        if number % 12 == 0:
            lines.append(r"\clearpage")
    return "\n".join([*lines, r"\end{document}", ""])
