"""Sizes in bytes as texts for messages."""

from __future__ import annotations


def size_text(size: float) -> str:
    """Return ``size`` bytes as a text with a decimal unit: ``46.8 MB``, ``107 GB``."""
    power = next((power for power in (1, 2, 3) if size < 1000 ** (power + 1)), 4)
    value, unit = size / 1000**power, ("kB", "MB", "GB", "TB")[power - 1]
    return f"{value:,.{1 if value < 100 else 0}f} {unit}"
