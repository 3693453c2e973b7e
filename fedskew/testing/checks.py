"""The list of checks: those of a part, one check's outcome, and checks as tests of pytest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from engine.base.errors import ConfigError, FedskewError, require
from engine.experiment import CHOICES
from fedskew.testing import algorithm_runs, algorithm_values, data, models, partitions
from fedskew.testing.failure import NotApplicable


@dataclass(frozen=True)
class Check:
    """A named check of a part, which says what it demands in its function's docstring; call it with the part.

    It returns where the part passes, raises :class:`NotConforming` where it does not and :class:`NotApplicable` where
    the check has no meaning. ``full``: one that takes a Ray session or a card.
    """

    run: Callable[[Any], None]
    full: bool = False

    @property
    def name(self) -> str:
        return self.run.__name__

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


def parametrize_with_checks(
    parts: Iterable[Any],
    expected_failures: Mapping[str, str] | None = None,
    checks: Iterable[str] | None = None,
    full: bool = False,
) -> Callable[[Any], Any]:
    """Return a decorator by which a test is run for each part and check: ``def test_mine(part, check): check(part)``.

    parts: instances with their fields. expected_failures: name of a check -> why it must fail; such a test is an
    expected failure, and fails if the check passes. checks: names of those to make; None: all. full: those on Ray
    actors and on a card, too. Raises :class:`ConfigError` for a name that no check of these parts has.
    """
    import pytest

    expected, chosen = expected_failures or {}, None if checks is None else set(checks)
    of_parts = [(part, check) for part in parts for check in checks_of(part, full or chosen is not None)]
    known = dict.fromkeys(check.name for _, check in of_parts)
    for name in (*expected, *(chosen or ())):
        require(name in known, "check", name, "is not the name of a check", f"known: {', '.join(known)}")
    params = []
    for part, check in of_parts:
        if chosen is None or check.name in chosen:
            why = expected.get(check.name)
            marks = [] if why is None else [pytest.mark.xfail(strict=True, reason=why)]
            params.append(pytest.param(part, check, id=f"{type(part).__name__}-{check.name}", marks=marks))
    return pytest.mark.parametrize(("part", "check"), params)


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
