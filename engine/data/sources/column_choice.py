"""The columns of a table that are read: those that were named, or the only ones that there can be."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Literal

import pyarrow as pa

from engine.base.errors import DataError
from engine.data.samples.notes import listed, warn
from engine.data.sources.parquet_columns import ParquetTable, is_numeric, is_tokens

Inputs = tuple[Literal["images", "features", "tokens"], tuple[str, ...]]  # what rows are made of, and its columns

LABEL = r"label|labels|target|class|.*_label"  # usual names of labels
# And of keys, and of columns that divide, weigh or date rows.
KEY = (
    r"(?i:id|.*[_. ](id|no|nr|key|number|weight)|idx|index_?|key|(row|line)[_.]?(id|nr|no|num|number|names?)?|uuid|guid"
    r"|unnamed: \d+|level_\d+|\.\.\.\d+|__\w+__|fold|split|is_(train|test|valid\w*)|timestamp|date|datetime"
    r"|(.*_)?(label|target|class|outcome)s?_?\d*(_(enc\w*|code|id))?)|\w*[a-z]I[dD]"
)


def label_of(table: ParquetTable) -> str:
    """Return the column of class numbers or names: ``label``, or else the only one that is called like one, or that
    Hugging Face's metadata call a ClassLabel; raises :class:`DataError` where there is none or are several.
    """
    columns, class_labels = table.schema.names, table.class_labels
    if "label" in columns:
        return "label"
    usual = [name for name in columns if re.fullmatch(LABEL, name.lower())]
    found = [name for name in columns if name in usual or name in class_labels]
    return _only(table, found, "label_column", "label", "labels")


def inputs_of(table: ParquetTable, taken: Collection[str | None]) -> Inputs:
    """Return what rows are made of: the column of encoded images, or all columns of numbers but those ``taken``.

    The images are in ``image``, or else in the only column of bytes or of structs with bytes. Raises
    :class:`DataError` where there are several, and where a column is neither image nor numbers.
    """
    types = {field.name: field.type for field in table.schema if field.name not in taken}
    if "image" in types and not (pa.types.is_nested(types["image"]) and is_numeric(types["image"])):
        return "images", ("image",)
    images = [name for name, kind in types.items() if _is_image(kind)]
    if images:
        return "images", (_only(table, images, "image_column", "image", "images"),)
    numbers = tuple(name for name, kind in types.items() if is_numeric(kind))
    others = [name for name in types if name not in numbers]
    if not types or (others and not numbers):
        repair = "name a column as data.image_column, data.feature_columns or data.token_column"
        raise DataError(f"{_where(table, 'image')}; {repair}")
    if others:
        kind = f"column {others[0]!r} holds {types[others[0]]}, which are neither images nor numbers"
        repair = f"name the features, for example data.feature_columns=[{', '.join(numbers[:3])}]"
        raise DataError(f"{table.paths[0]}: {kind}; {repair}")
    tokens = [name for name in numbers if is_tokens(types[name])]
    if tokens:
        kind = f"column {tokens[0]!r} holds lists of whole numbers, token ids or features"
        repair = f"set data.token_column={tokens[0]}, or data.feature_columns=[{tokens[0]}]"
        raise DataError(f"{table.paths[0]}: {kind}; {repair}")
    odd = [name for name in numbers if re.fullmatch(KEY, name)]
    if odd:
        warn(f"called like a key or a label, and a feature: {listed(odd)}; data.feature_columns leaves out")
    return "features", numbers


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(number).name == "bytes" for number in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _only(table: ParquetTable, found: Sequence[str], field: str, usual: str, what: str) -> str:
    """The one that was found, as a column's name."""
    if len(found) == 1:
        return found[0].removesuffix(".bytes")
    if not found:
        raise DataError(f"{_where(table, usual)}; name the column of {what} as data.{field}")
    there = ", ".join(found)
    raise DataError(f"{table.paths[0]}: columns {there} may be {what}; name one, for example data.{field}={found[0]}")


def _where(table: ParquetTable, usual: str) -> str:
    return f"{table.paths[0]}: has no column {usual!r}; it has {', '.join(table.schema.names)}"
