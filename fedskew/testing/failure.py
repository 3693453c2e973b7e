"""What a check ends with where it does not pass: a part that does not conform, or one that it has no meaning for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import SkipTest

from engine.base.errors import FedskewError, one_line


class NotConforming(FedskewError):
    """A part that breaks a rule which the engine counts on: what is wrong, where, and what to change."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class NotApplicable(SkipTest):
    """A check that has no meaning for a part, or cannot be made here; the message is the reason. It skips a test."""


def demand(condition: bool, message: str) -> None:
    """Raise :class:`NotConforming` with ``message`` unless ``condition`` holds."""
    if not condition:
        raise NotConforming(message)


@contextmanager
def telling(what: str, repair: str) -> Iterator[None]:
    """Raise :class:`NotConforming` where the block raises anything: ``what`` was done, the error, the ``repair``."""
    try:
        yield
    except (NotConforming, NotApplicable):
        raise
    except Exception as error:
        told = str(error) if isinstance(error, FedskewError) else f"{type(error).__name__}: {error}"
        sentence = " ".join(told.split()).partition(". ")[0]  # torch asks for reports in its second one
        advice = "" if getattr(error, "repair", "") else f"; {repair}"  # one is enough
        raise NotConforming(f"{what}: {sentence}{advice}") from error
