"""What is shown while something goes on: consoles, bars, and a place whose content is replaced."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.jupyter import JupyterMixin
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment

from engine.base.errors import one_line

LINES_EVERY = 60.0  # seconds, where there is no terminal


def printable(text: str) -> str:
    """Return a text, which a stranger may have written, without what steers a terminal; its lines stay."""
    return text if text.isprintable() else "\n".join(map(one_line, text.split("\n")))


class _Printable(Console):
    """A console that is handed every piece of text before it is shown, whatever table or bar it is a part of."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for one in super().render(renderable, options):
            yield one if one.control else Segment(printable(one.text), one.style)


def plain_console(**options: Any) -> Console:
    """Return a console for which ``[/red]`` in a folder's name is no markup, and ``:red:`` no picture.

    What is to be bold has a style. Rich's statuses and columns of progress bars read markup all the same: a text that
    is not the engine's own reaches them as :class:`rich.text.Text`, or with ``markup=False``.
    """
    return _Printable(markup=False, emoji=False, **options)


def progress_bar(of: str, console: Console | None = None) -> Progress:
    """Return a bar that counts what it is of, with a text of each task's own: its field ``now``."""
    now = TextColumn("{task.fields[now]}", markup=False)
    columns = (TextColumn(of), BarColumn(), MofNCompleteColumn(), now, TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


def time_left(begun: float, done: int, left: int) -> str:
    """Return how long what is left will take if it goes on as since ``begun``, of ``time.monotonic``; "" if unknown."""
    return f"; {timedelta(seconds=round((time.monotonic() - begun) / done * left))} left" if done > 0 else ""


class Shown(JupyterMixin):
    """One place of a terminal, or of a notebook's cell, whose content is replaced; a notebook needs no ipywidgets.

    Where there is no terminal, as in a job's log, a line now and then.
    """

    def __init__(self, console: Console | None) -> None:
        """``console``: where; None: nowhere."""
        self.in_notebook = console is not None and console.is_jupyter
        self._content: RenderableType = ""
        there = None if self.in_notebook else console
        self._live = Live(console=there) if there is not None and there.is_terminal else None
        self._log = there if self._live is None else None
        self._logged = time.monotonic()
        self._cell: Any = None

    @property
    def is_log(self) -> bool:
        """Whether lines alone are shown, and no content."""
        return self._live is None and not self.in_notebook

    def __rich__(self) -> RenderableType:
        return self._content

    def show(self, content: RenderableType, line: str = "") -> None:
        """Show ``content`` in the place of what was shown before; ``line``: what a log has of it."""
        self._content = content
        if self._live is not None:
            self._live.start()
            self._live.update(content, refresh=True)
        elif self._log is not None:
            if line and time.monotonic() - self._logged >= LINES_EVERY:
                self._logged = time.monotonic()
                self._log.print(line, highlight=False, soft_wrap=True)
        elif self._cell is not None:
            self._cell.update(self)
        elif self.in_notebook:
            from IPython.display import DisplayHandle  # pyright: ignore[reportMissingImports]  # is there in a notebook

            self._cell = DisplayHandle()
            self._cell.display(self)

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *error: object) -> None:
        """Leave what is shown where it is."""
        if self._live is not None and self._live.is_started:
            self._live.stop()


def cell() -> int:
    """Return the number of the notebook's cell that runs."""
    from IPython.core.getipython import get_ipython  # pyright: ignore[reportMissingImports]

    return getattr(get_ipython(), "execution_count", 0)
