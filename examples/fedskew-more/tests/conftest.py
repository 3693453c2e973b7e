"""The methods under their names in the engine's registry, unless its plugins have put them there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fedskew_more import METHODS

from algorithms import ALGORITHMS


@pytest.fixture(autouse=True, scope="session")
def methods() -> Iterator[None]:
    """Put in what is not there, and take that out again."""
    new = {name: kind for name, kind in METHODS.items() if name not in ALGORITHMS}
    ALGORITHMS.update(new)
    yield
    for name in new:
        del ALGORITHMS[name]
