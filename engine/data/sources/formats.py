"""Readers of file formats: idx, CIFAR's python batches, encoded images, parquet.

A file that cannot be read, or is not what it should be, is a :class:`DataError` that names it.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from engine.base import parquet
from engine.base.errors import ConfigError, DataError
from engine.base.opening import read_bytes, regular
from engine.data.sources.pickled import read_pickled

T = TypeVar("T")
U = TypeVar("U")

MOST_CLASSES = 1_000_000  # a label beyond it is no class number: there would be a weight for each class below it
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})

# What a file's content may be, whatever its name: of others that Pillow knows, some are read by another program.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
# An image that is far larger unpacked than packed: Pillow warns first, and then it may take all memory.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)
_TOO_LARGE = (Image.DecompressionBombWarning, Image.DecompressionBombError)

# Pillow's modes -> ours. 16-bit and float images have no faithful 8-bit form and are refused.
_MODES = {"1": "L", "L": "L", "LA": "L", "P": "RGB", "PA": "RGB", "RGB": "RGB", "RGBA": "RGB", "CMYK": "RGB"}
_MODES |= {"YCbCr": "RGB", "RGBX": "RGB", "RGBa": "RGB", "La": "L", "HSV": "RGB", "LAB": "RGB"}


# ---------------------------------------------------------------------------------------------- idx (MNIST)
def read_idx(path: Path, dims: int) -> np.ndarray:
    """Read the uint8 array with ``dims`` dimensions in an idx file, plain or gzip (the format of MNIST).

    Header, big-endian: 0, 0, type (8 = uint8), number of dimensions, then one int32 for each dimension.
    """
    try:
        with open(path, "rb", opener=regular) as raw, gzip.open(raw) if path.suffix == ".gz" else raw as file:
            magic = file.read(4)
            header = file.read(4 * dims)
            if magic != bytes([0, 0, 8, dims]) or len(header) != 4 * dims:
                raise DataError(f"{path}: not an idx file of uint8 with {dims} dimensions; download it again")
            sizes = np.frombuffer(header, ">i4").tolist()
            if min(sizes) >= 0 and math.prod(sizes) > memory_for_images():
                raise DataError(f"{path}: has the sizes {sizes}, more than half of this machine's memory")
            array = np.empty(sizes, dtype=np.uint8)
            filled = file.readinto(array.reshape(-1).data) if array.size else 0
            if filled != array.size or file.read(1):
                raise DataError(f"{path}: its length is not what its header says; download it again")
    except (OSError, EOFError, zlib.error, ValueError, MemoryError) as error:
        raise DataError(f"{path}: cannot be read ({error}); download it again") from None
    return array


# ---------------------------------------------------------------------------------- CIFAR's python batches
def read_cifar_batches(
    paths: list[Path], key: str = "labels", opened: Callable[[Path], IO[bytes]] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Read images uint8 [N, 3, 32, 32] and labels int64 [N] of CIFAR's python batches, in the order given.

    key: of the labels, ``labels`` in CIFAR-10 and ``fine_labels`` in CIFAR-100. opened: see ``read_pickled``.
    """
    rows, labels = [], []
    for path in paths:
        batch = read_pickled(path, opened)
        data, label = batch.get("data"), batch.get(key)
        pixels = getattr(data, "dtype", None) == np.uint8 and getattr(data, "shape", ())[1:] == (3072,)
        if not isinstance(data, np.ndarray) or not pixels or not isinstance(label, list):
            raise DataError(f"{path}: not a CIFAR batch (uint8 `data` [n, 3072] with a list `{key}`)")
        if len(label) != len(data):
            raise DataError(f"{path}: has {len(data)} images but {len(label)} labels; download it again")
        if not all(isinstance(one, int) and abs(one) < MOST_CLASSES for one in label):
            raise DataError(f"{path}: has a label that is no class number; download it again")
        rows.append(data)
        labels += label
    images = np.empty((len(labels), 3, 32, 32), dtype=np.uint8)
    start = 0
    while rows:  # frees each batch once it is copied, so that the images are held about once
        data = rows.pop(0)
        images[start : start + len(data)] = data.reshape(-1, 3, 32, 32)
        start += len(data)
    return images, np.asarray(labels, dtype=np.int64)


