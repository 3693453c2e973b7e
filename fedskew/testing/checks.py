"""The list of checks: which there are for a part of each section, and one check's outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from engine.base.errors import ConfigError, FedskewError, require
from engine.experiment import CHOICES
from fedskew.testing import algorithm_runs, algorithm_values, data, models, partitions
from fedskew.testing.failure import NotApplicable


@dataclass(frozen=True)
class Check:
    """A named check of a part; call it with the part.

    It returns where the part passes, raises :class:`NotConforming` where it does not and :class:`NotApplicable` where
    the check has no meaning. ``full``: one that takes a Ray session or a card.
    """

    run: Callable[[Any], None]
    full: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def what(self) -> str:
        """The first sentence of its description."""
        return (self.run.__doc__ or "").split("\n\n")[0]

    def __call__(self, part: Any) -> None:
        self.run(part)


CHECKS: dict[str, tuple[Check, ...]] = {
    "algorithm": (
        Check(algorithm_values.is_a_frozen_value),
        Check(algorithm_values.returns_what_it_declares),
        Check(algorithm_values.inputs_not_written),
        Check(algorithm_values.keeps_nothing),
        Check(algorithm_values.values_not_read),
        Check(algorithm_values.float64_throughout),
        Check(algorithm_values.draws_by_key),
        Check(algorithm_runs.same_in_one_pass),
        Check(algorithm_runs.clients_of_every_size),
        Check(algorithm_runs.with_batchnorm),
        Check(algorithm_runs.same_twice),
        Check(algorithm_runs.stop_and_resume),
        Check(algorithm_runs.neutral_is_fedavg),
        Check(algorithm_runs.on_any_number_of_actors, full=True),
        Check(algorithm_runs.same_on_a_gpu, full=True),
    ),
    "model": (
        Check(models.is_body_and_head),
        Check(models.taps_are_there),
        Check(models.is_one_vector),
        Check(models.drawn_by_the_generator),
        Check(models.same_answers_twice),
        Check(models.takes_one_row),
        Check(models.takes_float64),
        Check(models.same_in_both_executors),
        Check(models.same_twice_in_runs),
    ),
    "data": (
        Check(data.splits_fit),
        Check(data.labels_in_range),
        Check(data.is_finite),
        Check(data.same_each_time),
        Check(data.can_be_reduced),
    ),
    "partition": (
        Check(partitions.every_row_at_most_once),
        Check(partitions.makes_the_clients_asked_for),
        Check(partitions.same_for_a_seed),
        Check(partitions.another_for_another_seed),
        Check(partitions.takes_one_class),
        Check(partitions.refuses_too_few),
        Check(partitions.shares_out_test_rows),
    ),
}


def section_of(part: Any) -> str:
    """Return the section that a part is a choice of; raises :class:`ConfigError` for what is none."""
    for section, registry in CHOICES.items():
        if isinstance(part, registry.kind):
            return section
    if isinstance(part, type) and any(issubclass(part, registry.kind) for registry in CHOICES.values()):
        raise ConfigError("part", part.__name__, "is a class", f"make one of it: {part.__name__}()")
    kinds = ", ".join(registry.kind.__name__ for registry in CHOICES.values())
    raise ConfigError("part", type(part).__name__, "is no part of an experiment", f"give an instance of {kinds}")


def checks_of(part: Any, full: bool = False) -> list[Check]:
    """List the checks of a part, an instance with its fields; with ``full`` those on Ray actors and on a card, too."""
    return [check for check in CHECKS[section_of(part)] if full or not check.full]


def check_names(names: Iterable[str], of: Iterable[Check]) -> None:
    """Refuse a name that no check has."""
    known = [check.name for check in of]
    for name in names:
        require(name in known, "check", name, "is not the name of a check", f"known: {', '.join(known)}")


Status = Literal["ok", "FAILED", "skipped"]


def outcome(check: Check, part: Any) -> tuple[Status, str]:
    """Make one check; return how it ended, and the sentence or the reason that belongs to it."""
    try:
        check(part)
    except NotApplicable as reason:
        return "skipped", str(reason)
    except FedskewError as error:
        return "FAILED", str(error)
    return "ok", ""


_WHERE = re.compile(r".*\bround \d+: ")  # "MyProx fails in a small run: client 0 failed in round 1: KeyError: 'weight'"


def cause_of(told: str) -> str:
    """Return what a failed check's sentence says went wrong: neither in which run, client and round, nor the repair.

    One mistake fails every check whose run meets it, and has the same cause in each of their sentences.
    """
    return _WHERE.sub("", told).partition("; ")[0]
