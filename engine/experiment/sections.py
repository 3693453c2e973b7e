"""The sections ``participation``, ``evaluation``, ``stop`` and ``checkpoint``, and the table of all sections."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, Field, PrivateAttr

from engine.algorithm import Local, Phase
from engine.base.errors import require
from engine.base.section import Section
from engine.data import Availability, read_availability
from engine.experiment.execution import Execution


def _rate_or_path(value: Any) -> float | str:
    is_path = isinstance(value, str) and bool(value)
    is_rate = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1
    rule = "must be a rate above 0 and at most 1, or the path of a table"
    require(is_path or is_rate, "participation.availability", value, rule, "1 is always")
    return value if is_path else float(value)


def _held_out(value: Any) -> int | float | tuple[int, ...]:
    """Return a list sorted, and 0 for no clients however that is written."""
    field, repair = "participation.held_out", "for example 2, 0.1 or [3, 7]"
    if isinstance(value, list | tuple):
        ids = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value)
        require(ids, field, value, "must list clients, which are whole numbers from 0", repair)
        require(len(set(value)) == len(value), field, value, "names a client twice", "name each once")
        return tuple(sorted(value)) or 0
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    is_share = isinstance(value, float) and 0 <= value < 1
    require(is_number or is_share, field, value, "must be a number of clients, a share below 1, or a list", repair)
    return value or 0


class Participation(Section):
    """The clients that take part in a round; with neither count nor fraction every client that holds data."""

    count: int | None = Field(default=None, ge=1)  # clients per round
    fraction: float | None = Field(default=None, gt=0, le=1)  # of the clients that hold data
    scheme: Literal["fixed", "binomial"] = "fixed"  # binomial: each client on its own, with that probability
    # the probability with which a client is there in a round, 1 is always; or the path of a table of who is there when
    availability: Annotated[float | str, BeforeValidator(_rate_or_path)] = 1.0
    # clients that never train and are only evaluated: how many, a share of those that hold data, or which; 0 is none
    held_out: Annotated[int | float | tuple[int, ...], BeforeValidator(_held_out)] = 0
    on_client_error: Literal["fail", "drop"] = "fail"  # of a client that raises or diverges: end the run, or leave it
    # out of the round; a worker or a disk that fails is never a client's error
    min_success: float = Field(default=0.5, gt=0, le=1)  # with drop: the share of a cohort that must not fail

    _table: Availability | None = PrivateAttr(default=None)

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Participation:
        require(
            self.count is None or self.fraction is None,
            "count",
            self.count,
            "cannot be set beside participation.fraction",
            "set one of the two",
        )
        if isinstance(self.availability, str):  # read once, so that nothing changes while a run is under way
            self._table = read_availability(self.availability)
        return self

    @property
    def table(self) -> Availability | None:
        """The table of who is there when, as it was when the section was made; None where there is none."""
        return self._table

    def identity(self) -> dict[str, Any]:
        """Return the fields that a result depends on; of a table its content, and not its path.

        Where the first client that fails ends the run, a run that came to its end had none, whatever these say.
        """
        values = self.model_dump(exclude={"on_client_error", "min_success"} if self.on_client_error == "fail" else None)
        if self.table is not None:
            values["availability"] = self.table.digest
        elif self.availability == 1:
            del values["availability"]
        if not self.held_out:
            del values["held_out"]
        return values

    def least(self, cohort: int) -> int:
        """Return the number of clients that must not fail in a cohort of ``cohort`` clients."""
        return math.ceil(self.min_success * cohort - 1e-9)  # 0.29 * 100 is 28.999999999999996


class Evaluation(Section):
    """The models that are measured, and every how many rounds (0 is never). The last round is always evaluated."""

    every: int = Field(default=1, ge=0)  # the global model on the test set
    local_every: int = Field(default=0, ge=0)  # each local model on the test set, before aggregation
    personal_every: int | None = Field(default=None, ge=0)  # each client's own model on its share of the test set;
    # null: as every for algorithms by which clients use something else than the global model, else never
    fine_tune_epochs: int = Field(default=0, ge=0)  # at the end, of each client's own model, which is measured before
    # and after, whatever personal_every is
    fine_tune_steps: int | None = Field(default=None, ge=1)  # or optimizer steps
    fine_tune_part: Literal["head", "body", "all"] = "head"
    fine_tune_lr: float | None = Field(default=None, gt=0)  # null: the last round's
    client_loss: bool = True  # loss of a client's first batch before and after training; costs one forward pass
    batch_size: int = Field(default=500, ge=1)

    @property
    def fine_tuning(self) -> Phase | None:
        """The training of clients' own models before they are measured once more at the end; None: there is none."""
        if self.fine_tune_epochs == 0 and self.fine_tune_steps is None:
            return None
        return Phase(
            epochs=self.fine_tune_epochs,
            steps=self.fine_tune_steps,
            trainable=self.fine_tune_part,
            features="cached" if self.fine_tune_part == "head" else "live",
            lr=self.fine_tune_lr,
        )


class Stop(Section):
    """The rules that end a run before its last round, read after each evaluated round of its last stage."""

    accuracy: float | None = Field(default=None, gt=0, le=1)  # the test accuracy that is enough; null: none is
    patience: int | None = Field(default=None, ge=1)  # evaluated rounds without a better accuracy; null: any number
    min_delta: float = Field(default=0.0, ge=0)  # by which one must exceed the best, to be better for patience

    @property
    def rules(self) -> dict[str, Any]:
        """The rules that are set, and their values."""
        return {name: value for name in ("accuracy", "patience") if (value := getattr(self, name)) is not None}

    def identity(self) -> dict[str, Any]:
        """Return the fields that a result depends on: none where there is no rule."""
        return self.rules | ({"min_delta": self.min_delta} if self.patience is not None else {})


class Checkpointing(Section):
    """The rounds at which a run writes a checkpoint, and the number of checkpoints that it keeps."""

    every: int = Field(default=10, ge=1)  # rounds; also after the last round and on Ctrl-C
    keep: int = Field(default=2, ge=1)  # how many are kept


SECTIONS: dict[str, type[Section]] = {
    "local": Local,
    "participation": Participation,
    "evaluation": Evaluation,
    "stop": Stop,
    "execution": Execution,
    "checkpoint": Checkpointing,
}
