"""The config of a run: frozen, checked at construction, hashed, YAML in and out.

    Experiment.from_yaml(path)            a file
    experiment.override(["local.lr=0.1"]) dotted key=value pairs, as on the command line
    experiment.to_yaml()                  everything resolved, nothing left to defaults
    experiment.digest                     12 hex digits of all that a result depends on

Four sections are choices by name with fields of their own: ``data``, ``partition``, ``model``, ``algorithm``.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator

from algorithms import ALGORITHMS
from engine.algorithm import Algorithm, Phase, PostTraining
from engine.algorithm.personalised import has_global_model
from engine.base import safe_yaml
from engine.base.errors import ConfigError, nearest, require
from engine.base.registry import Registry, config_error
from engine.data import PARTITIONS, SOURCES, ImageFolder, Parquet, Partition, Source
from engine.experiment.executor_policy import CAPTURING, STACKING, default_executor
from engine.models import MODELS, ModelSpec

CHOICES = {registry.section: registry for registry in (SOURCES, PARTITIONS, MODELS, ALGORITHMS)}


def _choice(registry: Registry) -> tuple[PlainValidator, PlainSerializer]:
    def build(value: Any) -> Any:
        if isinstance(value, Mapping):
            return registry.build(value)
        if type(value) in registry.values():
            return value
        raise ConfigError(registry.section, value, "must be a name with fields", f"{registry.section}.name=...")

    return PlainValidator(build), PlainSerializer(registry.dump)


SourceChoice = Annotated[Source, *_choice(SOURCES)]
PartitionChoice = Annotated[Partition, *_choice(PARTITIONS)]
ModelChoice = Annotated[ModelSpec, *_choice(MODELS)]
AlgorithmChoice = Annotated[Algorithm, *_choice(ALGORITHMS)]


MOST_ROUNDS = 10**9  # of a stage
MOST_STAGES = 100  # their numbers have two digits in names of files
MOST_THREADS = 1024
MOST_SECONDS = 1e9  # what a lock can wait for has an end
MOST_OF_ALL = 2**63 - 1  # the largest whole number that tables, tensors and generators can hold


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True)


class Local(Section):
    """What a client does with its rows in one round."""

    epochs: int = Field(default=1, ge=1)  # passes over the rows
    steps: int | None = Field(default=None, ge=1)  # optimizer steps instead of epochs
    batch_size: Literal["full"] | Annotated[int, Field(ge=1)] = 32  # full: the exact gradient over all rows
    last_batch: Literal["keep", "drop", "wrap"] = "keep"  # a short batch | none | filled from the front
    optimizer: Literal["sgd", "adam"] = "sgd"  # starts afresh at every participation
    lr: float = Field(default=0.05, gt=0)
    lr_decay: float = Field(default=1.0, gt=0, le=1)  # per round; 1 is no decay
    momentum: float = Field(default=0.0, ge=0, lt=1)  # 0 is none
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)  # 0 is none
    augment: Literal["none", "flip", "crop_flip"] = "none"  # crop pads by 4

    @pydantic.model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> Local:
        require(
            not self.nesterov or self.momentum > 0,
            "nesterov",
            True,
            "needs momentum",
            "set local.momentum=0.9",
        )
        return self

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a step is the gradient times the rate, and nothing else."""
        return self.optimizer == "sgd" and self.momentum == 0 and self.weight_decay == 0

    def lr_at(self, round: int) -> float:
        """The learning rate in ``round`` (from 1): lr * lr_decay^(round - 1)."""
        return self.lr * self.lr_decay ** (round - 1)


class Participation(Section):
    """Who takes part in a round. Neither count nor fraction: every client that holds data."""

    count: int | None = Field(default=None, ge=1)  # clients per round
    fraction: float | None = Field(default=None, gt=0, le=1)  # of the clients that hold data
    scheme: Literal["fixed", "binomial"] = "fixed"  # binomial: each client on its own, with that probability
    on_client_error: Literal["fail", "drop"] = "fail"  # of a client that raises or diverges: end the run, or leave it
    # out of the round; a worker or a disk that fails is never a client's error
    min_success: float = Field(default=0.5, gt=0, le=1)  # with drop: the share of a cohort that must not fail

    @pydantic.model_validator(mode="after")
    def _one_of_two(self) -> Participation:
        require(
            self.count is None or self.fraction is None,
            "count",
            self.count,
            "cannot be set beside participation.fraction",
            "set one of the two",
        )
        return self

    def identity(self) -> dict[str, Any]:
        """What a result depends on: where the first client to fail ends the run, a run that ended had none."""
        return self.model_dump(exclude={"on_client_error", "min_success"} if self.on_client_error == "fail" else None)

    def least(self, cohort: int) -> int:
        """How many clients of a cohort of that size must not fail."""
        return math.ceil(self.min_success * cohort - 1e-9)  # 0.29 * 100 is 28.999999999999996


