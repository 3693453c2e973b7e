"""Counts, values and sentences as they are written in reports: in the right number, and in a line that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from engine.results.completeness import named
from engine.results.settings import MARK, label


def counted(count: int, noun: str) -> str:
    """Name a count: ``1 seed``, ``1,200 seeds``."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Name things by their numbers: ``seed 3``, ``seeds 1, 3``."""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {named(map(str, numbers))}"


def capitalised(sentence: str) -> str:
    """Begin with a capital letter, and leave the others as they are."""
    return sentence[:1].upper() + sentence[1:]


def shortened(text: str, longest: int) -> str:
    """Cut a text off, with an ellipsis; the mark of an oracle is never cut."""
    longest = max(longest, text.rfind(MARK) + len(MARK) + 1) if MARK in text else longest
    return text if len(text) <= longest else text[: longest - 1] + "…"


def shown(value: Any, longest: int = 36) -> str:
    """Write a hyper-parameter's value in a line that fits."""
    return shortened(" ".join(label(rounded(value)).split()), longest)


def rounded(value: Any) -> Any:
    """Keep three digits of a number: of the 16 of one that was drawn they tell it from the others."""
    return float(f"{value:.3g}") if isinstance(value, float) and math.isfinite(value) else value


def seeds_text(seeds: Sequence[int]) -> str:
    """``0–4``, ``0, 1, 5``, ``none``."""
    if not seeds:
        return "none"
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}–{seeds[-1]}"
    return ", ".join(map(str, seeds))


def escaped(text: str) -> str:
    """Escape for Markdown: one line in which nothing that users write is markup."""
    text = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("[", "\\[")
    return " ".join(text.split())
