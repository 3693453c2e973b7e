"""The contract, for authors: base classes, and all that hooks of algorithms, models and data are given or return.

``help(fedskew.contract.Algorithm)`` lists the hooks, the core ones first; ``help(fedskew.contract.LocalRun)`` and its
like say what each attribute holds. Read docs/contract.md first.
"""

from fedskew.lazy import offered

__getattr__, __dir__, __all__ = offered(__name__, __file__)