# ------------------------------------------------------------------------------------------ encoded images
def decode_images(
    encoded: Iterable[tuple[str, bytes]],
    count: int,
    size: int | None = None,
    mode: str | None = None,
    crop: bool = False,
) -> np.ndarray:
    """Decode ``count`` pairs (name for errors, PNG or JPEG or other bytes) to uint8 [count, C, H, W].

    size: resize to ``size`` x ``size`` pixels (bilinear); without it, images of different sizes are an error.
    crop: keep the proportions: the shorter side becomes 8/7 of ``size`` (256 for 224, as is usual for ImageNet),
    then the centre is cut out. mode: "L" (grey, C = 1) or "RGB" (C = 3); without it, as the first image is, and a
    mixture is an error. Refuses what would not fit into half of this machine's memory.
    """
    images: np.ndarray | None = None
    first = kind = ""
    if size is not None:  # before one is resized: at the least, as their channels are not known yet
        _check_memory(count, (1, size, size))

    def decode(item: tuple[str, bytes]) -> tuple[str, str, np.ndarray]:
        return (item[0], *_decoded(*item, size, mode, crop))

    # small images cost less than handing them to a thread
    for row, (name, wanted, pixels) in enumerate((_threaded if crop else map)(decode, encoded)):
        if images is None:
            _check_memory(count, pixels.shape)
            images, first, kind = np.empty((count, *pixels.shape), dtype=np.uint8), name, wanted
        if pixels.shape[1:] != images.shape[2:]:
            raise DataError(
                f"images must have one size, but {first} is {_size(images[0])} and {name} is "
                f"{_size(pixels)}; set data.size (for example data.size={min(images.shape[2:])}) to resize them"
            )
        if wanted != kind:
            raise DataError(f"images must be all grey or all coloured, but {first} is {kind}, {name} is {wanted}")
        images[row] = pixels
    if images is None:
        raise DataError("there are no images to decode")
    return images


def _decoded(name: str, content: bytes, size: int | None, mode: str | None, crop: bool) -> tuple[str, np.ndarray]:
    """The kind ("L" or "RGB") and the pixels uint8 [C, H, W] of one encoded image."""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as opened:
            wanted = _MODES.get(opened.mode)
            if wanted is None:
                raise DataError(f"{name}: pixels of type {opened.mode} are not supported; convert to 8 bits")
            wanted = mode or wanted
            if size is not None and crop:
                short = round(size * 8 / 7)
                opened.draft(None, (short, short))  # JPEG decodes large images at 1/2, 1/4 or 1/8, if that is enough
            picture = opened if opened.mode == wanted else opened.convert(wanted)
            if size is not None and crop:
                picture = _centre(picture, size)
            elif size is not None and picture.size != (size, size):
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture)
    except DataError:
        raise
    except Exception as error:  # Pillow's readers raise whatever a broken file makes them
        raise DataError(f"{name}: not a readable image ({error}); get it again") from None
    return wanted, pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _centre(picture: Image.Image, size: int) -> Image.Image:
    """The central ``size`` x ``size`` pixels of the picture whose shorter side is made 8/7 of that."""
    width, height = picture.size
    side = min(width, height) * size / round(size * 8 / 7)  # of the square, before resizing
    left, top = (width - side) / 2, (height - side) / 2
    return picture.resize((size, size), Image.Resampling.BILINEAR, (left, top, left + side, top + side))


