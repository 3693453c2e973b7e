"""Files of named tensors (safetensors), in the order of their names as they were given.

The format keeps no order. A dictionary that is read again would have another one than the same in memory, and so would
what an algorithm makes of it entry by entry: after a resume, or where a state was on the disk in between.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import safetensors.torch
from torch import Tensor

from engine.algorithm import Tensors

ORDER = "order"  # in the metadata: the names, as JSON


def encoded(tensors: Tensors, metadata: Mapping[str, str] = {}) -> bytes:
    """Make the content of a file."""
    return safetensors.torch.save(tensors, {**metadata, ORDER: json.dumps([*tensors])})


def decoded(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read what :func:`encoded` was given; a file that says nothing of order is read in its own."""
    tensors = safetensors.torch.load(content)
    size = int.from_bytes(content[:8], "little")  # of the header, which is JSON
    metadata = dict(json.loads(content[8 : 8 + size]).get("__metadata__", {}))
    order = json.loads(metadata.pop(ORDER, "[]"))
    return {name: tensors[name] for name in order} | tensors, metadata