class Evaluation(Section):
    """What is measured, and how often (in rounds; 0 is never). The last round is always evaluated."""

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
        """What clients do to their own models before they are measured once more at the end."""
        if self.fine_tune_epochs == 0 and self.fine_tune_steps is None:
            return None
        return Phase(
            epochs=self.fine_tune_epochs,
            steps=self.fine_tune_steps,
            trainable=self.fine_tune_part,
            features="cached" if self.fine_tune_part == "head" else "live",
            lr=self.fine_tune_lr,
        )


class Execution(Section):
    """Where and how it runs. The first seven change bits; the others never do."""

    executor: Literal["auto", "loop", "block", "graph", "block_graph"] = "auto"  # how clients of a block are trained:
    # one by one | together | one by one, or together, in steps that are captured once and replayed (on a GPU alone)
    precision: Literal["float32", "float64"] = "float32"
    tf32: bool = False  # round factors of products on the GPU to TF32; false is exact float32
    autocast: Literal["none", "bfloat16"] = "none"  # of forward passes and losses; none is exact
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(default=1, ge=1, le=MOST_THREADS)  # of torch, in every worker
    block: Literal["auto"] | Annotated[int, Field(ge=1)] = (
        "auto"  # clients per block at most; auto: see engine.client.blocks
    )

    actors: int = Field(default=0, ge=0)  # client actors; 0 is in this process, without Ray
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MOST_THREADS)] = (
        "auto"  # of this process; see engine.worker.thread_count
    )
    cpus_per_actor: float = Field(default=1.0, gt=0)
    gpus_per_actor: float = Field(default=0.0, ge=0, le=1)  # snapped to 1/n, so that no share spans cards
    state_store: Literal["memory", "disk"] = "memory"  # where client state lives between participations
    state_cache_mb: int = Field(default=512, ge=0)  # of the disk store
    start_timeout: float = Field(default=180.0, gt=0, le=MOST_SECONDS)  # seconds for an actor to be ready
    block_timeout: float = Field(default=1800.0, gt=0, le=MOST_SECONDS)  # seconds for an actor to give something back
    # seconds for a round and what is due after it; null: none
    round_timeout: float | None = Field(default=None, gt=0, le=MOST_SECONDS)
    retries: int = Field(default=3, ge=0)  # times that a block is run again after its actor died
    mixed_hardware: bool = False  # allow actors that compute different bits; marks the result, which is not shared

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Execution:
        require(
            self.actors == 0 or self.cpus_per_actor >= self.threads,
            "cpus_per_actor",
            self.cpus_per_actor,
            f"must be at least execution.threads={self.threads}",
            f"set execution.cpus_per_actor={self.threads}",
        )
        require(
            self.device != "cuda" or self.actors == 0 or self.gpus_per_actor > 0,
            "device",
            self.device,
            "needs a share of a GPU for each actor",
            "set execution.gpus_per_actor, for example to 0.25",
        )
        for field, neutral in NEUTRAL.items():
            require(
                self.precision == "float32" or getattr(self, field) == neutral,
                field,
                getattr(self, field),
                f"computes in less than float32, and execution.precision={self.precision} asks for more",
                "leave it out, or set execution.precision=float32",
            )
        self.check_tf32()
        self.check_capture()
        self.check_workers()
        return self

    def check_tf32(self, prefix: str = "") -> None:
        """Refuse it on a CPU; also once ``device=auto`` is resolved."""
        require(
            not self.tf32 or self.device != "cpu",
            f"{prefix}tf32",
            self.tf32,
            "is arithmetic of a GPU, and execution.device is cpu",
            "leave it out, or set execution.device=cuda",
        )

    def check_capture(self, prefix: str = "") -> None:
        """Refuse to replay steps on a CPU; also once ``device=auto`` is resolved."""
        require(
            self.executor not in CAPTURING or self.device != "cpu",
            f"{prefix}executor",
            self.executor,
            "replays steps on a GPU, and execution.device is cpu",
            f"set execution.executor={'block' if self.executor in STACKING else 'loop'}",
        )

    def check_workers(self, prefix: str = "") -> None:
        """Refuse threads where they share more than data; also once ``device=auto`` is resolved."""
        # torch keeps the cast weights of autocast in one place for all threads of a process.
        require(
            self.workers in ("auto", 1) or self.autocast == "none",
            f"{prefix}workers",
            self.workers,
            f"is threads of one process, which would share what execution.autocast={self.autocast} has cast",
            "leave one of them out, or set execution.actors",
        )
        require(
            self.workers in ("auto", 1) or self.device != "cuda",
            f"{prefix}workers",
            self.workers,
            "is threads of one process, which take turns on a GPU",
            "set execution.actors and execution.gpus_per_actor",
        )


