"""The config of a run: frozen, checked at construction, hashed, YAML in and out.

    Experiment.from_yaml(path)            a file
    experiment.override(["local.lr=0.1"]) dotted key=value pairs, as on the command line
    experiment.to_yaml()                  everything resolved, nothing left to defaults
    experiment.digest                     12 hex digits of all that a result depends on

Four sections are choices by name with fields of their own: ``data``, ``partition``, ``model``, ``algorithm``.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pydantic
from pydantic import Field

from algorithms import ALGORITHMS
from engine.algorithm import Local
from engine.algorithm.personalised import has_global_model
from engine.algorithm.privacy import Privacy
from engine.base import safe_yaml
from engine.base.declared import Doc, Ge, Le, Neutral
from engine.base.errors import ConfigError, nearest, require
from engine.base.own_modules import is_ours
from engine.base.registry import NAME
from engine.base.section import Section
from engine.data import PARTITIONS, SOURCES, ImageFolder, Parquet
from engine.experiment import checks, parts
from engine.experiment.choices import AlgorithmChoice, ClientModels, ModelChoice, PartitionChoice, SourceChoice
from engine.experiment.dotted_keys import assigned, key_of, parse_assignment
from engine.experiment.error_sentences import one_sentence, with_stage_names
from engine.experiment.execution import Execution
from engine.experiment.sections import SECTIONS, Checkpointing, Evaluation, Participation, Stop
from engine.experiment.stages import (
    MOST_ROUNDS,
    MOST_STAGES,
    Change,
    Stage,
    WrittenStage,
    lineage_of,
    resolved,
    spans_of,
    with_changes,
)
from engine.experiment.work import Work
from engine.models import MODELS

OWN_DATA = (ImageFolder, Parquet)  # the user's own: another folder is another data set


class Experiment(Section):
    """Everything that determines a run. Built from keyword arguments, a mapping or YAML."""

    name: Annotated[str, Doc("names the run's folder")] = Field(default="run", pattern=NAME)
    seed: Annotated[int, Ge(0), Doc("seeds all randomness except that of `partition.seed` and `data.seed`")] = 0
    rounds: Annotated[int, Ge(1), Le(MOST_ROUNDS), Doc("rounds, where no stages are given")] = 20
    data: SourceChoice = Field(default_factory=lambda: SOURCES.build({"name": "fashion_mnist_sample"}))
    partition: PartitionChoice = Field(
        default_factory=lambda: PARTITIONS.build({"name": "dirichlet", "clients": 20, "alpha": 0.3})
    )
    model: ModelChoice = Field(default_factory=lambda: MODELS.build({"name": "mlp"}))
    client_models: Annotated[
        ClientModels,
        Doc(
            "architectures of the clients' own models: client k has number k mod their count. Where methods send "
            "weights it must be empty"
        ),
        Neutral([], "gives all that of `model`"),
    ] = ()
    algorithm: AlgorithmChoice = Field(default_factory=lambda: ALGORITHMS.build({"name": "fedavg"}))
    local: Local = Field(default_factory=lambda: Local())
    participation: Participation = Field(default_factory=lambda: Participation())
    work: Work = Field(default_factory=lambda: Work())
    privacy: Privacy = Field(default_factory=lambda: Privacy())
    evaluation: Evaluation = Field(default_factory=lambda: Evaluation())
    stop: Stop = Field(default_factory=lambda: Stop())
    execution: Execution = Field(default_factory=lambda: Execution())
    checkpoint: Checkpointing = Field(default_factory=lambda: Checkpointing())
    stages: tuple[WrittenStage, ...] = Field(
        default=(), max_length=MOST_STAGES
    )  # none: one stage "train" of the sections above
    schedule: tuple[Change, ...] = ()  # none: hyper-parameters stay as they are

    # --- construction ---------------------------------------------------------------------------------

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            owners = {"": Experiment, **SECTIONS}
            raise with_stage_names(one_sentence(error, owners, WrittenStage), values.get("stages")) from None

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Experiment:
        checks.check_numbers(self.model_dump())  # in JSON, what is infinite would be none
        checks.check_cohort(self.participation, self.partition)
        checks.check_written(self.stages, self.algorithm)
        checks.check_order(self.schedule)
        if self.schedule:
            checks.check_schedule(self.schedule, self.spans, self.key_of)
        checks.check_work(self.work, self.chain, self.partition)
        checks.check_fine_tuning(self.evaluation, self.client_models, self.chain[-1].algorithm)
        checks.check_stop(self.stop, self.evaluation, self.chain[-1])
        checks.check_privacy(self.privacy, self.participation, self.work, self.model, self.chain)
        checks.check_chain(self.chain, self.stages, self.model, self.client_models)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Let own parts travel along; without any it is pickled as pydantic does it."""
        own = parts.own_parts(parts.all_choices(self))
        if not own.choices:
            return super().__reduce_ex__(protocol)
        return parts.restored, (own, type(self), self.__getstate__())

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Experiment:
        """Build an experiment from plain data; raises :class:`ConfigError` if it is none."""
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
            rule = f"cannot be read ({error.strerror or error})"
            raise ConfigError("experiment", path, rule, _file_meant(path)) from None
        except safe_yaml.NotYaml as error:
            raise ConfigError("experiment", path, f"is not YAML ({error})", "see docs/config.md") from None
        if not isinstance(values, dict):
            raise ConfigError("experiment", path, "must hold sections such as data, model, local", "see docs/config.md")
        return cls.from_mapping(values)

    def to_mapping(self) -> dict[str, Any]:
        """Return plain data; ``Experiment.from_mapping`` of it is equal to this experiment."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """Return the text of a YAML file with every field, defaults included."""
        return safe_yaml.text_of(self.to_mapping())

    def override(self, assignments: Iterable[str]) -> Experiment:
        """Return a copy with dotted ``key=value`` pairs applied, values in YAML syntax."""
        return self.replace(dict(parse_assignment(assignment) for assignment in assignments))

    def replace(self, changes: Mapping[str, Any]) -> Experiment:
        """Return a copy with dotted keys, or papers' symbols for them, set to values."""
        return Experiment.from_mapping(assigned(self.to_mapping(), changes))

    # --- what a run reads -----------------------------------------------------------------------------

    @cached_property
    def chain(self) -> tuple[Stage, ...]:
        """The stages in order, with what changes in mid-run; one stage "train" where none are given."""
        if self.schedule:
            versions = [(change.round, self.at(change.round).chain) for change in self.schedule]
            return with_changes([self.at(span.start).chain for span in self.spans], self.spans, versions)
        if self.stages:
            return resolved(self.stages, self.algorithm, self.local)
        return (Stage(name="train", algorithm=self.algorithm, local=self.local, rounds=self.rounds),)

    @cached_property
    def spans(self) -> tuple[range, ...]:
        """The global rounds of each stage in ``chain``: a stage counts on from the one it needs."""
        return spans_of(self.stages) if self.stages else (range(1, self.rounds + 1),)

    def at(self, round: int) -> Experiment:
        """Return a copy with the hyper-parameters of ``round`` (global), and no schedule."""
        changes: dict[str, Any] = {}
        for change in self.schedule:
            if change.round <= round:
                changes |= change.set
        return self.model_copy(update={"schedule": ()}).replace(changes)

    def key_of(self, symbol: str) -> str:
        """Return the dotted key that a paper's symbol stands for in this experiment; a dotted key is itself."""
        return key_of(self.to_mapping(), symbol, None)

    def value_of(self, key: str) -> Any:
        """Return the value of a dotted key, or of a symbol."""
        values: Any = self.to_mapping()
        first, *rest = self.key_of(key).split(".")
        if first == "stages":
            stages = {stage.name: stage.resolve(self.algorithm, self.local) for stage in self.stages}
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

    @property
    def without_rounds(self) -> set[str]:
        """The names of the stages that train nobody."""
        return {stage.name for stage in self.chain if stage.rounds == 0}

    def has_server_model(self, stage: Stage) -> bool:
        """Return whether the server has weights in ``stage``: not if architectures are clients' own and none is its."""
        return has_global_model(stage.algorithm) or not self.client_models

    def resolve(self) -> Experiment:
        """Return the experiment with ``auto`` replaced by what it stands for: the device here, the executor on it.

        A resolved experiment is returned as it is. Raises :class:`ConfigError` if the device that was found cannot do
        what is asked for, or if what accounts for privacy is not installed.
        """
        self.privacy.check_accountant()
        models = (self.model, *self.client_models)
        execution = self.execution.resolve(models, [stage.local.batch_size for stage in self.chain])
        return self if execution is self.execution else self.model_copy(update={"execution": execution})

    # --- what a result depends on -----------------------------------------------------------------------

    def identity(self) -> dict[str, Any]:
        """Return all that a result depends on: everything but names, paths, placement and checkpoint cadence."""
        values = self.to_mapping()
        values["execution"] = self.execution.identity(values["execution"])
        values["participation"] = self.participation.identity()
        values["work"] = self.work.identity()
        values["privacy"] = self.privacy.identity()
        values["stop"] = self.stop.identity()
        values["evaluation"] = self.evaluation.identity()
        values["data"] = self.data.identity(values["data"])
        values["partition"] = self.partition.identity(values["partition"])
        values["model"] = self.model.identity(values["model"])
        values["client_models"] = [
            model.identity(own) for model, own in zip(self.client_models, values["client_models"], strict=True)
        ]
        if not isinstance(self.data, OWN_DATA) and is_ours(type(self.data)):  # the same wherever it lies
            values["data"].pop("root", None)
        values["stages"] = [stage.identity() for stage in self.chain]
        for section in ("client_models", "work", "privacy", "stop"):
            if not values[section]:
                del values[section]
        # The last four are in the stages.
        for section in ("name", "checkpoint", "algorithm", "local", "rounds", "schedule"):
            del values[section]
        return values

    @property
    def digest(self) -> str:
        """The first 12 hex digits of the SHA-256 of :meth:`identity` as JSON."""
        text = json.dumps(self.identity(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def _file_meant(path: Path) -> str:
    """Return a repair that names the YAML file beside ``path`` whose name is closest, if there is any."""
    try:
        there = [str(path.with_name(one.name)) for one in path.parent.iterdir() if one.suffix in (".yaml", ".yml")]
    except OSError:  # no folder, or one that nobody may look into
        there = []
    close = difflib.get_close_matches(str(path), there, n=1)
    return f"did you mean {close[0]!r}?" if close else "name a YAML file that is there"
