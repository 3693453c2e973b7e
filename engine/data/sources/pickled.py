"""A reader of CIFAR's python batches, which are pickles, and a pickle can run any code: not here.

A pickle runs code by naming a function to call. Only the five names that a numpy array needs are known here,
under both module paths that numpy has used; any other name ends the reading.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.base.errors import DataError
from engine.base.opening import regular


def _empty_array(*_: Any) -> np.ndarray:
    """Stand in for numpy's own function, with which a few bytes could ask for any memory."""
    return np.empty(0)


def _number_type(name: Any, *_: Any) -> np.dtype[Any]:
    if not isinstance(name, str) or not re.fullmatch(r"[<>|=]?[biuf][1248]?", name):
        raise pickle.UnpicklingError("it has an array of something else than numbers")
    return np.dtype(name, copy=True)


def _encoded(text: Any, code: Any = "latin1") -> bytes:
    """The bytes of Python 2's texts; other codes could double them, again and again."""
    if not isinstance(text, str) or code not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError("it has a text in another code than latin-1")
    return text.encode("latin1")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("numpy", "ndarray"): None,  # it is named, and never called
    ("numpy", "dtype"): _number_type,
    ("_codecs", "encode"): _encoded,
}

# What reading a broken pickle may raise.
_BROKEN = (OSError, EOFError, pickle.UnpicklingError, LookupError, AttributeError, TypeError, ValueError)
_BROKEN += (ImportError, ArithmeticError, MemoryError, tarfile.TarError, zlib.error)


LONGEST = 2**30  # bytes of a batch; CIFAR-100's training images take 150 MB


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of an array")
        return _KNOWN[module, name]


def _check_places(pickled: bytes) -> None:
    """Refuse a pickle that keeps what it has read at a place beyond its length: memory is taken up to there."""
    if len(pickled) > LONGEST:
        raise pickle.UnpicklingError(f"it is longer than {LONGEST:,} bytes")
    for operation, place, _ in pickletools.genops(pickled):
        if operation.name in ("PUT", "LONG_BINPUT") and (place or 0) > len(pickled):
            raise pickle.UnpicklingError("it keeps more values than it has")


def read_pickled(path: Path, opened: Callable[[Path], IO[bytes]] | None = None) -> dict[str, Any]:
    """Read the dictionary of arrays, lists and texts in the pickle at ``path``; raise :class:`DataError` otherwise.

    opened: opens ``path``, where it is not a file of its own (a member of an archive).
    """
    try:
        with opened(path) if opened else open(path, "rb", opener=regular) as file:
            pickled = file.read(LONGEST + 1)
        _check_places(pickled)
        # Python 2 wrote the originals; latin-1 is how numpy's bytes in them come through unchanged
        content = _ArrayUnpickler(io.BytesIO(pickled), encoding="latin1").load()
    except _BROKEN as error:
        raise DataError(f"{path}: not a readable CIFAR batch ({error}); download it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a CIFAR batch (a dictionary), but a {type(content).__name__}")
    return content
