"""How large the house is: ``python -m tests.support.measure``.

Lines of code are counted by syntax tree and tokens: no docstrings, no comments, no blank lines.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.house import PACKAGES, ROOT

SMALL = 60  # lines of code: a file of fewer is small
COUNTED = (*PACKAGES, "tests", "benchmarks", "docs", "examples")
# Pages that a program writes, or a table of which it writes: not counted among the words of the docs.
GENERATED = {"board.md", "claims.md", "config.md", "metrics.md", "schema.md"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(source: str) -> int:
    """Lines of Python that hold code, docstrings left out.

    >>> code_lines('"Says what it is."\\n\\nx = 1  # one\\n')
    1
    """
    documented = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            documented.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    held = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - documented)


def words(text: str) -> int:
    """Words of a page, as ``wc -w`` counts them."""
    return len(text.split())


@dataclass(frozen=True)
class Sizes:
    """What the tree below ``root`` measures, in these folders. Paths are relative, with slashes."""

    root: Path
    folders: tuple[str, ...] = COUNTED

    @cached_property
    def lines(self) -> dict[str, int]:
        """Lines of code by file."""
        files = (path for top in self.folders for path in sorted((self.root / top).rglob("*.py")))
        return {path.relative_to(self.root).as_posix(): code_lines(path.read_text()) for path in files}

    def below(self, folder: str) -> list[int]:
        """Lines of code of each file below a folder."""
        return [count for path, count in self.lines.items() if path.startswith(f"{folder}/")]

    @cached_property
    def rooms(self) -> list[str]:
        """The packages, and in each the folders that hold Python."""
        tops = {path.partition("/")[0] for path in self.lines}
        return sorted(tops | {"/".join(path.split("/")[:2]) for path in self.lines if path.count("/") > 1})

    @cached_property
    def repeated(self) -> dict[str, int]:
        """How often a file's name occurs in the packages, where that is more than once."""
        names = Counter(Path(path).name for path in self.lines if path.split("/")[0] in PACKAGES)
        return {name: count for name, count in sorted(names.items()) if count > 1 and not name.startswith("__")}

    @cached_property
    def docs_words(self) -> int:
        """Words of the pages below ``docs/``, but for those that a program writes."""
        pages = [path for path in (self.root / "docs").rglob("*.md") if path.name not in GENERATED]
        return sum(words(path.read_text()) for path in pages)

    @cached_property
    def readme_lines(self) -> int:
        return len((self.root / "README.md").read_text().splitlines())


def page(sizes: Sizes) -> str:
    """The whole measurement, as text."""
    rows = [f"{'':32}{'files':>7}{'code lines':>12}{f'under {SMALL}':>10}"]
    for folder in sizes.rooms:
        counts = sizes.below(folder)
        name = folder if "/" not in folder else "  " + folder
        rows.append(f"{name:32}{len(counts):>7}{sum(counts):>12}{sum(n < SMALL for n in counts):>10}")
    repeated = sizes.repeated
    rows += [
        "",
        f"names of files that repeat in {', '.join(PACKAGES)}: {len(repeated)}",
        "  " + ", ".join(f"{re.sub('[.]py$', '', name)} {count}" for name, count in repeated.items()),
        f"words of docs/*.md, generated pages left out: {sizes.docs_words}",
        f"lines of README.md: {sizes.readme_lines}",
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(page(Sizes(ROOT)))
