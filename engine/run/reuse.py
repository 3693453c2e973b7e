"""Rounds that another run has computed already, and rounds that others may want from this one.

A run asks before every round whether somebody has stored a longer prefix of what it is about to compute. If not, it
takes the lease on that prefix and computes; if somebody else holds the lease it waits, and continues from what the
holder publishes, or takes over when the holder is gone.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.base.errors import RunFolderError
from engine.base.evaluated import METRICS
from engine.base.owned import clear, remove
from engine.base.sources import all_behind
from engine.experiment import Experiment, Stage
from engine.record import snapshots
from engine.record.numerics import is_mixed
from engine.record.shapes import FETCHED, SNAPSHOT
from engine.record.snapshots import Snapshot
from engine.record.stage_hashes import stage_hash
from engine.record.store import Lease, StageStore, Watch
from engine.record.store.folder import token

log = logging.getLogger("fedskew")
POLL = 0.1  # seconds between two looks of a run that waits for another one
WAIT = 1.0  # seconds after which a run that waits lets its caller look up
LONG = 60.0  # seconds of waiting after which the user is told


class NotYet(Exception):
    """Somebody else is computing the next round: ask again."""


@dataclass(frozen=True)
class Segment:
    """Rounds of a stage without a change of hyper-parameters: one key of the store."""

    key: str
    first: int  # global
    last: int


def segments_of(
    experiment: Experiment, stage: Stage, span: range, computed_by: Mapping[str, str], data: str
) -> list[Segment]:
    """The keys under which a stage's rounds are stored, in order.

    A key is the stage's hash and a digest of what is measured on the way, since rows are stored with the weights.
    """
    evaluation = experiment.evaluation
    codes = {name: all_behind(METRICS.find(name)) for name in evaluation.metrics}
    measured = evaluation.identity() | ({"metrics": codes} if codes else {})
    recorded = hashlib.sha256(json.dumps(measured, sort_keys=True).encode()).hexdigest()[:8]
    firsts = [span.start, *(change.round for change in stage.changes)]
    lasts = [*(first - 1 for first in firsts[1:]), span.stop - 1]
    return [
        Segment(f"{stage_hash(experiment, stage, computed_by, data, first)}-{recorded}", first, last)
        for first, last in zip(firsts, lasts, strict=True)
    ]


class Reuse:
    """One run's dealings with a stage store."""

    def __init__(self, store: StageStore, scratch: Path, note: str = "", keep_all: bool = False) -> None:
        """``scratch``: where fetched snapshots lie for a moment; ``note``: who computes, for those who wait.

        ``keep_all``: keep every snapshot that is published, not only the latest, those asked for and the ends.
        """
        self._store = store
        self._scratch = scratch
        self._note = note
        self._keep_all = keep_all
        self._lease: Lease | None = None
        self._leased = ""
        self._passing: tuple[str, int] | None = None  # (key, round) of our last snapshot that nobody asked for
        self._watched: tuple[str, Watch] | None = None  # the lease that this run waits for
        self._waiting = 0.0  # seconds, since it began to wait

    def before(self, segments: Sequence[Segment], round: int, until: int, ends: bool) -> Snapshot | None:
        """The longest stored continuation of ``round``, up to ``until``; None when it is this run's turn to compute.

        ``ends``: the stage ends with more than its last round, stored under another name; one without rounds, with
        nothing else. Raises :class:`NotYet` every second in which somebody else computes.
        """
        ahead = next((segment for segment in segments if segment.last > round), segments[-1])
        if self._lease is not None and self._leased == ahead.key and not self._lease.lost:
            return None
        self.release()
        wanted = min(until, ahead.last)
        began = time.monotonic()
        while True:
            found = self._longest(segments, round, until, ends)
            if found is not None:
                break
            if self._take(ahead.key):
                found = self._longest(segments, round, until, ends)  # published before the lease was let go
                break
            holder = self._store.holder(ahead.key)
            if holder is not None and holder.round >= wanted:
                break  # it has passed us without leaving a snapshot: compute the few rounds between
            if self._watched is None or self._watched[0] != ahead.key:
                self._store.want(ahead.key, wanted)
                self._watched = (ahead.key, self._store.watch(ahead.key))
            if time.monotonic() - began > WAIT:
                self._wait(time.monotonic() - began, f"rounds {round + 1} to {wanted}", holder and holder.note)
                raise NotYet
            time.sleep(POLL)
        self._watched, self._waiting = None, 0.0
        return found

    def _take(self, key: str) -> bool:
        """The lease, if nobody has it or its holder is gone."""
        self._lease = self._store.lease(key, self._note)
        if self._lease is None and self._watched is not None and self._watched[0] == key:
            watch = self._watched[1]
            self._lease = watch.take_over(self._note) if watch.expired() else None
        self._leased = key if self._lease is not None else ""
        return self._lease is not None

    def _wait(self, seconds: float, what: str, note: str | None) -> None:
        before, self._waiting = self._waiting, self._waiting + seconds
        if before < LONG <= self._waiting:
            log.warning(
                "waiting for %s, which %s computes; without reuse they would be computed here", what, note or "another"
            )

    def wanted(self, segments: Sequence[Segment], round: int) -> bool:
        """Return whether somebody asked for a snapshot of ``round``."""
        return self._lease is not None and round in self._store.wanted(_of(segments, round).key)

    def publish(self, segments: Sequence[Segment], round: int, wanted: bool, write: Callable[[Path], None]) -> None:
        """Store what a round has come to."""
        here = _of(segments, round)
        mine = self._store.publish(here.key, round, write)
        if self._passing is not None and not self._keep_all:
            self._store.discard(*self._passing)
        # What another run has published is its own to discard.
        self._passing = (here.key, round) if mine and not wanted and round != here.last else None

    def ended(self, segments: Sequence[Segment], write: Callable[[Path], None]) -> None:
        """Store a stage that its algorithm has finished with something of its own."""
        self._store.publish(f"{segments[-1].key}-ended", segments[-1].last, write)

    def reached(self, round: int) -> None:
        """Let those who wait know how far this run is."""
        if self._lease is not None:
            self._lease.reached(round)

    def release(self) -> None:
        """Let others compute on."""
        if self._lease is not None:
            self._lease.release()
        self._lease, self._leased = None, ""

    def _longest(self, segments: Sequence[Segment], round: int, until: int, ends: bool) -> Snapshot | None:
        last = segments[-1]
        if ends and until >= last.last:
            found = self._fetch(f"{last.key}-ended", last.last)
            if found is not None:
                return found
        for segment in reversed(segments):
            # A stage that its algorithm finishes is not finished by having passed its last round.
            at_most = min(until, segment.last - (1 if ends and segment is last else 0))
            stored = self._store.longest(segment.key, max(round, segment.first - 1), at_most)
            if stored is not None:
                found = self._fetch(segment.key, stored)
                if found is not None:
                    return found
        return None

    def _fetch(self, key: str, round: int) -> Snapshot | None:
        clear(self._scratch, FETCHED)  # of a process that was killed
        target = self._scratch / f"{key}-{round:06d}-{token()}"
        if not self._store.fetch(key, round, target):
            return None
        try:
            return snapshots.read(target)
        except RunFolderError as error:
            log.warning("%s; computing it again", error)
            self._store.discard(key, round)
            return None

    def done_with(self, snapshot: Snapshot) -> None:
        """Its files have been taken over."""
        remove(snapshot.folder, SNAPSHOT)


def _of(segments: Sequence[Segment], round: int) -> Segment:
    return next(segment for segment in reversed(segments) if segment.first <= round)


def may_share(computed_by: Mapping[str, str]) -> bool:
    """Return whether results are determined by their hash, so that they may be stored and taken from the store."""
    return not is_mixed(computed_by)