def _threaded(function: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """``map`` on all CPUs, in order, a block of items at a time (Pillow decodes without Python's lock)."""
    remaining = iter(items)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        while block := list(islice(remaining, 512)):
            yield from pool.map(function, block)


def memory_for_images() -> int:
    """Return the bytes that a split's images may take: half of the memory, as Ray's store holds a second copy."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _check_memory(count: int, shape: tuple[int, ...]) -> None:
    needed, limit = count * math.prod(shape), memory_for_images()
    if needed > limit:
        side = int((limit / (count * shape[0])) ** 0.5)
        raise ConfigError(
            "data.size",
            shape[1],
            f"makes {count:,} images of {needed / 1e9:.1f} GB, more than half of this machine's memory "
            f"({limit / 1e9:.1f} GB)",
            f"set data.size={side} or less, or data.train_samples and data.test_samples to take a part",
        )


def _size(image: np.ndarray) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"


def image_tree(folder: Path) -> dict[str, list[Path]]:
    """List the image files of each class, for a folder with one subfolder for each; names and files sorted."""
    classes = {}
    for sub in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        files = sorted(path for path in sub.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
        if files:
            classes[sub.name] = files
    return classes


def read_files(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield (path, content) of every file, one at a time."""
    for path in paths:
        try:
            if path.exists() and not path.is_file():  # a pipe or a device has no end
                raise DataError(f"{path}: is not a file")
            content = read_bytes(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        yield str(path), content


# ------------------------------------------------------------------------------------------------- parquet
@dataclass(frozen=True, eq=False)
class ParquetColumns:
    """Three columns of parquet files; labels and owners as they are stored (whole numbers or texts)."""

    images: np.ndarray  # uint8 [N, C, H, W]
    labels: np.ndarray  # [N]
    owners: np.ndarray | None  # [N]
    class_names: tuple[str, ...]  # from Hugging Face's schema metadata; () if there are none


def read_parquet_images(
    paths: list[Path],
    image: str,
    label: str,
    owner: str | None = None,
    size: int | None = None,
    choose: Callable[[np.ndarray], np.ndarray] | None = None,
) -> ParquetColumns:
    """Read decoded images, labels and owners of parquet files in the order given.

    image: a column of encoded images: bytes, or a struct with a field ``bytes`` (Hugging Face); ``a.b`` names
    a field of a struct, or a column whose name has a dot. choose: gets the labels and gives the sorted
    rows to keep; other images are not decoded.
    """
    files = [_open(path) for path in paths]
    count = sum(file.metadata.num_rows for file in files)
    if count == 0:
        raise DataError(f"{paths[0]}: has no rows")
    labels = np.concatenate([_values(p, f, label) for p, f in zip(paths, files, strict=True)])
    rows = np.arange(count) if choose is None else choose(labels)
    images = decode_images(_encoded(paths, files, image, rows), len(rows), size)
    owners = None
    if owner is not None:
        owners = np.concatenate([_values(p, f, owner) for p, f in zip(paths, files, strict=True)])[rows]
    return ParquetColumns(images, labels[rows], owners, _class_names(files[0].schema_arrow.metadata, label))


def _open(path: Path) -> pq.ParquetFile:
    try:
        return parquet.open_plain(path)
    except (OSError, pa.ArrowException) as error:
        raise _corrupt(path, error) from None


def _corrupt(path: Path, error: Exception) -> DataError:
    reason = str(error).splitlines()[0].rstrip(".")
    return DataError(f"{path}: not a readable parquet file ({reason}); get it again")


def _column(path: Path, schema: pa.Schema, name: str) -> tuple[str, list[str]]:
    """The top-level column of ``name`` and the struct fields below it."""
    if name in schema.names:
        return name, []
    if f"{name}.bytes" in schema.names:
        return f"{name}.bytes", []
    top, *fields = name.split(".")
    if top not in schema.names:
        raise DataError(f"{path}: has no column {name!r}; it has {', '.join(schema.names)}")
    return top, fields


def _batches(path: Path, file: pq.ParquetFile, name: str) -> Iterator[pa.Array]:
    top, fields = _column(path, file.schema_arrow, name)
    try:
        for batch in file.iter_batches(batch_size=4096, columns=[top]):
            column = batch.column(0) if batch.num_columns == 1 else batch.column(top)
            if pa.types.is_struct(column.type) and not fields:
                fields = ["bytes"]
            for field in fields:
                column = column.field(field)
            yield column
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise _corrupt(path, error) from None
    except KeyError as error:
        raise DataError(f"{path}: column {top!r} has no field {error}") from None


def _encoded(
    paths: list[Path], files: list[pq.ParquetFile], name: str, rows: np.ndarray
) -> Iterator[tuple[str, bytes]]:
    """(name for errors, image bytes) of the sorted ``rows``, counted over all files."""
    start = 0  # of the batch
    for path, file in zip(paths, files, strict=True):
        first = start
        for column in _batches(path, file, name):
            is_bytes = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
            if not is_bytes:
                raise DataError(f"{path}: column {name!r} must hold encoded images (bytes), not {column.type}")
            low, high = np.searchsorted(rows, (start, start + len(column)))
            wanted = rows[low:high]
            for row, content in zip(wanted, column.take(pa.array(wanted - start)).to_pylist(), strict=True):
                if content is None:
                    raise DataError(f"{path}: row {row - first} of column {name!r} has no image bytes")
                yield f"{path} row {row - first}", content
            start += len(column)


def _values(path: Path, file: pq.ParquetFile, name: str) -> np.ndarray:
    """A column of whole numbers (as int64) or texts [N]."""
    try:
        column = pa.chunked_array(list(_batches(path, file, name)))
        column.validate(full=True)  # texts are UTF-8, codes are of their dictionary: no reader looks
        return _plain_values(path, column, name)
    except pa.ArrowException as error:
        raise _corrupt(path, error) from None


def _plain_values(path: Path, column: pa.ChunkedArray, name: str) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        raise DataError(f"{path}: column {name!r} has {column.null_count} empty values")
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).to_numpy()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return np.asarray(column.to_pylist(), dtype=np.str_)
    raise DataError(f"{path}: column {name!r} must hold whole numbers or texts, not {column.type}")


def _class_names(metadata: dict[bytes, bytes] | None, label: str) -> tuple[str, ...]:
    """Class names as Hugging Face stores them: info.features.<label>.names, JSON in the schema metadata."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[label]["names"])
    except (LookupError, TypeError, ValueError, RecursionError):
        return ()