def no_gpu(execution: Execution) -> ConfigError:
    """What a GPU was asked for with, where there is none."""
    field = "gpus_per_actor" if execution.gpus_per_actor else "device"
    return ConfigError(
        f"execution.{field}",
        getattr(execution, field),
        "needs a GPU and there is none",
        "set execution.gpus_per_actor=0 execution.device=cpu",
    )


OWN_DATA = (ImageFolder, Parquet)  # the user's own: another folder is another data set
NEUTRAL = {"tf32": False, "autocast": "none"}  # fields of Execution that are in no digest at these values
IDENTITY = ("executor", "precision", *NEUTRAL, "device", "threads", "block")  # the fields of Execution that change bits


class Checkpoint(Section):
    every: int = Field(default=10, ge=1)  # rounds; also after the last round and on Ctrl-C
    keep: int = Field(default=2, ge=1)  # how many are kept


class StageChange(Section):
    """What a stage trains with from a (global) round on."""

    round: int
    algorithm: AlgorithmChoice
    local: Local


class Stage(Section):
    """One stage of a run: from the weights of the stage it needs, or from fresh ones."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    kind: Literal["train"] = "train"
    needs: tuple[str, ...] = ()
    algorithm: AlgorithmChoice
    local: Local
    rounds: int = Field(
        ge=0, le=MOST_ROUNDS
    )  # 0: what the algorithm does at its ends, with what the stage before has come to
    changes: tuple[StageChange, ...] = ()  # ascending, within the stage

    def at(self, round: int) -> Stage:
        """With what holds in ``round`` (global)."""
        past = [change for change in self.changes if change.round <= round]
        if not past:
            return self
        return self.model_copy(update={"algorithm": past[-1].algorithm, "local": past[-1].local})

    def to_mapping(self) -> dict[str, Any]:
        values = self.model_dump(mode="json")
        if not self.changes:
            del values["changes"]
        return values


class WrittenStage(Section):
    """A stage as it is written: what it leaves out it has from the experiment, field by field."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")
    kind: Literal["train"] = "train"
    needs: tuple[str, ...] = ()
    algorithm: AlgorithmChoice | None = None
    local: dict[str, Any] = {}
    rounds: int = Field(le=MOST_ROUNDS)

    @property
    def is_idle(self) -> bool:
        """Whether it has neither rounds nor a stage that it goes on from: a warm-up of no rounds."""
        return self.rounds == 0 and not self.needs

    def resolve(self, experiment: Experiment) -> Stage:
        """With the experiment's algorithm and local section where this stage has none of its own."""
        try:
            local = Local(**{**experiment.local.model_dump(), **self.local})
        except pydantic.ValidationError as error:
            raise _one_sentence(error, "local").under(f"stages.{self.name}") from None
        return Stage(
            name=self.name,
            kind=self.kind,
            needs=self.needs,
            algorithm=self.algorithm or experiment.algorithm,
            local=local,
            rounds=self.rounds,
        )


class Change(Section):
    """Hyper-parameters that change in mid-run, as population-based training does it."""

    round: int = Field(ge=2)  # global: the first round with these values
    set: dict[str, Any]  # dotted keys of algorithm and local sections


