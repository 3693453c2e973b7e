"""Every random draw of a run has a key: (seed, purpose, round, client).

No generator is shared and none is global, so a draw does not depend on which process makes it, nor on
what was drawn before it. That is what makes runs equal to the bit on any number of actors.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def key(seed: int, purpose: str, round: int = 0, client: int = -1) -> int:
    """Return a 63-bit number that belongs to this draw alone.

    ``round`` 0 is before the first round; ``client`` -1 is the server.
    """
    text = f"{seed}/{purpose}/{round}/{client}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, round: int = 0, client: int = -1) -> torch.Generator:
    """Return a torch generator on the CPU (draws are moved to the device, so that bits do not depend on it)."""
    return torch.Generator().manual_seed(key(seed, purpose, round, client))


def numpy_generator(seed: int, purpose: str, round: int = 0, client: int = -1) -> np.random.Generator:
    """Return a numpy generator, for what torch lacks (Dirichlet draws, choice without replacement)."""
    return np.random.Generator(np.random.PCG64(key(seed, purpose, round, client)))
