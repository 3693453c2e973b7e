"""Rules across sections: what fits together in one experiment. Each check raises ConfigError, or does nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from algorithms import ALGORITHMS
from engine.algorithm import Algorithm, PlannedStage, PostTraining, Setting, overrides
from engine.algorithm.personalised import has_global_model
from engine.algorithm.privacy import Privacy, own_exchanges
from engine.base.errors import ConfigError, nearest, require
from engine.base.evaluated import BETTER, METRICS
from engine.data import Partition
from engine.experiment.dotted_keys import numbers
from engine.experiment.sections import Evaluation, Participation, Stop
from engine.experiment.stages import Change, Stage, WrittenStage
from engine.experiment.work import Work
from engine.models import MODELS, ModelSpec
from engine.models.outline import outline

MOST_OF_ALL = 2**63 - 1  # the largest whole number that tables, tensors and generators can hold


def check_numbers(values: Mapping[str, Any]) -> None:
    """Refuse whole numbers beyond 64 bits, NaN and infinity, anywhere in an experiment as data."""
    for key, number in numbers(values):
        if isinstance(number, int):
            require(abs(number) <= MOST_OF_ALL, key, number, "is larger than any number of a run can be", "lower it")
        else:
            rule = "is no finite number, and the files of a run hold no other"
            require(math.isfinite(number), key, number, rule, "take a large number, or None for none")


def check_cohort(participation: Participation, partition: Partition) -> None:
    """Refuse cohorts of more clients than there are."""
    count, clients = participation.count, partition.clients
    if count is not None and clients:  # natural partitions learn their number of clients from the data
        require(
            count <= clients,
            "participation.count",
            count,
            f"must be at most partition.clients={clients}",
            f"set participation.count={clients}",
        )


def check_written(stages: Sequence[WrittenStage], algorithm: Algorithm) -> None:
    """Refuse stages with each other's names, or that need none that comes before; ``algorithm``: the experiment's."""
    seen: list[str] = []
    for stage in stages:
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
        needed = any(stage.name in other.needs for other in stages)
        require(
            not stage.is_idle or (needed and not isinstance(stage.algorithm or algorithm, PostTraining)),
            f"stages.{stage.name}.rounds",
            0,
            "a stage without rounds goes on from another one",
            f"name that one in stages.{stage.name}.needs",
        )


def check_order(schedule: Sequence[Change]) -> None:
    """Refuse changes in mid-run that are not in the order of their rounds."""
    rounds = [change.round for change in schedule]
    require(
        rounds == sorted(set(rounds)),
        "schedule",
        rounds,
        "must name each round once, ascending",
        "sort the changes",
    )


def check_schedule(schedule: Sequence[Change], spans: Sequence[range], key_of: Callable[[str], str]) -> None:
    """Refuse changes beyond the last round, and of anything but fields of algorithm and local sections.

    spans: the rounds of each stage. key_of: symbol -> dotted key.
    """
    last = max(span.stop for span in spans) - 1
    for change in schedule:
        require(change.round <= last, "schedule", change.round, f"is beyond the last round, {last}", "lower it")
        for key in map(key_of, change.set):
            parts = key.split(".")[2:] if key.startswith("stages.") else key.split(".")
            require(
                len(parts) == 2 and parts[0] in ("algorithm", "local") and parts[1] != "name",
                "schedule",
                key,
                "cannot change in mid-run",
                "change only fields of algorithm and local",
            )


def check_work(work: Work, chain: Sequence[Stage], partition: Partition) -> None:
    """Refuse work of single clients that does not go with what a stage that trains says for all, or of others."""
    if partition.clients:  # natural partitions learn their number of clients from the data
        work.check_clients(partition.clients)
    for stage in chain:
        for local in (stage.local, *(change.local for change in stage.changes)) if stage.rounds else ():
            work.check(local)


def check_fine_tuning(evaluation: Evaluation, client_models: Sequence[ModelSpec], last: Algorithm) -> None:
    """Refuse to fine-tune clients' own models at the end where ``last``, the last stage's algorithm, leaves none."""
    tuned = "fine_tune_epochs" if evaluation.fine_tune_steps is None else "fine_tune_steps"
    require(
        evaluation.fine_tuning is None or not client_models or not has_global_model(last),
        f"evaluation.{tuned}",
        getattr(evaluation, tuned),
        "is of clients' own models, and the last stage's is of an architecture that is not theirs",
        "set evaluation.fine_tune_epochs=0 and evaluation.fine_tune_steps=null",
    )


def check_stop(stop: Stop, evaluation: Evaluation, last: Stage) -> None:
    """Refuse rules for the end of a run whose last stage has no figures that they could read, or ends otherwise."""
    known = (*BETTER, *evaluation.metrics)
    rule, repair = "is no figure of an evaluation of this run", nearest(stop.metric, known)
    if stop.metric in METRICS:
        repair = f"set evaluation.metrics=[{stop.metric}]"
    require(stop.metric in known, "stop.metric", stop.metric, rule, repair)
    for rule, value in stop.rules.items():
        field, leave_out = f"stop.{rule}", f"set stop.{rule}=null"
        algorithm = ALGORITHMS.name_of(last.algorithm)
        require(last.rounds > 0, field, value, f"is of the last stage, and {last.name} has no rounds", leave_out)
        finishes = f"ends the last stage early, and {algorithm} does more after that stage's last round"
        require(not overrides(last.algorithm, "finish"), field, value, finishes, leave_out)
        of_global = has_global_model(last.algorithm) or evaluation.personal_every is None
        every = "every" if of_global else "personal_every"
        require(
            getattr(evaluation, every) > 0,
            field,
            value,
            f"is read after evaluated rounds, and with evaluation.{every}=0 there are none before the last",
            f"set evaluation.{every}=1",
        )


def check_privacy(
    privacy: Privacy, participation: Participation, work: Work, model: ModelSpec, chain: Sequence[Stage]
) -> None:
    """Refuse privacy where more leaves clients than what it covers, or where cohorts are drawn in another way."""
    if privacy.clip is None:
        return
    for stage in chain:
        field, algorithm = f"stages.{stage.name}.algorithm" if len(chain) > 1 else "algorithm.name", stage.algorithm
        own = own_exchanges(algorithm)
        rule = f"has {', '.join(own)} of its own, and privacy.clip covers what clients send under FedAvg"
        repair = "for example fedavg, fedprox, fedavgm or fedadam, or set privacy.clip=null"
        require(not own, field, ALGORITHMS.name_of(algorithm), rule, repair)
    floating = any(buffer.is_floating_point() for buffer in outline(model).model.buffers())
    rule = "has running statistics, which clients would send beside the weights that privacy.clip covers"
    require(not floating, "model.name", MODELS.name_of(model), rule, "take one without, for example model.norm=group")
    needs = [need for stage in chain for need in stage.needs]
    branches = privacy.noise > 0 and len(needs) != len({*needs})
    rule = "lets two stages go on from one, and the accounting is of a single line of rounds"
    require(
        not branches, "stages", "...", rule, "run the branches as experiments of their own, and add up their epsilons"
    )
    poisson = privacy.noise == 0 or participation.scheme == "binomial"
    rule = "is no Poisson sampling, of which privacy's epsilon is"
    require(poisson, "participation.scheme", participation.scheme, rule, "set participation.scheme=binomial")
    alone = privacy.noise == 0 or work.share in (0, 1)
    rule = "are drawn among a cohort, so that a client's presence shows in what others do, which no noise hides"
    require(alone, "work.stragglers", work.stragglers, rule, "set work.low and work.high alone")


def check_chain(
    chain: Sequence[Stage], written: Sequence[WrittenStage], model: ModelSpec, client_models: Sequence[ModelSpec]
) -> None:
    """Refuse a stage whose algorithm cannot run there; ``written``: the stages as the config has them."""
    for stage, setting in zip(chain, settings_of(chain, model), strict=True):
        _check_requirements(stage, model, client_models)
        stage.algorithm.check(setting)
        _check_rounds(stage, chain, written)
        for change in stage.changes:
            stage.algorithm.check_change(change.algorithm)


def settings_of(chain: Sequence[Stage], model: ModelSpec) -> list[Setting]:
    """Return what each stage's algorithm may know of the experiment when it checks whether it can run there."""
    planned = tuple(
        PlannedStage(
            name=stage.name,
            needs=stage.needs,
            rounds=stage.rounds,
            algorithm=stage.algorithm,
            algorithm_name=ALGORITHMS.name_of(stage.algorithm),
            requires=stage.algorithm.requires,
        )
        for stage in chain
    )
    name = MODELS.name_of(model)
    return [
        Setting(stage=own, local=stage.local, chain=planned, model=model, model_name=name)
        for stage, own in zip(chain, planned, strict=True)
    ]