class Experiment(Section):
    """Everything that determines a run. Built from keyword arguments, a mapping or YAML."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    seed: int = Field(default=0, ge=0)
    rounds: int = Field(default=20, ge=1, le=MOST_ROUNDS)
    data: SourceChoice = Field(default_factory=lambda: SOURCES.build({"name": "fashion_mnist_sample"}))
    partition: PartitionChoice = Field(
        default_factory=lambda: PARTITIONS.build({"name": "dirichlet", "clients": 20, "alpha": 0.3})
    )
    model: ModelChoice = Field(default_factory=lambda: MODELS.build({"name": "mlp"}))
    client_models: tuple[ModelChoice, ...] = ()  # none: all have the one above; else client k has number k mod len
    algorithm: AlgorithmChoice = Field(default_factory=lambda: ALGORITHMS.build({"name": "fedavg"}))
    local: Local = Field(default_factory=lambda: Local())
    participation: Participation = Field(default_factory=lambda: Participation())
    evaluation: Evaluation = Field(default_factory=lambda: Evaluation())
    execution: Execution = Field(default_factory=lambda: Execution())
    checkpoint: Checkpoint = Field(default_factory=lambda: Checkpoint())
    stages: tuple[WrittenStage, ...] = Field(
        default=(), max_length=MOST_STAGES
    )  # none: one stage "train" of the sections above
    schedule: tuple[Change, ...] = ()  # none: hyper-parameters stay as they are

    # --- construction ---------------------------------------------------------------------------------

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise _with_stage_names(_one_sentence(error), values.get("stages")) from None

    @pydantic.field_validator("client_models", mode="before")
    @classmethod
    def _names_alone_will_do(cls, value: Any) -> Any:
        repair = "for example client_models=[mlp, lenet]"
        require(isinstance(value, list | tuple), "client_models", value, "must be a list of models", repair)
        return [_client_model(number, model) for number, model in enumerate(value)]

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Experiment:
        for key, number in _whole_numbers(self.to_mapping()):
            require(abs(number) <= MOST_OF_ALL, key, number, "is larger than any number of a run can be", "lower it")
        count, clients = self.participation.count, self.partition.clients
        if count is not None and clients:  # natural partitions learn their number of clients from the data
            require(
                count <= clients,
                "participation.count",
                count,
                f"must be at most partition.clients={clients}",
                f"set participation.count={clients}",
            )
        seen: list[str] = []
        for stage in self.stages:
            require(stage.name not in seen, "stages.name", stage.name, "is used twice", "name each stage once")
            require(
                stage.rounds >= 0,
                f"stages.{stage.name}.rounds",
                stage.rounds,
                "must be at least 0",
                "give it some; where it is what a warm-up leaves, lower R_w below R",
            )
            for need in stage.needs:
                require(
                    need in seen,
                    f"stages.{stage.name}.needs",
                    need,
                    "names no earlier stage",
                    nearest(need, seen),
                )
            require(
                len(stage.needs) <= 1,
                f"stages.{stage.name}.needs",
                list(stage.needs),
                "a train stage starts from one stage",
                "keep one",
            )
            seen.append(stage.name)
            needed = any(stage.name in other.needs for other in self.stages)
            require(
                not stage.is_idle or (needed and not isinstance(stage.algorithm or self.algorithm, PostTraining)),
                f"stages.{stage.name}.rounds",
                0,
                "a stage without rounds goes on from another one",
                f"name that one in stages.{stage.name}.needs",
            )
        self._check_schedule()
        tuned = "fine_tune_epochs" if self.evaluation.fine_tune_steps is None else "fine_tune_steps"
        require(
            self.evaluation.fine_tuning is None
            or not self.client_models
            or not has_global_model(self.chain[-1].algorithm),
            f"evaluation.{tuned}",
            getattr(self.evaluation, tuned),
            "is of clients' own models, and the last stage's is of an architecture that is not theirs",
            "set evaluation.fine_tune_epochs=0 and evaluation.fine_tune_steps=null",
        )
        for stage in self.chain:
            require(
                stage.algorithm.mixed_models or not self.client_models,
                "client_models",
                [MODELS.name_of(model) for model in self.client_models],
                f"is not for {ALGORITHMS.name_of(stage.algorithm)}, by which weights travel from one client to others",
                "leave it out, so that clients have the architecture of the section model",
            )
            if stage.algorithm.requires.linear_optimizer:
                require(
                    stage.local.optimizer == "sgd",
                    "local.optimizer",
                    stage.local.optimizer,
                    f"{ALGORITHMS.name_of(stage.algorithm)} reads gradients off the path of SGD",
                    "set local.optimizer=sgd",
                )
            for field, value in stage.algorithm.requires.model.items():
                name = ALGORITHMS.name_of(stage.algorithm)
                require(
                    getattr(self.model, field) == value,
                    f"model.{field}",
                    getattr(self.model, field),
                    f"must be {value} for {name}",
                    f"set model.{field}={value}",
                )
            stage.algorithm.check(self, stage.local)
            self._check_rounds(stage)
            for change in stage.changes:
                stage.algorithm.check_change(change.algorithm)
        return self

    def _check_rounds(self, stage: Stage) -> None:
        """A stage without rounds, and an algorithm without them, come after a stage that has trained."""
        algorithm = ALGORITHMS.name_of(stage.algorithm)
        if isinstance(stage.algorithm, PostTraining) and (stage.rounds or not self.stages):
            require(
                bool(self.stages),
                "algorithm.name",
                algorithm,
                "has no rounds of its own, it goes on from a stage that has trained",
                "write stages, the last one with needs: [the one before] and rounds: 0",
            )
            field, rule = f"stages.{stage.name}.rounds", f"must be 0, for {algorithm} has no rounds"
            require(False, field, stage.rounds, rule, f"set {field}=0")
        written = {other.name: other for other in self.stages}
        if stage.rounds == 0 and stage.name in written and written[stage.name].needs and not stage.needs:
            [idle] = written[stage.name].needs
            rule = f"leaves nothing trained that stage {stage.name} could go on from"
            raise ConfigError(f"stages.{idle}.rounds", 0, rule, "give it some rounds")
        require(
            stage.rounds > 0 or bool(stage.needs),
            f"stages.{stage.name}.rounds",
            stage.rounds,
            "a stage without rounds goes on from another one",
            f"name that one in stages.{stage.name}.needs",
        )
        kind = type(stage.algorithm)
        require(
            stage.rounds > 0 or kind.prepare is Algorithm.prepare or kind.finish is not Algorithm.finish,
            f"stages.{stage.name}.rounds",
            stage.rounds,
            f"{algorithm} asks clients for what only its rounds use",
            f"set stages.{stage.name}.algorithm to fedavg, which hands the model on as it is",
        )
        if isinstance(stage.algorithm, PostTraining) and stage.algorithm.keeps_head:
            before = next(other for other in self.chain if other.name == stage.needs[0]).algorithm
            require(
                has_global_model(before),
                f"stages.{stage.name}.algorithm",
                algorithm,
                f"goes on from a global model's head, and {ALGORITHMS.name_of(before)} has none",
                f"train with a method that has a global model, or set stages.{stage.name}.algorithm.init=random",
            )

    def _check_schedule(self) -> None:
        rounds = [change.round for change in self.schedule]
        require(
            rounds == sorted(set(rounds)),
            "schedule",
            rounds,
            "must name each round once, ascending",
            "sort the changes",
        )
        for change in self.schedule:
            last = max(span.stop for span in self.spans) - 1
            require(change.round <= last, "schedule", change.round, f"is beyond the last round, {last}", "lower it")
            for key in map(self.key_of, change.set):
                parts = key.split(".")[2:] if key.startswith("stages.") else key.split(".")
                require(
                    len(parts) == 2 and parts[0] in ("algorithm", "local") and parts[1] != "name",
                    "schedule",
                    key,
                    "cannot change in mid-run",
                    "change only fields of algorithm and local",
                )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Experiment:
        known = list(cls.model_fields)
        for key in values:
            require(
                key in known,
                str(key),
                values[key],
                "is not a section of an experiment",
                nearest(str(key), known),
            )
        return cls(**values)

    @classmethod
    def from_yaml(cls, path: Path | str) -> Experiment:
        """Read a YAML file; raises :class:`ConfigError` if it is not one or holds an invalid experiment."""
        path = Path(path)
        try:
            values = safe_yaml.read(path)
        except OSError as error:
            raise ConfigError("experiment", path, "cannot be read", str(error)) from None
        except safe_yaml.NotYaml as error:
            raise ConfigError("experiment", path, f"is not YAML ({error})", "see docs/config.md") from None
        if not isinstance(values, dict):
            raise ConfigError("experiment", path, "must hold sections such as data, model, local", "see docs/config.md")
        return cls.from_mapping(values)

    def to_mapping(self) -> dict[str, Any]:
        """Plain data; ``Experiment.from_mapping`` of it is equal to this experiment."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_mapping(), sort_keys=False, allow_unicode=True)

    def override(self, assignments: Iterable[str]) -> Experiment:
        """A copy with dotted ``key=value`` pairs applied, values in YAML syntax."""
        return self.replace(dict(parse_assignment(assignment) for assignment in assignments))

    def replace(self, changes: Mapping[str, Any]) -> Experiment:
        """A copy with dotted keys, or papers' symbols for them, set to values."""
        values = self.to_mapping()
        typed = set()
        # A choice is made before its fields are set, whatever the order in which they were typed.
        for name, value in sorted(changes.items(), key=lambda pair: not pair[0].endswith(".name")):
            key = _key_of(values, name, value)
            _assign(values, key, value)
            typed.add(key)
        for mine, other in (
            ("count", "fraction"),
            ("fraction", "count"),
        ):  # a new one replaces the file's other one
            if f"participation.{mine}" in typed and f"participation.{other}" not in typed:
                values["participation"][other] = None
        return Experiment.from_mapping(values)

    # --- what a run reads -----------------------------------------------------------------------------

    @cached_property
    def chain(self) -> tuple[Stage, ...]:
        """The stages in order; one stage "train" where none are given."""
        stages = self._stages
        if not self.schedule:
            return stages
        versions = [(change.round, self.at(change.round)._stages) for change in self.schedule]
        chain = []
        for number, (stage, span) in enumerate(zip(stages, _spans(stages), strict=True)):
            first = self.at(span.start)._stages[number]
            changes: list[StageChange] = []
            for round, version in versions:
                now, before = version[number], changes[-1] if changes else first
                if round in span[1:] and (now.algorithm, now.local) != (before.algorithm, before.local):
                    changes.append(StageChange(round=round, algorithm=now.algorithm, local=now.local))
            chain.append(first.model_copy(update={"changes": tuple(changes), "rounds": stage.rounds}))
        return tuple(chain)

    @cached_property
    def _stages(self) -> tuple[Stage, ...]:
        """Without changes in mid-run, and without first stages of no rounds: those would hand on the fresh weights."""
        if self.stages:
            idle = {stage.name for stage in self.stages if stage.is_idle}
            resolved = [stage.resolve(self) for stage in self.stages if stage.name not in idle]
            return tuple(
                stage.model_copy(update={"needs": tuple(need for need in stage.needs if need not in idle)})
                for stage in resolved
            )
        return (Stage(name="train", algorithm=self.algorithm, local=self.local, rounds=self.rounds),)

    @cached_property
    def spans(self) -> tuple[range, ...]:
        """The global rounds of each stage: a stage counts on from the one it needs."""
        return _spans(self._stages)

    def at(self, round: int) -> Experiment:
        """With the hyper-parameters of ``round`` (global), and no schedule."""
        changes: dict[str, Any] = {}
        for change in self.schedule:
            if change.round <= round:
                changes |= change.set
        return self.model_copy(update={"schedule": ()}).replace(changes)

    def key_of(self, symbol: str) -> str:
        """The dotted key that a paper's symbol stands for in this experiment; a dotted key is itself."""
        return _key_of(self.to_mapping(), symbol, None)

    def value_of(self, key: str) -> Any:
        """What a dotted key, or a symbol, is set to."""
        values: Any = self.to_mapping()
        first, *rest = self.key_of(key).split(".")
        if first == "stages":
            stages = {stage.name: stage.resolve(self) for stage in self.stages}
            stage = (stages | {stage.name: stage for stage in self.chain})[rest[0]]
            first, *rest = rest[1:]
            values = stage.to_mapping()
        found = values[first]
        for part in rest:
            found = found[part]
        return found

    @property
    def lineage(self) -> set[str]:
        """The names of the last stage and of the stages it comes from."""
        return lineage_of({stage.name: stage.needs for stage in self.chain})

    def resolve(self) -> Experiment:
        """With ``auto`` replaced by what it means: the device on this machine, the executor on that device."""
        device, executor = self.execution.device, self.execution.executor
        if device == "auto":
            cuda = self.execution.gpus_per_actor > 0 or (self.execution.actors == 0 and torch.cuda.is_available())
            device = "cuda" if cuda else "cpu"
        if executor == "auto":
            models = (self.model, *self.client_models)
            executor = default_executor(models, [stage.local.batch_size for stage in self.chain], device)
        execution = self.execution.model_copy(update={"device": device, "executor": executor})
        execution.check_tf32("execution.")
        execution.check_capture("execution.")
        execution.check_workers("execution.")
        return self.model_copy(update={"execution": execution})

    def identity(self) -> dict[str, Any]:
        """What a result depends on: everything but names, paths, placement and checkpoint cadence."""
        values = self.to_mapping()
        written = values["execution"]
        values["execution"] = {f: written[f] for f in IDENTITY if f not in NEUTRAL or written[f] != NEUTRAL[f]}
        values["participation"] = self.participation.identity()
        if not isinstance(self.data, OWN_DATA):  # a known data set is the same wherever it lies
            values["data"].pop("root", None)
        values["stages"] = [stage.to_mapping() for stage in self.chain]
        if not self.client_models:
            del values["client_models"]
        # The last four are in the stages.
        for section in ("name", "checkpoint", "algorithm", "local", "rounds", "schedule"):
            del values[section]
        return values

    def has_server_model(self, stage: Stage) -> bool:
        """Whether the server has weights in this stage: not where clients' architectures differ and none is its own."""
        return has_global_model(stage.algorithm) or not self.client_models

    @property
    def without_rounds(self) -> set[str]:
        """The names of the stages that train nobody."""
        return {stage.name for stage in self.chain if stage.rounds == 0}

    @property
    def digest(self) -> str:
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _with_stage_names(error: ConfigError, stages: Any) -> ConfigError:
    """With the keys that can be typed: ``stages.distil.algorithm.alpha`` for ``stages.2.algorithm.algorithm.alpha``."""
    first, number, *rest = [*error.field.split("."), "", ""]
    if first != "stages" or not number.isdecimal() or not isinstance(stages, list | tuple):
        return error
    stage = stages[int(number)]
    name = stage.get("name") if isinstance(stage, Mapping) else getattr(stage, "name", None)
    if not name:
        return error
    field = f"stages.{name}." + ".".join(filter(None, rest)).replace("algorithm.algorithm.", "algorithm.", 1)
    repair = re.sub(r"\b(algorithm|local)\.", rf"stages.{name}.\1.", error.repair)
    return ConfigError(field, error.value, error.rule.replace(f"stages.{number}", f"stages.{name}"), repair)


