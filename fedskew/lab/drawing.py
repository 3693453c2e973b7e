"""A figure in its forms: PNG and PDF as files, and an SVG that belongs into a page.

Laid out once with matplotlib. In the page's SVG every colour of ``THEME`` is a CSS variable, so that it follows the
page into the dark; text stays text; and what was given a tip carries it as ``data-tip``. The PDF holds the letters that
it uses as TrueType outlines (Type 42, which publishers ask for), so it looks the same everywhere: it is for a paper.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1c2430", "#5c6672", "#e3e6eb", "#ffffff"
CATEGORIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # of Okabe and Ito
HEAT = matplotlib.colormaps["viridis"]  # of cells with a number written on them: the same in light and dark
PANEL, MIDDLE, WIDE = 4.2, 6.4, 8.8  # inches
# For values that have an order: lightness falls from end to end on white and on black, so it needs no colour vision.
RAMP = ("#dba716", "#b0a92f", "#79ab54", "#3fa574", "#219788", "#2a8097", "#386797", "#444b8a", "#43306d")
THEME: dict[str, tuple[str, str]] = {  # colour in the light: name of the CSS variable, colour in the dark
    INK: ("ink", "#e8eaed"),
    MUTED: ("muted", "#a0a9b5"),
    GRID: ("grid", "#2c333d"),
    PAPER: ("paper", "#14171c"),
    **{
        colour: (f"category-{number}", dark)
        for number, (colour, dark) in enumerate(
            zip(CATEGORIES, ("#4ea9e6", "#ff8b4d", "#2fc79c", "#e59fc8", "#f4b73f", "#8ccff6"), strict=True)
        )
    },
    **{
        colour: (f"ramp-{number}", dark)
        for number, (colour, dark) in enumerate(
            zip(
                RAMP,
                ("#f9e07a", "#d6da68", "#a5d877", "#74d197", "#52c0ae", "#4fa9bf", "#5b90cb", "#7079cc", "#8262c4"),
                strict=True,
            )
        )
    },
}


_OWN_STYLE = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 8.5,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a value is a dollar
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "figure.facecolor": PAPER,
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.06,
    "svg.fonttype": "none",
    "svg.hashsalt": "fedskew",
    "pdf.fonttype": 42,
}
# From matplotlib's own defaults: a matplotlibrc that asks for TeX or a dark style must not change a report.
STYLE: Any = {
    key: value
    for key, value in matplotlib.rcParamsDefault.items()
    if not key.startswith(("backend", "interactive", "toolbar", "timezone", "datapath"))
} | _OWN_STYLE


@dataclass(frozen=True, eq=False)
class Drawing:
    """A finished figure."""

    name: str  # of its files
    caption: str
    png: bytes
    svg: str  # for a page
    wide: bool
    figure: Figure = field(repr=False)

    @cached_property
    def pdf(self) -> bytes:
        """Draw it as a PDF, at the first use: only reports need one, and it takes as long as the other forms together.

        Panels that are images have 300 dots an inch; all else is lines and letters. It holds no date.
        """
        from matplotlib.backends.backend_pdf import FigureCanvasPdf  # with fontTools, which a run's end can do without

        made = io.BytesIO()
        with matplotlib.rc_context(STYLE), _letters_may_lack():
            self.figure.set_dpi(300)
            FigureCanvasPdf(self.figure).print_pdf(made, metadata={"CreationDate": None, "Creator": None})
        return made.getvalue()

    @property
    def files(self) -> dict[str, bytes]:
        """Give its files by name."""
        return {f"{self.name}.png": self.png, f"{self.name}.pdf": self.pdf}


class Sketch:
    """A matplotlib figure in the making, and the tips that its artists show on the page."""

    def __init__(self, width: float, height: float) -> None:
        self.figure = Figure(figsize=(width, height), layout="constrained")
        self._tips: dict[str, list[str]] = {}

    def tip(self, artist: Artist, texts: Sequence[str]) -> None:
        """One text for the whole artist, or one for each mark of a collection."""
        if len(texts):
            name = f"tip{len(self._tips)}"
            artist.set_gid(name)
            self._tips[name] = list(texts)

    def png(self) -> bytes:
        """Paint it with 200 dots an inch."""
        png = io.BytesIO()
        with _letters_may_lack():
            self.figure.set_dpi(200)
            FigureCanvasAgg(self.figure).print_png(png, metadata={"Software": None})
        return png.getvalue()

    def finish(self, name: str, caption: str, wide: bool = False) -> Drawing:
        png, svg = self.png(), io.BytesIO()
        with _letters_may_lack():
            self.figure.set_layout_engine("none")  # all forms have the layout of the first
            self.figure.set_dpi(72)
            FigureCanvasSVG(self.figure).print_svg(svg, metadata={"Date": None, "Creator": None})
        page = _for_page(svg.getvalue(), name, self._tips, caption)
        return Drawing(name, caption, png, page, wide, self.figure)


@contextmanager
def _letters_may_lack() -> Iterator[None]:
    """Draw without a warning for letters that DejaVu lacks: the page's own fonts have them, elsewhere a box stands."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _for_page(raw: bytes, name: str, tips: Mapping[str, list[str]], label: str) -> str:
    """matplotlib's SVG made fit to stand in a page: no namespace, own ids, theme colours, tips, short numbers."""
    root = ElementTree.fromstring(raw)
    for child in list(root):
        if child.tag.endswith(("metadata", "defs")) and not any(part.get("id") for part in child.iter()):
            root.remove(child)
    hidden = {id(part) for defs in root.iter("{http://www.w3.org/2000/svg}defs") for part in defs.iter()}
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    for element in root.iter():
        texts = tips.get(element.get("id", ""), [])
        if len(texts) == 1:
            element.set("data-tip", texts[0])
        elif texts:
            marks = [part for part in element.iter() if part.tag in ("use", "path") and id(part) not in hidden]
            for mark, text in zip(marks, texts, strict=True):
                mark.set("data-tip", text)
    used = set(re.findall(r"#([\w-]+)", " ".join(v for e in root.iter() for k, v in e.attrib.items() if k in _LINKS)))
    ids = {old: f"{name}-{number}" for number, old in enumerate(sorted(used))}
    for element in root.iter():
        _shorten(element, ids)
    # As wide as on paper, or less: then the letters of all figures of a page have one size.
    width = float(root.get("width", "0pt").removesuffix("pt"))
    root.set("style", f"--width:{width:.0f}")
    for attribute in ("width", "height", "version"):
        root.attrib.pop(attribute, None)
    # A tab stop where there is something to ask; the page's script walks from tip to tip with the arrow keys.
    root.attrib.update({"role": "img", "aria-label": label} | ({"tabindex": "0"} if tips else {}))
    return ElementTree.tostring(root, encoding="unicode")


