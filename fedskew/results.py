"""What is left of runs and sweeps, for reading: folders, tables, claims. Read docs/results.md first."""

from fedskew.lazy import offered

__getattr__, __dir__, __all__ = offered(__name__, __file__)