def _whole_numbers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """All in an experiment as data, with their dotted keys."""
    if isinstance(value, int):
        yield key, value
    elif isinstance(value, Mapping | list):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, part in parts:
            yield from _whole_numbers(part, f"{key}.{name}" if key else str(name))


def _client_model(number: int, value: Any) -> Any:
    """One of ``client_models``: by its name alone, as a name with fields, or built already."""
    if not isinstance(value, str | Mapping):
        return value
    try:
        return MODELS.build({"name": value} if isinstance(value, str) else value)
    except ConfigError as error:
        place = f"client_models.{number}."
        raise ConfigError(
            error.field.replace("model.", place, 1), error.value, error.rule, error.repair.replace("model.", place)
        ) from None


def _one_sentence(error: pydantic.ValidationError, section: str = "") -> ConfigError:
    """The first of pydantic's errors, of an experiment or of one of its sections."""
    defaults: dict[str, Any] = {}
    for name, model in SECTIONS.items():
        defaults |= {f"{name}.{field}": info for field, info in model.model_fields.items()}
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in (*([section] if section else []), *first["loc"]))
    if first["type"] == "extra_forbidden":
        owner, _, field = path.rpartition(".")
        known = {"": Experiment, **SECTIONS}.get(owner, WrittenStage).model_fields
        return ConfigError(path, first["input"], f"is not a field of {owner or 'an experiment'}", nearest(field, known))
    return config_error(error, section, defaults)


