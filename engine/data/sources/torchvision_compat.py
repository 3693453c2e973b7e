"""``from engine.data.sources.torchvision_compat import torchvision`` works on any build of torch.

torchvision's registry wheels carry operators compiled for CUDA. With a CPU-only torch their shared library
cannot be loaded, and ``import torchvision`` then ends with "operator torchvision::nms does not exist": it
registers shape functions for two detection operators, ``nms`` and ``qnms``, that only the library declares.
Data sets, transforms and models need none of these operators, so it is enough to declare the two signatures.
They are declared only when they are missing; calling them still fails, as it should.
"""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path

import torch

_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # a declaration lives as long as its Library object


def _load_operators() -> None:
    """Load torchvision's compiled operators if this torch can; loading them again later does nothing."""
    spec = importlib.util.find_spec("torchvision")  # finds the folder without importing the package
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for library in Path(folder).glob("_C*.*"):
            if library.suffix in {".so", ".pyd"}:
                # fails if built for another torch: what _declare_missing is for
                with contextlib.suppress(OSError, RuntimeError):
                    torch.ops.load_library(str(library))


def _declare_missing() -> None:
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define(name + _SIGNATURE)
            _declared.append(library)


# Both must come before torchvision is imported.
_load_operators()
_declare_missing()

import torchvision  # noqa: E402

__all__ = ["torchvision"]
