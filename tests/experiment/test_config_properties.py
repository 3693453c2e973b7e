"""Any mapping, and any text behind a key, is an experiment that can be written and read again, or one sentence."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.base import safe_yaml
from engine.base.errors import ConfigError
from engine.experiment import CHOICES, SECTIONS, Experiment, keys
from tune_configs import EXPERIMENTS

pytestmark = pytest.mark.slow

NUMBERS = st.one_of(
    st.integers(-3, 100),
    st.sampled_from([2**31, 2**63, -(2**63), 10**30, 10**400]),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, 5e-324]),
)
WORDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", "auto", "full", "fedavg", "train", "../x", "a\0b", "\ud800", "\x1b[31m", "yes", "~", "NaN", "1e5"]
    ),
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, WORDS, st.dates())
ANYTHING = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.integers(), inner, max_size=3),
    max_leaves=8,
)
DEEP = st.integers(1, 150).map(lambda depth: _nested(depth))
VALUES = st.one_of(PLAIN, ANYTHING, DEEP)
QUICK = settings(
    max_examples=300, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def whole() -> list[dict[str, Any]]:
    """Valid ones to begin with: the named ones, and each choice with its defaults."""
    return [make().to_mapping() for make in EXPERIMENTS.values()]


VALID = whole()


@st.composite
def near(draw: st.DrawFn) -> dict[str, Any]:
    """A valid mapping in which a few things are replaced, left out or added."""
    values = dict(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from([*Experiment.model_fields]))
        kind = draw(st.sampled_from(["field", "field", "field", "choice", "whole", "gone", "new", "stage"]))
        part = values.get(section)
        if kind == "field" and isinstance(part, dict) and part:
            values[section] = part | {draw(st.sampled_from(sorted(map(str, part)))): draw(VALUES)}
        elif kind == "choice" and section in CHOICES:
            name = draw(st.sampled_from([*CHOICES[section]]))
            fields = CHOICES[section].fields(name)
            chosen = (
                {field: draw(VALUES) for field in draw(st.lists(st.sampled_from([*fields]), max_size=2))}
                if fields
                else {}
            )
            values[section] = {"name": name, **chosen}
        elif kind == "whole":
            values[section] = draw(VALUES)
        elif kind == "gone":
            values.pop(section, None)
        elif kind == "new":
            values[draw(WORDS)] = draw(VALUES)
        elif kind == "stage":
            stage = {"name": draw(WORDS), "rounds": draw(NUMBERS), "needs": draw(ANYTHING), "local": draw(ANYTHING)}
            values["stages"] = [{key: stage[key] for key in draw(st.sets(st.sampled_from([*stage])))}]
    return values


def check_sentence(error: ConfigError) -> None:
    text = str(error)
    assert text.isprintable()
    assert "pydantic" not in text
    text.encode()


def check_round_trip(experiment: Experiment) -> None:
    text = experiment.to_yaml()
    again = Experiment.from_mapping(safe_yaml.parse(text))
    assert again == experiment
    assert again.digest == experiment.digest
    assert again.to_yaml() == text
    assert len(experiment.chain) == len(experiment.spans)


def check_mapping(values: dict[str, Any]) -> None:
    """An experiment that comes back as it was, or one sentence."""
    try:
        experiment = Experiment.from_mapping(values)
    except ConfigError as error:
        check_sentence(error)
        return
    check_round_trip(experiment)


@QUICK
@given(near())
def test_a_mapping_is_an_experiment_or_a_sentence(values: dict[str, Any]) -> None:
    """Kills: another exception than ConfigError; a sentence of two lines; a value that YAML does not bring back."""
    check_mapping(values)


@QUICK
@given(st.dictionaries(WORDS | st.sampled_from([*Experiment.model_fields]), VALUES, max_size=4))
def test_anything_is_an_experiment_or_a_sentence(values: dict[str, Any]) -> None:
    """Kills: a section that is taken for a mapping, a name that is taken for a text."""
    check_mapping(values)


KEYS = [*keys(), *(f"{section}.name" for section in CHOICES), *SECTIONS, "K", "alpha", "stages.train.rounds", "R_w"]
ASSIGNMENTS = st.one_of(
    st.text(max_size=30),
    st.tuples(st.sampled_from(KEYS), st.text(max_size=20)).map("=".join),
    st.tuples(st.sampled_from(KEYS), VALUES).map(lambda pair: f"{pair[0]}={_text(pair[1])}"),
    st.tuples(WORDS, WORDS).map("=".join),
)


def _text(value: Any) -> str:
    try:
        return str(value)
    except (ValueError, RecursionError):
        return "9" * 5000


@QUICK
@given(st.sampled_from([*EXPERIMENTS.values()]), st.lists(ASSIGNMENTS, min_size=1, max_size=3))
def test_an_override_is_an_experiment_or_a_sentence(make: Any, assignments: list[str]) -> None:
    """Kills: a traceback for what was typed; an override that cannot be written down."""
    try:
        experiment = make().override(assignments)
    except ConfigError as error:
        check_sentence(error)
        return
    check_round_trip(experiment)


@QUICK
@given(
    st.one_of(
        st.text(max_size=200),
        st.binary(max_size=200).map(lambda content: content.decode("latin-1")),
        ANYTHING.map(_text),
    )
)
def test_a_text_is_yaml_or_not(text: str) -> None:
    """Kills: a reader of YAML that raises what its constructors raise."""
    told = ""
    try:
        safe_yaml.parse(text)
    except safe_yaml.NotYaml as error:
        told = str(error)
    assert "\n" not in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\nb: 2\na: 3\n", "the key 'a' twice, in line 1 and in line 3"),
        ("- x: {c: 1, 'c': 1}\n", "the key 'c' twice, in line 1 and in line 1"),
        ("- [{a: {b: 1}, c: [2]}, {d: {a: 1, a: 1}}]\n", "the key 'a' twice"),
        ("&k a: 1\n*k : 2\n", "the key 'a' twice, in line 1 and in line 2"),
        ("? a\n: {a: 1}\n? a\n: 2\n", "the key 'a' twice, in line 1 and in line 3"),
        ("!!str a: 1\na: 2\n", "the key 'a' twice"),
    ],
)
def test_a_key_twice_is_refused_at_every_level(text: str, told: str) -> None:
    """Kills: the first of two values dropped in silence; keys told apart by their quotes."""
    with pytest.raises(safe_yaml.KeyTwice) as error:
        safe_yaml.parse(text)
    assert told in str(error.value)


def test_keys_that_are_alike_and_not_the_same_are_kept() -> None:
    """Kills: values taken for keys, keys of other mappings, a number for a text; a merge that an own key overrides."""
    same = "a: &k a\nb: *k\nc: {a: a, b: {a: b}}\nd: [a, a, {a: a}, {a: a}]\n"
    assert safe_yaml.parse(same)["c"] == {"a": "a", "b": {"a": "b"}}
    assert safe_yaml.parse("1: a\n'1': b\n~: c\n'': d\n") == {1: "a", "1": "b", None: "c", "": "d"}
    assert safe_yaml.parse("x: &x {a: 1, b: 2}\ny: {<<: *x, a: 3}\n")["y"] == {"a": 3, "b": 2}


def test_sizes_of_aliases_are_those_of_what_they_stand_for() -> None:
    """Kills: an alias that counts as one value; a limit that refuses what people write."""
    chain = "a: &a [1, 2]\nb: &b [*a, *a]\nc: {<<: {x: *b}}\n"
    assert safe_yaml.parse(chain)["c"]["x"] == [[1, 2], [1, 2]]
    tens = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 7))
    with pytest.raises(safe_yaml.NotYaml, match="it stands for more than 1,000,000 values"):
        safe_yaml.parse(f"a0: &a0 [1, 2]\n{tens}")
