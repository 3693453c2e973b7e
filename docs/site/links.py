"""Links of pages: what leads out of docs/ on GitHub leads to a page of the site here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from docs.site.place import DOCS, ROOT, SHOWN_AS

LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s]+)(?P<after>\))")
FENCE = re.compile(r"^ *(?:```|~~~).*?^ *(?:```|~~~) *$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
OTHER = re.compile(r"[a-z][a-z0-9+.-]*:|#|/")  # another site, this page, or nothing of ours


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Return ``text`` with ``change`` made to what is no code."""
    parts, end = [], 0
    for code in FENCE.finditer(text):
        parts += [change(text[end : code.start()]), code.group()]
        end = code.end()
    return "".join([*parts, change(text[end:])])


def rewritten(text: str, page: str, folder: Path) -> str:
    """Return a page's Markdown with links as the site has them; ``folder`` is where they lead from on GitHub."""

    def new(link: re.Match[str]) -> str:
        return f"{link['before']}{_target(link['target'], page, folder)}{link['after']}"

    return outside_code(text, lambda prose: LINK.sub(new, prose))


def sources(text: str, folder: Path) -> Iterator[Path]:
    """Yield the files that a page links to and that only a page of their own can show."""
    for link in LINK.finditer(FENCE.sub("", text)):
        if OTHER.match(link["target"]) is None:
            file = (folder / link["target"].partition("#")[0]).resolve()
            if _is_source(file):
                yield file


def source_page(file: Path) -> str:
    """Return the page on which a file of the repository is shown; a picture is there as it is."""
    name = f"source/{file.relative_to(ROOT).as_posix()}"
    return name if is_picture(file) else f"{name}.md"


def is_picture(file: Path) -> bool:
    """Return whether a file is no text."""
    return file.suffix in (".png", ".svg", ".jpg")


def _is_source(file: Path) -> bool:
    ours = ROOT in file.parents and DOCS not in file.parents
    return ours and file.is_file() and file.relative_to(ROOT).as_posix() not in SHOWN_AS


def _target(target: str, page: str, folder: Path) -> str:
    if OTHER.match(target):
        return target
    path, mark, anchor = target.partition("#")
    file = (folder / path).resolve()
    if file.is_dir() and (file / "README.md").exists():
        file = file / "README.md"
    if not file.exists():  # a page that is made, or a mistake: MkDocs tells
        return target
    name = file.relative_to(ROOT).as_posix()
    place = source_page(file) if _is_source(file) else SHOWN_AS.get(name, name.removeprefix("docs/"))
    return _relative(place, page) + mark + anchor


def _relative(place: str, page: str) -> str:
    """Return the link from one page to another, both by their places in the site."""
    here = PurePosixPath(page).parent
    common = next(one for one in (here, *here.parents) if PurePosixPath(place).is_relative_to(one))
    up = len(here.parts) - len(common.parts)
    return "../" * up + PurePosixPath(place).relative_to(common).as_posix()
