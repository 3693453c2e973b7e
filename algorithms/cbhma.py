"""CBHMA: UHC with misclassification costs (Pang et al. 2022, DOI 10.1109/TDSC.2022.3183170).

Costs of a sample's class are added, as logarithms, to the student's logits in both terms, and samples are weighed by
their class (class_costs.py). ``row_weight=False`` is the printed loss. What a device sends is what it sends for UHC.
"""

from __future__ import annotations

from dataclasses import dataclass

from algorithms.class_costs import ClassCosts
from algorithms.uhc import Uhc


@dataclass(frozen=True)
class Cbhma(ClassCosts, Uhc):
    pass
