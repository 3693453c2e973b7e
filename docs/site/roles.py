"""Docstrings for the pages of names: Sphinx's roles, which MkDocs does not know, become code; comments count."""

from __future__ import annotations

import re
from typing import Any

import griffe  # pyright: ignore[reportMissingImports]

from docs.site.comments import comment_of

ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")


def plain(text: str) -> str:
    """Return a docstring with ``:class:`~engine.base.errors.ConfigError``` written as code: ConfigError."""
    return ROLE.sub(r"`\1`", text)


class Roles(griffe.Extension):
    """Rewrites the docstring of everything that is read, and makes one of a field's comment."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of a module, class, function or field."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Take a field's comment for its docstring."""
        is_field = attr.parent is not None and attr.parent.is_class and not attr.name.startswith("_")
        if attr.docstring is None and is_field and attr.lineno and attr.endlineno:
            said = comment_of(attr.lines_collection[attr.filepath], attr.lineno, attr.endlineno)  # pyright: ignore
            if said:
                attr.docstring = griffe.Docstring(said, parent=attr)