def _check_requirements(stage: Stage, model: ModelSpec, client_models: Sequence[ModelSpec]) -> None:
    """Refuse models and an optimizer that the stage's algorithm is declared not to work with."""
    algorithm, name = stage.algorithm, ALGORITHMS.name_of(stage.algorithm)
    require(
        algorithm.mixed_models or not client_models,
        "client_models",
        [MODELS.name_of(model) for model in client_models],
        f"is not for {name}, by which weights travel from one client to others",
        "leave it out, so that clients have the architecture of the section model",
    )
    if algorithm.requires.linear_optimizer:
        stage.local.demand(f"{name} reads gradients off the path of SGD", optimizer="sgd", clip_norm=None)
    for field, value in algorithm.requires.model.items():
        require(
            getattr(model, field) == value,
            f"model.{field}",
            getattr(model, field),
            f"must be {value} for {name}",
            f"set model.{field}={value}",
        )
    for own in (model, *client_models):
        if own.takes_tokens:
            _check_tokens(stage, MODELS.name_of(own))


def _check_tokens(stage: Stage, model: str) -> None:
    """Refuse a stage that changes its rows' numbers, where ``model`` takes them for token ids."""
    reason, augment = stage.algorithm.requires.no_tokens, stage.local.augment
    rule = f"{reason}, and model {model} takes token ids, which are no amounts"
    require(
        not reason, "algorithm.name", ALGORITHMS.name_of(stage.algorithm), rule, "for example algorithm.name=fedavg"
    )
    rule = f"is for images, and model {model} takes token ids"
    require(augment == "none", "local.augment", augment, rule, "set local.augment=none")


