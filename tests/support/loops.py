"""Look-ups in one test: many cases, none of which is worth a line of its own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(names: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Like ``pytest.mark.parametrize``, as one test: it goes through all values, and names each that fails.

    For what neither writes files nor changes anything: all values share the test's fixtures.
    """
    keys, rows = [name.strip() for name in names.split(",")], list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def loop(**fixtures: Any) -> None:
            assert rows, "there is nothing to look at"
            failures = []
            for row in rows:
                try:
                    test(**fixtures, **dict(zip(keys, row if len(keys) > 1 else (row,), strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    failures.append(f"{', '.join(keys)} = {row}: {type(error).__name__}: {error}")
            assert not failures, "\n".join([f"{len(failures)} of {len(rows)}", *failures])

        rest = [parameter for name, parameter in signature.parameters.items() if name not in keys]
        loop.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return loop

    return decorate
