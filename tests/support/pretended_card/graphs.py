"""``torch.cuda.CUDAGraph`` and ``torch.cuda.graph`` of the card."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tests.support.pretended_card.order import Race, Use
from tests.support.pretended_card.streams import Stream, Streams
from tests.support.pretended_card.tape import Tape


class Pool:
    """Memory that several graphs take theirs from. Graphs that share it may not run at the same time."""

    def __init__(self) -> None:
        self.use = Use()


class Graph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._tape: Tape | None = None
        self._pool = Pool()

    def capture_begin(self, pool: Any = None, **_: Any) -> None:
        card = Streams.card
        if card.tape is not None:
            raise RuntimeError("CUDA error: a capture is underway already")
        if card.streams.current is card.streams.default:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream")
        if isinstance(pool, Pool):
            self._pool = pool
        card.tape = Tape(card.streams.current)

    def capture_end(self) -> None:
        card = Streams.card
        assert card.tape is not None
        self._tape, card.tape = card.tape, None
        if self._tape.invalid:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        self._tape.end()

    def __del__(self) -> None:
        card = getattr(Streams, "card", None)
        if self._tape is not None and card is not None and card.tape is not None:
            card.tape.invalid = True  # CUDA cannot destroy a graph while another one is captured

    def replay(self) -> None:
        card, tape = Streams.card, self._tape
        if tape is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        for held in tape.held.values():
            if held.storage.expired():
                raise Race(f"a graph has memory that was freed since it was captured, in {held.func}")
        reads = [held.use for held in tape.held.values()]
        writes = [*tape.written.values(), *tape.made_uses, self._pool.use]
        card.order.act(card.streams.current, "a replay", reads, writes)
        card.counts.replays += 1
        card.counts.nodes += len(tape.nodes)
        with card.generators.drawing() if tape.draws else nullcontext():
            tape.replay()

    def pool(self) -> Pool:
        return self._pool

    def reset(self) -> None:
        self._tape = None


class graph:
    """``torch.cuda.graph``: within, operations are captured."""

    _stream: Stream | None = None  # of all captures that name none

    def __init__(self, cuda_graph: Graph, pool: Any = None, stream: Stream | None = None, **_: Any) -> None:
        if stream is None:
            graph._stream = graph._stream or Stream()
        self._graph, self._pool = cuda_graph, pool
        self._on = stream or graph._stream

    def __enter__(self) -> None:
        card = Streams.card
        card.host_waits("a capture's begin", None)
        assert self._on is not None
        self._on.__enter__()
        try:
            self._graph.capture_begin(self._pool)
        except RuntimeError:
            self._on.__exit__()
            raise

    def __exit__(self, kind: Any, *_: Any) -> None:
        assert self._on is not None
        self._on.__exit__()
        if kind is None:
            self._graph.capture_end()
        else:  # the error is told, and not that of a capture that has come to no end
            Streams.card.tape = None