_LINKS = ("href", "clip-path", "style")


def _shorten(element: ElementTree.Element, ids: Mapping[str, str]) -> None:
    old = element.attrib.pop("id", "")
    if old in ids:
        element.set("id", ids[old])
    for key in ("href", "clip-path"):
        value = element.get(key, "")
        if "#" in value and not value.startswith("data:"):
            element.set(key, re.sub(r"#([\w-]+)", lambda match: "#" + ids[match[1]], value))
    style = element.get("style")
    if style is not None:
        kept = [part.strip() for part in style.split(";") if not part.strip().startswith("font-family")]
        element.set("style", re.sub("#[0-9a-f]{6}", _variable, ";".join(kept).replace(": ", ":")))
    if element.get("transform", "").startswith(("rotate(-0 ", "rotate(0 ")):
        del element.attrib["transform"]
    for key in ("d", "x", "y", "width", "height", "transform"):
        if key in element.attrib and element.tag != "image":  # whose pixels are scaled to a panel
            number = re.sub(
                r"-?\d+\.\d+", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), element.attrib[key]
            )
            element.set(key, " ".join(number.split()))
    if element.tag != "text":
        element.text = None
    element.tail = None


def _variable(match: re.Match[str]) -> str:
    return f"var(--{THEME[match[0]][0]})" if match[0] in THEME else match[0]
