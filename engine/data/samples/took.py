"""What readers took of the files and how: sentences noted on the way, which the data set carries to whoever shows it.

They are in no fingerprint. :meth:`Source.load` collects them; a run's terminal and ``log.txt`` and ``fedskew check``
show them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

_noted = Counter[str]()  # by the load that is under way


def note(sentence: str, count: int | None = None) -> None:
    """Note a sentence; with a count, which is put before it: none is no note, and those of equal ones are added up."""
    if count != 0:
        _noted[sentence] += count or 0


def drained() -> tuple[str, ...]:
    """Return what was noted since the last call, in that order."""
    told = tuple(f"{count:,} {sentence}" if count else sentence for sentence, count in _noted.items())
    _noted.clear()
    return told


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, and how many there are beyond them."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
