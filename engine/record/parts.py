"""Where a run's parts came from: ``parts.json`` in its folder.

For each section, ``stages.NAME.algorithm`` of stages, ``client_models.NUMBER`` and ``metrics.NAME`` included:

    name       as in the experiment
    origin     fedskew, package, file or script
    place      the package's name, or the file
    version    of fedskew or the package; none for a file
    code       16 digits of all sources behind the part, see engine/base/sources.py
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import __version__
from engine.base import plugins
from engine.base.definitions import SCRIPT
from engine.base.errors import RunFolderError, one_line
from engine.base.evaluated import METRICS
from engine.base.files import write_atomically
from engine.base.own_modules import OURS
from engine.base.sources import all_behind, is_installed, source_digest, version_of
from engine.experiment import Experiment
from engine.experiment.choices import PARTS
from engine.record import fields
from engine.record.numerics import mixed

FILE = "parts.json"


def origins(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """Return where each part of an experiment came from, by its section."""
    chosen = {
        "data": experiment.data,
        "partition": experiment.partition,
        "model": experiment.model,
        **{f"client_models.{number}": model for number, model in enumerate(experiment.client_models)},
        **{f"stages.{stage.name}.algorithm": stage.algorithm for stage in experiment.chain},
        **{f"metrics.{name}": METRICS.find(name)() for name in experiment.evaluation.metrics},
    }
    return {place: _origin(section_of(place), choice) for place, choice in chosen.items()}


def section_of(place: str) -> str:
    """Return the section of a place: ``algorithm`` of ``stages.train.algorithm``."""
    listed = {"client_models": "model", "metrics": "metric"}
    return listed.get(place.partition(".")[0]) or place.rpartition(".")[2]


def _origin(section: str, choice: object) -> dict[str, Any]:
    name = PARTS[section].name_of(choice)
    offer = plugins.offered(section).get(name)
    module = type(choice).__module__
    top = module.partition(".")[0]
    sources = all_behind(type(choice))
    if top in OURS:  # rooms of the engine are behind every run, and not behind a part of it
        sources |= {module: source_digest(module)}
    code = hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:16]
    if top in OURS:
        told = {"origin": "fedskew", "place": "fedskew", "version": __version__}
    elif offer is not None and offer.dist is not None:  # installed, but perhaps where its author works on it
        told = {"origin": "package", "place": offer.dist.name, "version": offer.dist.version}
    elif is_installed(top):
        told = {"origin": "package", "place": top, "version": version_of(top)}
    else:
        file = getattr(sys.modules.get(module), "__file__", None)
        told = {"origin": "script" if top == SCRIPT else "file", "place": file or "a notebook", "version": None}
    return {"name": name, **told, "code": code}


def write(folder: Path, experiment: Experiment) -> None:
    """Write ``parts.json``, unless a run that is gone on with has it already."""
    if not (folder / FILE).exists():
        write_atomically(folder / FILE, json.dumps(origins(experiment), indent=2) + "\n")


def changed(folder: Path, experiment: Experiment) -> list[str]:
    """List the parts whose code is another one than the run began with: ``algorithm 'feddyn'``."""
    before, found = read(folder), list[str]()
    for place, now in origins(experiment).items():
        if before.get(place, now).get("code") != now["code"]:
            found.append(f"{section_of(place)} {now['name']!r}")
    return sorted(set(found))


def add_changed(folder: Path, experiment: Experiment) -> None:
    """Write down that a run goes on with other code: of such a part both hashes, joined as numerics are."""
    before = read(folder)
    merged = {
        place: {**now, "code": mixed(str(before.get(place, now).get("code")), now["code"])}
        for place, now in origins(experiment).items()
    }
    write_atomically(folder / FILE, json.dumps(merged, indent=2) + "\n")


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Read ``parts.json``; {} where there is none. Raises :class:`RunFolderError` for one that is none."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found = fields.load(path)
        if not all(isinstance(one, Mapping) and isinstance(one.get("name"), str) for one in found.values()):
            raise ValueError("a part has no name")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read ({error})") from None
    return found


def lacking(folder: Path) -> dict[tuple[str, str], str]:
    """Return what of a run's parts is not known here and how it is given, in words, by section and name."""
    return {
        (section_of(place), one["name"]): f"{_came_from(place, one)} and is not known here; {_given_again(place, one)}"
        for place, one in read(folder).items()
        if one["name"] not in PARTS[section_of(place)].names()
    }


@dataclass(frozen=True)
class Needs:
    """What runs need beside fedskew to be computed again."""

    files: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # sentences: on scripts and packages, and on a parts.json that cannot be read

    @property
    def words(self) -> list[str]:
        """The words of a command that give the files."""
        return [word for file in self.files for word in ("--with", file)]


def needs(folders: Iterable[Path]) -> Needs:
    """Gather what the runs in ``folders`` need beside fedskew to be computed again, each once."""
    files, others = dict[str, None](), dict[str, None]()
    for folder in folders:
        try:
            found = read(folder)
        except RunFolderError as error:
            others[one_line(str(error))] = None
            continue
        for place, one in found.items():
            where = str(one.get("place"))
            if one.get("origin") == "file" and where.endswith(".py"):
                files[where] = None
            elif one.get("origin") != "fedskew":
                others[f"{_came_from(place, one)}; {_given_again(place, one)}"] = None
    return Needs(tuple(files), tuple(others))


def _came_from(place: str, one: Mapping[str, Any]) -> str:
    return f"{section_of(place)} {one['name']!r} came from {one.get('place')}"


def _given_again(place: str, one: Mapping[str, Any]) -> str:
    """Return how a part is made known, in words."""
    now = PARTS[section_of(place)].get(str(one.get("name")))
    if one.get("origin") == "package" and now is not None and now.__module__.partition(".")[0] in OURS:
        return "fedskew has one of that name itself now"  # as the methods that were in examples/fedskew-more
    return {
        "file": f"give its file: --with {one.get('place')}",
        "script": "run that script again",
        "package": f"install {one.get('place')} {one.get('version')}",
    }.get(str(one.get("origin")), "give its file by --with FILE.py")
