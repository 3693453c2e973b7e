"""A figure in its forms: a PNG, which pages show, and a PDF for a paper, both in the style of ``house.mplstyle``.

The PDF holds the letters that it uses as TrueType outlines (Type 42, which publishers ask for), so it looks the same
everywhere.
"""

from __future__ import annotations

import base64
import io
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.style import context

from engine.base.errors import FedskewError, one_line

log = logging.getLogger("fedskew")
T = TypeVar("T")
STYLE = Path(__file__).with_name("house.mplstyle")
_OWN: Any = matplotlib.rc_params_from_file(STYLE, use_default_template=False)
CATEGORIES: tuple[str, ...] = tuple(_OWN["axes.prop_cycle"].by_key()["color"])
INK, MUTED, GRID, PAPER = map(_OWN.get, ("text.color", "axes.edgecolor", "grid.color", "figure.facecolor"))
HEAT = matplotlib.colormaps["viridis"]  # lightness rises from end to end, so it needs no colour vision
PANEL, MIDDLE, WIDE = 4.2, 6.4, 8.8  # inches

# Decorates what draws. From matplotlib's own defaults on: a matplotlibrc that asks for TeX or a dark style must not
# change a report.
styled = context(["default", STYLE])


def drawn(what: str, make: Callable[[], T], without: T) -> T:
    """Return what ``make`` draws; ``without``, and a line in the log, where a value has no place in a picture."""
    try:
        return make()
    except FedskewError:
        raise
    except Exception as error:  # whatever the libraries say of 1e308, of letters and of names
        log.warning("%s cannot be drawn and is left out (%s: %s)", what, type(error).__name__, one_line(str(error)))
        return without


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that can be written in its forms."""

    name: str  # of its files
    caption: str
    figure: Figure = field(repr=False)
    wide: bool = False

    @cached_property
    def png(self) -> bytes:
        """Paint it with 200 dots an inch."""
        return self._printed(FigureCanvasAgg, "png", 200, {"Software": None})

    @cached_property
    def pdf(self) -> bytes:
        """Draw it in lines and letters; panels that are images have 300 dots an inch. It holds no date."""
        from matplotlib.backends.backend_pdf import FigureCanvasPdf  # with fontTools, which a run's end can do without

        return self._printed(FigureCanvasPdf, "pdf", 300, {"CreationDate": None, "Creator": None})

    @styled
    def _printed(self, canvas: type[FigureCanvasBase], form: str, dots: int, metadata: dict[str, None]) -> bytes:
        def painted(figure: Figure) -> bytes:
            made = io.BytesIO()
            figure.set_dpi(dots)
            with warnings.catch_warnings():  # for letters that DejaVu lacks a box stands
                warnings.filterwarnings("ignore", message="Glyph .* missing from")
                canvas(figure).print_figure(made, format=form, dpi=dots, metadata=metadata)
            return made.getvalue()

        return drawn(f"{self.name}.{form}", lambda: painted(self.figure), b"") or painted(new_figure())

    @property
    def address(self) -> str:
        """The picture itself, as the address of an image of a page."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"

    @property
    def width(self) -> int:
        """Points that a page gives it: letters are then as large in all figures of a page."""
        return round(115 * self.figure.get_size_inches()[0])

    @property
    def files(self) -> dict[str, bytes]:
        """Give its files by name."""
        return {f"{self.name}.png": self.png, f"{self.name}.pdf": self.pdf}


def new_figure(width: float = PANEL, height: float = 2.9) -> Figure:
    """Begin a figure of that many inches; call it where the style holds."""
    return Figure(figsize=(width, height), layout="constrained")


def new_panel(width: float = PANEL, height: float = 2.9) -> tuple[Figure, Axes]:
    """Begin a figure with a single panel."""
    figure = new_figure(width, height)
    return figure, figure.subplots()
