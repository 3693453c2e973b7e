"""Where blocks of clients run: threads of this process, or Ray actors. Nothing in this room changes a bit of a result.

It offers one interface, the pool: calls go in, results come out in the order of the calls, whatever happens to the
workers meanwhile. Read ``pool.py`` first, then ``scheduling.py`` (which block goes where next) and ``ray/calls.py``
(what happens when an actor dies, hangs or runs out of memory).
"""
