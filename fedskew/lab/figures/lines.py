"""Settings drawn as lines, in their panels and colours: the same in every figure of lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from engine.results.settings import key
from fedskew.lab.comparing.ranking import Setting, ranked, varied
from fedskew.lab.comparing.scales import by_value, scale_of
from fedskew.lab.drawing import CATEGORIES, HEAT, Drawing, new_panel
from fedskew.lab.figures.panels import legend
from fedskew.lab.wording import shown

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_LINES, MOST_ORDERED = 6, 9  # of a panel: with the colours of categories, or of numbers in their order
MOST_BEST = 5  # lines, of settings too many for one each


@dataclass(frozen=True)
class Line:
    setting: Setting
    label: str
    colour: str


@dataclass(frozen=True)
class Panels:
    """Lines in their panels."""

    name: str  # of the hyper-parameter that tells lines apart; "" where labels name whole settings
    lines: dict[str, list[Line]]  # by the panel's title
    note: str  # what is not drawn

    def draw(
        self,
        name: str,
        caption: str,
        about: str,
        data: Callable[[Line], Any],
        draw: Callable[[Axes, Line, Any], None],
        **axes_settings: Any,
    ) -> list[Drawing]:
        """Draw a figure for each panel that has a line with ``data``; name and caption are those of all of them."""
        drawings = []
        for number, (title, lines) in enumerate(self.lines.items(), start=1):
            found = [(line, of_line) for line in lines if (of_line := data(line)) is not None]
            if not found:
                continue
            figure, axes = new_panel()
            for line, of_line in found:
                draw(axes, line, of_line)
            axes.set(title=title, **axes_settings)
            legend(figure, self.name)
            suffix = f"-{number}" if len(self.lines) > 1 else ""
            text = f"{caption}{', ' + title if title else ''}. {self.note} {about}"
            drawings.append(Drawing(f"{name}{suffix}", " ".join(text.split()), figure))
        return drawings


def panels_of_lines(results: Results, settings: list[Setting]) -> Panels:
    """Find what there is to tell apart: one hyper-parameter, two with few values, else whole settings."""
    finished = ranked(settings, results.mode)
    counts = varied(results, settings)
    if len(counts) == 1 and len(settings) <= MOST_ORDERED:
        (name,) = counts
        return Panels(name, {"": _lines(results, name, settings, settings)}, "")
    few = [name for name, count in counts.items() if count <= MOST_LINES]
    if len(few) >= 2 and finished:
        line, panel, *_ = few
        fixed = {name: value for name, value in finished[0].values.items() if name not in (line, panel)}
        within = [s for s in settings if all(key(s.values[name]) == key(value) for name, value in fixed.items())]
        others = ", ".join(f"{name}={shown(value)}" for name, value in fixed.items())
        by_panel = {
            f"{panel}={value}": _lines(results, line, chosen, settings)
            for value, chosen in by_value(scale_of(results, panel, within), within).items()
        }
        return Panels(line, by_panel, f"All other hyper-parameters as in the best setting: {others}." if fixed else "")
    chosen = settings if len(settings) <= MOST_LINES else finished[:MOST_BEST]
    labels = [setting.label if counts else "" for setting in chosen]
    lines = [Line(*parts) for parts in zip(chosen, labels, line_colours(len(chosen), ordered=False), strict=True)]
    some = f"The best {len(chosen)} of {len(settings)} settings." if len(chosen) < len(settings) else ""
    return Panels("", {"": lines}, some)


def _lines(results: Results, name: str, chosen: Sequence[Setting], settings: list[Setting]) -> list[Line]:
    """A line for each of ``chosen``; a value has the same colour wherever it appears among ``settings``."""
    scale = scale_of(results, name, settings)
    colours = dict(zip(sorted(scale.places.values()), line_colours(len(scale.places), scale.ordered), strict=True))
    return [
        Line(setting, shown(setting.values[name]), colours[scale.place(setting)])
        for setting in sorted(chosen, key=scale.place)
    ]


def line_colours(count: int, ordered: bool) -> list[str]:
    """The colours of numbers grow darker; those of names differ."""
    if ordered and count > 1:
        return [to_hex(HEAT(share)) for share in np.linspace(0.8, 0.05, count)]
    return [CATEGORIES[number % len(CATEGORIES)] for number in range(count)]
