"""The console of the command line, which prints texts as they are."""

from __future__ import annotations

from typing import Any

from rich.console import Console


def plain_console(**options: Any) -> Console:
    """Return a console for which ``[/red]`` in a folder's name is no markup, and ``:red:`` no picture.

    What is to be bold has a style. Rich's statuses and columns of progress bars read markup all the same: a text that
    is not the engine's own reaches them as :class:`rich.text.Text`, or with ``markup=False``.
    """
    return Console(markup=False, emoji=False, **options)
