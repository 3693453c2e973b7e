"""A card that exists by name only: on a CPU-only torch the device "cuda" works, with real numbers, and is as strict.

    with card() as found:
        ...  # any code that says "cuda"
    found.counts.waits, found.counts.uploads, found.counts.launches

``backend.py`` is what torch is told, ``tensor.py`` what a tensor on the card is, ``card.py`` what becomes of an
operation; read these first. ``rules.py`` and ``generators.py`` refuse what CUDA refuses, ``counts.py`` counts what the
host starts, uploads and waits for, ``tape.py`` is a captured graph, ``order.py`` finds races between streams.
It knows nothing of speed, of CUDA's kernels and their rounding, of memory that runs out, and of autocast, which does
nothing here.
"""

from tests.support.pretended_card.backend import why_not
from tests.support.pretended_card.card import Card
from tests.support.pretended_card.counts import Counts
from tests.support.pretended_card.cuda_module import card
from tests.support.pretended_card.order import Race

__all__ = ["Card", "Counts", "Race", "card", "why_not"]
