"""The BibTeX of what a run or a sweep has used: fedskew, its methods, data sets, partitions and architectures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import engine
from engine.base.errors import ConfigError, RunFolderError
from engine.record import parts
from engine.record.summary import read as read_summary
from engine.results.trials import read_experiment, read_yaml
from fedskew.lab.paper.own_entries import brought
from fedskew.lab.paper.sources import CLAIMS, RANKS, SERVER_OPTIMIZERS, SOURCES, entries

_FEDSKEW = """@software{{fedskew,
  author = {{{{The fedskew authors}}}},
  title = {{{{fedskew: federated learning under label skew, simulated on Ray}}}},
  version = {{{version}}},
}}
"""


def folders_of(folder: Path) -> list[Path]:
    """List the trials' folders of a sweep, or the run itself; :class:`RunFolderError` if it is neither."""
    found = [folder] if (folder / "experiment.yaml").exists() else sorted((folder / "trials").glob("*"))
    found = [one for one in found if (one / "experiment.yaml").exists()]
    if not found:
        raise RunFolderError(f"{folder} has no experiment to cite for; name the folder of a run or of a sweep")
    return found


def citations(folder: Path) -> str:
    """Write the BibTeX of everything that the folder's trials have used, each entry once.

    Comments in front say what an entry is cited for, what needs none, and what has none here: a part of one's own that
    brings none, or is not known to this process. A trial whose experiment cannot be read is passed over. Raises
    :class:`ConfigError` for an entry of such a part that is none, or has the key of another one.
    """
    used: dict[tuple[str, str], tuple[str, ...] | None] = {}
    by_key, told = entries(), dict[tuple[str, str], str]()
    versions = set[str]()
    for trial in folders_of(folder):
        with suppress(RunFolderError):
            for section, name, more in _parts(read_experiment(trial / "experiment.yaml")):
                if (section, name) not in used:
                    known = SOURCES[section].get(name)
                    known = _brought(section, name, by_key) if known is None else known
                    used[section, name] = (*known, *more) if known is not None else None
                    told |= parts.lacking(trial) if known is None else {}
            versions.add(read_summary(trial).get("versions", {}).get("fedskew", engine.__version__))
    asked = read_yaml(folder / "sweep.yaml") if (folder / "sweep.yaml").exists() else {}
    if asked.get("claims"):
        used["statistics", "verdicts"] = CLAIMS
    if asked.get("tables"):
        used["statistics", "ranks"] = RANKS
    lines, keys = [], dict[str, None]()
    for (section, name), known in used.items():
        nothing = "no entry here" if known is None else "nothing to cite"
        nothing += f" ({told[section, name]})" if (section, name) in told else ""
        lines.append(f"% {section} {name}: {', '.join(known or ()) or nothing}")
        keys |= dict.fromkeys(known or ())
    made = [_FEDSKEW.format(version=", ".join(sorted(versions)) or engine.__version__)]
    return "\n".join([*lines, "", *made, *(f"{by_key[key].rstrip()}\n" for key in keys)])


def _brought(section: str, name: str, by_key: dict[str, str]) -> tuple[str, ...] | None:
    """Add the entries that a part of one's own brings, and return their keys; None where there are none."""
    found = brought(section, name) or {}
    for key, entry in found.items():
        if by_key.setdefault(key, entry).split() != entry.split():
            rule = f"brings an entry {key}, which is another one's key here"
            raise ConfigError(f"{section}.name", name, rule, "give the entry another key")
    return tuple(found) or None


def _parts(experiment: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield section, name and further sources of each part of an experiment."""
    stages = experiment["stages"]
    for stage in stages or [experiment]:
        algorithm = stage.get("algorithm") or experiment.get("algorithm") or {}
        adaptive = algorithm.get("server_optimizer") in ("adam", "yogi")
        if "name" in algorithm:
            yield "algorithm", str(algorithm["name"]), SERVER_OPTIMIZERS if adaptive else ()
    models = [experiment.get("model"), *(experiment.get("client_models") or ())]
    for section, part in (
        ("data", experiment["data"]),
        ("partition", experiment.get("partition")),
        *(("model", model) for model in models),
    ):
        if isinstance(part, Mapping) and "name" in part:
            yield section, str(part["name"]), ()
