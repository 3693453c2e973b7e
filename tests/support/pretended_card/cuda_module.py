"""The names of ``torch.cuda`` that code under test may call, while there is a card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # which the first optimizer imports anyhow: it looks at all names of torch.cuda
from torch.optim import optimizer
from torch.utils import _foreach_utils

from tests.support.pretended_card import backend
from tests.support.pretended_card.card import Card
from tests.support.pretended_card.generators import Generator, Generators
from tests.support.pretended_card.graphs import Graph, Pool, graph
from tests.support.pretended_card.streams import Event, Stream, Streams, stream
from tests.support.pretended_card.tensor import OnCard

MEMORY = 16 * 10**9  # bytes
USED = 10**9


class Properties:
    """``torch.cuda.get_device_properties``."""

    name = "a card by name only"
    total_memory = MEMORY
    major, minor = 9, 0
    multi_processor_count = 132


@contextmanager
def _one_device(*_: Any) -> Iterator[None]:
    yield


def _names(card: Card) -> dict[str, Any]:
    """What each name is."""
    nothing = lambda *_, **__: None  # noqa: E731
    set_stream = lambda one: setattr(card.streams, "current", one)  # noqa: E731
    return {
        "_lazy_init": nothing,
        "init": nothing,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        "device": _one_device,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "get_device_name": lambda *_: Properties.name,
        "get_device_properties": lambda *_: Properties,
        "get_device_capability": lambda *_: (Properties.major, Properties.minor),
        "mem_get_info": lambda *_: (MEMORY - USED, MEMORY),
        "memory_allocated": lambda *_: USED,
        "memory_reserved": lambda *_: USED,
        "max_memory_allocated": lambda *_: USED,
        "max_memory_reserved": lambda *_: USED,
        "reset_peak_memory_stats": nothing,
        "set_per_process_memory_fraction": nothing,
        "empty_cache": nothing,
        "synchronize": lambda *_: card.host_waits("torch.cuda.synchronize", None),
        "get_rng_state": card.generators.state,
        "set_rng_state": card.generators.set_state,
        "manual_seed": card.generators.seed,
        "manual_seed_all": card.generators.seed,
        "Stream": Stream,
        "Event": Event,
        "stream": stream,
        "current_stream": lambda *_: card.streams.current,
        "default_stream": lambda *_: card.streams.default,
        "set_stream": set_stream,
        "CUDAGraph": Graph,
        "graph": graph,
        "graph_pool_handle": Pool,
        "is_current_stream_capturing": lambda: card.tape is not None,
    }


@contextmanager
def card() -> Iterator[Card]:
    """Let torch have a card within.

    Raises :class:`~tests.support.pretended_card.order.Race` at the end, too, where nothing has asked before.
    """
    backend.register()
    found = Card()
    lifts, threads = torch._C._only_lift_cpu_tensors(), torch._C._is_multithreading_enabled()
    with ExitStack() as stack:
        for name, value in _names(found).items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(torch, "Generator", Generator))
        stack.enter_context(patch.object(torch.backends.cuda, "is_built", lambda: True))
        # As on a card, an optimizer does one operation for many tensors.
        for module in (_foreach_utils, optimizer):
            kinds = [*module._foreach_supported_types, OnCard]
            stack.enter_context(patch.object(module, "_foreach_supported_types", kinds))
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        stack.callback(torch._C._set_multithreading_enabled, threads)
        torch._C._set_only_lift_cpu_tensors(True)
        torch._C._set_multithreading_enabled(False)  # backward passes in this thread: the card has none of its own
        Streams.card, Generators.present = found, found.generators
        with found:
            yield found
            found.end()
