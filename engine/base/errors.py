"""The errors that users can repair, each told in one sentence.

FedskewError            anything the command line shows without a traceback
├── ConfigError         a field has a value it cannot have      (exit code 2)
├── DataError           a data set is missing or unreadable     (exit code 2)
├── ResourceError       cluster or disk lack what was asked     (exit code 2)
│   ├── OtherMachine    a run began where other bits are computed
│   └── WriteError      a file cannot be written
├── RunFolderError      a run folder is not what it should be   (exit code 2)
│   ├── Busy            another process writes there
│   └── StoreError      a store cannot be read or written
└── RunError            a run that had started cannot go on     (exit code 1)
    ├── ClientError     one client's round failed
    ├── UnkeyedDraw     random numbers that no key belongs to
    └── MachineFailed   it might have gone on elsewhere
        ├── MemoryShort a worker runs out of memory
        └── ProcessDied a process that a run needs is gone  (exit code 3)
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable

DIED = 3  # the exit code where a process has died that a run needs
needed_files: list[str] = []  # the user's own, that were named to this process


def resume_command(folder: object, address: str | None = None) -> str:
    """Return ``continue with: fedskew resume FOLDER``, with the address and the user's own files that are needed."""
    words = ["fedskew", "resume", str(folder), *(["--address", address] if address else [])]
    for file in needed_files:
        words += ["--with", file]
    return f"continue with: {shlex.join(words)}"


class FedskewError(Exception):
    """Base of all errors that the user can repair."""

    exit_code = 2


class ConfigError(FedskewError, ValueError):
    """A field with a value it cannot have: ``field=value: rule; repair``."""

    def __init__(self, field: str, value: object, rule: str, repair: str = "") -> None:
        message = f"{field}={_shown(value)}: {rule}"
        super().__init__(one_line(f"{message}; {repair}" if repair else message))
        self.field = field
        self.value = value
        self.rule = rule
        self.repair = repair

    def __reduce__(self):  # keeps the four parts when the error crosses processes
        return type(self), (self.field, self.value, self.rule, self.repair)

    def under(self, prefix: str) -> ConfigError:
        """Return the same error with its field named from one level further up."""
        return ConfigError(f"{prefix}.{self.field}", self.value, self.rule, self.repair)


class DataError(FedskewError):
    """A data set that is missing or cannot be read; says where it looked and how to get it."""


class ResourceError(FedskewError):
    """Ray or the disk cannot give what is asked for; says what is asked for and what there is."""


class OtherMachine(ResourceError):
    """A run that began where other bits are computed than here."""


class WriteError(ResourceError):
    """A file that cannot be written, as on a full disk; says how to resume ``folder`` once it can be."""

    def __init__(self, file: object, reason: str, folder: object) -> None:
        super().__init__(
            f"{file} cannot be written ({reason}); the last checkpoint is kept: make room, or make it writable, then "
            f"{resume_command(folder)}"
        )
        self.file = file
        self.reason = reason
        self.folder = folder

    def __reduce__(self):  # keeps the three parts when the error crosses processes
        return type(self), (self.file, self.reason, self.folder)


class RunFolderError(FedskewError):
    """A run folder of another experiment, or one that cannot be read."""


class Busy(RunFolderError):
    """A run folder that another process writes to."""


class StoreError(RunFolderError):
    """A store that cannot be read or written, as on a failing disk: no fault of the run that would use it."""


class RunError(FedskewError):
    """A run that had started and cannot go on: a client failed, a deadline passed, weights diverged."""

    exit_code = 1


class ClientError(RunError):
    """A client's round that came to nothing: something was raised, or its result is not finite.

    The cause lies with the client: it would fail alike on any machine. See ``participation.on_client_error``.
    """

    def __init__(self, message: str, client: int, round: int, step: int | None = None) -> None:
        super().__init__(message)
        self.client = client
        self.round = round
        self.step = step  # the optimizer step from which on something was not finite, from 1, if that is known

    def __reduce__(self):  # keeps the parts when the error crosses processes
        return type(self), (str(self), self.client, self.round, self.step)


class MachineFailed(RunError):
    """What says nothing about the experiment: a file, a card, a network or memory failed, or time was short."""


class MemoryShort(MachineFailed):
    """A worker that lacks the memory for its block."""


class UnkeyedDraw(RunError):
    """Random numbers drawn from something that other work draws from too: the run would have other bits each time."""


class ProcessDied(MachineFailed):
    """A process without which a run cannot go on has died; it is resumed as it is."""

    exit_code = DIED


SHOWN = 300  # characters of a value that a sentence repeats


def _shown(value: object) -> str:
    """Return a value as the user may recognise it, shortened where it is long."""
    if isinstance(value, str) and not value:
        return repr(value)
    try:
        text = str(value)
    except (ValueError, RecursionError):  # Python writes no number of more than 4,300 digits
        return "what is too long to be written"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def one_line(text: str) -> str:
    """Return ``text`` without characters that break a line, steer a terminal or cannot be encoded there."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a repair that names the closest known word, or all of them when none is close."""
    known, name = list(known), _shown(name)
    # A check that is met asks for its repair as well, thousands of times where a sweep is planned.
    close = [name] if name in known else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(known)


def require(condition: bool, field: str, value: object, rule: str, repair: str = "") -> None:
    """Raise a :class:`ConfigError` unless ``condition`` holds; for ``__post_init__`` checks."""
    if not condition:
        raise ConfigError(field, value, rule, repair)