SECTIONS: dict[str, type[Section]] = {
    "local": Local,
    "participation": Participation,
    "evaluation": Evaluation,
    "execution": Execution,
    "checkpoint": Checkpoint,
}


def lineage_of(needs: Mapping[str, Sequence[str]], stage: str | None = None) -> set[str]:
    """``stage``, by default the last one, and those it comes from; ``needs``: stage -> stages, in order."""
    found, open_ends = set[str](), [stage or list(needs)[-1]]
    while open_ends:
        name = open_ends.pop()
        found.add(name)
        open_ends += needs[name]
    return found


def _spans(stages: Sequence[Stage]) -> tuple[range, ...]:
    spans: dict[str, range] = {}
    for stage in stages:
        start = spans[stage.needs[0]].stop if stage.needs else 1
        spans[stage.name] = range(start, start + stage.rounds)
    return tuple(spans.values())


# --- dotted keys --------------------------------------------------------------------------------------

# The papers' symbols; an algorithm's own fields and symbols come on top (Algorithm.symbols).
SYMBOLS = {
    "R": "rounds",
    "K": "partition.clients",
    "alpha": "partition.alpha",
    "C": "participation.fraction",
    "E": "local.epochs",
    "B": "local.batch_size",
    "eta": "local.lr",
}


def _key_of(values: Mapping[str, Any], symbol: str, value: Any) -> str:
    """The dotted key that ``symbol`` stands for; itself where it is no symbol."""
    if "." in symbol or symbol in Experiment.model_fields:
        return symbol
    if symbol == "R_w" and len(values["stages"]) > 1:  # warm-up rounds
        return f"stages.{values['stages'][0]['name']}.rounds"
    found = [key for key in [SYMBOLS.get(symbol)] if key in keys(values)]
    chosen = {"algorithm": values["algorithm"]["name"]} if not _all_named(values) else {}
    chosen |= {
        f"stages.{stage['name']}.algorithm": stage["algorithm"]["name"]
        for stage in values["stages"]
        if stage["algorithm"]
    }
    for section, name in chosen.items():
        field = ALGORITHMS[name].symbols.get(symbol, symbol)
        if field in ALGORITHMS.fields(name):
            found.append(f"{section}.{field}")
    if len(found) > 1:
        raise ConfigError(symbol, value, "stands for more than one key", "write " + " or ".join(found))
    return found[0] if found else symbol


