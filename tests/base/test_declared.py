"""What annotations of fields say, what is refused by it, and that no hash has it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from algorithms import ALGORITHMS
from algorithms.fedavg import FedAvg
from algorithms.fedprox import FedProx
from engine.base.declared import Doc, Ge, Gt, Le, Lt, MinLen, Neutral, declared, reductions_of
from engine.base.digests import digest_of, portable_digest_of
from engine.base.errors import ConfigError
from engine.experiment import CHOICES, SECTIONS

Rates = tuple[Annotated[float, Gt(0), Le(1)], ...]


@dataclass(frozen=True)
class Told(FedAvg):
    share: Annotated[float, Ge(0), Lt(1), Doc("a share"), Neutral(0, "is none")] = 0.5
    clip: Annotated[float | None, Gt(0), Doc("a limit")] = None
    rates: Annotated[Rates, MinLen(1)] = (1.0, 0.5)
    word: Annotated[Literal["a", "b"], Doc("a word")] = "a"
    size: Literal["full"] | Annotated[int, Ge(1)] = 32
    untold: float = 3.0


KINDS = {
    "server_lr": "number > 0",
    "share": "number in [0, 1)",
    "clip": "number > 0 or null",
    "rates": "list of number in (0, 1]",
    "word": "a, b",
    "size": "full or int >= 1",
    "untold": "number",
}


def test_a_field_in_words() -> None:
    """Kills: a bound that is left out or open for closed; null, words or entries of lists that the table lacks."""
    fields = declared(Told)
    assert {name: field.kind for name, field in fields.items()} == KINDS
    assert (fields["share"].rule, str(fields["share"].neutral)) == ("must be at least 0 and below 1", "0 is none")
    assert (fields["clip"].meaning, fields["untold"].meaning, fields["word"].words) == ("a limit", "", ["a", "b"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"share": 1}, "share=1: must be at least 0 and below 1; 0 is none"),
    ({"clip": 0}, "clip=0: must be greater than 0"),
    ({"rates": ()}, "rates=(): must have at least 1; for example rates=[1.0, 0.5]"),
    ({"rates": (0.1, 1.5)}, "rates.1=1.5: must be greater than 0 and at most 1; for example rates=[1.0, 0.5]"),
    ({"word": "c"}, "word=c: must be 'a' or 'b'; for example word=a"),
    ({"size": 0}, "size=0: must be at least 1; for example size=32"),
    ({"server_lr": 0.0}, "server_lr=0.0: must be greater than 0; 1 takes the mean itself"),
]


@pytest.mark.parametrize(("values", "sentence"), REFUSED, ids=str)
def test_what_is_not_declared_is_refused(values: dict[str, Any], sentence: str) -> None:
    """Kills: a range that is looked at in a config alone; a sentence without the range, or without a repair."""
    with pytest.raises(ConfigError) as error:
        Told(**values)
    assert str(error.value) == sentence


def test_what_nothing_is_said_of_is_taken() -> None:
    """Kills: a range for fields without one; a file of a user's that says nothing and no longer works."""
    assert Told(untold=-7.0, clip=None, size="full").untold == -7.0


def test_a_new_default_keeps_what_is_said() -> None:
    """Kills: a range that is lost with a subclass's default; a promise of the class above taken for one's own."""

    @dataclass(frozen=True)
    class Stronger(FedProx):
        mu: float = 5.0

    assert declared(Stronger)["mu"].default == 5.0 and declared(Stronger)["mu"].kind == "number >= 0"
    with pytest.raises(ConfigError, match=r"^mu=-1: must be at least 0; 0 is FedAvg$"):
        Stronger(mu=-1)
    assert (reductions_of(FedProx), reductions_of(Stronger)) == ([{"mu": 0}], [])


PLAIN = "@dataclass\nclass A:\n    mu: float = 0.01\n    nu: int = 3\n"
SAID = (
    "from annotated_types import Ge\nfrom engine.base.declared import Doc\n@dataclass\nclass A:\n"
    "    mu: Annotated[float, Ge(0), Doc('a weight')] = 0.01\n    nu: int = 3\n"
)


@pytest.mark.parametrize("digest", [digest_of, portable_digest_of])
def test_what_annotations_say_is_in_no_hash(digest: Any) -> None:
    """Kills: a meaning put better that makes every result one of an earlier version; a default that no hash has."""
    assert digest(PLAIN) == digest(SAID) == digest(SAID.replace("a weight", "the weight").replace("Ge", "Gt"))
    others = [
        SAID.replace("0.01", "0.02"),
        SAID.replace("mu:", "lam:"),
        SAID.replace("= 3", ""),
        SAID.replace("@d", "@b"),
    ]
    assert len({digest(SAID), *map(digest, others)}) == 5


@pytest.mark.parametrize("digest", [digest_of, portable_digest_of])
def test_what_computes_is_in_the_hash(digest: Any) -> None:
    """Kills: a field that becomes none of the class's, or a module of the user's own with a known name, unseen."""
    assert digest("class A:\n    x: ClassVar[int] = 1\n") != digest("class A:\n    x: int = 1\n")
    assert digest("from .typing import f\n") != digest("from .typing import g\n")
    assert digest("from typing import Any\n") == digest("from typing import Annotated\n")


@dataclass(frozen=True)
class Maybe(FedProx):
    mu: float | None = None  # type: ignore[assignment]  # what FedProx says of a number does not hold


@dataclass(frozen=True)
class Stronger(FedProx):
    mu: float = 1.0


def test_a_field_declared_again_keeps_its_range_while_its_type_is_the_same() -> None:
    """Kills: a subclass whose own default its base's range refuses; one that forgets the range; a text for a number
    that is kept as a text, and fails in a client's first step."""
    assert Maybe().mu is None
    with pytest.raises(ConfigError, match="must be at least 0"):
        Stronger(mu=-1.0)
    assert FedProx(mu="0.1").mu == 0.1  # type: ignore[arg-type]


def test_everything_that_ships_says_what_it_is() -> None:
    """Kills: a field of an experiment that the config page, the schema and the Tab key know nothing of."""
    sections: dict[str, type] = dict(SECTIONS)
    choices = {f"{section}.{name}": kind for section, registry in CHOICES.items() for name, kind in registry.items()}
    for name, kind in {**sections, **choices}.items():
        assert [field.name for field in declared(kind).values() if not field.meaning] == [], name


def test_ranges_stand_in_annotations_alone() -> None:
    """Kills: a range that a method of an algorithm says once more, in other words than the table."""
    files = (Path(__file__).parents[2] / "algorithms").glob("*.py")
    again = [file.name for file in files if "must be at least 0" in file.read_text() and "require(" in file.read_text()]
    assert again == [] and ALGORITHMS
