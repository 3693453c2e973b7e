"""Readers of file formats: idx, CIFAR's python batches, encoded images; parquet is in ``parquet_columns.py``.

A file that cannot be read, or is not what it should be, is a :class:`DataError` that names it.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from engine.base.errors import ConfigError, DataError
from engine.base.opening import read_bytes, regular
from engine.data.samples.labels import MOST_CLASSES
from engine.data.samples.notes import OF_LOAD, note, warn
from engine.data.sources.pickled import read_pickled

T = TypeVar("T")
U = TypeVar("U")

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"})
IMAGE_SUFFIXES |= {".jfif", ".jpe", ".apng", ".pbm", ".pnm"}

# What a file's content may be, whatever its name: of others that Pillow knows, some are read by another program.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
# An image that is far larger unpacked than packed: Pillow warns first, and then it may take all memory.
warnings.filterwarnings("error", category=Image.DecompressionBombWarning)

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
    then the centre is cut out; nothing is turned as its EXIF says, as in papers. mode: "L" (grey, C = 1) or "RGB"
    (C = 3); without it, as the first image is, and a mixture is an error. Refuses what would not fit into half of
    this machine's memory.
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
            rule = f"images must have one size, but {first} is {_size(images[0])} and {name} is {_size(pixels)}"
            example = f"data.size={min(images.shape[2:])}"
            raise DataError(f"{rule}; set data.size (for example {example}) to resize them")
        if wanted != kind:
            rule = f"leaves images grey (L) or coloured (RGB), and {first} is {kind}, {name} is {wanted}"
            raise ConfigError("data.colour", None, rule, "set data.colour=rgb or data.colour=grey")
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
            depth = content[24] if opened.format == "PNG" else max(getattr(opened, "tag_v2", {}).get(258, (8,)))
            if depth > 8:
                raise DataError(f"{name}: has {depth} bits for each colour; convert to 8 bits")
            wanted = mode or wanted
            if size is not None and crop:
                short = round(size * 8 / 7)
                opened.draft(None, (short, short))  # JPEG decodes large images at 1/2, 1/4 or 1/8, if that is enough
            if not crop:
                opened.load()  # PNG may have its EXIF at the end
                if opened.info and opened.getexif().get(ExifTags.Base.Orientation, 1) != 1:
                    ImageOps.exif_transpose(opened, in_place=True)
                    note("images turned as their EXIF orientation says", 1)
                note("images of several frames, of which the first is read", getattr(opened, "is_animated", False))
                note(f"images converted from Pillow's mode {opened.mode} to {wanted}", opened.mode != wanted)
                note(f"images resized to {size}x{size}", size is not None and opened.size != (size, size))
            picture = opened if opened.mode == wanted else opened.convert(wanted)
            if size is not None and crop:
                picture = _centre(picture, size)
            elif size is not None and picture.size != (size, size):
                picture = picture.resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(picture)
    except DataError:
        raise
    except UnidentifiedImageError:  # its text is the address of an object
        raise DataError(f"{name}: not a readable image (none of {', '.join(_FORMATS)}); get it again") from None
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
    with ThreadPoolExecutor(os.cpu_count(), initializer=OF_LOAD.set, initargs=(OF_LOAD.get(),)) as pool:
        while block := list(islice(remaining, 512)):
            yield from pool.map(function, block)


def memory_for_images() -> int:
    """Return the bytes that a split's images may take: half of the memory, as Ray's store holds a second copy."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _check_memory(count: int, shape: tuple[int, ...]) -> None:
    needed, limit = count * math.prod(shape), memory_for_images()
    if needed > limit:
        side = int((limit / (count * shape[0])) ** 0.5)
        size = f"{needed / 1e9:.1f} GB, more than half of this machine's memory ({limit / 1e9:.1f} GB)"
        repair = f"set data.size={side} or less, or data.train_samples and data.test_samples to take a part"
        raise ConfigError("data.size", shape[1], f"makes {count:,} images of {size}", repair)


def _size(image: np.ndarray) -> str:
    return f"{image.shape[2]}x{image.shape[1]}"


def image_tree(folder: Path) -> dict[str, list[Path]]:
    """List the image files of each class, for a folder with one subfolder for each; names and files sorted."""
    classes = {}
    unread = Counter(path.suffix.lower() for path in folder.iterdir() if not is_hidden(path.name) and path.is_file())
    for sub in sorted(path for path in folder.iterdir() if not is_hidden(path.name) and path.is_dir()):
        kinds = {path: path.suffix.lower() for path in sorted(visible_files(sub))}
        images = [path for path, kind in kinds.items() if kind in IMAGE_SUFFIXES]
        unread.update(kind for kind in kinds.values() if kind not in IMAGE_SUFFIXES)
        if images:
            classes[sub.name] = images
        else:
            warn(f"{sub}: has no image, and is no class")
    for kind, count in sorted(unread.items()):
        warn(f"{folder}: left unread, by their suffix: {count:,} {kind}")
    return classes


def visible_files(folder: Path, most: int | None = None) -> Iterator[Path]:
    """Yield the files below a folder that no tool has hidden, those at most ``most`` folders down.

    The folder may be a link; links below it are not followed, as they may lead round in circles. Raises
    :class:`DataError` for a folder that cannot be read.
    """
    for at, below, files in os.walk(folder, onerror=_unreadable):
        here = Path(at)
        is_deepest = len(here.relative_to(folder).parts) == most
        below[:] = [name for name in below if not is_hidden(name) and not is_deepest]
        note("links to folders, which are not followed", sum((here / name).is_symlink() for name in below))
        yield from (here / name for name in files if not is_hidden(name))


def _unreadable(error: OSError) -> None:
    raise DataError(f"{error.filename}: cannot be read ({error.strerror})")


def is_hidden(name: str) -> bool:
    """Return whether a file or folder is a tool's: of an editor, a notebook, macOS or its archives."""
    return name.startswith(".") or name in ("__MACOSX", "@eaDir", "$RECYCLE.BIN", "lost+found")


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
