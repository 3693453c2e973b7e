"""In which order clients that are trained together take their steps.

A client's steps have an order; steps of different clients have none. So whoever has a batch of equal size next goes
together, the largest first: full batches as long as there are any, then the short ones at the end of a pass. With
clients in descending order of rows, those with full batches left are a prefix, and no step is padded or masked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def lockstep(sizes: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """Ranges [first, last) of clients that take their next step together.

    sizes: of each client's batches in a pass, in its order; all are at least 1. Every step is in exactly one range.
    """
    done = [0] * len(sizes)
    heads = [own[0] if own else 0 for own in sizes]
    while largest := max(heads, default=0):
        first = 0
        while first < len(heads):
            if heads[first] != largest:
                first += 1
                continue
            last = first
            while last < len(heads) and heads[last] == largest:
                last += 1
            yield first, last
            for client in range(first, last):
                done[client] += 1
                own = sizes[client]
                heads[client] = own[done[client]] if done[client] < len(own) else 0
            first = last
