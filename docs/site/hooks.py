"""What MkDocs calls while it builds the site: pages that are made are added, links are turned to the site's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]
from mkdocs.structure.files import File, Files, InclusionLevel  # pyright: ignore[reportMissingImports]
from mkdocs.structure.pages import Page  # pyright: ignore[reportMissingImports]

from docs.site import algorithm_pages, api, commands, links, notebooks
from docs.site.included import code_page, with_parts
from docs.site.place import DOCS, ROOT, SHOWN_AS

WIDE = {
    "config.md",
    "board.md",
    "claims.md",
    "catalogue.md",
    "commands.md",
    "schema.md",
    "algorithms/index.md",
}  # pages of tables that need the margin, too


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the entries of the navigation that are lists of made pages."""
    assert config.nav is not None
    _fill(config.nav, "Python", [{title: f"api/{page}.md"} for page, (title, _) in api.pages().items()])
    _fill(config.nav, "Algorithms", algorithm_pages.titles())
    return config


def _fill(nav: list[Any], name: str, entries: list[dict[str, str]]) -> None:
    for entry in nav:
        (title, value), *_ = entry.items()
        if title == name and isinstance(value, list):
            value[:] = entries
        elif isinstance(value, list):
            _fill(value, name, entries)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and at the end one for each file of code that any page links to."""
    with ThreadPoolExecutor(max_workers=1) as beside:  # the tutorials, in processes of their own
        running = [beside.submit(notebooks.executed, path) for path in sorted(notebooks.TUTORIALS.glob("*.ipynb"))]
        made = {"commands.md": commands.page(), **algorithm_pages.pages()}
    tutorials = [one.result() for one in running]
    for one in tutorials:
        for name, content in one.files.items():
            files.append(
                File.generated(config, f"tutorials/{name}", content=content, inclusion=InclusionLevel.INCLUDED)
            )
    made |= {f"tutorials/{one.name}.md": one.page for one in tutorials}
    made |= {f"api/{page}.md": text for page, (_, text) in api.pages().items()}
    made |= {page: (ROOT / file).read_text(encoding="utf-8") for file, page in SHOWN_AS.items() if page != "index.md"}
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    linked = {
        file
        for page in list(files.documentation_pages())
        for file in links.sources(with_parts(page.content_string, lambda part, _: part), _folder(page.src_uri))
    }
    for file in sorted(linked):
        content = file.read_bytes() if links.is_picture(file) else code_page(file)
        files.append(File.generated(config, links.source_page(file), content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links of a page to pages of the site, and put in the parts of other files that it asks for."""
    place = page.file.src_uri
    if place in WIDE:
        page.meta["hide"] = ["toc"]
    if place.startswith("source/"):
        return markdown
    own = links.rewritten(markdown, place, _folder(place))
    return with_parts(own, lambda part, folder: links.rewritten(part, place, folder))


def _folder(page: str) -> Path:
    """Return the folder from which a page's links lead on GitHub."""
    shown = {name: file for file, name in SHOWN_AS.items() if name != "index.md"}
    return ((ROOT / shown[page]) if page in shown else (DOCS / page)).parent
