"""Own parts: ``fedskew check``, which holds them to the rules of the engine, and ``fedskew new``, which begins one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.base.errors import ConfigError, nearest, one_line, require
from engine.data import PARTITIONS, Dataset
from engine.experiment import CHOICES, Experiment
from fedskew.cli.naming import is_name, joined, overridden
from fedskew.cli.output import print_json, print_line, say


def check_command(
    what: Annotated[
        list[str],
        typer.Argument(
            callback=joined,
            autocompletion=lambda: [name for registry in CHOICES.values() for name in registry.names()],
            help="a Python file with parts of your own, the name of a part, or data: data.name=parquet data.root=DIR",
        ),
    ],
    full: Annotated[bool, typer.Option("--full", help="on one, two and three Ray actors and on a card, too")] = False,
) -> None:
    """Check parts at their defaults on small data: a line for each check, exit code 1 if one fails.

    Of data that key=value pairs name: tell what is read of them and how, without training; with pairs such as
    partition.alpha=0.1, how they are divided among clients, too.
    """
    if not is_name(what[0]):
        _tell_data(what)
        return
    require(len(what) == 1, "NAME", " ".join(what), "is more than one part", "check each by itself")
    checked = []
    for section, name in _parts(what[0]):
        print_line(f"{section} {name}")
        checked.append({"section": section, "name": name, "checks": _shown(_checked(section, name, full))})
    statuses = Counter(check["status"] for part in checked for check in part["checks"])
    counts = {"ok": statuses["ok"], "failed": statuses["FAILED"], "skipped": statuses["skipped"]}
    print_line(", ".join(f"{count} {name}" for name, count in counts.items()))
    print_json({**counts, "parts": checked, "data": None, "partition": None})
    if counts["failed"]:
        raise typer.Exit(1)


def _tell_data(words: list[str]) -> None:
    experiment = overridden(words, "laptop")
    data = experiment.data.load()
    found = {"name": data.name, "train": len(data.train), "test": len(data.test), "shape": data.shape}
    print_line("\n  ".join((_in_words(found), *data.told)))
    whole = {**found, "classes": data.classes, "told": data.told}
    division = _division(experiment, data) if any(word.startswith("partition.") for word in words) else None
    if division:
        print_line(f"partition {_in_words(division)}")
    print_json({"ok": 0, "failed": 0, "skipped": 0, "parts": [], "data": whole, "partition": division})


def _in_words(found: dict[str, Any]) -> str:
    words = {key: f"{value:.3g}" if isinstance(value, float) else value for key, value in found.items()}
    return ", ".join(f"{key} {value}" for key, value in words.items())


def _division(experiment: Experiment, data: Dataset) -> dict[str, Any]:
    """How the rows of ``data`` are divided: sizes of clients, and how far their classes are from those of all."""
    from engine.data.dividing import divided
    from engine.server.class_balance import skew

    parts = divided(experiment.data, experiment.partition, data)
    sizes = parts.sizes()
    found = {"name": PARTITIONS.name_of(experiment.partition), "clients": len(sizes)}
    found |= {"least_rows": int(sizes.min()), "most_rows": int(sizes.max()), "dropped_rows": len(parts.dropped)}
    return found | {"public_rows": len(parts.public)} | skew(parts.class_counts(data.train.labels, len(data.classes)))


def _parts(what: str) -> list[tuple[str, str]]:
    """Section and name of the parts that a file, or a module that it imports, registers; or of those of a name."""
    if what.endswith(".py") or os.path.exists(what):
        from engine.base import own_modules

        before = {(section, name): kind for section, registry in CHOICES.items() for name, kind in registry.items()}
        module = own_modules.import_file(Path(what), "FILE").__name__
        found = [
            (section, name)
            for section, registry in CHOICES.items()
            for name, kind in registry.items()
            if before.get((section, name)) is not kind or kind.__module__ == module
        ]
        decorators = "fedskew.algorithm, fedskew.model, fedskew.dataset or fedskew.partition"
        require(bool(found), "FILE", what, "registers no part", f"write a decorator, {decorators}, above one")
        return found
    found = [(section, what) for section, registry in CHOICES.items() if what in registry.names()]
    known = [name for registry in CHOICES.values() for name in registry.names()]
    require(bool(found), "NAME", what, "is neither a Python file nor a known part", nearest(what, known))
    return found


def _checked(section: str, name: str, full: bool) -> Iterator[tuple[str, str, str]]:
    """Make the checks of one part; yield the status of each, its name, and what is to be said of it."""
    from fedskew.testing.checks import checks_of, outcome

    try:
        part = CHOICES[section].build({"name": name})
    except ConfigError as error:
        repair = "give each field a default, or check it with values of your own by fedskew.testing"
        yield "FAILED", "has_defaults", f"{error}; {repair}"
        return
    for check in checks_of(part, full):
        status, sentence = outcome(check, part)
        yield status, check.name, sentence


def _shown(checks: Iterable[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Print a line for each check, but one for all that fail for the same reason; return every one of them."""
    from fedskew.testing.checks import cause_of

    rows, alike = [], dict[str, list[str]]()  # cause -> the names of the checks that fail by it
    for status, name, sentence in checks:
        names = alike.setdefault(cause_of(sentence), []) if status == "FAILED" else []
        if not names:
            print_line(one_line(f"  {status:<7}  {name}{': ' if sentence else ''}{sentence}"))
        rows.append({"name": name, "status": status, "told": sentence, "same_as": names[0] if names else None})
        names.append(name)
    for first, *others in alike.values():
        if others:
            more = "1 more check fails" if len(others) == 1 else f"{len(others)} more checks fail"
            print_line(f"           {more} for the same reason as {first}: {', '.join(others)}")
    return rows


def new_command(
    kind: Annotated[
        str, typer.Argument(autocompletion=lambda: [*CHOICES], help="algorithm | model | data | partition")
    ],
    name: Annotated[str, typer.Argument(help="of the part, and of its file")],
    out: Annotated[Path, typer.Option(help="the folder to write to")] = Path("."),
) -> None:
    """Write NAME.py and test_NAME.py, a part that passes its checks as it is, to go on from."""
    from fedskew.testing import templates

    path, test = templates.write(kind, name, out)
    say(f"wrote {path} and {test}; next:")
    commands = templates.next_commands(kind, name, path, test)
    for command in commands:
        print_line(f"  {command}")
    print_json({"file": path, "test": test, "next": commands})
