"""CBHMA-E: SKD2 with CBHMA's misclassification costs and row weights (Pang et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from algorithms.class_costs import ClassCosts
from algorithms.skd2 import Skd2


@dataclass(frozen=True)
class CbhmaE(ClassCosts, Skd2):
    pass
