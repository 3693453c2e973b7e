"""A part to begin with: a file and its test, which pass as they are (``fedskew new``).

Their texts lie beside this file, ``KIND.txt`` and ``test_KIND.txt``; ``$name`` and ``$Class`` are the part's.
"""

from __future__ import annotations

import keyword
import re
import shlex
import sys
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template

from engine.base.errors import nearest, require
from engine.base.files import write_atomically
from engine.base.writable import check_writable
from engine.experiment import CHOICES

KINDS = ("algorithm", "model", "data", "partition")


def write(section: str, name: str, folder: Path) -> tuple[Path, Path]:
    """Write a part of that section and its test into ``folder``; return both files.

    Raises :class:`ConfigError` for a section that is none, a name that a module or another part has, and a file that
    is there already.
    """
    require(section in KINDS, "KIND", section, "is nothing to begin", nearest(section, KINDS))
    _check_name(section, name)
    path, test = folder / f"{name}.py", folder / f"test_{name}.py"
    for file in (path, test):
        require(not file.exists(), "--out", file, "is there already", "take another name, or another folder")
    check_writable(folder, "--out")
    folder.mkdir(parents=True, exist_ok=True)
    words = {"name": name, "Class": "".join(word.capitalize() for word in name.split("_"))}
    for file, template in ((path, f"{section}.txt"), (test, f"test_{section}.txt")):
        text = resources.files(__name__).joinpath(template).read_text(encoding="utf-8")
        write_atomically(file, Template(text).substitute(words))
    return path, test


def _check_name(section: str, name: str) -> None:
    fits = re.fullmatch(r"[a-z][a-z0-9_]{0,59}", name) is not None and not keyword.iskeyword(name)
    rule = "must be a name in Python: letters a-z, digits and '_', beginning with a letter"
    require(fits, "NAME", name, rule, "for example NAME=my_method")
    known = name in CHOICES[section].names()
    require(not known, "NAME", name, f"is the name of a known {section}", f"for example NAME=my_{name}")
    taken = name in sys.stdlib_module_names or name in sys.modules or find_spec(name) is not None
    require(not taken, "NAME", name, "is the name of another Python module", f"for example NAME=my_{name}")


def next_commands(section: str, name: str, path: Path, test: Path) -> list[str]:
    """Return what to type next: the checks, the tests, a run."""
    file = shlex.quote(str(path))
    run = f"fedskew run --with {file} {section}.name={name}"
    return [f"fedskew check {file}", f"pytest {shlex.quote(str(test))}", run]
