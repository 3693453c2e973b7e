"""The sections ``participation``, ``evaluation``, ``stop`` and ``checkpoint``, and the table of all sections."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BeforeValidator, PrivateAttr

from engine.algorithm import Local, Phase
from engine.algorithm.privacy import Privacy
from engine.base.declared import Doc, Ge, Gt, Le, Lt, Neutral
from engine.base.errors import ConfigError, require
from engine.base.evaluated import BETTER, METRICS
from engine.base.section import Section
from engine.data import Availability, read_availability
from engine.experiment.execution import Execution
from engine.experiment.work import Work


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

    count: Annotated[int | None, Ge(1), Doc("clients of a round"), Neutral(None, "leaves it to fraction")] = None
    fraction: Annotated[
        float | None,
        Gt(0),
        Le(1),
        Doc("the same as a share of the clients that hold data; neither: all of them"),
        Neutral(None, "leaves it to count"),
    ] = None
    scheme: Annotated[Literal["fixed", "binomial"], Doc("a draw without replacement, or one coin per client")] = "fixed"
    availability: Annotated[
        Annotated[float, Gt(0), Le(1)] | str,
        BeforeValidator(_rate_or_path),
        Doc(
            "the probability with which a client is there in a round, or the path of a parquet table of who is there "
            "when, see [Clients that come and go](#clients-that-come-and-go)"
        ),
        Neutral(1, "is always"),
    ] = 1.0
    held_out: Annotated[
        Annotated[int, Ge(0)] | Annotated[float, Ge(0), Lt(1)] | tuple[int, ...],
        BeforeValidator(_held_out),
        Doc(
            "clients that never train and are only evaluated: how many, a share of those that hold data, or which, "
            "see [personal.md](personal.md#held-out-clients)"
        ),
        Neutral(0, "is none"),
    ] = 0
    on_client_error: Annotated[
        Literal["fail", "drop"],
        Doc(
            "of a client that raises an error or diverges: end the run, or leave it out of the round; a worker or a "
            "disk that fails is never a client's error, see [reliability](reliability.md)"
        ),
        Neutral("fail", "leaves nobody out"),
    ] = "fail"
    min_success: Annotated[
        float, Gt(0), Le(1), Doc("with on_client_error=drop: the share of a cohort that must not fail, or the run ends")
    ] = 0.5

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


def _own_metrics(value: Any) -> Any:
    """Refuse what is no list of names of own metrics, each once."""
    field, repair = "evaluation.metrics", "for example evaluation.metrics=[gmean]"
    is_list = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    require(is_list, field, value, "must be a list of metrics of your own", repair)
    require(len(set(value)) == len(value), field, value, "names one twice", "name each once")
    for name in value:
        try:
            METRICS.find(name)
        except ConfigError as error:
            raise ConfigError(field, name, error.rule, error.repair) from None
    return value


class Evaluation(Section):
    """The models that are measured, and every how many rounds (0 is never). The last round is always evaluated."""

    every: Annotated[
        int,
        Ge(0),
        Doc(
            "rounds between evaluations of the global model, or of clients' own where there is none; 0: only after "
            "the last"
        ),
    ] = 1
    local_every: Annotated[
        int,
        Ge(0),
        Doc(
            "the same for what each participant would use after its local work (of ditto, pfedme and pflego its own "
            "model), on the whole test set"
        ),
        Neutral(0, "is never"),
    ] = 0
    personal_every: Annotated[
        int | None,
        Ge(0),
        Doc(
            "the same for every client's own model on its share of the test set, and the participants' before and "
            "after local work; null: as `evaluation.every` where clients use something else than the global model "
            "(every method without one; `ditto`, `pfedme`, `perfedavg`), else never"
        ),
        Neutral(0, "is never"),
    ] = None
    fine_tune_epochs: Annotated[
        int,
        Ge(0),
        Doc(
            "at the end, local epochs on a client's own model before it is measured once more; it is measured before "
            "and after, whatever `evaluation.personal_every` is"
        ),
        Neutral(0, "is none"),
    ] = 0
    fine_tune_steps: Annotated[
        int | None, Ge(1), Doc("or optimizer steps"), Neutral(None, "leaves it to fine_tune_epochs")
    ] = None
    fine_tune_part: Annotated[Literal["head", "body", "all"], Doc("what is trained then")] = "head"
    fine_tune_lr: Annotated[float | None, Gt(0), Doc("its rate; null: that of the last round")] = None
    own_classes: Annotated[
        bool,
        Doc(
            "clients' own models are scored among the classes of their own rows alone, whatever the method; false: "
            "where the method does so (`pflego`, `fedper`, `fedrep`, `fedrecon`, `fedavg_local`)"
        ),
        Neutral(False, "leaves it to the method"),
    ] = False
    client_loss: Annotated[bool, Doc("each client's objective before and after training; one more forward pass")] = True
    batch_size: Annotated[int, Ge(1), Doc("test rows of a forward pass")] = 500
    metrics: Annotated[
        tuple[str, ...],
        BeforeValidator(_own_metrics),
        Doc("metrics of your own that each evaluation takes, see [metrics.md](metrics.md#of-your-own)"),
        Neutral((), "is none"),
    ] = ()

    def identity(self) -> dict[str, Any]:
        """Return the fields that a run's rows depend on; of those that came later what is not neutral."""
        return self.model_dump(exclude={name for name in ("metrics", "own_classes") if not getattr(self, name)})

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

    accuracy: Annotated[
        float | None,
        Gt(0),
        Le(1),
        Doc(
            "end the run after the first evaluated round of its last stage whose test accuracy is at least this, see "
            "[Stop rules](#stop-rules)"
        ),
        Neutral(None, "is no rule"),
    ] = None
    patience: Annotated[
        int | None,
        Ge(1),
        Doc("or after so many evaluated rounds without a better `stop.metric`"),
        Neutral(None, "is no rule"),
    ] = None
    min_delta: Annotated[
        float, Ge(0), Doc("by how much a figure must be better than the best one to count; for `stop.patience`")
    ] = 0.0
    metric: Annotated[
        str,
        Doc(
            f"the figure that `stop.patience` is for: {', '.join(BETTER)}, or one of `evaluation.metrics`; of those of "
            "which less is better, the least is the best"
        ),
    ] = "accuracy"

    @property
    def rules(self) -> dict[str, Any]:
        """The rules that are set, and their values."""
        return {name: value for name in ("accuracy", "patience") if (value := getattr(self, name)) is not None}

    def identity(self) -> dict[str, Any]:
        """Return the fields that a result depends on: none where there is no rule."""
        if self.patience is None:
            return self.rules
        of_metric = {"metric": self.metric} if self.metric != "accuracy" else {}
        return {**self.rules, "min_delta": self.min_delta, **of_metric}


class Checkpointing(Section):
    """The rounds at which a run writes a checkpoint, and the number of checkpoints that it keeps."""

    every: Annotated[int, Ge(1), Doc("rounds between checkpoints; also at the end of a stage and on Ctrl-C")] = 10
    seconds: Annotated[
        float | None,
        Gt(0),
        Doc("after which one is written even so, at the end of a round"),
        Neutral(None, "goes by rounds alone"),
    ] = 30.0
    keep: Annotated[int, Ge(1), Doc("how many are kept")] = 2


SECTIONS: dict[str, type[Section]] = {
    "local": Local,
    "participation": Participation,
    "work": Work,
    "privacy": Privacy,
    "evaluation": Evaluation,
    "stop": Stop,
    "execution": Execution,
    "checkpoint": Checkpointing,
}
