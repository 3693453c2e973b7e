"""The BibTeX of what a run or a sweep has used: fedskew, its methods, data sets, partitions and architectures.

Each entry of ``references.bib`` says what it is cited for, in a field ``cited_for`` that is not printed; its first
entry, a comment, lists what there is nothing to cite for. A new part needs its name in one of them.

A part of a user brings its entries in the docstring of its class or, where that has none, of its module. Docstrings are
in no hash of code, so that an entry which is added or mended later leaves results what they are.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import engine
from engine.base.errors import ConfigError, RunFolderError
from engine.experiment.choices import PARTS
from engine.record import parts
from engine.record.summary import read as read_summary
from engine.results.trials import read_experiment, read_yaml

_FEDSKEW = """@software{{fedskew,
  author = {{{{The fedskew authors}}}},
  title = {{{{fedskew: federated learning under label skew, simulated on Ray}}}},
  version = {{{version}}},
}}
"""


NOTHING = "nothing"  # the key of the comment that lists what there is nothing to cite for


@cache
def references() -> tuple[dict[str, str], dict[tuple[str, str], tuple[str, ...]]]:
    """Read ``references.bib``: entries by key, and the keys that each section's name is cited by; () if by none."""
    bibliography = resources.files("fedskew.lab.paper").joinpath("references.bib")
    by_key, sources = dict[str, str](), dict[tuple[str, str], tuple[str, ...]]()
    for entry in re.split(r"\n(?=@)", bibliography.read_text(encoding="ascii").rstrip("\n")):
        key, before, cited_for, after = re.findall(r"(?s){(.+?),(.*)\n  cited_for = {(.+)},(.*)", entry)[0]
        for section, name in (what.split() for what in cited_for.split(",")):
            sources[section, name] = sources.get((section, name), ()) + (() if key == NOTHING else (key,))
        if key != NOTHING:
            by_key[key] = f"{entry.partition('{')[0]}{{{key},{before}{after}"
    return by_key, sources


def citations(folder: Path) -> str:
    """Write the BibTeX of everything that the folder's trials have used, each entry once.

    Comments in front say what an entry is cited for, what needs none, and what has none here: a user's part that brings
    none, or is not known to this process. A trial whose experiment cannot be read is passed over. Raises
    :class:`RunFolderError` for what is neither a run nor a sweep, and :class:`ConfigError` for an entry of a user's
    part that is none, or has the key of another one.
    """
    cited: dict[tuple[str, str], tuple[str, ...] | None] = {}
    (known, sources), lacking = references(), dict[tuple[str, str], str]()
    by_key = dict(known)
    versions = set[str]()
    for trial in _trials_of(folder):
        with suppress(RunFolderError):
            for part in _parts(read_experiment(trial / "experiment.yaml")):
                if part not in cited:
                    keys = sources[part] if part in sources else _of_users_part(*part, by_key)
                    cited[part] = keys
                    lacking |= parts.lacking(trial) if keys is None else {}
            versions.add(read_summary(trial).get("versions", {}).get("fedskew", engine.__version__))
    sweep = read_yaml(folder / "sweep.yaml") if (folder / "sweep.yaml").exists() else {}
    for statistics, asked in (("verdicts", "claims"), ("ranks", "tables")):
        cited |= {("statistics", statistics): sources["statistics", statistics]} if sweep.get(asked) else {}
    comments = []
    for (section, name), keys in cited.items():
        nothing = "no entry here" if keys is None else "nothing to cite"
        nothing += f" ({lacking[section, name]})" if (section, name) in lacking else ""
        comments.append(f"% {section} {name}: {', '.join(keys or ()) or nothing}")
    fedskew = _FEDSKEW.format(version=", ".join(sorted(versions)) or engine.__version__)
    once = dict.fromkeys(key for keys in cited.values() for key in keys or ())
    return "\n".join([*comments, "", fedskew, *(f"{by_key[key].rstrip()}\n" for key in once)])


def _trials_of(folder: Path) -> list[Path]:
    folders = [folder, *sorted((folder / "trials").glob("*"))]
    trials = [one for one in folders if (one / "experiment.yaml").exists()]
    if not trials:
        raise RunFolderError(f"{folder} has no experiment to cite for; name the folder of a run or of a sweep")
    return trials


def _of_users_part(section: str, name: str, by_key: dict[str, str]) -> tuple[str, ...] | None:
    """Add the entries that a user's part brings, and return their keys; None where there are none."""
    brought_entries = brought(section, name) or {}
    for key, entry in brought_entries.items():
        if by_key.setdefault(key, entry).split() != entry.split():
            rule = f"brings an entry {key}, which is another one's key here"
            raise ConfigError(f"{section}.name", name, rule, "give the entry another key")
    return tuple(brought_entries) or None


def brought(section: str, name: str) -> dict[str, str] | None:
    """Return the entries of a part by their keys, {} if it has none; None of a part that is not known here.

    Raises :class:`ConfigError` for an entry without an end.
    """
    registry = PARTS[section]
    if name not in registry.names():
        return None
    part = registry.find(name)
    for text in (part.__doc__, getattr(sys.modules.get(part.__module__), "__doc__", None)):
        if its_entries := _entries(text or "", f"{section}.name", name):
            return its_entries
    return {}


def _entries(text: str, field: str, name: str) -> dict[str, str]:
    by_key, text = dict[str, str](), inspect.cleandoc(text)
    for head in re.finditer(r"^\s*(@\w+\{([^\s,{}]+),)", text, re.MULTILINE):
        depth, end = 1, head.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if depth:
            raise ConfigError(field, name, f"brings the entry {head[2]}, whose braces do not close", "close them")
        by_key[head[2]] = inspect.cleandoc(text[head.start(1) : end])
    return by_key


def _parts(experiment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield section and name of each part of an experiment."""
    stages = experiment["stages"]
    for stage in stages or [experiment]:
        algorithm = stage.get("algorithm") or experiment.get("algorithm") or {}
        if "name" in algorithm:
            yield "algorithm", str(algorithm["name"])
        if algorithm.get("server_optimizer") in ("adam", "yogi"):
            yield "server_optimizer", algorithm["server_optimizer"]
    models = [experiment.get("model"), *(experiment.get("client_models") or ())]
    for section, part in (
        ("data", experiment["data"]),
        ("partition", experiment.get("partition")),
        *(("model", model) for model in models),
    ):
        if isinstance(part, Mapping) and "name" in part:
            yield section, str(part["name"])
