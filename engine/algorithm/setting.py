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
    """A stage of the run, with the algorithm of its first round.

    Attributes:
        name: its name in the section ``stages``
        needs: names of the stages that it goes on from
        rounds: 0: only what the algorithm does before its first and after its last round
        algorithm: an Algorithm; others may ask only of which class it is
        algorithm_name: the value of ``algorithm.name``
        requires: the algorithm's :class:`Requires`
    """

    name: str
    needs: tuple[str, ...]
    rounds: int
    algorithm: object
    algorithm_name: str
    requires: Requires


@dataclass(frozen=True)
class Setting:
    """The stage that an algorithm is to run in, with the stages around it and the experiment's model.

    Attributes:
        stage: the algorithm's stage
        local: the section that clients train by in its first round
        chain: all stages in order, this one among them
        model: the specification of the section ``model``
        model_name: the value of ``model.name``
    """

    stage: PlannedStage
    local: Local
    chain: tuple[PlannedStage, ...]
    model: Any
    model_name: str

    @property
    def before(self) -> list[PlannedStage]:
        """The stages that this one goes on from."""
        return [stage for stage in self.chain if stage.name in self.stage.needs]