def _all_named(values: Mapping[str, Any]) -> bool:
    """Whether every stage has an algorithm of its own, so that the experiment's is nobody's."""
    return bool(values["stages"]) and all(stage["algorithm"] for stage in values["stages"])


def keys(values: Mapping[str, Any] | None = None) -> list[str]:
    """All dotted keys, with the fields of the choices made in ``values`` (all choices' fields if None)."""
    found = ["name", "seed", "rounds", "client_models"]
    for section, registry in CHOICES.items():
        names = [values[section]["name"]] if values else list(registry)
        fields = {field for name in names for field in registry.fields(name)}
        found += [f"{section}.name", *(f"{section}.{field}" for field in sorted(fields))]
    for section, model in SECTIONS.items():
        found += [f"{section}.{field}" for field in model.model_fields]
    for stage in values["stages"] if values else ():
        prefix = f"stages.{stage['name']}"
        name = (stage["algorithm"] or values["algorithm"])["name"] if values else ""
        found += [f"{prefix}.rounds", f"{prefix}.algorithm", f"{prefix}.algorithm.name"]
        found += [f"{prefix}.algorithm.{field}" for field in sorted(ALGORITHMS.fields(name))]
        found += [f"{prefix}.local.{field}" for field in Local.model_fields]
    return found


