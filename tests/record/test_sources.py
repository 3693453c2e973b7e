"""The sources behind what is chosen by name: whole closures of modules, the user's own among them, and no more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from engine.base import own_modules, sources
from engine.base.errors import ConfigError
from engine.base.sources import behind, packages_behind
from engine.data import PARTITIONS, SOURCES
from engine.experiment import CHOICES, Experiment
from engine.models import MODELS
from engine.record.stage_hashes import code_of, stage_hash

# A user's folder: one module for each choice, and what those take something from, in every way that there is.
FILES = {
    "own_parts.py": """
from __future__ import annotations
from dataclasses import dataclass
from algorithms.cbfl import Cbfl
from engine.data import Iid
from engine.data.sources.mnist import FashionMnistSample
from engine.models.networks import MLP
import own_rates as rates
from own_folder import TOLD
from own_folder.inner import STEPS

@dataclass(frozen=True)
class Algorithm(Cbfl):
    lam: float = rates.LAM

@dataclass(frozen=True)
class Model(MLP):
    scale: float = TOLD

@dataclass(frozen=True, kw_only=True)
class Data(FashionMnistSample):
    def read(self):
        from own_lazy import cut
        return cut(super().read())

@dataclass(frozen=True)
class Partition(Iid):
    steps: int = STEPS
""",
    "own_rates.py": "LAM = 0.5\n",
    "own_folder/__init__.py": "from .told import TOLD\n",
    "own_folder/told.py": "TOLD = 1.5\n",
    "own_folder/inner.py": "from . import deeper\nSTEPS = deeper.STEPS\n",
    "own_folder/deeper.py": "STEPS = 3\n",
    "own_folder/unused.py": "NOBODY = 1\n",
    "own_lazy.py": "def cut(data):\n    return data\n",
}
BEHIND = {name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in FILES} - {
    "own_folder.unused"
}


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]
    importlib.invalidate_caches()
    for function in (sources._is_module, sources.is_installed, sources._closure):
        function.cache_clear()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own_modules, "text_of", own_modules._text)  # as the files are by now
    forget()
    yield tmp_path
    forget()


@pytest.fixture
def own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Experiment]:
    """An experiment whose four choices are the user's own."""
    parts = importlib.import_module("own_parts")
    for registry, name in ((ALGORITHMS, "Algorithm"), (MODELS, "Model"), (SOURCES, "Data"), (PARTITIONS, "Partition")):
        monkeypatch.setitem(registry, "own", getattr(parts, name))
    chosen = {section: {"name": "own"} for section in CHOICES}
    return lambda: Experiment(**{**chosen, "algorithm": {"name": "own", "gamma": 0.0}})


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


@pytest.mark.parametrize("name", sorted(set(FILES) - {"own_folder/unused.py"}))
def test_an_edit_of_any_module_behind_a_part_is_another_key(
    folder: Path, own: Callable[[], Experiment], name: str
) -> None:
    """Kills: rounds of an own part's earlier text that the store serves; a helper, a package or a late import that is
    not followed."""
    config = own()

    def keys() -> tuple[str, str]:
        return stage_hash(config, config.chain[0], {}, "data"), code_of(config)

    before = keys()
    append(folder / name, "# said otherwise\n")
    assert keys() == before
    append(folder / name, "ADDED = 1\n")
    assert not set(before) & set(keys())


def test_what_nobody_takes_anything_from_is_not_behind(folder: Path, own: Callable[[], Experiment]) -> None:
    """Kills: a key that any file beside an own part changes, the libraries' among them."""
    config = own()
    found = behind(type(config.algorithm)) | behind(type(config.model))
    found |= behind(type(config.data)) | behind(type(config.partition))
    assert {name for name in found if name.startswith("own_")} == BEHIND
    assert {name.partition(".")[0] for name in found} == {"algorithms", *(name.partition(".")[0] for name in BEHIND)}


def test_a_subclass_elsewhere_has_behind_it_what_its_base_has(folder: Path, own: Callable[[], Experiment]) -> None:
    """Kills: a subclass of CBFL in another package, whose key covers neither the generator nor the samplers."""
    assert {"algorithms.generators", "algorithms.class_samplers"} <= behind(ALGORITHMS["cbfl"])
    assert behind(ALGORITHMS["cbfl"]) < behind(type(own().algorithm))


def test_our_algorithms_are_followed_where_they_are_installed(
    folder: Path, own: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: ``pip install .``, after which an own subclass has the key of any text of its base class."""
    monkeypatch.setattr(sources, "is_installed", cache(lambda top: not top.startswith("own_")))
    assert {"algorithms.cbfl", "algorithms.generators"} <= behind(type(own().algorithm))


def test_the_version_of_a_package_behind_a_part_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: another SciPy, whose beta distribution has other bits, under the same key."""
    assert packages_behind(ALGORITHMS["mixup_local"]) == {"scipy"}
    assert packages_behind(ALGORITHMS["fedprox"]) == frozenset()
    mixup, plain = (Experiment(algorithm={"name": name}) for name in ("mixup_local", "fedprox"))
    before = code_of(mixup), code_of(plain)
    monkeypatch.setattr(sources, "version_of", lambda package: f"{package} 0")
    assert code_of(mixup) != before[0] and code_of(plain) == before[1]


def test_a_built_in_part_has_its_own_modules_behind_it() -> None:
    """Kills: a table of all algorithms among what one of them is hashed by; the engine's rooms walked once more."""
    assert behind(ALGORITHMS["fedprox"]) == {"algorithms.fedavg", "algorithms.fedprox"}
    assert not behind(MODELS["mlp"]) | behind(SOURCES["synthetic"]) | behind(PARTITIONS["iid"])


def test_a_module_without_a_source_is_refused() -> None:
    """Kills: a part typed into a prompt, whose results are taken for those of any other."""
    kind = type("Typed", (ALGORITHMS["fedavg"],), {"__module__": "typed_in"})
    sys.modules["typed_in"] = type(sys)("typed_in")
    try:
        with pytest.raises(ConfigError, match=r"module=typed_in: has no source file, .*; write what it holds into a"):
            behind(kind)
    finally:
        del sys.modules["typed_in"]
