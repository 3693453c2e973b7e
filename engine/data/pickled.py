"""CIFAR's python batches are pickles, and a pickle can run any code; this reads one that cannot.

A pickle runs code by naming a function to call. Only the five names that a numpy array needs are known here,
under both module paths that numpy has used; any other name ends the reading.
"""

from __future__ import annotations

import _codecs
import pickle
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.errors import DataError

_reconstruct = np.empty(0).__reduce__()[0]  # the function that numpy pickles arrays with

_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _codecs.encode,
}

# What reading a broken pickle may raise.
_BROKEN = (OSError, EOFError, pickle.UnpicklingError, LookupError, AttributeError, TypeError, ValueError)
_BROKEN += (ImportError, ArithmeticError, MemoryError, tarfile.TarError, zlib.error)


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is not part of an array")
        return _KNOWN[module, name]


def read_pickled(path: Path, opened: Callable[[Path], IO[bytes]] | None = None) -> dict[str, Any]:
    """The dictionary of arrays, lists and texts in the pickle at ``path``; :class:`DataError` otherwise.

    opened: opens ``path``, where it is not a file of its own (a member of an archive).
    """
    try:
        with opened(path) if opened else path.open("rb") as file:
            # Python 2 wrote the originals; latin-1 is how numpy's bytes in them come through unchanged
            content = _ArrayUnpickler(file, encoding="latin1").load()
    except _BROKEN as error:
        raise DataError(f"{path}: not a readable CIFAR batch ({error}); download it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a CIFAR batch (a dictionary), but a {type(content).__name__}")
    return content
