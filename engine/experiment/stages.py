"""Stages of a run: as they are written in a config, and as they are run, with all that they train by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic
from pydantic import Field

from engine.algorithm import Algorithm, Local
from engine.base.registry import STAGE_NAME
from engine.base.section import Section
from engine.experiment.choices import AlgorithmChoice
from engine.experiment.error_sentences import one_sentence

MOST_ROUNDS = 10**9  # of a stage
MOST_STAGES = 100  # their numbers have two digits in names of files


class StageChange(Section):
    """The algorithm and the local section that a stage trains with from a (global) round on."""

    round: int
    algorithm: AlgorithmChoice
    local: Local


class Stage(Section):
    """One stage of a run: from the weights of the stage it needs, or from fresh ones."""

    name: str = Field(pattern=STAGE_NAME)
    kind: Literal["train"] = "train"
    needs: tuple[str, ...] = ()
    algorithm: AlgorithmChoice
    local: Local
    rounds: int = Field(
        ge=0, le=MOST_ROUNDS
    )  # 0: what the algorithm does at its ends, with what the stage before has come to
    changes: tuple[StageChange, ...] = ()  # ascending, within the stage

    def at(self, round: int) -> Stage:
        """Return the stage with the algorithm and the local section of ``round`` (global)."""
        past = [change for change in self.changes if change.round <= round]
        if not past:
            return self
        return self.model_copy(update={"algorithm": past[-1].algorithm, "local": past[-1].local})

    def to_mapping(self) -> dict[str, Any]:
        """Return the stage as plain data, without ``changes`` where there are none."""
        values = self.model_dump(mode="json")
        if not self.changes:
            del values["changes"]
        return values

    def identity(self) -> dict[str, Any]:
        """Return the mapping's fields that a result depends on, see :meth:`Local.identity`."""
        values = self.to_mapping() | {"local": self.local.identity()}
        for change, written in zip(self.changes, values.get("changes", ()), strict=True):
            written["local"] = change.local.identity()
        return values


class WrittenStage(Section):
    """A stage as it is written: what it leaves out it has from the experiment, field by field."""

    name: str = Field(pattern=STAGE_NAME)
    kind: Literal["train"] = "train"
    needs: tuple[str, ...] = ()
    algorithm: AlgorithmChoice | None = None
    local: dict[str, Any] = Field(default_factory=dict)
    rounds: int = Field(le=MOST_ROUNDS)

    @property
    def is_idle(self) -> bool:
        """True if it has neither rounds nor a stage that it goes on from: a warm-up of no rounds."""
        return self.rounds == 0 and not self.needs

    def resolve(self, algorithm: Algorithm, local: Local) -> Stage:
        """Return the stage with the experiment's ``algorithm`` and ``local`` where it has none of its own."""
        try:
            own = Local(**{**local.model_dump(), **self.local})
        except pydantic.ValidationError as error:
            raise one_sentence(error, {"local": Local}, Local, "local").under(f"stages.{self.name}") from None
        return Stage(
            name=self.name,
            kind=self.kind,
            needs=self.needs,
            algorithm=self.algorithm or algorithm,
            local=own,
            rounds=self.rounds,
        )


class Change(Section):
    """Hyper-parameters that change in mid-run, as population-based training does it."""

    round: int = Field(ge=2)  # global: the first round with these values
    set: dict[str, Any]  # dotted keys of algorithm and local sections


def resolved(written: Sequence[WrittenStage], algorithm: Algorithm, local: Local) -> tuple[Stage, ...]:
    """Return the stages in full, without first stages of no rounds: those would hand on the fresh weights."""
    idle = {stage.name for stage in written if stage.is_idle}
    stages = [stage.resolve(algorithm, local) for stage in written if stage.name not in idle]
    return tuple(
        stage.model_copy(update={"needs": tuple(need for need in stage.needs if need not in idle)}) for stage in stages
    )


def with_changes(
    first: Sequence[Sequence[Stage]], spans: Sequence[range], versions: Sequence[tuple[int, Sequence[Stage]]]
) -> tuple[Stage, ...]:
    """Return the stages of a run, each with what changes within its rounds.

    first: for each stage the whole chain as it holds in the stage's first round. spans: the global rounds of each
    stage. versions: rounds at which something changes, ascending, with the chain as it holds from there on.
    """
    found = []
    for number, span in enumerate(spans):
        stage, changes = first[number][number], list[StageChange]()
        for round, chain in versions:
            now, before = chain[number], changes[-1] if changes else stage
            if round in span[1:] and (now.algorithm, now.local) != (before.algorithm, before.local):
                changes.append(StageChange(round=round, algorithm=now.algorithm, local=now.local))
        found.append(stage.model_copy(update={"changes": tuple(changes)}))
    return tuple(found)


def spans_of(written: Sequence[WrittenStage]) -> tuple[range, ...]:
    """Return the global rounds of each stage but idle ones: a stage counts on from the one it needs."""
    spans: dict[str, range] = {}
    for stage in written:
        start = spans[stage.needs[0]].stop if stage.needs else 1
        spans[stage.name] = range(start, start + stage.rounds)
    return tuple(spans[stage.name] for stage in written if not stage.is_idle)


def lineage_of(needs: Mapping[str, Sequence[str]], stage: str | None = None) -> set[str]:
    """Return the names of ``stage``, by default the last one, and of those it comes from.

    needs: stage -> the stages it goes on from, in order.
    """
    found, open_ends = set[str](), [stage or list(needs)[-1]]
    while open_ends:
        name = open_ends.pop()
        found.add(name)
        open_ends += needs[name]
    return found
