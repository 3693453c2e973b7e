"""The part of an experiment that an algorithm may know when it checks whether it can run there.

An algorithm knows no experiment: ``engine/experiment`` builds a :class:`Setting` for each stage, and hands it to
:meth:`~engine.algorithm.Algorithm.check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.algorithm.local import Local
from engine.algorithm.types import Requires


@dataclass(frozen=True)
class PlannedStage:
    """A stage of the run, with the algorithm of its first round."""

    name: str
    needs: tuple[str, ...]  # names of the stages that it goes on from
    rounds: int  # 0: nothing but what the algorithm does before its first and after its last round
    algorithm: object  # an Algorithm; which class it is of is all that others may ask
    algorithm_name: str  # the value of algorithm.name
    requires: Requires  # by the algorithm


@dataclass(frozen=True)
class Setting:
    """The stage that an algorithm is to run in, with the stages around it and the experiment's model."""

    stage: PlannedStage  # its own
    local: Local  # the section that clients train by in its first round
    chain: tuple[PlannedStage, ...]  # all stages in order, its own among them
    model: Any  # the specification of the section model
    model_name: str  # the value of model.name

    @property
    def before(self) -> list[PlannedStage]:
        """The stages that this one goes on from."""
        return [stage for stage in self.chain if stage.name in self.stage.needs]
