"""The table of all keys in docs/config.md, made from the annotations of fields.

``python -m docs.site.config_keys`` in a checkout writes it anew; a test holds page and annotations equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING

from docs.site.place import DOCS
from engine.base.declared import Declared, declared, in_yaml
from engine.base.registry import Registry
from engine.experiment import CHOICES, SECTIONS, Experiment

PAGE = DOCS / "config.md"
HEAD = ("key", "of", "type and range", "default", "neutral", "meaning")
BEGINS, ENDS = "<!-- keys: python -m docs.site.config_keys -->", "<!-- end of keys -->"


def table() -> str:
    """Return the table in Markdown: a row for each key, or for each meaning that choices give it."""
    lines = [HEAD, ("---",) * len(HEAD), *_rows()]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def page() -> str:
    """Return docs/config.md with today's table."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGINS)
    return f"{before}{BEGINS}\n\n{table()}\n\n{ENDS}{rest.partition(ENDS)[2]}"


def _rows() -> Iterator[tuple[str, ...]]:
    for section, field in declared(Experiment).items():
        if section in CHOICES:
            registry = CHOICES[section]
            default = registry.name_of(getattr(Experiment(), section))
            yield f"`{section}.name`", "", "choice", default, "", ", ".join(registry)
            yield from _of_choices(section, registry)
        elif section in SECTIONS:
            for name, one in declared(SECTIONS[section]).items():
                yield _row(f"{section}.{name}", "", one, _written(one))
        elif field.meaning:
            yield _row(section, "", field, _written(field))


def _of_choices(section: str, registry: Registry) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a section's fields in the order in which choices bring them; equal ones are one row."""
    fields: dict[str, dict[tuple[str, str, str], dict[str, Declared]]] = {}
    for choice, kind in registry.items():
        for name, field in declared(kind).items():
            said = field.kind, field.meaning, str(field.neutral)
            fields.setdefault(name, {}).setdefault(said, {})[choice] = field
    for name, groups in fields.items():
        for owners in groups.values():
            of = "all" if len(owners) == len(registry) else ", ".join(owners)
            yield _row(f"{section}.{name}", of, next(iter(owners.values())), _defaults(owners))


def _row(key: str, of: str, field: Declared, default: str) -> tuple[str, ...]:
    neutral = "" if field.neutral is None else str(field.neutral)
    return f"`{key}`", of, field.kind, default, neutral, field.meaning


def _defaults(owners: Mapping[str, Declared]) -> str:
    """Return the default of most owners, and those of the others by their names."""
    written = {name: _written(field) for name, field in owners.items()}
    usual = max(dict.fromkeys(written.values()), key=[*written.values()].count)
    return "; ".join([usual, *(f"{name}: {one}" for name, one in written.items() if one != usual)])


def _written(field: Declared) -> str:
    return "required" if field.default is MISSING else in_yaml(field.default)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
