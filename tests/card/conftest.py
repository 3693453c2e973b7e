"""What all tests of this folder have."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.on_card import one_canary


@pytest.fixture(scope="package", autouse=True)
def _one_canary() -> Iterator[None]:
    with one_canary():
        yield
