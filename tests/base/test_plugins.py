"""Parts of installed packages: known by their metadata, imported when a name of theirs is used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from algorithms import ALGORITHMS
from engine.base import plugins
from engine.base.errors import ConfigError
from engine.experiment import Experiment
from engine.record.parts import origins
from tests.support import own_prox


def install(folder: Path, entries: str, distribution: str = "more", text: str = own_prox.FILE) -> None:
    """A package with entry points, as it lies on the path once it is installed."""
    own_prox.write(folder, more_parts=text)
    about = folder / f"{distribution}-1.5.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n")
    (about / "entry_points.txt").write_text(f"[fedskew.plugins]\n{entries}\n")
    sys.path.insert(0, str(folder))
    plugins.offered.cache_clear()


def test_a_name_of_a_package_is_imported_when_it_is_used(tmp_path: Path) -> None:
    """Kills: an import for a list of names, or for the name of another part; a name that is not found; a package that
    is told as a file without a version, since it lies in its author's folder."""
    install(tmp_path, "algorithm.ownprox = more_parts:OwnProx")
    assert "ownprox" in ALGORITHMS.names() and ALGORITHMS.offered()["ownprox"] == "more 1.5"
    Experiment(algorithm={"name": "fedprox"})
    with pytest.raises(ConfigError, match="did you mean 'ownprox'"):
        Experiment(algorithm={"name": "ownprux"})
    assert "more_parts" not in sys.modules
    found = Experiment(algorithm={"name": "ownprox", "mu": 0.5}).algorithm
    assert type(found) is sys.modules["more_parts"].OwnProx and found.mu == 0.5
    assert "ownprox" not in ALGORITHMS.offered()
    told = origins(Experiment(algorithm={"name": "ownprox"}))["stages.train.algorithm"]
    assert {key: told[key] for key in ("origin", "place", "version")} == {
        "origin": "package",
        "place": "more",
        "version": "1.5",
    }


BROKEN = {
    "algorithm.ownprox = more_parts:Nothing": "AttributeError: module 'more_parts' has no attribute 'Nothing'",
    "algorithm.ownprox = nowhere:OwnProx": "ModuleNotFoundError: No module named 'nowhere'",
}


@pytest.mark.parametrize("entries", BROKEN)
def test_a_broken_package_is_one_sentence(tmp_path: Path, entries: str) -> None:
    """Kills: a traceback of an import that the user has not written."""
    install(tmp_path, entries, text="")
    with pytest.raises(ConfigError) as raised:
        Experiment(algorithm={"name": "ownprox"})
    told = f"algorithm.name=ownprox: of the package more 1.5 cannot be imported ({BROKEN[entries]})"
    assert str(raised.value) == told


def test_a_name_is_one_part(tmp_path: Path) -> None:
    """Kills: two packages of which the first on the path wins; a file that takes a package's name, or ours."""
    install(tmp_path / "a", "algorithm.ownprox = more_parts:OwnProx")
    own_prox.write(tmp_path, mine_i=own_prox.FILE.replace("class OwnProx", "class Another"))
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(ConfigError, match="ownprox: is the name of more_parts:OwnProx in the package more 1"):
        __import__("mine_i")
    with pytest.raises(ConfigError, match=r"^algorithm.name=fedprox: is the name of algorithms.fedprox:FedProx "):
        ALGORITHMS.add("fedprox", ALGORITHMS["scaffold"])
    install(tmp_path / "b", "algorithm.ownprox = other_parts:OwnProx", "even-more")
    with pytest.raises(ConfigError, match=r"ownprox: is offered by more 1.5 and by even-more 1.5; uninstall one"):
        Experiment(algorithm={"name": "ownprox"})
