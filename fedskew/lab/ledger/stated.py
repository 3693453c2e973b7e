"""A named sweep as it is stated now, as far as the ledger compares it with what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.results.claims import Claim


@dataclass(frozen=True)
class Stated:
    """A sweep of a profile. What is a function here takes a while, and is asked for where an entry is compared.

    definition: ``Sweep.to_mapping()``. identity: what the results of its base experiment depend on. settings: all of
    its settings, none where a searcher proposes them. sources: 16 hex digits of the sources that it goes through.
    codes: the hashes that its trials would note for their code here.
    """

    name: str  # "ccvr.main"
    profile: str
    overrides: tuple[str, ...]
    title: str
    claims: tuple[Claim, ...]
    definition: Mapping[str, Any] = field(repr=False)
    identity: Callable[[], Mapping[str, Any]] = field(repr=False)
    settings: Callable[[], Sequence[Mapping[str, Any]]] = field(repr=False)
    sources: Callable[[], str] = field(repr=False)
    codes: Callable[[], frozenset[str]] = field(repr=False)