def parse_assignment(assignment: str) -> tuple[str, Any]:
    """``key=value`` as the key and the value in YAML syntax; what is no YAML is text."""
    key, equals, text = assignment.partition("=")
    require(bool(equals and key), "override", assignment, "must be key=value", "for example local.lr=0.1")
    try:
        return key.strip(), safe_yaml.parse(text) if text else None
    except safe_yaml.NotYaml:
        return key.strip(), text


def _stage_with(values: Mapping[str, Any], field: str) -> str:
    """The first stage whose algorithm has the field, or the first of all."""
    stages = values["stages"]
    found = [one for one in stages if one["algorithm"] and field in ALGORITHMS.fields(one["algorithm"]["name"])]
    return (found or stages)[0]["name"]


def _assign(values: dict[str, Any], key: str, value: Any) -> None:
    section, dot, field = key.partition(".")
    if (key == "rounds" and values["stages"]) or (section == "algorithm" and _all_named(values)):
        own = f"stages.{_stage_with(values, field)}.{key}"
        raise ConfigError(key, value, "is set by each stage of this experiment", f"for example {own}={value}")
    if section == "stages" and field:
        _assign_to_stage(values, key, value)
        return
    if section in CHOICES and not dot:  # a choice as a whole, or by its name alone
        if isinstance(value, Mapping):
            values[section] = dict(value)
            return
        field = "name"
    if section in CHOICES and field == "name":
        values[section] = _chosen(CHOICES[section], values[section], value)
        return
    known = keys(values)
    if key not in known:
        elsewhere = [other for other in dict.fromkeys(keys()) if other.rpartition(".")[2] == (field or section)]
        if not dot and elsewhere:
            here = [other for other in elsewhere if other in known] or elsewhere
            raise ConfigError(key, value, "is not a key: keys are dotted", "did you mean " + " or ".join(here) + "?")
        if key in elsewhere:
            chosen = values[section]["name"]
            raise ConfigError(key, value, f"is not a field of {section} {chosen!r}", nearest(key, known))
        raise ConfigError(key, value, "is not a known key", nearest(key, known))
    if not dot:
        values[section] = value
        return
    values[section][field] = value


def _assign_to_stage(values: dict[str, Any], key: str, value: Any) -> None:
    known = [other for other in keys(values) if other.startswith("stages.")]
    require(key in known, key, value, "is not a known key", nearest(key, known))
    _, name, section, *field = key.split(".")
    stage = next(stage for stage in values["stages"] if stage["name"] == name)
    if section == "rounds":
        stage["rounds"] = value
    elif section == "local":
        stage["local"][field[0]] = value
    elif not field and isinstance(value, Mapping):  # the choice as a whole
        stage["algorithm"] = dict(value)
    else:
        field = field or ["name"]
        own = stage["algorithm"] or dict(values["algorithm"])
        stage["algorithm"] = _chosen(ALGORITHMS, own, value) if field == ["name"] else {**own, field[0]: value}


def _chosen(registry: Registry, before: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Another choice; a field goes over to it if it means the same there, which equal defaults are taken to say."""
    new, old = registry.fields(name), registry.fields(before["name"])  # raises for an unknown name
    same = {field for field in new if field in old and new[field].default == old[field].default}
    return {"name": name} | {field: before[field] for field in same}
