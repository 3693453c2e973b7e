"""A run's log: ``log.txt`` in its folder, and warnings kept until somebody shows them."""

from __future__ import annotations

import logging
from io import TextIOWrapper
from pathlib import Path

from engine.base.opening import regular

log = logging.getLogger("fedskew")


class Messages(logging.Handler):
    """Keeps warnings until somebody shows them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())

    def drain(self) -> list[str]:
        texts, self._texts = self._texts, []
        return texts


class LogFile(logging.FileHandler):
    """A run goes on without its log where the disk does not take it, or something else lies in its place."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, opener=regular)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            super().emit(record)
        except OSError:  # of opening the file
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        if self in _handlers:
            _handlers.remove(self)
            log.removeHandler(self)
            log.warning("%s cannot be written; the run goes on without it", self.baseFilename)


def log_to(folder: Path) -> None:
    """Log to ``folder/log.txt`` until :func:`stop_logging`, or the next run of this process."""
    file = LogFile(folder / "log.txt", encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    stop_logging()
    _handlers.append(file)
    log.addHandler(file)
    log.setLevel(logging.INFO)


def stop_logging() -> None:
    while _handlers:
        handler = _handlers.pop()
        log.removeHandler(handler)
        handler.close()


_handlers: list[logging.Handler] = []  # of the run that this process drives
