"""Settings drawn as lines, in their panels and colours: the same in every figure of lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.results.settings import key
from fedskew.lab.comparing.ranking import Setting, ranked, spread_out, varied
from fedskew.lab.comparing.scales import by_value, scale_of
from fedskew.lab.drawing import MUTED, RAMP
from fedskew.lab.figures.colours import line_colours
from fedskew.lab.figures.panels import MOST_LINES
from fedskew.lab.wording import shown

if TYPE_CHECKING:
    from engine.results.results import Results

MOST_COLOURED, MOST_GREY = 5, 40  # of settings too many for a line each


@dataclass(frozen=True)
class Line:
    setting: Setting
    label: str
    colour: str


def panels_of_lines(results: Results, settings: list[Setting]) -> tuple[str, list[tuple[str, list[Line]]], str]:
    """Return what the lines are called, the panels (title, lines), and a sentence on what is not drawn."""
    finished = ranked(settings, results.mode)
    counts = varied(results, settings)
    if len(counts) == 1 and len(settings) <= len(RAMP):
        (name,) = counts
        return name, [("", _lines(results, name, settings, settings))], ""
    few = [name for name, count in counts.items() if count <= MOST_LINES]
    if len(few) >= 2 and finished:
        line, panel, *_ = few
        fixed = {name: value for name, value in finished[0].values.items() if name not in (line, panel)}
        within = [s for s in settings if all(key(s.values[name]) == key(value) for name, value in fixed.items())]
        others = ", ".join(f"{name}={shown(value)}" for name, value in fixed.items())
        return (
            line,
            [
                (f"{panel}={value}", _lines(results, line, chosen, settings))
                for value, chosen in by_value(scale_of(results, panel, within), within).items()
            ],
            f"All other hyper-parameters as in the best setting: {others}." if fixed else "",
        )
    if len(settings) <= MOST_LINES:
        colours = line_colours(len(settings), ordered=False)
        lines = [Line(s, s.label if counts else "", colour) for s, colour in zip(settings, colours, strict=True)]
        return "", [("", lines)], ""
    best = finished[:MOST_COLOURED]
    others = finished[MOST_COLOURED:] + [setting for setting in settings if math.isnan(setting.mean)]
    rest = spread_out(others, MOST_GREY)
    lines = [Line(setting, "", MUTED) for setting in reversed(rest)]
    lines += [Line(s, s.label, colour) for s, colour in zip(best, line_colours(len(best), False), strict=True)]
    return "", [("", lines)], f"In colour the best {len(best)} settings; in grey {len(rest)} of {len(others)} others."


def _lines(results: Results, name: str, chosen: list[Setting], settings: list[Setting]) -> list[Line]:
    """A line for each of ``chosen``; a value has the same colour wherever it appears among ``settings``."""
    scale = scale_of(results, name, settings)
    colours = dict(zip(sorted(scale.places.values()), line_colours(len(scale.places), scale.ordered), strict=True))
    return [
        Line(setting, shown(setting.values[name]), colours[scale.place(setting)])
        for setting in sorted(chosen, key=scale.place)
    ]
