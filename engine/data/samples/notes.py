"""What readers take of the files and how: sentences noted on the way, which the data set carries to whoever shows it.

They are in no fingerprint. :meth:`Source.load` collects them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock


class Notes:
    """The sentences of one load, in the order in which they came."""

    def __init__(self) -> None:
        self.counts = Counter[str]()  # 0 of sentences that are told without a number
        self.warnings = dict[str, None]()

    @property
    def facts(self) -> tuple[str, ...]:
        return tuple(f"{count:,} {sentence}" if count else sentence for sentence, count in self.counts.items())


_ONE = Lock()  # at a time: images are decoded in several threads
OF_LOAD: ContextVar[Notes | None] = ContextVar("OF_LOAD", default=None)  # the load that is under way in this thread


@contextmanager
def noting() -> Iterator[Notes]:
    """Collect what is noted in the block."""
    notes = Notes()
    token = OF_LOAD.set(notes)
    try:
        yield notes
    finally:
        OF_LOAD.reset(token)


def note(sentence: str, count: int | None = None) -> None:
    """Note a sentence; with a count, which is put before it: none is no note, and those of equal ones are added up."""
    if (notes := OF_LOAD.get()) is not None and count != 0:
        with _ONE:
            notes.counts[sentence] += count or 0


def warn(sentence: str) -> None:
    """Note what may be a mistake in the data."""
    if (notes := OF_LOAD.get()) is not None:
        notes.warnings[sentence] = None


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, and how many there are beyond them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