def _check_rounds(stage: Stage, chain: Sequence[Stage], written: Sequence[WrittenStage]) -> None:
    """Refuse a stage without rounds, or an algorithm without them, that comes after no stage that has trained."""
    algorithm = ALGORITHMS.name_of(stage.algorithm)
    if isinstance(stage.algorithm, PostTraining) and (stage.rounds or not written):
        require(
            bool(written),
            "algorithm.name",
            algorithm,
            "has no rounds of its own, it goes on from a stage that has trained",
            "write stages, the last one with needs: [the one before] and rounds: 0",
        )
        field, rule = f"stages.{stage.name}.rounds", f"must be 0, for {algorithm} has no rounds"
        require(False, field, stage.rounds, rule, f"set {field}=0")
    needs = {other.name: other.needs for other in written}.get(stage.name, ())
    if stage.rounds == 0 and needs and not stage.needs:
        [idle] = needs
        rule = f"leaves nothing trained that stage {stage.name} could go on from"
        raise ConfigError(f"stages.{idle}.rounds", 0, rule, "give it some rounds")
    require(
        stage.rounds > 0 or bool(stage.needs),
        f"stages.{stage.name}.rounds",
        stage.rounds,
        "a stage without rounds goes on from another one",
        f"name that one in stages.{stage.name}.needs",
    )
    own = {hook: overrides(stage.algorithm, hook) for hook in ("prepare", "finish")}
    require(
        stage.rounds > 0 or not own["prepare"] or own["finish"],
        f"stages.{stage.name}.rounds",
        stage.rounds,
        f"{algorithm} asks clients for what only its rounds use",
        f"set stages.{stage.name}.algorithm to fedavg, which hands the model on as it is",
    )
    if isinstance(stage.algorithm, PostTraining) and stage.algorithm.keeps_head:
        before = next(other for other in chain if other.name == stage.needs[0]).algorithm
        require(
            has_global_model(before),
            f"stages.{stage.name}.algorithm",
            algorithm,
            f"goes on from a global model's head, and {ALGORITHMS.name_of(before)} has none",
            f"train with a method that has a global model, or set stages.{stage.name}.algorithm.init=random",
        )
